/* SPDX-License-Identifier: Apache-2.0 */
/*
 * identity.c - whether a tensor of a mapped file has the bytes that the source would serve in its place. Models of one
 * architecture have the same names, types and shapes, so only file and offset, or all bytes, decide: on a mount the
 * file that is mapped must be the one with the model's experts; a file elsewhere must be the one that is served in
 * place, or have been packed into the store (mkexpertfs remembers which), or all bytes of the tensor are compared with
 * the store's checksums, once.
 */
#include "plugin.h"

#include "expertfs-private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ROWS_MAX 65536u /* of .expertfs/tensors */

struct efsg_place {
    char name[GGML_MAX_NAME];
    uint32_t layer, experts;
    uint64_t file; /* number in the store; of a mount: inode */
    uint64_t offset, bytes;
};

/* ---- the source's tensors ---- */

static struct efsg_places *places_new(uint32_t count)
{
    struct efsg_places *p = calloc(1, sizeof(*p));
    if (p && !(p->place = calloc((size_t)count + 1, sizeof(*p->place)))) {
        free(p);
        return NULL;
    }
    return p;
}

void efsg_places_free(struct efsg_places *places)
{
    if (!places)
        return;
    free(places->place);
    free(places);
}

struct efsg_places *efsg_places_of_store(const struct efs_store *store)
{
    struct efs_stacked *list;
    uint32_t count;
    if (efs_stacked_list(store, &list, &count) < 0)
        return NULL;
    struct efsg_places *p = places_new(count);
    for (uint32_t i = 0; p && i < count; i++) {
        const struct efs_stacked *s = &list[i];
        struct efsg_place *to = &p->place[p->count];
        if (s->name_bytes >= sizeof(to->name))
            continue;
        *to = (struct efsg_place){
            .layer = s->layer, .experts = s->experts, .file = s->file, .offset = s->offset, .bytes = s->bytes};
        memcpy(to->name, s->name, s->name_bytes);
        p->count++;
    }
    free(list);
    return p;
}

struct efsg_places *efsg_places_of_mount(const char *mount, uint64_t device)
{
    char path[4096 + 32], line[512];
    struct stat st;
    snprintf(path, sizeof(path), "%s/.expertfs/tensors", mount);
    FILE *file = fopen(path, "re");
    struct efsg_places *p = file ? places_new(ROWS_MAX) : NULL;
    if (p && (fstat(fileno(file), &st) < 0 || st.st_dev != device)) { /* another mount is there by now */
        efsg_places_free(p);
        p = NULL;
    }
    while (p && p->count < ROWS_MAX && fgets(line, sizeof(line), file)) {
        struct efsg_place *to = &p->place[p->count];
        unsigned long long inode, offset, bytes;
        if (sscanf(line, "%llu %llu %llu %u %u %63s", &inode, &offset, &bytes, &to->experts, &to->layer, to->name) != 6)
            continue; /* the header */
        to->file = inode;
        to->offset = offset;
        to->bytes = bytes;
        p->count++;
    }
    if (file)
        fclose(file);
    return p;
}

/* ---- files elsewhere ---- */

/* Compares a range in parts, which divide no shard, by all threads. */
static errint_t compare_parts(const struct efs_store *store, const struct efs_same_range *range, uint32_t parts, int fd)
{
    const uint64_t bytes = range->bytes / parts;
    _Atomic errint_t result = 0;
#pragma omp parallel for schedule(dynamic)
    for (uint32_t i = 0; i < parts; i++) {
        const errint_t rc = atomic_load(&result) < 0 ? 0
                                                     : efs_same_bytes(store, range->file, range->offset + i * bytes,
                                                                      bytes, fd, range->fd_offset + i * bytes);
        if (rc < 0)
            atomic_store(&result, rc);
    }
    return atomic_load(&result);
}

/* Reading all experts of a large file takes a while. once: the result is kept. */
static void log_comparing(const struct efsg_file *file, bool once)
{
    static _Atomic uint64_t last;
    if (atomic_exchange(&last, file->st.st_ino) != file->st.st_ino)
        efsg_log(GGML_LOG_LEVEL_INFO, "comparing %s with the store, %s", file->path,
                 once ? "which is done once"
                      : "as each time: its file system may change it without changing its times");
}

