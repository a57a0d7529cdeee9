/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_rows.c - efs_tensor_rows(): rows of an expert's matrix as the checkpoint has them, in place where possible. */
#include "ffn.h"

#include <errno.h>
#include <string.h>

/* The shards of a coded tensor: how they are split, and bytes per element. Sizes may come from a mount, so all are
 * checked. -EUCLEAN. */
static errint_t shard_format(const struct efs_tensor *t, enum efs_format *format, size_t *width)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < t->shard_count; i++) {
        elements += t->shards[i].elements;
        if (t->shards[i].elements > t->shard_elements ||
            (i + 1 < t->shard_count && t->shards[i].elements != t->shard_elements))
            return -EUCLEAN;
    }
    *format = elements == t->bytes ? EFS_FORMAT_BYTES : efs_object_format(t->dtype, EFS_CHOOSE_AUTO);
    *width = *format == EFS_FORMAT_BYTES ? 1 : efs_format_bytes(*format);
    return *width > 0 && t->bytes == elements * *width && t->shard_elements > 0 ? 0 : -EUCLEAN;
}

static bool is_raw(const struct efs_coded_shard *s)
{
    return s->codec == EFS_CODEC_NONE && s->sm && !s->e && s->sm_bytes == s->elements;
}

/* Bytes that are adjacent in memory from offset on, at most `bytes`: shards are adjacent within an extent. 0: coded. */
static size_t raw_span(const struct efs_tensor *t, uint64_t offset, size_t bytes)
{
    uint64_t shard = offset / t->shard_elements, skip = offset % t->shard_elements, span = 0;
    for (; shard < t->shard_count && span < bytes + skip && is_raw(&t->shards[shard]); shard++) {
        if (span > 0 && t->shards[shard].sm != t->shards[shard - 1].sm + t->shards[shard - 1].sm_bytes)
            break;
        span += t->shards[shard].sm_bytes;
    }
    return span <= skip ? 0 : span - skip < bytes ? (size_t)(span - skip) : bytes;
}

/* Copies and decodes bytes [offset, offset + bytes), whole elements, to dst. */
static errint_t decode_bytes(const struct efs_tensor *t, enum efs_format format, size_t width, uint64_t offset,
                             size_t bytes, uint8_t *dst)
{
    struct efs_codec_scratch *scratch = NULL;
    errint_t rc = 0;
    uint64_t first = offset / width, left = bytes / width;
    while (rc == 0 && left > 0) {
        const struct efs_coded_shard *s = &t->shards[first / t->shard_elements];
        if (s->codec > EFS_CODEC_CASCADE && !scratch && (rc = efs_codec_scratch_new(t->shard_elements, &scratch)) < 0)
            break;
        const size_t at = (size_t)(first % t->shard_elements), most = s->elements - at;
        const size_t count = left < most ? (size_t)left : most;
        const struct efs_shard_view view = efs_ffn_shard_view(s, format);
        rc = efs_shard_decode(&view, at, count, dst, false, scratch);
        dst += count * width;
        first += count;
        left -= count;
    }
    efs_codec_scratch_free(scratch);
    return rc;
}

errint_t efs_tensor_rows(const struct efs_tensor *t, uint64_t row, uint32_t *count, void *scratch, const void **rows,
                         struct efs_error *err)
{
    const uint64_t row_bytes = t->dims == 2 && t->shape[0] > 0 ? t->bytes / t->shape[0] : 0, offset = row * row_bytes;
    enum efs_format format;
    size_t width;
    if (row_bytes == 0 || row_bytes * t->shape[0] != t->bytes || *count == 0 || row >= t->shape[0] ||
        *count > t->shape[0] - row)
        return efs_fail(err, -EINVAL, "%s: rows %llu to %llu of a tensor without them", t->name,
                        (unsigned long long)row, (unsigned long long)(row + *count));
    *rows = t->data ? (const uint8_t *)t->data + offset : scratch;
    if (t->data)
        return 0;
    errint_t rc = shard_format(t, &format, &width);
    if (rc == 0 && row_bytes % width != 0)
        rc = -EUCLEAN;
    if (rc < 0)
        return efs_fail(err, rc, "%s: its shards do not add up to the matrix", t->name);
    if (format == EFS_FORMAT_BYTES && is_raw(&t->shards[offset / t->shard_elements])) {
        const struct efs_coded_shard *s = &t->shards[offset / t->shard_elements];
        const size_t whole = raw_span(t, offset, *count * row_bytes) / row_bytes;
        *count = whole > 0 ? (uint32_t)whole : 1;
        if (whole > 0)
            *rows = s->sm + offset % t->shard_elements;
        if (whole > 0)
            return 0;
    }
    rc = decode_bytes(t, format, width, offset, *count * row_bytes, scratch);
    return rc < 0 ? efs_fail(err, rc, "%s: a shard cannot be decoded: %s", t->name, strerror(-rc)) : 0;
}
