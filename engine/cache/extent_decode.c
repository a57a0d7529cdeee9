/* SPDX-License-Identifier: Apache-2.0 */
/* extent_decode.c - decodes an extent's chunks to raw bytes; each chunk is checked before its first use. */
#include "extent.h"
#include "local.h"
#include "stats.h"

#include "kernels.h"

#include <errno.h>
#include <string.h>

/* A shard, with its chunks in memory; NULL: it has no such chunk. */
static struct efs_shard_view shard_view(const struct efs *fs, uint32_t object_number, uint32_t shard, const uint8_t *e,
                                        const uint8_t *sm)
{
    const struct efs_disk_shard *s = &fs->store->shards[shard];
    const struct efs_disk_object *object = &fs->store->objects[object_number];
    return (struct efs_shard_view){
        .format = (enum efs_format)object->format,
        .codec = s->codec,
        .elements = efs_store_shard_elements(fs->store, object, shard),
        .e = e,
        .sm = sm,
        .e_bytes = s->e_bytes,
        .sm_bytes = s->sm_bytes,
    };
}

static struct efs_shard_view extent_shard_view(const struct efs *fs, const struct efs_extent *x, uint32_t object,
                                               uint32_t shard)
{
    const struct efs_disk_shard *s = &fs->store->shards[shard];
    return shard_view(fs, object, shard, efs_extent_e(fs, x, s), efs_extent_sm(fs, x, s));
}

/* Counts and logs a damaged chunk; the next use reads its extent again: memory or the bus may have damaged it. */
static void shard_damaged(struct efs *fs, struct efs_extent *x, uint32_t object, uint32_t shard, bool sm,
                          const char *how)
{
    char place_text[1500];
    efs_store_name_chunk(fs->store, object, shard, sm, place_text, sizeof(place_text));
    efs_log(fs, EFS_LOG_ERROR, "%s: %s", place_text, how);
    efs_count(fs->stats, chunks_damaged, 1);
    const struct efs_disk_shard *s = &fs->store->shards[shard];
    if (fs->local)
        efs_local_forget(fs->local, sm ? s->sm_offset : s->e_offset, sm ? s->sm_bytes : s->e_bytes);
    if (!x)
        return;
    efs_lock(fs);
    x->discard = true;
    efs_unlock(fs);
}

/* Checks the chunks of a shard: of an extent that is in memory once, before the first use; NULL: of none. */
static errint_t shard_check(struct efs *fs, struct efs_extent *x, uint32_t object, uint32_t shard,
                            const struct efs_shard_view *v)
{
    uint64_t bit = x ? 1ull << (shard - x->shard_first) : 0;
    if (x && atomic_load_explicit(&x->checked, memory_order_acquire) & bit)
        return 0;
    errint_t rc = v->e ? efs_store_check_chunk(fs->store, shard, false, v->e) : 0;
    bool sm = rc == 0 && v->sm;
    if (sm)
        rc = efs_store_check_chunk(fs->store, shard, true, v->sm);
    if (rc < 0)
        shard_damaged(fs, x, object, shard, sm,
                      fs->store->plain ? "the bytes differ from those of the first read; restore the file from a copy"
                                       : "checksum differs; restore the store from a copy");
    else if (x)
        atomic_fetch_or_explicit(&x->checked, bit, memory_order_release);
    return rc;
}

errint_t efs_extent_check(struct efs *fs, uint32_t extent, uint32_t shard)
{
    struct efs_extent *x = &fs->extents->at[extent];
    struct efs_shard_view v = extent_shard_view(fs, x, x->object, x->shard_first + shard);
    return shard_check(fs, x, x->object, x->shard_first + shard, &v);
}

bool efs_extent_checked(const struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    uint64_t all = x->shard_count < 64 ? (1ull << x->shard_count) - 1 : UINT64_MAX;
    return atomic_load_explicit(&x->checked, memory_order_acquire) == all;
}

bool efs_extent_shard_checked(const struct efs *fs, uint32_t extent, uint32_t shard)
{
    return atomic_load_explicit(&fs->extents->at[extent].checked, memory_order_relaxed) & 1ull << shard;
}

