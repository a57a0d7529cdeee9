/* SPDX-License-Identifier: Apache-2.0 */
/* mount_begin.c - see mount.h: starts requests of a mount. */
#include "mount_request.h"

#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES (EFS_MOUNT_EXPERTS * 24u + 64u)

static bool is_stack(const char *stack)
{
    size_t n = strspn(stack, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return stack[n] == '\0' && n <= 31;
}

static errint_t mount_check_request(const char *stack, const struct efs_need *needs, uint32_t count,
                                    struct efs_error *err)
{
    if (!is_stack(stack))
        return efs_fail(err, -ENOENT, "there is no stack \"%.40s\"", stack);
    return efs_request_check(needs, count, EFS_MOUNT_EXPERTS, err);
}

/* Lock held. A file of the expert, loaded or in flight, in a form that the request allows: the full one if it is
 * loaded, else the coded one, else the full one in flight. NULL: none. */
static struct efs_expert_file *mount_find(struct efs_mount *m, const struct efs_expert_key *full, enum efs_form form)
{
    struct efs_expert_key coded = *full;
    coded.coded = true;
    struct efs_expert_file *a = form != EFS_FORM_CODED ? efs_file_find(m, full) : NULL;
    struct efs_expert_file *b = form != EFS_FORM_FULL ? efs_file_find(m, &coded) : NULL;
    return a && (!b || a->state == EFS_FILE_READY) ? a : b;
}

/* Whether the layout of the expert's full file is cached: then the expert exists. */
static bool mount_has_layout(struct efs_mount *m, const struct efs_expert_key *key)
{
    pthread_mutex_lock(&m->lock);
    bool known = efs_layout_cache_find(m, key, efs_expert_key_hash(key)) != NULL;
    pthread_mutex_unlock(&m->lock);
    return known;
}

/* Whether the expert's file exists: 0, -ENOENT, ... Without the view (no_view) there are no files: returns 0, and an
 * expert that does not exist fails when it is loaded. */
static errint_t mount_check_exists(const struct efs_mount *m, const struct efs_expert_key *key, struct efs_error *err)
{
    if (m->no_view)
        return 0;
    char path[EFS_MAPPING_PATH];
    efs_mapped_path(key, path);
    int fd = efs_sys_openat(m->root, path, O_PATH | O_NOFOLLOW, 0);
    if (fd < 0)
        return efs_fail(err, fd, "%s: %s", path, strerror(-fd));
    efs_sys_close(fd);
    return 0;
}

/* Writes lines such as "3: 17*12 4*1\n" for .expertfs/want, each of at most EFS_WANT_LINE_BYTES. */
static size_t request_print(const char *stack, uint32_t layer, const struct efs_need *needs, uint32_t count,
                            char text[LINE_BYTES])
{
    size_t used = 0, line = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (i == 0 || used - line > EFS_WANT_LINE_BYTES - 32) {
            if (i)
                text[used++] = '\n';
            line = used;
            used += (size_t)snprintf(text + used, LINE_BYTES - used, *stack ? "%s-L%02u:" : "%s%u:", stack, layer);
        }
        used += (size_t)snprintf(text + used, LINE_BYTES - used, " %u*%u", needs[i].expert, needs[i].tokens);
    }
    text[used++] = '\n';
    return used;
}

/* Lock held. Lets an item use a file, which is READY or in flight. */
static void item_use(struct efs_mount *m, struct efs_mount_item *item, struct efs_expert_file *file)
{
    efs_file_ref(m, file);
    item->file = file;
    if (file->state == EFS_FILE_READY) {
        efs_mount_item_set(item, EFS_ITEM_READY, 0);
    } else {
        item->next_waiting = file->waiting;
        file->waiting = item;
    }
}

/* Lock held. Takes a new file for the item from the list *spare; the caller queues or requests it. */
static struct efs_expert_file *item_new_file(struct efs_mount *m, struct efs_mount_item *item,
                                             struct efs_expert_key key, enum efs_form form,
                                             struct efs_expert_file **spare)
{
    struct efs_expert_file *file = *spare;
    *spare = file->next_queued;
    file->next_queued = NULL;
    key.coded = form != EFS_FORM_FULL;
    efs_file_add(m, file, &key);
    file->any = form == EFS_FORM_ANY;
    item_use(m, item, file);
    return file;
}

/* Starts a request whose experts are all loaded: needs no system call, the mount is notified later. false: not all are
 * loaded, or the notification cannot be queued; nothing was changed. */
static bool request_begin_mapped(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                                 enum efs_form form, struct efs_mount_request *request)
{
    char text[LINE_BYTES];
    bool all = true;
    pthread_mutex_lock(&m->lock);
    efs_export_receive_late(m);
    for (uint32_t i = 0; i < request->base.count && all; i++) {
        const struct efs_expert_key key = efs_expert_key(stack, layer, needs[i].expert);
        request->items[i].file = mount_find(m, &key, form);
        all = request->items[i].file && request->items[i].file->state == EFS_FILE_READY;
    }
    if (all && efs_export_works(m->export) && request->base.count <= EFS_EXPORT_ITEMS)
        all = efs_export_notify(m->export, stack, layer, needs, request->base.count, form);
    else if (all)
        all = efs_mount_notify_later(m, text, request_print(stack, layer, needs, request->base.count, text));
    const bool unsent = efs_mount_has_unsent(m);
    for (uint32_t i = 0; i < request->base.count; i++)
        if (all)
            item_use(m, &request->items[i], request->items[i].file);
        else
            request->items[i].file = NULL;
    pthread_mutex_unlock(&m->lock);
    if (unsent)
        efs_mount_flush(m);
    return all;
}

/* Starts a request whose experts are opened as files. Notifies the mount before the first open, so that it treats the
 * opens as one request. */
