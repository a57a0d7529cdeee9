/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec.h - a shard's raw bytes to its two chunks and back, by any codec (codec_table.h).
 */
#ifndef EFS_CODEC_H
#define EFS_CODEC_H

#include "kernels.h"
#include "layout.h"
#include "expertfs-pack.h"

/* One thread's working memory: contexts of the libraries and a buffer of one shard's E bytes. */
struct efs_codec_scratch;
errint_t efs_codec_scratch_new(uint32_t shard_elements, struct efs_codec_scratch **scratch);
void efs_codec_scratch_free(struct efs_codec_scratch *scratch); /* NULL is fine */
/* Bytes that such a scratch holds for decoding, for the budget; and those that it holds after the first
 * efs_shard_encode(), which needs another buffer of efs_shard_e_bound(shard_elements) bytes and the encoders. */
size_t efs_codec_scratch_bytes(uint32_t shard_elements);
size_t efs_codec_scratch_encoding_bytes(uint32_t shard_elements);
#define EFS_CODEC_ENCODER_BYTES (2u << 20) /* what the encoders of all codecs take together, at most */

/* A shard's chunks in memory, and what they are. */
struct efs_shard_view {
    enum efs_format format;
    uint32_t codec; /* enum efs_disk_codec */
    size_t elements;
    const uint8_t *e, *sm;
    size_t e_bytes, sm_bytes;
};

/*
 * Raw elements [first, first + count) of the shard into dst. Codecs that reach any range directly need no scratch (NULL
 * will do), the others decode the whole E there. stream: as efs_cascade_merge(). 0, -EUCLEAN (chunk not well formed),
 * -EINVAL (range).
 */
errint_t efs_shard_decode(const struct efs_shard_view *shard, size_t first, size_t count, void *dst, bool stream,
                          struct efs_codec_scratch *scratch);

/* The E of a whole shard of a format with an exponent, a byte an element, into e. Errors as efs_shard_decode(). */
errint_t efs_shard_exponents(const struct efs_shard_view *shard, uint8_t *e, struct efs_codec_scratch *scratch);

/* Upper bounds of the chunks of a shard of `elements` elements. */
size_t efs_shard_e_bound(size_t elements);
size_t efs_shard_sm_bound(enum efs_format format, size_t elements);
/*
 * Code a shard. Chooses a codec by `choice`. AUTO takes the cascade for formats with an exponent, unless another
 * codec makes the whole shard, E and SM, more than 4 % smaller: the cascade decodes several times as fast. For these
 * formats the choice is used even if it gains nothing (the split needs an E-chunk). A BYTES shard of a page and more is
 * coded by choice where that saves 1/16, else it gets codec NONE: no E, SM = the raw bytes; AUTO takes what needs the
 * least time to read and decode, NONE included, at the rates of codec_table.h. A sample of a large shard decides which
 * codecs code all of it. e takes efs_shard_e_bound(elements) bytes, sm efs_shard_sm_bound(format, elements); for BYTES
 * they may be the same memory, as only one of them is used. 0, -EINVAL (no such format, more than the scratch's
 * elements, RAW of a format with an exponent), -ENOMEM.
 */
struct efs_shard_coded {
    uint32_t codec; /* enum efs_disk_codec */
    size_t e_bytes, sm_bytes;
    uint64_t counts[256]; /* how often E has each value; all 0 for BYTES */
};
errint_t efs_shard_encode(enum efs_format format, enum efs_codec_choice choice, const void *raw, size_t elements,
                          uint8_t *e, uint8_t *sm, struct efs_shard_coded *coded, struct efs_codec_scratch *scratch);
/* Entropy of a histogram in bits, all symbols together: what one ideal table would need. */
double efs_entropy_bits(const uint64_t counts[256]);
/* The format that an object of this dtype is split by under this choice (RAW: BYTES). */
enum efs_format efs_object_format(enum efs_dtype dtype, enum efs_codec_choice choice);
/* Whether it is one of enum efs_codec_choice. */
bool efs_codec_can_choose(uint64_t choice);

#endif
