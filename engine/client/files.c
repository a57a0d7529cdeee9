/* SPDX-License-Identifier: Apache-2.0 */
/* files.c - see mount.h. Files without users (idle ones) stay open up to a limit of bytes; the least recently used are
 * closed first. */
#include "mount_request.h"

#include <errno.h>
#include <stdlib.h>

static bool file_is_shared(const struct efs_expert_file *file)
{
    return file->state == EFS_FILE_READY || file->exported.tag == EFS_NO_TAG;
}

/* The first shared file with this key, from `file` on in its bucket. */
static struct efs_expert_file *file_search(struct efs_expert_file *file, const struct efs_expert_key *key,
                                           uint32_t hash)
{
    while (file && (file->hash != hash || !efs_expert_key_is(&file->key, key) || !file_is_shared(file)))
        file = file->next_hashed;
    return file;
}

struct efs_expert_file *efs_file_find(struct efs_mount *m, const struct efs_expert_key *key)
{
    uint32_t hash = efs_expert_key_hash(key);
    return file_search(m->buckets[hash % EFS_MOUNT_BUCKETS], key, hash);
}

/* Another loaded file of the same expert; NULL: none. */
static struct efs_expert_file *file_twin(struct efs_mount *m, const struct efs_expert_file *file)
{
    struct efs_expert_file *twin = m->buckets[file->hash % EFS_MOUNT_BUCKETS];
    while ((twin = file_search(twin, &file->key, file->hash)) && (twin == file || twin->state != EFS_FILE_READY))
        twin = twin->next_hashed;
    return twin;
}

static void file_unhash(struct efs_mount *m, struct efs_expert_file *file)
{
    struct efs_expert_file **p = &m->buckets[file->hash % EFS_MOUNT_BUCKETS];
    if (!file->hashed)
        return;
    while (*p != file)
        p = &(*p)->next_hashed;
    *p = file->next_hashed;
    file->hashed = false;
}

static void file_hash(struct efs_mount *m, struct efs_expert_file *file)
{
    file->hash = efs_expert_key_hash(&file->key);
    file->hashed = true;
    file->next_hashed = m->buckets[file->hash % EFS_MOUNT_BUCKETS];
    m->buckets[file->hash % EFS_MOUNT_BUCKETS] = file;
}

void efs_file_add(struct efs_mount *m, struct efs_expert_file *file, const struct efs_expert_key *key)
{
    file->key = *key;
    file->mapped.fd = -1;
    file->exported.tag = EFS_NO_TAG;
    file_hash(m, file);
}

void efs_file_make_full(struct efs_mount *m, struct efs_expert_file *file)
{
    file_unhash(m, file);
    file->any = false;
    file->key.coded = false;
    file_hash(m, file);
}

void efs_file_queue(struct efs_mount *m, struct efs_expert_file *file)
{
    file->state = EFS_FILE_QUEUED;
    *m->open_tail = file;
    m->open_tail = &file->next_queued;
    m->queued++;
}

void efs_file_fall_back(struct efs_mount *m, struct efs_expert_file *file, errint_t error)
{
    efs_export_free_coded(&file->exported);
    file->exported = (struct efs_exported_expert){.tag = EFS_NO_TAG};
    if (file->any)
        efs_file_make_full(m, file);
    if (file->waiting)
        efs_mount_item_set_oversize(file->waiting, false);
    if (file->key.coded)
        efs_file_opened(m, file, error == -EAGAIN ? -EIO : error);
    else
        efs_file_queue(m, file);
}

void efs_files_free(struct efs_expert_file *list)
{
    while (list) {
        struct efs_expert_file *next = list->next_queued;
        free(list);
        list = next;
    }
}

static void file_free_forked(struct efs_expert_file *file)
{
    efs_mapped_close(&file->mapped);
    efs_mapped_free_tensors(&file->mapped);
    efs_export_free_coded(&file->exported);
    free(file);
}

void efs_files_free_forked(struct efs_mount *m)
{
    struct efs_expert_file *next;
    for (unsigned i = 0; i < EFS_MOUNT_BUCKETS; i++)
        for (struct efs_expert_file *file = m->buckets[i]; file; file = next) {
            next = file->next_hashed;
            file_free_forked(file);
        }
    for (struct efs_expert_file *file = m->close_queue; file; file = next) {
        next = file->next_queued;
        file_free_forked(file);
    }
}

/* ---- idle files ---- */

