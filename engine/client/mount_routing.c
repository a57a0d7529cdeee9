/* SPDX-License-Identifier: Apache-2.0 */
/* mount_routing.c - see mount.h: sends chosen and predicted experts to the mount, over its socket, or hints by
 * .expertfs/hint; reads which parts of an expert are in its memory. */
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

static errint_t routing_send(struct efs_mount *m, const struct efs_routing *r, bool hint, struct efs_error *err)
{
    size_t items =
        offsetof(struct efs_export_routing, item) + r->count * sizeof(((struct efs_export_routing *)0)->item[0]);
    size_t state = r->state_width * sizeof(*r->state);
    struct efs_export_routing *packet = efs_sys_calloc(1, sizeof(*packet) + state);
    if (!packet)
        return efs_fail(err, -ENOMEM, "no memory for a packet");
    packet->head = (struct efs_export_head){.bytes = (uint32_t)(items + state),
                                            .version = EFS_EXPORT_VERSION,
                                            .kind = hint ? EFS_EXPORT_HINT : EFS_EXPORT_OBSERVE,
                                            .count = r->count};
    packet->layer = r->layer;
    packet->sequence = r->sequence;
    packet->tokens = r->tokens;
    packet->weighed = r->weights != NULL;
    packet->state_width = r->state_width;
    memcpy(packet->stack, r->stack, strlen(r->stack));
    for (uint32_t i = 0; i < r->count; i++) {
        packet->item[i].expert = r->experts[i];
        packet->item[i].weight = r->weights ? r->weights[i] : 0;
    }
    if (state)
        memcpy((uint8_t *)packet + items, r->state, state);
    pthread_mutex_lock(&m->send_lock);
    errint_t rc = efs_export_send(m, &packet->head, 0);
    pthread_mutex_unlock(&m->send_lock);
    free(packet);
    return rc < 0 ? efs_fail(err, -EPIPE, "the mount does not answer any more") : 0;
}

/* Writes a line such as "5: 17?0.6200 4?0.3000\n". Leaves out the last experts if the line would be too long. */
static size_t hint_print(const struct efs_routing *r, char text[EFS_WANT_LINE_BYTES])
{
    EFS_C_LOCALE;
    size_t used = (size_t)snprintf(text, EFS_WANT_LINE_BYTES, *r->stack ? "%s-L%02u:" : "%s%u:", r->stack, r->layer);
    for (uint32_t i = 0; i < r->count && used < EFS_WANT_LINE_BYTES - 32; i++)
        used += (size_t)snprintf(text + used, EFS_WANT_LINE_BYTES - used, " %u?%.4f", r->experts[i],
                                 r->weights ? (double)r->weights[i] : 1.0);
    text[used++] = '\n';
    return used;
}

static errint_t hint_write(const struct efs_mount *m, const struct efs_routing *r, struct efs_error *err)
{
    char text[EFS_WANT_LINE_BYTES];
    int fd = efs_sys_openat(m->root, ".expertfs/hint", O_WRONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return efs_fail(err, fd == -EACCES || fd == -EPERM ? -EOPNOTSUPP : fd, ".expertfs/hint: %s", strerror(-fd));
    ssize_t n = efs_sys_pwrite(fd, text, hint_print(r, text), 0);
    efs_sys_close(fd);
    return n < 0 ? efs_fail(err, (errint_t)n, ".expertfs/hint: %s", strerror((int)-n)) : 0;
}

errint_t efs_mount_routing(struct efs_mount *m, const struct efs_routing *r, bool hint, struct efs_error *err)
{
    pthread_mutex_lock(&m->lock);
    bool socket = efs_export_works(m->export);
    pthread_mutex_unlock(&m->lock);
    if (strlen(r->stack) >= sizeof(((struct efs_export_routing *)0)->stack))
        return efs_fail(err, -ENOENT, "there is no stack %.64s", r->stack);
    if (socket)
        return routing_send(m, r, hint, err);
    if (!hint)
        return efs_fail(err, -EOPNOTSUPP, "the mount has no socket for this user: it predicts from requests");
    return r->count ? hint_write(m, r, err) : 0;
}

char efs_mount_state(const struct efs_mount *m, const struct efs_expert_key *key)
{
    char path[EFS_MAPPING_PATH], state = 'M';
    efs_mapped_path(key, path);
    return efs_sys_getxattrat(m->root, path, "user.expertfs.state", &state, 1) == 1 ? state : 'M';
}
