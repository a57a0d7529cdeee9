/* SPDX-License-Identifier: Apache-2.0 */
/* pagecache.c - see pagecache.h: the ledger of ranges, its hooks in requests, and the thread that looks. */
#include "pagecache.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "daemon.h"
#include "log.h"

#define RANGE_SHIFT 24u      /* 16 MiB, or more: */
#define RANGES_MOST 65536u   /* ... so that 1 TiB takes at most this many, beside one for each file */
#define CALM_MS 1000u        /* between rounds, while there are reads */
#define IDLE_MS 10000u       /* ... while there are none: the kernel takes pages away, too */
#define URGENT_MS 10u        /* ... while the limit may be exceeded */
#define URGENT_MOST_MS 640u  /* ... and rounds find that it was not: the reads went past the page cache */
#define MS UINT64_C(1000000) /* ns */

static bool node_is_watched(const struct efsd_node *node)
{
    return (node->kind == EFSD_FILE || node->kind == EFSD_EXPERT) && node->bytes;
}

static uint64_t count_ranges(const struct efsd_tree *tree, unsigned shift)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < tree->count; i++)
        count += node_is_watched(&tree->nodes[i]) ? ((tree->nodes[i].bytes - 1) >> shift) + 1 : 0;
    return count;
}

errint_t efsd_pagecache_init(struct efsd *daemon)
{
    struct efsd_pagecache *cache = &daemon->pagecache;
    const struct efsd_tree *tree = &daemon->tree;
    unsigned shift = RANGE_SHIFT;
    while (shift < 63 && count_ranges(tree, shift) > RANGES_MOST + (uint64_t)tree->count)
        shift++;
    pthread_mutex_init(&cache->open_lock, NULL);
    cache->table_fd = cache->clone_fd = -1;
    cache->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); /* receiving threads use it from the first read on */
    errint_t rc = cache->event_fd < 0 ? -errno : 0;
    cache->range_shift = shift;
    cache->range_count = (uint32_t)count_ranges(tree, shift);
    cache->ranges = calloc((size_t)cache->range_count + 1, sizeof(*cache->ranges));
    cache->order = calloc((size_t)cache->range_count + 1, sizeof(*cache->order));
    cache->first_range = calloc((size_t)tree->count + 1, sizeof(*cache->first_range));
    if (rc == 0 && (!cache->ranges || !cache->order || !cache->first_range))
        rc = -ENOMEM;
    if (rc < 0)
        return rc;
    uint32_t next = 0;
    for (uint32_t i = 0; i < tree->count; i++) {
        cache->first_range[i] = next;
        next += node_is_watched(&tree->nodes[i]) ? (uint32_t)((tree->nodes[i].bytes - 1) >> shift) + 1 : 0;
    }
    cache->first_range[tree->count] = next;
    return 0;
}

uint64_t efsd_pagecache_memory(const struct efsd *daemon)
{
    const struct efsd_pagecache *cache = &daemon->pagecache;
    return ((uint64_t)cache->range_count + 1) * (sizeof(*cache->ranges) + sizeof(*cache->order)) +
           ((uint64_t)daemon->tree.count + 1) * sizeof(*cache->first_range);
}

void efsd_pagecache_free(struct efsd *daemon)
{
    struct efsd_pagecache *cache = &daemon->pagecache;
    if (cache->ranges && cache->event_fd >= 0) {
        close(cache->event_fd);
        pthread_mutex_destroy(&cache->open_lock);
    }
    free(cache->ranges);
    free(cache->order);
    free(cache->first_range);
    cache->ranges = NULL;
    cache->order = cache->first_range = NULL;
}

/* Wake the thread, once for each round. */
static void pagecache_wake(struct efsd_pagecache *cache)
{
    uint64_t one = 1;
    if (!atomic_exchange(&cache->wanted, true) && write(cache->event_fd, &one, sizeof(one)) < 0)
        atomic_store(&cache->wanted, false);
}

