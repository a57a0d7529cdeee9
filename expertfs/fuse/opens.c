/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opens.c - open and release. All opens of an expert share one lease and one backing file, from the first open to the
 * last release, and are of one kind meanwhile, because the kernel does not mix them (see passthrough.c).
 *
 *   first open -> FILLING (the engine decodes the expert into a memfd; opens are queued)
 *              -> BACKED  (queued opens are answered with the backing file; later ones at once)
 *              -> PLAIN   (the lease failed: opens are answered as ordinary files, which the engine reads)
 *   last release: closes the backing file, releases the lease, frees the share
 */
#include "opens.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "caller.h"
#include "control.h"
#include "daemon.h"
#include "expertfs-stats.h"
#include "log.h"

/* Control files are opened while the texts of the open ones are smaller than this, and than this share of the budget at
 * the mount: any user may open them. */
#define TEXTS_MOST (16u << 20)
#define TEXTS_SHARE 16u
#define OPEN_BYTES (sizeof(struct efsd_open) + 16) /* 16: by calloc() */

enum share_state { SHARE_FILLING, SHARE_BACKED, SHARE_PLAIN };

struct efsd_share {
    struct efsd *daemon;
    enum share_state state;
    uint32_t expert;
    uint32_t users;          /* opens, waiting or answered, and one while FILLING */
    struct efs_lease *lease; /* BACKED */
    int backing_id;          /* BACKED */
};

errint_t efsd_opens_init(struct efsd *daemon)
{
    struct efs_stats stats;
    efs_stats(daemon->fs, &stats);
    const uint64_t texts = stats.budget_bytes / TEXTS_SHARE;
    daemon->opens.map_bytes_max = texts < TEXTS_MOST ? texts : TEXTS_MOST;
    efsd_charge_init(&daemon->charge);
    pthread_mutex_init(&daemon->opens.lock, NULL);
    daemon->opens.shares = calloc((size_t)daemon->expert_count + 1, sizeof(*daemon->opens.shares));
    daemon->opens.cached_bytes = calloc((size_t)daemon->tree.count + 1, sizeof(*daemon->opens.cached_bytes));
    return daemon->opens.shares && daemon->opens.cached_bytes ? 0 : -ENOMEM;
}

/* Each open is in one of the two lists, from open_new() to efsd_open_release(). */
static void open_list_add(struct efsd_open **head, struct efsd_open *open)
{
    assert(!open->link && !open->after);
    assert(!*head || (*head)->link == head);
    open->link = head;
    open->after = *head;
    if (open->after)
        open->after->link = &open->after;
    *head = open;
}

static void open_list_remove(struct efsd_open *open)
{
    assert(open->link && *open->link == open);
    assert(!open->after || open->after->link == &open->after);
    *open->link = open->after;
    if (open->after)
        open->after->link = open->link;
    open->link = NULL;
    open->after = NULL;
}

/* Lock held, or no other thread left. A share has a lease and a backing file if and only if it is BACKED. */
static void share_check(const struct efsd_share *share)
{
    assert(share->users > 0);
    assert((share->state == SHARE_BACKED) == (share->lease != NULL));
    assert((share->state == SHARE_BACKED) == (share->backing_id > 0));
    (void)share;
}

/* -ENFILE, -ENOMEM. */
static errint_t open_new(struct efsd *daemon, fuse_req_t req, uint32_t node, struct efsd_open **out)
{
    errint_t rc = efsd_charge(daemon, OPEN_BYTES);
    struct efsd_open *open = *out = rc ? NULL : calloc(1, sizeof(*open));
    if (!rc && !open) {
        efsd_uncharge(daemon, OPEN_BYTES);
        rc = -ENOMEM;
    }
    if (rc)
        return rc;
    open->node = node;
    open->thread = (uint32_t)fuse_req_ctx(req)->pid;
    open->user = fuse_req_ctx(req)->uid;
    atomic_init(&open->references, 1);
    pthread_mutex_lock(&daemon->opens.lock);
    open_list_add(&daemon->opens.answered, open);
    pthread_mutex_unlock(&daemon->opens.lock);
    return 0;
}

struct efsd_reader *efsd_opens_list(struct efsd *daemon, size_t *count)
{
    struct efsd_opens *opens = &daemon->opens;
    size_t room = 0;
    *count = 0;
    pthread_mutex_lock(&opens->lock);
    for (const struct efsd_open *open = opens->answered; open; open = open->after)
        room++;
    pthread_mutex_unlock(&opens->lock);
    struct efsd_reader *list = calloc(room + 1, sizeof(*list));
    pthread_mutex_lock(&opens->lock);
    for (const struct efsd_open *open = opens->answered; list && open && *count < room; open = open->after)
        if (daemon->tree.nodes[open->node].kind != EFSD_CONTROL)
            list[(*count)++] = (struct efsd_reader){open->thread, open->user,
                                                    atomic_load_explicit(&open->read_bytes, memory_order_relaxed)};
    pthread_mutex_unlock(&opens->lock);
    return list;
}

