/* SPDX-License-Identifier: Apache-2.0 */
/* codec_lz4.c - one LZ4 block, by the library. */
#include "codec_table.h"
#include "sys.h"

#include <errno.h>
#include <lz4.h>
#include <stdlib.h>

static errint_t lz4_decode(void *decoder, const uint8_t *coded, size_t bytes, uint8_t *symbols, size_t n)
{
    (void)decoder;
    if (bytes > INT32_MAX)
        return -EUCLEAN;
    int got = LZ4_decompress_safe((const char *)coded, (char *)symbols, (int)bytes, (int)n);
    return got >= 0 && (size_t)got == n ? 0 : -EUCLEAN;
}

static void *lz4_encoder_new(void)
{
    return efs_sys_malloc((size_t)LZ4_sizeofState());
}

static size_t lz4_bound(size_t n)
{
    return n <= LZ4_MAX_INPUT_SIZE ? (size_t)LZ4_compressBound((int)n) : 0;
}

static size_t lz4_encode(void *encoder, const uint8_t *symbols, size_t n, uint8_t *chunk, size_t room)
{
    int bytes = LZ4_compress_fast_extState(encoder, (const char *)symbols, (char *)chunk, (int)n, (int)room, 1);
    return bytes > 0 ? (size_t)bytes : 0;
}

const struct efs_codec efs_codec_lz4 = {
    .name = "lz4",
    .choice = EFS_CHOOSE_LZ4,
    .decode_cost = EFS_CODEC_COST(2.4),
    .decode = lz4_decode,
    .encoder_new = lz4_encoder_new,
    .encoder_free = free,
    .bound = lz4_bound,
    .encode = lz4_encode,
};
