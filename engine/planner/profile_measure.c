/* SPDX-License-Identifier: Apache-2.0 */
/* profile_measure.c - makes a profile: sizes by the store's index; measured disk rates, and decoding on all workers in
 * parallel, so that they share memory bandwidth as when a store is served. */
#include "expertfs-profile-private.h"
#include "expertfs-private.h"

#include "expertfs-clock-private.h"
#include "codec.h"
#include "container.h"
#include "kernels.h"
#include "parallel.h"
#include "sys.h"
#include "store.h"
#include "stats.h"
#include "queue.h"
#include "arena.h"
#include "workers.h"

#include <errno.h>
#include <stdio.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Consecutive shards of an object that are adjacent on disk, and the memory that they are read to. */
struct efs_measured_span {
    uint32_t object, first, count;
    struct efs_block e, sm;
};

struct efs_measure {
    const struct efs_store *store;
    struct efs_profile *profile;
    struct efs_arena arena;
    struct efs_io_queue *io;
    struct efs_stats_counters stats;
    uint32_t *objects; /* objects of experts, shuffled */
    uint32_t object_count, object_next;
    struct efs_measured_span *spans;
    uint32_t span_count;
    pthread_mutex_t lock; /* guards pending, read_error */
    pthread_cond_t idle;
    uint32_t pending;
    errint_t read_error;
};

/* ---- the disk ---- */

#define SPAN_BYTES (8u << 20) /* limit of coded bytes read of an object */
#define LATENCY_READS 64

struct read {
    struct efs_io request;
    struct efs_measure *measure;
};

static void read_done(struct efs_io *request, errint_t error)
{
    struct read *r = EFS_CONTAINER(request, struct read, request);
    struct efs_measure *m = r->measure;
    pthread_mutex_lock(&m->lock);
    if (error < 0 && m->read_error == 0)
        m->read_error = error;
    if (--m->pending == 0)
        pthread_cond_signal(&m->idle);
    pthread_mutex_unlock(&m->lock);
    free(r);
}

static errint_t measure_submit(struct efs_measure *m, const struct efs_block *block, uint64_t offset)
{
    struct read *r = efs_sys_calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->measure = m;
    r->request = (struct efs_io){.offset = offset,
                                 .bytes = (size_t)block->granules * EFS_GRANULE,
                                 .data = block->data,
                                 .segment = block->segment,
                                 .complete = read_done};
    pthread_mutex_lock(&m->lock);
    m->pending++;
    pthread_mutex_unlock(&m->lock);
    efs_io_submit(m->io, &r->request);
    return 0;
}

static errint_t measure_wait(struct efs_measure *m)
{
    pthread_mutex_lock(&m->lock);
    while (m->pending > 0)
        pthread_cond_wait(&m->idle, &m->lock);
    errint_t error = m->read_error;
    pthread_mutex_unlock(&m->lock);
    return error;
}

/* Whether a chunk is adjacent to the preceding bytes, which end at *end (0: none), with padding below EFS_ALIGN;
 * advances *end. An empty chunk is if that of the first shard is empty, too. */
static bool span_append_chunk(uint64_t offset, uint32_t bytes, uint32_t first_bytes, uint64_t *end)
{
    if (bytes == 0 || first_bytes == 0)
        return bytes == first_bytes;
    if (*end != 0 && (offset < *end || offset - *end >= EFS_ALIGN))
        return false;
    *end = offset + bytes;
    return true;
}

/* Finds the longest run of adjacent shards from the object's first, up to SPAN_BYTES; *e, *sm: bytes of the pages with
 * its chunks. false: the object has no chunks. */
static bool span_lay(const struct efs_store *store, uint32_t object, struct efs_measured_span *span, uint64_t *e,
                     uint64_t *sm)
{
    const struct efs_disk_object *o = &store->objects[object];
    const struct efs_disk_shard *first = &store->shards[o->shard_first];
    uint64_t e_end = 0, sm_end = 0;
    *span = (struct efs_measured_span){.object = object, .first = o->shard_first};
    *e = *sm = 0;
    for (; span->count < o->shard_count; span->count++) {
        const struct efs_disk_shard *s = first + span->count;
        if (!span_append_chunk(s->e_offset, s->e_bytes, first->e_bytes, &e_end) ||
            !span_append_chunk(s->sm_offset, s->sm_bytes, first->sm_bytes, &sm_end))
            break;
        uint64_t e_span = first->e_bytes ? efs_page_span(first->e_offset, e_end) : 0;
        uint64_t sm_span = first->sm_bytes ? efs_page_span(first->sm_offset, sm_end) : 0;
        if (span->count > 0 && e_span + sm_span > SPAN_BYTES)
            break;
        *e = e_span;
        *sm = sm_span;
    }
    return span->count > 0 && *e + *sm > 0;
}