struct efsd_open *efsd_open_ref(const struct fuse_file_info *file, uint32_t references)
{
    struct efsd_open *open = (struct efsd_open *)(uintptr_t)file->fh;
    uint32_t before = atomic_fetch_add_explicit(&open->references, references, memory_order_acquire);
    assert(before > 0 && before <= UINT32_MAX - references);
    (void)before;
    return open;
}

void efsd_open_unref(struct efsd_open *open)
{
    uint32_t before = atomic_fetch_sub_explicit(&open->references, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before == 1) {
        assert(!open->link); /* it is in no list */
        if (open->text)
            munmap(open->text, open->map_bytes);
        free(open);
    }
}

void efsd_opens_free(struct efsd *daemon)
{
    struct efsd_opens *opens = &daemon->opens;
    free((void *)opens->cached_bytes);
    opens->cached_bytes = NULL;
    if (!opens->shares)
        return;
    assert(!opens->waiting); /* the engine has completed all leases */
    while (opens->answered) {
        struct efsd_open *open = opens->answered;
        open_list_remove(open);
        if (open->share) {
            share_check(open->share);
            open->share->users--;
        }
        efsd_open_unref(open);
    }
    for (uint32_t i = 0; i < daemon->expert_count; i++) {
        assert(!opens->shares[i] || (opens->shares[i]->users == 0 && opens->shares[i]->state != SHARE_FILLING));
        free(opens->shares[i]);
    }
    free(opens->shares);
    pthread_mutex_destroy(&opens->lock);
    *opens = (struct efsd_opens){0};
}

/* Drops one user. The last one closes the backing file and releases the lease, after the share was removed from the
 * table. */
static void share_put(struct efsd_share *share)
{
    struct efsd *daemon = share->daemon;
    struct efsd_share **at = &daemon->opens.shares[share->expert];
    pthread_mutex_lock(&daemon->opens.lock);
    share_check(share);
    assert(*at == share || share->state == SHARE_PLAIN); /* PLAIN: it was refused and removed */
    bool last = --share->users == 0;
    assert(!last || share->state != SHARE_FILLING); /* FILLING counts as a user */
    if (last && *at == share)
        *at = NULL;
    pthread_mutex_unlock(&daemon->opens.lock);
    if (!last)
        return;
    if (share->lease) {
        efsd_backing_close(daemon, share->backing_id);
        efs_lease_release(share->lease);
    }
    free(share);
}

void efsd_open_release(struct efsd *daemon, struct efsd_open *open)
{
    pthread_mutex_lock(&daemon->opens.lock);
    open_list_remove(open);
    pthread_mutex_unlock(&daemon->opens.lock);
    daemon->opens.map_bytes -= open->map_bytes;
    efsd_uncharge(daemon, OPEN_BYTES + open->map_bytes);
    if (open->share)
        share_put(open->share);
    efsd_open_unref(open);
}

static void open_reply_failed(struct efsd *daemon, fuse_req_t req, struct efsd_open *open, int error)
{
    efsd_count(error == EINTR ? &daemon->counters.open_interrupts : &daemon->counters.open_errors, 1);
    if (open)
        efsd_open_release(daemon, open);
    fuse_reply_err(req, error);
}

/* Whether all files of the checkpoint fit into the page cache now, with a budget that is used up. Takes some 50 us. */
static bool page_cache_fits(struct efsd *daemon)
{
    struct efs_stats stats;
    efs_stats(daemon->fs, &stats);
    uint64_t held = stats.fixed_bytes + stats.chunk_pool_bytes + stats.full_pool_bytes;
    uint64_t grows = stats.budget_bytes > held ? stats.budget_bytes - held : 0, left = efsd_memory_bytes();
    return left > grows && left - grows >= daemon->info.source_bytes;
}

/*
 * True if read() of this open bypasses the page cache. By direct_io=auto this is so for a file that has no pages there,
 * of a checkpoint that does not fit into memory with the budget: the kernel drops a file's pages, for all processes,
 * when an open with direct_io is mapped. Experts are opened with direct_io: the kernel does not mix page cache and
 * backing files.
 */
