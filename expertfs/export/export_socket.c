/* SPDX-License-Identifier: Apache-2.0 */
/* export_socket.c - see export_socket.h. */
#include "export_socket.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKET_NAME "handout"
#define TRIES 16

/* ---- the directory of all mounts of the user ---------------------------------------------------------------- */

/* 0 if only this user can create, rename or remove files in the directory; else -EPERM, or -errno of fstat(2). */
static errint_t socket_is_ours(int fd)
{
    struct stat st;
    if (fstat(fd, &st))
        return -errno;
    return st.st_uid == geteuid() && !(st.st_mode & (S_IWGRP | S_IWOTH)) ? 0 : -EPERM;
}

/* A descriptor or -errno. */
static int socket_open_base(const char *path)
{
    if (*path != '/' || strchr(path, '\n') || strlen(path) + 64 > PATH_MAX)
        return -EINVAL;
    if (mkdir(path, 0700) && errno != EEXIST)
        return -errno;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    errint_t rc = fd < 0 ? -errno : socket_is_ours(fd);
    if (fd >= 0 && rc)
        close(fd);
    return rc ? rc : fd;
}

static errint_t socket_choose_base(struct efsd_socket *s, bool allow_other, struct efs_error *err)
{
    const char *named = getenv("EXPERTFS_RUN"), *runtime = getenv("XDG_RUNTIME_DIR");
    char paths[2][PATH_MAX];
    unsigned count = 0;
    if (named && *named) {
        snprintf(paths[count++], PATH_MAX, "%s", named);
    } else {
        if (geteuid() == 0)
            snprintf(paths[count++], PATH_MAX, "/run/expertfs");
        else if (runtime && *runtime && !allow_other)
            snprintf(paths[count++], PATH_MAX, "%s/expertfs", runtime);
        snprintf(paths[count++], PATH_MAX, "/tmp/expertfs-%u", (unsigned)geteuid());
    }
    for (unsigned i = 0; i < count && s->base < 0; i++) {
        s->base = socket_open_base(paths[i]);
        if (s->base >= 0) {
            snprintf(s->path, sizeof(s->path), "%s", paths[i]);
        } else {
            efs_fail(err, s->base, "%s%s: %s", named && *named ? "EXPERTFS_RUN=" : "", paths[i],
                     s->base == -EPERM    ? "not owned by the user who mounts, or writable by others"
                     : s->base == -EINVAL ? "not an absolute path, or too long"
                                          : strerror(-s->base));
        }
    }
    return s->base < 0 ? s->base : 0;
}

/* ---- directories of mounts that were killed ----------------------------------------------------------------- */

static bool socket_lock(int fd)
{
    struct stat st;
    return flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0 && st.st_nlink > 0;
}

/* True if name has the form of such a directory: "PID-NUMBER". */
static bool socket_is_name(const char *name)
{
    int pid;
    uint64_t number;
    char again[sizeof(((struct efsd_socket *)NULL)->name)];
    if (sscanf(name, "%d-%16" SCNx64, &pid, &number) != 2)
        return false;
    snprintf(again, sizeof(again), "%d-%016" PRIx64, pid, number);
    return strcmp(name, again) == 0;
}

static void socket_clean(int base)
{
    int fd = openat(base, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *names = fd < 0 ? NULL : fdopendir(fd);
    if (!names && fd >= 0)
        close(fd);
    for (const struct dirent *entry; names && (entry = readdir(names));) {
        int old = socket_is_name(entry->d_name)
                      ? openat(base, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                      : -1;
        if (old < 0)
            continue;
        if (socket_lock(old)) {
            unlinkat(old, SOCKET_NAME, 0);
            unlinkat(base, entry->d_name, AT_REMOVEDIR);
        }
        close(old);
    }
    if (names)
        closedir(names);
}

/* ---- the directory of this mount ---------------------------------------------------------------------------- */

/* Lets other users find the socket, if they know its name: the directories cannot be listed. */
static errint_t socket_open_to_others(const struct efsd_socket *s)
{
    return fchmod(s->base, 0711) || fchmod(s->directory, 0711) || fchmodat(s->directory, SOCKET_NAME, 0666, 0) ? -errno
                                                                                                               : 0;
}

/* Creates and locks a new directory. Before it is locked, another daemon may remove it: then tries again. */
static errint_t socket_make_directory(struct efsd_socket *s)
{
    for (unsigned i = 0; i < TRIES; i++) {
        uint64_t number;
        if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number))
            return -EIO;
        snprintf(s->name, sizeof(s->name), "%d-%016" PRIx64, (int)getpid(), number);
        if (mkdirat(s->base, s->name, 0700)) {
            if (errno == EEXIST)
                continue;
            return -errno;
        }
        s->directory = openat(s->base, s->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (s->directory >= 0 && socket_lock(s->directory))
            return 0;
        if (s->directory >= 0) {
            close(s->directory);
            s->directory = -1;
        }
        unlinkat(s->base, s->name, AT_REMOVEDIR);
    }
    return -EAGAIN;
}

static errint_t socket_listen(struct efsd_socket *s)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t used = strlen(s->path);
    const int no = 0;
    /* The path that clients use may be longer than sun_path; the one through /proc/self/fd never is. */
    snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/" SOCKET_NAME, s->directory);
    snprintf(s->path + used, sizeof(s->path) - used, "/%s/" SOCKET_NAME, s->name);
    s->listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* connections inherit it */
    s->refuses_descriptors = setsockopt(s->listening, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no)) == 0;
    if (s->listening < 0 || bind(s->listening, (struct sockaddr *)&address, sizeof(address)) ||
        listen(s->listening, EFSD_SOCKET_CLIENTS))
        return -errno;
    return 0;
}

errint_t efsd_socket_open(struct efsd_socket *s, bool allow_other, struct efs_error *err)
{
    *s = (struct efsd_socket){.listening = -1, .base = -1, .directory = -1};
    errint_t rc = socket_choose_base(s, allow_other, err);
    if (rc)
        return rc;
    socket_clean(s->base);
    rc = socket_make_directory(s);
    if (!rc)
        rc = socket_listen(s);
    if (!rc && allow_other)
        rc = socket_open_to_others(s);
    if (rc) {
        efs_fail(err, rc, "%s: %s", s->path, strerror(-rc));
        efsd_socket_close(s);
    }
    return rc;
}

void efsd_socket_close(struct efsd_socket *s)
{
    if (s->listening >= 0)
        close(s->listening);
    if (s->directory >= 0) {
        unlinkat(s->directory, SOCKET_NAME, 0);
        unlinkat(s->base, s->name, AT_REMOVEDIR);
        close(s->directory);
    }
    if (s->base >= 0)
        close(s->base);
    s->listening = s->directory = s->base = -1;
}
