/* SPDX-License-Identifier: Apache-2.0 */
/* codec.c - working memory of a thread; decodes a shard's two chunks to its raw bytes. */
#include "codec_table.h"

#include "sys.h"
#include "tsan.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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

static pthread_key_t memory_key;
static bool memory_has_key;

static void memory_make_key(void)
{
    memory_has_key = pthread_key_create(&memory_key, free) == 0;
}

void *efs_codec_thread_memory(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, memory_make_key);
    if (!memory_has_key)
        return NULL;
    void *memory = pthread_getspecific(memory_key);
    if (memory)
        return memory;
    memory = efs_sys_aligned_alloc(64, EFS_CASCADE_SCRATCH_BYTES);
    if (memory && pthread_setspecific(memory_key, memory) != 0) {
        free(memory);
        memory = NULL;
    }
    return memory;
}

void *efs_codec_memory(struct efs_codec_scratch *scratch)
{
    return scratch ? scratch->decoder[EFS_CODEC_CASCADE] : efs_codec_thread_memory();
}

/* ---- decoding ---- */

/* Merges elements [first, first + count) of E and SM (both block-aligned) into dst; partial blocks are merged in
 * scratch first. */
static void merge_range(const struct efs_shard_view *shard, const uint8_t *e, size_t first, size_t count, uint8_t *dst,
                        struct efs_codec_scratch *scratch)
{
    const size_t width = efs_format_bytes(shard->format), block_sm = efs_sm_bytes(shard->format, EFS_BLOCK);
    while (count > 0) {
        size_t block = first >> EFS_BLOCK_LOG2, begin = block << EFS_BLOCK_LOG2, skip = first - begin;
        size_t left = shard->elements - begin, whole = left < EFS_BLOCK ? left : EFS_BLOCK;
        const uint8_t *sm = shard->sm + block * block_sm;
        size_t n;
        if (skip == 0 && count >= whole) { /* all whole blocks, and the shard's last */
            n = begin + count == shard->elements ? count : count & ~(size_t)(EFS_BLOCK - 1);
            efs_merge(shard->format, e + begin, sm, n, dst);
        } else {
            n = whole - skip < count ? whole - skip : count;
            efs_merge(shard->format, e + begin, sm, whole, scratch->block);
            memcpy(dst, scratch->block + skip * width, n * width);
        }
        first += n;
        count -= n;
        dst += n * width;
    }
}

/* The shard's codec if format, codec and sizes are consistent (without reading the chunks); else NULL. */
static const struct efs_codec *codec_that_fits(const struct efs_shard_view *shard)
{
    bool fits = shard->codec == EFS_CODEC_NONE
                    ? shard->format == EFS_FORMAT_BYTES && shard->e_bytes == 0 && shard->sm_bytes == shard->elements
                    : efs_format_bytes(shard->format) > 0 && shard->e_bytes > 0 &&
                          shard->sm_bytes == efs_sm_bytes(shard->format, shard->elements);
    return fits ? efs_codec_of(shard->codec) : NULL;
}

static errint_t decode_e(const struct efs_codec *codec, const struct efs_shard_view *shard, uint8_t *e,
                         struct efs_codec_scratch *scratch)
{
    return codec->decode(codec->decoder_new ? scratch->decoder[shard->codec] : NULL, shard->e, shard->e_bytes, e,
                         shard->elements);
}

errint_t efs_shard_exponents(const struct efs_shard_view *shard, uint8_t *e, struct efs_codec_scratch *scratch)
{
    const struct efs_codec *codec = codec_that_fits(shard);
    return codec && shard->format != EFS_FORMAT_BYTES ? decode_e(codec, shard, e, scratch) : -EUCLEAN;
}

errint_t efs_shard_decode(const struct efs_shard_view *shard, size_t first, size_t count, void *dst, bool stream,
                          struct efs_codec_scratch *scratch)
{
    if (first > shard->elements || count > shard->elements - first)
        return -EINVAL;
    const struct efs_codec *codec = codec_that_fits(shard);
    if (!codec)
        return -EUCLEAN;
    if (count == 0)
        return 0;
    efs_tsan_reads(shard->e, shard->e_bytes);
    efs_tsan_writes(dst, count * (shard->format == EFS_FORMAT_BYTES ? 1 : efs_format_bytes(shard->format)));
    if (codec->decode_range) {
        void *decoder = scratch ? scratch->decoder[shard->codec] : NULL;
        if (codec->decoder_new && !decoder && !(decoder = efs_codec_thread_memory()))
            return -ENOMEM;
        return codec->decode_range(decoder, shard, first, count, dst, stream);
    }
    if (shard->elements > scratch->shard_elements)
        return -EINVAL;
    bool bytes = shard->format == EFS_FORMAT_BYTES;
    if (bytes && count == shard->elements)
        return decode_e(codec, shard, dst, scratch);
    errint_t rc = decode_e(codec, shard, scratch->e, scratch);
    if (rc < 0)
        return rc;
    if (bytes)
        memcpy(dst, scratch->e + first, count);
    else
        merge_range(shard, scratch->e, first, count, dst, scratch);
    return 0;
}
