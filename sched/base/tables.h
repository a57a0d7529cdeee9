/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tables.h - the arrays of one owner: allocated one by one, checked once, freed together.
 *
 *     EFS_TABLE(&x->tables, x->count, cells);
 *     EFS_TABLE(&x->tables, x->order, cells);
 *     rc = efs_tables_error(&x->tables);
 *     ...
 *     efs_tables_free(&x->tables);
 */
#ifndef EFS_TABLES_H
#define EFS_TABLES_H

#include <stdbool.h>
#include <stddef.h>

/* Zeroed at first. May be copied; the copy that is freed last must be the only one in use. */
struct efs_tables {
    struct efs_tables_entry *last;
    bool failed;
};

/* count zeroed elements, at least one; aligned for any type. NULL: no memory, and efs_tables_error() says so. */
void *efs_table(struct efs_tables *tables, size_t count, size_t size);
#define EFS_TABLE(tables, pointer, count) ((pointer) = efs_table(tables, count, sizeof(*(pointer))))

/* 0, or -ENOMEM when an allocation has failed. */
int efs_tables_error(const struct efs_tables *tables);

/* Frees them all; the owner may begin again. */
void efs_tables_free(struct efs_tables *tables);

#endif
