/* SPDX-License-Identifier: Apache-2.0 */
/* pack_fixture.h - packs and opens a fixture's store. */
#ifndef EFS_TEST_PACK_FIXTURE_H
#define EFS_TEST_PACK_FIXTURE_H

#include "test.h"
#include "fixture.h"
#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "store.h"

static struct efs_pack_report report;

static inline errint_t pack(const struct fixture *f, const struct efs_pack_options *options, struct efs_error *err)
{
    err->text[0] = '\0';
    errint_t rc = efs_pack(f->source, f->store, options, &report, err);
    assert_true((rc < 0) == (err->text[0] != '\0'));
    return rc;
}

static inline struct efs_store *open_store(const char *path)
{
    struct efs_store *store;
    struct efs_error err = {""};
    errint_t rc = efs_store_open(path, &store, &err);
    if (rc < 0)
        print_error("%s\n", err.text);
    assert_int_equal(rc, 0);
    return store;
}

#endif
