/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_open.c - opens and creates copies. The map is created first and gets its name when it is complete. So a file
 * without a map, or with a map of another source, is no copy, and is never written to.
 */
#include "local_internal.h"

#include "deadline.h"
#include "hash.h"
#include "newfile.h"
#include "sys.h"
#include "thread.h"

#include "expertfs-private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define DELETE_IT "\nhint: delete it, or choose another folder"

/* ---- sizes ---- */

static uint64_t file_pages(const struct efs_local_file *f)
{
    return (f->bytes + EFS_ALIGN - 1) / EFS_ALIGN;
}

static uint64_t file_blocks(const struct efs_local_file *f)
{
    return (f->bytes + EFS_LOCAL_BLOCK - 1) / EFS_LOCAL_BLOCK;
}

static uint64_t map_bytes(const struct efs_local_file *f)
{
    return local_entry_offset(file_blocks(f) * EFS_LOCAL_BLOCK);
}

uint64_t efs_local_memory_bytes(const struct efs_local_options *o)
{
    uint64_t blocks = 0;
    for (unsigned i = 0; i < o->file_count; i++)
        blocks += file_blocks(&o->files[i]);
    return LOCAL_SLOTS * (uint64_t)EFS_LOCAL_BLOCK + EFS_LOCAL_FILL_BYTES + EFS_STACK_TOUCHED_BYTES +
           blocks * (2 * sizeof(uint64_t) + 2 * sizeof(uint32_t) + sizeof(struct local_victim)) +
           o->units * sizeof(double) + o->file_count * sizeof(struct local_file) + sizeof(struct efs_local);
}

static errint_t make_tables(struct efs_local *l, const struct efs_local_options *o, struct efs_error *err)
{
    uint64_t blocks = 0, maps = 0;
    for (unsigned i = 0; i < l->file_count; i++)
        l->files[i] = (struct local_file){.of = o->files[i], .fd = -1, .map_fd = -1};
    for (unsigned i = 0; i < l->file_count; i++) {
        struct local_file *f = &l->files[i];
        f->block_first = (uint32_t)blocks;
        f->page_count = (uint32_t)file_pages(&f->of);
        f->block_count = (uint32_t)file_blocks(&f->of);
        blocks += file_blocks(&f->of);
        maps += map_bytes(&f->of);
        if (file_pages(&f->of) > UINT32_MAX - LOCAL_BLOCK_PAGES || blocks > UINT32_MAX)
            return efs_fail(err, -EFBIG, "%s: the source is too large for a local copy", l->folder);
    }
    uint64_t least = maps + LOCAL_SLOTS * (uint64_t)EFS_LOCAL_BLOCK;
    if (o->size_bytes < least)
        return efs_fail(err, -EINVAL, "%s: a local copy of %llu bytes is below the minimum of %llu", l->folder,
                        (unsigned long long)o->size_bytes, (unsigned long long)least);
    l->page_limit = (o->size_bytes - maps) / EFS_ALIGN;
    l->block_count = (uint32_t)blocks;
    l->there = efs_sys_calloc(blocks, sizeof(*l->there));
    l->waiting = efs_sys_calloc(blocks, sizeof(*l->waiting));
    l->used = efs_sys_calloc(blocks, sizeof(*l->used));
    l->unit = efs_sys_malloc(blocks * sizeof(*l->unit));
    l->victims = efs_sys_malloc(blocks * sizeof(*l->victims));
    l->slot_data = efs_sys_aligned_alloc(EFS_ALIGN, LOCAL_SLOTS * (size_t)EFS_LOCAL_BLOCK + EFS_LOCAL_FILL_BYTES);
    l->worth = efs_sys_calloc(o->units + 1u, sizeof(*l->worth));
    if (!l->there || !l->waiting || !l->used || !l->unit || !l->victims || !l->slot_data || !l->worth)
        return efs_fail(err, -ENOMEM, "%s: no memory for the map of the local copy", l->folder);
    memset(l->unit, 0xff, blocks * sizeof(*l->unit)); /* EFS_NONE */
    for (unsigned i = 0; i < LOCAL_SLOTS; i++) {
        l->slots[i].data = l->slot_data + (size_t)i * EFS_LOCAL_BLOCK;
        l->slots[i].next = l->free_slots;
        l->free_slots = &l->slots[i];
    }
    l->fill_data = l->slot_data + LOCAL_SLOTS * (size_t)EFS_LOCAL_BLOCK;
    return 0;
}

/* ---- files ---- */

