/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.c - decodes and checks every shard and writes it to its files. Creates directories as needed; each file
 * gets its name when it is complete (newfile.h). If unpacking fails, the files and
 * directories that it created are removed; files that replaced others (force) stay. */
#include "sweep.h"

#include "expertfs-private.h"
#include "hash.h"
#include "newfile.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- files. Directories below the target are opened without following symbolic links, so that nothing is written
 * outside of it ---- */

#define DIRECT_MIN_BYTES (256u << 10) /* minimum size of a file and of a write: O_DIRECT does not pay off below */
#define PATH_ROOM 1024                /* store_check.c: at most 1023 bytes */

struct made_directory {
    struct made_directory *next;
    char path[];
};

struct out_file {
    struct efs_newfile file;
    int direct; /* the same file with O_DIRECT; -1: none */
    uint64_t left_bytes;
    unsigned writers;
    bool named, replaced;
};

struct unpack_files {
    const struct efs_store *store;
    char *root_path;
    int root;
    bool force, made_root;
    pthread_mutex_t lock;        /* guards the following members */
    struct made_directory *made; /* most recent first */
    struct stat cleaned;         /* the last directory passed to efs_newfile_clean() */
    struct out_file files[];
};

static char *path_of(const struct unpack_files *u, uint32_t file, char path[PATH_ROOM])
{
    const struct efs_disk_file *f = &u->store->files[file];
    snprintf(path, PATH_ROOM, "%.*s", (int)f->path_bytes, u->store->strings + f->path_offset);
    return path;
}

static errint_t unpack_fail(const struct unpack_files *u, const char *path, errint_t rc, const char *what,
                            struct efs_error *err)
{
    return efs_fail(err, rc, "%s/%s: cannot %s: %s", u->root_path, path, what, strerror(-rc));
}

static void remember_directory(struct unpack_files *u, const char *path)
{
    size_t bytes = strlen(path) + 1;
    struct made_directory *made = efs_sys_malloc(sizeof(*made) + bytes);
    if (!made) /* then an empty directory remains if unpacking fails */
        return;
    memcpy(made->path, path, bytes);
    made->next = u->made;
    u->made = made;
}

/* Opens the parent directory of path; the caller closes it. make: create missing directories. -errno on failure. */
static int open_parent(struct unpack_files *u, const char *path, bool make, const char **name)
{
    char part[PATH_ROOM];
    int dir = efs_sys_openat(u->root, ".", O_RDONLY | O_DIRECTORY, 0);
    const char *begin = path;
    for (const char *slash; dir >= 0 && (slash = strchr(begin, '/')); begin = slash + 1) {
        snprintf(part, sizeof(part), "%.*s", (int)(slash - begin), begin);
        int made = make ? efs_sys_mkdirat(dir, part, 0777) : -EEXIST;
        int next =
            made == 0 || made == -EEXIST ? efs_sys_openat(dir, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0) : made;
        efs_sys_close(dir);
        dir = next;
        if (made == 0) {
            snprintf(part, sizeof(part), "%.*s", (int)(slash - path), path);
            remember_directory(u, part);
        }
    }
    *name = begin;
    return dir;
}

static errint_t check_absent(struct unpack_files *u, uint32_t file, struct efs_error *err)
{
    char path[PATH_ROOM];
    const char *name;
    int dir = open_parent(u, path_of(u, file, path), false, &name);
    if (dir == -ENOENT)
        return 0;
    if (dir < 0)
        return unpack_fail(u, path, dir, "open its directory", err);
    int fd = efs_sys_openat(dir, name, O_PATH | O_NOFOLLOW, 0);
    struct stat st = {0};
    if (fd >= 0) {
        efs_sys_fstat(fd, &st);
        efs_sys_close(fd);
    }
    efs_sys_close(dir);
    if (fd == -ENOENT)
        return 0;
    if (fd < 0)
        return unpack_fail(u, path, fd, "look at", err);
    if (S_ISDIR(st.st_mode))
        return unpack_fail(u, path, -EISDIR, "replace", err);
    u->files[file].replaced = true;
    return u->force ? 0
                    : efs_fail(err, -EEXIST, "%s/%s: exists already\nhint: --force replaces it", u->root_path, path);
}

