/*
 * matvec.c - products of a matrix in any form with one vector or with several.
 */
#include "matvec_ops.h"

#include <errno.h>
#include <string.h>

/* Elements of a tile of rows, about: 64 KiB of BF16, so that it stays in the second level of any cache. */
#define TILE_ELEMENTS (32u << 10)
#define TILE_ROWS_MIN 3u

static size_t tile_rows(uint32_t cols)
{
    size_t rows = TILE_ELEMENTS / cols / TILE_ROWS_MIN * TILE_ROWS_MIN;

    return rows < TILE_ROWS_MIN ? TILE_ROWS_MIN : rows;
}

size_t efs_matvec_scratch_bytes(uint32_t cols, uint32_t tokens)
{
    if (efs_input_bytes(cols, tokens) == 0)
        return 0;
    size_t ahead = tokens == 1 ? EFS_GROUP : tile_rows(cols) * cols;
    return (2 * (ahead + EFS_BLOCK) + EFS_MATVEC_ALIGN - 1) / EFS_MATVEC_ALIGN * EFS_MATVEC_ALIGN;
}

/* ---- one token -----------------------------------------------------------------------------------------------------
 */

/* Numbers lie in scratch as [what a piece left of its last group][the next piece]. */
struct vector_product {
    struct efs_pieces pieces;
    const struct efs_matvec_ops *ops;
    struct efs_dot dot;
    uint8_t *piece; /* EFS_GROUP elements after scratch's begin */
    size_t kept;    /* elements before piece that are not summed yet: they begin at column dot.col */
};

static struct vector_product *vector_of(struct efs_pieces *pieces)
{
    return (struct vector_product *)(void *)pieces; /* its first member */
}

static uint8_t *vector_room(struct efs_pieces *pieces)
{
    return vector_of(pieces)->piece;
}

static void vector_sink(struct efs_pieces *pieces, const uint8_t *piece, size_t count)
{
    struct vector_product *p = vector_of(pieces);
    const uint8_t *from = piece - 2 * p->kept; /* the first piece, which may begin later, finds none kept */
    size_t n = p->kept + count;
    size_t last = (p->dot.col + n) % p->dot.cols; /* columns of the row that does not end in here */
    size_t keep = last % EFS_GROUP;

    p->ops->plain(from, n - keep, &p->dot);
    memmove(p->piece - 2 * keep, from + 2 * (n - keep), 2 * keep);
    p->kept = keep;
}

static bool vector_coded(struct efs_pieces *pieces, const struct efs_cascade_block *block, const uint8_t *sm,
                         size_t begin, size_t end)
{
    struct vector_product *p = vector_of(pieces);

    return p->ops->coded(block, sm, begin, end, &p->dot);
}

static int multiply_vector(const struct efs_matrix *w, const struct efs_input *input, size_t begin, size_t end,
                           const struct efs_output *out, uint8_t *scratch)
{
    struct vector_product p = {
        .pieces = {.w = w, .ops = efs_ops(), .room = vector_room, .sink = vector_sink},
        .ops = efs_ops()->matvec,
        .dot = {.x = input->x, .cols = w->cols, .out = *out},
        .piece = scratch + 2 * EFS_GROUP,
    };

    if (w->plain != NULL) {
        p.ops->plain((const uint8_t *)w->plain + 2 * begin, end - begin, &p.dot);
        return 0;
    }
    if (w->cols % EFS_GROUP == 0 && p.ops->coded != NULL)
        p.pieces.coded = vector_coded;
    return efs_pieces_run(&p.pieces, begin, end - begin);
}

/* ---- several tokens ------------------------------------------------------------------------------------------------
 */

/* Numbers lie in scratch until some rows are whole: those are multiplied, the rest goes to the front. */
struct tile_product {
    struct efs_pieces pieces;
    const struct efs_matvec_ops *ops;
    const struct efs_input *input;
    struct efs_output out;
    uint8_t *tile;
    size_t elements; /* at the front of tile, not multiplied yet */
    size_t enough;   /* elements for which a product is taken */
};

