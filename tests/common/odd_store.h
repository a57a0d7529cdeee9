/* SPDX-License-Identifier: Apache-2.0 */
/*
 * odd_store.h - small checkpoints with odd features, drawn at random: folders named as the view's, experts of one
 * tensor or of hundreds, of no bytes or of many extents, fused and apart, layers of unlike sizes, no experts at all.
 */
#ifndef EFS_ODD_STORE_H
#define EFS_ODD_STORE_H

#include "fixture.h"

#include <stdbool.h>
#include <stddef.h>

struct odd_tensor {
    char name[128];
    const char *dtype;
    int dims;
    uint64_t shape[4];
    uint64_t bytes;
    const unsigned char *raw; /* in the source file's bytes */
};

struct odd_source {
    unsigned char *data;
    size_t bytes;
};

#define ODD_FILES 3u
#define ODD_HIDDEN 64u /* columns of gate and up, where experts can be run */
struct odd_store {
    struct fixture fixture; /* packed */
    bool hidden;            /* the checkpoint has a top-level "experts" or ".expertfs" */
    struct odd_tensor *tensors;
    unsigned tensor_count;
    struct odd_source source[ODD_FILES];
};

/* The same state draws the same store. */
void odd_store_begin(struct odd_store *odd, uint64_t *state);
void odd_store_end(struct odd_store *odd);
/* The raw bytes of the tensor of that name; NULL: there is none. */
const struct odd_tensor *odd_store_tensor(const struct odd_store *odd, const char *name);

/* One of n, and whether one of n. */
static inline unsigned odd_below(uint64_t *state, unsigned n)
{
    return (unsigned)(fixture_random(state) % n);
}
static inline bool odd_once_in(uint64_t *state, unsigned n)
{
    return odd_below(state, n) == 0;
}

#endif
