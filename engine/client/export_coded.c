/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_coded.c - see export.h: coded experts. They are in windows of the mount's chunk pool, at places that each
 * answer states, and may be read until the expert is dropped.
 */
#include "coded_layout.h"
#include "export_internal.h"
#include "mount.h"

#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BODY_MAX (64u << 20) /* bytes of the parts of one expert */

bool efs_export_receive_window(struct efs_export *h, const struct efs_export_answer *packet, int fd)
{
    struct efs_export_answer all = *packet;
    all.file_bytes = packet->window_bytes; /* efs_window_map() then needs a file of at least the window's size */
    if ((fd < 0 && fd != -EMFILE) || packet->window == 0)
        return false;
    if (fd >= 0 && !efs_window_find(h, packet->window))
        efs_window_map(h, &all, fd); /* if this fails, experts in the window fail */
    return true;
}

/* ---- the windows of an expert ---- */

struct window_search {
    struct efs_export *h;
    struct efs_exported_expert *exported;
    uint32_t room; /* in exported->places */
};

/* The memory of a window with this number, data NULL if it is not mapped. Makes the expert a user of the window, which
 * then stays mapped. */
static struct efs_coded_window find_window(void *arg, uint32_t number)
{
    struct window_search *f = arg;
    struct efs_exported_expert *exported = f->exported;
    for (uint32_t i = exported->place_count; i-- > 0;)
        if (exported->places[i]->number == number)
            return (struct efs_coded_window){exported->places[i]->data, exported->places[i]->bytes};
    struct efs_export_window *w = efs_window_find(f->h, number);
    if (!w || exported->place_count == f->room)
        return (struct efs_coded_window){NULL, 0};
    efs_window_get(f->h, w);
    exported->places[exported->place_count++] = w;
    return (struct efs_coded_window){w->data, w->bytes};
}

/* Whether all windows that the places name are mapped. Reports the missing ones to the mount as unmapped: mapping them
 * failed, or they were unmapped before this packet was received. */
static bool has_windows(struct efs_export *h, const struct efs_export_place *places, uint32_t count)
{
    bool all = true;
    for (uint32_t i = 0; i < 2 * count; i++) {
        uint32_t number = i % 2 ? places[i / 2].sm_window : places[i / 2].e_window;
        if (number && !efs_window_find(h, number)) {
            efs_window_report_unmapped(h, number);
            all = false;
        }
    }
    return all;
}

/* Handles a coded expert of which all parts were received: parses its layout, if it was sent, and finds its tensors. 0,
 * -EUCLEAN, -ENOMEM. */
static errint_t coded_finish(struct efs_mount *m, struct efs_expert_file *file, uint32_t layout_bytes)
{
    struct efs_exported_expert *exported = &file->exported;
    const struct efs_file_layout *layout = efs_layout_cache_find(m, &file->key, file->hash);
    errint_t rc = exported->body ? 0 : -ENOMEM;
    if (rc == 0 && !layout && layout_bytes) {
        rc = efs_coded_layout_read(exported->body, layout_bytes, &file->mapped.new_layout);
        layout = file->mapped.new_layout;
    }
    if (rc < 0)
        return rc;
    uint32_t count = (exported->body_total - layout_bytes) / sizeof(struct efs_export_place);
    if (!layout || (exported->body_total - layout_bytes) % sizeof(struct efs_export_place) ||
        count != layout->coded->extent_count)
        return -EUCLEAN;
    struct efs_export_place *places = efs_sys_calloc(count + 1u, sizeof(*places));
    exported->places = efs_sys_calloc(2u * count + 1u, sizeof(struct efs_export_window *));
    rc = places && exported->places ? 0 : -ENOMEM;
    if (rc == 0) {
        struct window_search search = {m->export, exported, 2u * count};
        memcpy(places, exported->body + layout_bytes, count * sizeof(*places));
        rc = has_windows(m->export, places, count)
                 ? efs_coded_tensors(layout, places, find_window, &search, &file->mapped.tensors, &file->mapped.shards)
                 : -ENOMEM;
    }
    free(places);
    if (rc < 0)
        return rc;
    file->mapped.tensor_count = layout->tensor_count;
    file->mapped.bytes = (size_t)layout->coded->bytes;
    if (file->mapped.new_layout)
        efs_layout_cache_add(m, file);
    return 0;
}

/* ---- parts ---- */

static bool part_is_next(const struct efs_exported_expert *exported, const struct efs_export_coded *p)
{
    bool first = exported->body_total == 0;
    return p->head.count > 0 && p->total <= BODY_MAX && p->at == exported->body_bytes && p->at <= p->total &&
           p->head.count <= p->total - p->at && p->layout_bytes <= p->total &&
           (first || p->total == exported->body_total);
}

bool efs_export_receive_coded(struct efs_mount *m, const struct efs_export_coded *packet)
{
    struct efs_export *h = m->export;
    struct efs_expert_file *file = efs_export_file(h, packet->tag);
    if (file && file->state == EFS_FILE_CANCELLED)
        return true;
    if (!file || file->state != EFS_FILE_OPENING || !file->key.coded || !part_is_next(&file->exported, packet))
        return false;
    struct efs_exported_expert *exported = &file->exported;
    if (exported->body_total == 0)
        exported->body = efs_sys_malloc(packet->total);
    exported->body_total = packet->total;
    if (exported->body)
        memcpy(exported->body + packet->at, packet->part, packet->head.count);
    exported->body_bytes += packet->head.count;
    if (exported->body_bytes < exported->body_total)
        return true;
    errint_t rc = coded_finish(m, file, packet->layout_bytes);
    free(exported->body);
    exported->body = NULL;
    if (rc == 0) {
        efs_file_opened(m, file, 0);
        return true;
    }
    efs_mapped_free_tensors(&file->mapped);
    efs_export_drop(h, file);
    efs_file_fall_back(m, file, rc);
    efs_mount_wake_open_workers(m);
    return true;
}
