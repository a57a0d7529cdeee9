/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_coded.c - see export.h: coded experts. They are in windows of the mount's chunk pool, at places that each
 * answer states, and may be read until the expert is dropped.
 */
#include "export.h"
#include "mount.h"

#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BODY_MAX (64u << 20) /* bytes of the parts of one expert */

void efs_export_received(struct efs_mount *m, struct efs_expert_file *file, errint_t error, bool held)
{
    if (error == 0) {
        efs_file_received(file);
        return;
    }
    if (held)
        efs_export_drop(m->export, file);
    else
        efs_export_free_tag(m->export, file->exported.tag);
    efs_file_failed(file, error);
}

/* Makes an expert with these places a user of their windows, which then stay mapped. false: some are not mapped, since
 * that failed, or they were unmapped before this packet was received; they are reported to the mount. */
static bool coded_get_windows(struct efs_export *h, struct efs_exported_expert *exported, const uint8_t *places)
{
    bool all = true;
    for (uint32_t i = 0; i < exported->place_count; i++) {
        struct efs_export_place place;
        memcpy(&place, places + i / 2 * sizeof(place), sizeof(place));
        const uint32_t number = i % 2 ? place.sm_window : place.e_window;
        struct efs_export_window *w = number ? efs_window_find(h, number) : NULL;
        if (w)
            efs_window_get(h, w);
        else if (number)
            efs_window_report_unmapped(h, number);
        exported->places[i] = w;
        all = all && (w || !number);
    }
    return all;
}

/* Handles a coded expert of which all parts were received: parses its layout, if it was sent, and finds its tensors. 0,
 * -EUCLEAN, -ENOMEM. */
static errint_t coded_finish(struct efs_mount *m, struct efs_expert_file *file, uint32_t layout_bytes)
{
    struct efs_exported_expert *exported = &file->exported;
    const struct efs_file_layout *layout = file->expert->coded_layout;
    const uint32_t places_bytes = exported->body_total - layout_bytes;
    errint_t rc = exported->body ? 0 : -ENOMEM;
    if (rc == 0 && !layout && layout_bytes) {
        rc = efs_coded_layout_read(exported->body, layout_bytes, &file->mapped.new_layout);
        efs_expert_keep_layout(&file->expert->coded_layout, &file->mapped);
        layout = file->expert->coded_layout;
    }
    if (rc < 0)
        return rc;
    if (!layout || places_bytes != (uint64_t)layout->extent_count * sizeof(struct efs_export_place))
        return -EUCLEAN;
    exported->places = efs_sys_calloc(2 * (size_t)layout->extent_count + 1, sizeof(struct efs_export_window *));
    if (!exported->places)
        return -ENOMEM;
    exported->place_count = 2 * layout->extent_count;
    if (!coded_get_windows(m->export, exported, exported->body + layout_bytes))
        return -ENOMEM;
    rc = efs_coded_tensors(layout, exported->body + layout_bytes, exported->places, &file->mapped);
    if (rc == 0)
        file->form = EFS_FORM_CODED;
    return rc;
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
    if (file && !file->item)
        return true;
    if (!file || file->ready || file->form == EFS_FORM_FULL || !part_is_next(&file->exported, packet))
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
    efs_export_received(m, file, rc, true);
    return true;
}
