/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matvec_walk.c - iterates over the shards, spans and blocks of a split matrix, and checks them.
 */
#include "matvec_ops.h"

#include <errno.h>

static int open_shard(struct efs_walk *walk)
{
    const struct efs_matrix *w = walk->w;
    size_t all = (size_t)w->rows * w->cols, index = walk->at / w->shard_elements;
    const struct efs_matrix_shard *shard = &w->shards[index];
    int r = 0;

    walk->shard = shard;
    walk->span_number = UINT32_MAX;
    walk->shard_begin = index * w->shard_elements;
    size_t elements = all - walk->shard_begin < w->shard_elements ? all - walk->shard_begin : w->shard_elements;
    walk->shard_end = walk->shard_begin + elements;
    if (shard->sm == NULL || shard->sm_bytes != efs_sm_bytes(efs_matrix_format(w), elements))
        return -EUCLEAN;
    switch (shard->form) {
    case EFS_E_CASCADE:
        if (shard->e == NULL)
            return -EUCLEAN;
        r = efs_chunk_open(shard->e, shard->e_bytes, &walk->chunk);
        return r != 0 ? r : walk->chunk.symbols == elements ? 0 : -EUCLEAN;
    case EFS_E_BYTES:
        walk->e = shard->e;
        return shard->e != NULL && shard->e_bytes == elements ? 0 : -EUCLEAN;
    case EFS_E_CALLBACK:
        walk->e = NULL;
        if (w->exponents == NULL)
            return -EINVAL;
        r = w->exponents(w->user, index, &walk->e);
        return r != 0 ? r : walk->e != NULL ? 0 : -EINVAL;
    }
    return -EINVAL;
}

/* Sets *piece to block b of the shard's chunk. Opens the block's span and decodes the span's lower levels once for all
 * its blocks; a second time if the last block is shorter, because only whole blocks use rotated symbols. */
static int open_block(struct efs_walk *walk, size_t b, struct efs_piece *piece)
{
    const uint32_t s = (uint32_t)(b / EFS_SPAN_BLOCKS);
    const bool rotated = walk->ops != NULL && piece->size == EFS_BLOCK;

    if (s != walk->span_number) {
        int r = efs_chunk_span(&walk->chunk, s, &walk->span);
        if (r != 0)
            return r;
        walk->span_number = s;
        walk->below = NULL;
    }
    if (walk->span.levels > 0 && (walk->below == NULL || walk->below_rotated != rotated)) {
        walk->below =
            rotated ? walk->ops->lower_rotated(&walk->span, walk->room) : efs_ops()->lower(&walk->span, walk->room);
        walk->below_rotated = rotated;
        if (walk->below == NULL)
            return -EUCLEAN;
    }
    efs_span_block(&walk->span, walk->below, b % EFS_SPAN_BLOCKS, &piece->block);
    if (piece->block.planes == NULL)
        piece->e = piece->block.below;
    piece->rotated = rotated && piece->e == NULL;
    return 0;
}

int efs_walk_next(struct efs_walk *walk, struct efs_piece *piece)
{
    int r = 0;

    if (walk->at == walk->end)
        return 0;
    if (walk->shard == NULL || walk->at == walk->shard_end)
        r = open_shard(walk);
    if (r != 0)
        return r;

    size_t b = (walk->at - walk->shard_begin) / EFS_BLOCK, first = walk->shard_begin + b * EFS_BLOCK;
    size_t size = walk->shard_end - first < EFS_BLOCK ? walk->shard_end - first : EFS_BLOCK;
    piece->size = size;
    piece->begin = walk->at - first;
    piece->end = walk->end - first < size ? walk->end - first : size;
    piece->format = efs_matrix_format(walk->w);
    piece->sm = walk->shard->sm + b * efs_sm_bytes(piece->format, EFS_BLOCK);
    piece->e = NULL;
    piece->rotated = false;
    walk->at = first + piece->end;
    if (walk->shard->form == EFS_E_CASCADE)
        r = open_block(walk, b, piece);
    else
        piece->e = walk->e + b * EFS_BLOCK;
    return r != 0 ? r : 1;
}

int efs_piece_decode(const struct efs_piece *piece, uint8_t *room)
{
    const struct efs_kernel_ops *ops = efs_ops();

    if (piece->e != NULL)
        ops->merge(piece->format, piece->e, piece->sm, piece->size, room);
    else if (!ops->decode_merge(piece->format, &piece->block, piece->sm, room, false))
        return -EUCLEAN;
    return 0;
}
