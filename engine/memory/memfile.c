/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memfile.c - see memfile.h.
 *
 * Descriptors passed to other processes are opened through a read-only clone of the tmpfs mount: a process that reopens
 * one by /proc/self/fd or /proc/PID/fd goes through the same mount and gets EROFS for any modification, also as root. A
 * memfd is sealed instead.
 */
#include "memfile.h"

#include "layout.h"
#include "sys.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

void efs_memfiles_open(struct efs_memfiles *memfiles, bool tmpfs)
{
    *memfiles = (struct efs_memfiles){.tmpfs = -1, .readonly = -1, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (!tmpfs)
        return;
    memfiles->tmpfs = efs_sys_huge_tmpfs();
    if (memfiles->tmpfs < 0)
        return;
    memfiles->readonly = efs_sys_clone_readonly(memfiles->tmpfs);
    if (memfiles->readonly < 0)
        memfiles->readonly = efs_sys_clone_readonly_mounted(memfiles->tmpfs);
    if (memfiles->readonly < 0) { /* without it other processes could write: use memfds */
        efs_sys_close(memfiles->tmpfs);
        memfiles->tmpfs = -1;
    }
}

void efs_memfiles_close(struct efs_memfiles *memfiles)
{
    if (memfiles->tmpfs >= 0) {
        efs_sys_close(memfiles->tmpfs);
        efs_sys_close(memfiles->readonly);
    }
    memfiles->tmpfs = memfiles->readonly = -1;
}

struct memfile_name {
    char text[24];
};

static struct memfile_name name_of(uint64_t number)
{
    struct memfile_name name;
    snprintf(name.text, sizeof(name.text), "%" PRIu64, number);
    return name;
}

/* Creates a file in the tmpfs, open for writing. -errno on failure. */
static int tmpfs_create(struct efs_memfiles *memfiles, uint64_t *name)
{
    *name = atomic_fetch_add(&memfiles->named, 1) + 1;
    return efs_sys_openat(memfiles->tmpfs, name_of(*name).text, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, 0400);
}

void efs_memfile_free(struct efs_memfile *memfile)
{
    /* also frees the pages that a forked child maps */
    if (memfile->data && (memfile->empty || memfile->kind == EFS_MEMFILE_PRIVATE))
        efs_sys_madvise(memfile->data, memfile->bytes, MADV_REMOVE);
    if (memfile->data)
        efs_sys_munmap(memfile->data, memfile->bytes);
    if (memfile->fd >= 0)
        efs_sys_close(memfile->fd);
    if (memfile->name)
        efs_sys_unlinkat(memfile->memfiles->tmpfs, name_of(memfile->name).text, 0);
    free(memfile);
}

void efs_memfile_unmap_in_child(const struct efs_memfile *memfile)
{
    efs_sys_munmap(memfile->data, memfile->bytes);
    if (memfile->fd >= 0)
        efs_sys_close(memfile->fd);
}

/* Maps a new file of the tmpfs, whose huge pages are about ten times cheaper to allocate and map. NULL on failure. */
static uint8_t *tmpfs_map(struct efs_memfiles *memfiles, uint8_t *at, size_t bytes, uint64_t *name)
{
    struct rlimit limit;
    uint8_t *data = NULL;
    /* ftruncate(2) beyond RLIMIT_FSIZE raises SIGXFSZ, perhaps in a thread of the program */
    bool may = memfiles->tmpfs >= 0 && (getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur >= bytes);
    int fd = may ? tmpfs_create(memfiles, name) : -1;
    if (fd < 0)
        return NULL;
    if (efs_sys_ftruncate(fd, bytes) == 0)
        data = efs_sys_mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
    efs_sys_close(fd);
    if (!data)
        efs_sys_unlinkat(memfiles->tmpfs, name_of(*name).text, 0);
    return data;
}

struct efs_memfile *efs_memfile_new(struct efs_memfiles *memfiles, size_t bytes)
{
    struct efs_memfile *memfile = efs_sys_calloc(1, sizeof(*memfile));
    if (!memfile)
        return NULL;
    *memfile = (struct efs_memfile){.kind = EFS_MEMFILE_PRIVATE, .memfiles = memfiles, .fd = -1, .bytes = bytes};
    memfile->data = tmpfs_map(memfiles, NULL, bytes, &memfile->name);
    if (!memfile->data) {
        memfile->name = 0;
        memfile->data = efs_sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    }
    if (!memfile->data) {
        free(memfile);
        return NULL;
    }
    return memfile;
}

void efs_memfile_resize(struct efs_memfile *memfile, uint64_t file_bytes)
{
    assert(memfile->kind != EFS_MEMFILE_EXPORTED);
    assert(file_bytes <= memfile->bytes);
    memfile->file_bytes = file_bytes;
}

static errint_t memfile_have_pages(struct efs_memfile *memfile, uint64_t offset, size_t bytes)
{
    int fd = memfile->name ? efs_sys_openat(memfile->memfiles->tmpfs, name_of(memfile->name).text, O_RDWR, 0) : -1;
    errint_t rc = fd < 0 ? -EBADF : efs_sys_fallocate(fd, FALLOC_FL_KEEP_SIZE, offset, bytes);
    if (fd >= 0)
        efs_sys_close(fd);
    return rc == 0 ? 0 : efs_sys_populate(memfile->data + offset, bytes, NULL);
}

errint_t efs_memfile_reserve(struct efs_memfile *memfile)
{
    bool has = memfile->kind != EFS_MEMFILE_PRIVATE || memfile->populated;
    return has ? 0 : memfile_have_pages(memfile, 0, memfile->bytes);
}

errint_t efs_memfile_reserve_range(struct efs_memfile *memfile, uint64_t offset, size_t bytes)
{
    assert(memfile->kind == EFS_MEMFILE_PRIVATE && offset + bytes <= memfile->bytes);
    return memfile_have_pages(memfile, offset, bytes);
}

errint_t efs_memfile_populate(struct efs_memfile *memfile)
{
    volatile uint8_t *data = memfile->data;
    assert(memfile->kind == EFS_MEMFILE_PRIVATE);
    /* Not MADV_POPULATE_WRITE for a named file: it holds mmap_lock while it clears pages, and other threads' mmap(2)
     * and munmap(2) wait. Touching a page that is allocated cannot fail. */
    errint_t rc = memfile_have_pages(memfile, 0, memfile->bytes);
    for (size_t at = 0; rc == 0 && at < memfile->bytes; at += EFS_ALIGN)
        data[at] = 0;
    memfile->populated = rc == 0;
    return rc;
}

static errint_t named_cut(const struct efs_memfile *memfile)
{
    int fd = efs_sys_openat(memfile->memfiles->tmpfs, name_of(memfile->name).text, O_RDWR, 0);
    errint_t rc = fd < 0 ? fd : efs_sys_ftruncate(fd, memfile->file_bytes);
    if (fd >= 0)
        efs_sys_close(fd);
    return rc;
}

/* Truncates the file to file_bytes and opens it. On -errno its kind is unchanged. */
static errint_t export_named(struct efs_memfile *memfile)
{
    errint_t rc = memfile->kind == EFS_MEMFILE_EXPORTED ? 0 : named_cut(memfile);
    int fd = rc < 0 ? rc : efs_sys_openat(memfile->memfiles->readonly, name_of(memfile->name).text, O_RDONLY, 0);
    if (fd < 0)
        return fd;
    /* Mapped by the same open file, which is then the only one: see efs_memfile_is_mapped_elsewhere(). A later write by
     * mistake faults instead of corrupting data. */
    if (!efs_sys_mmap(memfile->data, memfile->bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0)) {
        rc = errno ? -errno : -ENOMEM;
        efs_sys_close(fd);
        return rc;
    }
    memfile->fd = fd;
    memfile->kind = EFS_MEMFILE_EXPORTED;
    return 0;
}

/* Copies the content to a sealed memfd and maps that in its place; readers of the mapping see the same bytes. */
static errint_t export_anonymous(struct efs_memfile *memfile)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < memfile->bytes)
        return -EFBIG;
    int fd = efs_sys_memfd_create("expertfs", MFD_ALLOW_SEALING);
    if (fd < 0)
        return fd;
    errint_t rc = efs_sys_pwrite_all(fd, memfile->data, (size_t)memfile->file_bytes, 0);
    if (rc == 0)
        rc = efs_sys_add_seals(fd, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    if (rc == 0 && !efs_sys_mmap(memfile->data, memfile->bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0))
        rc = errno ? -errno : -ENOMEM;
    if (rc < 0) {
        efs_sys_close(fd);
        return rc;
    }
    memfile->fd = fd;
    memfile->kind = EFS_MEMFILE_EXPORTED;
    return 0;
}

