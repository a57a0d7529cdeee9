/* SPDX-License-Identifier: Apache-2.0 */
/* pagecache_kernel.c - what the watcher of the page cache asks the kernel for; see pagecache.h. */
#include "pagecache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "daemon.h"
#include "mounts.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
#ifndef AT_STATX_DONT_SYNC
#define AT_STATX_DONT_SYNC 0x4000
#endif

/* Laid out as in the kernel's headers, which have them since Linux 6.5. */
struct cachestat_range_arg {
    uint64_t offset, bytes;
};
struct cachestat_result {
    uint64_t cached, dirty, writeback, evicted, recently_evicted; /* pages */
};

static void pagecache_set_note(struct efsd *daemon, const char *note)
{
    atomic_store(&daemon->pagecache.note, note);
}

/* A call on a file of the mount, by the thread that has them. */
static long files_call(struct efsd *daemon, long number, long a, long b, long c, long d, long e)
{
    return efsd_apart_call(&daemon->pagecache.files, number, a, b, c, d, e);
}

static int cachestat_call(struct efsd *daemon, int fd, const struct cachestat_range_arg *range,
                          struct cachestat_result *result)
{
    return (int)files_call(daemon, SYS_cachestat, fd, (long)range, (long)result, 0, 0);
}

errint_t efsd_cachestat(struct efsd *daemon, int fd, uint64_t offset, uint64_t bytes, uint64_t *resident_bytes)
{
    struct cachestat_range_arg range = {.offset = offset, .bytes = bytes};
    struct cachestat_result result = {0};
    errint_t rc = cachestat_call(daemon, fd, &range, &result);
    *resident_bytes = result.cached * (uint64_t)sysconf(_SC_PAGESIZE);
    return rc;
}