static bool open_is_direct(struct efsd *daemon, struct efsd_open *open)
{
    bool file = daemon->tree.nodes[open->node].kind == EFSD_FILE;
    open->fits = file && page_cache_fits(daemon);
    if (!daemon->direct_io || daemon->options.direct_io == EFSD_DIRECT_IO_ON || !file)
        return daemon->direct_io;
    return !open->fits && !atomic_load_explicit(&daemon->opens.cached_bytes[open->node], memory_order_relaxed);
}

/* Answers an open. Its share, if any, is BACKED or PLAIN, and stays so. */
static void open_reply(struct efsd *daemon, fuse_req_t req, struct efsd_open *open)
{
    struct efsd_counters *counters = &daemon->counters;
    assert(!open->share || open->share->state != SHARE_FILLING);
    assert(!open->req); /* opens_pop_waiting() has cleared it */
    bool backed = open->share && open->share->state == SHARE_BACKED;
    bool control = open->text != NULL, direct = control || open_is_direct(daemon, open);
    efsd_count(backed    ? &counters->opens_passthrough
               : control ? &counters->opens_control
               : direct  ? &counters->opens_direct
                         : &counters->opens_cached,
               1);
    uint64_t handle = (uint64_t)(uintptr_t)open;
    atomic_store_explicit(&open->references, 1, memory_order_release); /* pairs with efsd_open_ref() */
    struct fuse_file_info file = {.fh = handle, .direct_io = direct, .keep_cache = !control, .noflush = 1};
    int rc = backed ? efsd_reply_backed(req, handle, open->share->backing_id) : fuse_reply_open(req, &file);
    if (rc == -ENOENT) /* the open was interrupted: no release will follow */
        efsd_open_release(daemon, open);
}

/* Removes an open that waits for share, or the open of request wanted, from the waiting list (one of the two is NULL).
 * The caller answers it, as *req. NULL: no such open. */
static struct efsd_open *opens_pop_waiting(struct efsd *daemon, const struct efsd_share *share, fuse_req_t wanted,
                                           fuse_req_t *req)
{
    pthread_mutex_lock(&daemon->opens.lock);
    struct efsd_open *open = daemon->opens.waiting;
    while (open && open->share != share && open->req != wanted)
        open = open->after;
    if (open) {
        assert(open->share && open->req && (!share || open->share == share));
        *req = open->req;
        open->req = NULL;
        open_list_remove(open);
        open_list_add(&daemon->opens.answered, open);
    }
    pthread_mutex_unlock(&daemon->opens.lock);
    return open;
}

/* Completion of a lease. If it failed, the expert is opened as an ordinary file, also if it is damaged or unreadable:
 * reads of its intact parts succeed, other reads fail. Opens are refused only when the engine closes (-ECANCELED). */
static void share_leased(void *arg, errint_t error, struct efs_lease *lease)
{
    struct efsd_share *share = arg;
    struct efsd *daemon = share->daemon;
    int fd = error ? error : efs_lease_fd(lease);
    int backing_id = fd < 0 ? fd : efsd_backing_open(daemon, fd);
    if (!error && backing_id < 0) {
        efs_lease_release(lease);
        error = backing_id;
    }
    const bool refuse = error == -ECANCELED;
    if (error && !refuse) {
        efsd_count(&daemon->counters.lease_fallbacks, 1);
        if (error != -ENOMEM && error != -EBUSY) { /* -EBUSY: exported over the socket */
            efsd_log(EFS_LOG_WARNING, "expert %u is read without passthrough, its lease failed: %s", share->expert,
                     strerror(-error));
        }
    }
    pthread_mutex_lock(&daemon->opens.lock);
    share_check(share);
    assert(share->state == SHARE_FILLING && daemon->opens.shares[share->expert] == share);
    share->state = error ? SHARE_PLAIN : SHARE_BACKED;
    share->lease = error ? NULL : lease;
    share->backing_id = error ? 0 : backing_id;
    if (refuse) /* later opens create a new share */
        daemon->opens.shares[share->expert] = NULL;
    pthread_mutex_unlock(&daemon->opens.lock);
    struct efsd_open *open;
    fuse_req_t req;
    while ((open = opens_pop_waiting(daemon, share, NULL, &req)))
        if (refuse)
            open_reply_failed(daemon, req, open, EIO);
        else
            open_reply(daemon, req, open);
    share_put(share);
}

/* The caller of a waiting open was interrupted. libfuse calls this with the request locked, before or after the request
 * was answered; it is answered here only if it still waits and its caller is being killed. */
static void open_interrupted(fuse_req_t req, void *arg)
{
    struct efsd *daemon = arg;
    fuse_req_t taken;
    if (!efsd_caller_is_killed(req))
        return;
    struct efsd_open *open = opens_pop_waiting(daemon, NULL, req, &taken);
    if (open) {
        assert(taken == req);
        open_reply_failed(daemon, taken, open, EINTR);
    }
}

