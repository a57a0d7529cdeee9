/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.h - one mount: what its parts share, and what they offer each other.
 *
 *   options -> engine -> tree -> session (mount, INIT) -> receiving threads -> ops -> reads | opens | control
 *
 * Threads: main (starts, waits for signals, stops), receiving threads (take requests from the kernel; answer all that
 * needs no disk; may wait for a reply buffer, never for the disk), the engine's workers (answer reads and opens when
 * the bytes are there), and one that watches the page cache and that nobody waits for (pagecache.h). After start()
 * everything here is constant but what names a lock or is atomic.
 */
#ifndef EFSD_DAEMON_H
#define EFSD_DAEMON_H

#define FUSE_USE_VERSION 314

#include <fuse_lowlevel.h>
#include <pthread.h>
#include <time.h>

#include "counters.h"
#include "expertfs.h"
#include "loading.h"
#include "options.h"
#include "pagecache.h"
#include "tree.h"

/* Largest read that the kernel sends, and the size of a reply buffer. */
#define EFSD_IO_BYTES (1u << 20)
#define EFSD_PAGE_BYTES 4096u
#define EFSD_CUT_BYTES (128u << 10) /* of this length a request may be one that was cut */

/* ---- reply buffers (buffers.c) ------------------------------------------------------------------------------ */

struct efsd;
struct efsd_open;

/* A buffer and the read that it answers; owned by whoever took it. */
struct efsd_buffer {
    uint8_t *data;  /* EFSD_IO_BYTES, page-aligned */
    uint8_t *begin; /* of the answer, in data */
    struct efsd_buffer *next;
    struct efsd *daemon;
    struct efsd_open *open;
    bool followed; /* by the thread that reads ahead, or its own */
    fuse_req_t req;
};

/* A block that was decoded before it was asked for (decode_ahead.c). */
struct efsd_decode_ahead {
    uint8_t *data; /* EFSD_IO_BYTES; constant */
    struct efsd *daemon;
    uint64_t offset, turn;
    size_t bytes;
    uint32_t node;
    unsigned state, sending; /* sending: answers from it that are on their way */
    bool through;            /* its end was sent: nobody comes for it any more */
    fuse_req_t req;          /* of who waits for all of it */
};
#define EFSD_DECODE_AHEADS 4u

struct efsd_buffers {
    pthread_mutex_t lock; /* guards free, the slots of ahead, and guesses */
    pthread_cond_t given;
    struct efsd_buffer *free; /* last given first: it is warm */
    struct efsd_buffer *all;
    uint8_t *memory;
    size_t count; /* with those of ahead */
    struct efsd_decode_ahead ahead[EFSD_DECODE_AHEADS];
    size_t ahead_count;
    uint64_t turn;
    const struct efsd_open *reader; /* of the last large read; maybe gone: only compared */
};

/*
 * Where the answer to a request begins in a buffer. The kernel cuts a long read where a page of the reader's buffer
 * ends: the length tells how far behind a page that begins. An answer that begins as far behind one is copied whole
 * pages at a time; else each is copied in two parts, which is slow where they are a byte or two apart. Any place is
 * right.
 */
static inline size_t efsd_answer_begin(size_t bytes)
{
    return bytes < EFSD_CUT_BYTES ? 0 : (EFSD_PAGE_BYTES - bytes % EFSD_PAGE_BYTES) % EFSD_PAGE_BYTES;
}

errint_t efsd_buffers_open(struct efsd_buffers *buffers, size_t count);
void efsd_buffers_close(struct efsd_buffers *buffers);
/* Waits while all are taken; *waited says whether it did. Who holds a buffer never waits for a receiving thread, so
 * the wait ends. Meanwhile further requests stay in the kernel's queue, where a killed reader can take them back. */
struct efsd_buffer *efsd_buffer_take(struct efsd_buffers *buffers, bool *waited);
void efsd_buffer_give(struct efsd_buffers *buffers, struct efsd_buffer *buffer);

/* Answer a read of a file, and count it (reads.c). */
void efsd_reply_read(struct efsd *daemon, fuse_req_t req, errint_t error, const void *data, size_t bytes);

/* ---- blocks before they are asked for (decode_ahead.c); all on the thread that received the request ----------------
 */

struct efsd_open;
/* A read past the page cache has come: is it the one that was expected? */
bool efsd_decode_ahead_follows(struct efsd *daemon, struct efsd_open *open, uint64_t offset, size_t bytes);
/* The block is there, and is sent, or is coming, and will be: the request is taken. */
bool efsd_decode_ahead_take(struct efsd *daemon, fuse_req_t req, uint32_t node, uint64_t offset, size_t bytes);
/* A request was answered by this thread. */
void efsd_decode_ahead_answered(void);
/* If it was: decode what follows it, as long as the reader comes for it meanwhile. open lives until the return. */
void efsd_decode_ahead_go_on(struct efsd *daemon, struct efsd_open *open);

