/* SPDX-License-Identifier: Apache-2.0 */
/* rados_remove.c - deletes a store in a pool of Ceph, or what a copy or deletion that was killed has left. */
#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "rados_write.h"

#include <errno.h>
#include <string.h>

/* Finds the store to delete. unfinished: of the two IDs of the mark, that which the head does not have. head->id: "" if
 * only the mark is left. */
static errint_t find(struct efs_rados *r, bool unfinished, struct efs_rados_head *head, struct efs_error *err)
{
    char mark[EFS_RADOS_MARK_BYTES];
    struct efs_rados_head replaced, now;
    if (!unfinished)
        return efs_rados_head_read(r, head, err);
    errint_t rc = efs_rados_mark_name(r, mark, err);
    if (rc < 0)
        return rc;
    rc = efs_rados_mark_read(r, mark, head, &replaced);
    if (rc == -ENOENT || rc == -EUCLEAN)
        return efs_fail(err, rc, "%s: nothing is unfinished", r->label);
    if (rc == 0)
        rc = efs_rados_head_try(r, &now);
    if (rc == 0 && strcmp(now.id, head->id) == 0)
        *head = replaced;
    return rc < 0 && rc != -ENOENT && rc != -EUCLEAN ? efs_rados_fail(r, rc, err) : 0;
}

errint_t efs_rados_bytes(const char *address, bool unfinished, uint64_t *bytes, struct efs_error *err)
{
    struct efs_rados r;
    struct efs_rados_head head = {.bytes = 0};
    errint_t rc = efs_rados_connect(address, &r, err);
    if (rc == 0)
        rc = find(&r, unfinished, &head, err);
    *bytes = head.bytes;
    efs_rados_close(&r);
    return rc;
}

/* Deletes the head, so that no reader begins, unless another store has the name now. */
static int remove_head(struct efs_rados *r, const struct efs_rados_head *head)
{
    struct efs_rados_head now;
    int rc = efs_rados_head_try(r, &now);
    if (rc == 0 && strcmp(now.id, head->id) == 0)
        rc = efs_rados_remove_object(r, r->name);
    return rc == -ENOENT || rc == -EUCLEAN ? 0 : rc;
}

errint_t efs_rados_remove(const char *address, bool unfinished, uint64_t *bytes, struct efs_error *err)
{
    struct efs_rados r;
    struct efs_rados_head head = {.bytes = 0};
    char mark[EFS_RADOS_MARK_BYTES];
    errint_t rc = efs_rados_connect(address, &r, err);
    if (rc == 0)
        rc = find(&r, unfinished, &head, err);
    if (rc == 0)
        rc = efs_rados_mark_name(&r, mark, err);
    int failed = rc == 0 && !unfinished ? efs_rados_write_mark(&r, mark, &head, NULL, EFS_RADOS_FULL_FORCE) : 0;
    if (failed == -EEXIST)
        rc = efs_rados_fail_marked(&r, mark, err);
    else if (failed < 0)
        rc = efs_rados_fail(&r, failed, err);
    if (rc == 0) {
        failed = unfinished ? 0 : remove_head(&r, &head);
        failed = failed == 0 && *head.id ? efs_rados_remove_store(&r, &head) : failed;
        failed = failed == 0 ? efs_rados_remove_object(&r, mark) : failed;
        rc = failed < 0 ? efs_rados_fail(&r, failed, err) : 0;
    }
    *bytes = rc == 0 ? head.bytes : 0;
    efs_rados_close(&r);
    return rc;
}
