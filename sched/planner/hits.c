/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hits.c - Algorithm 2 of ZipMoE, and a cache of its rows for the planner.
 */
#include "hits.h"

#include <stdlib.h>
#include <string.h>

struct efs_hits_table {
    unsigned experts, max_hits;
    double *q;
    double **row; /* row[first]: (experts - first + 1) distributions of max_hits + 1 each, or NULL */
};

struct efs_hits_table *efs_hits_table_new(const double *q, unsigned experts, unsigned max_hits)
{
    struct efs_hits_table *table;

    if (!q || !experts || experts > EFS_HITS_MAX_EXPERTS)
        return NULL;
    table = calloc(1, sizeof(*table));
    if (!table)
        return NULL;
    table->experts = experts;
    table->max_hits = max_hits < experts ? max_hits : experts;
    table->q = malloc(experts * sizeof(*q));
    table->row = calloc((size_t)experts + 1, sizeof(*table->row));
    if (!table->q || !table->row) {
        efs_hits_table_free(table);
        return NULL;
    }
    memcpy(table->q, q, experts * sizeof(*q));
    return table;
}

void efs_hits_table_free(struct efs_hits_table *table)
{
    if (!table)
        return;
    for (unsigned first = 0; table->row && first <= table->experts; first++)
        free(table->row[first]);
    free(table->row);
    free(table->q);
    free(table);
}

const double *efs_hits_range(struct efs_hits_table *table, unsigned first, unsigned count)
{
    size_t width = (size_t)table->max_hits + 1;

    if (!table->row[first]) {
        unsigned last = table->experts - first;
        double *row = malloc((last + (size_t)1) * width * sizeof(*row));

        if (!row)
            return NULL;
        memset(row, 0, width * sizeof(*row));
        row[0] = 1;
        for (unsigned i = 0; i < last; i++)
            efs_hits_add(row + i * width, row + (i + 1) * width, table->max_hits, table->q[first + i]);
        table->row[first] = row;
    }
    return table->row[first] + count * width;
}