/* Fails early with -ENOSPC: files that replace none need at least their size. */
static errint_t check_room(const struct unpack_files *u, struct efs_error *err)
{
    uint64_t free_bytes, bytes = 0;
    uint32_t block_bytes;
    for (uint32_t f = 0; f < u->store->file_count; f++)
        if (!u->files[f].replaced && __builtin_add_overflow(bytes, u->store->files[f].bytes, &bytes))
            bytes = UINT64_MAX;
    if (efs_sys_free_bytes(u->root, &free_bytes, &block_bytes) < 0 || bytes <= free_bytes)
        return 0;
    return efs_fail(err, -ENOSPC, "%s: no room on the disk: the files of %s take %llu MiB, %llu MiB are free",
                    u->root_path, u->store->path, (unsigned long long)(bytes >> 20) + 1,
                    (unsigned long long)(free_bytes >> 20));
}

/* keep false: removes what was created, except files that replaced others. Frees files. NULL is allowed. */
static void unpack_files_end(struct unpack_files *files, bool keep);

/* Opens `directory`, creating it if missing. -EEXIST: one of the files exists and force is not set. */
static errint_t unpack_files_begin(const struct efs_store *store, const char *directory, bool force,
                                   struct unpack_files **out, struct efs_error *err)
{
    *out = NULL;
    struct unpack_files *u = efs_sys_calloc(1, sizeof(*u) + store->file_count * sizeof(struct out_file));
    if (!u)
        return efs_fail(err, -ENOMEM, "%s: no memory", directory);
    u->store = store;
    u->force = force;
    u->root = -1;
    u->root_path = strdup(directory);
    pthread_mutex_init(&u->lock, NULL);
    for (uint32_t f = 0; f < store->file_count; f++) {
        u->files[f].file.fd = u->files[f].direct = -1;
        u->files[f].left_bytes = store->files[f].bytes;
    }
    int made = u->root_path ? efs_sys_mkdirat(AT_FDCWD, directory, 0777) : -ENOMEM;
    u->made_root = made == 0;
    u->root = made == 0 || made == -EEXIST ? efs_sys_open(directory, O_RDONLY | O_DIRECTORY, 0) : made;
    const char *slash = made == -ENOENT ? strrchr(directory, '/') : NULL;
    char *above = slash ? strndup(directory, (size_t)(slash - directory)) : NULL;
    errint_t rc = slash         ? efs_fail(err, made, "%s: cannot make directory: %s\nhint: mkdir -p %s", directory,
                                           strerror(-made), above ? EFS_WORD(above) : "DIR")
                  : u->root < 0 ? efs_fail(err, u->root, "%s: cannot %s directory: %s", directory,
                                           made == 0 || made == -EEXIST ? "open" : "make", strerror(-u->root))
                                : 0;
    free(above);
    for (uint32_t f = 0; rc == 0 && f < store->file_count; f++)
        rc = check_absent(u, f, err);
    if (rc == 0)
        rc = check_room(u, err);
    if (rc < 0) {
        unpack_files_end(u, false);
        return rc;
    }
    *out = u;
    return 0;
}

/* Allocates the file's blocks and opens a large file with O_DIRECT, because copying to the page cache would take
 * longest. */
static int unpack_prepare(struct out_file *f, uint64_t bytes)
{
    int rc = bytes ? efs_sys_fallocate(f->file.fd, 0, 0, bytes) : 0;
    if (rc == -EOPNOTSUPP || rc == -EINVAL)
        rc = efs_sys_ftruncate(f->file.fd, bytes);
    if (rc < 0 || bytes < DIRECT_MIN_BYTES)
        return rc;
    char self[40];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", f->file.fd);
    int fd = f->file.temporary[0] ? efs_sys_openat(f->file.dir, f->file.temporary, O_WRONLY | O_DIRECT, 0)
                                  : efs_sys_open(self, O_WRONLY | O_DIRECT, 0);
    f->direct = fd < 0 ? -1 : fd;
    return 0;
}

