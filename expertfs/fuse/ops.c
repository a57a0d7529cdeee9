/* SPDX-License-Identifier: Apache-2.0 */
/* ops.c - operations on names and attributes, and the table of all operations. */
#include "ops.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>

#include "control.h"
#include "daemon.h"
#include "want.h"

static struct efsd *daemon_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

/*
 * A file handle holds the node's number and generation. The kernel refuses a handle of another generation with ESTALE.
 * The generation is derived from the store and its tree, so that a handle never opens a file of another store, and
 * stays valid when the same store is mounted again. The kernel gives the root generation 0; kernels before 6.9 mark the
 * root as bad when a look-up of ".." returns another one.
 */
static void entry_fill(const struct efsd *daemon, uint32_t node, struct fuse_entry_param *entry)
{
    *entry = (struct fuse_entry_param){
        .ino = (fuse_ino_t)node + FUSE_ROOT_ID,
        .generation = node == EFSD_ROOT ? 0 : daemon->generation,
        .attr_timeout = EFSD_ENTRY_TIMEOUT_SECONDS,
        .entry_timeout = EFSD_ENTRY_TIMEOUT_SECONDS,
    };
    efsd_attributes(daemon, node, &entry->attr);
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
    (void)userdata;
    const unsigned no = FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE | FUSE_CAP_AUTO_INVAL_DATA |
                        FUSE_CAP_ATOMIC_O_TRUNC;
    const unsigned yes = FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_READDIRPLUS |
                         FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_EXPORT_SUPPORT;
    conn->want = (conn->want & ~no) | (conn->capable & yes);
    conn->max_read = EFSD_IO_BYTES;
    conn->max_write = EFSD_IO_BYTES; /* more than is ever accepted; libfuse derives the size of reads from it */
    conn->max_readahead = UINT32_MAX;
    conn->max_background = 64;
    conn->congestion_threshold = 48;
    conn->time_gran = 1;
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct efsd *daemon = daemon_of(req);
    struct fuse_entry_param entry = {.entry_timeout = EFSD_ENTRY_TIMEOUT_SECONDS}; /* ino 0: no such name */
    uint32_t directory, node = EFSD_ROOT;
    if (!efsd_node_of(daemon, parent, &directory)) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    bool found = true;
    if (strcmp(name, ".") == 0) /* NFS export looks up "." and ".." */
        node = directory;
    else if (strcmp(name, "..") == 0)
        node = daemon->tree.nodes[directory].parent;
    else
        found = efsd_tree_find(&daemon->tree, directory, name, strlen(name), &node);
    if (found)
        entry_fill(daemon, node, &entry);
    fuse_reply_entry(req, &entry);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
    (void)ino;
    (void)nlookup;
    fuse_reply_none(req); /* nodes live as long as the mount */
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    (void)count;
    (void)forgets;
    fuse_reply_none(req);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
    struct efsd *daemon = daemon_of(req);
    struct stat st;
    uint32_t node;
    (void)file;
    if (!efsd_node_of(daemon, ino, &node)) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    efsd_attributes(daemon, node, &st);
    fuse_reply_attr(req, &st, EFSD_ENTRY_TIMEOUT_SECONDS);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
    (void)ino;
    file->cache_readdir = 1;
    file->keep_cache = 1;
    fuse_reply_open(req, file);
}

/* Adds the entry of a position in the directory (0 ".", 1 "..", then the children) at p, if it fits. Returns the bytes
 * that it needs. */
static size_t directory_add_entry(fuse_req_t req, const struct efsd *daemon, uint32_t directory, off_t position,
                                  bool plus, char *p, size_t room)
{
    const struct efsd_node *parent = &daemon->tree.nodes[directory];
    char name[EFSD_NAME_MAX + 1] = ".";
    struct fuse_entry_param entry;
    uint32_t node = directory;
    if (position == 1) {
        strcpy(name, "..");
        node = parent->parent;
    } else if (position > 1) {
        node = parent->first + (uint32_t)(position - 2);
        const struct efsd_node *child = &daemon->tree.nodes[node];
        memcpy(name, daemon->tree.text + child->name, child->name_bytes);
        name[child->name_bytes] = '\0';
    }
    entry_fill(daemon, node, &entry);
    if (!plus)
        return fuse_add_direntry(req, p, room, name, &entry.attr, position + 1);
    if (position < 2)
        entry.ino = 0; /* the kernel counts no look-up */
    return fuse_add_direntry_plus(req, p, room, name, &entry, position + 1);
}

