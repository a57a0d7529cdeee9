/* SPDX-License-Identifier: Apache-2.0 */
/* export_connect.c - see export.h: connecting to the mount's socket, and closing it. */
#include "export.h"

#include "mount.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Reads .expertfs/handout: the path after "address: " ("" if there is none), and whether the next line is "coded: yes".
 */
static void export_read_address(int root, char path[PATH_MAX], bool *coded)
{
    static const char name[] = "address: /";
    char text[PATH_MAX + 64];
    int fd = efs_sys_openat(root, ".expertfs/handout", O_RDONLY | O_NONBLOCK, 0);
    ssize_t n = fd < 0 ? -1 : efs_sys_pread(fd, text, sizeof(text) - 1, 0);
    if (fd >= 0)
        efs_sys_close(fd);
    text[n < 0 ? 0 : n] = '\0';
    char *end = strchr(text, '\n');
    *path = '\0';
    *coded = end && strncmp(end, "\ncoded: yes\n", 12) == 0;
    if (strncmp(text, name, sizeof(name) - 1) == 0 && end && end - text < PATH_MAX) {
        *end = '\0';
        strcpy(path, text + sizeof(name) - 2);
    }
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

/* Whether the socket's other end runs as the owner of the mount's root, or as root. */
static bool export_is_trusted(int fd, int root)
{
    struct ucred who;
    socklen_t room = sizeof(who);
    struct stat st;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &room) == 0 && efs_sys_fstat(root, &st) == 0 &&
           (who.uid == 0 || who.uid == st.st_uid);
}

/* Connects a new socket to this path, if its other end is trusted. A descriptor or < 0. */
static int export_connect_socket(int root, const char *path)
{
    char copy[PATH_MAX];
    strcpy(copy, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || (export_connect_path(fd, copy) == 0 && export_is_trusted(fd, root)))
        return fd;
    efs_sys_close(fd);
    return -1;
}

struct efs_export *efs_export_connect(int root, bool keeps)
{
    char path[PATH_MAX];
    bool coded;
    export_read_address(root, path, &coded);
    struct efs_export *h = *path ? efs_sys_calloc(1, sizeof(*h)) : NULL;
    if (!h)
        return NULL;
    h->coded = coded;
    TAILQ_INIT(&h->windows_by_use);
    h->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->fd = h->kick < 0 ? -1 : export_connect_socket(root, path);
    h->room = h->fd < 0 || !keeps ? -1 : export_connect_socket(root, path); /* second: the mount closes it last */
    h->keeps = h->room >= 0;
    if (h->fd >= 0)
        return h;
    efs_export_free(h, true, false);
    return NULL;
}

void efs_export_free(struct efs_export *h, bool forked, bool whole)
{
    if (!h)
        return;
    const int all[] = {h->fd, h->kick, h->room};
    for (uint32_t tag = 0; whole && tag < h->tag_count; tag++)
        if (h->files[tag]) { /* requested or cancelled, and not answered */
            efs_export_free_coded(&h->files[tag]->exported);
            free(h->files[tag]);
        }
    if (!forked && h->room >= 0)
        shutdown(h->room, SHUT_RDWR);
    if (!forked) /* the mount releases this client's leases now, also if a child has the socket */
        shutdown(h->fd, SHUT_RDWR);
    if (whole)
        efs_window_unmap_all(h);
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] >= 0)
            efs_sys_close(all[i]);
    free(h);
}
