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

#define BODY_MOST (64u << 20) /* bytes that are told of one expert */

bool efs_export_take_place(struct efs_export *h, const struct efs_export_answer *packet, int fd)
{
    struct efs_export_answer all = *packet;
    all.file_bytes = packet->window_bytes; /* the whole of it has to be there */
    if ((fd < 0 && fd != -EMFILE) || packet->window == 0)
        return false;
    if (fd >= 0 && !efs_window_find(h, packet->window))
        efs_window_map(h, &all, fd); /* if it cannot be, experts in it fail */
    return true;
}

/* ---- the windows of an expert ---- */

struct finding {
    struct efs_export *h;
    struct efs_handed *handed;
    uint32_t room; /* in handed->places */
};

/* Of a window that it is in; from now on it is in use, and stays mapped. */
static struct efs_coded_window find_window(void *arg, uint32_t number)
{
    struct finding *f = arg;
    struct efs_handed *handed = f->handed;
    for (uint32_t i = handed->place_count; i-- > 0;)
        if (handed->places[i]->number == number)
            return (struct efs_coded_window){handed->places[i]->data, handed->places[i]->bytes};
    struct efs_export_window *w = efs_window_find(f->h, number);
    if (!w || handed->place_count == f->room)
        return (struct efs_coded_window){NULL, 0};
    efs_window_use(f->h, w);
    handed->places[handed->place_count++] = w;
    return (struct efs_coded_window){w->data, w->bytes};
}

/* Are all windows there, that the places name? Those that are not could not be mapped, or were unmapped while this
 * came. */
static bool has_windows(struct efs_export *h, const struct efs_export_place *places, uint32_t count)
{
    bool all = true;
    for (uint32_t i = 0; i < 2 * count; i++) {
        uint32_t number = i % 2 ? places[i / 2].sm_window : places[i / 2].e_window;
        if (number && !efs_window_find(h, number)) {
            efs_window_miss(h, number);
            all = false;
        }
    }
    return all;
}

/* All parts have come. */
static errint_t coded_take(struct efs_mount *m, struct efs_expert_file *file, uint32_t layout_bytes)
{
    struct efs_handed *handed = &file->handed;
    const struct efs_file_layout *layout = efs_known_find(m, &file->key, file->hash);
    errint_t rc = handed->body ? 0 : -ENOMEM;
    if (rc == 0 && !layout && layout_bytes) {
        rc = efs_coded_layout_read(handed->body, layout_bytes, &file->mapped.learned);
        layout = file->mapped.learned;
    }
    if (rc < 0)
        return rc;
    uint32_t count = (handed->body_total - layout_bytes) / sizeof(struct efs_export_place);
    if (!layout || (handed->body_total - layout_bytes) % sizeof(struct efs_export_place) ||
        count != layout->coded->extent_count)
        return -EUCLEAN;
    struct efs_export_place *places = efs_sys_calloc(count + 1u, sizeof(*places));
    handed->places = efs_sys_calloc(2u * count + 1u, sizeof(struct efs_export_window *));
    rc = places && handed->places ? 0 : -ENOMEM;
    if (rc == 0) {
        struct finding finding = {m->export, handed, 2u * count};
        memcpy(places, handed->body + layout_bytes, count * sizeof(*places));
        rc = has_windows(m->export, places, count)
                 ? efs_coded_tensors(layout, places, find_window, &finding, &file->mapped.tensors, &file->mapped.shards)
                 : -ENOMEM;
    }
    free(places);
    if (rc < 0)
        return rc;
    file->mapped.tensor_count = layout->tensor_count;
    file->mapped.bytes = (size_t)layout->coded->bytes;
    if (file->mapped.learned)
        efs_known_add(m, file);
    return 0;
}

/* ---- parts ---- */

static bool part_is_next(const struct efs_handed *handed, const struct efs_export_coded *p)
{
    bool first = handed->body_total == 0;
    return p->head.count > 0 && p->total <= BODY_MOST && p->at == handed->body_bytes && p->at <= p->total &&
           p->head.count <= p->total - p->at && p->layout_bytes <= p->total &&
           (first || p->total == handed->body_total);
}

bool efs_export_take_coded(struct efs_mount *m, const struct efs_export_coded *packet)
{
    struct efs_export *h = m->export;
    struct efs_expert_file *file = packet->tag < h->room ? h->files[packet->tag] : NULL;
    if (!file || file->state != EFS_FILE_OPENING || !file->key.coded || !part_is_next(&file->handed, packet))
        return false;
    struct efs_handed *handed = &file->handed;
    if (handed->body_total == 0)
        handed->body = efs_sys_malloc(packet->total);
    handed->body_total = packet->total;
    if (handed->body)
        memcpy(handed->body + packet->at, packet->part, packet->head.count);
    handed->body_bytes += packet->head.count;
    if (handed->body_bytes < handed->body_total)
        return true;
    errint_t rc = coded_take(m, file, packet->layout_bytes);
    free(handed->body);
    handed->body = NULL;
    if (rc == 0) {
        efs_file_opened(m, file);
        return true;
    }
    efs_mapped_let_go(&file->mapped);
    efs_export_drop(h, file);
    efs_mount_wake_reaper(m);
    efs_file_do_without(m, file, rc);
    efs_mount_wake_open_workers(m);
    return true;
}
