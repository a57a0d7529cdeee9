/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - see fetch.h: leases for opens of experts' files, and what their holders call. An expert that is full is
 * leased at once; opens of other experts that arrive at about the same time are collected, and those of a layer become
 * one request: a reader that opens a layer's experts one by one is served as if it had requested them at once (ZipMoE
 * 3.3).
 */
#include "fetch.h"
#include "stats.h"

#include "cache.h"
#include "container.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>

#define COALESCE_MAX 64u /* opens that are one request */

struct efs_open {
    struct efs_open *next;
    struct efs_lease *lease; /* to be granted */
    efs_leased_fn *done;
    void *arg;
};

/* Counts an open whose lease could not be requested. */
static void open_count_failed(struct efs *fs)
{
    efs_count(fs->stats, leases, 1);
    efs_count(fs->stats, lease_errors, 1);
}

static void open_end(struct efs_open *w, errint_t error)
{
    w->done(w->arg, error, error < 0 ? NULL : w->lease);
    free(w);
}

/* efs_arrived_fn: detaches the lease from the request, and reports it to the open, which then holds it. */
static void open_arrived(void *arg, errint_t error, struct efs_client_request *request, uint32_t index)
{
    if (request)
        efs_request_detach(request, index);
    open_end(arg, error);
}

/* Removes opens of the first one's layer from the list: at most COALESCE_MAX, one per expert. Returns their number. */
static uint32_t coalesce_pop_layer(const struct efs *fs, struct efs_open **list, struct efs_need *needs, void **taken)
{
    uint32_t count = 0, layer = efs_cache(fs)->expert[(*list)->lease->expert].layer;
    for (struct efs_open **p = list, *w; (w = *p) && count < COALESCE_MAX;) {
        bool take = efs_cache(fs)->expert[w->lease->expert].layer == layer;
        for (uint32_t i = 0; i < count && take; i++)
            take = needs[i].expert != w->lease->expert;
        if (!take) {
            p = &w->next;
            continue;
        }
        *p = w->next;
        needs[count] = (struct efs_need){.expert = w->lease->expert, .tokens = 1};
        taken[count++] = w;
    }
    return count;
}

static void coalesce_submit(struct efs *fs, struct efs_open **list)
{
    struct efs_need needs[COALESCE_MAX] = {{0}};
    void *taken[COALESCE_MAX];
    struct efs_client_request *none;
    const struct efs_request_how how = {.arrived = open_arrived, .args = taken, .opened = true};
    uint32_t count = coalesce_pop_layer(fs, list, needs, taken);
    errint_t rc = efs_request_submit(fs, needs, count, &how, &none, NULL);
    for (uint32_t i = 0; rc < 0 && i < count; i++) {
        open_count_failed(fs);
        open_end(taken[i], rc);
    }
}

static void coalesce_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_leases *leases = EFS_CONTAINER(job, struct efs_leases, coalesce_job);
    struct efs_open *list = NULL, *next;
    (void)scratch;
    for (struct efs_open *w = atomic_exchange(&leases->open_list, NULL); w; w = next) {
        next = w->next;
        w->next = list; /* restores the order of arrival */
        list = w;
    }
    struct efs *fs = list->lease->fs; /* the job is queued when the list gets its first open */
    while (list)
        coalesce_submit(fs, &list);
    efs_in_flight_end(fs);
}

/* Lock held: adds the open to open_list. If the list was empty, defers the job that submits it. */
static void open_enqueue(struct efs *fs, struct efs_open *w)
{
    struct efs_leases *leases = fs->leases;
    struct efs_open *before = atomic_load(&leases->open_list);
    do
        w->next = before;
    while (!atomic_compare_exchange_weak(&leases->open_list, &before, w));
    if (before) /* coalesce_job is queued already */
        return;
    leases->coalesce_job.run = coalesce_run;
    efs_in_flight_begin(fs);
    efs_defer_job(fs, &leases->coalesce_job, EFS_JOB_FIRST);
}

/* Leases an expert that is full in a memory file that can be exported. false: there is none. */
static bool open_lease_ready(struct efs *fs, uint32_t expert)
{
    const struct efs_full *f = efs_full_of(fs, expert);
    if (f->state != EFS_FULL_READY || efs_full_is_unusable(f, EFS_MEMFILE_EXPORTED))
        return false;
    efs_count(fs->stats, leases, 1);
    efs_count(fs->stats, leases_f, 1);
    fs->leases->last_use = EFS_MEMFILE_EXPORTED;
    efs_use_experts(fs, &(struct efs_need){.expert = expert, .tokens = 1}, 1, EFS_USE_OPENED);
    efs_lease_get(fs, expert);
    return true;
}

void efs_lease(struct efs *fs, uint32_t file, efs_leased_fn *done, void *arg)
{
    struct efs_file_info info;
    errint_t rc = efs_is_this_process(fs) ? efs_view_info(&fs->view, file, &info) : -ECHILD;
    if (rc == 0 && (info.kind != EFS_FILE_EXPERT || !fs->options.full_pool))
        rc = -EINVAL;
    struct efs_open *open = rc == 0 ? efs_sys_calloc(1, sizeof(*open)) : NULL;
    if (!open) {
        open_count_failed(fs);
        done(arg, rc ? rc : -ENOMEM, NULL);
        return;
    }
    *open = (struct efs_open){.lease = &fs->leases->at[info.expert.number], .done = done, .arg = arg};
    efs_lock(fs);
    bool ready = !fs->closing && open_lease_ready(fs, info.expert.number);
    if (ready)
        efs_in_flight_begin(fs);
    else
        open_enqueue(fs, open);
    efs_unlock(fs);
    if (!ready)
        return;
    open_end(open, 0);
    efs_in_flight_end(fs);
}

/* ---- the holder's calls ---- */

int efs_lease_fd(const struct efs_lease *lease)
{
    errint_t rc = efs_is_this_process(lease->fs)
                      ? efs_memfile_export(efs_full_memfiles(lease->fs), efs_lease_memfile(lease))
                      : -ECHILD;
    return rc < 0 ? rc : efs_lease_memfile(lease)->fd;
}

void efs_lease_release(struct efs_lease *lease)
{
    struct efs *fs = lease->fs;
    if (!efs_is_this_process(fs))
        return;
    efs_lock(fs);
    efs_full_close(fs, lease->expert);
    efs_cache_release(fs, lease->expert);
    efs_unlock(fs);
}

errint_t efs_leases_build(struct efs *fs)
{
    uint32_t count = fs->store->expert_count;
    struct efs_lease *at = fs->leases->at = efs_sys_calloc(count + 1u, sizeof(*at));
    for (uint32_t e = 0; at && e < count; e++)
        at[e] = (struct efs_lease){.fs = fs, .expert = e};
    EFS_QUEUE_INIT(&fs->leases->queue);
    return at ? 0 : -ENOMEM;
}

void efs_leases_destroy(struct efs *fs)
{
    free(fs->leases->at);
}
