/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_scratch.h - one thread's working memory for coding and decoding; private to codec*.c.
 */
#ifndef EFS_CODEC_SCRATCH_H
#define EFS_CODEC_SCRATCH_H

#include "codec.h"

#define EFS_CODEC_SAMPLE_BYTES (EFS_BLOCK * 4u) /* the widest format has 4 bytes an element */

struct efs_codec_scratch {
    uint32_t shard_elements;
    uint8_t *e;     /* shard_elements bytes: E of a shard, whole */
    uint8_t *block; /* EFS_CODEC_SAMPLE_BYTES: one block of elements of any format, or a sample of a shard */
    void *decoder[EFS_CODEC_COUNT];
    /* Of the encoder only, made at its first use. */
    uint8_t *other; /* efs_shard_e_bound(shard_elements) bytes: a second opinion */
    void *encoder[EFS_CODEC_COUNT];
};

/* Make what the encoder needs; -ENOMEM. */
errint_t efs_codec_scratch_for_encoding(struct efs_codec_scratch *scratch);

#endif
