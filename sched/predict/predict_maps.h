/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_maps.h - expert maps: what each layer of an iteration chose, with the gate's scores, for many iterations.
 *
 * Sparse: `width` experts of a layer, a score of 8 bits each, 3 bytes an expert. A map knows which one was the
 * iteration before and after it of the same sequence, as long as both are there.
 */
#ifndef EFS_PREDICT_MAPS_H
#define EFS_PREDICT_MAPS_H

#include "predict_core.h"

#define EFS_MAPS_DEFAULT 16384u
#define EFS_MAPS_ONE 255u /* a score of 1 */

struct efs_maps {
    unsigned layers, experts, width, room;
    uint32_t *count;      /* [1] maps that there are */
    uint16_t *experts_of; /* [layers][room][width] */
    uint8_t *scores;      /* [layers][room][width]; 0: no expert */
    uint32_t *before;     /* [room] a map's number + 1; 0: none */
    uint32_t *after;      /* [room] */
};

/* Bytes of one map. */
size_t efs_maps_each(const struct efs_predictor *p);
/* Tables for as many maps as are asked for, as far as memory goes when each takes `beside` bytes more. */
int efs_maps_open(struct efs_maps *maps, struct efs_predictor *p, size_t beside);
/* Map m becomes that of the sequence's iteration whose last layer is position `last`, after the map `before`. */
void efs_maps_put(struct efs_maps *maps, const struct efs_predictor *p, unsigned s, int64_t last, unsigned m,
                  uint32_t before);
bool efs_maps_valid(const struct efs_maps *maps);

/* The scores of a row as a map would hold them: they sum to about EFS_MAPS_ONE. */
void efs_maps_quantise(const struct efs_predict_row *row, unsigned width, uint8_t *scores);

static inline size_t efs_maps_at(const struct efs_maps *maps, unsigned layer, unsigned m)
{
    return ((size_t)layer * maps->room + m) * maps->width;
}

#endif