/* As efs_same_bytes(), by an earlier result, or by reading all of it. */
static errint_t same_range(const struct efs_store *store, const struct efsg_file *file,
                           const struct efs_same_range *range, uint32_t parts)
{
    struct efs_store_info info;
    struct timespec seen;
    struct stat st;
    efs_store_info(store, &info);
    clock_gettime(CLOCK_REALTIME, &seen);
    int fd = efsg_file_open(file, O_DIRECT, &st);
    if (fd == -EINVAL)
        fd = efsg_file_open(file, 0, &st);
    if (fd < 0)
        return fd;
    /* The hash of a source in place is not of its bytes, and asking again reads none. */
    const bool lasts = !info.in_place && efs_same_lasts(fd);
    const int known = lasts ? efs_same_known(info.content_hash, &st, range) : 0;
    errint_t rc = known < 0 ? known : 0;
    if (known == 0) {
        if (!info.in_place)
            log_comparing(file, lasts);
        rc = compare_parts(store, range, parts, fd);
        if (rc == -EINVAL) { /* reads with O_DIRECT are refused */
            const int flags = fcntl(fd, F_GETFL);
            if (flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0)
                rc = compare_parts(store, range, parts, fd);
            (void)posix_fadvise(fd, (off_t)range->fd_offset, (off_t)range->bytes, POSIX_FADV_DONTNEED);
        }
        if (lasts && (rc == 0 || rc == -ESTALE))
            efs_same_remember(info.content_hash, &st, &seen, range, rc == 0);
    }
    close(fd);
    return rc;
}

/* ---- calls ---- */

static const struct efsg_place *find_place(const struct efsg_places *places, const struct ggml_tensor *tensor,
                                           uint32_t layer)
{
    for (uint32_t i = 0; places && i < places->count; i++) {
        const struct efsg_place *p = &places->place[i];
        if (p->layer == layer && strcmp(p->name, tensor->name) == 0)
            return p;
    }
    return NULL;
}

errint_t efsg_same_experts(const struct efsg_places *places, const struct efs_store *store,
                           const struct efsg_file *file, const struct ggml_tensor *tensor, uint32_t layer,
                           struct efs_error *err)
{
    const struct efsg_place *p = find_place(places, tensor, layer);
    const uint64_t offset = file->offset + (uint64_t)((const uint8_t *)tensor->data - file->base);
    const uint64_t bytes = (uint64_t)tensor->nb[2] * (uint64_t)tensor->ne[2];
    if (!p || p->bytes != bytes || p->experts != tensor->ne[2])
        return efs_fail(err, -ENOENT, "%s: the source has no such tensor", file->path);
    if (!store)
        return p->file == file->st.st_ino && p->offset == offset
                   ? 0
                   : efs_fail(err, -ESTALE, "%s: the mount serves the experts of another file", file->path);
    const struct efs_same_range range = {(uint32_t)p->file, p->offset, bytes, offset};
    const errint_t rc = same_range(store, file, &range, p->experts);
    return rc == 0          ? 0
           : rc == -ESTALE  ? efs_fail(err, rc, "%s: has other weights than the store", file->path)
           : rc == -ENODATA ? efs_fail(err, rc, "%s: is not the file that EXPERTFS_STORE names", file->path)
                            : efs_fail(err, rc, "%s: is not the file that is served, and cannot be compared: %s",
                                       file->path, strerror(-rc));
}

uint32_t efsg_same_file(struct efs *fs, const struct efsg_file *file, uint64_t offset, uint64_t bytes)
{
    const struct efs_store *store = efs_get_store(fs);
    struct efs_file_info info;
    for (uint32_t f = 0; f < efs_file_count(fs); f++) {
        if (efs_file_info(fs, f, &info) < 0 || info.kind != EFS_FILE_CHECKPOINT || info.bytes != file->bytes)
            continue;
        const struct efs_same_range range = {f, offset, bytes, offset};
        if (same_range(store, file, &range, 1) == 0)
            return f;
    }
    return UINT32_MAX;
}