/* ---- passthrough (passthrough.c) ---------------------------------------------------------------------------- */

/* What the kernel's side of the connection can do; known after the INIT exchange, constant after it. */
struct efsd_kernel {
    uint64_t init_unique;     /* id of the INIT request */
    uint64_t offered;         /* FUSE_* flags, 64 bits */
    uint32_t minor;           /* of the protocol, 7.minor */
    bool answered;            /* the INIT reply went out */
    bool direct_mmap;         /* a file opened with direct_io can be mapped */
    bool passthrough;         /* the kernel takes backing files, tried with one */
    char no_passthrough[160]; /* why not; "" when passthrough */
};

/* Attach to the session in place of libfuse's own reading and writing. After fuse_session_mount(). */
errint_t efsd_kernel_attach(struct efsd *daemon);
/* Look at a request before libfuse does: learns from INIT. */
void efsd_kernel_request(struct efsd *daemon, const void *request, size_t bytes);
/* May this process register backing files at all (CAP_SYS_ADMIN)? Known before there is a mount. */
bool efsd_kernel_privileged(void);
/* After INIT: register a memfd for a try, and fill in passthrough and the reason. */
void efsd_kernel_probe(struct efsd *daemon);
/* Register fd (a regular file) as a backing file: an id > 0, or -errno. */
int efsd_backing_open(struct efsd *daemon, int fd);
void efsd_backing_close(struct efsd *daemon, int backing_id);
/* Answer an open request so that the kernel serves the file from the backing. 0 or -errno (-ENOENT: the caller gave
 * up, there will be no release). */
int efsd_reply_backed(fuse_req_t req, uint64_t handle, int backing_id);

/* ---- opens (opens.c) ---------------------------------------------------------------------------------------- */

struct efsd_share; /* of all opens of one expert */

/* Where reads for the page cache go (reads.c). */
struct efsd_faults {
    _Atomic uint64_t begin, next; /* of the run that is going on; its end */
};

/* What the reader will ask for next, past the page cache (decode_ahead.c); guarded by efsd_buffers.lock. */
struct efsd_guess {
    uint64_t offset, end; /* end: of the last large read */
    size_t bytes;         /* or more, at the end of the file */
    bool sure;            /* the last guess came true */
    bool small;           /* the last read was a small one, and the rest of this tells what is next */
    uint64_t small_end;   /* of the last small read */
    uint32_t small_run;   /* small reads in a row that followed each other */
};

/* One open file, its handle in the kernel; alive until release and the last read in flight. */
struct efsd_open {
    struct efs_stream *stream; /* the daemon's */
    struct efsd_faults faults;
    struct efsd_guess guess;
    uint32_t node;
    bool own; /* by the daemon itself, to read ahead in the page cache (loading.c) */
    _Atomic uint32_t references;
    struct efsd_share *share; /* experts that may have a lease, else NULL */
    char *text;               /* control files: the whole text, as it was when opened */
    size_t text_bytes;
    fuse_req_t req; /* while it waits for a lease; guarded by efsd_opens.lock, like the links */
    struct efsd_open **link, *after;
};

struct efsd_opens {
    pthread_mutex_t lock;       /* guards all of this, and what is in the shares */
    struct efsd_share **shares; /* by expert number; NULL: not open */
    _Atomic bool *mapped;       /* by node: it was read for the page cache while opens went past it */
    struct efsd_open *waiting;  /* those that wait for a lease */
    struct efsd_open *answered; /* all others */
};

errint_t efsd_opens_init(struct efsd *daemon);
/* Also frees what is still open: the kernel's side is gone, the engine closes its leases. */
void efsd_opens_free(struct efsd *daemon);
/* Answer an open of a file or expert; maybe later and from another thread. */
void efsd_open_file(struct efsd *daemon, fuse_req_t req, uint32_t node, int flags);
/* Answer an open by the daemon itself, of a file of the checkpoint, to read ahead in the page cache. */
void efsd_open_own(struct efsd *daemon, fuse_req_t req, uint32_t node);
void efsd_open_release(struct efsd *daemon, struct efsd_open *open);
/* The node was read for the page cache: it is mapped. Later opens of it leave there what is there. */
void efsd_opens_mapped(struct efsd *daemon, uint32_t node);
/* The open of a handle that the kernel gave back, maybe to another thread than the one that made it, with references
 * more to give up by efsd_open_unref(). Whoever answers a read holds one until the answer was sent: with the answer the
 * reader may close the file. */