static void request_begin_opening(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                                  struct efs_mount_request *request, struct efs_expert_file **spare)
{
    char text[LINE_BYTES];
    efs_mount_notify(m, text, request_print(stack, layer, needs, request->base.count, text));
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < request->base.count; i++) {
        const struct efs_expert_key key = efs_expert_key(stack, layer, needs[i].expert);
        struct efs_expert_file *file = mount_find(m, &key, EFS_FORM_FULL);
        if (file)
            item_use(m, &request->items[i], file);
        else
            efs_file_queue(m, item_new_file(m, &request->items[i], key, EFS_FORM_FULL, spare));
    }
    efs_mount_wake_open_workers(m);
    pthread_mutex_unlock(&m->lock);
}

/* Lock held. Sets the item's file and returns the tag for the packet. EFS_EXPORT_NOTIFY: there is no tag, and the file
 * is opened instead. */
static uint32_t item_request(struct efs_mount *m, struct efs_mount_item *item, const struct efs_expert_key *key,
                             enum efs_form form, struct efs_expert_file **spare)
{
    struct efs_expert_file *file = item_new_file(m, item, *key, form, spare);
    if (efs_export_works(m->export) && efs_export_alloc_tag(m->export, file)) {
        bool known = !file->key.coded || efs_layout_cache_find(m, &file->key, file->hash);
        file->state = EFS_FILE_OPENING;
        return file->exported.tag | (known ? 0 : EFS_EXPORT_WITH_LAYOUT);
    }
    efs_file_fall_back(m, file, efs_export_works(m->export) ? -ENOMEM : -EIO);
    return EFS_EXPORT_NOTIFY;
}

/* Starts a request whose experts the mount sends over its socket. It asks for all of them, also for those that other
 * requests of this process hold: the mount then gives memory to all or to none. */
static void request_begin_exports(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                                  enum efs_form form, struct efs_mount_request *request, struct efs_expert_file **spare)
{
    struct efs_export_ask ask = efs_export_packet(EFS_EXPORT_ASK);
    ask.layer = layer;
    strcpy(ask.stack, stack); /* is_stack() has checked its length */
    pthread_mutex_lock(&m->send_lock);
    for (uint32_t at = 0; at < request->base.count; at += ask.head.count) {
        uint32_t left = request->base.count - at;
        ask.head.count = left < EFS_EXPORT_ITEMS ? left : EFS_EXPORT_ITEMS;
        ask.form = (uint32_t)form | (left > EFS_EXPORT_ITEMS ? EFS_EXPORT_MORE : 0);
        pthread_mutex_lock(&m->lock);
        for (uint32_t i = 0; i < ask.head.count; i++) {
            const struct efs_expert_key key = efs_expert_key(stack, layer, needs[at + i].expert);
            ask.item[i].expert = needs[at + i].expert;
            ask.item[i].tokens = needs[at + i].tokens;
            ask.item[i].tag = item_request(m, &request->items[at + i], &key, form, spare);
        }
        efs_mount_wake_open_workers(m);
        pthread_mutex_unlock(&m->lock);
        efs_export_send_ask(m, &ask);
    }
    pthread_mutex_unlock(&m->send_lock);
}

static errint_t request_begin(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                              enum efs_form form, struct efs_mount_request *request, struct efs_error *err)
{
    struct efs_expert_file *spare = NULL;
    errint_t rc = 0;
    for (uint32_t i = 0; i < request->base.count && rc == 0; i++) {
        struct efs_expert_file *file = efs_sys_calloc(1, sizeof(*file));
        const struct efs_expert_key key = efs_expert_key(stack, layer, needs[i].expert);
        rc = !file                       ? efs_fail(err, -ENOMEM, "no memory for a request")
             : mount_has_layout(m, &key) ? 0
                                         : mount_check_exists(m, &key, err);
        if (file) {
            file->next_queued = spare;
            spare = file;
        }
    }
    if (rc < 0) {
        efs_files_free(spare);
        return rc;
    }
    pthread_mutex_lock(&m->lock);
    bool ask = form != EFS_FORM_FULL || efs_export_works(m->export);
    pthread_mutex_unlock(&m->lock);
    if (ask)
        request_begin_exports(m, stack, layer, needs, form, request, &spare);
    else
        request_begin_opening(m, stack, layer, needs, request, &spare);
    efs_files_free(spare);
    return 0;
}

errint_t efs_mount_begin(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                         uint32_t count, enum efs_form form, struct efs_client_request **out, struct efs_error *err)
{
    errint_t rc = mount_check_request(stack, needs, count, err);
    if (rc == 0 && form != EFS_FORM_FULL && !efs_export_supports_coded(m->export)) {
        if (form == EFS_FORM_CODED)
            return efs_fail(err, -EOPNOTSUPP,
                            "this mount hands out no coded experts to us (.expertfs/handout says \"coded: no\", or is "
                            "of another user): it needs passthrough and Linux 6.9; ask for full ones");
        form = EFS_FORM_FULL;
    }
    if (rc < 0)
        return rc;
    struct efs_mount_request *request = efs_sys_calloc(1, sizeof(*request) + count * sizeof(request->items[0]));
    if (!request)
        return efs_fail(err, -ENOMEM, "no memory for a request");
    efs_client_request_init(&request->base, &efs_mount_request_ops, &m->lock, &m->arrived, count,
                            offsetof(struct efs_mount_request, items), sizeof(request->items[0]));
    request->mount = m;
    for (uint32_t i = 0; i < count; i++)
        request->items[i].request = request;
    if (!request_begin_mapped(m, stack, layer, needs, form, request))
        rc = request_begin(m, stack, layer, needs, form, request, err);
    if (rc < 0)
        free(request);
    else
        *out = &request->base;
    return rc;
}
