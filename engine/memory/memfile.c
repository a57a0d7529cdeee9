/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memfile.c - see memfile.h.
 *
 * Descriptors passed to other processes are opened through a read-only clone of the tmpfs mount: a process that reopens
 * one by /proc/self/fd or /proc/PID/fd goes through the same mount and gets EROFS for any modification, also as root.
 *
 * A tmpfs needs CAP_SYS_ADMIN; without it each memory file is a memfd, reopened for reading. The size of a window is
 * sealed, its content is not: the kernel punches no hole into a file that is sealed against writes, and the memory
 * could not be taken from processes that map it. Its mode keeps other users from opening it for writing. An EXPORTED
 * file is sealed against writes, too.
 */
#include "memfile.h"

#include "expertfs-private.h"
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

#define MEMFDS_PART 2u /* memfds take at most 1/MEMFDS_PART of the descriptors that the process may have */
#define WINDOW_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

void efs_memfiles_open(struct efs_memfiles *memfiles, bool tmpfs, bool memfds)
{
    *memfiles = (struct efs_memfiles){.tmpfs = -1, .readonly = -1, .memfds = memfds, .lock = PTHREAD_MUTEX_INITIALIZER};
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

/* ftruncate(2) beyond RLIMIT_FSIZE raises SIGXFSZ, perhaps in a thread of the program. */
static bool may_have_size(size_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur >= bytes;
}

/* ---- files ---- */

static void memfd_close(struct efs_memfiles *memfiles, int fd)
{
    efs_sys_close(fd);
    atomic_fetch_sub(&memfiles->memfd_count, 1);
}

/* Maps a new memfd. NULL: no memory, too few descriptors, or a seal was refused. */
static uint8_t *memfd_map(struct efs_memfiles *memfiles, uint8_t *at, size_t bytes, int seals, int *fd)
{
    struct rlimit limit;
    uint8_t *data = NULL;
    *fd = -1;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && atomic_load(&memfiles->memfd_count) >= limit.rlim_cur / MEMFDS_PART)
        return NULL;
    int memfd = may_have_size(bytes) ? efs_sys_memfd_create("expertfs", MFD_ALLOW_SEALING) : -1;
    if (memfd < 0)
        return NULL;
    atomic_fetch_add(&memfiles->memfd_count, 1);
    if (efs_sys_ftruncate(memfd, bytes) == 0 && (!seals || efs_sys_add_seals(memfd, seals) == 0))
        data = efs_sys_mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), memfd, 0);
    if (data)
        *fd = memfd;
    else
        memfd_close(memfiles, memfd);
    return data;
}

/* Maps a new file of the tmpfs, whose huge pages are about ten times cheaper to allocate and map. NULL on failure. */
static uint8_t *tmpfs_map(struct efs_memfiles *memfiles, uint8_t *at, size_t bytes, uint64_t *name)
{
    uint8_t *data = NULL;
    if (memfiles->tmpfs < 0 || !may_have_size(bytes))
        return NULL;
    *name = atomic_fetch_add(&memfiles->named, 1) + 1;
    int fd = efs_sys_openat(memfiles->tmpfs, name_of(*name).text, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, 0400);
    if (fd < 0)
        return NULL;
    if (efs_sys_ftruncate(fd, bytes) == 0)
        data = efs_sys_mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
    efs_sys_close(fd);
    if (!data)
        efs_sys_unlinkat(memfiles->tmpfs, name_of(*name).text, 0);
    return data;
}

/* Maps a new file of the tmpfs, else a memfd with these seals. NULL: there is neither. */
static uint8_t *file_map(struct efs_memfiles *memfiles, uint8_t *at, size_t bytes, int seals,
                         struct efs_window_file *file)
{
    *file = (struct efs_window_file){.memfd = -1};
    uint8_t *data = tmpfs_map(memfiles, at, bytes, &file->name);
    if (data)
        return data;
    file->name = 0;
    return memfiles->memfds ? memfd_map(memfiles, at, bytes, seals, &file->memfd) : NULL;
}

