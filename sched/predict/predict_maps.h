/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predict_maps.h - expert maps: the choices of each layer in an iteration, with the gate's scores, for many iterations.
 *
 * Sparse: `width` experts per layer, 3 bytes each including a score of 8 bits. A map links to the maps of the
 * iterations before and after it in the same sequence, while both are stored.
 */
#ifndef EFS_PREDICT_MAPS_H
#define EFS_PREDICT_MAPS_H

#include "predict_internal.h"

#define EFS_MAPS_DEFAULT 16384u
#define EFS_MAPS_ONE 255u /* represents a score of 1 */

struct efs_maps {
    unsigned layers, experts, width, room;
    uint32_t *count;      /* [1] number of stored maps */
    uint16_t *experts_of; /* [layers][room][width] */
    uint8_t *scores;      /* [layers][room][width]; 0: no expert */
    uint32_t *before;     /* [room] index of a map + 1; 0: none */
    uint32_t *after;      /* [room] */
};

/* Allocates tables for the configured number of maps, or fewer if memory does not suffice; the caller needs `beside`
 * further bytes per map. 0, -E2BIG, -ENOMEM. */
int efs_maps_open(struct efs_maps *maps, struct efs_predictor *p, size_t beside);
/* Sets map m to the sequence's iteration that ends at position `last`, and links it to the map with index before - 1
 * (0: none). */
void efs_maps_add(struct efs_maps *maps, const struct efs_predictor *p, unsigned s, int64_t last, unsigned m,
                  uint32_t before);
bool efs_maps_valid(const struct efs_maps *maps);

/* The scores of a row in the format of a map: they sum to about EFS_MAPS_ONE. */
void efs_maps_quantise(const struct efs_predict_row *row, unsigned width, uint8_t *scores);

static inline size_t efs_maps_at(const struct efs_maps *maps, unsigned layer, unsigned m)
{
    return ((size_t)layer * maps->room + m) * maps->width;
}

#endif
