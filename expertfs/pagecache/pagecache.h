/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pagecache.h - what the kernel's page cache holds of the mount's files: measured, shown, and held below a limit.
 *
 * Files that are read through the page cache, or mapped, leave their pages there. The daemon sees each fill as a read
 * request. A thread of its own asks cachestat(2) (Linux 6.5) what is still there, and drops what was read longest ago
 * where that is more than the option page_cache allows. What passthrough serves is in the daemon's memory files and in
 * its budget, and not counted here.
 *
 * Why it cannot deadlock. The thread may wait for the daemon: its opens are answered by a receiving thread, and an
 * invalidation waits for pages that are being read, whose answers come from the engine's workers. Nobody waits for
 * the thread: it holds no lock that they take (what it shares with them is atomic), receiving threads and workers only
 * store numbers for it and signal an eventfd, and its own opens are answered at once, without engine or lock
 * (efsd_pagecache_open()). So every wait is for work that goes on by itself. It is joined before the receiving threads
 * and the engine end. So that the daemon can be killed meanwhile, calls on files of the mount are made by a thread that
 * has nothing of the daemon open (apart.h); an invalidation needs the daemon's device, and guard.h ends its wait.
 *
 * Why it does not keep the mount busy. An open file makes umount fail with EBUSY. With CAP_SYS_ADMIN the thread opens
 * below a private clone of the mount (open_tree(2)), which umount does not count, and gives the clone up as soon as the
 * mount has left the mount table. Else it opens by path, one range at a time, only while others have files open.
 */
#ifndef EFSD_PAGECACHE_H
#define EFSD_PAGECACHE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <time.h>

#include "apart.h"
#include "expertfs.h"

struct efsd;
struct fuse_req;

/* name, kind, unit, help; shown in stat and metrics. */
#define EFSD_PAGECACHE_STATS(X)                                                                                        \
    X(page_cache_bytes, gauge, "bytes", "what the page cache holds of the mount's files")                              \
    X(page_cache_measured, gauge, "", "page_cache_bytes was measured (1), or is what was read at most (0)")            \
    X(page_cache_age_ns, gauge, "ns", "time since page_cache_bytes was found")                                         \
    X(page_cache_limit_bytes, gauge, "bytes", "the limit of page_cache_bytes, 0: none")                                \
    X(page_cache_rounds, counter, "", "times that the page cache was looked at")                                       \
    X(page_cache_opens, counter, "", "opens by the daemon itself, to look")                                            \
    X(page_cache_evictions, counter, "", "ranges of files that were given up for the limit")                           \
    X(page_cache_dropped_bytes, counter, "bytes", "pages given up that nobody had mapped")                             \
    X(page_cache_invalidated_bytes, counter, "bytes", "pages given up that were also taken from mappings")

struct efsd_pagecache_stats {
#define EFSD_PAGECACHE_FIELD(name, kind, unit, help) uint64_t name;
    EFSD_PAGECACHE_STATS(EFSD_PAGECACHE_FIELD)
#undef EFSD_PAGECACHE_FIELD
};

/* A piece of a file: the page cache is measured and dropped by these. */
struct efsd_range {
    _Atomic uint64_t last_read;    /* the clock at its last read request; 0: none */
    _Atomic uint64_t filled_bytes; /* at most so much is resident: what was found last, and read since */
    uint64_t looked;               /* the thread's: last_read when it looked last */
    uint64_t resident_bytes;       /* the thread's: what it found then */
    uint64_t kept;                 /* the thread's: last_read when a drop left pages, which are mapped then; 0: none */
};

struct efsd_pagecache {
    /* constant after init */
    struct efsd_range *ranges;
    uint32_t range_count;
    uint32_t *first_range; /* by node, and one more: its ranges are [first[n], first[n + 1]) */
    unsigned range_shift;
    int event_fd; /* wakes the thread */
    /* the thread's */
    uint32_t *order;       /* of ranges, to choose from */
    uint64_t before_clock; /* the clock at the round before this one: what was read later is young */
    uint64_t found_bytes;  /* by the last round, before it gave anything up */
    int table_fd;          /* mountinfo: POLLPRI when mounts change; -1: not available */

