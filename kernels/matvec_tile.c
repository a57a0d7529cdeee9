/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_tile.c - products of a split matrix with several tokens: rows are decoded to a tile that stays in the cache
 * and is used for all tokens.
 *
 * On a path with vectors and for fewer than JOINED_TOKENS tokens, a tile of BF16 holds exponents only: they are joined
 * with the SM, which are not copied, while they are multiplied. The joins run on execution units that do not multiply;
 * writing the joined numbers and reading twice as many bytes takes longer. Otherwise a tile holds the joined numbers.
 */
#include "matvec_ops.h"

#include <errno.h>
#include <string.h>

/* From this number of tokens on, numbers are joined before they are multiplied. Rate over plain products on Zen 4, tile
 * of exponents / of numbers: 16 tokens 0.88 to 0.92 / 0.82; 64 tokens 0.86 to 0.92 / 0.93 to 0.96. */
#define JOINED_TOKENS 48u
/* Approximate elements of a tile, so that it fits into the L2 cache with its SM and an input. */
#define TILE_ELEMENTS (72u << 10)
#define TILE_ROWS_STEP 4u
#define TILE_ROWS_MAX 96u

static size_t tile_rows(uint32_t cols)
{
    size_t rows = TILE_ELEMENTS / cols / TILE_ROWS_STEP * TILE_ROWS_STEP;

    return rows < TILE_ROWS_STEP ? TILE_ROWS_STEP : rows > TILE_ROWS_MAX ? TILE_ROWS_MAX : rows;
}

/* Bytes of a tile: its rows, and one more block, because the tile is filled by whole blocks. Two bytes an element, for
 * a BF16 number, or for an exponent and its SM. Does not decrease as cols grows, so the scratch of a wide matrix
 * suffices for narrower ones. */
static size_t tile_bytes(uint32_t cols)
{
    size_t elements = TILE_ROWS_STEP * (size_t)cols;

    elements = elements < TILE_ELEMENTS ? TILE_ELEMENTS : elements;
    return 2 * ((elements + EFS_BLOCK + EFS_GROUP - 1) / EFS_GROUP * EFS_GROUP);
}

size_t efs_tile_scratch_bytes(uint32_t cols)
{
    return EFS_WALK_BYTES + tile_bytes(cols);
}

/* Decodes the exponents of the piece's whole block into room, rotated: also those outside [begin, end). 0 or -EUCLEAN.
 */
static int piece_exponents(const struct efs_matvec_ops *ops, const struct efs_piece *piece, uint8_t *room)
{
    const uint8_t *e = piece->e;

    if (piece->rotated)
        return ops->exponents(&piece->block, room) ? 0 : -EUCLEAN;
    if (e == NULL) {
        if (!efs_ops()->decode_merge(EFS_FORMAT_BYTES, &piece->block, NULL, room, false))
            return -EUCLEAN;
        e = room;
    }
    for (size_t i = 0; i < piece->size; i++)
        room[i] = (uint8_t)(e[i] >> 1 | e[i] << 7);
    return 0;
}

/* The SM of a row, the cols elements from `at` on: in place, or copied to room if the row is in several shards. */
static const uint8_t *row_sm(const struct efs_matrix *w, size_t at, uint8_t *room)
{
    size_t in = at % w->shard_elements, done = 0;
    const struct efs_matrix_shard *shard = &w->shards[at / w->shard_elements];

    if (w->cols <= w->shard_elements - in)
        return shard->sm + in;
    for (; done < w->cols; shard++, in = 0) {
        size_t n = w->shard_elements - in < w->cols - done ? w->shard_elements - in : w->cols - done;
        memcpy(room + done, shard->sm + in, n);
        done += n;
    }
    return room;
}

/* Multiplies the rows of a tile, the first of which starts at element `at`. room: for the SM of all rows. */
static void multiply_tile(const struct efs_matvec_ops *ops, const struct efs_matrix *w, const struct efs_input *input,
                          const uint8_t *tile, size_t at, size_t rows, const struct efs_output *out, uint8_t *room)
{
    const uint8_t *sm[TILE_ROWS_MAX];
    struct efs_output to = *out;

    while (rows > 0) { /* the last block of a tile can contain many short rows */
        size_t n = rows < TILE_ROWS_MAX ? rows : TILE_ROWS_MAX;
        for (size_t i = 0; i < n; i++)
            sm[i] = row_sm(w, at + i * w->cols, room + i * w->cols);
        ops->halves(tile, sm, n, input, &to);
        tile += n * w->cols;
        at += n * w->cols;
        to.y += n;
        rows -= n;
    }
}

int efs_multiply_tiles(const struct efs_matvec_ops *ops, const struct efs_matrix *w, const struct efs_input *input,
                       size_t begin, size_t end, const struct efs_output *out, uint8_t *scratch)
{
    const bool halves = ops->halves != NULL && w->cols % EFS_GROUP == 0 && input->tokens < JOINED_TOKENS;
    const size_t size = halves ? 1 : 2, enough = tile_rows(w->cols) * w->cols;
    struct efs_walk walk = {.w = w, .at = begin, .end = end, .ops = halves ? ops : NULL, .room = scratch};
    struct efs_output to = *out;
    struct efs_piece piece;
    size_t elements = 0;
    int r;

    scratch += EFS_WALK_BYTES;
    while ((r = efs_walk_next(&walk, &piece)) > 0) {
        uint8_t *at = scratch + size * elements;
        size_t count = piece.end - piece.begin;
        r = halves ? piece_exponents(ops, &piece, at) : efs_piece_decode(&piece, at);
        if (r != 0)
            return r;
        if (piece.begin > 0) /* the first block, if the range starts in its middle */
            memmove(at, at + size * piece.begin, size * count);
        elements += count;
        if (elements >= enough || walk.at == end) {
            size_t rows = elements / w->cols, left = elements % w->cols;
            if (halves)
                multiply_tile(ops, w, input, scratch, walk.at - elements, rows, &to, scratch + tile_bytes(w->cols) / 2);
            else
                ops->many(scratch, rows, input, &to);
            to.y += rows;
            memmove(scratch, scratch + size * (elements - left), size * left);
            elements = left;
        }
    }
    return r;
}
