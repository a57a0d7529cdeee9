/*
 * codec.h - a shard's raw bytes to its two chunks and back, by any codec. The kernels do cascade and merge; zstd and
 * lz4 come from their libraries.
 */
#ifndef EFS_CODEC_H
#define EFS_CODEC_H

#include "kernels.h"
#include "layout.h"
#include "libexpertfs.h"

/* One thread's working memory: contexts of the libraries and a buffer of one shard's E bytes. */
struct efs_codec_scratch;
errint_t efs_codec_scratch_new(uint32_t shard_elements, struct efs_codec_scratch **scratch);
void efs_codec_scratch_free(struct efs_codec_scratch *scratch); /* NULL is fine */
/* Bytes that such a scratch holds at most, for the budget. */
size_t efs_codec_scratch_bytes(uint32_t shard_elements);

/* A shard's chunks in memory, and what they are. */
struct efs_shard_view {
    enum efs_format format;
    uint32_t codec; /* enum efs_disk_codec */
    size_t elements;
    const uint8_t *e, *sm;
    size_t e_bytes, sm_bytes;
};

/*
 * Raw elements [first, first + count) of the shard into dst. cascade and NONE reach any range directly, zstd and lz4
 * decode the whole E. stream: as efs_cascade_merge(). 0, -EUCLEAN (chunk not well formed), -EINVAL (range).
 */
errint_t efs_shard_decode(const struct efs_shard_view *shard, size_t first, size_t count, void *dst, bool stream,
                          struct efs_codec_scratch *scratch);

/* Upper bounds of the chunks of a shard of `elements` elements. */
size_t efs_shard_e_bound(size_t elements);
size_t efs_shard_sm_bound(enum efs_format format, size_t elements);
/*
 * Code a shard. Chooses a codec by `choice` (AUTO: cascade where it is within 3 % of the entropy of E, else the
 * smallest of cascade, zstd, lz4). A BYTES shard for which no codec pays gets codec NONE: no E, SM = the raw bytes. For
 * other formats the chosen codec is used even if it gains nothing (the split needs an E-chunk).
 */
struct efs_shard_coded {
    uint32_t codec;
    size_t e_bytes, sm_bytes;
};
errint_t efs_shard_encode(enum efs_format format, enum efs_codec_choice choice, const void *raw, size_t elements,
                          uint8_t *e, uint8_t *sm, struct efs_shard_coded *coded, struct efs_codec_scratch *scratch);
/* The format that an object of this dtype is split by under this choice (RAW: BYTES). */
enum efs_format efs_object_format(enum efs_dtype dtype, enum efs_codec_choice choice);

#endif
