/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_tags.c - see export.h. A tag identifies a file from the request to the drop, or to the answer to its
 * cancellation, so that each answer finds its file.
 */
#include "export.h"

#include "mount.h"

#include <stdlib.h>

#define TAGS_STEP 256u

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
