/* SPDX-License-Identifier: Apache-2.0 */
/* fill.h - the bytes of a tensor, any range of them. */
#ifndef MKMODEL_FILL_H
#define MKMODEL_FILL_H

#include <stddef.h>
#include <stdint.h>

#include "plan.h"
#include "random.h"

/* One thread's working memory; zero it first, free it with mk_scratch_free(). */
struct mk_scratch {
    float *floats; /* 128 rows of an FP8 tensor */
    size_t floats_room;
    float *largest; /* of each of their 128 x 128 blocks */
    size_t largest_room;
    uint8_t *bytes; /* elements that begin or end outside the range */
    size_t bytes_room;
};
void mk_scratch_free(struct mk_scratch *scratch);

/* Bytes [offset, offset + bytes) of the tensor into out. 0 or -ENOMEM. */
int mk_fill(const struct mk_tables *tables, const struct mk_tensor *tensor, uint64_t offset, size_t bytes, uint8_t *out,
            struct mk_scratch *scratch);

#endif
