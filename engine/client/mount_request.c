/* SPDX-License-Identifier: Apache-2.0 */
/* mount_request.c - see mount.h: starts requests, waits for their experts, returns their tensors, drops them.
 */
#include "mount.h"

#include "deadline.h"
#include "sys.h"
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(EFS_MOUNT_EXPERTS <= EFS_EXPORT_ROUTED, "a request fits into its packets");

static bool is_stack(const char *stack)
{
    size_t n = strspn(stack, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return stack[n] == '\0' && n <= 31;
}

/* Whether the expert's file exists: 0, -ENOENT, ... Without the view (no_view) there are no files: returns 0, and an
 * expert that does not exist fails when it is loaded. */
static errint_t mount_check_exists(const struct efs_mount *m, const struct efs_expert_key *key, struct efs_error *err)
{
    if (m->no_view)
        return 0;
    char path[EFS_EXPERT_PATH];
    efs_expert_path(key, path);
    int fd = efs_sys_openat(m->root, path, O_PATH | O_NOFOLLOW, 0);
    if (fd == -ENOTCONN || fd == -ECONNABORTED) /* from FUSE, for a mount whose daemon has ended */
        return efs_fail(err, -EIO, "%s: the daemon of the mount has ended", path);
    if (fd < 0)
        return efs_fail(err, fd, "%s: %s", path, strerror(-fd));
    efs_sys_close(fd);
    return 0;
}

/* Gives an item a new file of an expert that exists. -ENOENT, -ENOMEM. */
static errint_t item_prepare(struct efs_mount *m, struct efs_mount_item *item, const struct efs_expert_key *key,
                             enum efs_form form, struct efs_error *err)
{
    struct efs_expert_file *file = item->file = efs_sys_calloc(1, sizeof(*file));
    if (!file)
        return efs_fail(err, -ENOMEM, "no memory for a request");
    *file = (struct efs_expert_file){.item = item, .form = form, .expert = item->expert};
    if (!file->expert) {
        errint_t rc = mount_check_exists(m, key, err);
        if (rc < 0)
            return rc;
        pthread_mutex_lock(&m->lock);
        file->expert = efs_expert_add(m, key);
        pthread_mutex_unlock(&m->lock);
    }
    return file->expert ? 0 : efs_fail(err, -ENOMEM, "no memory for a request");
}

static errint_t request_prepare(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                                enum efs_form form, struct efs_mount_request *request, struct efs_error *err)
{
    struct efs_mount_item *items = request->items;
    errint_t rc = 0;
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < request->base.count; i++) {
        const struct efs_expert_key key = efs_expert_key(stack, layer, needs[i].expert);
        items[i].expert = efs_expert_find(m, &key);
    }
    pthread_mutex_unlock(&m->lock);
    uint32_t prepared = 0;
    for (; prepared < request->base.count && rc == 0; prepared++) {
        const struct efs_expert_key key = efs_expert_key(stack, layer, needs[prepared].expert);
        rc = item_prepare(m, &items[prepared], &key, form, err);
    }
    while (rc < 0 && prepared > 0)
        free(items[--prepared].file);
    return rc;
}

/* Lock held. Adds items to a packet, each with a new tag. */
static void request_add(struct efs_export *h, struct efs_export_ask *ask, const struct efs_need *needs,
                        struct efs_mount_item *items)
{
    for (uint32_t i = 0; i < ask->head.count; i++) {
        struct efs_expert_file *file = items[i].file;
        const bool known = file->form == EFS_FORM_FULL || file->expert->coded_layout;
        efs_export_alloc_tag(h, file);
        ask->item[i].expert = needs[i].expert;
        ask->item[i].tokens = needs[i].tokens;
        ask->item[i].tag = file->exported.tag | (known ? 0 : EFS_EXPORT_WITH_LAYOUT);
    }
}

/* Requests the experts of a request over the socket. The packets name all of them, also those that other requests of
 * this process hold: the mount then gives memory to all or to none. */
static void request_send(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                         enum efs_form form, struct efs_mount_request *request)
{
    const uint32_t wanted = (uint32_t)(form & ~EFS_FORM_COUNTED) | (form & EFS_FORM_COUNTED ? EFS_EXPORT_COUNTED : 0);
    struct efs_export *h = m->export;
    struct efs_export_ask ask = efs_export_packet(EFS_EXPORT_ASK);
    ask.layer = layer;
    strcpy(ask.stack, stack); /* is_stack() has checked its length */
    errint_t rc = 0;
    pthread_mutex_lock(&m->send_lock); /* no other thread takes tags */
    for (uint32_t at = 0; at < request->base.count; at += ask.head.count) {
        uint32_t left = request->base.count - at;
        ask.head.count = left < EFS_EXPORT_ITEMS ? left : EFS_EXPORT_ITEMS;
        ask.form = wanted | (left > EFS_EXPORT_ITEMS ? EFS_EXPORT_MORE : 0);
        pthread_mutex_lock(&m->lock);
        if (at == 0 && efs_export_works(h) && !m->receiving && !efs_export_has_tags(h, left))
            efs_export_receive_ready(m); /* answers to cancellations, which free tags */
        if (at == 0 && !efs_export_has_tags(h, left))
            rc = -ENOMEM;
        if (!efs_export_works(h))
            rc = -EIO;
        if (rc == 0)
            request_add(h, &ask, needs + at, request->items + at);
        for (uint32_t i = 0; i < ask.head.count && rc < 0; i++)
            efs_file_failed(request->items[at + i].file, rc);
        pthread_mutex_unlock(&m->lock);
        efs_export_end_packet(&ask);
        if (rc == 0)
            efs_export_send(m, &ask.head, 0); /* if that fails, so do the items */
    }
    pthread_mutex_unlock(&m->send_lock);
}

