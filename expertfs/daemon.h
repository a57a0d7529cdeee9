/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.h - one mount: what its rooms share.
 *
 *   options -> engine -> tree -> session (mount, INIT) -> receiving threads -> ops -> reads | opens | control
 *
 * Threads: main (starts, waits for signals, stops), receiving threads (take requests from the kernel; answer all that
 * needs no disk; may wait for a reply buffer, never for the disk), and the engine's workers (answer reads and opens
 * when the bytes are there). None of them makes calls on the mount: it would wait for itself, and could not be killed.
 * After daemon_start() everything here is constant but what names a lock or is atomic.
 */
#ifndef EFSD_DAEMON_H
#define EFSD_DAEMON_H

#include <time.h>

#include "buffers.h"
#include "counters.h"
#include "mount.h"
#include "opens.h"
#include "options.h"
#include "passthrough.h"
#include "shrink.h"
#include "tree.h"
#include "xattr.h"

struct efsd_export;

struct efsd {
    struct efsd_options options;
    struct efs *fs;
    struct efs_store_info info;
    struct efs_stream *streams[2]; /* by hints, for all readers of whom that is known */
    uint32_t expert_count;
    struct efsd_tree tree;
    struct efsd_buffers buffers;
    size_t buffer_count;
    struct efsd_opens opens;
    struct efsd_kernel kernel;
    struct efsd_counters counters;
    struct efsd_shrink shrink;
    struct efsd_tuning tuning;
    struct efsd_export *export; /* NULL: there is none */
    const char *export_address; /* the path of its socket, or "-" */
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
    uint32_t generation;      /* of all nodes but the root, in file handles: see entry_fill() in ops.c */
    bool direct_io;           /* plain opens use direct_io */
    uint64_t readahead_bytes; /* in force in the kernel; 0: not known */
    char readahead_note[160]; /* why it is not as asked; "" when it is */
    char path_note[400];      /* why there is no better path than serving_path, for people */
    time_t started;
};

#endif