enum joined { JOINED_DECIDED, JOINED_WAITING, JOINED_INTERRUPTED };

/* Joins the share of an expert, or creates it from fresh. DECIDED: the caller can answer the open; WAITING:
 * share_leased() or open_interrupted() answers it, and may already have freed it; INTERRUPTED: the caller of the open
 * was killed before it was queued. */
static enum joined share_join(struct efsd *daemon, fuse_req_t req, struct efsd_open *open, struct efsd_share *fresh,
                              bool *begun)
{
    enum joined joined = JOINED_DECIDED;
    pthread_mutex_lock(&daemon->opens.lock);
    struct efsd_share **at = &daemon->opens.shares[fresh->expert];
    *begun = !*at;
    if (*begun)
        *at = fresh;
    assert(!open->share && (*at)->expert == fresh->expert);
    share_check(*at);
    assert((*at)->users < UINT32_MAX);
    open->share = *at;
    open->share->users++;
    if (open->share->state == SHARE_FILLING)
        joined = fuse_req_interrupted(req) && efsd_caller_is_killed(req) ? JOINED_INTERRUPTED : JOINED_WAITING;
    if (joined == JOINED_WAITING) {
        open->req = req;
        open_list_remove(open);
        open_list_add(&daemon->opens.waiting, open);
    }
    pthread_mutex_unlock(&daemon->opens.lock);
    return joined;
}

static void open_expert(struct efsd *daemon, fuse_req_t req, struct efsd_open *open)
{
    const struct efsd_node *node = &daemon->tree.nodes[open->node];
    struct efsd_share *fresh = calloc(1, sizeof(*fresh));
    if (!fresh) {
        open_reply_failed(daemon, req, open, ENOMEM);
        return;
    }
    *fresh = (struct efsd_share){.daemon = daemon, .state = SHARE_FILLING, .expert = node->expert, .users = 1};
    fuse_req_interrupt_func(req, open_interrupted, daemon);
    bool begun;
    switch (share_join(daemon, req, open, fresh, &begun)) {
    case JOINED_DECIDED:
        open_reply(daemon, req, open);
        break;
    case JOINED_INTERRUPTED:
        open_reply_failed(daemon, req, open, EINTR);
        break;
    case JOINED_WAITING:
        break;
    }
    if (begun)
        efs_lease(daemon->fs, node->id, share_leased, fresh);
    else
        free(fresh);
}

/* Copies the text to pages of its own, which its release returns to the system. -ENFILE, -ENOMEM. */
static errint_t open_keep_text(struct efsd *daemon, struct efsd_open *open, const char *text, size_t text_bytes)
{
    const size_t bytes = (text_bytes + EFSD_PAGE_BYTES) / EFSD_PAGE_BYTES * EFSD_PAGE_BYTES;
    errint_t rc = efsd_charge(daemon, bytes);
    if (rc)
        return rc;
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        efsd_uncharge(daemon, bytes);
        return -ENOMEM;
    }
    open->text = memcpy(map, text, text_bytes);
    open->text_bytes = text_bytes;
    open->map_bytes = bytes;
    daemon->opens.map_bytes += bytes;
    return 0;
}

/* Generates the text of a control file. -ENFILE, -ENOMEM. */
static errint_t open_render(struct efsd *daemon, struct efsd_open *open)
{
    const struct efsd_node *file = &daemon->tree.nodes[open->node];
    char *text;
    size_t bytes;
    if (daemon->opens.map_bytes >= daemon->opens.map_bytes_max)
        return -ENFILE;
    errint_t rc = efsd_control_render(daemon, (enum efsd_control)file->id, &text, &bytes);
    if (!rc)
        rc = open_keep_text(daemon, open, text, bytes);
    free(text); /* NULL after an error */
    return rc;
}

void efsd_open_file(struct efsd *daemon, fuse_req_t req, uint32_t node, int flags)
{
    efsd_count(&daemon->counters.opens, 1);
    if ((flags & O_ACCMODE) != O_RDONLY) {
        open_reply_failed(daemon, req, NULL, EROFS);
        return;
    }
    const struct efsd_node *file = &daemon->tree.nodes[node];
    struct efsd_open *open;
    errint_t rc = open_new(daemon, req, node, &open);
    if (!rc && file->kind == EFSD_CONTROL)
        rc = open_render(daemon, open);
    if (rc) {
        open_reply_failed(daemon, req, open, -rc);
        return;
    }
    if (file->kind == EFSD_EXPERT && daemon->kernel.passthrough)
        open_expert(daemon, req, open);
    else
        open_reply(daemon, req, open);
}
