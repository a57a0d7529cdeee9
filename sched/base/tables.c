/* SPDX-License-Identifier: Apache-2.0 */
/* tables.c - see tables.h. Each array is a separate allocation, so that ASan detects accesses past its end. */
#include "tables.h"

#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>

struct efs_tables_entry {
    alignas(max_align_t) struct efs_tables_entry *before;
};

void *efs_table(struct efs_tables *tables, size_t count, size_t size)
{
    struct efs_tables_entry *entry = NULL;
    size_t bytes;

    if (!__builtin_mul_overflow(count ? count : 1, size, &bytes) &&
        !__builtin_add_overflow(bytes, sizeof(*entry), &bytes))
        entry = calloc(1, bytes);
    if (!entry) {
        tables->failed = true;
        return NULL;
    }
    entry->before = tables->last;
    tables->last = entry;
    return entry + 1;
}

int efs_tables_error(const struct efs_tables *tables)
{
    return tables->failed ? -ENOMEM : 0;
}

void efs_tables_free(struct efs_tables *tables)
{
    for (struct efs_tables_entry *entry = tables->last, *before; entry; entry = before) {
        before = entry->before;
        free(entry);
    }
    *tables = (struct efs_tables){0};
}
