/* SPDX-License-Identifier: Apache-2.0 */
/* codec_cascade.c - the cascade of kernels/: any range of a shard at once, by vectors. */
#include "codec_table.h"

#include <errno.h>
#include <string.h>

static errint_t cascade_decode(void *decoder, const uint8_t *coded, size_t bytes, uint8_t *symbols, size_t n)
{
    (void)decoder;
    return efs_cascade_decode(coded, bytes, 0, n, symbols) < 0 ? -EUCLEAN : 0;
}

static errint_t cascade_decode_range(const struct efs_shard_view *shard, size_t first, size_t count, void *dst,
                                     bool stream)
{
    uint32_t symbols;
    if (shard->e_bytes < sizeof(symbols))
        return -EUCLEAN;
    memcpy(&symbols, shard->e, sizeof(symbols));
    if (symbols != shard->elements)
        return -EUCLEAN;
    if (shard->format == EFS_FORMAT_BYTES)
        return efs_cascade_decode(shard->e, shard->e_bytes, first, count, dst);
    return efs_cascade_merge(shard->format, shard->e, shard->e_bytes, shard->sm, shard->sm_bytes, first, count, dst,
                             stream);
}

static size_t cascade_encode(void *encoder, const uint8_t *symbols, size_t n, uint8_t *chunk, size_t room)
{
    (void)encoder;
    (void)room;
    return efs_cascade_encode(symbols, n, chunk);
}

const struct efs_codec efs_codec_cascade = {
    .name = "cascade",
    .choice = EFS_CHOOSE_CASCADE,
    .decode_cost = EFS_CODEC_COST(7.0),
    .decode = cascade_decode,
    .decode_range = cascade_decode_range,
    .bound = efs_cascade_bound,
    .encode = cascade_encode,
};