struct efsd_open *efsd_open_ref(const struct fuse_file_info *file, uint32_t references);
void efsd_open_unref(struct efsd_open *open);

/* What memory there is for us and for the page cache, which can be given back: of our cgroups, or of the machine. */
static inline uint64_t efsd_memory_bytes(void)
{
    return 2 * efs_auto_budget(); /* which leaves half to others */
}

/* ---- memory for the page cache (shrink.c) --------------------------------------------------------------------- */

struct efsd_shrink {
    _Atomic uint64_t cached_bytes; /* read for the page cache */
    _Atomic uint64_t direct_bytes; /* read past it, since the last look */
    _Atomic uint64_t look_bytes;   /* cached_bytes at which to look again */
    _Atomic bool leased;           /* an expert was opened since the last look */
    _Atomic bool small;            /* the budget is ours, and small */
    _Atomic bool looking;          /* guards the rest, and changes of small */
    uint64_t set_bytes;            /* cached_bytes when it was set last */
    char budget[64];               /* what we set it to, as efs_get() tells it */
};

/* A read of a file: for the page cache, or past it. */
void efsd_shrink_read(struct efsd *daemon, size_t bytes, bool cached);
/* An expert is opened with a lease: the memory is wanted back. */
void efsd_shrink_leased(struct efsd *daemon);

/* ---- control files (control.c) ------------------------------------------------------------------------------ */

enum efsd_control {
    EFSD_CONTROL_VERSION,
    EFSD_CONTROL_CONFIG,
    EFSD_CONTROL_STAT,
    EFSD_CONTROL_POOLS,
    EFSD_CONTROL_EXPERTS,
    EFSD_CONTROL_PLAN,
    EFSD_CONTROL_PROFILE,
    EFSD_CONTROL_WANT,
    EFSD_CONTROL_SCHED,
    EFSD_CONTROL_TRACE,
    EFSD_CONTROL_METRICS,
    EFSD_CONTROL_HANDOUT,
    EFSD_CONTROL_COUNT
};
#define EFSD_CONTROL_DIRECTORY ".expertfs"
extern const char *const efsd_control_names[EFSD_CONTROL_COUNT];
/* The file's text as of now, for free(). 0 or -ENOMEM. */
errint_t efsd_control_render(struct efsd *daemon, enum efsd_control file, char **text, size_t *bytes);

#define EFSD_POOLS "FCSEM"                                /* for efs_pool_info() */
void efsd_render_metrics(struct efsd *daemon, FILE *out); /* control_metrics.c */

/* ---- tuning (xattr.c), requests (want.c) ------------------------------------------------------------------- */

#define EFSD_TUNABLES 8u
extern const char *const efsd_tunables[EFSD_TUNABLES]; /* names for efs_set(), and page_cache; xattrs of the root */
/* What is set now, as efs_get() tells it. */
errint_t efsd_tunable_get(struct efsd *daemon, const char *name, char *value, size_t room);

struct efsd_tuning {
    char at_mount[EFSD_TUNABLES][128]; /* what removing an xattr goes back to */
    pthread_mutex_t lock;              /* guards answer */
    _Atomic int64_t want_logged;       /* second in which a wrong request was told in the log */
    char answer[1400];                 /* what became of the last change or wrong request: "ok", or why not */
};
/* What is set now is what removing an xattr goes back to. */
errint_t efsd_tuning_init(struct efsd *daemon);
void efsd_answer(struct efsd *daemon, const char *text);

void efsd_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t room);
void efsd_listxattr(fuse_req_t req, fuse_ino_t ino, size_t room);
void efsd_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t bytes, int flags);
void efsd_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

/* Is it .expertfs/want, the one file that can be written? By those who may tune. */
bool efsd_is_want(const struct efsd *daemon, uint32_t node);
/* Take what a user asks for, in lines, and count it; who is refused is told in the log. As efs_want(). */
errint_t efsd_want_take(struct efsd *daemon, uid_t user, const char *text, size_t bytes);
void efsd_want_open(struct efsd *daemon, fuse_req_t req, uint32_t node, int flags);
void efsd_want_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t bytes, off_t offset,
                     struct fuse_file_info *file);
/* EFS_IOC_WANT, on it or the root. */
void efsd_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned command, void *argument, struct fuse_file_info *file,
                unsigned flags, const void *in, size_t in_bytes, size_t out_bytes);
