/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - the experts of a mount, for client.c: files that are opened and mapped by threads of their own, shared by
 * requests, and kept for a while.
 *
 *   mount.c          its beginning and end
 *   mount_begin.c, mount_wait.c, mount_watch.c    requests: begun, waited for, with an event for poll(2)
 *   needs.c          what a request may name
 *   mount_tell.c     what was used, told by .expertfs/want; mount_routing.c: what layers choose
 *   reaper.c         the thread that closes and tells
 *   open_workers.c   the threads that open
 *   export*.c        experts that the mount hands out without a file, where it does
 *   files.c          which files there are, who uses them, what is kept
 *   full_set.c       which the mount keeps full, and so are worth to be kept
 *   known.c          layouts of files that were open before
 *   mapping.c        one file; file_layout.c, coded_layout.c, notes.c: what stands where in it
 *
 * One lock (efs_mount.lock) guards all of it; it is never held over a call of the system that may wait.
 */
#ifndef EFS_CLIENT_MOUNT_H
#define EFS_CLIENT_MOUNT_H

#include "export.h"
#include "mapping.h"

#include <pthread.h>

#define EFS_MOUNT_BUCKETS 1024u
#define EFS_MOUNT_OPEN_WORKERS 64u
#define EFS_MOUNT_EXPERTS 512u /* of a request: what a line of .expertfs/want takes */

#define EFS_PATIENCE_NS 100000000 /* that a wait leaves what is kept alone; opens may be waiting for its room */

struct efs_mount_waiter { /* for all of a request */
    struct efs_mount_waiter *next;
    uint32_t number;
    bool stuck; /* the mount says that not all can be there at once */
};

enum efs_expert_file_state { EFS_FILE_QUEUED, EFS_FILE_OPENING, EFS_FILE_HERE, EFS_FILE_FAILED };

struct efs_expert_file {
    struct efs_expert_file *next_hashed, *next_queued; /* in open workers' or the reaper's queue */
    struct efs_expert_file *newer, *older;             /* among those that are kept */
    uint32_t hash, refs;                               /* refs: items of requests */
    enum efs_expert_file_state state;
    bool kept, hashed;
    bool any; /* asked for as the mount likes, and expected coded */
    errint_t error;
    struct efs_mapped_file mapped;
    struct efs_handed handed; /* by the mount's socket, instead of opened */
    struct efs_expert_key key;
};

/* Experts by their hashes, sorted once they are all there: two that share one are kept, or not, together. */
struct efs_full_set {
    uint32_t *hashes, count, room;
    uint64_t bytes; /* of these experts, decoded */
};

struct efs_mount {
    int root, want;            /* directory; .expertfs/want, < 0: not for us to write */
    struct efs_export *export; /* NULL: files are opened */
    bool no_view;              /* experts/ is the checkpoint's own: nothing in it is an expert's file */
    bool receiving;            /* a thread waits for what it sends */
    bool keep_auto;            /* keeps what the mount keeps full, as full_set.c sees it */
    unsigned open_workers_max;

    pthread_mutex_t lock;
    pthread_cond_t arrived, to_open, to_keep; /* for those who wait, open workers, the reaper */
    struct efs_expert_file *buckets[EFS_MOUNT_BUCKETS];
    struct efs_expert_file *open_queue, **open_tail, *close_queue;
    struct efs_known *known[EFS_MOUNT_BUCKETS];
    struct efs_expert_file *newest, *oldest;
    uint64_t keep_bytes, kept_bytes;  /* at most, now */
    struct efs_full_set full, listed; /* of keep_auto: what the mount keeps full; what it is listing now */
    bool listing;                     /* the mount was asked for a list, which has not come whole */
    uint64_t asked_ns, look_ns;       /* when it was asked last; when to ask again, */
    bool rested;                      /* and whether something came to rest since the last time */
    uint32_t queued, idle_open_workers, open_worker_count, waiting; /* waiting: threads for arrived */
    uint32_t open_files, closing; /* open, or being opened or closed: each has a descriptor; threads that close some */
    struct efs_mount_request *watched; /* whose users wait by poll(2), not by a thread */
    struct efs_mount_waiter *waiters;  /* for all of a request */
    uint32_t waiter_number;            /* of the last of these */
    bool reaper_sleeps, stop;
    pthread_t open_workers[EFS_MOUNT_OPEN_WORKERS], reaper;
    bool reaper_there;

    pthread_mutex_t telling; /* guards what the mount is told, by want or its socket; taken before lock */
    size_t told_bytes;       /* of text; guarded by lock, like it */
    char text[EFS_WANT_BYTES];
};

/* ---- open_workers.c ---- */
errint_t efs_open_workers_start(struct efs_mount *m);
/* Without lock, also when none was started. What is queued to be opened is not; what is being opened is waited for. */
void efs_open_workers_stop(struct efs_mount *m);
/* Lock held: there is more to open. */
void efs_mount_wake_open_workers(struct efs_mount *m);

/* ---- reaper.c ---- */
errint_t efs_reaper_start(struct efs_mount *m);
/* Without lock, when open workers have ended, also when it was not started: all is closed and told. */
void efs_reaper_stop(struct efs_mount *m);
/* Lock held: there is more to close or tell. */
static inline void efs_mount_wake_reaper(struct efs_mount *m)
{
    if (m->reaper_sleeps)
        pthread_cond_signal(&m->to_keep);
}

/* ---- mount_tell.c ---- */
/* Lock held: put a line to what the mount is told soon. false: there is no room for it now. */
bool efs_mount_tell_later(struct efs_mount *m, const char *line, size_t bytes);
/* Without lock: tell it now, after all that was to be told. */
void efs_mount_tell(struct efs_mount *m, const char *line, size_t bytes);

