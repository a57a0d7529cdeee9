/* SPDX-License-Identifier: Apache-2.0 */
/*
 * same_known.c - which files have the bytes of a store: rows of same-HASH.txt in the state directory, appended by one
 * write each. A row that is not whole, or of another file, is not used.
 */
#include "state_file.h"

#include "expertfs-private.h"
#include "regular.h"
#include "store.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define FILE_BYTES_MAX (1u << 20) /* a larger one is replaced */
#define SETTLED_SECONDS 2

struct row {
    bool same;
    uint64_t device, inode, size, mtime_ns, ctime_ns;
    struct efs_same_range range;
};

bool efs_same_lasts(int fd)
{
    return efs_sys_has_change_time(fd);
}

static uint64_t ns_of(const struct timespec *t)
{
    return (uint64_t)t->tv_sec * UINT64_C(1000000000) + (uint64_t)t->tv_nsec;
}

static struct row row_of(const struct stat *st, const struct efs_same_range *range, bool same)
{
    return (struct row){same,  st->st_dev, st->st_ino, (uint64_t)st->st_size, ns_of(&st->st_mtim), ns_of(&st->st_ctim),
                        *range};
}

static bool same_file(const struct row *a, const struct row *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size && a->mtime_ns == b->mtime_ns &&
           a->ctime_ns == b->ctime_ns && a->range.file == b->range.file &&
           a->range.offset - a->range.fd_offset == b->range.offset - b->range.fd_offset;
}

static bool covers(const struct efs_same_range *all, const struct efs_same_range *part)
{
    uint64_t end, all_end;
    return !__builtin_add_overflow(part->offset, part->bytes, &end) &&
           !__builtin_add_overflow(all->offset, all->bytes, &all_end) && all->offset <= part->offset && end <= all_end;
}

static bool row_read(const char *line, struct row *row)
{
    char verdict[8];
    int end = 0;
    int n = sscanf(line,
                   "%7s %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu32 " %" SCNu64 " %" SCNu64
                   " %" SCNu64 "%n",
                   verdict, &row->device, &row->inode, &row->size, &row->mtime_ns, &row->ctime_ns, &row->range.file,
                   &row->range.offset, &row->range.fd_offset, &row->range.bytes, &end);
    row->same = n == 10 && strcmp(verdict, "same") == 0;
    return n == 10 && line[end] == '\n' && (row->same || strcmp(verdict, "other") == 0);
}

/* NULL: there is none. A FIFO, whose open would wait for a writer, is not opened. */
static FILE *rows_open(uint64_t content_hash)
{
    char path[EFS_STATE_PATH_BYTES];
    struct stat st;
    if (efs_state_path("same", content_hash, "txt", path, sizeof(path), NULL) < 0)
        return NULL;
    int fd = efs_regular_open(AT_FDCWD, path, 0, &st);
    FILE *file = fd >= 0 && st.st_size <= 2 * (off_t)FILE_BYTES_MAX ? fdopen(fd, "r") : NULL;
    if (fd >= 0 && !file)
        efs_sys_close(fd);
    return file;
}

int efs_same_known(uint64_t content_hash, const struct stat *st, const struct efs_same_range *range)
{
    const struct row want = row_of(st, range, true);
    struct row row;
    int known = 0;
    FILE *file = rows_open(content_hash);
    char line[512];
    while (file && known != -ESTALE && fgets(line, sizeof(line), file)) {
        if (!row_read(line, &row) || !same_file(&row, &want))
            continue;
        if (row.same && covers(&row.range, range))
            known = 1;
        else if (!row.same && covers(range, &row.range))
            known = -ESTALE;
    }
    if (file)
        fclose(file);
    return known;
}

static bool settled(const struct stat *st, const struct timespec *seen)
{
    return st->st_ctim.tv_sec + SETTLED_SECONDS < seen->tv_sec && st->st_mtim.tv_sec + SETTLED_SECONDS < seen->tv_sec;
}

void efs_same_remember(uint64_t content_hash, const struct stat *st, const struct timespec *seen,
                       const struct efs_same_range *range, bool same)
{
    char path[EFS_STATE_PATH_BYTES], line[512];
    const struct row row = row_of(st, range, same);
    struct stat now;
    if (!settled(st, seen) || efs_state_path("same", content_hash, "txt", path, sizeof(path), NULL) < 0)
        return;
    const int n = snprintf(line, sizeof(line),
                           "%s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu32 " %" PRIu64
                           " %" PRIu64 " %" PRIu64 "\n",
                           same ? "same" : "other", row.device, row.inode, row.size, row.mtime_ns, row.ctime_ns,
                           range->file, range->offset, range->fd_offset, range->bytes);
    if (n < 0 || (size_t)n >= sizeof(line))
        return;
    int fd = efs_sys_open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd >= 0 && efs_sys_fstat(fd, &now) == 0 && now.st_size < FILE_BYTES_MAX)
        (void)efs_sys_pwrite(fd, line, (size_t)n, 0); /* O_APPEND: at the end */
    else if (fd >= 0 || fd == -ENOENT)
        (void)efs_state_save(path, line, (size_t)n, NULL); /* also makes the directory */
    if (fd >= 0)
        efs_sys_close(fd);
}
