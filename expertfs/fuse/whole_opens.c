/* SPDX-License-Identifier: Apache-2.0 */
/*
 * whole_opens.c - see whole_opens.h.
 *
 * The kernel refuses (EIO) an open with a backing file while the inode is open or mapped without one, and the reverse.
 * It sends the RELEASE of an open after it has left that mode. So a file changes to the memory file when no other open
 * is counted, and back when the last open of the memory file was released.
 *
 * The first open with a backing file drops the pages that earlier mappings have left in the page cache, some 100 ms per
 * GiB. So the daemon drops them as soon as the file is whole and closed. That cannot wait for a read that this daemon
 * must answer: no open is left that reads through the page cache, and while the daemon has the file open, new ones get
 * its backing file.
 */
#include "whole_opens.h"

#include "daemon.h"

static struct efsd_file_opens *file_opens(struct efsd *daemon, const struct efsd_open *open)
{
    return &daemon->opens.files[open->node];
}

/* With efsd_opens.lock held: joins the backing file that is in use, or introduces `fresh` if the file has no open.
 * Returns its id; 0: neither. */
static int file_join(struct efsd_file_opens *file, int fresh)
{
    if (!file->backing_id && fresh > 0 && !file->plain)
        file->backing_id = fresh;
    file->backed += file->backing_id > 0;
    return file->backing_id;
}

int efsd_whole_open(struct efsd *daemon, struct efsd_open *open)
{
    struct efsd_file_opens *file = file_opens(daemon, open);
    uint32_t number = daemon->tree.nodes[open->node].id;
    pthread_mutex_lock(&daemon->opens.lock);
    int id = file_join(file, 0), fresh = 0;
    bool may = !id && !file->plain;
    pthread_mutex_unlock(&daemon->opens.lock);
    int fd = may ? efs_file_open(daemon->fs, number) : -1;
    if (fd >= 0 && (fresh = efsd_backing_open(daemon, fd)) < 0)
        efs_file_close(daemon->fs, number);
    pthread_mutex_lock(&daemon->opens.lock);
    if (!id)
        id = file_join(file, fresh);
    file->plain += !id;
    open->kind = id ? EFSD_OPEN_BACKED : EFSD_OPEN_PLAIN;
    pthread_mutex_unlock(&daemon->opens.lock);
    if (fresh > 0 && id != fresh) { /* another open was faster */
        efsd_backing_close(daemon, fresh);
        efs_file_close(daemon->fs, number);
    }
    return id;
}

/* True if the file may have pages in the page cache, and no open that uses them. */
static bool file_has_unused_pages(struct efsd *daemon, uint32_t node)
{
    pthread_mutex_lock(&daemon->opens.lock);
    bool closed = daemon->opens.files[node].plain == 0;
    pthread_mutex_unlock(&daemon->opens.lock);
    return closed && atomic_load_explicit(&daemon->opens.mapped[node], memory_order_relaxed);
}

static void file_drop_pages(struct efsd *daemon, uint32_t node)
{
    uint32_t number = daemon->tree.nodes[node].id;
    if (!file_has_unused_pages(daemon, node) || efs_file_open(daemon->fs, number) < 0)
        return;
    if (file_has_unused_pages(daemon, node)) { /* still: see above */
        fuse_lowlevel_notify_inval_inode(daemon->session, (fuse_ino_t)node + FUSE_ROOT_ID, 0, 0);
        atomic_store_explicit(&daemon->opens.mapped[node], false, memory_order_relaxed);
    }
    efs_file_close(daemon->fs, number);
}

void efsd_whole_ready(void *arg, uint32_t number)
{
    struct efsd *daemon = arg;
    for (uint32_t node = 0; node < daemon->tree.count; node++)
        if (daemon->tree.nodes[node].kind == EFSD_FILE && daemon->tree.nodes[node].id == number)
            file_drop_pages(daemon, node);
}

void efsd_whole_release(struct efsd *daemon, const struct efsd_open *open)
{
    struct efsd_file_opens *file = file_opens(daemon, open);
    int last = 0;
    if (open->kind == EFSD_OPEN_OTHER)
        return;
    pthread_mutex_lock(&daemon->opens.lock);
    if (open->kind == EFSD_OPEN_PLAIN) {
        file->plain--;
    } else if (--file->backed == 0) {
        last = file->backing_id;
        file->backing_id = 0;
    }
    pthread_mutex_unlock(&daemon->opens.lock);
    if (last) {
        efsd_backing_close(daemon, last);
        efs_file_close(daemon->fs, daemon->tree.nodes[open->node].id);
    } else if (open->kind == EFSD_OPEN_PLAIN) {
        file_drop_pages(daemon, open->node); /* if it became whole while it was open */
    }
}
