/* SPDX-License-Identifier: Apache-2.0 */
/* mount.c - see mount.h: requests of a mount. */
#include "mount.h"

#include "clock.h"
#include "event.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OPENERS_DEFAULT 32u
#define LINE_BYTES (EFS_MOUNT_EXPERTS * 24u + 64u)

struct item {
    struct efs_expert_file *file; /* NULL: dropped */
    bool told;
};

struct efs_mount_request {
    struct efs_mount *mount;
    struct efs_mount_request *next_watched;
    struct efs_event event; /* for who waits by poll(2) */
    uint32_t count;
    struct item items[];
};

/* ---- beginning ---- */

static bool is_stack(const char *stack)
{
    size_t n = strspn(stack, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    return stack[n] == '\0' && n <= 31;
}

static errint_t request_check(const char *stack, uint32_t layer, const struct efs_need *needs, uint32_t count,
                              struct efs_error *err)
{
    if (!is_stack(stack))
        return efs_fail(err, -ENOENT, "there is no stack \"%.40s\"", stack);
    if (count == 0 || count > EFS_MOUNT_EXPERTS)
        return efs_fail(err, -EINVAL, "%u experts in a request: 1 to %u are taken", count, EFS_MOUNT_EXPERTS);
    for (uint32_t i = 0; i < count; i++) {
        if (needs[i].tokens == 0)
            return efs_fail(err, -EINVAL, "expert %u of layer %u gets no token", needs[i].expert, layer);
        for (uint32_t n = 0; n < i; n++)
            if (needs[n].expert == needs[i].expert)
                return efs_fail(err, -EINVAL, "expert %u twice in a request", needs[i].expert);
    }
    return 0;
}

/* Lock held: the expert in a form that will do, if it is there or on its way: rather there. */
static struct efs_expert_file *mount_find(struct efs_mount *m, const struct efs_expert_key *full, enum efs_form form)
{
    struct efs_expert_key coded = *full;
    coded.coded = true;
    struct efs_expert_file *a = form != EFS_FORM_CODED ? efs_file_find(m, full, false) : NULL;
    struct efs_expert_file *b = form != EFS_FORM_FULL ? efs_file_find(m, &coded, form == EFS_FORM_CODED) : NULL;
    return a && (!b || a->state == EFS_FILE_HERE) ? a : b;
}

/* Was it there before? */
static bool mount_knows(struct efs_mount *m, const struct efs_expert_key *key)
{
    pthread_mutex_lock(&m->lock);
    bool known = efs_known_find(m, key, efs_expert_key_hash(key)) != NULL;
    pthread_mutex_unlock(&m->lock);
    return known;
}

/* Is there such a file? */
static errint_t mount_look(const struct efs_mount *m, const struct efs_expert_key *key, struct efs_error *err)
{
    char path[EFS_MAPPING_PATH];
    efs_mapped_path(key, path);
    int fd = efs_sys_openat(m->root, path, O_PATH | O_NOFOLLOW, 0);
    if (fd < 0)
        return efs_fail(err, fd, "%s: %s", path, strerror(-fd));
    efs_sys_close(fd);
    return 0;
}

/* "3: 17*12 4*1\n", in lines that are not too long. */
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

/* Lock held: an item gets its file. true: a new one, from *spare, to be brought. */
static bool item_take_file(struct efs_mount *m, struct item *item, struct efs_expert_key key, enum efs_form form,
                           struct efs_expert_file **spare)
{
    struct efs_expert_file *file = mount_find(m, &key, form);
    bool fresh = !file;
    if (fresh) {
        file = *spare;
        *spare = file->next_queued;
        file->next_queued = NULL;
        key.coded = form != EFS_FORM_FULL;
        efs_file_add(m, file, &key);
        file->any = form == EFS_FORM_ANY;
    }
    efs_file_ref(m, file);
    item->file = file;
    return fresh;
}

/* Lock held: does the mount hand out so many at once? */
static bool mount_may_ask(const struct efs_mount *m, uint32_t count)
{
    return efs_export_works(m->export) && count <= EFS_EXPORT_ITEMS;
}

/* All are mapped: nothing is asked of the system, and the mount is told a little later. false: not all are. */
static bool request_begin_mapped(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                                 enum efs_form form, struct efs_mount_request *request)
{
    char text[LINE_BYTES];
    bool all = true;
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < request->count && all; i++) {
        const struct efs_expert_key key = efs_expert_key(stack, layer, needs[i].expert);
        request->items[i].file = mount_find(m, &key, form);
        all = request->items[i].file && request->items[i].file->state == EFS_FILE_HERE;
    }
    if (all && mount_may_ask(m, request->count))
        all = efs_export_notify(m->export, stack, layer, needs, request->count, form);
    else if (all)
        all = efs_mount_tell_later(m, text, request_print(stack, layer, needs, request->count, text));
    if (all)
        efs_mount_wake_reaper(m);
    for (uint32_t i = 0; i < request->count; i++)
        if (all)
            efs_file_ref(m, request->items[i].file);
        else
            request->items[i].file = NULL;
    pthread_mutex_unlock(&m->lock);
    return all;
}

