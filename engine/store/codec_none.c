/* SPDX-License-Identifier: Apache-2.0 */
/* codec_none.c - see codec_table.h: chunks that hold the bytes as they are. */
#include "codec_table.h"

#include <string.h>

static errint_t none_decode_range(const struct efs_shard_view *shard, size_t first, size_t count, void *dst,
                                  bool stream)
{
    (void)stream;
    memcpy(dst, shard->sm + first, count);
    return 0;
}

const struct efs_codec efs_codec_none = {
    .name = "none",
    .choice = EFS_CHOOSE_RAW,
    .decode_range = none_decode_range,
};
