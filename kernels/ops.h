/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.h - what one processor's code path provides. Private to kernels/.
 *
 * A path works on one block (at most EFS_BLOCK elements) or one span at a time; cascade*.c and format.c own everything
 * that is common: the container, its checks, the walk over spans and blocks, partial ranges. Every path gives the bytes
 * that the scalar one gives, which is the reference.
 */
#ifndef EFS_KERNELS_OPS_H
#define EFS_KERNELS_OPS_H

#include "kernels.h"

/* Functions of headers that device code calls, too: nvcc compiles them for cuda/. */
#ifdef __CUDACC__
#define EFS_DEVICE static __device__ __forceinline__
#else
#define EFS_DEVICE static inline
#endif

#define EFS_LEVELS 5        /* most levels of a cascade */
#define EFS_SPAN_HEADER 36  /* bytes of a span's header */
#define EFS_CHUNK_HEADER 16 /* bytes of a chunk before them */
/* Room for the symbols of a level below the first, for a block's worth of escapes too many, and for a vector that runs
 * over: what planes say is checked only when they have been read. */
#define EFS_LOWER_ROOM (EFS_SPAN + EFS_BLOCK + 64)

/* Bytes of a plane stream of m values of 1, 2 or 4 bits. */
EFS_DEVICE size_t efs_plane_bytes(size_t m, unsigned bits)
{
    return (m * bits + 7) / 8;
}

/*
 * A span, coded or to be coded. Levels count from 0 here. All sizes have been checked against the chunk: planes[0] has
 * the span's planes of level 0 block by block, planes[l] has efs_plane_bytes(size[l], 2) bytes, rest has size[levels]
 * bytes, sizes never grow from one level to the next, entries never fall, and EFS_CASCADE_SLACK readable bytes follow.
 * What the planes say was not checked: they may hold more or fewer escapes than size[l + 1].
 */
struct efs_span {
    unsigned levels;
    uint32_t size[EFS_LEVELS + 1];       /* size[l]: symbols that enter level l; size[levels]: bytes of the rest */
    uint32_t entry[EFS_SPAN_BLOCKS + 1]; /* symbols that escape level 0 before each block; [last]: size[1] */
    uint8_t table[EFS_LEVELS][4];        /* the symbol of each code; [3], the escape, is 0 */
    uint8_t ranked[EFS_LEVELS];          /* encoder only: how many of the level's three table entries are in use */
    const uint8_t *planes[EFS_LEVELS];
    const uint8_t *rest;
};

/* A block of a span whose lower levels have been decoded. */
struct efs_cascade_block {
    const uint8_t *planes; /* its own of level 0; NULL: below has its symbols as they are */
    const uint8_t *below;  /* what its escapes take, in order; EFS_BLOCK + 64 bytes from here are readable */
    uint32_t size, escaped;
    uint8_t table[4];     /* of level 0 */
    const uint8_t *ahead; /* code that is read soon, to be asked for while this block is decoded: a hint */
    size_t ahead_bytes;
};

struct efs_matvec_ops; /* matvec_ops.h */

struct efs_kernel_ops {
    const char *name;
    bool (*supported)(void);
    void (*histogram)(const uint8_t *data, size_t n, uint64_t counts[256]); /* adds to counts */
    /* m elements, 1 <= m <= EFS_BLOCK, of a known format. BYTES is not asked for. */
    void (*split)(enum efs_format format, const uint8_t *src, size_t m, uint8_t *e, uint8_t *sm);
    void (*merge)(enum efs_format format, const uint8_t *e, const uint8_t *sm, size_t m, uint8_t *dst);
    /* Write the code of a span as plan says, and set the plan's entries. May write EFS_CASCADE_SLACK bytes past it. */
    void (*encode)(struct efs_span *plan, const uint8_t *symbols, uint8_t *code);
    /* The symbols that enter level 1, of a span with levels; they lie in room, which has 2 * EFS_LOWER_ROOM bytes, from
     * anywhere on but with EFS_LOWER_ROOM bytes readable. NULL: the planes do not hold the escapes that the sizes
     * tell. */
    const uint8_t *(*lower)(const struct efs_span *span, uint8_t *room);
    /* Decode and merge: exactly block->size elements to dst; sm is the block's own. BYTES too: sm is then not read.
     * false: the planes do not hold as many escapes as there are. */
    bool (*decode_merge)(enum efs_format format, const struct efs_cascade_block *block, const uint8_t *sm, uint8_t *dst,
                         bool stream);
    /* Make streaming stores visible to other threads; NULL: the path has none. */
    void (*stream_end)(void);
    const struct efs_matvec_ops *matvec; /* products */
};

/* The path in use: chosen at the first call. */
const struct efs_kernel_ops *efs_ops(void);

extern const struct efs_kernel_ops efs_ops_scalar;
#if defined(__x86_64__)
extern const struct efs_kernel_ops efs_ops_avx2;
extern const struct efs_kernel_ops efs_ops_avx512;
#elif defined(__aarch64__)
extern const struct efs_kernel_ops efs_ops_neon;
#endif

#endif
