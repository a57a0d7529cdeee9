/*
 * ops.h - what one processor's code path provides. Private to kernels/.
 *
 * A path works on one block (at most EFS_BLOCK elements) at a time; cascade.c and format.c own everything that is
 * common: the container, its checks, the walk over blocks, partial ranges. Every path gives the bytes that the scalar
 * one gives, which is the reference.
 */
#ifndef EFS_KERNELS_OPS_H
#define EFS_KERNELS_OPS_H

#include "kernels.h"

#define EFS_LEVELS 5                 /* most levels of a cascade */
#define EFS_BLOCK_HEADER 28          /* bytes of a block before its planes */
#define EFS_CHUNK_HEADER 16          /* bytes of a chunk before its block offsets */
#define EFS_SCRATCH (EFS_BLOCK + 64) /* symbols of a block, and room for a vector that runs over */

/* Bytes of a plane stream of m values of 1, 2 or 4 bits. */
static inline size_t efs_plane_bytes(size_t m, unsigned bits)
{
    return (m * bits + 7) / 8;
}

/*
 * One block, coded or to be coded. Levels count from 0 here. All sizes have been checked against the chunk: planes[l]
 * has efs_plane_bytes(size[l], 2) bytes, rest has size[levels] bytes, sizes never grow from one level to the next, and
 * EFS_CASCADE_SLACK readable bytes follow the block. What the planes say was not checked: they may hold more or fewer
 * escapes than size[l + 1].
 */
struct efs_cascade_block {
    unsigned levels;
    uint32_t size[EFS_LEVELS + 1]; /* size[l]: symbols that enter level l; size[levels]: bytes of the rest */
    uint8_t table[EFS_LEVELS][4];  /* the symbol of each code; [3], the escape, is 0 */
    uint8_t ranked[EFS_LEVELS];    /* encoder only: how many of the level's three table entries are in use */
    const uint8_t *planes[EFS_LEVELS];
    const uint8_t *rest;
};

struct efs_matvec_ops; /* matvec_ops.h */

struct efs_kernel_ops {
    const char *name;
    bool (*supported)(void);
    void (*histogram)(const uint8_t *data, size_t n, uint64_t counts[256]); /* adds to counts */
    /* m elements, 1 <= m <= EFS_BLOCK, of a known format. BYTES is not asked for. */
    void (*split)(enum efs_format format, const uint8_t *src, size_t m, uint8_t *e, uint8_t *sm);
    void (*merge)(enum efs_format format, const uint8_t *e, const uint8_t *sm, size_t m, uint8_t *dst);
    /* Write planes and rest of symbols as plan says to dst; may write EFS_CASCADE_SLACK bytes past them. */
    void (*encode)(const struct efs_cascade_block *plan, const uint8_t *symbols, uint8_t *dst);
    /* Write exactly size[0] symbols to out. false: the planes do not hold the escapes that the sizes tell. */
    bool (*decode)(const struct efs_cascade_block *block, uint8_t *out);
    /* Decode and merge: exactly size[0] elements to dst; sm is the block's own. BYTES too: sm is then not read. */
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
