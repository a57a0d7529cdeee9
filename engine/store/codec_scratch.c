/* SPDX-License-Identifier: Apache-2.0 */
/* codec_scratch.c - see codec.h: working memory. */
#include "codec_scratch.h"

#include "codec_table.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>

size_t efs_codec_scratch_bytes(uint32_t shard_elements)
{
    size_t bytes = sizeof(struct efs_codec_scratch) + shard_elements + EFS_CODEC_SAMPLE_BYTES;
    for (uint32_t c = 0; c < EFS_CODEC_COUNT; c++)
        if (efs_codec_of(c)->decoder_bytes)
            bytes += efs_codec_of(c)->decoder_bytes();
    return bytes;
}

size_t efs_codec_scratch_encoding_bytes(uint32_t shard_elements)
{
    return efs_codec_scratch_bytes(shard_elements) + efs_shard_e_bound(shard_elements) + EFS_CODEC_ENCODER_BYTES;
}

errint_t efs_codec_scratch_new(uint32_t shard_elements, struct efs_codec_scratch **out)
{
    *out = NULL;
    if (shard_elements == 0 || shard_elements > EFS_SHARD_ELEMENTS_MAX)
        return -EINVAL;
    struct efs_codec_scratch *s = efs_sys_calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->shard_elements = shard_elements;
    s->e = efs_sys_aligned_alloc(64, shard_elements);
    s->block = efs_sys_aligned_alloc(64, EFS_CODEC_SAMPLE_BYTES);
    bool all = s->e && s->block;
    for (uint32_t c = 0; all && c < EFS_CODEC_COUNT; c++)
        if (efs_codec_of(c)->decoder_new)
            all = (s->decoder[c] = efs_codec_of(c)->decoder_new()) != NULL;
    if (!all) {
        efs_codec_scratch_free(s);
        return -ENOMEM;
    }
    *out = s;
    return 0;
}

errint_t efs_codec_scratch_for_encoding(struct efs_codec_scratch *s)
{
    if (!s->other)
        s->other = efs_sys_aligned_alloc(64, efs_shard_e_bound(s->shard_elements));
    bool all = s->other != NULL;
    for (uint32_t c = 0; all && c < EFS_CODEC_COUNT; c++)
        if (efs_codec_of(c)->encoder_new && !s->encoder[c])
            all = (s->encoder[c] = efs_codec_of(c)->encoder_new()) != NULL;
    return all ? 0 : -ENOMEM;
}

void efs_codec_scratch_free(struct efs_codec_scratch *s)
{
    if (!s)
        return;
    free(s->e);
    free(s->block);
    free(s->other);
    for (uint32_t c = 0; c < EFS_CODEC_COUNT; c++) {
        if (s->decoder[c])
            efs_codec_of(c)->decoder_free(s->decoder[c]);
        if (s->encoder[c])
            efs_codec_of(c)->encoder_free(s->encoder[c]);
    }
    free(s);
}
