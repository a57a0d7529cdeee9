/* SPDX-License-Identifier: Apache-2.0 */
/* mountpoint.c - see mountpoint.h. */
#include "mountpoint.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "mounts.h"

/* What is mounted on path; false: nothing is, or it is not known. */
static bool mountpoint_has(const char *path, char type[64], char source[512])
{
    struct efsd_mounts table;
    struct efsd_mount mount;
    bool found = false;
    efsd_mounts_open(&table);
    while (efsd_mounts_next(&table, &mount)) { /* the last one is on top */
        if (strcmp(mount.path, path) != 0)
            continue;
        found = true;
        snprintf(type, 64, "%s", mount.type);
        snprintf(source, 512, "%s", mount.source);
    }
    efsd_mounts_close(&table);
    return found;
}

/* A directory that cannot be read counts as empty: its owner may mount on it. */
static bool mountpoint_is_empty(const char *path)
{
    DIR *directory = opendir(path);
    const struct dirent *entry;
    bool empty = true;
    while (directory && empty && (entry = readdir(directory)))
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (directory)
        closedir(directory);
    return empty;
}

/* Where the dead mount is that path is in, for free(). NULL: it is not found. */
static char *dead_mount(const char *path)
{
    struct efsd_mounts table;
    struct efsd_mount mount;
    struct statfs fs;
    int id, fd;
    char *above = strdup(path), *slash, *found = NULL;
    while (above && (fd = efsd_mount_open(above, &id)) < 0 && (slash = strrchr(above, '/')) && slash > above)
        *slash = '\0';
    if (above && fd >= 0 && fstatfs(fd, &fs) < 0 && errno == ENOTCONN) {
        found = efsd_mounts_find(&table, id, &mount) ? strdup(mount.path) : NULL;
        efsd_mounts_close(&table);
    }
    if (above && fd >= 0)
        close(fd);
    free(above);
    return found;
}

errint_t efsd_mountpoint_dead(const char *path, struct efs_error *err)
{
    char *mount = dead_mount(path);
    if (mount)
        efs_fail(err, -ENOTCONN, "%s: a mount whose daemon died is still there; remove it: fusermount3 -u %s", path,
                 mount);
    else /* a symbolic link leads below it */
        efs_fail(err, -ENOTCONN,
                 "%s: a mount whose daemon died is on the way there; findmnt names it, fusermount3 -u removes it",
                 path);
    free(mount);
    return -ENOTCONN;
}

errint_t efsd_mountpoint_check(const char *path, bool nonempty, struct efs_error *err)
{
    struct stat st;
    struct statvfs fs;
    char type[64], source[512];
    bool mounted = mountpoint_has(path, type, source);
    /* Who looks into a place that is mounted on demand waits for the mount that this is. */
    bool on_demand = mounted && strcmp(type, "autofs") == 0;
    /* statvfs() asks the daemon of a mount that is there already, where stat() is answered from the kernel's memory. */
    if (stat(path, &st) || (!on_demand && statvfs(path, &fs))) {
        errint_t rc = -errno;
        return rc == -ENOTCONN ? efsd_mountpoint_dead(path, err) : efs_fail(err, rc, "%s: %s", path, strerror(-rc));
    }
    if (!S_ISDIR(st.st_mode))
        return efs_fail(err, -ENOTDIR, "%s: not a directory; the store comes first, then where to mount it", path);
    if (nonempty || on_demand || mountpoint_is_empty(path))
        return 0;
    if (mounted && strncmp(type, "fuse.", 5) == 0)
        return efs_fail(err, -EBUSY,
                        "%s: %s is mounted there already; unmount it (fusermount3 -u %s), or mount over it with -o "
                        "nonempty",
                        path, source, path);
    return efs_fail(err, -ENOTEMPTY, "%s: the directory is not empty; -o nonempty mounts over what is in it", path);
}

static bool mount_is_ours(const struct efsd_mount *mount, const char *subtype)
{
    return strncmp(mount->type, "fuse.", 5) == 0 && strcmp(mount->type + 5, subtype ? subtype : "expertfs") == 0;
}