void efsd_pagecache_read(struct efsd *daemon, uint32_t node, uint64_t offset, uint64_t bytes)
{
    struct efsd_pagecache *cache = &daemon->pagecache;
    uint32_t first = cache->first_range[node], end = cache->first_range[node + 1];
    uint64_t range = offset >> cache->range_shift, last = (offset + bytes - 1) >> cache->range_shift;
    if (!bytes || range >= end - first)
        return;
    uint64_t now = atomic_fetch_add_explicit(&cache->clock, bytes, memory_order_relaxed) + bytes;
    for (; range <= last && range < end - first; range++) { /* one, rarely two: a read is far smaller than a range */
        struct efsd_range *at = &cache->ranges[first + range];
        atomic_store_explicit(&at->last_read, now, memory_order_relaxed);
        atomic_fetch_add_explicit(&at->filled_bytes, bytes, memory_order_relaxed);
    }
    uint64_t limit = atomic_load_explicit(&cache->limit_bytes, memory_order_relaxed);
    uint64_t since = now - atomic_load_explicit(&cache->round_clock, memory_order_relaxed);
    if (limit && atomic_load_explicit(&cache->bytes, memory_order_relaxed) + since > limit)
        pagecache_wake(cache);
}

enum efsd_opener efsd_pagecache_opener(const struct efsd *daemon, pid_t pid)
{
    const struct efsd_pagecache *cache = &daemon->pagecache;
    return !pid || pid != atomic_load(&cache->opener) ? EFSD_OPENER_OTHER
           : atomic_load(&cache->to_read)             ? EFSD_OPENER_READS
                                                      : EFSD_OPENER_LOOKS;
}

/* direct_io, whatever others have: such an open goes with every mode that the kernel has the file in, but for
 * passthrough, and brings it into none; keep_cache, since an open without it empties the file's page cache. */
void efsd_pagecache_open(struct efsd *daemon, struct fuse_req *req)
{
    const struct fuse_file_info file = {.fh = 0, .direct_io = 1, .keep_cache = 1, .noflush = 1};
    atomic_fetch_add(&daemon->pagecache.opens, 1);
    fuse_reply_open(req, &file);
}

errint_t efsd_pagecache_set(struct efsd *daemon, uint64_t limit_bytes)
{
    struct efsd_pagecache *cache = &daemon->pagecache;
    if (!atomic_load(&cache->started))
        return limit_bytes ? -EOPNOTSUPP : 0;
    atomic_store(&cache->limit_bytes, limit_bytes);
    pagecache_wake(cache);
    return 0;
}

void efsd_pagecache_get(const struct efsd *daemon, char *text, size_t room)
{
    uint64_t limit = atomic_load(&daemon->pagecache.limit_bytes);
    snprintf(text, room, limit ? "%llu" : "off", (unsigned long long)limit);
}

errint_t efsd_pagecache_tune(struct efsd *daemon, const char *text, struct efs_error *err)
{
    uint64_t limit = 0;
    if (strcmp(text, "off") != 0 && (efs_parse_size(text, &limit) || !limit))
        return efs_fail(err, -EINVAL, "page_cache=%.64s: allowed are off and sizes such as 8G, 512M or 65536", text);
    errint_t rc = efsd_pagecache_set(daemon, limit);
    if (rc)
        return efs_fail(err, rc, "page_cache=%.64s: the page cache is not watched", text);
    const char *note = limit ? efsd_pagecache_note(daemon) : NULL;
    if (note)
        efs_fail(err, 0, "page_cache=%.64s: %s", text, note);
    return 0;
}

void efsd_pagecache_stats(const struct efsd *daemon, struct efsd_pagecache_stats *stats)
{
    const struct efsd_pagecache *cache = &daemon->pagecache;
    uint64_t now = efsd_clock_ns(CLOCK_MONOTONIC), found = atomic_load(&cache->found_ns);
    *stats = (struct efsd_pagecache_stats){
        .page_cache_bytes = atomic_load(&cache->bytes),
        .page_cache_measured = atomic_load(&cache->measured),
        .page_cache_age_ns = now > found ? now - found : 0,
        .page_cache_limit_bytes = atomic_load(&cache->limit_bytes),
        .page_cache_rounds = atomic_load(&cache->rounds),
        .page_cache_opens = atomic_load(&cache->opens),
        .page_cache_evictions = atomic_load(&cache->evictions),
        .page_cache_dropped_bytes = atomic_load(&cache->dropped_bytes),
        .page_cache_invalidated_bytes = atomic_load(&cache->invalidated_bytes),
    };
}

const char *efsd_pagecache_note(const struct efsd *daemon)
{
    return atomic_load(&daemon->pagecache.note);
}