/* memfiles->lock held. */
static errint_t memfile_export(struct efs_memfile *memfile)
{
    if (memfile->kind == EFS_MEMFILE_WINDOW)
        return -EBUSY;
    if (memfile->fd >= 0)
        return 0;
    return memfile->name ? export_named(memfile) : export_anonymous(memfile);
}

/* memfiles->lock held. */
static errint_t memfile_make_window(struct efs_memfiles *memfiles, struct efs_memfile *memfile)
{
    if (memfile->kind != EFS_MEMFILE_PRIVATE)
        return memfile->kind == EFS_MEMFILE_WINDOW ? 0 : -EBUSY;
    if (!memfile->name) /* a sealed memfd cannot be punched while clients map it */
        return -EBUSY;
    memfile->kind = EFS_MEMFILE_WINDOW;
    memfile->window = atomic_fetch_add(&memfiles->windows, 1) + 1;
    return 0;
}

errint_t efs_memfile_export(struct efs_memfiles *memfiles, struct efs_memfile *memfile)
{
    pthread_mutex_lock(&memfiles->lock);
    errint_t rc = memfile_export(memfile);
    pthread_mutex_unlock(&memfiles->lock);
    return rc;
}

errint_t efs_memfile_make_window(struct efs_memfiles *memfiles, struct efs_memfile *memfile)
{
    pthread_mutex_lock(&memfiles->lock);
    errint_t rc = memfile_make_window(memfiles, memfile);
    pthread_mutex_unlock(&memfiles->lock);
    return rc;
}

