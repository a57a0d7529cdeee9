/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unmount.c - unmount. The path of the mount may belong to another mount by now: one was mounted over it, or it was
 * moved (mount --move). So the mount is found by its device in the mount table, and a path is used only while this
 * mount is topmost there.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "daemon.h"
#include "log.h"
#include "mount_table.h"
#include "session.h"

#define SPARE_FILES 6u /* three are open at once; receiving threads may open some meanwhile */

static void limit_files(rlim_t spare)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max > spare ? limit.rlim_max - spare : limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

void efsd_session_limit_files(void)
{
    limit_files(SPARE_FILES);
}

void efsd_session_identify(struct efsd *daemon)
{
    struct efs_mounts table;
    struct efs_mount_entry mount;
    int id = -1, fd = -1;
    limit_files(0);
    long connection = efsd_fdinfo(daemon->fuse_fd, "fuse_connection"); /* since Linux 6.17 */
    daemon->device = connection > 0 ? makedev(0, (unsigned)connection) : 0;
    if (!daemon->device)
        fd = efsd_mount_open(daemon->options.mountpoint, &id);
    if (fd >= 0) {
        if (efsd_mounts_find(&table, id, &mount) && strncmp(mount.type, "fuse", 4) == 0)
            daemon->device = mount.device;
        efs_mounts_close(&table);
        close(fd);
    }
    limit_files(SPARE_FILES);
}

/* Unmounts all mounts of the file system, also bind mounts, which would only return errors from now on. */
static void unmount_all(const struct efsd *daemon)
{
    struct efs_mounts table;
    struct efs_mount_entry mount;
    errint_t rc = efs_mounts_open(&table, "self");
    if (rc)
        efsd_log(EFS_LOG_WARNING, "%s: not unmounted: the mount table cannot be read: %s", daemon->options.mountpoint,
                 strerror(-rc));
    while (efs_mounts_next(&table, &mount)) {
        rc = mount.device == daemon->device ? efsd_mount_detach(&mount) : 0;
        if (rc == -EBUSY)
            efsd_log(EFS_LOG_WARNING,
                     "%s: not unmounted: another mount hides it; its files give ENOTCONN; hint: when that one is gone: "
                     "umount %s",
                     mount.path, mount.path);
        else if (rc)
            efsd_log(EFS_LOG_WARNING, "%s: not unmounted: %s", mount.path, strerror(-rc));
    }
    efs_mounts_close(&table);
}

/* Closes the device, which ends the connection, and keeps libfuse from unmounting by path: fuse_session_unmount()
 * unmounts unless poll() of its descriptor reports that the connection has ended. A pipe without a reader reports the
 * same. */
static void session_disconnect(struct efsd *daemon)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return; /* fuse_session_destroy() closes the device */
    close(ends[0]);
    bool replaced = dup3(ends[1], daemon->fuse_fd, O_CLOEXEC) >= 0;
    close(ends[1]);
    if (replaced)
        fuse_session_unmount(daemon->session);
}

void efsd_session_detach(const struct efsd *daemon)
{
    /* After the connection has ended, another file system may get the number of the device. */
    struct pollfd device = {.fd = daemon->fuse_fd};
    if (daemon->session && daemon->device && poll(&device, 1, 0) == 0) {
        limit_files(0);
        unmount_all(daemon);
    }
}

void efsd_session_end(struct efsd *daemon)
{
    if (!daemon->session)
        return;
    if (daemon->device)
        session_disconnect(daemon);
    else
        fuse_session_unmount(daemon->session); /* by path: without /proc the device is not known */
    fuse_session_destroy(daemon->session);
    daemon->session = NULL;
}
