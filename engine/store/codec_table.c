/* SPDX-License-Identifier: Apache-2.0 */
/* codec_table.c - the codecs by their numbers on disk and by what users call them. */
#include "codec_table.h"

#include <errno.h>
#include <string.h>

static const struct efs_codec *const codecs[EFS_CODEC_COUNT] = {
    [EFS_CODEC_NONE] = &efs_codec_none,
    [EFS_CODEC_CASCADE] = &efs_codec_cascade,
    [EFS_CODEC_ZSTD] = &efs_codec_zstd,
    [EFS_CODEC_LZ4] = &efs_codec_lz4,
};

const struct efs_codec *efs_codec_of(uint32_t codec)
{
    return codec < EFS_CODEC_COUNT ? codecs[codec] : NULL;
}

const char *efs_codec_name(uint32_t codec)
{
    return codec < EFS_CODEC_COUNT ? codecs[codec]->name : NULL;
}

bool efs_codec_can_choose(uint64_t choice)
{
    bool can = choice == EFS_CHOOSE_AUTO;
    for (uint32_t c = 0; c < EFS_CODEC_COUNT; c++)
        can |= choice == (uint64_t)codecs[c]->choice;
    return can;
}

errint_t efs_codec_choose(const char *name, enum efs_codec_choice *choice)
{
    bool automatic = strcmp(name, "auto") == 0, raw = strcmp(name, "raw") == 0;
    *choice = raw ? EFS_CHOOSE_RAW : EFS_CHOOSE_AUTO;
    for (uint32_t c = EFS_CODEC_NONE + 1; c < EFS_CODEC_COUNT; c++)
        if (strcmp(name, codecs[c]->name) == 0) {
            *choice = codecs[c]->choice;
            return 0;
        }
    return automatic || raw ? 0 : -EINVAL;
}

size_t efs_shard_e_bound(size_t elements)
{
    size_t bound = 0;
    for (uint32_t c = EFS_CODEC_NONE + 1; c < EFS_CODEC_COUNT; c++) {
        size_t bytes = efs_codec_of(c)->bound(elements);
        bound = bytes > bound ? bytes : bound;
    }
    return bound;
}
