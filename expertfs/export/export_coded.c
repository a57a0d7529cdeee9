/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_coded.c - see export_internal.h. A coded expert is stored in several places of the chunk pool. First the
 * windows that the client lacks are sent, then the places in them. Lock held.
 */
#include "export_internal.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Builds the payload: the layout, if requested, and the places. */
static errint_t item_build_body(struct efsd_export_item *item, const struct efs_export_place *places, uint32_t count)
{
    struct efs_export_layout *layout = NULL;
    size_t layout_bytes = 0, places_bytes = count * sizeof(*places), bytes;
    errint_t rc = item->with_layout ? efs_request_layout(item->request, item->index, &layout, &layout_bytes) : 0;
    if (rc)
        return rc;
    if (__builtin_add_overflow(layout_bytes, places_bytes, &bytes) || bytes > UINT32_MAX)
        rc = -EFBIG;
    item->body = rc == 0 ? malloc(bytes) : NULL;
    if (rc == 0 && !item->body)
        rc = -ENOMEM;
    if (rc == 0) {
        if (layout)
            memcpy(item->body, layout, layout_bytes);
        memcpy(item->body + layout_bytes, places, places_bytes);
        item->layout_bytes = (uint32_t)layout_bytes;
        item->body_bytes = (uint32_t)bytes;
    }
    free(layout);
    return rc;
}

static errint_t client_send_window(struct efsd_export_client *s, const struct efsd_export_item *item, uint32_t number)
{
    struct efs_window window;
    if (number == 0 || efsd_export_client_has_window(s, number))
        return 0;
    errint_t rc = efs_request_open_window(item->request, item->index, number, &window);
    if (rc)
        return rc == -EAGAIN ? -EIO : rc;
    const struct efs_export_answer packet = {.head = {sizeof(packet), EFS_EXPORT_VERSION, EFS_EXPORT_WINDOW, 1},
                                             .window = number,
                                             .window_bytes = window.bytes};
    rc = efsd_export_client_send(s, &packet.head, window.fd);
    close(window.fd);
    return rc ? rc : efsd_export_client_add_window(s, number);
}

static errint_t client_send_part(struct efsd_export_client *s, struct efsd_export_item *item)
{
    const uint32_t head_bytes = (uint32_t)offsetof(struct efs_export_coded, part);
    uint32_t left = item->body_bytes - item->sent_bytes;
    uint32_t part = left < EFS_EXPORT_PART_BYTES ? left : EFS_EXPORT_PART_BYTES;
    const struct {
        struct efs_export_head head;
        uint32_t tag, layout_bytes, at, total;
    } packet = {{head_bytes + part, EFS_EXPORT_VERSION, EFS_EXPORT_CODED, part},
                item->tag,
                item->layout_bytes,
                item->sent_bytes,
                item->body_bytes};
    _Static_assert(sizeof(packet) == offsetof(struct efs_export_coded, part), "as struct efs_export_coded");
    errint_t rc = efsd_export_client_send_with(s, &packet.head, head_bytes, item->body + item->sent_bytes, -1);
    if (rc == 0)
        item->sent_bytes += part;
    return rc;
}

errint_t efsd_export_client_answer_coded(struct efsd_export_client *s, struct efsd_export_item *item)
{
    struct efs_export_place *places;
    uint32_t count;
    errint_t rc = efs_request_places(item->request, item->index, &places, &count);
    if (rc)
        return rc;
    if (!item->body)
        rc = item_build_body(item, places, count);
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        rc = client_send_window(s, item, places[i].e_window);
        if (rc == 0)
            rc = client_send_window(s, item, places[i].sm_window);
    }
    free(places);
    while (rc == 0 && item->sent_bytes < item->body_bytes)
        rc = client_send_part(s, item);
    if (rc == 0)
        efsd_count(&s->export->daemon->counters.handouts_coded, 1);
    if (rc == 0 || item->sent_bytes == 0) { /* no part was sent: built again by the next call */
        free(item->body);
        item->body = NULL;
    }
    return rc;
}
