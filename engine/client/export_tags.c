/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_tags.c - see export.h. A tag identifies a file from the request to the drop, or to the answer to its
 * cancellation, so that each answer finds its file.
 */
#include "export_internal.h"

#include "mount.h"
#include "sys.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool numbers_grow(struct efs_export_numbers *numbers, uint32_t room)
{
    uint32_t *at = efs_sys_realloc(numbers->at, room * sizeof(*at));
    if (at)
        numbers->at = at;
    return at;
}

static bool export_grow_tags(struct efs_export *h)
{
    uint32_t room = h->tag_count ? 2 * h->tag_count : 256;
    if (room > EFS_EXPORT_TAGS || !numbers_grow(&h->free_tags, room) || !numbers_grow(&h->drops, room) ||
        !numbers_grow(&h->cancels, room))
        return false;
    struct efs_expert_file **files = efs_sys_calloc(room, sizeof(*files));
    if (!files)
        return false;
    if (h->tag_count)
        memcpy(files, h->files, h->tag_count * sizeof(*files));
    free(h->files);
    h->files = files;
    for (uint32_t tag = room; tag > h->tag_count; tag--)
        h->free_tags.at[h->free_tags.count++] = tag - 1;
    h->tag_count = room;
    return true;
}

bool efs_export_alloc_tag(struct efs_export *h, struct efs_expert_file *file)
{
    if (h->free_tags.count == 0 && !export_grow_tags(h))
        return false;
    file->exported = (struct efs_exported_expert){.tag = h->free_tags.at[--h->free_tags.count]};
    h->files[file->exported.tag] = file;
    return true;
}

void efs_export_free_tag(struct efs_export *h, uint32_t tag)
{
    h->files[tag] = NULL;
    h->free_tags.at[h->free_tags.count++] = tag;
}

void efs_export_drop(struct efs_export *h, struct efs_expert_file *file)
{
    h->files[file->exported.tag] = NULL;
    h->drops.at[h->drops.count++] = file->exported.tag; /* reused after the mount was notified */
    if (file->exported.window)
        file->exported.window->users--;
    efs_export_free_coded(&file->exported);
    file->exported = (struct efs_exported_expert){.tag = EFS_NO_TAG};
}

void efs_export_cancel(struct efs_export *h, struct efs_expert_file *file)
{
    efs_export_free_coded(&file->exported);
    h->cancels.at[h->cancels.count++] = file->exported.tag;
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
        if (exported->places[i])
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

bool efs_export_keeps_untold(const struct efs_mount *m)
{
    return !TAILQ_EMPTY(&m->idle) && m->export->keeps && !m->export->told_keep;
}

bool efs_export_has_unsent(const struct efs_mount *m)
{
    const struct efs_export *h = m->export;
    return efs_export_works(h) &&
           (h->drops.count || h->cancels.count || efs_export_keeps_untold(m) || efs_protected_set_is_old(m));
}
