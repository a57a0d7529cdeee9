/* SPDX-License-Identifier: Apache-2.0 */
/* item.c - see fetch.h: what an item holds, and its life from the end of its load until it is dropped. */
#include "fetch.h"
#include "stats.h"

#include "container.h"
#include "sys.h"

#include <assert.h>
#include <stdlib.h>

struct efs_holder *efs_holder_new(void)
{
    struct efs_holder *holder = efs_sys_calloc(1, sizeof(*holder));
    if (holder)
        holder->refs = 1;
    return holder;
}

void efs_holder_unref(struct efs_holder *holder)
{
    if (holder && atomic_fetch_sub(&holder->refs, 1) == 1)
        free(holder);
}

void efs_request_unref(struct efs_request *request)
{
    pthread_mutex_lock(&request->lock);
    bool last = --request->refs == 0;
    pthread_mutex_unlock(&request->lock);
    if (!last)
        return;
    for (uint32_t i = 0; i < request->base.count; i++)
        free(request->items[i].tensors);
    efs_holder_unref(request->holder);
    pthread_cond_destroy(&request->changed);
    pthread_mutex_destroy(&request->lock);
    efs_client_request_free(&request->base);
}

/* ---- memory; with efs.lock held ---- */

uint64_t efs_item_bytes(const struct efs *fs, const struct efs_request_item *item)
{
    return item->form == EFS_FORM_CODED ? efs_expert_coded_bytes(fs, item->expert)
                                        : efs_memfile_bytes(fs, item->expert);
}

void efs_item_set_held(struct efs *fs, struct efs_request_item *item, bool held)
{
    uint64_t bytes = efs_item_bytes(fs, item);
    if (item->held == held)
        return;
    item->held = held;
    const bool was_holding = efs_held_some(item->request->held);
    item->request->held.bytes[item->form] += held ? bytes : -bytes;
    const bool is_holding = efs_held_some(item->request->held);
    if (item->request->base.thread && !was_holding && is_holding)
        LIST_INSERT_HEAD(&fs->leases->holding, item->request, holding);
    else if (item->request->base.thread && was_holding && !is_holding)
        LIST_REMOVE(item->request, holding);
    if (item->request->holder)
        item->request->holder->held.bytes[item->form] += held ? bytes : -bytes;
    if (!held)
        efs_changed(fs, EFS_CHANGED_HELD);
}

void efs_item_coded_pin(struct efs *fs, const struct efs_request_item *item)
{
    if (fs->leases->at[item->expert].coded_pins++ == 0) {
        efs_account_charge(&fs->account, EFS_ACCOUNT_CODED_PINNED, efs_item_bytes(fs, item));
        fs->coded_pinned++;
    }
}

void efs_item_coded_unpin(struct efs *fs, const struct efs_request_item *item)
{
    if (--fs->leases->at[item->expert].coded_pins == 0) {
        efs_account_release(&fs->account, EFS_ACCOUNT_CODED_PINNED, efs_item_bytes(fs, item));
        fs->coded_pinned--;
    }
}

void efs_lease_get(struct efs *fs, uint32_t expert)
{
    efs_full_lease(fs, expert);
    efs_cache_leased(fs);
}

void efs_item_release(struct efs_request_item *item, int *fd)
{
    struct efs *fs = item->request->fs;
    efs_item_set_held(fs, item, false);
    if (item->form == EFS_FORM_FULL) {
        efs_full_unlease(fs, item->expert, fd);
    } else {
        for (uint32_t i = 0; i < item->part_count; i++)
            if (item->parts[i].waiter.error == 0)
                efs_extent_unref(fs, &item->parts[i].waiter, false);
        efs_item_coded_unpin(fs, item);
    }
    efs_cache_release(fs, item->expert);
}

/* ---- the answer; without lock ---- */

static void item_release(struct efs_request_item *item)
{
    int fd = -1;
    efs_lock(item->request->fs);
    efs_item_release(item, &fd);
    efs_unlock(item->request->fs);
    if (fd >= 0)
        efs_sys_close(fd);
}

void efs_item_set(struct efs_request_item *item, enum efs_item_state state, errint_t error)
{
    pthread_mutex_lock(&item->request->lock);
    efs_client_item_set(&item->request->base, &item->base, state, error);
    pthread_mutex_unlock(&item->request->lock);
}

