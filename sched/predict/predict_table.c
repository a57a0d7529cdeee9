/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_table.c - the memory of a predictor: tables within its bound, and which of them hold what was learned.
 */
#include "predict_core.h"

#include <errno.h>

void *efs_predict_table(struct efs_predictor *p, size_t count, size_t size)
{
    size_t bytes;
    void *table;

    if (__builtin_mul_overflow(count, size, &bytes) || bytes > p->room_bytes) {
        p->too_big = true;
        return NULL;
    }
    table = efs_table(&p->tables, count, size);
    if (!table)
        return NULL;
    p->room_bytes -= bytes;
    p->bytes += bytes;
    return table;
}

void *efs_predict_learned_rows(struct efs_predictor *p, const struct efs_predict_rows *rows)
{
    size_t count = rows->outer * rows->rows * rows->inner;
    void *table = efs_predict_table(p, count, rows->size);

    if (table)
        p->learned[p->learned_count++] = (struct efs_predict_learned_table){table, count, *rows};
    return table;
}

void *efs_predict_learned(struct efs_predictor *p, size_t count, size_t size)
{
    const struct efs_predict_rows rows = {.outer = count, .rows = 1, .inner = 1, .size = size, .fixed = true};

    return efs_predict_learned_rows(p, &rows);
}

int efs_predict_table_error(const struct efs_predictor *p)
{
    return p->too_big ? -E2BIG : -ENOMEM;
}
