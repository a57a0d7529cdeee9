/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random_checkpoint.h - small random checkpoints with unusual features: directories with the names of the view, experts
 * of one tensor or of dozens, experts of 0 bytes or of many extents, fused and separate experts, layers of different
 * sizes, or no experts.
 */
#ifndef EFS_RANDOM_CHECKPOINT_H
#define EFS_RANDOM_CHECKPOINT_H

#include "fixture.h"

#include <stdbool.h>
#include <stddef.h>

struct random_tensor {
    char name[128];
    const char *dtype;
    int dims;
    uint64_t shape[4];
    uint64_t bytes;
    const unsigned char *raw; /* points into the source file's bytes */
};

struct random_source {
    unsigned char *data;
    size_t bytes;
};

#define RANDOM_FILES 3u
#define RANDOM_HIDDEN 64u /* columns of gate and up of the experts that can be computed */
struct random_checkpoint {
    struct fixture fixture; /* in packed form, too */
    bool hidden;            /* the checkpoint has a top-level "experts" or ".expertfs" */
    struct random_tensor *tensors;
    unsigned tensor_count;
    struct random_source source[RANDOM_FILES];
};

/* The store is a function of *state, which is advanced. */
void random_checkpoint_begin(struct random_checkpoint *checkpoint, uint64_t *state);
void random_checkpoint_end(struct random_checkpoint *checkpoint);
/* The tensor of that name, or NULL. */
const struct random_tensor *random_checkpoint_tensor(const struct random_checkpoint *checkpoint, const char *name);

/* draw_below(): a number in [0, n). draw_once_in(): true with probability 1/n. */
static inline unsigned draw_below(uint64_t *state, unsigned n)
{
    return (unsigned)(fixture_random(state) % n);
}
static inline bool draw_once_in(uint64_t *state, unsigned n)
{
    return draw_below(state, n) == 0;
}

#endif