static void file_add_idle(struct efs_mount *m, struct efs_expert_file *file)
{
    file->idle = true;
    file->newer = NULL;
    file->older = m->newest;
    if (m->newest)
        m->newest->newer = file;
    else
        m->oldest = file;
    m->newest = file;
    m->idle_bytes += file->mapped.bytes;
}

static void file_remove_idle(struct efs_mount *m, struct efs_expert_file *file)
{
    *(file->newer ? &file->newer->older : &m->newest) = file->older;
    *(file->older ? &file->older->newer : &m->oldest) = file->newer;
    file->idle = false;
    m->idle_bytes -= file->mapped.bytes;
}

/* Passes an idle file to the maintenance thread, which closes it. An expert that the mount exported is freed here, and
 * its tag returned. */
static void file_evict(struct efs_mount *m, struct efs_expert_file *file)
{
    file_remove_idle(m, file);
    file_unhash(m, file);
    if (file->exported.tag != EFS_NO_TAG) {
        efs_export_drop(m->export, file);
        efs_mapped_free_tensors(&file->mapped);
        free(file);
        return;
    }
    file->next_queued = m->close_queue;
    m->close_queue = file;
    efs_mount_wake_maintenance(m);
}

void efs_mount_close_files(struct efs_mount *m)
{
    struct efs_expert_file *list = m->close_queue;
    uint32_t closed = 0;
    m->close_queue = NULL;
    m->closing++;
    pthread_mutex_unlock(&m->lock);
    for (; list; closed++) {
        struct efs_expert_file *file = list;
        list = file->next_queued;
        efs_mapped_close(&file->mapped);
        free(file);
    }
    pthread_mutex_lock(&m->lock);
    m->closing--;
    m->open_files -= closed;
    pthread_cond_broadcast(&m->open_wake); /* an open may wait for a descriptor */
}

bool efs_files_evict_oldest(struct efs_mount *m)
{
    bool some = m->oldest;
    if (some)
        file_evict(m, m->oldest);
    return some;
}

bool efs_files_trim(struct efs_mount *m, uint64_t keep_bytes)
{
    bool some = false;
    for (; m->oldest && m->idle_bytes > keep_bytes; some = true)
        file_evict(m, m->oldest);
    return some;
}

void efs_files_free_bytes(struct efs_mount *m, uint64_t bytes)
{
    bytes -= bytes / 8; /* the mount counts whole pages; it asks again if that was too little */
    uint64_t keep = m->idle_bytes > bytes ? m->idle_bytes - bytes : 0;
    if (!efs_files_trim(m, keep))
        efs_files_evict_oldest(m);
}

void efs_files_evict_unprotected(struct efs_mount *m)
{
    for (struct efs_expert_file *file = m->oldest, *newer; file; file = newer) {
        newer = file->newer;
        if (!efs_protected_set_has(m, file->hash))
            file_evict(m, file);
    }
    efs_files_trim(m, m->keep_bytes);
}

/* ---- users ---- */

void efs_file_ref(struct efs_mount *m, struct efs_expert_file *file)
{
    if (file->idle)
        file_remove_idle(m, file);
    file->refs++;
}

/* A READY file has no users: it becomes idle, and is evicted if it may not stay open. */
static void file_idle(struct efs_mount *m, struct efs_expert_file *file)
{
    m->idle_count++;
    file_add_idle(m, file);
    if (file_twin(m, file) || !efs_protected_set_has(m, file->hash))
        file_evict(m, file);
    efs_files_trim(m, m->keep_bytes);
}

void efs_file_unref(struct efs_mount *m, struct efs_expert_file *file)
{
    if (--file->refs)
        return;
    if (file->state == EFS_FILE_READY) {
        file_idle(m, file);
    } else if (file->exported.tag != EFS_NO_TAG) {
        file_unhash(m, file);
        efs_export_cancel(m->export, file);
    }
}

void efs_file_opened(struct efs_mount *m, struct efs_expert_file *file, errint_t error)
{
    struct efs_mount_item *next, *item = file->waiting;
    file->waiting = NULL;
    file->state = EFS_FILE_READY;
    for (; item; item = next) {
        next = item->next_waiting;
        if (error < 0)
            item->file = NULL;
        efs_mount_item_set(item, error < 0 ? EFS_ITEM_FAILED : EFS_ITEM_READY, error);
    }
    if (error < 0) {
        file_unhash(m, file); /* the next request retries */
        free(file);
        return;
    }
    struct efs_expert_file *twin = file_twin(m, file);
    if (twin && twin->idle)
        file_evict(m, twin);
    if (file->refs == 0)
        file_idle(m, file);
}