void efsd_mountpoint_recover(const char *path, const char *subtype)
{
    errint_t rc = 0;
    for (bool dead = true; dead && !rc;) {
        struct efsd_mounts table = {0};
        struct efsd_mount mount;
        struct statfs fs;
        int id, fd = efsd_mount_open(path, &id);
        dead = fd >= 0 && fstatfs(fd, &fs) < 0 && errno == ENOTCONN; /* fstat() may be answered by the kernel */
        if (fd >= 0)
            close(fd);
        bool ours = dead && efsd_mounts_find(&table, id, &mount) && mount_is_ours(&mount, subtype);
        rc = ours ? efsd_mount_detach(&mount) : -ENOENT;
        efsd_mounts_close(&table);
    }
}

errint_t efsd_mountpoint_remount(const struct efsd_options *options, struct efs_error *err)
{
    const char *path = options->mountpoint;
    const unsigned long flags = MS_REMOUNT | MS_NOSUID | MS_NODEV | (options->read_only ? MS_RDONLY : 0) |
                                (efsd_options_mounts_with(options, "noexec") ? MS_NOEXEC : 0);
    char by_descriptor[64];
    struct efsd_mounts table;
    struct efsd_mount entry;
    int id, fd = efsd_mount_open(path, &id);
    if (fd < 0)
        return efs_fail(err, fd, "%s: %s", path, strerror(-fd));
    errint_t rc = efsd_mounts_find(&table, id, &entry) && mount_is_ours(&entry, options->subtype) ? 0 : -EINVAL;
    efsd_mounts_close(&table);
    snprintf(by_descriptor, sizeof(by_descriptor), "/proc/self/fd/%d", fd);
    if (rc)
        efs_fail(err, rc, "%s: not mounted: no mount of expertfs to remount", path);
    else if (mount(NULL, by_descriptor, NULL, flags, NULL) < 0)
        rc = efs_fail(err, -errno, "%s: remount: %s", path,
                      errno == EINVAL ? "not mounted: a folder of a mount" : strerror(errno));
    close(fd);
    return rc;
}

#define CLAIM_TRIES 1000
#define CLAIM_PAUSE_US 1000
#define CLAIM_WAIT_MS 1000 /* for a process that finds that it may not mount, and gives its claim back */

/* A name of the abstract namespace, which goes with its process: by directory and mount namespace, since bind mounts
 * give a directory several paths. */
static socklen_t claim_name(const char *path, struct sockaddr_un *name)
{
    struct stat namespace = {0}, directory = {0};
    stat("/proc/self/ns/mnt", &namespace);
    stat(path, &directory); /* its failure is found by the check that follows */
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    int bytes = snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1, "expertfs-mountpoint-%llx-%llx-%llx",
                         (unsigned long long)namespace.st_ino, (unsigned long long)directory.st_dev,
                         (unsigned long long)directory.st_ino);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
}

/* A socket of this name that listens, or -errno. -EBUSY: *holder has had it for CLAIM_WAIT_MS; -EADDRINUSE: try again.
 */
static int claim_take(const struct sockaddr_un *name, socklen_t bytes, struct ucred *holder)
{
    const struct sockaddr *address = (const struct sockaddr *)name;
    socklen_t room = sizeof(*holder);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, address, bytes) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    errint_t rc = -errno;
    if (rc == -EADDRINUSE && connect(fd, address, bytes) == 0) {
        struct pollfd end = {.fd = fd}; /* POLLHUP */
        if (poll(&end, 1, CLAIM_WAIT_MS) == 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, holder, &room) == 0)
            rc = -EBUSY;
    } else if (rc == -EADDRINUSE) {
        usleep(CLAIM_PAUSE_US); /* it does not listen yet, or has ended */
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

errint_t efsd_mountpoint_claim(const char *path, int *claim, struct efs_error *err)
{
    struct sockaddr_un name;
    const socklen_t bytes = claim_name(path, &name);
    struct ucred holder = {0};
    *claim = -EADDRINUSE;
    for (int tries = 0; *claim == -EADDRINUSE && tries < CLAIM_TRIES; tries++)
        *claim = claim_take(&name, bytes, &holder);
    if (*claim == -EBUSY && (holder.uid == 0 || holder.uid == geteuid()))
        return efs_fail(err, -EBUSY, "%s: process %d is mounting a store there already", path, (int)holder.pid);
    return 0;
}