static struct tile_product *tile_of(struct efs_pieces *pieces)
{
    return (struct tile_product *)(void *)pieces;
}

static uint8_t *tile_room(struct efs_pieces *pieces)
{
    struct tile_product *p = tile_of(pieces);

    return p->tile + 2 * p->elements;
}

static void tile_multiply(struct tile_product *p)
{
    size_t cols = p->input->cols, rows = p->elements / cols, left = p->elements % cols;

    p->ops->many(p->tile, rows, p->input, &p->out);
    p->out.y += rows;
    memmove(p->tile, p->tile + 2 * (p->elements - left), 2 * left);
    p->elements = left;
}

static void tile_sink(struct efs_pieces *pieces, const uint8_t *piece, size_t count)
{
    struct tile_product *p = tile_of(pieces);

    if (piece != p->tile + 2 * p->elements) /* the first block, wanted from its middle on */
        memmove(p->tile, piece, 2 * count);
    p->elements += count;
    if (p->elements >= p->enough)
        tile_multiply(p);
}

static int multiply_tiles(const struct efs_matrix *w, const struct efs_input *input, size_t begin, size_t end,
                          const struct efs_output *out, uint8_t *scratch)
{
    struct tile_product p = {
        .pieces = {.w = w, .ops = efs_ops(), .room = tile_room, .sink = tile_sink},
        .ops = efs_ops()->matvec,
        .input = input,
        .out = *out,
        .tile = scratch,
        .enough = tile_rows(w->cols) * w->cols,
    };

    if (w->plain != NULL) {
        p.ops->many((const uint8_t *)w->plain + 2 * begin, (end - begin) / w->cols, input, out);
        return 0;
    }
    int r = efs_pieces_run(&p.pieces, begin, end - begin);
    if (r == 0)
        tile_multiply(&p);
    return r;
}

/* ---- both ----------------------------------------------------------------------------------------------------------
 */

static bool well_formed(const struct efs_matrix *w)
{
    return w->cols > 0 && w->cols <= EFS_COLS_MAX &&
           (w->plain != NULL || (w->shards != NULL && w->shard_elements > 0 && w->shard_elements % EFS_BLOCK == 0));
}

static int multiply(const struct efs_matrix *w, const void *memory, uint32_t row_begin, uint32_t row_end, float *y,
                    size_t y_stride, bool gated, void *scratch)
{
    const struct efs_input *input = efs_input_checked(memory, w->cols);
    struct efs_output out = {y == NULL ? NULL : y + row_begin, y_stride, gated};
    size_t begin = (size_t)row_begin * w->cols, end = (size_t)row_end * w->cols;

    if (!well_formed(w) || input == NULL || row_begin > row_end || row_end > w->rows || y == NULL || scratch == NULL)
        return -EINVAL;
    if (begin == end)
        return 0;
    return input->tokens == 1 ? multiply_vector(w, input, begin, end, &out, scratch)
                              : multiply_tiles(w, input, begin, end, &out, scratch);
}

int efs_matvec(const struct efs_matrix *w, const void *input, uint32_t row_begin, uint32_t row_end, float *y,
               size_t y_stride, void *scratch)
{
    return multiply(w, input, row_begin, row_end, y, y_stride, false, scratch);
}

int efs_matvec_swiglu(const struct efs_matrix *gate, const struct efs_matrix *up, const void *input, uint32_t row_begin,
                      uint32_t row_end, float *h, size_t h_stride, void *scratch)
{
    if (gate->rows != up->rows || gate->cols != up->cols)
        return -EINVAL;
    int r = multiply(gate, input, row_begin, row_end, h, h_stride, false, scratch);
    return r != 0 ? r : multiply(up, input, row_begin, row_end, h, h_stride, true, scratch);
}
