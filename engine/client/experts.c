/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experts.c - see mount.h: the table of experts, with the layouts of those that were received before; their files, the
 * items of these, and their tags. A tag identifies a file from the request to the drop, or to the answer to its
 * cancellation, so that each answer finds its file.
 */
#include "mount.h"

#include "sys.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPERTS_MAX (1u << 20)
#define TAGS_STEP 256u

void efs_expert_path(const struct efs_expert_key *key, char path[EFS_EXPERT_PATH])
{
    snprintf(path, EFS_EXPERT_PATH, "experts/%s%sL%02" PRIu32 "/E%03" PRIu32 ".safetensors", key->stack,
             *key->stack ? "-" : "", key->layer, key->expert);
}

struct efs_expert *efs_expert_find(const struct efs_mount *m, const struct efs_expert_key *key)
{
    struct efs_expert *expert = LIST_FIRST(&m->experts[efs_expert_key_hash(key) % EFS_MOUNT_BUCKETS]);
    while (expert && !efs_expert_key_is(&expert->key, key))
        expert = LIST_NEXT(expert, same_hash);
    return expert;
}

struct efs_expert *efs_expert_add(struct efs_mount *m, const struct efs_expert_key *key)
{
    struct efs_expert *expert = efs_expert_find(m, key);
    if (expert || m->expert_count == EXPERTS_MAX || !(expert = efs_sys_calloc(1, sizeof(*expert))))
        return expert;
    expert->key = *key;
    LIST_INSERT_HEAD(&m->experts[efs_expert_key_hash(key) % EFS_MOUNT_BUCKETS], expert, same_hash);
    m->expert_count++;
    return expert;
}

void efs_expert_keep_layout(struct efs_file_layout **known, struct efs_mapped_file *mapped)
{
    if (!mapped->new_layout)
        return;
    mapped->new_layout->older = *known;
    *known = mapped->new_layout;
    mapped->new_layout = NULL;
}

void efs_experts_free(struct efs_mount *m)
{
    struct efs_expert *expert;
    for (unsigned i = 0; i < EFS_MOUNT_BUCKETS; i++)
        while ((expert = LIST_FIRST(&m->experts[i]))) {
            LIST_REMOVE(expert, same_hash);
            efs_layout_free(expert->layout);
            efs_layout_free(expert->coded_layout);
            free(expert);
        }
}

/* ---- tags ---- */

bool efs_export_has_tags(const struct efs_export *h, uint32_t count)
{
    return h->free_count + (EFS_EXPORT_TAGS - h->tag_count) >= count;
}

void efs_export_alloc_tag(struct efs_export *h, struct efs_expert_file *file)
{
    for (uint32_t more = h->free_count ? 0 : TAGS_STEP; more && h->tag_count < EFS_EXPORT_TAGS; more--)
        h->free_tags[h->free_count++] = h->tag_count++;
    file->exported = (struct efs_exported_expert){.tag = h->free_tags[--h->free_count]};
    h->files[file->exported.tag] = file;
}

void efs_export_free_tag(struct efs_export *h, uint32_t tag)
{
    h->files[tag] = NULL;
    h->free_tags[h->free_count++] = tag;
}

void efs_export_drop(struct efs_export *h, struct efs_expert_file *file)
{
    h->files[file->exported.tag] = NULL;
    efs_export_queue(h, EFS_EXPORT_DROP, file->exported.tag); /* reused after the mount was notified */
    if (file->exported.window)
        efs_window_put(h, file->exported.window);
    efs_export_free_coded(&file->exported);
}

void efs_export_cancel(struct efs_export *h, struct efs_expert_file *file)
{
    efs_export_free_coded(&file->exported);
    efs_export_queue(h, EFS_EXPORT_CANCEL, file->exported.tag);
}

void efs_export_free_coded(struct efs_exported_expert *exported)
{
    for (uint32_t i = 0; i < exported->place_count; i++)
        if (exported->places[i])
            exported->places[i]->users--;
    free(exported->places);
    free(exported->body);
    exported->places = NULL;
    exported->body = NULL;
    exported->place_count = exported->body_bytes = exported->body_total = 0;
}

bool efs_mount_has_unsent(const struct efs_mount *m)
{
    return efs_export_works(m->export) && m->export->queued > m->export->unmapped;
}

/* ---- files ---- */

void efs_mount_item_set(struct efs_mount_item *item, enum efs_item_state state, errint_t error)
{
    struct efs_mount_request *request = item->request;
    struct efs_mount *m = request->mount;
    bool was_loading = item->base.state == EFS_ITEM_LOADING;
    efs_mount_item_set_oversize(item, false, 0);
    efs_client_item_set(&request->base, &item->base, state, error);
    if (!was_loading)
        return;
    m->polled -= request->base.event >= 0;
    if (m->receiving && !m->maintenance_receives)
        efs_mount_signal(m->export->kick); /* the thread may wait for this item */
}

void efs_mount_item_set_oversize(struct efs_mount_item *item, bool oversize, uint32_t own_drops)
{
    struct efs_mount_request *request = item->request;
    if (!oversize && request->oversize_item != item)
        return;
    request->oversize_item = oversize ? item : NULL;
    request->base.oversize = oversize;
    request->base.own_drops = own_drops;
    pthread_cond_broadcast(request->base.changed);
}

void efs_file_received(struct efs_expert_file *file)
{
    file->ready = true;
    efs_mount_item_set(file->item, EFS_ITEM_READY, 0);
}

void efs_file_failed(struct efs_expert_file *file, errint_t error)
{
    file->item->file = NULL;
    efs_mount_item_set(file->item, EFS_ITEM_FAILED, error == -EAGAIN ? -EIO : error);
    efs_export_free_coded(&file->exported);
    efs_mapped_free(&file->mapped);
    free(file); /* the next request retries */
}

void efs_file_drop(struct efs_mount *m, struct efs_expert_file *file)
{
    file->item = NULL;
    if (!file->ready) {
        efs_export_cancel(m->export, file);
        return;
    }
    efs_export_drop(m->export, file);
    efs_mapped_free(&file->mapped);
    free(file);
}
