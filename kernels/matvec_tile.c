/*
 * matvec_tile.c - products with several tokens of a matrix in halves: rows are decoded to a tile that stays in the
 * cache, and used for all tokens.
 */
#include "matvec_ops.h"

#include <string.h>

/* Elements of a tile, about: 64 KiB of BF16, so that it stays in the second level of the cache with an input. */
#define TILE_ELEMENTS (32u << 10)
#define TILE_ROWS_STEP 4u

static size_t tile_rows(uint32_t cols)
{
    size_t rows = TILE_ELEMENTS / cols / TILE_ROWS_STEP * TILE_ROWS_STEP;

    return rows < TILE_ROWS_STEP ? TILE_ROWS_STEP : rows;
}

/* A tile has room for its rows, and for the block that brings more than these. */
size_t efs_tile_scratch_bytes(uint32_t cols)
{
    return 2 * ((tile_rows(cols) * cols + EFS_BLOCK + EFS_GROUP - 1) / EFS_GROUP * EFS_GROUP);
}

int efs_multiply_tiles(const struct efs_matvec_ops *ops, const struct efs_matrix *w, const struct efs_input *input,
                       size_t begin, size_t end, const struct efs_output *out, uint8_t *scratch)
{
    struct efs_walk walk = {.w = w, .at = begin, .end = end};
    struct efs_output to = *out;
    struct efs_piece piece;
    size_t elements = 0, enough = tile_rows(w->cols) * w->cols;
    int r;

    while ((r = efs_walk_next(&walk, &piece)) > 0) {
        uint8_t *at = scratch + 2 * elements;
        size_t count = piece.end - piece.begin;
        r = efs_piece_decode(&piece, at);
        if (r != 0)
            return r;
        if (piece.begin > 0) /* the first block, wanted from its middle on */
            memmove(at, at + 2 * piece.begin, 2 * count);
        elements += count;
        if (elements >= enough || walk.at == end) {
            size_t rows = elements / w->cols, left = elements % w->cols;
            ops->many(scratch, rows, input, &to);
            to.y += rows;
            memmove(scratch, scratch + 2 * (elements - left), 2 * left);
            elements = left;
        }
    }
    return r;
}