/* ---- the calls of base/request.h ---- */

static struct efs_mount_request *mount_request_of(const struct efs_client_request *of)
{
    return (struct efs_mount_request *)(uintptr_t)of; /* base is its first member */
}

static errint_t mount_block(struct efs_client_request *of, const struct timespec *until)
{
    struct efs_mount *m = mount_request_of(of)->mount;
    if (m->receiving || !efs_export_works(m->export))
        return efs_cond_wait_until(&m->arrived, &m->lock, until);
    errint_t rc = efs_export_receive(m, until); /* for all waiting threads */
    if (m->polled)
        efs_mount_signal(m->wake); /* maintenance continues to receive */
    if (efs_mount_has_unsent(m)) {
        pthread_mutex_unlock(&m->lock);
        efs_mount_flush(m, false);
        pthread_mutex_lock(&m->lock);
    }
    return rc;
}

/* Requests from the mount whether the rest of the request fits, after the drops that are queued. */
static void mount_refresh(struct efs_client_request *of)
{
    struct efs_mount_item *item = mount_request_of(of)->oversize_item;
    struct efs_mount *m = item->request->mount;
    struct efs_export_ask ask = efs_export_packet(EFS_EXPORT_REFRESH);
    ask.item[ask.head.count++].tag = item->file->exported.tag;
    efs_mount_item_set_oversize(item, false, 0);
    pthread_mutex_unlock(&m->lock);
    efs_export_end_packet(&ask);
    pthread_mutex_lock(&m->send_lock);
    efs_export_send(m, &ask.head, 0); /* meanwhile the item may have been answered: then this is not answered */
    pthread_mutex_unlock(&m->send_lock);
    pthread_mutex_lock(&m->lock);
}

static void mount_event_opened(struct efs_client_request *of)
{
    struct efs_mount *m = mount_request_of(of)->mount;
    m->polled += of->loading;
    efs_mount_signal(m->wake);
}

static errint_t mount_tensors(struct efs_client_request *of, uint32_t index, const struct efs_tensor **tensors,
                              uint32_t *count)
{
    const struct efs_mapped_file *mapped = &mount_request_of(of)->items[index].file->mapped;
    *tensors = mapped->tensors;
    *count = mapped->tensor_count;
    return 0;
}

/* Lock held. */
static void item_drop(struct efs_mount *m, struct efs_mount_item *item)
{
    struct efs_expert_file *file = item->file;
    item->file = NULL;
    efs_mount_item_set(item, EFS_ITEM_DROPPED, 0);
    if (file)
        efs_file_drop(m, file);
}

static void mount_drop(struct efs_client_request *of, uint32_t first, uint32_t end)
{
    struct efs_mount_request *request = mount_request_of(of);
    struct efs_mount *m = request->mount;
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = first; i < end; i++)
        item_drop(m, &request->items[i]);
    const bool unsent = efs_mount_has_unsent(m);
    pthread_mutex_unlock(&m->lock);
    if (unsent)
        efs_mount_flush(m, false);
}

static const struct efs_request_ops mount_request_ops = {.block = mount_block,
                                                         .refresh = mount_refresh,
                                                         .event_opened = mount_event_opened,
                                                         .tensors = mount_tensors,
                                                         .drop = mount_drop,
                                                         .free = efs_client_request_free};

/* ---- the start of a request ---- */

errint_t efs_mount_begin(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                         uint32_t count, enum efs_form form, struct efs_client_request **out, struct efs_error *err)
{
    errint_t rc = is_stack(stack) ? efs_request_check(needs, count, EFS_MOUNT_EXPERTS, err)
                                  : efs_fail(err, -ENOENT, "there is no stack \"%.40s\"", stack);
    if (rc < 0)
        return rc;
    struct efs_mount_request *request = efs_sys_calloc(1, sizeof(*request) + count * sizeof(request->items[0]));
    if (!request)
        return efs_fail(err, -ENOMEM, "no memory for a request");
    efs_client_request_init(&request->base, &mount_request_ops, &m->lock, &m->arrived, count,
                            offsetof(struct efs_mount_request, items), sizeof(request->items[0]));
    request->base.thread = efs_thread_number();
    request->mount = m;
    for (uint32_t i = 0; i < count; i++)
        request->items[i].request = request;
    rc = request_prepare(m, stack, layer, needs, form & ~EFS_FORM_COUNTED, request, err);
    if (rc < 0) {
        free(request);
        return rc;
    }
    request_send(m, stack, layer, needs, form, request);
    *out = &request->base;
    return 0;
}