static errint_t unpack_create(struct unpack_files *u, uint32_t file, struct efs_error *err)
{
    char path[PATH_ROOM];
    const char *name;
    int dir = open_parent(u, path_of(u, file, path), true, &name);
    if (dir < 0)
        return unpack_fail(u, path, dir, "open its directory", err);
    struct stat st; /* files are created in name order, so each directory is cleaned about once */
    if (efs_sys_fstat(dir, &st) == 0 && (st.st_ino != u->cleaned.st_ino || st.st_dev != u->cleaned.st_dev)) {
        efs_newfile_clean(dir);
        u->cleaned = st;
    }
    errint_t rc = efs_newfile_open(&u->files[file].file, dir, O_RDWR);
    if (rc < 0) {
        efs_sys_close(dir);
        return unpack_fail(u, path, rc, "create", err);
    }
    rc = unpack_prepare(&u->files[file], u->store->files[file].bytes);
    if (rc == -ENOSPC)
        return efs_fail(err, rc, "%s/%s: no room on the disk for its %llu bytes", u->root_path, path,
                        (unsigned long long)u->store->files[file].bytes);
    return rc < 0 ? unpack_fail(u, path, rc, "make room for", err) : 0;
}

static int close_direct(struct out_file *f)
{
    int rc = f->direct >= 0 ? efs_sys_close(f->direct) : 0;
    f->direct = -1;
    return rc;
}

static errint_t unpack_finish(struct unpack_files *u, uint32_t file, struct efs_error *err)
{
    char path[PATH_ROOM];
    struct out_file *f = &u->files[file];
    const char *slash = strrchr(path_of(u, file, path), '/');
    int rc = close_direct(f);
    if (rc == 0)
        rc = efs_newfile_sync(&f->file);
    if (rc == 0)
        rc = efs_newfile_name(&f->file, slash ? slash + 1 : path, u->force);
    f->named = rc == 0;
    int dir = f->file.dir;
    if (rc == 0)
        efs_sys_fsync(dir); /* ignored: losing the name in a crash is harmless */
    int closed = efs_newfile_close(&f->file);
    efs_sys_close(dir);
    rc = rc < 0 ? rc : closed;
    return rc < 0 ? unpack_fail(u, path, rc, "finish", err) : 0;
}

/* Writes whole blocks with O_DIRECT if memory and file offset have the same alignment; both ends, and everything
 * else, through the page cache. */
static int write_range(struct out_file *f, const uint8_t *data, size_t bytes, uint64_t offset)
{
    size_t head = (size_t)(-offset % EFS_ALIGN);
    bool alike = f->direct >= 0 && (uintptr_t)data % EFS_ALIGN == offset % EFS_ALIGN && bytes >= DIRECT_MIN_BYTES;
    if (!alike)
        return efs_sys_pwrite_all(f->file.fd, data, bytes, offset);
    size_t body = (bytes - head) & ~(size_t)(EFS_ALIGN - 1), tail = bytes - head - body;
    int rc = efs_sys_pwrite_all(f->direct, data + head, body, offset + head);
    if (efs_sys_no_direct(rc))
        rc = efs_sys_pwrite_all(f->file.fd, data + head, body, offset + head);
    if (rc == 0 && head)
        rc = efs_sys_pwrite_all(f->file.fd, data, head, offset);
    if (rc == 0 && tail)
        rc = efs_sys_pwrite_all(f->file.fd, data + head + body, tail, offset + head + body);
    return rc;
}

/* Writes a range of a file. The write of its last byte syncs the file and gives it its name. Fastest if data and
 * offset are equal modulo EFS_ALIGN. Blocks. */
