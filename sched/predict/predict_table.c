/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_table.c - allocates the tables of a predictor within its memory limit, and registers those with learned data.
 */
#include "predict_internal.h"

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

void *efs_predict_learned(struct efs_predictor *p, size_t count, size_t size)
{
    void *table = efs_predict_table(p, count, size);

    if (table)
        p->learned[p->learned_count++] = (struct efs_predict_learned_table){table, count * size};
    return table;
}

int efs_predict_table_error(const struct efs_predictor *p)
{
    return p->too_big ? -E2BIG : efs_tables_error(&p->tables);
}

void efs_predict_count(const struct efs_predictor *p, uint16_t *seen, uint16_t *together, size_t row,
                       const struct efs_predict_row *chosen)
{
    together += row * p->experts;
    if (seen[row] == UINT16_MAX - 1) { /* halving keeps the proportions */
        seen[row] /= 2;
        for (unsigned e = 0; e < p->experts; e++)
            together[e] /= 2;
    }
    seen[row]++;
    for (unsigned i = 0; i < chosen->count; i++)
        together[chosen->experts[i]]++;
}

bool efs_predict_counts_valid(const struct efs_predictor *p, const uint16_t *seen, const uint16_t *together,
                              size_t rows)
{
    for (size_t r = 0; r < rows; r++) {
        if (seen[r] == UINT16_MAX)
            return false;
        for (size_t e = 0; e < p->experts; e++)
            if (together[r * p->experts + e] > seen[r])
                return false;
    }
    return true;
}