/* Completes an item of this process: READY, or FAILED with this error; it then holds nothing. */
static void item_complete(struct efs_request_item *item, errint_t error)
{
    struct efs_request *request = item->request;
    pthread_mutex_lock(&request->lock);
    bool loading = item->base.state == EFS_ITEM_LOADING, wanted = loading && !item->preload;
    if (loading)
        efs_client_item_set(&request->base, &item->base,
                            error < 0 ? EFS_ITEM_FAILED
                            : wanted  ? EFS_ITEM_READY
                                      : EFS_ITEM_DROPPED,
                            error);
    pthread_mutex_unlock(&request->lock);
    if (error == 0 && !wanted)
        item_release(item);
    if (item->preload)
        atomic_fetch_and(&request->fs->leases->at[item->expert].preloading, (uint8_t) ~(1u << item->form));
    efs_request_unref(request);
}

/* Answers an item; it was loaded, or load_error says why not. One of another process is READY until efs_client_drop(),
 * or FAILED. May free the request. */
static void item_answer(struct efs_request_item *item)
{
    struct efs_request *request = item->request;
    struct efs *fs = request->fs;
    errint_t error = item->load_error;
    efs_count(fs->stats, lease_errors, item->form == EFS_FORM_FULL && error < 0);
    efs_count(fs->stats, coded_errors, item->form == EFS_FORM_CODED && error < 0);
    if (request->arrived) {
        efs_item_set(item, error < 0 ? EFS_ITEM_FAILED : EFS_ITEM_READY, error);
        request->arrived(item->arg, error, error < 0 ? NULL : &request->base, (uint32_t)(item - request->items));
        if (error < 0)
            efs_request_unref(request);
    } else {
        item_complete(item, error);
    }
    efs_in_flight_end(fs);
}

static void item_run_answer(struct efs *fs, struct efs_task *task)
{
    (void)fs;
    item_answer(EFS_CONTAINER(task, struct efs_request_item, task));
}

void efs_item_defer_answer(struct efs *fs, struct efs_request_item *item, errint_t error)
{
    item->load_error = error;
    efs_defer_task(fs, &item->task, item_run_answer);
}

/* ---- the end of a load; without lock ---- */

/* Lock held: answers all items that wait for an expert that was filled, or not. */
static void fill_answer(struct efs *fs, uint32_t expert, struct efs_request_item *waiters, errint_t error)
{
    if (error < 0)
        efs_cache_lost_full(fs, expert);
    for (struct efs_request_item *item = waiters, *next; item; item = next) {
        next = item->next_waiter;
        if (error < 0) {
            efs_item_set_held(fs, item, false);
            efs_cache_release(fs, expert);
        } else {
            efs_lease_get(fs, expert);
        }
        if (error == 0 && next) /* all except one joined the fill */
            efs_count(fs->stats, leases_shared, 1);
        efs_item_defer_answer(fs, item, error);
    }
}

void efs_item_loaded(struct efs_request_item *item)
{
    struct efs *fs = item->request->fs;
    struct efs_memfile *memfile = item->memfile;
    errint_t error = item->load_error;
    bool from_disk = item->from_disk, fresh = !memfile || !memfile->populated;
    if (item->form == EFS_FORM_CODED) {
        efs_count(fs->stats, coded_m, error == 0 && from_disk);
        efs_count(fs->stats, coded_c, error == 0 && !from_disk);
        if (error < 0)
            item_release(item);
        item_answer(item);
        return;
    }
    efs_lock(fs);
    efs_extents_put_used_up(fs);
    assert(!memfile || memfile->kind != EFS_MEMFILE_EXPORTED); /* the fill has just written it */
    if (memfile && fresh)
        memfile->populated = error == 0;
    struct efs_request_item *waiters = efs_full_filled(fs, item->expert, error == 0 ? memfile : NULL, fresh);
    efs_account_add_allocated(&fs->account, memfile && fresh ? memfile->bytes : 0);
    if (!memfile)
        efs_account_release(&fs->account, EFS_ACCOUNT_FULL, efs_memfile_bytes(fs, item->expert));
    else if (error < 0)
        efs_full_put_memfile(fs, memfile);
    fill_answer(fs, item->expert, waiters, error);
    efs_count(fs->stats, leases_m, error == 0 && from_disk);
    efs_count(fs->stats, leases_c, error == 0 && !from_disk);
    efs_unlock(fs);
}