int efs_memfile_take_fd(struct efs_memfile *memfile)
{
    int fd = memfile->fd;
    memfile->fd = -1;
    return fd;
}

bool efs_memfile_is_mapped_elsewhere(struct efs_memfiles *memfiles, struct efs_memfile *memfile, int fd)
{
    bool elsewhere = memfile->name != 0;
    pthread_mutex_lock(&memfiles->lock);
    if (elsewhere && memfile->fd < 0) { /* else it was exported again */
        if (fd < 0 && memfile_export(memfile) == 0)
            fd = efs_memfile_take_fd(memfile);
        elsewhere = fd < 0 || efs_sys_is_sole_user(fd) == -EAGAIN;
    }
    if (fd >= 0)
        efs_sys_close(fd);
    pthread_mutex_unlock(&memfiles->lock);
    return elsewhere;
}

int efs_memfile_open_window(const struct efs_memfile *memfile)
{
    assert(memfile->kind == EFS_MEMFILE_WINDOW);
    return efs_sys_openat(memfile->memfiles->readonly, name_of(memfile->name).text, O_RDONLY | O_NOFOLLOW, 0);
}

/* ---- segments of the chunk pool ---- */

uint8_t *efs_window_file_map(struct efs_memfiles *memfiles, uint8_t *at, size_t bytes, struct efs_window_file *file)
{
    uint64_t name;
    uint8_t *data = tmpfs_map(memfiles, at, bytes, &name);
    *file = (struct efs_window_file){0};
    if (data)
        *file = (struct efs_window_file){name, atomic_fetch_add(&memfiles->windows, 1) + 1};
    return data;
}

int efs_window_file_open(struct efs_memfiles *memfiles, const struct efs_window_file *file)
{
    return file->name ? efs_sys_openat(memfiles->readonly, name_of(file->name).text, O_RDONLY | O_NOFOLLOW, 0)
                      : -EOPNOTSUPP;
}

void efs_window_file_empty(struct efs_memfiles *memfiles, const struct efs_window_file *file, uint8_t *data,
                           size_t bytes)
{
    efs_sys_madvise(data, bytes, MADV_REMOVE);
    efs_sys_unlinkat(memfiles->tmpfs, name_of(file->name).text, 0);
}
