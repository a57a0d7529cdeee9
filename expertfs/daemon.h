/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.h - struct efsd, the state of one mount, shared by all rooms of the daemon.
 *
 *   options -> engine -> tree -> session (mount, INIT) -> receiving threads -> ops -> reads | opens | control
 *
 * Threads: main (starts the mount, waits for signals, stops it), receiving threads (read requests of the kernel and
 * answer those that need no disk, and small reads, during which all but one may block on the disk; may block on a reply
 * buffer), the engine's workers (complete reads and opens when the data is in memory), the export thread (export.c) and
 * the log thread (log_queue.c). No thread accesses files of the mount: the request would wait for this daemon, which
 * could then not be killed.
 *
 * After daemon_start() all fields are constant except those that name a lock or are atomic.
 */
#ifndef EFSD_DAEMON_H
#define EFSD_DAEMON_H

#include <time.h>

#include "buffers.h"
#include "charge.h"
#include "counters.h"
#include "mount.h"
#include "opens.h"
#include "options.h"
#include "passthrough.h"
#include "recent.h"
#include "tree.h"
#include "xattr.h"

struct efsd_export;

struct efsd {
    struct efsd_options options;
    struct efs *fs;
    struct efs_store_info info;
    struct efs_stream *streams[2][2][2]; /* [EFS_STREAM_STAYS][EFS_STREAM_MAY_BLOCK][EFS_STREAM_...], of all readers */
    _Atomic unsigned blocking;           /* receiving threads in efs_read() that may wait for the disk */
    uint32_t expert_count;
    struct efsd_tree tree;
    struct efsd_buffers buffers;
    size_t buffer_count;
    size_t unsent_max; /* bytes of packets that clients of the socket do not read */
    struct efsd_opens opens;
    struct efsd_charge charge; /* of opens */
    struct efsd_kernel kernel;
    struct efsd_counters counters;
    struct efsd_tuning tuning;
    struct efsd_recent recent;
    struct efsd_export *export; /* NULL: no export socket */
    /* Prints a row for each client of the socket, for .expertfs/clients: control/ calls it, export/ has it. NULL: no
     * socket. */
    void (*print_clients)(struct efsd_export *export, FILE *out);
    void (*print_readers)(struct efsd *daemon, FILE *out); /* the same of open files, by fuse/, for .expertfs/readers */
    /* A client whose end of a socket was taken from it, for .expertfs/handout: export/ has it. NULL: no socket. */
    errint_t (*take_client)(struct efsd_export *export, int fd, uid_t user);
    const char *export_address; /* path of the socket, or "-" */
    struct fuse_session *session;
    int fuse_fd;                     /* FUSE device of session */
    int stop_fd;                     /* eventfd: readable when receiving threads must exit */
    int ended_fd;                    /* eventfd: readable after a receiving thread has exited, as on unmount */
    unsigned threads;                /* number of receiving threads */
    unsigned started_threads;        /* receiving threads to join; used by main only */
    struct efsd_receiver *receivers; /* array of threads; defined in session.c */
    struct timespec mtime;           /* of all files: the mtime of the store */
    uid_t uid;
    gid_t gid;                /* group of the store */
    mode_t mode;              /* permissions of files, bits of 0444: see daemon_set_owner() */
    bool allow_other;         /* other users have access to the mount, */
    bool restricted;          /* allow_other, and not all users may read the store: the kernel checks modes */
    dev_t device;             /* st_dev of the mount; 0: unknown */
    uint32_t generation;      /* of all nodes except the root, in file handles: see entry_fill() in ops.c */
    bool direct_io;           /* opens without passthrough use direct_io */
    uint64_t readahead_bytes; /* current value of the kernel; 0: unknown */
    char readahead_note[160]; /* why it could not be set; "" if it was set */
    char path_note[400];      /* text for users: why serving_path was chosen */
    time_t started;
};

#endif
