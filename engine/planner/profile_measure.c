/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_measure.c - what an expert of this store is, and what this machine takes to read and decode it.
 */
#include "profile_core.h"

#include "kernels.h"
#include "sys.h"
#include "workers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POOL_BYTES (64u << 20) /* read in a round */
#define PART_OF_EXPERT 25      /* a tensor counts from 1/25 of its expert */
#define SHARDS_MAX 256         /* EFS_TASK_MAX_SHARDS */

/* ---- what an expert is on average --------------------------------------------------------------------------- */

struct sums {
    uint64_t raw, e, sm, e_exact, exponent_raw;
    uint64_t large, large_shards; /* tensors that count, and their shards */
};

static void sums_add_expert(const struct efs_store *store, const struct efs_disk_group *group, struct sums *sums)
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
        sums->e += first->e_bytes ? EFS_ALIGN : 0; /* pages are read: half of one more at each end, on average */
        sums->sm += first->sm_bytes ? EFS_ALIGN : 0;
    }
    sums->raw += raw;
}

static void measure_describe(const struct efs_measure *m)
{
    const struct efs_store *store = m->store;
    struct efs_profile *p = m->profile;
    struct sums sums = {0};
    double in_layer = 0, n = store->expert_count;
    for (uint32_t g = 0; g < store->expert_count; g++) {
        const struct efs_disk_group *group = &store->groups[g], *before = group - 1;
        bool same = g > 0 && group->layer == before->layer && group->stack_offset == before->stack_offset &&
                    group->stack_bytes == before->stack_bytes;
        in_layer = same ? in_layer + 1 : 1;
        p->layers += !same;
        p->experts = in_layer > p->experts ? in_layer : p->experts;
        sums_add_expert(store, group, &sums);
    }
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

/* ---- all of it ---------------------------------------------------------------------------------------------- */

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

void efs_profile_derive(struct efs_profile *p)
{
    double chunks = p->tensors * p->shards;
    p->sm_read_ns = p->sm_bytes / p->tensors / p->disk_bytes_per_second * 1e9;
    p->e_read_ns = p->e_bytes / chunks / p->disk_bytes_per_second * 1e9;
    p->decode_ns = p->full_bytes / chunks / p->decode_bytes_per_second * 1e9;
}

static errint_t measure_all(struct efs_measure *m, unsigned workers, double seconds)
{
    const struct efs_store *store = m->store;
    const struct efs_disk_options options = {.fd = store->direct_fd >= 0 ? store->direct_fd : store->fd,
                                             .buffered_fd = store->fd,
                                             .arena = &m->arena,
                                             .stats = &m->stats};
    uint64_t ignored = 0;
    errint_t rc = efs_arena_init(&m->arena, POOL_BYTES, 1);
    if (rc == 0)
        rc = efs_arena_grow(&m->arena);
    if (rc == 0)
        rc = efs_disk_start(&options, &m->disk);
    if (rc == 0)
        rc = efs_measure_disk(m, 0.45 * seconds);
    if (rc == 0)
        rc = efs_measure_latency(m, 0.05 * seconds);
    if (rc == 0)
        rc = efs_measure_round(m, &ignored);
    efs_disk_stop(m->disk);
    if (rc == 0)
        rc = m->span_count ? efs_measure_decode(m, workers, 0.3 * seconds) : -ENOMEM;
    if (rc == 0)
        rc = efs_measure_copy(m, 0.1 * seconds);
    if (rc == 0)
        rc = efs_measure_recode(m, 0.1 * seconds);
    efs_measure_drop(m);
    efs_arena_destroy(&m->arena);
    return rc;
}

errint_t efs_profile_measure(struct efs_store *store, unsigned workers, double seconds, struct efs_profile *profile,
                             struct efs_error *err)
{
    struct efs_measure m = {.store = store, .profile = profile};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct timespec now;
    *profile = (struct efs_profile){.content_hash = store->sb.content_hash, .direct_io = store->direct_fd >= 0};
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
    measure_describe(&m);
    pthread_mutex_init(&m.lock, NULL);
    pthread_cond_init(&m.idle, NULL);
    errint_t rc = measure_list_objects(&m);
    if (rc == 0)
        rc = measure_all(&m, workers, seconds);
    if (rc == 0)
        efs_profile_derive(profile);
    pthread_cond_destroy(&m.idle);
    pthread_mutex_destroy(&m.lock);
    free(m.objects);
    free(m.spans);
    return rc < 0 ? efs_fail(err, rc, "%s: the profile could not be measured: %s", store->path, strerror(-rc)) : 0;
}
