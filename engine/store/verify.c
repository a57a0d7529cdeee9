/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c - reads and checks every chunk and reports all damaged ones. */
#include "checks.h"
#include "hash.h"
#include "kernels.h"
#include "store.h"
#include "sweep.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct verify {
    const struct efs_store *store;
    bool decode;
    efs_damage_fn *damage;
    void *damage_arg;
    pthread_mutex_t lock; /* guards damaged_chunks and read_error, and serializes calls of damage() */
    uint64_t damaged_chunks;
    errint_t read_error; /* the first one other than -EUCLEAN; or 0 */
};

static void verify_report(struct verify *v, const struct efs_sweep_shard *shard, bool sm, errint_t rc, const char *what)
{
    char place[1536], line[2048];
    efs_store_name_chunk(v->store, shard->object, shard->shard, sm, place, sizeof(place));
    snprintf(line, sizeof(line), "%s: %s", place, what);
    pthread_mutex_lock(&v->lock);
    v->damaged_chunks++;
    if (rc != -EUCLEAN && v->read_error == 0)
        v->read_error = rc;
    if (v->damage)
        v->damage(v->damage_arg, line);
    pthread_mutex_unlock(&v->lock);
}

static bool padding_is_zero(const uint8_t *chunk, size_t bytes)
{
    for (; bytes % EFS_CHUNK_ALIGN != 0; bytes++)
        if (chunk[bytes] != 0)
            return false;
    return true;
}

/* false: the chunk is damaged and was reported. */
static bool chunk_is_well(struct verify *v, const struct efs_sweep_shard *shard, bool sm)
{
    const uint8_t *chunk = sm ? shard->view.sm : shard->view.e;
    size_t bytes = sm ? shard->view.sm_bytes : shard->view.e_bytes;
    errint_t error = sm ? shard->sm_error : shard->e_error;
    if (bytes == 0)
        return true;
    if (error)
        verify_report(v, shard, sm, error, strerror(-error));
    else if ((error = efs_store_check_chunk(v->store, shard->shard, sm, chunk)))
        verify_report(v, shard, sm, error, "checksum differs");
    else if (!v->store->plain && !padding_is_zero(chunk, bytes))
        verify_report(v, shard, sm, -EUCLEAN, "padding is not zero");
    else
        return true;
    return false;
}

/* Reads the page checksums of a shard whose chunks are well, and compares them; memory: two pages more than they take,
 * aligned. */
static void verify_checks(struct verify *v, const struct efs_sweep_shard *shard, uint8_t *memory, uint8_t *made)
{
    const struct efs_disk_shard *s = &v->store->shards[shard->shard];
    uint64_t offset = s->checks ? efs_checks_offset(s) : 0;
    uint32_t bytes = s->checks ? efs_checks_bytes(s) : 0;
    errint_t rc = efs_store_read(v->store, efs_page_down(offset), memory, efs_page_span(offset, offset + bytes));
    efs_checks_make(s, shard->view.e, shard->view.sm, made);
    if (rc < 0)
        verify_report(v, shard, true, rc, strerror(-rc));
    else if (memcmp(memory + offset % EFS_ALIGN, made, bytes) != 0)
        verify_report(v, shard, true, -EUCLEAN, "its page checksums differ");
}

static errint_t verify_shard(void *arg, const struct efs_sweep_shard *shard, struct efs_codec_scratch *scratch,
                             uint8_t *raw, uint8_t *other, struct efs_error *err)
{
    struct verify *v = arg;
    const struct efs_shard_view *view = &shard->view;
    (void)err;
    bool well = chunk_is_well(v, shard, false);
    well = chunk_is_well(v, shard, true) && well;
    if (well && v->store->shards[shard->shard].checks)
        verify_checks(v, shard, other, raw);
    if (!well || !v->decode || v->store->plain)
        return 0;
    bool sm = view->e_bytes == 0;
    if (efs_shard_decode(view, 0, view->elements, raw, false, scratch) < 0)
        verify_report(v, shard, sm, -EUCLEAN, "does not decode");
    else if (efs_hash(raw, shard->raw_bytes) != v->store->shards[shard->shard].raw_hash)
        verify_report(v, shard, sm, -EUCLEAN, "decodes to other bytes than were packed (checksum differs)");
    return 0;
}

errint_t efs_store_verify(struct efs_store *store, bool decode, unsigned threads, efs_progress_fn *progress,
                          efs_damage_fn *damage, void *arg, uint64_t *damaged_chunks, struct efs_error *err)
{
    struct verify v = {.store = store, .decode = decode, .damage = damage, .damage_arg = arg};
    pthread_mutex_init(&v.lock, NULL);
    const struct efs_sweep sweep = {.store = store,
                                    .each = verify_shard,
                                    .arg = &v,
                                    .threads = threads,
                                    .progress = progress,
                                    .progress_arg = arg,
                                    .phase = "verifying"};
    errint_t rc = efs_sweep_run(&sweep, err);
    pthread_mutex_destroy(&v.lock);
    *damaged_chunks = v.damaged_chunks;
    if (rc < 0 || v.damaged_chunks == 0)
        return rc;
    if (v.read_error && store->backed_said && *store->backed_said)
        return efs_fail(err, v.read_error, "%llu damaged chunk%s: %s", (unsigned long long)v.damaged_chunks,
                        v.damaged_chunks == 1 ? "" : "s", store->backed_said);
    return efs_fail(err, v.read_error ? v.read_error : -EUCLEAN,
                    "%s: %llu damaged chunk%s\nhint: copy or download it again, or pack the checkpoint again",
                    store->path, (unsigned long long)v.damaged_chunks, v.damaged_chunks == 1 ? "" : "s");
}
