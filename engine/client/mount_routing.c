/* SPDX-License-Identifier: Apache-2.0 */
/* mount_routing.c - see mount.h: sends what the mount does not answer, chosen and predicted experts and what the
 * program has mapped and has on a device; reads which parts of an expert are in its memory. */
#include "mount.h"

#include "export.h"
#include "text.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static errint_t send_unanswered(struct efs_mount *m, const struct efs_export_head *packet, struct efs_error *err)
{
    pthread_mutex_lock(&m->send_lock);
    errint_t rc = efs_export_send(m, packet, 0);
    pthread_mutex_unlock(&m->send_lock);
    return rc < 0 ? efs_fail(err, -EPIPE, "the mount does not answer any more") : 0;
}

errint_t efs_mount_leave(struct efs_mount *m, uint64_t disk_bytes, struct efs_error *err)
{
    const struct efs_export_leave packet = {{sizeof(packet), EFS_EXPORT_VERSION, EFS_EXPORT_LEAVE, 1}, disk_bytes};
    return send_unanswered(m, &packet.head, err);
}

static errint_t routing_send(struct efs_mount *m, const struct efs_routing *r, enum efs_routing_kind kind,
                             struct efs_error *err)
{
    static const uint32_t packets[] = {[EFS_ROUTING_CHOSEN] = EFS_EXPORT_OBSERVE,
                                       [EFS_ROUTING_PREDICTED] = EFS_EXPORT_HINT,
                                       [EFS_ROUTING_COUNTED] = EFS_EXPORT_COUNT};
    size_t bytes =
        offsetof(struct efs_export_routing, item) + r->count * sizeof(((struct efs_export_routing *)0)->item[0]);
    struct efs_export_routing *packet = efs_sys_calloc(1, sizeof(*packet));
    if (!packet)
        return efs_fail(err, -ENOMEM, "no memory for a packet");
    packet->head = (struct efs_export_head){
        .bytes = (uint32_t)bytes, .version = EFS_EXPORT_VERSION, .kind = packets[kind], .count = r->count};
    packet->layer = r->layer;
    packet->sequence = r->sequence;
    packet->weighed = r->weights != NULL;
    memcpy(packet->stack, r->stack, strlen(r->stack));
    for (uint32_t i = 0; i < r->count; i++) {
        packet->item[i].expert = r->experts[i];
        packet->item[i].weight = r->weights ? r->weights[i] : 0;
    }
    errint_t rc = send_unanswered(m, &packet->head, err);
    free(packet);
    return rc;
}

errint_t efs_mount_routing(struct efs_mount *m, const struct efs_routing *r, enum efs_routing_kind kind,
                           struct efs_error *err)
{
    if (strlen(r->stack) >= sizeof(((struct efs_export_routing *)0)->stack))
        return efs_fail(err, -ENOENT, "there is no stack %.64s", r->stack);
    return routing_send(m, r, kind, err);
}

void efs_mount_report_device(struct efs_mount *m, struct efs_export_device *device)
{
    device->head = (struct efs_export_head){
        .bytes = sizeof(*device), .version = EFS_EXPORT_VERSION, .kind = EFS_EXPORT_DEVICE, .count = 1};
    pthread_mutex_lock(&m->send_lock);
    errint_t rc = efs_export_send(m, &device->head, MSG_DONTWAIT);
    (void)rc; /* the next report has these counts, too */
    pthread_mutex_unlock(&m->send_lock);
}

char efs_mount_state(const struct efs_mount *m, const struct efs_expert_key *key)
{
    char path[EFS_EXPERT_PATH], state = 'M';
    efs_expert_path(key, path);
    return efs_sys_getxattrat(m->root, path, "user.expertfs.state", &state, 1) == 1 ? state : 'M';
}