static void directory_list(fuse_req_t req, fuse_ino_t ino, size_t bytes, off_t position, bool plus)
{
    struct efsd *daemon = daemon_of(req);
    uint32_t node;
    if (!efsd_node_of(daemon, ino, &node) || daemon->tree.nodes[node].kind != EFSD_DIRECTORY) {
        fuse_reply_err(req, ENOTDIR);
        return;
    }
    bool waited;
    struct efsd_buffer *buffer = efsd_buffer_get(&daemon->buffers, bytes, &waited);
    size_t room = bytes < EFSD_IO_BYTES ? bytes : EFSD_IO_BYTES, used = 0;
    off_t end = (off_t)daemon->tree.nodes[node].count + 2;
    for (; position >= 0 && position < end; position++) {
        size_t n = directory_add_entry(req, daemon, node, position, plus, (char *)buffer->data + used, room - used);
        if (n > room - used)
            break;
        used += n;
    }
    fuse_reply_buf(req, (const char *)buffer->data, used);
    efsd_buffer_put(&daemon->buffers, buffer);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t bytes, off_t position, struct fuse_file_info *file)
{
    (void)file;
    directory_list(req, ino, bytes, position, false);
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t bytes, off_t position, struct fuse_file_info *file)
{
    (void)file;
    directory_list(req, ino, bytes, position, true);
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct efsd *daemon = daemon_of(req);
    (void)ino;
    struct statvfs st = {
        .f_bsize = EFSD_IO_BYTES,
        .f_frsize = EFSD_BLOCK_BYTES,
        .f_blocks = (daemon->info.source_bytes + EFSD_BLOCK_BYTES - 1) / EFSD_BLOCK_BYTES,
        .f_files = daemon->tree.count,
        .f_namemax = EFSD_NAME_MAX,
    };
    fuse_reply_statfs(req, &st);
}

/* Opens want or hint, for writing only by users who may tune. The open is then the same as one for reading. */
static void open_want(struct efsd *daemon, fuse_req_t req, uint32_t node, int flags)
{
    if ((flags & O_ACCMODE) != O_RDONLY && !efsd_may_tune(daemon, req)) {
        efsd_count(&daemon->counters.opens, 1);
        efsd_count(&daemon->counters.open_errors, 1);
        fuse_reply_err(req, EACCES);
        return;
    }
    efsd_open_file(daemon, req, node, O_RDONLY);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
    struct efsd *daemon = daemon_of(req);
    uint32_t node;
    if (!efsd_node_of(daemon, ino, &node) || daemon->tree.nodes[node].kind == EFSD_DIRECTORY) {
        fuse_reply_err(req, efsd_node_of(daemon, ino, &node) ? EISDIR : ENOENT);
        return;
    }
    if (efsd_is_writable(daemon, node))
        open_want(daemon, req, node, file->flags);
    else
        efsd_open_file(daemon, req, node, file->flags);
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t bytes, off_t offset, struct fuse_file_info *file)
{
    (void)ino;
    if (offset < 0)
        fuse_reply_err(req, EINVAL);
    else
        efsd_read(daemon_of(req), req, file, bytes, (uint64_t)offset);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *file)
{
    struct efsd *daemon = daemon_of(req);
    (void)ino;
    struct efsd_open *open = efsd_open_ref(file, 1);
    efsd_count(&daemon->counters.releases, 1);
    efsd_open_release(daemon, open);
    efsd_open_unref(open);
    fuse_reply_err(req, 0);
}

const struct fuse_lowlevel_ops efsd_ops = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .readdirplus = op_readdirplus,
    .statfs = op_statfs,
    .open = op_open,
    .read = op_read,
    .release = op_release,
    .setattr = efsd_setattr,
    .mknod = efsd_refuse_mknod,
    .mkdir = efsd_refuse_mkdir,
    .unlink = efsd_refuse_remove,
    .rmdir = efsd_refuse_remove,
    .symlink = efsd_refuse_symlink,
    .rename = efsd_refuse_rename,
    .link = efsd_refuse_link,
    .create = efsd_refuse_create,
    .fallocate = efsd_refuse_fallocate,
    .access = efsd_access,
    .write = efsd_want_write,
    .getxattr = efsd_getxattr,
    .listxattr = efsd_listxattr,
    .setxattr = efsd_setxattr,
    .removexattr = efsd_removexattr,
};