/* Is fd a file of our mount? The kernel answers without a request to the daemon. ino 0: any file. */
static bool fd_is_of_mount(struct efsd *daemon, int fd, uint64_t ino)
{
    struct statx st;
    return files_call(daemon, SYS_statx, fd, (long)"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, (long)&st) == 0 &&
           makedev(st.stx_dev_major, st.stx_dev_minor) == daemon->device && (!ino || st.stx_ino == ino);
}

void efsd_pagecache_close_own(struct efsd *daemon, int fd)
{
    files_call(daemon, SYS_close, fd, 0, 0, 0, 0);
}

void efsd_pagecache_advise(struct efsd *daemon, int fd, uint64_t offset, uint64_t bytes, int advice)
{
    files_call(daemon, SYS_fadvise64, fd, (long)offset, (long)bytes, advice, 0);
}

static void close_clone(struct efsd *daemon)
{
    if (daemon->pagecache.clone_fd >= 0)
        efsd_pagecache_close_own(daemon, daemon->pagecache.clone_fd);
    daemon->pagecache.clone_fd = -1;
}

static void close_table(struct efsd_pagecache *cache)
{
    if (cache->table_fd >= 0)
        close(cache->table_fd);
    cache->table_fd = -1;
}

/* A clone that is not a peer of the mount, so that nothing that others mount below it comes to us. */
static void clone_mount(struct efsd *daemon)
{
    struct efsd_pagecache *cache = &daemon->pagecache;
    struct mount_attr alone = {.propagation = MS_PRIVATE};
    cache->clone_fd = (int)files_call(daemon, SYS_open_tree, AT_FDCWD, (long)daemon->options.mountpoint,
                                      OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC, 0, 0);
    if (cache->clone_fd >= 0 && (!fd_is_of_mount(daemon, cache->clone_fd, FUSE_ROOT_ID) ||
                                 files_call(daemon, SYS_mount_setattr, cache->clone_fd, (long)"", AT_EMPTY_PATH,
                                            (long)&alone, sizeof(alone)) < 0))
        close_clone(daemon);
}

/* Waits for pages that are being read with the daemon's device in the hand: guard.h ends that when the daemon dies. */
void efsd_pagecache_invalidate(struct efsd *daemon, uint32_t node, uint64_t offset, uint64_t bytes)
{
    fuse_lowlevel_notify_inval_inode(daemon->session, (fuse_ino_t)node + FUSE_ROOT_ID, (off_t)offset, (off_t)bytes);
}

void efsd_pagecache_attach(struct efsd *daemon)
{
    struct efsd_pagecache *cache = &daemon->pagecache;
    struct cachestat_range_arg range = {0};
    struct cachestat_result result;
    efsd_apart_start(&cache->files); /* without it we make its calls by ourselves */
    int rc = cachestat_call(daemon, -1, &range, &result);
    cache->can_measure = rc == -EBADF && daemon->device;
    if (!cache->can_measure) {
        pagecache_set_note(daemon,
                           rc == -ENOSYS  ? "the kernel has no cachestat (Linux 6.5): what was read is counted instead"
                           : rc == -EBADF ? "the mount's device number is not known: what was read is counted instead"
                                          : "the daemon may not use cachestat: what was read is counted instead");
        return;
    }
    /* The table is watched before there is a clone, so that no unmount goes unseen. */
    cache->table_fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    if (cache->table_fd >= 0)
        clone_mount(daemon);
    efsd_pagecache_watch(daemon);
}

void efsd_pagecache_detach(struct efsd *daemon)
{
    struct efsd_pagecache *cache = &daemon->pagecache;
    pthread_mutex_lock(&cache->open_lock);
    close_clone(daemon);
    pthread_mutex_unlock(&cache->open_lock);
    close_table(cache);
    efsd_apart_stop(&cache->files);
}

void efsd_pagecache_watch(struct efsd *daemon)
{
    struct efsd_pagecache *cache = &daemon->pagecache;
    if (cache->table_fd >= 0 && !efsd_mounts_have(daemon->device)) { /* the clone is in no table */
        pthread_mutex_lock(&cache->open_lock);
        cache->left = true;
        close_clone(daemon); /* with it goes the file system, when nobody else has it */
        pthread_mutex_unlock(&cache->open_lock);
        close_table(cache);
        pagecache_set_note(daemon, "the mount has left the daemon's mount table: what was read is counted instead");
    }
}

/* "/a/b/c" of a node into the end of text. NULL: too long. */
static const char *node_path(const struct efsd_tree *tree, uint32_t node, char *text, size_t room)
{
    size_t at = room - 1;
    text[at] = '\0';
    for (; node != EFSD_ROOT; node = tree->nodes[node].parent) {
        const struct efsd_node *n = &tree->nodes[node];
        if (at < (size_t)n->name_bytes + 1)
            return NULL;
        at -= n->name_bytes;
        memcpy(text + at, tree->text + n->name, n->name_bytes);
        text[--at] = '/';
    }
    return text + at;
}

/* Opens that were answered and not closed yet. */
static bool someone_has_files_open(const struct efsd *daemon)
{
    const struct efsd_counters *c = &daemon->counters;
    uint64_t closed = atomic_load(&c->releases); /* first: a close follows its open */
    return atomic_load(&c->opens_passthrough) + atomic_load(&c->opens_direct) + atomic_load(&c->opens_cached) +
               atomic_load(&c->opens_control) >
           closed;
}

bool efsd_pagecache_opens_apart(struct efsd *daemon)
{
    struct efsd_pagecache *cache = &daemon->pagecache;
    pthread_mutex_lock(&cache->open_lock);
    bool apart = cache->clone_fd >= 0;
    pthread_mutex_unlock(&cache->open_lock);
    return apart;
}

static int mount_open_node(struct efsd *daemon, uint32_t node)
{
    struct efsd_pagecache *cache = &daemon->pagecache;
    char text[4096];
    const char *path = node_path(&daemon->tree, node, text, sizeof(text));
    if (!path || cache->left)
        return -ENOENT;
    const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK;
    uint64_t opens = atomic_load(&cache->opens);
    int fd;
    if (cache->clone_fd >= 0) {
        fd = (int)files_call(daemon, SYS_openat, cache->clone_fd, (long)(path + 1), flags, 0, 0);
    } else {
        char *full = NULL;
        if (!someone_has_files_open(daemon)) {
            pagecache_set_note(
                daemon, "nobody has a file open, and an open one would block umount: what was read is counted instead");
            return -EBUSY;
        }
        if (asprintf(&full, "%s%s", daemon->options.mountpoint, path) < 0)
            return -ENOMEM;
        fd = (int)files_call(daemon, SYS_openat, AT_FDCWD, (long)full, flags, 0, 0);
        free(full);
    }
    if (fd < 0) {
        if (fd == -EIO && daemon->kernel.passthrough && daemon->tree.nodes[node].kind == EFSD_EXPERT)
            return -ENODATA; /* passthrough serves it now: the kernel mixes no others in, and emptied its page cache */
        pagecache_set_note(daemon, "the daemon cannot open files of the mount: what was read is counted instead");
    } else if (!fd_is_of_mount(daemon, fd, (uint64_t)node + FUSE_ROOT_ID)) {
        efsd_pagecache_close_own(daemon, fd);
        fd = -ESTALE;
        pagecache_set_note(daemon, "another mount hides ours: what was read is counted instead");
    } else if (atomic_load(&cache->opens) == opens) { /* the daemon took it for an open of others: do not try again */
        efsd_pagecache_close_own(daemon, fd);
        fd = -EPERM;
        cache->can_measure = false;
        pagecache_set_note(daemon, "the kernel does not tell who opens a file: what was read is counted instead");
    }
    return fd;
}

int efsd_pagecache_open_own(struct efsd *daemon, uint32_t node, bool to_read)
{
    struct efsd_pagecache *cache = &daemon->pagecache;
    pthread_mutex_lock(&cache->open_lock);
    pid_t tid = atomic_load(&cache->files.tid);
    atomic_store(&cache->to_read, to_read);
    atomic_store(&cache->opener, tid ? tid : gettid());
    int fd = mount_open_node(daemon, node);
    atomic_store(&cache->opener, 0);
    pthread_mutex_unlock(&cache->open_lock);
    return fd;
}