/* A file of ours: regular, no link, of this user. The descriptor or -errno; -EEXIST: it is another kind of file. */
static int open_own(const struct efs_local *l, const char *name, int flags)
{
    struct stat st;
    int fd = efs_sys_openat(l->dir, name, flags | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0)
        return fd == -ELOOP ? -EEXIST : fd;
    int rc = efs_sys_fstat(fd, &st);
    if (rc == 0 && (!S_ISREG(st.st_mode) || st.st_uid != geteuid()))
        rc = -EEXIST;
    if (rc == 0)
        return fd;
    efs_sys_close(fd);
    return rc;
}

static void make_header(const struct efs_local_file *of, struct efs_local_header *h)
{
    *h = (struct efs_local_header){.version = EFS_LOCAL_VERSION, .page_bytes = EFS_ALIGN, .bytes = of->bytes};
    memcpy(h->magic, EFS_LOCAL_MAGIC, sizeof(h->magic));
    memcpy(h->identity, of->identity, sizeof(h->identity));
    h->hash = efs_hash(h, offsetof(struct efs_local_header, hash));
}

static errint_t check_header(const struct efs_local *l, const struct local_file *f, struct efs_error *err)
{
    struct efs_local_header have, want;
    make_header(&f->of, &want);
    errint_t rc = efs_sys_pread_all(f->map_fd, &have, sizeof(have), 0);
    if (rc < 0 && rc != -ENODATA)
        return efs_fail(err, rc, "%s/%s.map: cannot read: %s", l->folder, f->of.name, strerror(-rc));
    if (rc < 0 || memcmp(have.magic, want.magic, sizeof(want.magic)) != 0 ||
        have.hash != efs_hash(&have, offsetof(struct efs_local_header, hash)))
        return efs_fail(err, -EEXIST, "%s/%s.map: not the map of a local copy, or damaged" DELETE_IT, l->folder,
                        f->of.name);
    if (memcmp(&have, &want, sizeof(want)) != 0)
        return efs_fail(err, -EEXIST, "%s/%s: a local copy of another source" DELETE_IT, l->folder, f->of.name);
    return 0;
}

/* Creates a file under a name, with these bytes first, of this size, and syncs it and the folder. */
static errint_t create(const struct efs_local *l, const char *name, const void *data, size_t bytes, uint64_t size)
{
    struct efs_newfile file;
    errint_t rc = efs_newfile_open(&file, l->dir, O_RDWR);
    if (rc < 0)
        return rc;
    rc = fchmod(file.fd, 0600) < 0 ? -errno : efs_sys_pwrite_all(file.fd, data, bytes, 0);
    rc = rc < 0 ? rc : efs_sys_ftruncate(file.fd, size);
    rc = rc < 0 ? rc : efs_newfile_sync(&file);
    rc = rc < 0 ? rc : efs_newfile_name(&file, name, false);
    errint_t closed = efs_newfile_close(&file);
    rc = rc < 0 ? rc : closed;
    return rc < 0 && rc != -EEXIST ? rc : efs_sys_sync_directory(l->dir); /* -EEXIST: another process was first */
}

