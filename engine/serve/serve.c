/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.c - opens, closes and describes a served store.
 *
 * serve/ opens and closes a store for serving, sizes its pools, reports its status, and fixes the order of deferred
 * work. client/, gpu/, the daemon and the tools call it, through the public headers. It is never called by the rooms
 * that it sets up: core/ to control/.
 */
#include "budget.h"
#include "stats.h"

#include "kernels.h"
#include "record.h"
#include "estimator.h"
#include "local.h"
#include "served_local.h"
#include "cache.h"
#include "plan_thread.h"
#include "text.h"
#include "container.h"
#include "sys.h"
#include "thread.h"
#include "extent.h"
#include "fetch.h"
#include "plain.h"
#include "prefetcher.h"
#include "fragment.h"
#include "expertfs-stats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KIB (1ull << 10)
#define MIB (1ull << 20)
#define PROCESS_BYTES (6 * MIB) /* heap that is counted nowhere else, data of libraries: measured 2 to 3 MiB */
#define EXTENT_BYTES_MAX (4 * MIB)
#define READAHEAD_BYTES_MAX (32 * MIB) /* read-ahead of a sequential reader */
#define SEGMENT_BYTES_MAX (16 * MIB)
#define SEGMENT_BYTES_MIN (8 * MIB)
#define HUGE_PAGE (2 * MIB)
#define SEGMENTS_MAX 16384 /* IORING_MAX_REG_BUFFERS: each segment is a registered buffer */

/* A store and the rooms' private state, in one allocation. */
struct served {
    struct efs efs;
    struct efs_stats_counters stats;
    struct efs_extents extents;
    struct efs_full_pool full;
    struct efs_budget budget;
    struct efs_leases leases;
};

static const struct efs_hooks hooks = {.fit_budget = efs_budget_follow,
                                       .admit = efs_admission_run,
                                       .load_extents = efs_extents_retry,
                                       .release_segments = efs_budget_retire,
                                       .use_idle_disk = efs_prefetcher_run_idle,
                                       .look_at_plan = efs_plan_thread_look,
                                       .add_segment = efs_budget_add_segment,
                                       .is_live = efs_admission_is_live};

static struct efs *served_new(const struct efs_options *options)
{
    struct served *s = efs_sys_calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    struct efs *fs = &s->efs;
    fs->stats = &s->stats;
    fs->extents = &s->extents;
    fs->full = &s->full;
    fs->budget = &s->budget;
    fs->leases = &s->leases;
    fs->options = *options;
    fs->in_flight = 1;
    efs_owner_begin(&fs->owner);
    efs_deferred_init(&fs->deferred);
    pthread_mutex_init(&fs->lock, NULL);
    pthread_cond_init(&fs->drained, NULL);
    return fs;
}

static void served_free(struct efs *fs)
{
    pthread_cond_destroy(&fs->drained);
    pthread_mutex_destroy(&fs->lock);
    efs_owner_end(&fs->owner);
    free(EFS_CONTAINER(fs, struct served, efs));
}

