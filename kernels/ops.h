/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.h - the functions that each code path (scalar, AVX2, AVX-512, NEON) implements. Private to kernels/.
 *
 * A path processes one block (at most EFS_BLOCK elements) or one span per call. cascade*.c and format.c have the common
 * part: the container, its checks, iteration over spans and blocks, partial ranges. The scalar path is the reference:
 * every path produces the same bytes.
 */
#ifndef EFS_KERNELS_OPS_H
#define EFS_KERNELS_OPS_H

#include "kernels.h"

/* Functions in headers that device code also calls: nvcc compiles them for cuda/. */
#ifdef __CUDACC__
#define EFS_DEVICE static __device__ __forceinline__
#define EFS_STATIC_ASSERT static_assert
#else
#define EFS_DEVICE static inline
#define EFS_STATIC_ASSERT _Static_assert
#endif

#define EFS_LEVELS 5        /* maximum levels of a cascade */
#define EFS_SPAN_HEADER 36  /* bytes of a span's header */
#define EFS_CHUNK_HEADER 16 /* bytes of a chunk before the span headers */
/* Buffer size for the symbols of a level below the first. The number of escapes is checked only after a plane was read,
 * so there is room for one block of surplus escapes and for a vector store past the end. */
#define EFS_LOWER_ROOM (EFS_SPAN + EFS_BLOCK + 64)
/* Decoders use EFS_CASCADE_SCRATCH_BYTES for two such buffers and, after them, one block of the largest elements. */
EFS_STATIC_ASSERT(2 * EFS_LOWER_ROOM + 4 * EFS_BLOCK == EFS_CASCADE_SCRATCH_BYTES, "room for the buffers");

/* Bytes of a plane stream of m values of 1, 2 or 4 bits. */
EFS_DEVICE size_t efs_plane_bytes(size_t m, unsigned bits)
{
    return (m * bits + 7) / 8;
}

/*
 * A span, coded or to be coded. Levels are numbered from 0 here; *lower* levels are those after level 0. All sizes were
 * checked against the chunk: planes[0] has the span's planes of level 0 block by block, planes[l] has
 * efs_plane_bytes(size[l], 2) bytes, rest has size[levels] bytes, sizes do not increase from one level to the next,
 * entries do not decrease, and EFS_CASCADE_SLACK readable bytes follow. The number of escapes in the planes was not
 * checked against size[l + 1].
 */
struct efs_span {
    unsigned levels;
    uint32_t size[EFS_LEVELS + 1];       /* size[l]: symbols that enter level l; size[levels]: bytes of the rest */
    uint32_t entry[EFS_SPAN_BLOCKS + 1]; /* symbols that escape level 0 before each block; [last]: size[1] */
    uint8_t table[EFS_LEVELS][4];        /* the symbol of each code; [3], the escape, is 0 */
    uint8_t ranked[EFS_LEVELS];          /* encoder only: used entries of the level's table, at most 3 */
    const uint8_t *planes[EFS_LEVELS];
    const uint8_t *rest;
};

/* A block of a span whose lower levels have been decoded. */
struct efs_cascade_block {
    const uint8_t *planes; /* of this block, level 0; NULL: below has the symbols uncoded */
    const uint8_t *below;  /* symbols of its escapes, in order; EFS_BLOCK + 64 bytes from here are readable */
    uint32_t size, escaped;
    uint8_t table[4];        /* of level 0 */
    const uint8_t *prefetch; /* code to prefetch while this block is decoded; may be ignored */
    size_t prefetch_bytes;
};

struct efs_matvec_ops; /* matvec_ops.h */

struct efs_kernel_ops {
    const char *name;
    bool (*supported)(void);
    void (*histogram)(const uint8_t *data, size_t n, uint64_t counts[256]); /* adds to counts */
    /* m elements, 1 <= m <= EFS_BLOCK, of a known format. Never called with BYTES. */
    void (*split)(enum efs_format format, const uint8_t *src, size_t m, uint8_t *e, uint8_t *sm);
    void (*merge)(enum efs_format format, const uint8_t *e, const uint8_t *sm, size_t m, uint8_t *dst);
    /* Write the code of a span according to plan, and set plan->entry. May write EFS_CASCADE_SLACK bytes past the code.
     * scratch has EFS_CASCADE_SCRATCH_BYTES. */
    void (*encode)(struct efs_span *plan, const uint8_t *symbols, uint8_t *code, uint8_t *scratch);
    /* Decode the symbols that enter level 1 of a span with levels. room has 2 * EFS_LOWER_ROOM bytes; the result points
     * into it, with EFS_LOWER_ROOM readable bytes. NULL: the planes have other numbers of escapes than the headers. */
    const uint8_t *(*lower)(const struct efs_span *span, uint8_t *room);
    /* Decode and merge: exactly block->size elements to dst; sm is that of the block, and not read for BYTES. false:
     * the planes have another number of escapes than block->escaped. */
    bool (*decode_merge)(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *sm, uint8_t *dst,
                         bool stream);
    /* The same for a whole short span of 4 or 8 units of EFS_SHORT_BLOCK elements, whose SM has blocks of that size.
     * NULL: the path has none. */
    bool (*merge_short)(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *sm, uint8_t *dst,
                        bool stream);
    /* Make streaming stores visible to other threads; NULL: the path does not use them. */
    void (*stream_end)(void);
    const struct efs_matvec_ops *matvec; /* products */
};

/* The path in use: selected at the first call. */
const struct efs_kernel_ops *efs_ops(void);

extern const struct efs_kernel_ops efs_ops_scalar;
#if defined(__x86_64__)
extern const struct efs_kernel_ops efs_ops_avx2;
extern const struct efs_kernel_ops efs_ops_avx512;
#elif defined(__aarch64__)
extern const struct efs_kernel_ops efs_ops_neon;
#endif

#endif