static errint_t open_map(struct efs_local *l, struct local_file *f, struct efs_error *err)
{
    char name[EFS_LOCAL_NAME + 8];
    struct stat st;
    struct efs_local_header header;
    snprintf(name, sizeof(name), "%s.map", f->of.name);
    f->map_fd = open_own(l, name, O_RDWR);
    if (f->map_fd == -ENOENT && fstatat(l->dir, f->of.name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        (f->map_fd = open_own(l, name, O_RDWR)) == -ENOENT)
        return efs_fail(err, -EEXIST, "%s/%s: not a local copy, it has no map" DELETE_IT, l->folder, f->of.name);
    if (f->map_fd == -ENOENT) {
        make_header(&f->of, &header);
        errint_t rc = create(l, name, &header, sizeof(header), map_bytes(&f->of));
        f->map_fd = rc < 0 ? rc : open_own(l, name, O_RDWR);
    }
    if (f->map_fd == -EACCES || f->map_fd == -EROFS) {
        l->refused = f->map_fd;
        f->map_fd = open_own(l, name, O_RDONLY);
        f->map_fd = f->map_fd == -ENOENT ? l->refused : f->map_fd; /* it could not be created */
    }
    if (f->map_fd == -EEXIST)
        return efs_fail(err, -EEXIST, "%s/%s: not a regular file of this user" DELETE_IT, l->folder, name);
    if (f->map_fd < 0)
        return efs_fail(err, f->map_fd, "%s/%s: cannot open: %s", l->folder, name, strerror(-f->map_fd));
    return check_header(l, f, err);
}

/* The descriptor that is read and written: with O_DIRECT if a page can be read so, else fd. */
static int with_direct(const struct efs_local *l, const struct local_file *f, int fd, int flags)
{
    int direct = open_own(l, f->of.name, flags | O_DIRECT);
    void *page = direct < 0 ? NULL : efs_sys_aligned_alloc(EFS_ALIGN, EFS_ALIGN);
    ssize_t n = page ? efs_sys_pread(direct, page, EFS_ALIGN, 0) : -ENOMEM;
    free(page);
    if (n >= 0) {
        efs_sys_close(fd);
        return direct;
    }
    if (direct >= 0)
        efs_sys_close(direct);
    return fd;
}

/* A complete copy may be mounted: pages that are dropped from it would be lost. */
static bool is_source(const struct local_file *f, int fd)
{
    struct stat st;
    return efs_sys_fstat(fd, &st) == 0 && f->of.inode && f->of.inode == st.st_ino && f->of.device == st.st_dev;
}

/* The owner also gives the copy and its map their sizes. */
errint_t efs_local_open_copy(const struct efs_local *l, struct local_file *f, struct efs_error *err)
{
    const int flags = l->owner ? O_RDWR : O_RDONLY;
    errint_t rc = 0;
    int fd = open_own(l, f->of.name, flags);
    if (fd == -ENOENT && l->owner) { /* deleted, or never created: no page is there */
        rc = efs_sys_ftruncate(f->map_fd, EFS_ALIGN);
        rc = rc < 0 ? rc : create(l, f->of.name, "", 0, f->of.bytes);
        fd = rc < 0 ? rc : open_own(l, f->of.name, flags);
    }
    if (fd == -ENOENT && !l->owner)
        return 0; /* its owner has not created it yet */
    if (fd >= 0 && is_source(f, fd)) {
        efs_sys_close(fd);
        return efs_fail(err, -EEXIST, "%s/%s: the store itself, not a copy of it", l->folder, f->of.name);
    }
    if (fd >= 0 && l->owner)
        rc = efs_sys_ftruncate(fd, f->of.bytes); /* a page more if a process was killed while it wrote the last one */
    if (rc == 0 && fd >= 0 && l->owner)
        rc = efs_sys_ftruncate(f->map_fd, map_bytes(&f->of));
    if (fd >= 0 && rc == 0)
        fd = with_direct(l, f, fd, flags);
    f->fd = fd;
    if (fd == -EEXIST)
        return efs_fail(err, fd, "%s/%s: not a regular file of this user" DELETE_IT, l->folder, f->of.name);
    rc = fd < 0 ? fd : rc;
    return rc < 0 ? efs_fail(err, rc, "%s/%s: cannot open: %s", l->folder, f->of.name, strerror(-rc)) : 0;
}

static errint_t open_folder(struct efs_local *l, struct efs_error *err)
{
    errint_t rc = efs_sys_mkdirat(AT_FDCWD, l->folder, 0700);
    l->dir = rc < 0 && rc != -EEXIST ? rc : efs_sys_open(l->folder, O_RDONLY | O_DIRECTORY, 0);
    const bool missing = rc == -ENOENT; /* its parent */
    return l->dir < 0
               ? efs_fail(err, l->dir, "%s: cannot open the folder of local copies: %s%s%s", l->folder,
                          strerror(-l->dir), missing ? "\nhint: mkdir -p " : "", missing ? EFS_WORD(l->folder) : "")
               : 0;
}

/* In the order of the files: of several processes that start together, the one that gets the first gets all. */
static errint_t lock_maps(const struct efs_local *l)
{
    errint_t rc = l->refused;
    unsigned i = 0;
    for (; rc == 0 && i < l->file_count; i++)
        rc = efs_sys_flock(l->files[i].map_fd, LOCK_EX | LOCK_NB);
    while (rc < 0 && i-- > 0)
        efs_sys_flock(l->files[i].map_fd, LOCK_UN);
    return rc;
}

static errint_t open_files(struct efs_local *l, struct efs_error *err)
{
    errint_t rc = 0;
    for (unsigned i = 0; rc == 0 && i < l->file_count; i++)
        rc = open_map(l, &l->files[i], err);
    l->refused = rc == 0 ? lock_maps(l) : rc;
    l->owner = l->refused == 0;
    for (unsigned i = 0; rc == 0 && i < l->file_count; i++)
        rc = efs_local_open_copy(l, &l->files[i], err);
    return rc;
}

errint_t efs_local_open(const struct efs_local_options *o, struct efs_local **out, struct efs_error *err)
{
    struct efs_local *l = efs_sys_calloc(1, sizeof(*l));
    *out = NULL;
    if (!l)
        return efs_fail(err, -ENOMEM, "%s: no memory", o->folder);
    l->dir = -1;
    l->o = *o;
    l->queue_tail = &l->queue;
    pthread_mutex_init(&l->lock, NULL);
    efs_cond_init(&l->wake);
    l->folder = strdup(o->folder);
    l->files = efs_sys_calloc(o->file_count ? o->file_count : 1, sizeof(*l->files));
    l->file_count = l->folder && l->files ? o->file_count : 0;
    errint_t rc = l->folder && l->files ? 0 : efs_fail(err, -ENOMEM, "%s: no memory", o->folder);
    rc = rc < 0 ? rc : make_tables(l, o, err);
    rc = rc < 0 ? rc : open_folder(l, err);
    rc = rc < 0 ? rc : open_files(l, err);
    if (rc == 0) {
        rc = efs_local_load(l);
        if (rc < 0)
            efs_fail(err, rc, "%s: cannot read the map of a local copy: %s", l->folder, strerror(-rc));
    }
    if (rc < 0) {
        efs_local_close(l, false);
        return rc;
    }
    if (l->owner)
        efs_local_trim(l);
    *out = l;
    return 0;
}

/* ---- what to keep ---- */

void efs_local_mark(struct efs_local *l, uint64_t address, uint64_t bytes, uint32_t unit)
{
    const struct local_file *f = efs_local_file_at(l, address);
    if (!f || bytes == 0)
        return;
    uint64_t first = (address - f->of.address) / EFS_LOCAL_BLOCK;
    uint64_t last = (address - f->of.address + bytes - 1) / EFS_LOCAL_BLOCK;
    for (; first <= last && first < f->block_count; first++) {
        uint32_t *of = &l->unit[f->block_first + first];
        bool stricter = *of != EFS_NONE && *of >= EFS_LOCAL_STAYS && *of > unit;
        *of = stricter ? *of : unit;
    }
}

/* ---- state, end ---- */

bool efs_local_writes(const struct efs_local *l)
{
    return atomic_load(&l->writes);
}

void efs_local_refused(const struct efs_local *l, char *line, size_t room)
{
    *line = '\0';
    if (l->refused == -EWOULDBLOCK)
        snprintf(line, room, "%s: another process writes the local copy, this one only reads it", l->folder);
    else if (l->refused < 0)
        snprintf(line, room, "%s: cannot write the local copy: %s; it is only read", l->folder, strerror(-l->refused));
}

void efs_local_fault(struct efs_local *l, char *line, size_t room)
{
    uint64_t pages = 0;
    for (unsigned i = 0; i < l->file_count; i++)
        pages += l->files[i].page_count;
    pthread_mutex_lock(&l->lock);
    snprintf(line, room, "%s", l->fault);
    if (!*line && !l->owner && atomic_load(&l->page_count) < pages)
        efs_local_refused(l, line, room);
    if (!*line && l->fill_error < 0)
        snprintf(line, room, "%s: filling the local copy ended: cannot read the store: %s", l->folder,
                 strerror(-l->fill_error));
    pthread_mutex_unlock(&l->lock);
}

uint64_t efs_local_bytes(struct efs_local *l)
{
    return atomic_load(&l->page_count) * EFS_ALIGN;
}

void efs_local_close(struct efs_local *l, bool in_child)
{
    if (!l)
        return;
    if (l->started && !in_child) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_signal(&l->wake);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    for (unsigned i = 0; i < l->file_count; i++) {
        if (l->files[i].fd >= 0)
            efs_sys_close(l->files[i].fd);
        if (l->files[i].map_fd >= 0)
            efs_sys_close(l->files[i].map_fd);
    }
    if (l->dir >= 0)
        efs_sys_close(l->dir);
    if (in_child) /* its threads may have held the lock at the fork */
        return;
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->lock);
    free(l->there);
    free(l->waiting);
    free(l->used);
    free(l->unit);
    free(l->victims);
    free(l->worth);
    free(l->slot_data);
    free(l->files);
    free(l->folder);
    free(l);
}
