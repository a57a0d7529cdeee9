/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_coded.c - see export_internal.h. A coded expert is stored in several places of the chunk pool. First the windows
 * that the client lacks are sent, then the places in them. Lock held.
 */
#include "export_internal.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Builds the payload: the layout, if requested, and the places. */
static errint_t held_tell(struct efsd_held *held, const struct efs_export_place *places, uint32_t count)
{
    struct efs_export_layout *layout = NULL;
    size_t layout_bytes = 0, places_bytes = count * sizeof(*places), bytes;
    errint_t rc = held->with_layout ? efs_request_layout(held->request, held->index, &layout, &layout_bytes) : 0;
    if (rc)
        return rc;
    if (__builtin_add_overflow(layout_bytes, places_bytes, &bytes) || bytes > UINT32_MAX)
        rc = -EFBIG;
    held->body = rc == 0 ? malloc(bytes) : NULL;
    if (rc == 0 && !held->body)
        rc = -ENOMEM;
    if (rc == 0) {
        if (layout)
            memcpy(held->body, layout, layout_bytes);
        memcpy(held->body + layout_bytes, places, places_bytes);
        held->layout_bytes = (uint32_t)layout_bytes;
        held->body_bytes = (uint32_t)bytes;
    }
    free(layout);
    return rc;
}

static errint_t session_send_window(struct efsd_session *s, const struct efsd_held *held, uint32_t number)
{
    struct efs_window window;
    if (number == 0 || efsd_session_has(s, number))
        return 0;
    errint_t rc = efs_request_open_window(held->request, held->index, number, &window);
    if (rc)
        return rc == -EAGAIN ? -EIO : rc;
    const struct efs_export_answer packet = {.head = {sizeof(packet), EFS_EXPORT_VERSION, EFS_EXPORT_WINDOW, 1},
                                             .window = number,
                                             .window_bytes = window.bytes};
    rc = efsd_session_send(s, &packet.head, window.fd);
    close(window.fd);
    return rc ? rc : efsd_session_have(s, number);
}

static errint_t session_send_part(struct efsd_session *s, struct efsd_held *held)
{
    struct efs_export_coded packet;
    uint32_t left = held->body_bytes - held->sent_bytes;
    uint32_t part = left < EFS_EXPORT_PART_BYTES ? left : EFS_EXPORT_PART_BYTES;
    packet.head = (struct efs_export_head){(uint32_t)offsetof(struct efs_export_coded, part) + part, EFS_EXPORT_VERSION,
                                           EFS_EXPORT_CODED, part};
    packet.tag = held->tag;
    packet.layout_bytes = held->layout_bytes;
    packet.at = held->sent_bytes;
    packet.total = held->body_bytes;
    memcpy(packet.part, held->body + held->sent_bytes, part);
    errint_t rc = efsd_session_send(s, &packet.head, -1);
    if (rc == 0)
        held->sent_bytes += part;
    return rc;
}

errint_t efsd_session_answer_coded(struct efsd_session *s, struct efsd_held *held)
{
    struct efs_export_place *places;
    uint32_t count;
    errint_t rc = efs_request_places(held->request, held->index, &places, &count);
    if (rc)
        return rc;
    if (!held->body)
        rc = held_tell(held, places, count);
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        rc = session_send_window(s, held, places[i].e_window);
        if (rc == 0)
            rc = session_send_window(s, held, places[i].sm_window);
    }
    free(places);
    while (rc == 0 && held->sent_bytes < held->body_bytes)
        rc = session_send_part(s, held);
    if (rc == 0)
        efsd_count(&s->export->daemon->counters.handouts_coded, 1);
    if (rc == 0 || held->sent_bytes == 0) { /* no part was sent: built again by the next call */
        free(held->body);
        held->body = NULL;
    }
    return rc;
}