/* A descriptor for other processes. -errno. */
static int file_open_readonly(const struct efs_memfiles *memfiles, const struct efs_window_file *file)
{
    char path[32];
    if (file->name)
        return efs_sys_openat(memfiles->readonly, name_of(file->name).text, O_RDONLY | O_NOFOLLOW, 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file->memfd);
    return efs_sys_open(path, O_RDONLY, 0);
}

static void file_remove(struct efs_memfiles *memfiles, const struct efs_window_file *file)
{
    if (file->name)
        efs_sys_unlinkat(memfiles->tmpfs, name_of(file->name).text, 0);
    else if (file->memfd >= 0)
        memfd_close(memfiles, file->memfd);
}

/* ---- memory files ---- */

void efs_memfile_free(struct efs_memfile *memfile)
{
    /* also frees the pages that a forked child maps */
    if (memfile->data && (memfile->empty || memfile->kind == EFS_MEMFILE_PRIVATE))
        efs_sys_madvise(memfile->data, memfile->bytes, MADV_REMOVE);
    if (memfile->data)
        efs_sys_munmap(memfile->data, memfile->bytes);
    if (memfile->fd >= 0)
        efs_sys_close(memfile->fd);
    file_remove(memfile->memfiles, &memfile->file);
    free(memfile);
}

void efs_memfile_unmap_in_child(const struct efs_memfile *memfile)
{
    efs_sys_munmap(memfile->data, memfile->bytes);
    if (memfile->fd >= 0)
        efs_sys_close(memfile->fd);
    if (memfile->file.memfd >= 0)
        efs_sys_close(memfile->file.memfd);
}

struct efs_memfile *efs_memfile_new(struct efs_memfiles *memfiles, size_t bytes)
{
    struct efs_memfile *memfile = efs_sys_calloc(1, sizeof(*memfile));
    if (!memfile)
        return NULL;
    *memfile = (struct efs_memfile){.kind = EFS_MEMFILE_PRIVATE, .memfiles = memfiles, .fd = -1, .bytes = bytes};
    memfile->data = file_map(memfiles, NULL, bytes, 0, &memfile->file);
    if (!memfile->data)
        memfile->data = efs_sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
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

/* The file, open for writing; the caller closes it if it has a name. < 0: it is anonymous, or -errno. */
static int memfile_open(const struct efs_memfile *memfile)
{
    return memfile->file.name ? efs_sys_openat(memfile->memfiles->tmpfs, name_of(memfile->file.name).text, O_RDWR, 0)
                              : memfile->file.memfd;
}

static void memfile_close(const struct efs_memfile *memfile, int fd)
{
    if (memfile->file.name && fd >= 0)
        efs_sys_close(fd);
}

static errint_t memfile_have_pages(struct efs_memfile *memfile)
{
    int fd = memfile_open(memfile);
    errint_t rc = fd < 0 ? -EBADF : efs_sys_fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, memfile->bytes);
    memfile_close(memfile, fd);
    return rc == 0 ? 0 : efs_sys_populate(memfile->data, memfile->bytes, NULL);
}

errint_t efs_memfile_reserve(struct efs_memfile *memfile)
{
    return memfile->kind != EFS_MEMFILE_PRIVATE || memfile->populated ? 0 : memfile_have_pages(memfile);
}

errint_t efs_memfile_populate(struct efs_memfile *memfile)
{
    volatile uint8_t *data = memfile->data;
    assert(memfile->kind == EFS_MEMFILE_PRIVATE);
    /* Not MADV_POPULATE_WRITE for a named file: it holds mmap_lock while it clears pages, and other threads' mmap(2)
     * and munmap(2) wait. Touching a page that is allocated cannot fail. */
    errint_t rc = memfile_have_pages(memfile);
    for (size_t at = 0; rc == 0 && at < memfile->bytes; at += EFS_ALIGN)
        data[at] = 0;
    memfile->populated = rc == 0;
    return rc;
}

