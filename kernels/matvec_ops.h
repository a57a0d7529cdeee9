/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_ops.h - the functions that each code path implements for products. Private to kernels/.
 *
 * Columns are handled in groups of 64; a group has eight *eights*, each of 8 consecutive columns. An input stores the
 * floats of a group in the order that unpacking bytes to words within 16-byte lanes produces: first the even columns of
 * eights 0, 2, 4, 6, then their odd ones, then the even columns of eights 1, 3, 5, 7, then their odd ones. So no path
 * needs shuffles across lanes.
 *
 * *Rotated*: exponents and symbols rotated right by one bit, so that seven bits are in their place in the high byte of
 * a BF16 number and the last one is in its place in the low byte.
 */
#ifndef EFS_KERNELS_MATVEC_OPS_H
#define EFS_KERNELS_MATVEC_OPS_H

#include "cascade_chunk.h"
#include "matvec.h"

#include <string.h>

#define EFS_GROUP 64u
#define EFS_SUMS 32
/* With vectors of EFS_LANES bytes. */
#define EFS_FLOATS (EFS_LANES / 4)
#define EFS_PARTS (16 / EFS_FLOATS)
#define EFS_SUM_VECTORS (EFS_SUMS / EFS_FLOATS)

/* Position of column c of a group among the floats of an input's group; modulo 32: the number of its partial sum. */
static inline unsigned efs_float_place(unsigned c)
{
    return c / 8 % 2 * 32 + c % 2 * 16 + c / 16 * 4 + c / 2 % 4;
}

/* Position of column c of a group in an input for the BF16 dot product. */
static inline unsigned efs_pair_place(unsigned c)
{
    return c / 8 % 2 * 32 + c / 16 * 8 + c % 8;
}

