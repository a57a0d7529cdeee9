/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random_checkpoint.h - small random checkpoints with odd features: directories with the names of the view, experts of one
 * tensor or of dozens, experts of 0 bytes or of many extents, fused and separate experts, layers of different sizes, or
 * no experts.
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
    const unsigned char *raw; /* points into the source file's bytes */
};

struct odd_source {
    unsigned char *data;
    size_t bytes;
};

#define ODD_FILES 3u
#define ODD_HIDDEN 64u /* columns of gate and up of the experts that can be computed */
struct odd_store {
    struct fixture fixture; /* in packed form, too */
    bool hidden;            /* the checkpoint has a top-level "experts" or ".expertfs" */
    struct odd_tensor *tensors;
    unsigned tensor_count;
    struct odd_source source[ODD_FILES];
};

/* The store is a function of *state, which is advanced. */
void odd_store_begin(struct odd_store *odd, uint64_t *state);
void odd_store_end(struct odd_store *odd);
/* The tensor of that name, or NULL. */
const struct odd_tensor *odd_store_tensor(const struct odd_store *odd, const char *name);

/* odd_below(): a number in [0, n). odd_once_in(): true with probability 1/n. */
static inline unsigned odd_below(uint64_t *state, unsigned n)
{
    return (unsigned)(fixture_random(state) % n);
}
static inline bool odd_once_in(uint64_t *state, unsigned n)
{
    return odd_below(state, n) == 0;
}

#endif
