/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_fuse.c - a minimal FUSE file system: one file, `data`, whose reads are answered from a few blocks of memory.
 * Its time per read is that of the kernel, a lower bound for every FUSE mount. For `tools/bench/run limits`.
 *
 * Requests have the same size as with expertfs, and a reply starts at the same offset in a page as the reader's buffer
 * (expertfs/fuse/buffers.h). Threads block in read(), the cheapest way to receive. It serves until it is unmounted.
 */
#include "options.h"
#include "process.h"

#define FUSE_USE_VERSION 34
#include <errno.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define IO_BYTES (1u << 20)
#define CUT_BYTES (128u << 10) /* a request of at least this length may have been split at a page boundary */
#define PAGE 4096u
#define SLOT_BYTES (2u << 20) /* a huge page: holds a reply of 1 MiB at any offset in a page */
#define SLOTS 4u              /* as many blocks as expertfs decodes ahead, so that consecutive replies differ */
#define FILE_INODE 2
#define NEVER 86400.0 /* seconds that the kernel caches names and attributes */

struct bench {
    struct tools_arguments given;
    const char *mountpoint;
    bool cached;
    uint64_t mib, threads;
    uint8_t *memory;
    struct fuse_session *session;
};

#define AT(member) offsetof(struct bench, member)
static const struct tools_option options[] = {
    {"cached", 'c', NULL, "reads go through the page cache", TOOLS_FLAG, .at = AT(cached)},
    {"mib", 'm', "MIB", "size of the file (256)", TOOLS_NUMBER, AT(mib), .least = 1, .most = 1u << 20},
    {"threads", 't', "N", "that take requests (2)", TOOLS_NUMBER, AT(threads), .least = 1, .most = 64},
    {0},
};
static const struct tools_command command = {.options = options,
                                             .arguments = "MOUNTPOINT",
                                             .help =
                                                 "A FUSE file system that does nothing, to measure the kernel's part.\v"
                                                 "It has one file, data, and ends when it is unmounted.",
                                             .at = AT(given)};

static struct stat attributes(const struct bench *b, fuse_ino_t inode)
{
    bool file = inode == FILE_INODE;
    return (struct stat){.st_ino = inode,
                         .st_mode = file ? S_IFREG | 0444 : S_IFDIR | 0555,
                         .st_nlink = file ? 1 : 2,
                         .st_size = file ? (off_t)(b->mib * IO_BYTES) : 0,
                         .st_blksize = 4096};
}

static void on_init(void *data, struct fuse_conn_info *connection)
{
    (void)data;
    connection->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
    connection->want |= connection->capable & (FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO);
    connection->max_read = connection->max_write = IO_BYTES;
    connection->max_readahead = UINT32_MAX;
    connection->max_background = 64;
    connection->congestion_threshold = 48;
}

static void on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param entry = {.ino = FILE_INODE, .attr_timeout = NEVER, .entry_timeout = NEVER};
    entry.attr = attributes(fuse_req_userdata(req), FILE_INODE);
    if (parent == FUSE_ROOT_ID && strcmp(name, "data") == 0)
        fuse_reply_entry(req, &entry);
    else
        fuse_reply_err(req, ENOENT);
}

static void on_getattr(fuse_req_t req, fuse_ino_t inode, struct fuse_file_info *file)
{
    (void)file;
    struct stat found = attributes(fuse_req_userdata(req), inode);
    fuse_reply_attr(req, &found, NEVER);
}

static void on_open(fuse_req_t req, fuse_ino_t inode, struct fuse_file_info *file)
{
    const struct bench *b = fuse_req_userdata(req);
    (void)inode;
    file->direct_io = !b->cached;
    file->keep_cache = b->cached;
    fuse_reply_open(req, file);
}

static void on_read(fuse_req_t req, fuse_ino_t inode, size_t bytes, off_t offset, struct fuse_file_info *file)
{
    const struct bench *b = fuse_req_userdata(req);
    uint64_t size = b->mib * IO_BYTES, left = (uint64_t)offset < size ? size - (uint64_t)offset : 0;
    (void)inode;
    (void)file;
    size_t behind = bytes < CUT_BYTES ? 0 : (PAGE - bytes % PAGE) % PAGE;
    const uint8_t *slot = b->memory + (uint64_t)offset / IO_BYTES % SLOTS * SLOT_BYTES;
    bytes = bytes < IO_BYTES ? bytes : IO_BYTES;
    fuse_reply_buf(req, (const char *)slot + behind, left < bytes ? (size_t)left : bytes);
}

static void *receive(void *arg)
{
    fuse_session_loop(((struct bench *)arg)->session);
    return NULL;
}

/* Serves requests on all threads until the unmount. */
static void serve(struct bench *b)
{
    pthread_t *others = calloc(b->threads, sizeof(*others));
    uint64_t started = 1;
    while (others && started < b->threads && !pthread_create(&others[started], NULL, receive, b))
        started++;
    receive(b);
    while (started-- > 1)
        pthread_join(others[started], NULL);
    free(others);
}

static int failed(const char *what)
{
    fprintf(stderr, "bench_fuse: %s: cannot serve\n", what);
    return 1;
}

int main(int argc, char **argv)
{
    static const struct fuse_lowlevel_ops operations = {
        .init = on_init, .lookup = on_lookup, .getattr = on_getattr, .open = on_open, .read = on_read};
    struct bench b = {.mib = 256, .threads = 2};
    tools_init();
    tools_parse(&command, argc, argv, &b);
    b.mountpoint = *b.given.word;
    b.memory = aligned_alloc(SLOT_BYTES, SLOTS * SLOT_BYTES);
    if (!b.memory)
        return failed("no memory");
    madvise(b.memory, SLOTS * SLOT_BYTES, MADV_HUGEPAGE);
    memset(b.memory, 1, SLOTS * SLOT_BYTES);
    char *words[] = {argv[0], (char *)"-o", (char *)"max_read=1048576,fsname=bench_fuse", NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, words);
    b.session = fuse_session_new(&args, &operations, sizeof(operations), &b);
    if (!b.session || fuse_session_mount(b.session, b.mountpoint))
        return failed(b.mountpoint); /* libfuse has printed the reason */
    serve(&b);
    fuse_session_unmount(b.session);
    fuse_session_destroy(b.session);
    free(b.memory);
    return 0;
}
