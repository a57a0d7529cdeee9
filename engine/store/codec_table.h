/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_table.h - the interface of a codec of E-chunks (a row in codec_table.c) and the working memory of a thread.
 * Private to codec*.c, except for names and feature bits of codecs.
 */
#ifndef EFS_CODEC_TABLE_H
#define EFS_CODEC_TABLE_H

#include "codec.h"
#include "expertfs-pack.h"

/*
 * Cost of decoding a byte, as the number of bytes that could be read in that time: read at 0.5 GB/s (a slow disk, where
 * a saved byte is worth most), decoded by two workers at gb_per_second each on the slowest path with vectors (AVX2).
 * The cascade's 0.6 GB/s on CPUs without vectors is ignored: such CPUs are supported, but not a target. The numbers are
 * constants, so that the same input gives the same store on any machine.
 */
#define EFS_CODEC_COST(gb_per_second) (0.5 / (2 * (gb_per_second)))

struct efs_codec {
    const char *name; /* in options and messages */
    enum efs_codec_choice choice;
    uint64_t incompat;  /* feature bit of stores that use it; 0: part of version 2 from the start */
    double decode_cost; /* EFS_CODEC_COST() */

    /* Working memory of one thread, of decoder_bytes() bytes. NULL: none needed. With random access at most
     * EFS_CASCADE_SCRATCH_BYTES: without a scratch they use efs_codec_thread_memory(). */
    size_t (*decoder_bytes)(void);
    void *(*decoder_new)(void);
    void (*decoder_free)(void *decoder);
    /* Decodes all n symbols of a chunk. 0, or -EUCLEAN: the chunk does not decode to n symbols. */
    errint_t (*decode)(void *decoder, const uint8_t *coded, size_t bytes, uint8_t *symbols, size_t n);
    /* As efs_shard_decode(), for a shard whose sizes and range are checked. NULL: the codec has no random access, and
     * is slow enough that only workers use it. */
    errint_t (*decode_range)(void *decoder, const struct efs_shard_view *shard, size_t first, size_t count, void *dst,
                             bool stream);

    /* The same for encoding; all encoders of a thread take at most EFS_CODEC_ENCODER_BYTES. */
    void *(*encoder_new)(void);
    void (*encoder_free)(void *encoder);
    size_t (*bound)(size_t n); /* upper bound of the size of n encoded symbols; 0: too many symbols */
    /* Encodes n symbols to a chunk of at most `room` bytes, which is bound(n) or more. Returns its size; 0: failed. */
    size_t (*encode)(void *encoder, const uint8_t *symbols, size_t n, uint8_t *chunk, size_t room);
    /* An alternative encoder that finds repeated strings, for bytes other than exponents. NULL: none. */
    size_t (*encode_repeats)(void *encoder, const uint8_t *symbols, size_t n, uint8_t *chunk, size_t room);
};

/* The codec of this number (enum efs_disk_codec). NULL: unknown to this program. */
const struct efs_codec *efs_codec_of(uint32_t codec);

/* ---- working memory ---- */

#define EFS_CODEC_SAMPLE_BYTES (EFS_BLOCK * 4u) /* the widest element has 4 bytes */

struct efs_codec_scratch {
    uint32_t shard_elements;
    uint8_t *e;     /* shard_elements bytes: E of a whole shard */
    uint8_t *block; /* EFS_CODEC_SAMPLE_BYTES: one block of elements of any format, or a sample of a shard */
    void *decoder[EFS_CODEC_COUNT];
    /* For encoding only, allocated at first use: */
    uint8_t *other; /* efs_shard_e_bound(shard_elements) bytes: result of a second codec, for comparison */
    void *encoder[EFS_CODEC_COUNT];
};

/* Allocates the members for encoding; 0 or -ENOMEM. */
errint_t efs_codec_scratch_for_encoding(struct efs_codec_scratch *scratch);

#endif