    pthread_t thread;
    struct efsd_apart files; /* opens files of the mount, and has them */
    /* of both threads that look at files of the mount: this one and that of loading.c */
    pthread_mutex_t open_lock; /* guards the next two; held while a file is opened */
    int clone_fd;              /* a private clone of the mount, of the table of `files`; -1: opens go by path */
    bool left;                 /* the mount is not in the mount table any more */
    _Atomic bool can_measure;  /* there is cachestat */
    /* shared */
    _Atomic pid_t opener; /* the thread that opens a file of ours now, as the kernel names it in requests; 0: none */
    _Atomic bool to_read; /* ... and it is to be read, not only looked at */
    _Atomic bool started, stop;
    _Atomic bool wanted;          /* do a round soon */
    _Atomic uint64_t clock;       /* bytes read by all requests so far */
    _Atomic uint64_t round_clock; /* the clock when the last round began */
    _Atomic uint64_t limit_bytes; /* 0: none */
    _Atomic uint64_t found_ns;    /* CLOCK_MONOTONIC, when the last round ended */
    _Atomic uint64_t bytes, measured, rounds, opens, evictions, dropped_bytes, invalidated_bytes;
    const char *_Atomic note; /* why it is not measured; NULL when it is */
};

/* Set up the ranges of all files of the built tree. Before there are threads. -ENOMEM. */
errint_t efsd_pagecache_init(struct efsd *daemon);
/* Memory that init took, in bytes. */
uint64_t efsd_pagecache_memory(const struct efsd *daemon);
/* Start the thread; the mount must answer already. A machine that lacks something is no error. 0 or -errno. */
errint_t efsd_pagecache_start(struct efsd *daemon);
/* End and join it, and give up what it holds of the mount. While the receiving threads still answer. */
void efsd_pagecache_stop(struct efsd *daemon);
/* When no thread is left. */
void efsd_pagecache_free(struct efsd *daemon);

/* A read request came. Any thread; some atomic stores, never waits. */
void efsd_pagecache_read(struct efsd *daemon, uint32_t node, uint64_t offset, uint64_t bytes);
enum efsd_opener { EFSD_OPENER_OTHER, EFSD_OPENER_LOOKS, EFSD_OPENER_READS };
/* Is an open with this process id one of our own? */
enum efsd_opener efsd_pagecache_opener(const struct efsd *daemon, pid_t pid);
/* Answer an open of our own that only looks: no lease, no handle (0), nothing but the inode. */
void efsd_pagecache_open(struct efsd *daemon, struct fuse_req *req);

/* Change the limit; 0: none. The thread acts on it soon. -EOPNOTSUPP: there is no thread that could. Any thread. */
errint_t efsd_pagecache_set(struct efsd *daemon, uint64_t limit_bytes);
/* The same from text, a size or "off". -EINVAL with what is allowed in err; 0, maybe with something to know in err. */
errint_t efsd_pagecache_tune(struct efsd *daemon, const char *text, struct efs_error *err);
/* The limit as tune takes it. */
void efsd_pagecache_get(const struct efsd *daemon, char *text, size_t room);
void efsd_pagecache_stats(const struct efsd *daemon, struct efsd_pagecache_stats *stats);
/* Why it is not measured, in words, or NULL. */
const char *efsd_pagecache_note(const struct efsd *daemon);

/* ---- between the files of this part -------------------------------------------------------------------------- */

/* pagecache_kernel.c: what the kernel is asked for, holding nothing. By this thread (or before it runs) and that of
 * loading.c. Descriptors are of the table of pagecache.files: there is nothing to be done with them but by these. */

void efsd_pagecache_attach(struct efsd *daemon);
void efsd_pagecache_detach(struct efsd *daemon);
/* Give the clone up if the mount has left the mount table. */
void efsd_pagecache_watch(struct efsd *daemon);
/* Open a file of the mount, to look only, or to read ahead in it. The descriptor, or -errno with the reason in the
 * note. -ENODATA: it has no pages, since passthrough serves it. */
int efsd_pagecache_open_own(struct efsd *daemon, uint32_t node, bool to_read);
void efsd_pagecache_close_own(struct efsd *daemon, int fd);
/* posix_fadvise(2). */
void efsd_pagecache_advise(struct efsd *daemon, int fd, uint64_t offset, uint64_t bytes, int advice);
/* Drop all pages there, also from mappings. Waits for those that are being read. */
void efsd_pagecache_invalidate(struct efsd *daemon, uint32_t node, uint64_t offset, uint64_t bytes);
/* Do such opens leave umount free? They may be kept for a while then. */
bool efsd_pagecache_opens_apart(struct efsd *daemon);
/* Bytes of file fd that are resident from offset on; bytes 0: to its end. 0 or -errno. */
errint_t efsd_cachestat(struct efsd *daemon, int fd, uint64_t offset, uint64_t bytes, uint64_t *resident_bytes);
/* pagecache_round.c: look at what was read, and hold the limit. Nanoseconds of processor time that looking took. */
uint64_t efsd_pagecache_round(struct efsd *daemon);

static inline uint64_t efsd_clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

#endif
