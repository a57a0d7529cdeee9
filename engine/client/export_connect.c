/* SPDX-License-Identifier: Apache-2.0 */
/* export_connect.c - see export.h: connecting to the mount's socket, and closing it. */
#include "export.h"

#include "mount.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/vfs.h>

/* Reads the path after "address: " in .expertfs/handout. -ENOENT: there is none. */
static errint_t export_read_address(int root, char path[PATH_MAX])
{
    static const char name[] = "address: /";
    char text[PATH_MAX + 64];
    int fd = efs_sys_openat(root, ".expertfs/handout", O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0)
        return fd;
    ssize_t n = efs_sys_pread(fd, text, sizeof(text) - 1, 0);
    efs_sys_close(fd);
    if (n < 0)
        return (errint_t)n;
    text[n] = '\0';
    char *end = strchr(text, '\n');
    if (strncmp(text, name, sizeof(name) - 1) != 0 || !end || end - text >= PATH_MAX)
        return -ENOENT;
    *end = '\0';
    strcpy(path, text + sizeof(name) - 2);
    return 0;
}

/* Connects to the socket at path. A socket address has less room than a path: a longer one is passed relative to an
 * open directory, /proc/self/fd/N/NAME. Changes path. */
static errint_t export_connect_path(int fd, char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int directory = -1;
    if (strlen(path) < sizeof(address.sun_path)) {
        strcpy(address.sun_path, path);
    } else {
        char *slash = strrchr(path, '/');
        *slash = '\0';
        directory = efs_sys_open(path, O_PATH | O_DIRECTORY, 0);
        int n = snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", directory, slash + 1);
        if (directory >= 0 && n >= (int)sizeof(address.sun_path)) {
            efs_sys_close(directory);
            directory = -ENAMETOOLONG;
        }
        if (directory < 0)
            return directory;
    }
    errint_t rc = connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
    if (directory >= 0)
        efs_sys_close(directory);
    return rc;
}

/* -EPERM: the socket's other end runs neither as the owner of the mount's root, nor as root. */
static errint_t export_check_owner(int fd, int root)
{
    struct ucred who;
    socklen_t room = sizeof(who);
    struct stat st;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &room) < 0)
        return -errno;
    errint_t rc = efs_sys_fstat(root, &st);
    return rc < 0 || who.uid == 0 || who.uid == st.st_uid ? rc : -EPERM;
}

/* Connects a new socket to this path, if its other end may be trusted. A descriptor or -errno. */
static int export_connect_socket(int root, const char *path)
{
    char copy[PATH_MAX];
    strcpy(copy, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    errint_t rc = export_connect_path(fd, copy);
    if (rc == 0)
        rc = export_check_owner(fd, root);
    if (rc == 0)
        return fd;
    efs_sys_close(fd);
    return rc;
}

/* Has the mount take one end of a pair of sockets from this process, where its own socket is not visible. A descriptor
 * or -errno. */
static int export_hand_over(int root)
{
    int ends[2];
    char text[16];
    struct statfs st;
    if (fstatfs(root, &st) < 0 || st.f_type != FUSE_SUPER_MAGIC) /* a copy of a mount, whose file would be changed */
        return -ENODEV;
    int fd = efs_sys_openat(root, ".expertfs/handout", O_WRONLY, 0);
    if (fd < 0)
        return fd;
    errint_t rc = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0 ? -errno : 0;
    if (rc == 0) {
        const int bytes = snprintf(text, sizeof(text), "%d\n", ends[1]);
        const ssize_t n = efs_sys_pwrite(fd, text, (size_t)bytes, 0);
        rc = n < 0 ? (errint_t)n : 0;
        efs_sys_close(ends[1]);
        if (rc < 0)
            efs_sys_close(ends[0]);
    }
    efs_sys_close(fd);
    return rc < 0 ? rc : ends[0];
}

errint_t efs_export_connect(int root, struct efs_export **out, struct efs_error *err)
{
    char path[PATH_MAX] = "";
    errint_t rc = export_read_address(root, path);
    if (rc < 0)
        return efs_fail(err, rc, "the mount has no socket for clients: %s\nhint: its log says why (expertctl log)",
                        strerror(-rc));
    struct efs_export *h = efs_sys_calloc(1, sizeof(*h));
    if (!h)
        return efs_fail(err, -ENOMEM, "no memory");
    TAILQ_INIT(&h->windows_by_use);
    h->fd = -1;
    h->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = h->kick < 0 ? -errno : 0;
    if (rc == 0)
        rc = h->fd = export_connect_socket(root, path);
    if (rc < 0 && h->kick >= 0) {
        h->fd = export_hand_over(root);
        rc = h->fd < 0 ? rc : 0;
    }
    if (rc < 0) {
        efs_export_free(h, true, false);
        return efs_fail(err, rc, "%s: %s%s", path, strerror(-rc),
                        rc == -ENOTCONN ? "" /* the daemon has ended */
                                        : "\nhint: a program in a container without a user namespace needs the folder "
                                          "of the socket, too");
    }
    *out = h;
    return 0;
}

void efs_export_free(struct efs_export *h, bool forked, bool whole)
{
    if (!h)
        return;
    const int all[] = {h->fd, h->kick};
    for (uint32_t tag = 0; whole && tag < h->tag_count; tag++)
        if (h->files[tag]) {
            efs_export_free_coded(&h->files[tag]->exported);
            efs_mapped_free(&h->files[tag]->mapped);
            free(h->files[tag]);
        }
    if (!forked) /* the mount releases this client's leases now, also if a child has the socket */
        shutdown(h->fd, SHUT_RDWR);
    if (whole)
        efs_window_unmap_all(h);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] >= 0)
            efs_sys_close(all[i]);
    free(h);
}
