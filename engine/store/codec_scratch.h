/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_scratch.h - one thread's working memory for coding and decoding; private to codec*.c.
 */
#ifndef EFS_CODEC_SCRATCH_H
#define EFS_CODEC_SCRATCH_H

#include "codec.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

struct efs_codec_scratch {
    uint32_t shard_elements;
    uint8_t *e;     /* shard_elements bytes: E of a shard, whole */
    uint8_t *block; /* one block of elements of any format */
    struct ZSTD_DCtx_s *dctx;
    /* Of the encoder only, made at its first use. */
    uint8_t *other; /* efs_shard_e_bound(shard_elements) bytes: a second opinion */
    struct ZSTD_CCtx_s *cctx;
    void *lz4;
};

/* Make what the encoder needs; -ENOMEM. */
errint_t efs_codec_scratch_for_encoding(struct efs_codec_scratch *scratch);

#endif