static void measure_drop(struct efs_measure *m)
{
    for (uint32_t i = 0; i < m->span_count; i++) {
        efs_arena_free(&m->arena, &m->spans[i].e);
        efs_arena_free(&m->arena, &m->spans[i].sm);
    }
    m->span_count = 0;
}

static errint_t measure_round(struct efs_measure *m, uint64_t *bytes)
{
    errint_t rc = 0;
    measure_drop(m);
    for (uint32_t tried = 0; tried < m->object_count && rc == 0; tried++) {
        struct efs_measured_span *span = &m->spans[m->span_count];
        uint64_t e, sm;
        uint32_t object = m->objects[m->object_next++ % m->object_count];
        if (!span_lay(m->store, object, span, &e, &sm))
            continue;
        const struct efs_disk_shard *first = &m->store->shards[span->first];
        if ((e && !efs_arena_alloc(&m->arena, e, false, &span->e)) ||
            (sm && !efs_arena_alloc(&m->arena, sm, true, &span->sm))) {
            efs_arena_free(&m->arena, &span->e);
            break;
        }
        m->span_count++;
        if (e)
            rc = measure_submit(m, &span->e, efs_page_down(first->e_offset));
        if (rc == 0 && sm)
            rc = measure_submit(m, &span->sm, efs_page_down(first->sm_offset));
        *bytes += e + sm;
    }
    errint_t error = measure_wait(m);
    return rc < 0 ? rc : error;
}