/* ---- sizes ---- */

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static size_t largest_shard(const struct efs_store *store)
{
    size_t most = 0;
    for (uint32_t i = 0; i < store->shard_count; i++) {
        const struct efs_disk_shard *s = &store->shards[i];
        size_t bytes = efs_page_span(s->e_offset, s->e_offset + s->e_bytes) +
                       efs_page_span(s->sm_offset, s->sm_offset + s->sm_bytes);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static uint64_t fixed_bytes(const struct efs *fs)
{
    const struct efs_store *s = fs->store;
    uint64_t threads = (uint64_t)(fs->options.workers + 2) * EFS_STACK_TOUCHED_BYTES + /* 2: I/O, plan */
                       fs->options.workers * efs_codec_scratch_bytes(s->sb.shard_elements);
    return PROCESS_BYTES + fs->options.reserved_bytes + fs->options.per_file_bytes * efs_file_count(fs) +
           s->index_bytes + fs->view.memory_bytes + threads + efs_extents_table_bytes(fs) + efs_slots_bytes(fs) +
           efs_fragments_bytes(fs) + efs_served_local_bytes(fs) +
           (uint64_t)s->expert_count * (sizeof(struct efs_full) + 3 * sizeof(uint64_t)) +
           (s->expert_count ? efs_cache_bytes(s) : 0) + efs_record_bytes();
}

/* Derives the sizes of segments and extents from the budget. A segment is 1/32 of the budget within SEGMENT_BYTES_MIN
 * and SEGMENT_BYTES_MAX, but at least two shards and large enough that SEGMENTS_MAX segments cover the budget, rounded
 * up to huge pages. Sets size and number of extents and the account of fixed memory; returns the bytes of a segment. */
static uint64_t size_extents(struct efs *fs, uint64_t budget)
{
    uint64_t shard = fs->shard_bytes_max, segment = budget / 32;
    segment = segment > SEGMENT_BYTES_MAX ? SEGMENT_BYTES_MAX : segment;
    segment = segment < SEGMENT_BYTES_MIN ? SEGMENT_BYTES_MIN : segment;
    segment = segment < 2 * shard ? 2 * shard : segment;
    segment = segment < budget / SEGMENTS_MAX ? budget / SEGMENTS_MAX : segment;
    segment = round_up(segment, HUGE_PAGE);
    uint64_t most = segment / 4 < EXTENT_BYTES_MAX ? segment / 4 : EXTENT_BYTES_MAX;
    efs_extents_size(fs, most);
    efs_account_release(&fs->account, EFS_ACCOUNT_FIXED, fs->account.bytes[EFS_ACCOUNT_FIXED]);
    efs_account_charge(&fs->account, EFS_ACCOUNT_FIXED, fixed_bytes(fs));
    return segment;
}

/* Checks the budget against the floor, the smallest budget that can serve the store. An automatic budget is raised to
 * the floor if the memory limit allows it. Otherwise -ENOMEM, with a hint in err: a larger budget, or more memory. */
static errint_t ensure_floor(struct efs *fs, uint64_t floor, const struct efs_memory *memory, struct efs_error *err)
{
    const uint64_t whole = (floor + MIB - 1) / MIB, fixed = efs_account_fixed(&fs->account) / MIB;
    const uint64_t budget = fs->options.budget_bytes, least = budget < MIB ? MIB : budget;
    char hint[160];
    if (budget >= floor)
        return 0;
    if (efs_budget_is_auto(fs) && floor <= memory->limit_bytes) {
        fs->options.budget_bytes = floor;
        return 0;
    }
    if (floor <= memory->limit_bytes && budget > 0 && budget < KIB)
        snprintf(hint, sizeof(hint), "%llu is bytes; did you mean budget=%lluG?", (unsigned long long)budget,
                 (unsigned long long)budget);
    else if (floor <= memory->limit_bytes)
        snprintf(hint, sizeof(hint), "ask for budget=%lluM or more", (unsigned long long)whole);
    else
        snprintf(hint, sizeof(hint), "%llu MiB of memory are available%s",
                 (unsigned long long)(memory->available_bytes / MIB),
                 memory->cgroup ? "; raise the limit of the memory cgroup (memory.max)" : "");
    return efs_fail(err, -ENOMEM,
                    "%s: a budget of %s%llu MiB is below the minimum of %llu MiB (index and buffers %llu MiB, chunk "
                    "pool %llu MiB)\nhint: %s",
                    fs->store->path, budget < MIB ? "less than " : "", (unsigned long long)(least / MIB),
                    (unsigned long long)whole, (unsigned long long)fixed, (unsigned long long)(whole - fixed), hint);
}

/* The smallest budget, in bytes, a multiple of 1 MiB, that covers fixed memory and one segment of the sizes derived
 * from it. Leaves extents at those sizes. */
static uint64_t floor_budget(struct efs *fs)
{
    uint64_t least = 0, floor = MIB;
    while (least < floor) {
        least = floor;
        uint64_t segment = size_extents(fs, least);
        floor = round_up(efs_account_fixed(&fs->account) + segment, MIB);
    }
    return least;
}

/* A budget far above the memory makes tables that are too large. */
static errint_t fail_table(struct efs *fs, const char *table, struct efs_error *err)
{
    char budget[EFS_SIZE_TEXT];
    return efs_budget_is_auto(fs)
               ? efs_fail(err, -ENOMEM, "%s: no memory for the %s", fs->store->path, table)
               : efs_fail(err, -ENOMEM,
                          "%s: no memory for the %s of a budget of %s\nhint: ask for a smaller one; budget=auto takes "
                          "half of what is available",
                          fs->store->path, table, efs_size_text(fs->options.budget_bytes, budget));
}

static errint_t size_pools(struct efs *fs, struct efs_error *err)
{
    uint64_t budget = fs->options.budget_bytes, segment = size_extents(fs, budget);
    if (budget < efs_account_fixed(&fs->account) + segment) {
        struct efs_memory memory;
        efs_memory(&memory);
        errint_t rc = ensure_floor(fs, floor_budget(fs), &memory, err);
        if (rc < 0)
            return rc;
        budget = fs->options.budget_bytes;
        segment = size_extents(fs, budget);
    }
    uint64_t most = (budget - efs_account_fixed(&fs->account)) / segment;
    if (most > SEGMENTS_MAX)
        most = SEGMENTS_MAX;
    uint64_t room = most * segment / 4;
    efs_extents_streams(fs)->window = room < READAHEAD_BYTES_MAX ? room : READAHEAD_BYTES_MAX;
    /* The budget may be raised later: reserve addresses for as many segments as the whole store could fill. Each of an
     * object's two components may start and end in a page shared with other objects. */
    uint64_t pages = fs->store->sb.store_bytes + 4 * (uint64_t)EFS_ALIGN * fs->store->object_count;
    uint64_t whole = pages / segment * 9 / 8 + 4;
    whole = whole > SEGMENTS_MAX ? SEGMENTS_MAX : whole;
    if (efs_arena_init(&fs->arena, segment, (uint32_t)(whole > most ? whole : most)) < 0)
        return fail_table(fs, "chunk pool's table", err);
    efs_budget_set(fs, budget);
    return 0;
}

/* Applies the tunables in the options. */
static errint_t served_tune(struct efs *fs, struct efs_error *err)
{
    errint_t rc = 0;
    for (size_t i = 0; rc == 0 && i < EFS_TUNABLES; i++)
        if (i != EFS_TUNE_budget && fs->options.tune[i]) {
            struct efs_error said = {.text = ""};
            rc = efs_set(fs, efs_tunables[i].name, fs->options.tune[i], NULL, &said);
            if (rc < 0)
                efs_fail(err, rc, "%s", said.text);
            else if (said.text[0])
                efs_log(fs, EFS_LOG_WARNING, "%s", said.text);
        }
    return rc;
}

/* ---- open and close ---- */

/* A file of a checkpoint that is served in place changed, or a backing has a fault. */
static void served_said(void *arg, const char *line)
{
    efs_log(arg, EFS_LOG_ERROR, "%s", line);
}

static void served_fell_back(void *arg, const char *what, errint_t why)
{
    const struct efs *fs = arg;
    efs_log(fs, EFS_LOG_WARNING, "%s: %s is refused (%s): the store is read without it", fs->store->path, what,
            strerror(-why));
}

/* On the I/O thread. */
static void served_completed(void *arg)
{
    efs_extents_completed(arg);
    efs_demotion_encoded(arg);
}

static errint_t served_start(struct efs *fs, struct efs_error *err)
{
    const char *path = fs->store->path;
    errint_t rc = efs_view_build(&fs->view, fs->store, err);
    if (rc < 0)
        return rc;
    if (fs->options.workers == 0) {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        fs->options.workers = cores > 0 ? (unsigned)cores : 1;
    }
    if (fs->options.workers > EFS_WORKERS_MAX)
        fs->options.workers = EFS_WORKERS_MAX;
    fs->shard_bytes_max = largest_shard(fs->store);
    efs_budget_begin(fs);
    rc = size_pools(fs, err);
    if (rc == 0)
        rc = efs_extents_build(fs, err);
    if (rc < 0)
        return rc;
    efs_budget_build(fs);
    if (efs_fragments_build(fs) < 0 || efs_slots_build(fs) < 0 || efs_full_build(fs) < 0 || efs_leases_build(fs) < 0 ||
        efs_demotion_build(fs) < 0 || efs_record_build(fs) < 0 || efs_prefetcher_build(fs) < 0)
        return fail_table(fs, "table of experts", err);
    struct efs_error said = {.text = ""};
    rc = efs_budget_is_auto(fs) ? 0 : efs_budget_check(fs, fs->options.budget_bytes, 0, &said);
    if (rc < 0)
        return efs_fail(err, rc, "%s", said.text);
    if (said.text[0])
        efs_log(fs, EFS_LOG_WARNING, "%s", said.text);
    rc = efs_estimator_new(&fs->estimator) < 0 ? efs_fail(err, -ENOMEM, "%s: no memory for what is measured", path)
                                               : efs_cache_build(fs, err);
    if (rc == 0)
        rc = served_tune(fs, err);
    if (rc < 0)
        return rc;
    const bool wanted = fs->options.store_direct == EFS_STORE_DIRECT_AUTO
                            ? !fs->store->remote
                            : fs->options.store_direct == EFS_STORE_DIRECT_ON;
    bool direct = fs->store->direct = fs->store->direct && wanted;
    fs->stats->direct_io = direct;
    if (fs->store->direct_refused && wanted)
        served_fell_back(fs, "O_DIRECT", fs->store->direct_refused);
    efs_plain_notify(fs->store->plain, served_said, fs);
    struct efs_io_options io = {.arena = &fs->arena,
                                .stats = fs->stats,
                                .estimator = fs->estimator,
                                .completed = served_completed,
                                .say = served_said,
                                .arg = fs};
    rc = efs_workers_start(fs->options.workers, fs->store->sb.shard_elements, &fs->workers);
    if (rc == 0) {
        efs_served_local_open(fs);
        io.backing = efs_backing_of_store(fs->store, direct, served_fell_back, fs);
        if (fs->local)
            io.backing = efs_backing_local_new(io.backing, fs->local);
        rc = efs_io_queue_start(&io, &fs->io);
    }
    if (rc == 0 && fs->store->backed)
        efs_store_read_by(fs->store, efs_io_read_sync, fs->io);
    if (rc < 0)
        return efs_fail(err, rc, "%s: cannot start threads: %s", path, strerror(-rc));
    fs->hooks = &hooks; /* all rooms that they call are built */
    efs_grow(fs, false);
    rc = efs_plan_thread_start(fs, err);
    if (rc == 0)
        efs_served_local_start(fs);
    return rc;
}

static void served_stop(struct efs *fs)
{
    pthread_mutex_lock(&fs->lock);
    fs->closing = true; /* also after a failed open: what is retried begins nothing while the rooms are destroyed */
    pthread_mutex_unlock(&fs->lock);
    efs_prefetcher_stop(fs);
    efs_plan_thread_stop(fs);
    efs_demotion_stop(fs);
    if (fs->local)
        efs_local_fill(fs->local, EFS_LOCAL_FILL_OFF);
    efs_io_queue_stop(fs->io);
    efs_workers_stop(fs->workers);
    efs_io_queue_free(fs->io);
    efs_local_close(fs->local, false);
    efs_plan_thread_free(fs);
    efs_demotion_destroy(fs);
    efs_prefetcher_destroy(fs);
    efs_full_destroy(fs);
    efs_leases_destroy(fs);
    efs_budget_destroy(fs);
    efs_cache_destroy(fs);
    efs_record_destroy(fs);
    efs_estimator_free(fs->estimator);
    if (fs->arena.segments)
        efs_arena_destroy(&fs->arena);
    efs_extents_destroy(fs);
    efs_slots_destroy(fs);
    efs_fragments_destroy(fs);
    efs_view_destroy(&fs->view);
    efs_store_close(fs->store);
    served_free(fs);
}

/* Closes in a forked child. State that the parent's threads may have been changing at the fork stays allocated until
 * the process exits; the chunk pool is not mapped in the child. */
static void served_close_in_child(struct efs *fs)
{
    efs_io_queue_close_in_child(fs->io);
    efs_local_close(fs->local, true);
    efs_full_close_in_child(fs);
    efs_demotion_close_in_child(fs);
    efs_budget_close_in_child(fs);
    efs_plan_thread_close_in_child(fs);
    efs_view_destroy(&fs->view);
    efs_store_close(fs->store);
    efs_owner_end(&fs->owner);
    free(EFS_CONTAINER(fs, struct served, efs));
}

errint_t efs_open(const char *store_path, const struct efs_options *options, struct efs **out, struct efs_error *err)
{
    struct efs_store *store;
    *out = NULL;
    errint_t rc = efs_store_open(store_path, &store, err);
    return rc < 0 ? rc : efs_open_store(store, options, out, err);
}

errint_t efs_open_store(struct efs_store *store, const struct efs_options *options, struct efs **out,
                        struct efs_error *err)
{
    *out = NULL;
    struct efs *fs = served_new(options);
    if (!fs) {
        errint_t rc = efs_fail(err, -ENOMEM, "%s: no memory", store->path);
        efs_store_close(store);
        return rc;
    }
    fs->store = store;
    errint_t rc = served_start(fs, err);
    if (rc < 0) {
        served_stop(fs);
        return rc;
    }
    if (fs->options.prealloc) {
        efs_plan_thread_wait(fs);
        efs_prealloc(fs);
    }
    efs_prefetcher_begin(fs);
    *out = fs;
    return 0;
}

void efs_close(struct efs *fs)
{
    if (!fs)
        return;
    if (!efs_is_this_process(fs)) {
        served_close_in_child(fs);
        return;
    }
    efs_lock(fs);
    fs->closing = true; /* efs_unlock() cancels the waiters */
    while (efs_cache_reclaim(fs, EFS_FOR_REQUEST, 0) == 0)
        ;
    efs_unlock(fs);
    efs_io_queue_cancel(fs->io); /* a silent server may not answer for minutes */
    efs_prefetcher_stop(fs);
    efs_plan_thread_stop(fs);
    efs_lock(fs);
    atomic_fetch_sub(&fs->in_flight, 1); /* from here on the last active operation signals drained */
    while (atomic_load(&fs->in_flight))
        pthread_cond_wait(&fs->drained, &fs->lock);
    efs_unlock(fs);
    served_stop(fs);
}

/* ---- status ---- */

const char *efs_cpu_path(void)
{
    return efs_cpu_name();
}

errint_t efs_reserve(struct efs *fs, uint64_t bytes, struct efs_error *err)
{
    errint_t rc = efs_check_process(fs, err);
    if (rc < 0)
        return rc;
    struct efs_memory memory;
    efs_memory(&memory);
    efs_lock(fs);
    efs_account_charge(&fs->account, EFS_ACCOUNT_FIXED, bytes);
    rc = ensure_floor(fs, efs_account_fixed(&fs->account) + fs->arena.segment_bytes, &memory, err);
    efs_budget_set(fs, fs->options.budget_bytes);
    efs_budget_shrink(fs);
    efs_unlock(fs);
    return rc;
}

const struct efs_store *efs_get_store(const struct efs *fs)
{
    return fs->store;
}

uint32_t efs_file_count(const struct efs *fs)
{
    return fs->view.file_count;
}

bool efs_view_hidden(const struct efs *fs)
{
    return fs->view.hidden;
}

bool efs_file_holds_expert(const struct efs *fs, uint32_t file, uint64_t offset, uint64_t bytes)
{
    return efs_view_holds_expert(&fs->view, file, offset, bytes);
}

errint_t efs_file_info(const struct efs *fs, uint32_t file, struct efs_file_info *info)
{
    return efs_view_info(&fs->view, file, info);
}

void efs_stats(struct efs *fs, struct efs_stats *out)
{
    struct efs_stats stats = {0};
    if (!efs_is_this_process(fs)) {
        *out = stats;
        return;
    }
    uint32_t inflight = atomic_load(&fs->in_flight) - 1; /* read first: if 0, the counters below are final */
#define COPY(name, kind, unit, help) stats.name = atomic_load_explicit(&fs->stats->name, memory_order_relaxed);
    EFS_STATS(COPY)
#undef COPY
    efs_lock(fs);
    stats.budget_bytes = fs->options.budget_bytes;
    stats.effective_budget_bytes = fs->account.budget_bytes;
    stats.fixed_bytes = efs_account_fixed(&fs->account);
    stats.chunk_pool_bytes = (uint64_t)fs->arena.segment_count * fs->arena.segment_bytes;
    stats.chunk_used_bytes = fs->arena.used_bytes;
    stats.chunk_extents = efs_extents(fs)->ready_count;
    efs_full_stats(fs, &stats);
    stats.coded_bytes = fs->account.bytes[EFS_ACCOUNT_CODED_PINNED];
    stats.coded_experts = fs->coded_pinned;
    stats.inflight = inflight;
    stats.local_held_bytes = fs->local ? efs_local_bytes(fs->local) : 0;
    efs_unlock(fs);
    *out = stats;
}

uint32_t efs_expert_count(const struct efs *fs)
{
    return fs->store->expert_count;
}

char efs_expert_state(struct efs *fs, uint32_t expert)
{
    if (!efs_is_this_process(fs) || expert >= fs->store->expert_count)
        return 'M';
    efs_lock(fs);
    char state = efs_cache_state(fs, expert);
    efs_unlock(fs);
    return state;
}

errint_t efs_expert_info(struct efs *fs, struct efs_expert_id id, struct efs_expert_info *out)
{
    uint32_t expert = id.number;
    struct efs_expert_info info;
    if (!efs_is_this_process(fs))
        return -ECHILD;
    if (expert >= fs->store->expert_count)
        return -ENOENT;
    const struct efs_disk_group *g = &fs->store->groups[expert];
    info = (struct efs_expert_info){
        .layer = g->layer, .expert = g->expert, .file = efs_view_expert_file(&fs->view, expert)};
    efs_view_expert_name(&fs->view, expert, info.name, sizeof(info.name));
    info.coded_bytes = efs_expert_coded_bytes(fs, expert);
    uint32_t first = g->object_first, end = first + g->object_count;
    for (uint32_t o = first; o < end; o++)
        info.raw_bytes += fs->store->objects[o].bytes;
    efs_lock(fs);
    for (uint32_t x = efs_expert_extent_first(fs, expert); x < efs_expert_extent_end(fs, expert); x++)
        info.resident_bytes += (uint64_t)(efs_extent(fs, x)->e.granules + efs_extent(fs, x)->sm.granules) * EFS_GRANULE;
    const struct efs_full *f = efs_full_of(fs, expert);
    info.leases = f->leases;
    if (f->memfile)
        info.resident_bytes += f->memfile->bytes;
    efs_cache_info(fs, expert, &info);
    efs_unlock(fs);
    *out = info;
    return 0;
}

errint_t efs_describe(struct efs *fs, const char *what, char **text, size_t *bytes)
{
    EFS_C_LOCALE;
    if (strcmp(what, "layers") == 0)
        return efs_view_layers(&fs->view, text, bytes);
    if (strcmp(what, "local") == 0)
        return efs_served_local_describe(fs, text, bytes);
    errint_t rc = efs_plan_thread_describe(fs, what, text, bytes);
    if (rc == -ENODATA)
        rc = efs_prefetcher_describe(fs, what, text, bytes);
    return rc == -ENODATA ? efs_record_describe(fs, what, text, bytes) : rc;
}

/* ---- the chunk pool's segments, for registration with a device driver ---- */

void efs_chunk_watch(struct efs *fs, struct efs_chunk_watch *watch)
{
    efs_arena_watch(&fs->arena, watch);
}

void efs_chunk_unwatch(struct efs *fs, struct efs_chunk_watch *watch)
{
    efs_arena_unwatch(&fs->arena, watch);
}

bool efs_chunk_segment(struct efs *fs, const void *chunk, void **base, size_t *bytes)
{
    efs_lock(fs);
    *base = efs_arena_segment_at(&fs->arena, chunk);
    *bytes = fs->arena.segment_bytes;
    efs_unlock(fs);
    return *base != NULL;
}