static void files_free(struct efs_expert_file *spare)
{
    while (spare) {
        struct efs_expert_file *next = spare->next_queued;
        free(spare);
        spare = next;
    }
}

/* The mount opens them as one request: it is told before the first open. */
static void request_begin_opening(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                                  struct efs_mount_request *request, struct efs_expert_file **spare)
{
    char text[LINE_BYTES];
    efs_mount_tell(m, text, request_print(stack, layer, needs, request->count, text));
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < request->count; i++) {
        const struct efs_expert_key key = efs_expert_key(stack, layer, needs[i].expert);
        if (item_take_file(m, &request->items[i], key, EFS_FORM_FULL, spare))
            efs_file_queue(m, request->items[i].file);
    }
    efs_mount_wake_open_workers(m);
    pthread_mutex_unlock(&m->lock);
}

/* Lock held: what is asked for of an item. */
static uint32_t item_ask(struct efs_mount *m, struct item *item, const struct efs_expert_key *key, enum efs_form form,
                         struct efs_expert_file **spare)
{
    if (!item_take_file(m, item, *key, form, spare))
        return EFS_EXPORT_NOTIFY;
    struct efs_expert_file *file = item->file;
    if (efs_export_works(m->export) && efs_export_take_tag(m->export, file)) {
        bool known = !file->key.coded || efs_known_find(m, &file->key, file->hash);
        file->state = EFS_FILE_OPENING;
        return file->handed.tag | (known ? 0 : EFS_EXPORT_WITH_LAYOUT);
    }
    if (file->any)
        efs_file_make_full(m, file);
    if (file->key.coded) {
        file->error = efs_export_works(m->export) ? -ENOMEM : -EIO;
        efs_file_opened(m, file);
    } else {
        efs_file_queue(m, file);
    }
    return EFS_EXPORT_NOTIFY;
}

/* The mount hands them out over its socket. */
static void request_begin_exports(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                                  enum efs_form form, struct efs_mount_request *request, struct efs_expert_file **spare)
{
    struct efs_export_ask ask = efs_export_packet(EFS_EXPORT_ASK);
    ask.layer = layer;
    ask.form = form;
    strcpy(ask.stack, stack); /* is_stack() */
    pthread_mutex_lock(&m->telling);
    for (uint32_t at = 0; at < request->count; at += ask.head.count) {
        uint32_t left = request->count - at;
        ask.head.count = left < EFS_EXPORT_ITEMS ? left : EFS_EXPORT_ITEMS;
        pthread_mutex_lock(&m->lock);
        for (uint32_t i = 0; i < ask.head.count; i++) {
            const struct efs_expert_key key = efs_expert_key(stack, layer, needs[at + i].expert);
            ask.item[i].expert = needs[at + i].expert;
            ask.item[i].tokens = needs[at + i].tokens;
            ask.item[i].tag = item_ask(m, &request->items[at + i], &key, form, spare);
        }
        efs_mount_wake_open_workers(m);
        pthread_mutex_unlock(&m->lock);
        efs_export_send(m, &ask);
    }
    pthread_mutex_unlock(&m->telling);
}

