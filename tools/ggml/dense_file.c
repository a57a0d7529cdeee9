/* SPDX-License-Identifier: Apache-2.0 */
/* dense_file.c - EXPERTFS_DENSE, and reads of the files with dense weights. */
#include "dense.h"

#include "expertfs-private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES_LEAST (16u << 20) /* of a limit */
#define READ_BYTES (8u << 20)   /* per call */

bool efsg_dense_setting(uint64_t *bytes)
{
    static _Atomic bool logged;
    const char *text = getenv("EXPERTFS_DENSE");
    if (!text || !*text || strcmp(text, "off") == 0)
        return false;
    *bytes = UINT64_MAX;
    if (strcmp(text, "auto") == 0)
        return true;
    if (efs_parse_size(text, bytes) == 0) {
        *bytes = *bytes < BYTES_LEAST ? BYTES_LEAST : *bytes;
        return true;
    }
    if (!atomic_exchange(&logged, true))
        efsg_log(GGML_LOG_LEVEL_ERROR, "EXPERTFS_DENSE=%s is no size; one is written 8G, 512M, auto, off", text);
    return false;
}

errint_t efsg_dense_file_open(struct efsg_dense_file *f)
{
    f->fd = open(f->file.path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (f->fd < 0 && errno == EINVAL)
        f->fd = open(f->file.path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0)
        return -errno;
    errint_t rc = fstat(f->fd, &f->opened_stat) < 0 ? -errno : 0;
    if (rc == 0 && (uint64_t)f->opened_stat.st_size != f->file.bytes)
        rc = -ESTALE;
    if (rc < 0)
        close(f->fd);
    return rc;
}

errint_t efsg_dense_file_check(const struct efsg_dense_file *file)
{
    struct stat now;
    if (fstat(file->fd, &now) < 0)
        return -errno;
    return now.st_size == file->opened_stat.st_size && now.st_mtim.tv_sec == file->opened_stat.st_mtim.tv_sec &&
                   now.st_mtim.tv_nsec == file->opened_stat.st_mtim.tv_nsec
               ? 0
               : -EIO;
}

errint_t efsg_dense_read(const struct efsg_dense_file *file, uint8_t *pages, size_t bytes, size_t least,
                         uint64_t offset)
{
    for (size_t got = 0; got < bytes;) {
        const size_t part = bytes - got < READ_BYTES ? bytes - got : READ_BYTES;
        const ssize_t read = pread(file->fd, pages + got, part, (off_t)(offset + got));
        if (read < 0 && errno == EINTR)
            continue;
        if (read < 0)
            return -errno;
        got += (size_t)read;
        if ((size_t)read < part) /* the end of the file */
            return got >= least ? 0 : -EIO;
    }
    return 0;
}
