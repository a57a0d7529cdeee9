/* SPDX-License-Identifier: Apache-2.0 */
/* backing_store.c - the backing of an open store, by what the store is. */
#include "backing.h"
#include "plain.h"
#include "sys.h"

#include <stdlib.h>

static errint_t plain_check(void *arg, unsigned part)
{
    return efs_plain_check(arg, part);
}

static struct efs_backing *plain_backing(struct efs_plain *plain, bool direct, struct efs_backing_file_options *options)
{
    struct efs_backing_part *parts = efs_sys_calloc(plain->file_count, sizeof(*parts));
    if (!parts)
        return NULL;
    for (uint32_t i = 0; i < plain->file_count; i++) {
        const struct efs_plain_file *f = &plain->files[i];
        parts[i] = (struct efs_backing_part){.fd = direct && f->direct_fd >= 0 ? f->direct_fd : f->fd,
                                             .buffered_fd = f->fd,
                                             .address = f->address,
                                             .bytes = f->bytes};
    }
    options->parts = parts;
    options->part_count = plain->file_count;
    options->check = plain_check;
    options->check_arg = plain;
    struct efs_backing *backing = efs_backing_file_new(options);
    free(parts);
    return backing;
}

struct efs_backing *efs_backing_of_store(const struct efs_store *store, bool direct,
                                         void (*fell_back)(void *arg, const char *what, errint_t why), void *arg)
{
    struct efs_backing_file_options options = {.fd = direct && store->direct_fd >= 0 ? store->direct_fd : store->fd,
                                               .buffered_fd = store->fd,
                                               .fell_back = fell_back,
                                               .arg = arg};
    return store->plain ? plain_backing(store->plain, direct, &options) : efs_backing_file_new(&options);
}
