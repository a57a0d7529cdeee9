/* SPDX-License-Identifier: Apache-2.0 */
/*
 * estimate_rates.c - how long a token takes: what it reads, by the plan that a mount with this budget would make, over
 * what the disk gives; and what it computes with, over what memory gives. Nothing is taken to overlap.
 */
#include "estimate.h"

#include "expertfs-private.h"
#include "history.h"
#include "lines.h"
#include "measure.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOOK_SECONDS 0.5
#define PROFILE_SECONDS 2
#define PLAN_SECONDS 10 /* a plan is made within milliseconds of opening */
#define READ_BYTES (4u << 20)
#define READERS 4u
#define WORDS_BYTES (64u << 20) /* of a thread: more than caches hold */
#define THREADS_MAX 256u
#define FIXED_BYTES (48u << 20) /* of a mount's budget, beside its pools: index, buffers */

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- looks at disk and memory ---- */

struct look {
    pthread_t thread;
    int fd;
    uint64_t file_bytes, seed, bytes; /* bytes: that were read */
    double until;
};

static void *look_reads(void *arg)
{
    struct look *l = arg;
    void *room = aligned_alloc(4096, READ_BYTES);
    while (room && seconds_now() < l->until) {
        l->seed = l->seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t at = (l->seed >> 20) % (l->file_bytes / READ_BYTES) * READ_BYTES;
        if (pread(l->fd, room, READ_BYTES, (off_t)at) != (ssize_t)READ_BYTES)
            break;
        l->bytes += READ_BYTES;
    }
    free(room);
    return NULL;
}

static void *look_words(void *arg)
{
    struct look *l = arg;
    uint64_t *words = malloc(WORDS_BYTES), sum = 0;
    if (words)
        memset(words, 1, WORDS_BYTES);
    l->until = seconds_now() + LOOK_SECONDS / 2; /* pages are there now */
    while (words && seconds_now() < l->until) {
        sum += tools_read_words(words, WORDS_BYTES / 8);
        l->bytes += WORDS_BYTES;
    }
    __asm__ volatile("" : : "r"(sum)); /* it is used */
    free(words);
    return NULL;
}

/* Bytes a second of all threads together; 0: no memory, or nothing could be read. */
static double look_run(void *(*run)(void *), struct look *looks, unsigned count, double seconds)
{
    uint64_t bytes = 0;
    unsigned started = 0;
    while (started < count && pthread_create(&looks[started].thread, NULL, run, &looks[started]) == 0)
        started++;
    for (unsigned i = 0; i < started; i++) {
        pthread_join(looks[i].thread, NULL);
        bytes += looks[i].bytes;
    }
    return (double)bytes / seconds;
}

/* nftw() has no argument. */
static struct {
    char path[4096];
    off_t bytes;
} largest;

static int largest_look(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)where;
    if (type == FTW_F && st->st_size > largest.bytes && strlen(path) < sizeof(largest.path)) {
        largest.bytes = st->st_size;
        strcpy(largest.path, path);
    }
    return 0;
}

