/* SPDX-License-Identifier: Apache-2.0 */
/* files.c - see mount.h. Files without users (idle ones) stay open up to a limit of bytes; the
 * least recently used are closed first. */
#include "mount.h"

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

/* Another file of the same expert that is ready, in the same form; NULL: none. */
static struct efs_expert_file *file_twin(const struct efs_expert_file *file)
{
    struct efs_expert_file *twin = LIST_FIRST(&file->expert->files);
    while (twin && (twin == file || !twin->ready || twin->form != file->form))
        twin = LIST_NEXT(twin, sibling);
    return twin;
}

/* The file is in no list. */
static void file_free(struct efs_mount *m, struct efs_expert_file *file)
{
    if (file->exported.tag != EFS_NO_TAG)
        efs_export_drop(m->export, file);
    efs_mapped_close(&file->mapped);
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
    while ((file = TAILQ_FIRST(&m->close_queue))) {
        TAILQ_REMOVE(&m->close_queue, file, link);
        file_free(m, file);
    }
}

/* ---- idle files ---- */

static void file_remove_idle(struct efs_mount *m, struct efs_expert_file *file)
{
    TAILQ_REMOVE(&m->idle, file, link);
    m->idle_bytes -= file->mapped.bytes;
}

/* Passes an idle file to the maintenance thread, which closes it. An expert that the mount exported is freed here, and
 * its tag returned. */
static void file_evict(struct efs_mount *m, struct efs_expert_file *file)
{
    file_remove_idle(m, file);
    LIST_REMOVE(file, sibling);
    if (file->exported.tag != EFS_NO_TAG) {
        file_free(m, file);
        return;
    }
    if (TAILQ_EMPTY(&m->close_queue))
        efs_mount_signal(m->wake);
    TAILQ_INSERT_TAIL(&m->close_queue, file, link);
}

void efs_mount_close_files(struct efs_mount *m)
{
    struct efs_file_list list = TAILQ_HEAD_INITIALIZER(list);
    struct efs_expert_file *file;
    uint32_t closed = 0;
    TAILQ_CONCAT(&list, &m->close_queue, link);
    m->closing++;
    pthread_mutex_unlock(&m->lock);
    for (; (file = TAILQ_FIRST(&list)); closed++) {
        TAILQ_REMOVE(&list, file, link);
        file_free(m, file);
    }
    pthread_mutex_lock(&m->lock);
    m->closing--;
    m->open_files -= closed;
    pthread_cond_broadcast(&m->closed); /* an open may wait for a descriptor */
}

bool efs_files_trim(struct efs_mount *m, uint64_t keep_bytes)
{
    bool some = false;
    for (; !TAILQ_EMPTY(&m->idle) && m->idle_bytes > keep_bytes; some = true)
        file_evict(m, TAILQ_FIRST(&m->idle));
    return some;
}

bool efs_files_free_bytes(struct efs_mount *m, uint64_t bytes)
{
    const uint64_t least = bytes ? bytes : 1;
    return efs_files_trim(m, m->idle_bytes > least ? m->idle_bytes - least : 0);
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
    if (file->ready && file->refs == 0)
        file_remove_idle(m, file);
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
    else if (file->exported.tag != EFS_NO_TAG)
        efs_export_cancel(m->export, file);
}

void efs_file_opened(struct efs_mount *m, struct efs_expert_file *file, errint_t error)
{
    struct efs_mount_item *item;
    file->ready = error == 0;
    while ((item = LIST_FIRST(&file->waiting))) {
        LIST_REMOVE(item, waiting);
        if (error < 0)
            item->file = NULL;
        efs_mount_item_set(item, error < 0 ? EFS_ITEM_FAILED : EFS_ITEM_READY, error);
    }
    if (error < 0) {
        if (file->form == EFS_FORM_FULL) /* a coded one that failed was not shared */
            LIST_REMOVE(file, sibling);
        free(file); /* the next request retries */
        return;
    }
    if (file->exported.tag != EFS_NO_TAG)
        LIST_INSERT_HEAD(&file->expert->files, file, sibling);
    struct efs_expert_file *twin = file_twin(file);
    if (twin && twin->refs == 0)
        file_evict(m, twin);
    if (file->refs == 0)
        file_idle(m, file);
}