/* EROFS; but cutting want to nothing is fine. */
void efsd_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int set, struct fuse_file_info *file);

/* ---- the mount ---------------------------------------------------------------------------------------------- */

struct efsd {
    struct efsd_options options;
    struct efs *fs;
    struct efs_store_info info;
    struct efs_stream *streams[4]; /* by hints, for all readers of whom that is known */
    uint32_t expert_count;
    struct efsd_tree tree;
    struct efsd_buffers buffers;
    struct efsd_opens opens;
    struct efsd_kernel kernel;
    struct efsd_counters counters;
    struct efsd_pagecache pagecache;
    struct efsd_loading loading;
    struct efsd_shrink shrink;
    struct efsd_tuning tuning;
    struct efsd_export *export; /* NULL: there is none */
    struct fuse_session *session;
    int fuse_fd;                     /* the session's */
    int stop_fd;                     /* eventfd: readable when receiving threads shall end */
    int ended_fd;                    /* eventfd: readable when one has ended because the mount is gone */
    unsigned threads;                /* receiving threads */
    unsigned started_threads;        /* main's own: those to join */
    struct efsd_receiver *receivers; /* session.c */
    struct timespec mtime;           /* of all files: the store's */
    uid_t uid;
    gid_t gid;                /* the store's */
    mode_t mode;              /* of files: who may read the store, bits of 0444 */
    bool restricted;          /* others may come, and some of them may not read: the kernel judges by mode */
    dev_t device;             /* st_dev of the mount; 0: not known */
    bool direct_io;           /* plain opens use direct_io */
    uint64_t readahead_bytes; /* in force in the kernel; 0: not known */
    char readahead_note[160]; /* why it is not as asked; "" when it is */
    char path_note[400];      /* why there is no better path than serving_path, for people */
    time_t started;
};

/* "passthrough", "direct_io" or "page_cache": the best path that this mount has. */
const char *efsd_serving_path(const struct efsd *daemon);

extern const struct fuse_lowlevel_ops efsd_ops; /* ops.c; userdata is struct efsd */
/* The tree never changes, so the kernel may keep what it was told. */
#define EFSD_KEEP_SECONDS 86400.0
/* The node of an inode number; false for a number that the kernel cannot have from us. */
bool efsd_node_of(const struct efsd *daemon, fuse_ino_t ino, uint32_t *node);
void efsd_attributes(const struct efsd *daemon, uint32_t node, struct stat *st);

/* refusals.c: EROFS, in the form of each operation that would change a file or a name. */
void efsd_refuse_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t device);
void efsd_refuse_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void efsd_refuse_remove(fuse_req_t req, fuse_ino_t parent, const char *name);
void efsd_refuse_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name);
void efsd_refuse_rename(fuse_req_t req, fuse_ino_t from, const char *name, fuse_ino_t to, const char *new_name,
                        unsigned flags);
void efsd_refuse_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name);
void efsd_refuse_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *file);
void efsd_refuse_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                           struct fuse_file_info *file);
/* What access(2) is told. */
void efsd_access(fuse_req_t req, fuse_ino_t ino, int mask);
/* May who sent this request tune the mount? Who mounted it, and root. */
bool efsd_may_tune(const struct efsd *daemon, fuse_req_t req);

/* Answer a read of a file (reads.c). */
void efsd_read(struct efsd *daemon, fuse_req_t req, const struct fuse_file_info *file, size_t bytes, uint64_t offset);

/* session.c: mount and exchange INIT; then threads; then the end. */
errint_t efsd_session_mount(struct efsd *daemon, struct efs_error *err);
errint_t efsd_session_start(struct efsd *daemon, struct efs_error *err);
/* Ask the threads to end and join them. Replies can still be sent. */
void efsd_session_stop(struct efsd *daemon);
/* Unmount, also with open files (lazily: their readers get errors from now on), and free the session. */
void efsd_session_end(struct efsd *daemon);

/* readahead.c: raise the mount's read-ahead where allowed; fills device, readahead_bytes and readahead_note. Asks the
 * mount for nothing, so that it can be called before there are receiving threads. */
void efsd_raise_readahead(struct efsd *daemon);

/* Who waits for the mount is told once: that it answers, or that a signal came before (from another thread, and the
 * process ends then). */
struct efsd_starter {
    void (*ready)(void *arg);
    void (*given_up)(void *arg, const char *reason);
    void *arg;
};
/* serve.c: everything from a checked command line to the end of the mount. 0 after a clean end, or -errno with the
 * reason in err. */
errint_t efsd_serve(const struct efsd_options *options, const struct efsd_starter *starter, struct efs_error *err);

#endif