/* Reads for about this time, at least all spans once. */
static errint_t measure_disk(struct efs_measure *m, double seconds, double *bytes_per_second)
{
    uint64_t bytes = 0, began = efs_now_ns();
    errint_t rc = 0;
    do
        rc = measure_round(m, &bytes);
    while (rc == 0 && efs_now_ns() - began < (uint64_t)(seconds * 1e9));
    *bytes_per_second = (double)bytes * 1e9 / (double)(efs_now_ns() - began + 1);
    return rc;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Median time of single page reads at the start of objects, with no other read in flight. */
static errint_t measure_latency(struct efs_measure *m, double seconds)
{
    uint64_t times[LATENCY_READS], end = efs_now_ns() + (uint64_t)(seconds * 1e9);
    struct efs_block block = {0};
    uint32_t count = 0;
    errint_t rc = 0;
    measure_drop(m);
    if (!efs_arena_alloc(&m->arena, EFS_GRANULE, false, &block))
        return -ENOMEM;
    while (rc == 0 && count < LATENCY_READS && (count == 0 || efs_now_ns() < end)) {
        const struct efs_disk_object *o = &m->store->objects[m->objects[m->object_next++ % m->object_count]];
        const struct efs_disk_shard *shard = &m->store->shards[o->shard_first];
        uint64_t began = efs_now_ns();
        rc = measure_submit(m, &block, efs_page_down(shard->sm_bytes ? shard->sm_offset : shard->e_offset));
        if (rc == 0)
            rc = measure_wait(m);
        times[count++] = efs_now_ns() - began;
    }
    efs_arena_free(&m->arena, &block);
    qsort(times, count, sizeof(*times), compare_u64);
    m->profile->read_latency_ns = (double)times[count / 2];
    return rc;
}

/* ---- decoding ---- */

#define TARGET_BYTES (16u << 20) /* target of a worker, used as a ring: larger than a core's caches */

/* A worker, which decodes the read spans cyclically from span `start` until end_ns. */
struct decoder {
    const struct efs_measure *m;
    uint64_t end_ns, ran_ns, raw_bytes, shards;
    uint32_t start;
    uint8_t *target;
};

static uint64_t shard_room(const struct efs_store *store)
{
    return efs_page_up((uint64_t)store->sb.shard_elements * 4); /* 4: the largest element of all formats */
}

/* Decodes the shards of a span into target from *at, wrapping around at its end. */
static errint_t decoder_decode(struct decoder *d, const struct efs_measured_span *span, size_t *at,
                               struct efs_codec_scratch *scratch)
{
    const struct efs_store *store = d->m->store;
    const struct efs_disk_object *object = &store->objects[span->object];
    const struct efs_disk_shard *first = &store->shards[span->first];
    uint64_t room = shard_room(store), target = room > TARGET_BYTES ? room : TARGET_BYTES;
    for (uint32_t i = 0; i < span->count; i++) {
        const struct efs_disk_shard *s = first + i;
        const uint8_t *e = s->e_bytes ? span->e.data + (s->e_offset - efs_page_down(first->e_offset)) : NULL;
        const uint8_t *sm = s->sm_bytes ? span->sm.data + (s->sm_offset - efs_page_down(first->sm_offset)) : NULL;
        const struct efs_shard_view view = {.format = (enum efs_format)object->format,
                                            .codec = s->codec,
                                            .elements = efs_store_shard_elements(store, object, span->first + i),
                                            .e = e,
                                            .sm = sm,
                                            .e_bytes = s->e_bytes,
                                            .sm_bytes = s->sm_bytes};
        if (*at + room > target)
            *at = 0;
        errint_t rc = efs_shard_decode(&view, 0, view.elements, d->target + *at, true, scratch);
        if (rc < 0)
            return rc;
        *at += room;
        d->raw_bytes += (uint64_t)view.elements * efs_format_bytes(view.format);
        d->shards++;
    }
    return 0;
}

static errint_t decoder_run(void *arg, struct efs_error *err)
{
    struct decoder *d = arg;
    struct efs_codec_scratch *scratch;
    size_t at = 0;
    (void)err;
    errint_t rc = efs_codec_scratch_new(d->m->store->sb.shard_elements, &scratch);
    if (rc < 0)
        return rc;
    for (uint32_t i = d->start; rc == 0 && i < d->start + d->m->span_count; i++) /* warm-up: touches the target */
        rc = decoder_decode(d, &d->m->spans[i % d->m->span_count], &at, scratch);
    d->raw_bytes = d->shards = 0;
    uint64_t began = efs_now_ns();
    for (uint32_t i = d->start; rc == 0 && (d->shards == 0 || efs_now_ns() < d->end_ns); i++)
        rc = decoder_decode(d, &d->m->spans[i % d->m->span_count], &at, scratch);
    d->ran_ns = efs_now_ns() - began;
    efs_codec_scratch_free(scratch);
    return rc;
}

static errint_t measure_decode(struct efs_measure *m, unsigned workers, double seconds, double *bytes_per_second)
{
    struct efs_parallel parallel;
    struct decoder *decoders = efs_sys_calloc(workers, sizeof(*decoders));
    uint64_t room = shard_room(m->store), raw = 0, ran = 0, end = efs_now_ns() + (uint64_t)(seconds * 1e9);
    errint_t rc = decoders ? 0 : -ENOMEM;
    for (unsigned i = 0; rc == 0 && i < workers; i++) {
        decoders[i] = (struct decoder){.m = m, .end_ns = end, .start = i * m->span_count / workers};
        decoders[i].target = efs_sys_aligned_alloc(EFS_ALIGN, room > TARGET_BYTES ? room : TARGET_BYTES);
        rc = decoders[i].target ? 0 : -ENOMEM;
    }
    efs_parallel_begin(&parallel, NULL, NULL);
    if (rc == 0)
        rc = efs_parallel_start(&parallel, "efs-profile", decoder_run, decoders, sizeof(*decoders), workers);
    if (rc < 0)
        efs_parallel_fail(&parallel, rc, "");
    rc = efs_parallel_end(&parallel, NULL, NULL, 0, NULL, NULL);
    for (unsigned i = 0; decoders && i < workers; i++) {
        free(decoders[i].target);
        raw += decoders[i].raw_bytes;
        ran += decoders[i].ran_ns;
    }
    free(decoders);
    *bytes_per_second = (double)raw * 1e9 / (double)(ran + 1);
    return rc;
}

#define POOL_BYTES (64u << 20) /* memory for the reads of a round */
#define ROUNDS 5               /* of reads and decodes, whose medians count */
#define ROUNDS_MIN 3           /* a slow disk may use up the time with these */

/* ---- sizes ---- */

#define PART_OF_EXPERT 25 /* a tensor counts if it has at least 1/25 of its expert's bytes */
#define SHARDS_MAX 256    /* EFS_TASK_MAX_SHARDS */

struct sizes {
    uint64_t raw, e, sm, e_exact, exponent_raw;
    uint64_t large, large_shards; /* tensors that count, and their shards */
};

static void sums_add_expert(const struct efs_store *store, const struct efs_disk_group *group, struct sizes *sums)
{
    uint64_t raw = 0;
    for (uint32_t o = group->object_first; o < group->object_first + group->object_count; o++)
        raw += store->objects[o].bytes;
    for (uint32_t o = group->object_first; o < group->object_first + group->object_count; o++) {
        const struct efs_disk_object *object = &store->objects[o];
        bool large = object->bytes >= raw / PART_OF_EXPERT;
        sums->large += large;
        sums->large_shards += large ? object->shard_count : 0;
        for (uint32_t s = object->shard_first; s < object->shard_first + object->shard_count; s++) {
            const struct efs_disk_shard *shard = &store->shards[s];
            uint32_t elements = efs_store_shard_elements(store, object, s);
            sums->e += efs_chunk_up(shard->e_bytes);
            sums->sm += efs_chunk_up(shard->sm_bytes);
            if (object->format != EFS_FORMAT_BYTES) {
                sums->e_exact += shard->e_bytes;
                sums->exponent_raw += elements;
            }
        }
        const struct efs_disk_shard *first = &store->shards[object->shard_first];
        sums->e += first->e_bytes ? EFS_ALIGN : 0; /* whole pages are read: on average half a page more at each end */
        sums->sm += first->sm_bytes ? EFS_ALIGN : 0;
    }
    sums->raw += raw;
}

/* Sets what the store's index gives: layers, experts, tensors, shards, sizes and rho; averages over the experts, of
 * which the store has at least one. */
static void profile_sizes(struct efs_store *store, struct efs_profile *p)
{
    struct sizes sums = {0};
    double n = store->expert_count;
    struct efs_store_info info;
    efs_store_info(store, &info);
    p->layers = (double)info.layers;
    p->experts = (double)info.layer_experts;
    for (uint32_t g = 0; g < store->expert_count; g++)
        sums_add_expert(store, &store->groups[g], &sums);
    p->full_bytes = (double)sums.raw / n;
    p->e_bytes = (double)sums.e / n;
    p->sm_bytes = (double)sums.sm / n;
    p->coded_bytes = p->e_bytes + p->sm_bytes;
    p->rho = sums.exponent_raw ? (double)sums.e_exact / (double)sums.exponent_raw : 0;
    p->tensors = (double)((sums.large + store->expert_count / 2) / store->expert_count);
    p->tensors = p->tensors < 1 ? 1 : p->tensors;
    p->shards = sums.large ? (double)((sums.large_shards + sums.large / 2) / sums.large) : 1;
    p->shards = p->shards < 1 ? 1 : p->shards > SHARDS_MAX ? SHARDS_MAX : p->shards;
}

/* ---- the measurement ---------------------------------------------------------------------------------------- */

static uint64_t measure_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static errint_t measure_list_objects(struct efs_measure *m)
{
    const struct efs_store *store = m->store;
    uint32_t n = 0;
    uint64_t random = store->sb.content_hash;
    for (uint32_t g = 0; g < store->expert_count; g++)
        n += store->groups[g].object_count;
    m->objects = efs_sys_calloc(n + 1u, sizeof(*m->objects));
    m->spans = efs_sys_calloc(n + 1u, sizeof(*m->spans));
    if (!m->objects || !m->spans)
        return -ENOMEM;
    for (uint32_t g = 0; g < store->expert_count; g++)
        for (uint32_t i = 0, o = store->groups[g].object_first; i < store->groups[g].object_count; i++, o++)
            if (store->objects[o].shard_count > 0)
                m->objects[m->object_count++] = o;
    for (uint32_t i = m->object_count; i > 1; i--) {
        uint32_t j = (uint32_t)(measure_random(&random) % i), other = m->objects[j];
        m->objects[j] = m->objects[i - 1];
        m->objects[i - 1] = other;
    }
    return m->object_count ? 0 : -ENOENT;
}

/* Computes u, v and c (ZipMoE 3.3) from sizes and rates. */
static void profile_derive(struct efs_profile *p)
{
    double chunks = p->tensors * p->shards;
    p->sm_read_ns = p->sm_bytes / p->tensors / p->disk_bytes_per_second * 1e9;
    p->e_read_ns = p->e_bytes / chunks / p->disk_bytes_per_second * 1e9;
    p->decode_ns = p->full_bytes / chunks / p->decode_bytes_per_second * 1e9;
}

static int compare_rates(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the rates, which get sorted; *spread: the range of all but the largest and the smallest, over the
 * median. */
static double median_rate(double *rates, unsigned count, double *spread)
{
    qsort(rates, count, sizeof(*rates), compare_rates);
    double median = rates[count / 2];
    *spread = median > 0 ? (rates[count - 2] - rates[1]) / median : 0;
    return median;
}

/* Reads and decodes in turn, so that another load on the machine affects some of the rounds. */
static errint_t measure_rounds(struct efs_measure *m, unsigned workers, double seconds)
{
    double disk[ROUNDS], decode[ROUNDS];
    uint64_t began = efs_now_ns();
    unsigned round = 0;
    errint_t rc = 0;
    for (; rc == 0 && round < ROUNDS; round++) {
        if (round >= ROUNDS_MIN && efs_now_ns() - began > (uint64_t)(seconds * 1e9))
            break;
        rc = measure_disk(m, 0.55 * seconds / ROUNDS, &disk[round]);
        if (rc == 0)
            rc = m->span_count ? measure_decode(m, workers, 0.4 * seconds / ROUNDS, &decode[round]) : -ENOMEM;
    }
    if (rc < 0)
        return rc;
    m->profile->disk_bytes_per_second = median_rate(disk, round, &m->profile->disk_spread);
    m->profile->decode_bytes_per_second = median_rate(decode, round, &m->profile->decode_spread);
    return 0;
}

static errint_t measure_all(struct efs_measure *m, unsigned workers, double seconds)
{
    struct efs_io_options io = {.arena = &m->arena, .stats = &m->stats};
    uint64_t ignored = 0;
    errint_t rc = efs_arena_init(&m->arena, POOL_BYTES, 1);
    if (rc == 0)
        rc = efs_arena_grow(&m->arena);
    if (rc == 0) {
        io.backing = efs_backing_of_store(m->store, true, NULL, NULL);
        rc = efs_io_queue_start(&io, &m->io);
    }
    if (rc == 0)
        rc = measure_round(m, &ignored); /* a warm-up, which pins the memory, too */
    if (rc == 0)
        rc = measure_latency(m, 0.05 * seconds);
    if (rc == 0)
        rc = measure_rounds(m, workers, seconds);
    efs_io_queue_stop(m->io);
    efs_io_queue_free(m->io);
    measure_drop(m);
    efs_arena_destroy(&m->arena);
    return rc;
}

errint_t efs_profile_measure(struct efs_store *store, unsigned workers, double seconds, struct efs_profile *profile,
                             struct efs_error *err)
{
    struct efs_measure m = {.store = store, .profile = profile};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct timespec now;
    *profile = (struct efs_profile){
        .content_hash = store->sb.content_hash, .device = store->opened_stat.st_dev, .direct_io = store->direct};
    if (workers == 0)
        workers = cores < 1 ? 1 : (unsigned)cores;
    if (workers > EFS_WORKERS_MAX || !(seconds >= 0.1 && seconds <= 60))
        return efs_fail(err, -EINVAL, "the profile: up to %d workers, 0.1 to 60 seconds", EFS_WORKERS_MAX);
    if (store->expert_count == 0)
        return efs_fail(err, -ENOENT, "%s: the store has no experts to measure", store->path);
    profile->workers = workers;
    snprintf(profile->cpu_path, sizeof(profile->cpu_path), "%s", efs_cpu_name());
    clock_gettime(CLOCK_REALTIME, &now);
    profile->measured_at = now.tv_sec;
    profile_sizes(store, profile);
    pthread_mutex_init(&m.lock, NULL);
    pthread_cond_init(&m.idle, NULL);
    errint_t rc = measure_list_objects(&m);
    if (rc == 0)
        rc = measure_all(&m, workers, seconds);
    if (rc == 0)
        profile_derive(profile);
    pthread_cond_destroy(&m.idle);
    pthread_mutex_destroy(&m.lock);
    free(m.objects);
    free(m.spans);
    return rc < 0 ? efs_fail(err, rc, "%s: the profile could not be measured: %s", store->path, strerror(-rc)) : 0;
}