/* Truncates it to its file's size; a memfd is sealed. */
static errint_t memfile_cut(const struct efs_memfile *memfile)
{
    int fd = memfile_open(memfile);
    errint_t rc = fd < 0 ? fd : efs_sys_ftruncate(fd, memfile->file_bytes);
    memfile_close(memfile, fd);
    if (rc == 0 && !memfile->file.name)
        rc = efs_sys_add_seals(fd, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return rc;
}

/* memfiles->lock held. Truncates the file to file_bytes and opens it. On -errno its kind is unchanged. */
static errint_t memfile_export(struct efs_memfile *memfile)
{
    if (memfile->kind == EFS_MEMFILE_WINDOW || (!memfile->file.name && memfile->file.memfd < 0))
        return -EBUSY;
    if (memfile->fd >= 0)
        return 0;
    errint_t rc = memfile->kind == EFS_MEMFILE_EXPORTED ? 0 : memfile_cut(memfile);
    int fd = rc < 0 ? rc : file_open_readonly(memfile->memfiles, &memfile->file);
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

errint_t efs_memfile_export(struct efs_memfiles *memfiles, struct efs_memfile *memfile)
{
    pthread_mutex_lock(&memfiles->lock);
    errint_t rc = memfile_export(memfile);
    pthread_mutex_unlock(&memfiles->lock);
    return rc;
}

errint_t efs_memfile_make_window(struct efs_memfiles *memfiles, struct efs_memfile *memfile)
{
    struct efs_window_file *file = &memfile->file;
    errint_t rc = file->name || file->memfd >= 0 ? 0 : -EBUSY;
    pthread_mutex_lock(&memfiles->lock);
    if (rc == 0 && memfile->kind == EFS_MEMFILE_PRIVATE && !file->name)
        rc = efs_sys_add_seals(file->memfd, WINDOW_SEALS);
    if (rc == 0 && memfile->kind == EFS_MEMFILE_PRIVATE)
        memfile->kind = EFS_MEMFILE_WINDOW;
    if (rc == 0 && file->number == 0)
        file->number = atomic_fetch_add(&memfiles->windows, 1) + 1;
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
    bool elsewhere = memfile->file.name != 0;
    pthread_mutex_lock(&memfiles->lock);
    if (elsewhere && memfile->fd < 0) { /* else it was exported again */
        if (fd < 0 && memfile_export(memfile) == 0)
            fd = efs_memfile_take_fd(memfile);
        elsewhere = fd < 0 || efs_sys_is_sole_user(fd) != 0; /* or the kernel refuses the check */
    }
    if (fd >= 0)
        efs_sys_close(fd);
    pthread_mutex_unlock(&memfiles->lock);
    return elsewhere;
}

errint_t efs_leases_probe(void)
{
    char path[32];
    int memfd = efs_sys_memfd_create("expertfs-probe", 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", memfd);
    int fd = memfd < 0 ? memfd : efs_sys_open(path, O_RDONLY, 0); /* a lease of the memfd itself is never granted */
    errint_t rc = fd < 0 ? 0 : efs_sys_is_sole_user(fd);
    if (fd >= 0)
        efs_sys_close(fd);
    if (memfd >= 0)
        efs_sys_close(memfd);
    return rc;
}

int efs_memfile_open_window(const struct efs_memfile *memfile)
{
    assert(memfile->file.number);
    return file_open_readonly(memfile->memfiles, &memfile->file);
}

/* ---- segments of the chunk pool ---- */

uint8_t *efs_window_file_map(struct efs_memfiles *memfiles, uint8_t *at, size_t bytes, struct efs_window_file *file)
{
    uint8_t *data = file_map(memfiles, at, bytes, WINDOW_SEALS, file);
    if (data)
        file->number = atomic_fetch_add(&memfiles->windows, 1) + 1;
    return data;
}

int efs_window_file_open(struct efs_memfiles *memfiles, const struct efs_window_file *file)
{
    return file->number ? file_open_readonly(memfiles, file) : -EOPNOTSUPP;
}

void efs_window_file_free(struct efs_memfiles *memfiles, const struct efs_window_file *file, uint8_t *data,
                          size_t bytes, bool empty)
{
    if (!file->number)
        return;
    if (empty)
        efs_sys_madvise(data, bytes, MADV_REMOVE);
    file_remove(memfiles, file);
}
