/* SPDX-License-Identifier: Apache-2.0 */
/* own.c - see own.h. */
#include "own.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "daemon.h"

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

static long own_call(struct efsd *daemon, long number, long a, long b, long c, long d, long e)
{
    return efsd_apart_call(&daemon->own.calls, number, a, b, c, d, e);
}

errint_t efsd_own_cached(struct efsd *daemon, int fd, uint64_t *bytes)
{
    struct cachestat_range_arg range = {0}; /* all of the file */
    struct cachestat_result result = {0};
    errint_t rc = (errint_t)own_call(daemon, SYS_cachestat, fd, (long)&range, (long)&result, 0, 0);
    *bytes = result.cached * (uint64_t)sysconf(_SC_PAGESIZE);
    return rc;
}

/* Is fd this file of our mount? The kernel answers without a request to the daemon. */
static bool own_fd_is(struct efsd *daemon, int fd, uint64_t ino)
{
    struct statx st;
    return own_call(daemon, SYS_statx, fd, (long)"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, (long)&st) == 0 &&
           makedev(st.stx_dev_major, st.stx_dev_minor) == daemon->device && st.stx_ino == ino;
}

void efsd_own_close(struct efsd *daemon, int fd)
{
    own_call(daemon, SYS_close, fd, 0, 0, 0, 0);
}

void efsd_own_advise(struct efsd *daemon, int fd, uint64_t offset, uint64_t bytes, int advice)
{
    own_call(daemon, SYS_fadvise64, fd, (long)offset, (long)bytes, advice, 0);
}

bool efsd_own_opens(struct efsd *daemon, pid_t pid)
{
    return pid && atomic_compare_exchange_strong(&daemon->own.opener, &pid, 0);
}

/* A clone that is not a peer of the mount, so that it gets no mounts that are made below the mount later. */
static int own_clone(struct efsd *daemon)
{
    struct mount_attr private = {.propagation = MS_PRIVATE};
    int fd = (int)own_call(daemon, SYS_open_tree, AT_FDCWD, (long)daemon->options.mountpoint,
                           OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC, 0, 0);
    if (fd < 0)
        return fd;
    long rc = !own_fd_is(daemon, fd, FUSE_ROOT_ID)
                  ? -ESTALE /* another mount hides it */
                  : own_call(daemon, SYS_mount_setattr, fd, (long)"", AT_EMPTY_PATH, (long)&private, sizeof(private));
    if (rc < 0)
        efsd_own_close(daemon, fd);
    return rc < 0 ? (int)rc : fd;
}

/* "a/b/c" of a node into the end of text. NULL: too long. */
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
        if (n->parent != EFSD_ROOT)
            text[--at] = '/';
    }
    return text + at;
}

int efsd_own_open(struct efsd *daemon, uint32_t node)
{
    char text[4096];
    const char *path = node_path(&daemon->tree, node, text, sizeof(text));
    int clone = path ? own_clone(daemon) : -ENAMETOOLONG;
    if (clone < 0)
        return clone;
    pid_t tid = atomic_load(&daemon->own.calls.tid);
    atomic_store(&daemon->own.opener, tid ? tid : gettid());
    int fd = (int)own_call(daemon, SYS_openat, clone, (long)path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0, 0);
    bool taken =
        !atomic_exchange(&daemon->own.opener, 0); /* else the kernel hides the process: another pid namespace */
    if (fd >= 0 && !(taken && own_fd_is(daemon, fd, (uint64_t)node + FUSE_ROOT_ID))) {
        efsd_own_close(daemon, fd);
        fd = -ESTALE;
    }
    efsd_own_close(daemon, clone); /* the file stays open without it */
    return fd;
}
