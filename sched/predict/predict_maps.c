/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_maps.c - see predict_maps.h.
 */
#include "predict_maps.h"

#include <errno.h>

/* Bytes of one map. */
static size_t maps_each(const struct efs_predictor *p)
{
    return (size_t)p->layers * p->width * 3 + 8;
}

int efs_maps_open(struct efs_maps *maps, struct efs_predictor *p, size_t beside)
{
    unsigned asked = p->config.tuning.maps ? p->config.tuning.maps : EFS_MAPS_DEFAULT;
    size_t each = maps_each(p) + beside, slots;

    maps->layers = p->layers;
    maps->experts = p->experts;
    maps->width = p->width;
    maps->count = efs_predict_learned(p, 1, sizeof(*maps->count));
    maps->room = p->room_bytes / each < asked ? (unsigned)(p->room_bytes / each) : asked;
    slots = (size_t)p->layers * maps->room * p->width;
    maps->experts_of = efs_predict_learned(p, slots, sizeof(*maps->experts_of));
    maps->scores = efs_predict_learned(p, slots, sizeof(*maps->scores));
    maps->before = efs_predict_learned(p, maps->room, sizeof(*maps->before));
    maps->after = efs_predict_learned(p, maps->room, sizeof(*maps->after));
    return maps->room == 0 ? -E2BIG : efs_predict_table_error(p);
}

void efs_maps_quantise(const struct efs_predict_row *row, unsigned width, uint8_t *scores)
{
    unsigned count = row->scored < width ? row->scored : width;
    float sum = 0;

    memset(scores, 0, width);
    for (unsigned i = 0; i < count; i++)
        sum += row->scores ? row->scores[i] : 1;
    for (unsigned i = 0; i < count; i++) {
        float score = sum > 0 ? (row->scores ? row->scores[i] : 1) / sum : 0;

        /* A chosen expert has a score of at least 1. */
        scores[i] = (uint8_t)(score * EFS_MAPS_ONE + 0.5F);
        if (scores[i] == 0 && i < row->count)
            scores[i] = 1;
    }
}

static void maps_unlink(struct efs_maps *maps, unsigned m)
{
    if (maps->before[m])
        maps->after[maps->before[m] - 1] = 0;
    if (maps->after[m])
        maps->before[maps->after[m] - 1] = 0;
    maps->before[m] = maps->after[m] = 0;
}

void efs_maps_add(struct efs_maps *maps, const struct efs_predictor *p, unsigned s, int64_t last, unsigned m,
                  uint32_t before)
{
    int64_t first = last - last % maps->layers;

    maps_unlink(maps, m);
    for (unsigned l = 0; l < maps->layers; l++) {
        struct efs_predict_row row = efs_predict_at(p, s, first + l);
        size_t at = efs_maps_at(maps, l, m);

        efs_maps_quantise(&row, maps->width, maps->scores + at);
        for (unsigned i = 0; i < maps->width; i++)
            maps->experts_of[at + i] = i < row.scored ? row.experts[i] : 0;
    }
    if (m == *maps->count)
        ++*maps->count;
    if (before && before != m + 1) {
        maps->before[m] = before;
        maps->after[before - 1] = m + 1;
    }
}

bool efs_maps_valid(const struct efs_maps *maps)
{
    size_t slots = (size_t)maps->layers * maps->room * maps->width;

    if (*maps->count > maps->room)
        return false;
    for (size_t i = 0; i < slots; i++)
        if (maps->experts_of[i] >= maps->experts)
            return false;
    for (unsigned m = 0; m < maps->room; m++) {
        uint32_t before = maps->before[m], after = maps->after[m];

        if (before > *maps->count || after > *maps->count || ((before || after) && m >= *maps->count) ||
            (before && maps->after[before - 1] != m + 1) || (after && maps->before[after - 1] != m + 1))
            return false;
    }
    return true;
}