static errint_t request_begin(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                              enum efs_form form, struct efs_mount_request *request, struct efs_error *err)
{
    struct efs_expert_file *spare = NULL;
    errint_t rc = 0;
    for (uint32_t i = 0; i < request->count && rc == 0; i++) {
        struct efs_expert_file *file = efs_sys_calloc(1, sizeof(*file));
        const struct efs_expert_key key = efs_expert_key(stack, layer, needs[i].expert);
        rc = !file                  ? efs_fail(err, -ENOMEM, "no memory for a request")
             : mount_knows(m, &key) ? 0
                                    : mount_look(m, &key, err);
        if (file) {
            file->next_queued = spare;
            spare = file;
        }
    }
    if (rc < 0) {
        files_free(spare);
        return rc;
    }
    pthread_mutex_lock(&m->lock);
    bool ask = form != EFS_FORM_FULL || mount_may_ask(m, request->count);
    pthread_mutex_unlock(&m->lock);
    if (ask)
        request_begin_exports(m, stack, layer, needs, form, request, &spare);
    else
        request_begin_opening(m, stack, layer, needs, request, &spare);
    files_free(spare);
    return 0;
}

errint_t efs_mount_begin(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                         uint32_t count, enum efs_form form, struct efs_mount_request **out, struct efs_error *err)
{
    errint_t rc = request_check(stack, layer, needs, count, err);
    if (rc == 0 && form != EFS_FORM_FULL && !efs_export_hands_out_coded(m->export)) {
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
    request->mount = m;
    request->event.fd = -1;
    request->count = count;
    if (!request_begin_mapped(m, stack, layer, needs, form, request))
        rc = request_begin(m, stack, layer, needs, form, request, err);
    if (rc < 0)
        free(request);
    else
        *out = request;
    return rc;
}

/* ---- waiting, dropping ---- */

static bool item_is_coming(const struct item *item)
{
    return item->file && (item->file->state == EFS_FILE_QUEUED || item->file->state == EFS_FILE_OPENING);
}

static bool time_before(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

/* Lock held: wait until something arrives, or until. Files that are kept stand back when it takes long. -ETIMEDOUT. */
static errint_t mount_wait_more(struct efs_mount *m, const struct timespec *until)
{
    struct timespec now, end;
    bool forever = !until;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (until && !time_before(now, *until))
        return -ETIMEDOUT;
    end = efs_later(now, EFS_PATIENCE_NS);
    bool patient = m->oldest && (!until || time_before(end, *until));
    if (!patient && until)
        end = *until;
    if (!m->receiving && efs_export_works(m->export)) { /* for us and all others */
        errint_t received = efs_export_receive(m, !patient && forever ? NULL : &end);
        if (m->watched)
            efs_mount_wake_reaper(m); /* he goes on receiving */
        if (received == -ETIMEDOUT && patient)
            efs_files_trim(m, 0);
        return received == -ETIMEDOUT && !patient ? -ETIMEDOUT : 0;
    }
    m->waiting++;
    int rc = !patient && forever ? pthread_cond_wait(&m->arrived, &m->lock)
                                 : pthread_cond_timedwait(&m->arrived, &m->lock, &end);
    m->waiting--;
    if (rc == ETIMEDOUT && patient)
        efs_files_trim(m, 0);
    return rc == ETIMEDOUT && !patient ? -ETIMEDOUT : 0;
}

/* Lock held: one that is there or failed, and was not told yet; NULL: there is none. *coming: others are not there. */
static struct item *request_untold(struct efs_mount_request *request, bool *coming)
{
    *coming = false;
    for (uint32_t i = 0; i < request->count; i++) {
        struct item *item = &request->items[i];
        *coming = *coming || item_is_coming(item);
        if (item->file && !item->told && !item_is_coming(item))
            return item;
    }
    return NULL;
}

/* Lock held: the event is readable when waiting would not wait. */
static void request_tell_event(struct efs_mount_request *request)
{
    bool coming;
    if (request->event.fd >= 0)
        efs_event_set(&request->event, request_untold(request, &coming) || !coming);
}

void efs_mount_tell_events(struct efs_mount *m)
{
    for (struct efs_mount_request *r = m->watched; r; r = r->next_watched)
        request_tell_event(r);
}

bool efs_mount_is_watching(const struct efs_mount *m)
{
    for (const struct efs_mount_request *r = m->watched; r; r = r->next_watched)
        for (uint32_t i = 0; i < r->count; i++)
            if (item_is_coming(&r->items[i]))
                return true;
    return false;
}

int efs_mount_event(struct efs_mount_request *request)
{
    struct efs_mount *m = request->mount;
    pthread_mutex_lock(&m->lock);
    bool there = request->event.fd >= 0;
    int fd = there ? request->event.fd : efs_event_open(&request->event);
    if (!there && fd >= 0) {
        request->next_watched = m->watched;
        m->watched = request;
        request_tell_event(request);
        efs_mount_wake_reaper(m);
    }
    pthread_mutex_unlock(&m->lock);
    return fd;
}

static void mount_unwatch(struct efs_mount *m, struct efs_mount_request *request)
{
    struct efs_mount_request **p = &m->watched;
    if (request->event.fd < 0)
        return;
    while (*p != request)
        p = &(*p)->next_watched;
    *p = request->next_watched;
    efs_sys_close(request->event.fd);
}

int efs_mount_wait_any(struct efs_mount_request *request, int timeout_ms, uint32_t *index, errint_t *status)
{
    struct efs_mount *m = request->mount;
    const struct timespec until = efs_from_now((int64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000);
    struct item *item;
    bool coming;
    int rc = 0;
    pthread_mutex_lock(&m->lock);
    while (!(item = request_untold(request, &coming)) && coming && rc == 0)
        rc = mount_wait_more(m, timeout_ms < 0 ? NULL : &until);
    if (item) {
        item->told = true;
        *index = (uint32_t)(item - request->items);
        *status = item->file->error;
        rc = 1;
        request_tell_event(request);
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

errint_t efs_mount_wait(struct efs_mount_request *request)
{
    struct efs_mount *m = request->mount;
    errint_t rc = 0;
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < request->count; i++)
        while (item_is_coming(&request->items[i]))
            mount_wait_more(m, NULL);
    for (uint32_t i = 0; i < request->count && rc == 0; i++)
        rc = request->items[i].file ? request->items[i].file->error : 0;
    pthread_mutex_unlock(&m->lock);
    return rc;
}

errint_t efs_mount_tensors(struct efs_mount_request *request, uint32_t index, const struct efs_tensor **tensors,
                           uint32_t *count)
{
    struct efs_mount *m = request->mount;
    if (index >= request->count)
        return -EINVAL;
    pthread_mutex_lock(&m->lock);
    const struct item *item = &request->items[index];
    errint_t rc = !item->file ? -EINVAL : item_is_coming(item) ? -EAGAIN : item->file->error;
    if (rc == 0) {
        *tensors = item->file->mapped.tensors;
        *count = item->file->mapped.tensor_count;
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

static void item_drop(struct efs_mount *m, struct item *item)
{
    struct efs_expert_file *file = item->file;
    item->file = NULL;
    if (file)
        efs_file_unref(m, file);
}

void efs_mount_drop(struct efs_mount_request *request, uint32_t index)
{
    struct efs_mount *m = request->mount;
    if (index >= request->count)
        return;
    pthread_mutex_lock(&m->lock);
    item_drop(m, &request->items[index]);
    efs_mount_wake_waiters(m); /* who waits for it waits for nothing */
    pthread_mutex_unlock(&m->lock);
}

void efs_mount_release(struct efs_mount_request *request)
{
    struct efs_mount *m = request->mount;
    pthread_mutex_lock(&m->lock);
    mount_unwatch(m, request);
    for (uint32_t i = 0; i < request->count; i++)
        item_drop(m, &request->items[i]);
    pthread_mutex_unlock(&m->lock);
    free(request);
}

/* ---- begin and end ---- */

static errint_t mount_start(struct efs_mount *m, unsigned threads, struct efs_error *err)
{
    char word[8] = "";
    int fd = efs_sys_openat(m->root, ".expertfs/version", O_RDONLY | O_NONBLOCK, 0);
    errint_t rc = fd < 0 ? fd : 0;
    if (rc == 0) {
        ssize_t n = efs_sys_pread(fd, word, sizeof(word), 0);
        efs_sys_close(fd);
        rc = n < 0 ? (errint_t)n : n == sizeof(word) && memcmp(word, "version:", sizeof(word)) == 0 ? 0 : -ENODEV;
    }
    if (rc < 0)
        return efs_fail(err, rc == -ENOENT || rc == -ENOTDIR ? -ENODEV : rc,
                        "not a mount of expertfs: .expertfs/version: %s", strerror(rc == -ENODEV ? EINVAL : -rc));
    m->want =
        efs_sys_openat(m->root, ".expertfs/want", O_WRONLY | O_NONBLOCK, 0); /* others than who mounted do without */
    m->export = m->want >= 0 ? efs_export_connect(m->root) : NULL;
    m->open_workers_max = threads == 0 ? OPENERS_DEFAULT : threads < EFS_MOUNT_OPENERS ? threads : EFS_MOUNT_OPENERS;
    rc = efs_mount_threads_start(m);
    return rc < 0 ? efs_fail(err, rc, "no thread: %s", strerror(-rc)) : 0;
}

errint_t efs_mount_new(int root, uint64_t keep_bytes, unsigned threads, struct efs_mount **out, struct efs_error *err)
{
    struct efs_mount *m = efs_sys_calloc(1, sizeof(*m));
    if (!m) {
        efs_sys_close(root);
        return efs_fail(err, -ENOMEM, "no memory");
    }
    pthread_condattr_t attr;
    m->root = root;
    m->want = -1;
    m->keep_auto = keep_bytes == EFS_KEEP_AUTO;
    m->keep_bytes = m->keep_auto ? 0 : keep_bytes;
    m->open_tail = &m->open_queue;
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->telling, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&m->arrived, &attr);
    pthread_cond_init(&m->to_keep, &attr);
    pthread_condattr_destroy(&attr);
    pthread_cond_init(&m->to_open, NULL);
    errint_t rc = mount_start(m, threads, err);
    if (rc < 0)
        efs_mount_free(m);
    else
        *out = m;
    return rc;
}

void efs_mount_free(struct efs_mount *m)
{
    efs_mount_threads_stop(m);
    efs_known_free(m);
    efs_full_set_free(&m->full);
    efs_full_set_free(&m->listed);
    files_free(m->open_queue); /* nobody waits for these any more */
    efs_export_free(m->export);
    if (m->want >= 0)
        efs_sys_close(m->want);
    efs_sys_close(m->root);
    pthread_cond_destroy(&m->arrived);
    pthread_cond_destroy(&m->to_open);
    pthread_cond_destroy(&m->to_keep);
    pthread_mutex_destroy(&m->telling);
    pthread_mutex_destroy(&m->lock);
    free(m);
}