/* The BF16 number at w, of any alignment, as a float. */
static inline float efs_widened(const uint8_t *w)
{
    uint32_t bits = (uint32_t)w[0] << 16 | (uint32_t)w[1] << 24;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* The F16 number at w, of any alignment, as a float. */
static inline float efs_f16_widened(const uint8_t *w)
{
    const uint32_t bits = (uint32_t)w[0] | (uint32_t)w[1] << 8, exponent = bits >> 10 & 0x1f, mantissa = bits & 0x3ff;
    uint32_t wide = (bits & 0x8000) << 16;
    float f = (float)mantissa * 0x1p-24f; /* subnormal, or zero */

    if (exponent == 0)
        return wide != 0 ? -f : f;
    wide |= (exponent == 31 ? 0xff : exponent + 112) << 23 | mantissa << 13;
    memcpy(&f, &wide, sizeof(f));
    return f;
}

/* The products that an input was laid out for. */
enum efs_products { EFS_PRODUCTS_BF16, EFS_PRODUCTS_DOT /* of BF16, by the path's `dot` */, EFS_PRODUCTS_F16 };

/*
 * An input: this header, then the numbers of each token: floats in the order above; for dot products of two columns
 * BF16, in a group the even eights first, then the odd ones; for F16 matrices floats in the order of columns.
 */
struct efs_input {
    uint32_t magic, cols, tokens;
    enum efs_products products;
    size_t stride; /* bytes from token to token, a multiple of 64 */
    uint8_t x[] __attribute__((aligned(64)));
};

static inline enum efs_format efs_matrix_format(const struct efs_matrix *w)
{
    return w->f16 ? EFS_FORMAT_F16 : EFS_FORMAT_BF16;
}

static inline const void *efs_input_token(const struct efs_input *input, size_t token)
{
    return input->x + token * input->stride;
}

/* The input in memory; NULL when it is no input for a matrix like w. */
const struct efs_input *efs_input_checked(const void *memory, const struct efs_matrix *w);

struct efs_matvec_ops;
/* The functions that multiply this input; NULL when the path in use has none. */
const struct efs_matvec_ops *efs_input_ops(const struct efs_input *input);

/* Destination of products. */
struct efs_output {
    float *y;      /* of the next row, token 0 */
    size_t stride; /* floats from token to token */
    bool gated;    /* y holds the gate's product and is replaced by silu(y) * product */
};

/* State of the row in progress, for one token. The order of the sums is private to the code path. */
struct efs_dot {
    float sums[EFS_SUMS] __attribute__((aligned(64)));
    const void *x; /* input of the token */
    uint32_t cols;
    uint32_t col; /* columns of the row already summed: a multiple of EFS_GROUP, less than cols */
    struct efs_output out;
};

struct efs_matvec_ops {
    /* Continue dot with count elements (BF16 or F16, of any alignment), which end at the end of a row or of a group. */
    void (*plain)(const uint8_t *w, size_t count, struct efs_dot *dot);
    /* As lower() in ops.h, each symbol rotated right by one bit: for coded() and exponents(). */
    const uint8_t *(*lower_rotated)(const struct efs_span *span, uint8_t *room);
    /* Continue dot with the elements [begin, end) of a whole block with planes; begin, end and cols are multiples of
     * EFS_GROUP. false: the planes have another number of escapes than block->escaped. */
    bool (*coded)(const struct efs_cascade_block *block, const uint8_t *sm, size_t begin, size_t end,
                  struct efs_dot *dot);
    /* Multiply contiguous rows (BF16 or F16, of any alignment) by all tokens. Does not advance out. */
    void (*many)(const uint8_t *w, size_t rows, const struct efs_input *input, const struct efs_output *out);
    /* Decode the exponents of a whole block with planes, rotated right by one bit, into room (EFS_BLOCK bytes); false
     * as above. */
    bool (*exponents)(const struct efs_cascade_block *block, uint8_t *room);
    /* As many(), for split rows: contiguous rotated exponents, and a pointer to the SM of each row. cols is a multiple
     * of EFS_GROUP. NULL: the path does not implement this, nor coded, exponents and lower_rotated. */
    void (*halves)(const uint8_t *e, const uint8_t *const *sm, size_t rows, const struct efs_input *input,
                   const struct efs_output *out);
    /* The functions for BF16 inputs in ggml's order of sums; NULL: not implemented. Used if its supported() returns
     * true (NULL: always). */
    const struct efs_matvec_ops *dot;
    bool (*supported)(void);
    const struct efs_matvec_ops *f16; /* for F16 matrices: only plain() and many(); not NULL in the struct of a path */
    bool pairs;                       /* one instruction multiplies two columns: inputs are BF16 */
    const char *order;                /* of dot: the result of efs_matvec_order() */
};

extern const struct efs_matvec_ops efs_matvec_scalar;
#if defined(__x86_64__)
extern const struct efs_matvec_ops efs_matvec_avx2;
extern const struct efs_matvec_ops efs_matvec_ggml_avx2;
extern const struct efs_matvec_ops efs_matvec_f16_avx2;
extern const struct efs_matvec_ops efs_matvec_f16_avx512;
extern const struct efs_matvec_ops efs_matvec_avx512;
extern const struct efs_matvec_ops efs_matvec_avx512bf16;
#elif defined(__aarch64__)
extern const struct efs_matvec_ops efs_matvec_neon;
extern const struct efs_matvec_ops efs_matvec_f16_neon;
#endif

/* ---- the blocks of a split matrix -------------------------------------------------------------------------------- */

/* A block, and the range of its elements that was requested. */
struct efs_piece {
    enum efs_format format;         /* of the matrix */
    bool rotated;                   /* a whole block with planes, its lower symbols rotated: for coded(), exponents() */
    struct efs_cascade_block block; /* e == NULL */
    const uint8_t *e;               /* exponents, a byte each */
    const uint8_t *sm;
    size_t size, begin, end;
};

/* Iterator over the elements [at, end) of a matrix, block by block. */
struct efs_walk {
    const struct efs_matrix *w;
    size_t at, end;
    const struct efs_matvec_ops
        *ops;      /* return whole blocks with planes rotated, for these functions; NULL: never rotate */
    uint8_t *room; /* 2 * EFS_LOWER_ROOM bytes, for the lower levels of spans */
    /* The current shard. */
    const struct efs_matrix_shard *shard;
    size_t shard_begin, shard_end;
    struct efs_chunk chunk; /* EFS_E_CASCADE */
    const uint8_t *e;       /* other forms: its exponents */
    /* The current span of the chunk, and its lower symbols, rotated or not; NULL: not decoded yet. */
    struct efs_span span;
    uint32_t span_number;
    const uint8_t *below;
    bool below_rotated;
};

/* Bytes of room. */
#define EFS_WALK_BYTES (2 * (size_t)EFS_LOWER_ROOM)

/* Sets *piece to the next block. 1; 0 at the end; -EINVAL, -EUCLEAN, or what w->exponents() returned. */
int efs_walk_next(struct efs_walk *walk, struct efs_piece *piece);
/* Decodes all elements of the piece's block to BF16 or F16 into room (EFS_BLOCK elements). 0 or -EUCLEAN. */
int efs_piece_decode(const struct efs_piece *piece, uint8_t *room);

/* The product of the elements [begin, end) of a split matrix, which are whole rows, with several tokens;
 * matvec_tile.c. */
int efs_multiply_tiles(const struct efs_matvec_ops *ops, const struct efs_matrix *w, const struct efs_input *input,
                       size_t begin, size_t end, const struct efs_output *out, uint8_t *scratch);
/* Bytes of its scratch. */
size_t efs_tile_scratch_bytes(uint32_t cols);

/* ---- the end of a product, common to all paths ------------------------------------------------------------------- */

/* exp(v) with v clamped to [-87, 88], error about 2 units in the last place; identical on every processor because
 * kernels/ is compiled without contraction. Minimax polynomial of degree 7 after Cephes (Moshier). */
static inline float efs_exp(float v)
{
    const float magic = 12582912; /* 1.5 * 2^23: adding it rounds to an integer */
    float limited = v < -87 ? -87 : v > 88 ? 88 : v;
    float n = (limited * 1.44269504f + magic) - magic;
    float r = (limited - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    union {
        float f;
        int32_t i;
    } scale = {.i = ((int32_t)n + 127) * (1 << 23)};

    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return (p * (r * r) + r + 1) * scale.f;
}

/* v / (1 + exp(-v)): NaN for NaN and -inf, -0 where exp(-v) is out of range. */
static inline float efs_silu(float v)
{
    return v >= -88 ? v / (1 + efs_exp(-v)) : -(v - v);
}

static inline void efs_put_product(const struct efs_output *out, size_t row, size_t token, float product)
{
    float *y = out->y + token * out->stride + row;

    *y = out->gated ? efs_silu(*y) * product : product;
}

/* Stores the product of the current row and advances to the next row. */
static inline void efs_dot_next(struct efs_dot *dot, float product)
{
    efs_put_product(&dot->out, 0, 0, product);
    dot->out.y++;
}

#endif
