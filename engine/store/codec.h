/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec.h - encodes a shard's raw bytes to its two chunks and decodes them, with any codec (codec_table.h).
 */
#ifndef EFS_CODEC_H
#define EFS_CODEC_H

#include "kernels.h"
#include "layout.h"
#include "expertfs-pack.h"

/* Working memory of one thread: contexts of the codec libraries and a buffer for the E bytes of one shard. */
struct efs_codec_scratch;
errint_t efs_codec_scratch_new(uint32_t shard_elements, struct efs_codec_scratch **scratch);
void efs_codec_scratch_free(struct efs_codec_scratch *scratch); /* NULL is allowed */
/* Bytes of a scratch that only decodes, for the budget; and bytes after its first efs_shard_encode(), which adds a
 * buffer of efs_shard_e_bound(shard_elements) bytes and the encoders. */
size_t efs_codec_scratch_bytes(uint32_t shard_elements);
size_t efs_codec_scratch_encoding_bytes(uint32_t shard_elements);
#define EFS_CODEC_ENCODER_BYTES (2u << 20) /* limit of the encoders of all codecs together */

/* Working memory of the calling thread, EFS_CASCADE_SCRATCH_BYTES, for decoding without a scratch; it is allocated at
 * the thread's first call and freed when the thread ends. NULL: no memory. */
void *efs_codec_thread_memory(void);
/* The scratch's EFS_CASCADE_SCRATCH_BYTES, or if it is NULL those of efs_codec_thread_memory(). */
void *efs_codec_memory(struct efs_codec_scratch *scratch);

/* A shard's chunks in memory and their description. */
struct efs_shard_view {
    enum efs_format format;
    uint32_t codec; /* enum efs_disk_codec */
    size_t elements;
    const uint8_t *e, *sm;
    size_t e_bytes, sm_bytes;
};

/*
 * Decodes elements [first, first + count) of the shard into dst. Codecs without random access decode the whole E into
 * scratch. With random access it may be NULL: then the memory of efs_codec_thread_memory() is used. stream: as in
 * efs_cascade_merge(). 0, -EUCLEAN (chunk not well formed), -EINVAL (range) or, without scratch, -ENOMEM.
 */
errint_t efs_shard_decode(const struct efs_shard_view *shard, size_t first, size_t count, void *dst, bool stream,
                          struct efs_codec_scratch *scratch);

/* Decodes the exponents of a whole shard, one byte per element, into e. The format must have an exponent. Errors as
 * for efs_shard_decode(). */
errint_t efs_shard_exponents(const struct efs_shard_view *shard, uint8_t *e, struct efs_codec_scratch *scratch);

/* Upper bounds of the chunk sizes of a shard of `elements` elements. */
size_t efs_shard_e_bound(size_t elements);
size_t efs_shard_sm_bound(enum efs_format format, size_t elements);
/*
 * Encodes a shard with the codec that `choice` allows.
 *
 * For formats with an exponent, AUTO uses the cascade unless another codec makes the whole shard (E and SM) more than 4
 * % smaller, because the cascade decodes several times as fast. The chosen codec is used even if it saves nothing (the
 * split requires an E-chunk).
 *
 * A BYTES shard of at least a page is encoded with the choice if that saves 1/16; else it gets codec NONE: no E, SM =
 * the raw bytes. AUTO uses the codec, NONE included, with the shortest time to read and decode at the rates of
 * codec_table.h.
 *
 * For a large shard, a sample decides which codecs encode all of it.
 *
 * e has room for efs_shard_e_bound(elements) bytes, sm for efs_shard_sm_bound(format, elements); for BYTES they may be
 * the same memory, because only one is used. 0, -EINVAL (no such format, more elements than the scratch's, RAW for a
 * format with an exponent) or -ENOMEM.
 */
struct efs_shard_coded {
    uint32_t codec; /* enum efs_disk_codec */
    size_t e_bytes, sm_bytes;
    uint64_t counts[256]; /* histogram of E; all 0 for BYTES */
};
errint_t efs_shard_encode(enum efs_format format, enum efs_codec_choice choice, const void *raw, size_t elements,
                          uint8_t *e, uint8_t *sm, struct efs_shard_coded *coded, struct efs_codec_scratch *scratch);
/* The same for a shard that will be read in small parts: a cascade has short spans, and its SM blocks of
 * EFS_SHORT_BLOCK elements. Other codecs give the same chunks as efs_shard_encode(). */
errint_t efs_shard_encode_short(enum efs_format format, enum efs_codec_choice choice, const void *raw, size_t elements,
                                uint8_t *e, uint8_t *sm, struct efs_shard_coded *coded,
                                struct efs_codec_scratch *scratch);
/* Entropy of a histogram in bits for all symbols: the size of an ideal code with one table. */
double efs_entropy_bits(const uint64_t counts[256]);
/* The format in which an object of this dtype is split under this choice (RAW: BYTES). */
enum efs_format efs_object_format(enum efs_dtype dtype, enum efs_codec_choice choice);
/* Whether `choice` is a value of enum efs_codec_choice. */
bool efs_codec_can_choose(uint64_t choice);

#endif
