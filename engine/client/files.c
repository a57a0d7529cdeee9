/* SPDX-License-Identifier: Apache-2.0 */
/* files.c - see mount.h. Files without users (idle ones) are kept up to a limit of bytes; the least recently used are
 * dropped first. */
#include "mount.h"

#include <errno.h>
#include <stdlib.h>

/* ---- items ---- */

void efs_mount_item_set(struct efs_mount_item *item, enum efs_item_state state, errint_t error)
{
    struct efs_mount_request *request = item->request;
    struct efs_mount *m = request->mount;
    bool was_loading = item->base.state == EFS_ITEM_LOADING;
    efs_mount_item_set_oversize(item, false);
    efs_client_item_set(&request->base, &item->base, state, error);
    if (!was_loading)
        return;
    m->polled -= request->base.event >= 0;
    if (m->receiving && !m->maintenance_receives)
        efs_mount_signal(m->export->kick); /* the thread may wait for this item */
}

void efs_mount_item_set_oversize(struct efs_mount_item *item, bool oversize)
{
    struct efs_mount_request *request = item->request;
    if (!oversize && request->oversize_item != item)
        return;
    request->oversize_item = oversize ? item : NULL;
    request->base.oversize = oversize;
    pthread_cond_broadcast(request->base.changed);
}

/* ---- files ---- */

/* Another file of the same expert in the same form; NULL: none. */
static struct efs_expert_file *file_twin(const struct efs_expert_file *file)
{
    struct efs_expert_file *twin = LIST_FIRST(&file->expert->files);
    while (twin && (twin == file || twin->form != file->form))
        twin = LIST_NEXT(twin, sibling);
    return twin;
}

/* The file is in no list. */
static void file_free(struct efs_mount *m, struct efs_expert_file *file)
{
    efs_export_drop(m->export, file);
    efs_mapped_free(&file->mapped);
    free(file);
}

void efs_files_free(struct efs_mount *m)
{
    struct efs_expert_file *file;
    struct efs_expert *expert;
    for (unsigned i = 0; i < EFS_MOUNT_BUCKETS; i++)
        while ((expert = LIST_FIRST(&m->experts[i]))) {
            while ((file = LIST_FIRST(&expert->files))) {
                LIST_REMOVE(file, sibling);
                file_free(m, file);
            }
            LIST_REMOVE(expert, same_hash);
            efs_layout_free(expert->layout);
            efs_layout_free(expert->coded_layout);
            free(expert);
        }
}

/* ---- idle files ---- */

static void file_evict(struct efs_mount *m, struct efs_expert_file *file)
{
    TAILQ_REMOVE(&m->idle, file, link);
    m->idle_bytes -= file->mapped.bytes;
    LIST_REMOVE(file, sibling);
    file_free(m, file);
}

void efs_files_trim(struct efs_mount *m, uint64_t keep_bytes)
{
    while (!TAILQ_EMPTY(&m->idle) && m->idle_bytes > keep_bytes)
        file_evict(m, TAILQ_FIRST(&m->idle));
}

void efs_files_free_bytes(struct efs_mount *m, uint64_t bytes)
{
    const uint64_t least = bytes ? bytes : 1;
    efs_files_trim(m, m->idle_bytes > least ? m->idle_bytes - least : 0);
}

void efs_files_evict_unprotected(struct efs_mount *m)
{
    for (struct efs_expert_file *file = TAILQ_FIRST(&m->idle), *newer; file; file = newer) {
        newer = TAILQ_NEXT(file, link);
        if (!efs_file_is_protected(m, file))
            file_evict(m, file);
    }
    efs_files_trim(m, m->keep_bytes);
}

/* ---- users ---- */

void efs_file_ref(struct efs_mount *m, struct efs_expert_file *file)
{
    if (file->ready && file->refs == 0) {
        TAILQ_REMOVE(&m->idle, file, link);
        m->idle_bytes -= file->mapped.bytes;
    }
    file->refs++;
}

/* A file that is ready has no users: it becomes idle, and is evicted if it may not stay open. */
static void file_idle(struct efs_mount *m, struct efs_expert_file *file)
{
    m->idle_count++;
    TAILQ_INSERT_TAIL(&m->idle, file, link);
    m->idle_bytes += file->mapped.bytes;
    if (file_twin(file) || !efs_file_is_protected(m, file))
        file_evict(m, file);
    efs_files_trim(m, m->keep_bytes);
}

void efs_file_unref(struct efs_mount *m, struct efs_expert_file *file)
{
    if (--file->refs)
        return;
    if (file->ready)
        file_idle(m, file);
    else
        efs_export_cancel(m->export, file);
}

void efs_file_received(struct efs_mount *m, struct efs_expert_file *file)
{
    struct efs_mount_item *item;
    file->ready = true;
    while ((item = LIST_FIRST(&file->waiting))) {
        LIST_REMOVE(item, waiting);
        efs_mount_item_set(item, EFS_ITEM_READY, 0);
    }
    LIST_INSERT_HEAD(&file->expert->files, file, sibling);
    struct efs_expert_file *twin = file_twin(file);
    if (twin && twin->refs == 0)
        file_evict(m, twin);
    if (file->refs == 0)
        file_idle(m, file);
}

void efs_file_failed(struct efs_expert_file *file, errint_t error)
{
    struct efs_mount_item *item;
    while ((item = LIST_FIRST(&file->waiting))) {
        LIST_REMOVE(item, waiting);
        item->file = NULL;
        efs_mount_item_set(item, EFS_ITEM_FAILED, error == -EAGAIN ? -EIO : error);
    }
    efs_export_free_coded(&file->exported);
    efs_mapped_free(&file->mapped);
    free(file); /* the next request retries */
}
