/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_table.h - what a codec of E-chunks is: a struct and a row in codec_table.c; working memory of a thread. Private
 * to codec*.c, but for the names and bits of codecs.
 */
#ifndef EFS_CODEC_TABLE_H
#define EFS_CODEC_TABLE_H

#include "codec.h"

/*
 * What decoding a byte costs, in bytes that could be read in that time: read at 0.5 GB/s (a slow disk, where a saved
 * byte is worth most), decoded by two workers on the slowest path that has vectors (AVX2), at so many GB/s each. That
 * cores without vectors decode the cascade at 0.6 GB/s does not count: they serve, but nobody would choose them. The
 * numbers are fixed, so that the same input gives the same store on any machine.
 */
#define EFS_CODEC_COST(gb_per_second) (0.5 / (2 * (gb_per_second)))

struct efs_codec {
    const char *name; /* as users write it */
    enum efs_codec_choice choice;
    uint64_t
        incompat; /* bit of the superblock of each store that uses it; 0: readers of version 2 have always had it */
    double decode_cost; /* EFS_CODEC_COST() */

    /* Working memory of one thread, as large as decoder_bytes() says; NULL: it needs none. */
    size_t (*decoder_bytes)(void);
    void *(*decoder_new)(void);
    void (*decoder_free)(void *decoder);
    /* All n symbols of a chunk. 0, -EUCLEAN: it does not hold these. */
    errint_t (*decode)(void *decoder, const uint8_t *coded, size_t bytes, uint8_t *symbols, size_t n);
    /* As efs_shard_decode(), of a shard whose sizes and range fit, without a decoder. NULL: it codes a chunk as a
     * whole, and is slow enough to be done by workers alone. */
    errint_t (*decode_range)(const struct efs_shard_view *shard, size_t first, size_t count, void *dst, bool stream);

    /* The same for coding; all encoders of a thread take EFS_CODEC_ENCODER_BYTES at most. */
    void *(*encoder_new)(void);
    void (*encoder_free)(void *encoder);
    size_t (*bound)(size_t n); /* bytes that n symbols take at most; 0: it cannot code so many */
    /* n symbols into a chunk of at most `room` bytes, which is bound(n) or more. Its bytes; 0: failed. */
    size_t (*encode)(void *encoder, const uint8_t *symbols, size_t n, uint8_t *chunk, size_t room);
    /* Another way, for bytes that may repeat each other, which exponents do not. NULL: there is none. */
    size_t (*encode_repeats)(void *encoder, const uint8_t *symbols, size_t n, uint8_t *chunk, size_t room);
};

/* By enum efs_disk_codec. NULL: this program does not know it. */
const struct efs_codec *efs_codec_of(uint32_t codec);

/* ---- working memory ---- */

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