/* Decodes bytes [begin, begin + bytes) of a shard. The range may start or end inside an element, which is then decoded
 * into a buffer and copied in part. */
static errint_t shard_decode_bytes(const struct efs_shard_view *v, uint64_t begin, size_t bytes, uint8_t *dst,
                                   bool stream, struct efs_codec_scratch *scratch)
{
    size_t size = efs_format_bytes(v->format);
    while (bytes > 0) {
        size_t in = (size_t)(begin % size), n = bytes / size * size;
        uint64_t element = begin / size;
        errint_t rc;
        if (in == 0 && n > 0) {
            rc = efs_shard_decode(v, (size_t)element, n / size, dst, stream, scratch);
        } else {
            uint8_t one[8];
            n = size - in < bytes ? size - in : bytes;
            rc = efs_shard_decode(v, (size_t)element, 1, one, false, scratch);
            memcpy(dst, one + in, n);
        }
        if (rc < 0)
            return rc;
        begin += n;
        dst += n;
        bytes -= n;
    }
    return 0;
}

struct efs_piece efs_piece_at(const struct efs *fs, uint32_t object, uint64_t at, size_t bytes)
{
    const struct efs_disk_object *o = &fs->store->objects[object];
    for (; at >= o->bytes; o++, object++)
        at -= o->bytes;
    uint64_t shard_bytes = efs_object_shard_bytes(fs, object), in = at % shard_bytes, left = shard_bytes - in;
    left = left < o->bytes - at ? left : o->bytes - at;
    return (struct efs_piece){object, o->shard_first + (uint32_t)(at / shard_bytes), at, in,
                              bytes < left ? bytes : (size_t)left};
}

static errint_t piece_decode(struct efs *fs, struct efs_extent *x, const struct efs_piece *p,
                             const struct efs_shard_view *v, void *dst, bool stream, struct efs_codec_scratch *scratch)
{
    errint_t rc = shard_decode_bytes(v, p->in, p->bytes, dst, stream, scratch);
    if (rc == -EUCLEAN)
        shard_damaged(fs, x, p->object, p->shard, false, "code is not well formed; restore the store from a copy");
    return rc;
}

static errint_t count_decoded(struct efs *fs, uint64_t start_ns, size_t bytes, errint_t rc)
{
    efs_count(fs->stats, decode_ns, efs_now_ns() - start_ns);
    efs_count(fs->stats, decoded_bytes, rc == 0 ? bytes : 0);
    return rc;
}

errint_t efs_extent_decode(struct efs *fs, uint32_t extent, uint32_t object, uint64_t begin, size_t bytes, void *dst,
                           bool stream, struct efs_codec_scratch *scratch)
{
    struct efs_extent *x = &fs->extents->at[extent];
    uint64_t start_ns = efs_now_ns();
    errint_t rc = 0;
    struct efs_piece p = {.object = object, .at = begin};
    for (size_t done = 0; done < bytes && rc == 0; done += p.bytes) {
        p = efs_piece_at(fs, p.object, p.at + p.bytes, bytes - done);
        struct efs_shard_view v = extent_shard_view(fs, x, p.object, p.shard);
        if ((rc = shard_check(fs, x, p.object, p.shard, &v)) == 0)
            rc = piece_decode(fs, x, &p, &v, (uint8_t *)dst + done, stream, scratch);
    }
    return count_decoded(fs, start_ns, bytes, rc);
}

errint_t efs_shard_decode_from(struct efs *fs, const struct efs_piece *piece, const uint8_t *e, const uint8_t *sm,
                               bool check, void *dst, struct efs_codec_scratch *scratch)
{
    uint64_t start_ns = efs_now_ns();
    struct efs_shard_view v = shard_view(fs, piece->object, piece->shard, e, sm);
    errint_t rc = check ? shard_check(fs, NULL, piece->object, piece->shard, &v) : 0;
    if (rc == 0)
        rc = piece_decode(fs, NULL, piece, &v, dst, false, scratch);
    return count_decoded(fs, start_ns, piece->bytes, rc);
}
