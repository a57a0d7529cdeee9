/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_tags.c - see export.h. A tag identifies a file from the request to the drop, so that each answer finds its
 * file.
 */
#include "export_internal.h"

#include "mount.h"
#include "sys.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool export_grow_tags(struct efs_export *h)
{
    uint32_t room = h->room ? 2 * h->room : 256;
    if (room > EFS_EXPORT_TAGS)
        return false;
    struct efs_expert_file **files = efs_sys_calloc(room, sizeof(*files));
    uint32_t *free_tags = efs_sys_calloc(room, sizeof(*free_tags)), *drops = efs_sys_calloc(room, sizeof(*drops));
    if (!files || !free_tags || !drops) {
        free(files);
        free(free_tags);
        free(drops);
        return false;
    }
    if (h->room) {
        memcpy(files, h->files, h->room * sizeof(*files));
        memcpy(free_tags, h->free_tags, h->free_count * sizeof(*free_tags));
        memcpy(drops, h->drops, h->drop_count * sizeof(*drops));
    }
    free(h->files);
    free(h->free_tags);
    free(h->drops);
    h->files = files;
    h->free_tags = free_tags;
    h->drops = drops;
    for (uint32_t tag = room; tag > h->room; tag--)
        h->free_tags[h->free_count++] = tag - 1;
    h->room = room;
    return true;
}

bool efs_export_alloc_tag(struct efs_export *h, struct efs_expert_file *file)
{
    if (h->free_count == 0 && !export_grow_tags(h))
        return false;
    file->exported = (struct efs_exported_expert){.tag = h->free_tags[--h->free_count]};
    h->files[file->exported.tag] = file;
    return true;
}

void efs_export_drop(struct efs_export *h, struct efs_expert_file *file)
{
    h->files[file->exported.tag] = NULL;
    h->drops[h->drop_count++] = file->exported.tag; /* reused after the mount was notified */
    if (file->exported.window)
        file->exported.window->users--;
    efs_export_free_coded(&file->exported);
    file->exported = (struct efs_exported_expert){.tag = EFS_NO_TAG};
}

bool efs_export_has_unsent(const struct efs_export *h)
{
    return (h->drop_count > 0 || h->unsent_bytes > 0) && !h->failed;
}

bool efs_export_has_orphans(const struct efs_export *h)
{
    for (uint32_t tag = 0; tag < h->room; tag++)
        if (h->files[tag] && h->files[tag]->refs == 0 && h->files[tag]->state == EFS_FILE_OPENING)
            return true;
    return false;
}

bool efs_export_works(const struct efs_export *h)
{
    return h && !h->failed;
}

bool efs_export_supports_coded(const struct efs_export *h)
{
    return h && h->coded;
}

void efs_export_free_coded(struct efs_exported_expert *exported)
{
    for (uint32_t i = 0; i < exported->place_count; i++)
        exported->places[i]->users--;
    free(exported->places);
    free(exported->body);
    exported->places = NULL;
    exported->body = NULL;
    exported->place_count = exported->body_bytes = exported->body_total = 0;
}

void efs_export_kick(const struct efs_export *h)
{
    const uint64_t one = 1;
    ssize_t n = write(h->kick, &one, sizeof(one)); /* fails only when it is readable already */
    (void)n;
}
