/* SPDX-License-Identifier: Apache-2.0 */
/* lease.c - see fetch.h: starts loads; leases on full experts: filled, exported, released. */
#include "fetch.h"

#include "container.h"
#include "sys.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- filling ---- */

/* Lock held: answers all items that wait for an expert that was filled, or not. */
static void fill_answer(struct efs *fs, uint32_t expert, struct efs_request_item *waiters, errint_t error)
{
    if (error < 0)
        efs_cache_lost_full(fs, expert);
    for (struct efs_request_item *item = waiters, *next; item; item = next) {
        next = item->next_waiter;
        if (error < 0) {
            efs_item_unhold(fs, item);
            efs_cache_release(fs, expert);
        } else {
            efs_lease_get(fs, expert);
        }
        if (error == 0 && next) /* all except one joined the fill */
            efs_count(&fs->stats, leases_shared, 1);
        efs_item_defer_answer(fs, item, error);
    }
}

void efs_lease_filled(struct efs_request_item *item)
{
    struct efs *fs = item->request->fs;
    struct efs_memfile *memfile = item->memfile;
    errint_t error = item->load_error;
    bool from_disk = item->from_disk, fresh = item->fresh;
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
    efs_retry(fs, EFS_RETRY_ADMIT); /* after an error, or without waiters, memory is available */
    efs_count(&fs->stats, leases_m, error == 0 && from_disk);
    efs_count(&fs->stats, leases_c, error == 0 && !from_disk);
    efs_unlock(fs);
}

/* Sets the size of the memory file, allocates its pages, writes the header of the expert's file and zeros after its
 * end. -ENOMEM: no pages. */
static errint_t memfile_prepare(const struct efs_view *view, uint32_t expert, struct efs_memfile *memfile)
{
    uint64_t file_bytes = efs_view_expert_bytes(view, expert);
    efs_memfile_resize(memfile, file_bytes);
    errint_t rc = efs_memfile_reserve(memfile);
    if (rc < 0)
        return rc;
    efs_view_expert_header(view, expert, (char *)memfile->data);
    memset(memfile->data + file_bytes, 0, memfile->bytes - file_bytes);
    return 0;
}

void efs_item_start(struct efs *fs, struct efs_task *task)
{
    struct efs_request_item *item = EFS_CONTAINER(task, struct efs_request_item, task);
    if (item->form == EFS_FORM_FULL && !item->memfile)
        item->memfile = efs_memfile_new(efs_full_memfiles(fs), efs_memfile_bytes(fs, item->expert));
    if (item->form == EFS_FORM_FULL && (!item->memfile || memfile_prepare(&fs->view, item->expert, item->memfile) < 0))
        item->load_error = -ENOMEM; /* the system has no memory, although the budget had */
    efs_item_begin(item);
}

/* ---- the holder's calls ---- */

/* A leased expert keeps its memory file, so no lock is needed. */
static struct efs_memfile *lease_memfile(const struct efs_lease *lease)
{
    return efs_full_of(lease->fs, lease->expert)->memfile;
}

int efs_lease_fd(const struct efs_lease *lease)
{
    errint_t rc = efs_is_this_process(lease->fs)
                      ? efs_memfile_export(efs_full_memfiles(lease->fs), lease_memfile(lease))
                      : -ECHILD;
    return rc < 0 ? rc : lease_memfile(lease)->fd;
}

errint_t efs_lease_window(const struct efs_lease *lease, struct efs_window *window)
{
    struct efs_memfile *memfile = lease_memfile(lease);
    errint_t rc = efs_memfile_make_window(efs_full_memfiles(lease->fs), memfile);
    *window = (struct efs_window){.number = memfile->window,
                                  .fd = -1,
                                  .bytes = memfile->bytes,
                                  .file_bytes = efs_view_expert_bytes(&lease->fs->view, lease->expert)};
    return rc;
}

errint_t efs_lease_open_window(const struct efs_lease *lease, struct efs_window *window)
{
    errint_t rc = efs_lease_window(lease, window);
    window->fd = rc < 0 ? rc : efs_memfile_open_window(lease_memfile(lease));
    return window->fd < 0 ? window->fd : 0;
}

const void *efs_lease_data(const struct efs_lease *lease)
{
    return efs_is_this_process(lease->fs) ? lease_memfile(lease)->data : NULL;
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
    fs->leases->handles = efs_sys_calloc(count + 1u, sizeof(*fs->leases->handles));
    fs->leases->coded_pins = efs_sys_calloc(count + 1u, sizeof(*fs->leases->coded_pins));
    fs->leases->preloading = efs_sys_calloc(count + 1u, sizeof(*fs->leases->preloading));
    if (!fs->leases->handles || !fs->leases->coded_pins || !fs->leases->preloading)
        return -ENOMEM;
    for (uint32_t e = 0; e < count; e++)
        fs->leases->handles[e] = (struct efs_lease){fs, e};
    fs->leases->fs = fs;
    EFS_QUEUE_INIT(&fs->leases->queue);
    return 0;
}

void efs_leases_destroy(struct efs *fs)
{
    free(fs->leases->handles);
    free(fs->leases->coded_pins);
    free(fs->leases->preloading);
    fs->leases->handles = NULL;
    fs->leases->coded_pins = NULL;
    fs->leases->preloading = NULL;
}