/* Until something wakes us, at most so long. */
static void pagecache_wait(struct efsd *daemon, uint64_t ns)
{
    struct efsd_pagecache *cache = &daemon->pagecache;
    struct pollfd wait[2] = {{.fd = cache->event_fd, .events = POLLIN}, {.fd = cache->table_fd, .events = POLLPRI}};
    int ready = poll(wait, 2, (int)(ns / MS) + 1);
    uint64_t count;
    if (ready > 0 && wait[0].revents && read(cache->event_fd, &count, sizeof(count)) < 0)
        efsd_log(EFS_LOG_ERROR, "eventfd: %s", strerror(errno));
    if (ready > 0 && wait[1].revents)
        efsd_pagecache_watch(daemon);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Is there anything to find? Reads bring pages; what is there the kernel may take away; a file may have been busy. */
static bool round_is_due(const struct efsd_pagecache *cache, uint64_t idle_ns)
{
    uint64_t limit = atomic_load(&cache->limit_bytes);
    return atomic_load(&cache->wanted) || (limit && atomic_load(&cache->bytes) > limit) ||
           atomic_load(&cache->clock) != atomic_load(&cache->round_clock) ||
           (atomic_load(&cache->bytes) && idle_ns >= IDLE_MS * MS);
}

/* Looking takes at most a 20th of a core, a fifth while the limit may be exceeded. Giving up takes what it takes, and
 * waiting nothing. */
static void *pagecache_run(void *arg)
{
    struct efsd *daemon = arg;
    struct efsd_pagecache *cache = &daemon->pagecache;
    uint64_t urgent_ns = URGENT_MS * MS, took_ns = 0, ended_ns = efsd_clock_ns(CLOCK_MONOTONIC);
    while (!atomic_load(&cache->stop)) {
        uint64_t now = efsd_clock_ns(CLOCK_MONOTONIC);
        uint64_t gap_ns =
            atomic_load(&cache->wanted) ? larger(urgent_ns, 4 * took_ns) : larger(CALM_MS * MS, 20 * took_ns);
        if (now - ended_ns < gap_ns) {
            pagecache_wait(daemon, gap_ns - (now - ended_ns));
            continue;
        }
        if (!round_is_due(cache, now - atomic_load(&cache->found_ns))) {
            pagecache_wait(daemon, CALM_MS * MS);
            continue;
        }
        bool urgent = atomic_exchange(&cache->wanted, false);
        took_ns = efsd_pagecache_round(daemon);
        ended_ns = efsd_clock_ns(CLOCK_MONOTONIC);
        bool near = cache->found_bytes > atomic_load(&cache->limit_bytes) / 2;
        uint64_t doubled_ns = 2 * urgent_ns < URGENT_MOST_MS * MS ? 2 * urgent_ns : URGENT_MOST_MS * MS;
        urgent_ns = near ? URGENT_MS * MS : urgent ? doubled_ns : urgent_ns;
    }
    return NULL;
}

errint_t efsd_pagecache_start(struct efsd *daemon)
{
    struct efsd_pagecache *cache = &daemon->pagecache;
    efsd_pagecache_attach(daemon);
    atomic_store(&cache->found_ns, efsd_clock_ns(CLOCK_MONOTONIC));
    atomic_store(&cache->measured, cache->can_measure);
    if (!cache->can_measure && daemon->options.page_cache_bytes)
        efsd_log(EFS_LOG_WARNING, "page_cache: %s", efsd_pagecache_note(daemon));
    int rc = pthread_create(&cache->thread, NULL, pagecache_run, daemon);
    atomic_store(&cache->started, rc == 0);
    return -rc;
}

void efsd_pagecache_stop(struct efsd *daemon)
{
    struct efsd_pagecache *cache = &daemon->pagecache;
    uint64_t one = 1;
    if (!cache->ranges)
        return; /* init was not reached */
    if (atomic_exchange(&cache->started, false)) {
        atomic_store(&cache->stop, true);
        if (write(cache->event_fd, &one, sizeof(one)) < 0)
            efsd_log(EFS_LOG_ERROR, "eventfd: %s", strerror(errno));
        pthread_join(cache->thread, NULL);
    }
    efsd_pagecache_detach(daemon);
}