static errint_t unpack_files_write(struct unpack_files *u, uint32_t file, const void *data, size_t bytes,
                                   uint64_t offset, struct efs_error *err)
{
    struct out_file *f = &u->files[file];
    errint_t rc = 0;
    pthread_mutex_lock(&u->lock);
    if (f->file.fd < 0)
        rc = unpack_create(u, file, err);
    f->writers += rc == 0;
    pthread_mutex_unlock(&u->lock);
    if (rc < 0)
        return rc;
    int written = write_range(f, data, bytes, offset);
    pthread_mutex_lock(&u->lock);
    f->writers--;
    f->left_bytes -= bytes;
    bool last = f->left_bytes == 0 && f->writers == 0;
    pthread_mutex_unlock(&u->lock);
    if (written < 0) {
        char path[PATH_ROOM];
        return unpack_fail(u, path_of(u, file, path), written, "write", err);
    }
    return last ? unpack_finish(u, file, err) : 0;
}

static errint_t unpack_files_empty(struct unpack_files *u, struct efs_error *err)
{
    for (uint32_t f = 0; f < u->store->file_count; f++) {
        if (u->store->files[f].bytes > 0)
            continue;
        errint_t rc = unpack_create(u, f, err);
        if (rc == 0)
            rc = unpack_finish(u, f, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static void remove_partial(struct unpack_files *u)
{
    char path[PATH_ROOM];
    for (uint32_t f = 0; f < u->store->file_count; f++) {
        const char *name;
        int dir = u->files[f].named && !u->files[f].replaced ? open_parent(u, path_of(u, f, path), false, &name) : -1;
        if (dir < 0)
            continue;
        efs_sys_unlinkat(dir, name, 0);
        efs_sys_close(dir);
    }
    for (struct made_directory *made = u->made; made; made = made->next)
        efs_sys_unlinkat(u->root, made->path, AT_REMOVEDIR);
    if (u->made_root)
        efs_sys_unlinkat(AT_FDCWD, u->root_path, AT_REMOVEDIR);
}

static void unpack_files_end(struct unpack_files *u, bool keep)
{
    if (!u)
        return;
    for (uint32_t f = 0; f < u->store->file_count; f++) {
        int dir = u->files[f].file.dir;
        if (u->files[f].file.fd < 0)
            continue;
        close_direct(&u->files[f]);
        efs_newfile_close(&u->files[f].file);
        efs_sys_close(dir);
    }
    if (!keep && u->root >= 0)
        remove_partial(u);
    while (u->made) {
        struct made_directory *made = u->made;
        u->made = made->next;
        free(made);
    }
    if (u->root >= 0)
        efs_sys_close(u->root);
    free(u->root_path);
    pthread_mutex_destroy(&u->lock);
    free(u);
}

/* ---- the shards ---- */

struct unpack {
    const struct efs_store *store;
    struct unpack_files *files;
    uint32_t *extent_file;              /* file index of each extent */
    uint32_t *object_first, *by_object; /* extents of object o: by_object[object_first[o] .. object_first[o + 1]) */
};

static errint_t index_extents(struct unpack *u)
{
    const struct efs_store *s = u->store;
    u->extent_file = efs_sys_calloc((size_t)s->extent_count + 1, sizeof(uint32_t));
    u->by_object = efs_sys_calloc((size_t)s->extent_count + 1, sizeof(uint32_t));
    u->object_first = efs_sys_calloc((size_t)s->object_count + 2, sizeof(uint32_t));
    if (!u->extent_file || !u->by_object || !u->object_first)
        return -ENOMEM;
    for (uint32_t f = 0; f < s->file_count; f++)
        for (uint32_t i = 0; i < s->files[f].extent_count; i++)
            u->extent_file[s->files[f].extent_first + i] = f;
    /* Counting sort. Counts are at index object + 2, so that after filling, object_first[o] is the first extent of
     * object o. */
    for (uint32_t i = 0; i < s->extent_count; i++)
        if (s->extents[i].object + 2 <= s->object_count)
            u->object_first[s->extents[i].object + 2]++;
    for (uint32_t o = 2; o <= s->object_count; o++)
        u->object_first[o] += u->object_first[o - 1];
    for (uint32_t i = 0; i < s->extent_count; i++)
        u->by_object[u->object_first[s->extents[i].object + 1]++] = i;
    return 0;
}

static void free_index(struct unpack *u)
{
    free(u->extent_file);
    free(u->by_object);
    free(u->object_first);
}

static errint_t fail_damaged(const struct efs_store *store, const struct efs_sweep_shard *shard, struct efs_error *err)
{
    const struct efs_shard_view *v = &shard->view;
    bool sm = v->e_bytes == 0 || (shard->sm_error && !shard->e_error) ||
              (v->sm_bytes && !shard->e_error && efs_hash(v->sm, v->sm_bytes) != store->shards[shard->shard].sm_hash);
    char place[800];
    errint_t rc = shard->e_error ? shard->e_error : shard->sm_error ? shard->sm_error : -EUCLEAN;
    if (rc != -EUCLEAN && store->backed_said && *store->backed_said)
        return efs_fail(err, rc, "%s", store->backed_said);
    efs_store_name_chunk(store, shard->object, shard->shard, sm, place, sizeof(place));
    return efs_fail(err, rc, "%s: %s", place,
                    rc == -EUCLEAN ? "damaged\nhint: copy or download the store again, or pack the checkpoint again"
                                   : strerror(-rc));
}

static errint_t unpack_shard(void *arg, const struct efs_sweep_shard *shard, struct efs_codec_scratch *scratch,
                             uint8_t *raw, uint8_t *other, struct efs_error *err)
{
    const struct unpack *u = arg;
    const struct efs_store *store = u->store;
    (void)other;
    uint32_t first = u->object_first[shard->object];
    uint64_t begin = shard->object_offset, end = begin + shard->raw_bytes;
    if (first < u->object_first[shard->object + 1]) { /* the same alignment as in the file, for O_DIRECT */
        const struct efs_disk_extent *x = &store->extents[u->by_object[first]];
        raw += (x->file_offset + begin - x->object_offset) % EFS_ALIGN;
    }
    if (shard->e_error || shard->sm_error ||
        efs_shard_decode(&shard->view, 0, shard->view.elements, raw, false, scratch) < 0 ||
        efs_hash(raw, shard->raw_bytes) != store->shards[shard->shard].raw_hash)
        return fail_damaged(store, shard, err);
    for (uint32_t i = first; i < u->object_first[shard->object + 1]; i++) {
        const struct efs_disk_extent *x = &store->extents[u->by_object[i]];
        uint64_t from = x->object_offset > begin ? x->object_offset : begin;
        uint64_t to = x->object_offset + x->bytes < end ? x->object_offset + x->bytes : end;
        if (from >= to)
            continue;
        errint_t rc = unpack_files_write(u->files, u->extent_file[u->by_object[i]], raw + (from - begin),
                                         (size_t)(to - from), x->file_offset + (from - x->object_offset), err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

errint_t efs_store_unpack(struct efs_store *store, const char *directory, bool force, unsigned threads,
                          efs_progress_fn *progress, void *arg, struct efs_error *err)
{
    struct unpack u = {.store = store};
    if (store->plain)
        return efs_fail(err, -EINVAL, "%s: is a checkpoint, not a store\nhint: its files are not packed; copy them",
                        store->path);
    errint_t rc = index_extents(&u);
    if (rc < 0)
        efs_fail(err, rc, "%s: no memory", directory);
    else
        rc = unpack_files_begin(store, directory, force, &u.files, err);
    const struct efs_sweep sweep = {.store = store,
                                    .each = unpack_shard,
                                    .arg = &u,
                                    .threads = threads,
                                    .progress = progress,
                                    .progress_arg = arg,
                                    .phase = "unpacking"};
    if (rc == 0)
        rc = unpack_files_empty(u.files, err);
    if (rc == 0)
        rc = efs_sweep_run(&sweep, err);
    unpack_files_end(u.files, rc == 0);
    free_index(&u);
    return rc;
}