/* Of the largest file of a checkpoint, past the page cache where that can be. 0: it is too small to tell. */
static double disk_look(const char *path)
{
    struct look looks[READERS];
    largest.bytes = 0;
    if (nftw(path, largest_look, 16, 0) < 0 || largest.bytes < 16 * (off_t)READ_BYTES)
        return 0;
    int fd = open(largest.path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd < 0)
        fd = open(largest.path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    double begin = seconds_now();
    for (unsigned i = 0; i < READERS; i++)
        looks[i] = (struct look){
            .fd = fd, .file_bytes = (uint64_t)largest.bytes, .seed = i + 1, .until = begin + LOOK_SECONDS};
    double rate = look_run(look_reads, looks, READERS, 1) / (seconds_now() - begin);
    close(fd);
    return rate;
}

static double memory_look(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned count = cores < 1 ? 1 : cores > (long)THREADS_MAX ? THREADS_MAX : (unsigned)cores;
    struct look *looks = calloc(count, sizeof(*looks));
    double rate = looks ? look_run(look_words, looks, count, LOOK_SECONDS / 2) : 0;
    free(looks);
    return rate;
}

/* ---- a store: its profile, and the plan of a mount ---- */

static errint_t profile_get(struct estimate *e, struct efs_error *err)
{
    struct efs_store *store;
    struct efs_store_info info;
    struct efs_profile profile;
    char path[4200];
    errint_t rc = efs_store_open(e->path, &store, err);
    if (rc < 0)
        return rc;
    efs_store_info(store, &info, sizeof(info));
    snprintf(e->rates, sizeof(e->rates), "saved");
    rc = efs_profile_path(info.content_hash, path, sizeof(path), err);
    if (rc == 0)
        rc = efs_profile_load(path, &profile, err);
    if (rc < 0) { /* none, or one that is no good: as a mount, which would measure and save */
        snprintf(e->rates, sizeof(e->rates), "measured");
        rc = efs_profile_measure(store, 0, PROFILE_SECONDS, &profile, err);
        struct efs_error unsaved = {""};
        if (rc == 0)
            efs_profile_save(&profile, &unsaved);
    }
    efs_store_close(store);
    e->disk_bytes_per_second = rc == 0 ? profile.disk_bytes_per_second : 0;
    return rc;
}

static double line_number(const char *lines, const char *name)
{
    const char *value = tools_line_value(lines, name);
    return value ? strtod(value, NULL) : 0;
}

/* What a mount with this budget would plan; the text for free(). */
static errint_t plan_get(const struct estimate *e, char **plan, struct efs_error *err)
{
    const struct efs_options options = {.size = sizeof(struct efs_options), .budget_bytes = e->budget_bytes};
    struct efs *fs;
    size_t bytes;
    double until = seconds_now() + PLAN_SECONDS;
    *plan = NULL;
    errint_t rc = efs_open(e->path, &options, &fs, err);
    if (rc < 0)
        return rc;
    for (;;) {
        rc = efs_describe(fs, "plan", plan, &bytes);
        if (rc < 0 || line_number(*plan, "planned_at") > 0)
            break;
        free(*plan);
        *plan = NULL;
        if (seconds_now() > until)
            rc = -ETIME;
        if (rc < 0)
            break;
        usleep(10000);
    }
    efs_close(fs);
    return rc < 0 ? efs_fail(err, rc, "%s: no plan: %s", e->path, strerror(-rc)) : 0;
}

/* ---- the same, simpler: the experts that are asked for most are in memory, whole ---- */

static errint_t time_assumed(struct estimate *e, struct efs_error *err)
{
    struct efs_skew skew;
    double pools = e->budget_bytes > FIXED_BYTES ? (double)(e->budget_bytes - FIXED_BYTES) : 0;
    double one = (double)e->coded_bytes / e->layers / e->experts, kept = pools / e->layers / one, hits = 0;
    int rc = efs_skew_learn(&skew, NULL, e->layers, e->experts, (double)e->config.chosen);
    for (unsigned r = 0; rc == 0 && r < e->experts && kept > 0; r++, kept--)
        hits += skew.mean[r] * (kept < 1 ? kept : 1);
    double misses = rc == 0 ? skew.mean_chosen - hits : 0;
    e->hit_part = rc == 0 && skew.mean_chosen > 0 ? hits / skew.mean_chosen : 0;
    efs_skew_free(&skew);
    if (rc < 0)
        return efs_fail(err, rc, "%s: %u layers of %u experts cannot be reckoned", e->path, e->layers, e->experts);
    snprintf(e->skew, sizeof(e->skew), "assumed");
    if (e->disk_bytes_per_second > 0)
        e->read_ns = (misses > 0 ? misses : 0) * e->layers * one / e->disk_bytes_per_second * 1e9;
    return 0;
}

static errint_t time_of_checkpoint(struct estimate *e, struct efs_error *err)
{
    snprintf(e->rates, sizeof(e->rates), "measured");
    e->disk_bytes_per_second = disk_look(e->path);
    return time_assumed(e, err);
}

static errint_t time_of_store(struct estimate *e, struct efs_error *err)
{
    char *plan;
    errint_t rc = profile_get(e, err);
    if (rc == 0)
        rc = plan_get(e, &plan, err);
    if (rc == -ENOMEM) /* more memory than there is here: it is for another machine */
        return time_assumed(e, err);
    if (rc < 0)
        return rc;
    double chosen = line_number(plan, "chosen");
    const char *skew = tools_line_value(plan, "skew");
    snprintf(e->skew, sizeof(e->skew), "%.*s", skew ? (int)strcspn(skew, "\n") : 0, skew ? skew : "");
    if (chosen > 0) {
        double part = (double)e->config.chosen / chosen; /* what it was asked for may be of prompts, or assumed */
        e->hit_part = 1 - line_number(plan, "misses") / chosen;
        e->read_ns = line_number(plan, "io_ns") * part;
    }
    free(plan);
    return 0;
}

errint_t estimate_rates(struct estimate *e, struct efs_error *err)
{
    e->memory_bytes_per_second = memory_look();
    errint_t rc = e->packed ? time_of_store(e, err) : time_of_checkpoint(e, err);
    double one = (double)(estimate_coded(e) ? e->coded_bytes : e->expert_bytes) / e->layers / e->experts;
    double touched = (double)e->dense_bytes + one * e->layers * (double)e->config.chosen;
    if (rc == 0 && e->memory_bytes_per_second > 0)
        e->compute_ns = touched / e->memory_bytes_per_second * 1e9;
    return rc;
}
