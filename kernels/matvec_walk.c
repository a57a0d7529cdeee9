/*
 * matvec_walk.c - the walk over a matrix in halves: shards, blocks, and BF16 numbers where a product is not taken
 * straight from the code.
 */
#include "cascade_chunk.h"
#include "matvec_ops.h"

#include <errno.h>

/* The shard at hand. */
struct shard {
    const struct efs_matrix_shard *given;
    size_t elements;
    struct efs_chunk chunk; /* EFS_E_CASCADE */
    const uint8_t *e;       /* otherwise */
};

static int open_shard(const struct efs_matrix *w, size_t index, struct shard *shard)
{
    size_t all = (size_t)w->rows * w->cols, left = all - index * w->shard_elements;
    const struct efs_matrix_shard *given = &w->shards[index];
    int r = 0;

    shard->given = given;
    shard->elements = left < w->shard_elements ? left : w->shard_elements;
    if (given->sm == NULL || given->sm_bytes != shard->elements)
        return -EUCLEAN;
    switch (given->form) {
    case EFS_E_CASCADE:
        if (given->e == NULL)
            return -EUCLEAN;
        r = efs_chunk_open(given->e, given->e_bytes, &shard->chunk);
        return r != 0 ? r : shard->chunk.symbols == shard->elements ? 0 : -EUCLEAN;
    case EFS_E_BYTES:
        shard->e = given->e;
        return given->e != NULL && given->e_bytes == shard->elements ? 0 : -EUCLEAN;
    case EFS_E_ASK:
        shard->e = NULL;
        if (w->exponents == NULL)
            return -EINVAL;
        r = w->exponents(w->user, index, &shard->e);
        return r != 0 ? r : shard->e != NULL ? 0 : -EINVAL;
    }
    return -EINVAL;
}

/* Elements [begin, end) of block b of the shard. */
static int do_block(struct efs_pieces *pieces, const struct shard *shard, size_t b, size_t begin, size_t end)
{
    const uint8_t *sm = shard->given->sm + b * EFS_BLOCK;
    size_t left = shard->elements - b * EFS_BLOCK, m = left < EFS_BLOCK ? left : EFS_BLOCK;

    if (shard->given->form == EFS_E_CASCADE) {
        struct efs_cascade_block block;
        int r = efs_chunk_block(&shard->chunk, (uint32_t)b, &block);
        if (r != 0)
            return r;
        if (pieces->coded != NULL && m == EFS_BLOCK && block.levels > 0)
            return pieces->coded(pieces, &block, sm, begin, end) ? 0 : -EUCLEAN;
        uint8_t *room = pieces->room(pieces);
        if (!pieces->ops->decode_merge(EFS_FORMAT_BF16, &block, sm, room, false))
            return -EUCLEAN;
        pieces->sink(pieces, room + 2 * begin, end - begin);
        return 0;
    }
    uint8_t *room = pieces->room(pieces);
    pieces->ops->merge(EFS_FORMAT_BF16, shard->e + b * EFS_BLOCK, sm, m, room);
    pieces->sink(pieces, room + 2 * begin, end - begin);
    return 0;
}

int efs_pieces_run(struct efs_pieces *pieces, size_t first, size_t count)
{
    const size_t shard_elements = pieces->w->shard_elements;
    struct shard shard;
    size_t at = first, end = first + count;

    while (at < end) {
        size_t index = at / shard_elements, inside = at % shard_elements;
        if (at == first || inside == 0) {
            int r = open_shard(pieces->w, index, &shard);
            if (r != 0)
                return r;
        }
        size_t b = inside / EFS_BLOCK, begin = inside % EFS_BLOCK;
        size_t take = EFS_BLOCK - begin < end - at ? EFS_BLOCK - begin : end - at;
        int r = do_block(pieces, &shard, b, begin, begin + take);
        if (r != 0)
            return r;
        at += take;
    }
    return 0;
}