/* ---- files.c: with lock held ---- */
/* The file of that expert, if there is one that did not fail; certain: and that cannot come in the other form. */
struct efs_expert_file *efs_file_find(struct efs_mount *m, const struct efs_expert_key *key, bool certain);
/* A new one, whose memory was got by the caller; to be queued, or asked for. */
void efs_file_add(struct efs_mount *m, struct efs_expert_file *file, const struct efs_expert_key *key);
/* It is expected in full from now on, in place of coded. */
void efs_file_make_full(struct efs_mount *m, struct efs_expert_file *file);
/* To the open workers, who want to be woken. */
void efs_file_queue(struct efs_mount *m, struct efs_expert_file *file);
/* It is not handed out, for that reason: it is to be opened, for which open workers want to be woken, or, coded, it has
 * failed. It has no tag any more. */
void efs_file_do_without(struct efs_mount *m, struct efs_expert_file *file, errint_t error);
/* Free a queue of files that nobody knows; without lock. */
void efs_files_free(struct efs_expert_file *queue);
/* Something has come, or nothing comes any more: those who wait look again. */
void efs_mount_wake_waiters(struct efs_mount *m);
/* The mount says so of the waiter of that number, if it is still there. */
void efs_mount_stuck(struct efs_mount *m, uint32_t number);
void efs_file_ref(struct efs_mount *m, struct efs_expert_file *file);
void efs_file_unref(struct efs_mount *m, struct efs_expert_file *file);
/* It was opened, or not. Frees it if nobody wants it any more. */
void efs_file_opened(struct efs_mount *m, struct efs_expert_file *file);
/* In a forked process: close, unmap and free all that are listed. */
void efs_files_leave(struct efs_mount *m);
/* What nobody uses goes to the reaper until no more than that is kept. true: something went. */
bool efs_files_trim(struct efs_mount *m, uint64_t keep_bytes);
/* Close those that went, now; the lock is given up meanwhile. */
void efs_mount_close_files(struct efs_mount *m);
/* The one that was used least recently goes. false: none is kept. */
bool efs_files_let_oldest_go(struct efs_mount *m);
/* The same with those that are not worth it any more (full_set.c), and with what is above keep_bytes. */
void efs_files_let_others_go(struct efs_mount *m);

/* ---- known.c: with lock held ---- */
/* The layout that the file had when it was open last, until the mount is let go; NULL: it was not. */
const struct efs_file_layout *efs_known_find(const struct efs_mount *m, const struct efs_expert_key *key,
                                             uint32_t hash);
/* Take over what was learned when the file was opened. Without memory the file keeps it. */
void efs_known_add(struct efs_mount *m, struct efs_expert_file *file);
void efs_known_free(struct efs_mount *m);

/* ---- full_set.c: with lock held ---- */
#define EFS_KEEP_PARTS 8u /* of what the mount keeps full all but one of so many parts may be kept open */
/* May a file that nobody uses stay open? */
bool efs_full_set_has(const struct efs_mount *m, uint32_t hash);
/* A packet of what the mount keeps full; with the last, it is in force. false: the mount was not asked. */
bool efs_full_set_take(struct efs_mount *m, const struct efs_export_kept *packet);
/* Nothing is listed any more: nothing is to be kept. */
void efs_full_set_lose(struct efs_mount *m);
void efs_full_set_free(struct efs_full_set *set);

/* ---- mount_watch.c: with lock held ---- */
struct efs_mount_request;
/* Something has come, or is not waited for any more: the events of requests that are watched. */
void efs_mount_tell_events(struct efs_mount *m);
/* Is one of them still waited for? The reaper does then what a thread that waits would do. */
bool efs_mount_is_watching(const struct efs_mount *m);

/* ---- mount.c ---- */
/* root is taken over, also when this fails. */
errint_t efs_mount_new(int root, uint64_t keep_bytes, unsigned threads, struct efs_mount **mount,
                       struct efs_error *err);
void efs_mount_free(struct efs_mount *mount);
/* The same in a process that was forked from the one that opened it: this process's descriptors and mappings are
 * closed, the mount is told nothing, threads are not waited for. */
void efs_mount_leave(struct efs_mount *mount);

/* ---- mount_begin.c, mount_wait.c, mount_watch.c: as the calls of expertfs.h ---- */
errint_t efs_mount_begin(struct efs_mount *m, const char *stack, uint32_t layer, const struct efs_need *needs,
                         uint32_t count, enum efs_form form, struct efs_mount_request **request, struct efs_error *err);
int efs_mount_wait_any(struct efs_mount_request *request, int timeout_ms, uint32_t *index, errint_t *status);
int efs_mount_event(struct efs_mount_request *request);
errint_t efs_mount_wait(struct efs_mount_request *request);
errint_t efs_mount_tensors(struct efs_mount_request *request, uint32_t index, const struct efs_tensor **tensors,
                           uint32_t *count);
void efs_mount_drop(struct efs_mount_request *request, uint32_t index);
void efs_mount_release(struct efs_mount_request *request);
void efs_mount_request_leave(struct efs_mount_request *request); /* in a forked process */

/* ---- mount_routing.c ---- */
/* efs_client_state(). Without lock. */
char efs_mount_state(const struct efs_mount *m, const struct efs_expert_key *key);
/* efs_observe(), efs_hint(): checked by efs_routing_check(). */
errint_t efs_mount_routing(struct efs_mount *m, const struct efs_routing *routing, bool hint, struct efs_error *err);

#endif
