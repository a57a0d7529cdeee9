/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drop_pages.c - see drop_pages.h.
 *
 * The thread opens the file on the mount that this daemon serves, and calls posix_fadvise(2), which skips pages that
 * are locked or mapped. With CAP_SYS_ADMIN it opens it below a detached copy of the mount: a file that is open on the
 * mount itself makes umount(8) fail with EBUSY. Its table of descriptors is not shared and lacks the FUSE device: when
 * the daemon is killed while the thread waits for the reply to its open, the other threads' table is closed, the device
 * with it, and the open fails.
 */
#include "drop_pages.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/mount.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon.h"
#include "expertfs-private.h"

static void drop_pages_of(struct efsd *daemon, uint32_t node, const char *path)
{
    const char *mount = daemon->options.mountpoint;
    struct stat st;
    int root = (int)syscall(SYS_open_tree, AT_FDCWD, mount, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC); /* Linux 5.2 */
    if (root < 0)
        root = open(mount, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = openat(root, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (root >= 0)
        close(root);
    if (fd < 0)
        return;
    bool ours = fstat(fd, &st) == 0 && st.st_dev == daemon->device;
    struct efsd_hollow_pages *hollow = &daemon->opens.hollow[node];
    for (uint64_t at = 0; ours && efsd_hollow_next(hollow, daemon->tree.nodes[node].bytes, &at);)
        posix_fadvise(fd, (off_t)at, EFSD_HOLLOW_SLOT_BYTES, POSIX_FADV_DONTNEED);
    close(fd);
}

static void *drop_pages_run(void *arg)
{
    struct efsd *daemon = arg;
    struct efsd_drop_pages *drop = &daemon->drop_pages;
    char path[sizeof(drop->path)];
    bool alone = syscall(SYS_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE) == 0; /* Linux 5.9 */
    pthread_mutex_lock(&drop->lock);
    while (alone && !drop->stop) {
        if (!drop->path[0]) {
            pthread_cond_wait(&drop->wake, &drop->lock);
            continue;
        }
        memcpy(path, drop->path, sizeof(path));
        uint32_t node = drop->node;
        pthread_mutex_unlock(&drop->lock);
        drop_pages_of(daemon, node, path);
        pthread_mutex_lock(&drop->lock);
        drop->path[0] = '\0';
    }
    pthread_mutex_unlock(&drop->lock);
    return NULL;
}

void efsd_drop_pages_init(struct efsd_drop_pages *drop)
{
    pthread_mutex_init(&drop->lock, NULL);
    pthread_cond_init(&drop->wake, NULL);
}

void efsd_drop_pages(struct efsd *daemon, uint32_t node)
{
    struct efsd_drop_pages *drop = &daemon->drop_pages;
    struct efs_file_info info;
    if (!daemon->device || efs_file_info(daemon->fs, daemon->tree.nodes[node].id, &info) < 0)
        return;
    pthread_mutex_lock(&drop->lock);
    if (!drop->path[0]) {
        snprintf(drop->path, sizeof(drop->path), "%s", info.path);
        drop->node = node;
        drop->started = drop->started || efs_thread_start(drop_pages_run, daemon, "efs-drop", &drop->thread) == 0;
        pthread_cond_signal(&drop->wake);
    }
    pthread_mutex_unlock(&drop->lock);
}

void efsd_drop_pages_stop(struct efsd *daemon)
{
    struct efsd_drop_pages *drop = &daemon->drop_pages;
    pthread_mutex_lock(&drop->lock);
    drop->stop = true;
    pthread_cond_signal(&drop->wake);
    pthread_mutex_unlock(&drop->lock);
    if (drop->started)
        pthread_join(drop->thread, NULL);
    pthread_cond_destroy(&drop->wake);
    pthread_mutex_destroy(&drop->lock);
}
