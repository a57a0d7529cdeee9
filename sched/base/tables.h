/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tables.h - the arrays of one owner: allocated one by one, checked for failure once, freed together.
 *
 * base/ has what other rooms of sched/ share: arrays that are freed together, and reproducible random numbers
 * (random.h). place/, planner/, policy/, predict/ and prefetch/ of sched/, most rooms of moe-replay and tools/common
 * call it. It never includes a header of another room.
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

/* Initialise to zero. May be copied; then only the newest copy may allocate, and only that copy may be freed. */
struct efs_tables {
    struct efs_tables_entry *last;
    bool failed;
};

/* Returns count zeroed elements, or one element if count is 0, aligned for any type. NULL: out of memory;
 * efs_tables_error() then returns -ENOMEM. */
void *efs_table(struct efs_tables *tables, size_t count, size_t size);
#define EFS_TABLE(tables, pointer, count) ((pointer) = efs_table(tables, count, sizeof(*(pointer))))

/* 0, or -ENOMEM if any allocation has failed. */
int efs_tables_error(const struct efs_tables *tables);

/* Frees all arrays and zeroes *tables, which can be used again. */
void efs_tables_free(struct efs_tables *tables);

#endif
