/* SPDX-License-Identifier: Apache-2.0 */
/*
 * demote_chunks.c - see demote_internal.h: chunks from decoded bytes (ZipMoE 3.4: a demotion reads nothing). Splitting
 * gives the SM-chunk, encoding the E-chunk; both must have the checksums of the store, else the cache state drops the
 * expert.
 */
#include "demote_internal.h"
#include "stats.h"

#include "codec_table.h"
#include "hash.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Copies a chunk and zeros the bytes up to the start of the next one, as in the store. A chunk that does not start at a
 * multiple of EFS_CHUNK_ALIGN, in a checkpoint that is served in place, has no such bytes. */
static void demotion_store_chunk(uint8_t *to, const uint8_t *from, size_t bytes)
{
    memcpy(to, from, bytes);
    if ((uintptr_t)to % EFS_CHUNK_ALIGN == 0)
        memset(to + bytes, 0, efs_chunk_up(bytes) - bytes);
}

bool efs_demotion_make_shard(struct efs_demotion *d)
{
    struct efs *fs = d->fs;
    const struct efs_extent *x = &fs->extents->at[d->extent];
    const struct efs_disk_shard *s = &fs->store->shards[x->shard_first + d->shard];
    const struct efs_disk_object *object = &fs->store->objects[x->object];
    enum efs_format format = (enum efs_format)object->format;
    size_t n = efs_store_shard_elements(fs->store, object, x->shard_first + d->shard);
    size_t e_span = d->components & EFS_COMPONENT_E ? efs_extent_span(fs, x, EFS_COMPONENT_E) : 0;
    struct efs_shard_coded coded = {.sm_bytes = efs_sm_bytes(format, n)};
    if (!(d->components & EFS_COMPONENT_E) && format != EFS_FORMAT_BYTES)
        efs_split(format, d->raw, n, d->e, d->sm);
    else if (efs_shard_encode(format, efs_codec_of(s->codec)->choice, d->raw, n, d->e, d->sm, &coded, d->scratch) < 0 ||
             coded.codec != s->codec)
        return false;
    if (d->components & EFS_COMPONENT_E) {
        if (coded.e_bytes != s->e_bytes || efs_hash(d->e, s->e_bytes) != s->e_hash)
            return false;
        if (s->e_bytes)
            demotion_store_chunk(d->coded + efs_extent_offset(fs, x, s, EFS_COMPONENT_E), d->e, s->e_bytes);
    }
    if (d->components & EFS_COMPONENT_SM) {
        if (coded.sm_bytes != s->sm_bytes || efs_hash(d->sm, s->sm_bytes) != s->sm_hash)
            return false;
        if (s->sm_bytes)
            demotion_store_chunk(d->coded + e_span + efs_extent_offset(fs, x, s, EFS_COMPONENT_SM), d->sm, s->sm_bytes);
    }
    return true;
}

/* Copies a component to the chunk pool. false: it has no pages. */
static bool demotion_copy(struct efs *fs, const struct efs_extent *x, unsigned component, uint8_t *to,
                          const uint8_t *from)
{
    size_t bytes = efs_extent_span(fs, x, component);
    if (efs_sys_populate(to, bytes, NULL) != 0)
        return false;
    memcpy(to, from, bytes);
    return true;
}

bool efs_demotion_publish(struct efs_demotion *d)
{
    struct efs *fs = d->fs;
    struct efs_extent *x = &fs->extents->at[d->extent];
    size_t e_span = d->components & EFS_COMPONENT_E ? efs_extent_span(fs, x, EFS_COMPONENT_E) : 0;
    efs_lock(fs);
    unsigned components = fs->closing || d->cancelled ? 0 : efs_demotion_missing(x) & d->components;
    bool have = components && efs_extent_alloc(fs, d->extent, components, EFS_LOAD_DEMAND);
    bool retry = components && !have && (fs->account.bytes[EFS_ACCOUNT_RETURNING] != 0 || fs->growing);
    efs_unlock(fs);
    if (!have)
        return !retry;
    bool good =
        (!(components & EFS_COMPONENT_E) || demotion_copy(fs, x, EFS_COMPONENT_E, x->e.data, d->coded)) &&
        (!(components & EFS_COMPONENT_SM) || demotion_copy(fs, x, EFS_COMPONENT_SM, x->sm.data, d->coded + e_span));
    efs_count(fs->stats, recoded_bytes, good ? efs_extent_span(fs, x, components) : 0);
    efs_lock(fs);
    efs_extent_loaded(fs, d->extent, components, good ? 0 : -EAGAIN);
    efs_unlock(fs);
    return true;
}

bool efs_demotion_prepare(struct efs_demotion *d)
{
    uint32_t n = d->fs->store->sb.shard_elements;
    size_t e = efs_shard_e_bound(n), sm = 0;
    if (d->idle)
        return true;
    for (unsigned f = 0; f < EFS_FORMAT_COUNT; f++)
        if (efs_shard_sm_bound((enum efs_format)f, n) > sm)
            sm = efs_shard_sm_bound((enum efs_format)f, n);
    efs_lock(d->fs);
    d->reserved = d->reserved || efs_charge_fixed(d->fs,
                                                  e + sm + d->raw_bytes + d->extent_bytes + EFS_STACK_TOUCHED_BYTES +
                                                      efs_codec_scratch_encoding_bytes(n),
                                                  d->largest_bytes);
    efs_unlock(d->fs);
    if (!d->reserved)
        return false;
    d->e = d->e ? d->e : efs_sys_malloc(e);
    d->sm = d->sm ? d->sm : efs_sys_malloc(sm);
    d->raw = d->raw ? d->raw : efs_sys_malloc(d->raw_bytes);
    d->coded = d->coded ? d->coded : efs_sys_aligned_alloc(EFS_CHUNK_ALIGN, d->extent_bytes);
    return d->e && d->sm && d->raw && d->coded && (d->scratch || efs_codec_scratch_new(n, &d->scratch) == 0) &&
           efs_idle_start(&d->idle) == 0;
}

void efs_demotion_size_buffers(struct efs_demotion *d, uint32_t expert)
{
    const struct efs *fs = d->fs;
    uint64_t bytes = efs_memfile_bytes(fs, expert);
    d->largest_bytes = bytes > d->largest_bytes ? bytes : d->largest_bytes;
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++) {
        const struct efs_extent *x = &fs->extents->at[i];
        bytes = efs_extent_span(fs, x, EFS_BOTH);
        d->extent_bytes = bytes > d->extent_bytes ? bytes : d->extent_bytes;
        bytes = efs_object_shard_bytes(fs, x->object);
        d->raw_bytes = bytes > d->raw_bytes ? bytes : d->raw_bytes;
    }
}

void efs_demotion_free_buffers(struct efs_demotion *d)
{
    efs_codec_scratch_free(d->scratch);
    free(d->coded);
    free(d->raw);
    free(d->sm);
    free(d->e);
}
