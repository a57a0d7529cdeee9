/* SPDX-License-Identifier: Apache-2.0 */
/* foreign.c - see foreign.h. */
#include "foreign.h"

#include "catalog.h"
#include "floats.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PIECE 8192u /* elements converted at a time */

struct tools_foreign {
    struct efs_catalog catalog;
    uint32_t *floats; /* which of its tensors hold floats */
    size_t count;
    int fd; /* of the file read last, or -1 */
    uint32_t file;
};

/* Bytes of an element, or 0: no floats that are read here. */
static uint32_t float_bytes(enum efs_dtype dtype)
{
    switch (dtype) {
    case EFS_DTYPE_BF16:
    case EFS_DTYPE_F16:
        return 2;
    case EFS_DTYPE_F32:
        return 4;
    case EFS_DTYPE_F64:
        return 8;
    default:
        return 0;
    }
}

static errint_t find_floats(struct tools_foreign *foreign)
{
    const struct efs_catalog *catalog = &foreign->catalog;
    foreign->floats = calloc(catalog->tensor_count + 1, sizeof(*foreign->floats));
    if (!foreign->floats)
        return -ENOMEM;
    for (size_t t = 0; t < catalog->tensor_count; t++)
        if (catalog->tensors[t].bytes && float_bytes(catalog->tensors[t].dtype))
            foreign->floats[foreign->count++] = (uint32_t)t;
    return 0;
}

errint_t tools_foreign_open(const char *path, struct tools_foreign **foreign, struct efs_error *err)
{
    struct tools_foreign *opened = calloc(1, sizeof(*opened));
    if (!opened)
        return efs_fail(err, -ENOMEM, "%s: out of memory", path);
    opened->fd = -1;
    errint_t rc = efs_catalog_read(path, &opened->catalog, err);
    if (rc < 0) {
        free(opened); /* a failed read leaves no catalogue */
        return rc;
    }
    rc = find_floats(opened);
    if (rc < 0)
        efs_fail(err, rc, "%s: out of memory", path);
    for (size_t f = 0; rc == 0 && f < opened->catalog.file_count; f++)
        if (opened->catalog.files[f].state != EFS_SOURCE_WHOLE)
            rc = efs_fail(err, -EUCLEAN, "%s", opened->catalog.files[f].note);
    if (rc < 0) {
        tools_foreign_close(opened);
        return rc;
    }
    *foreign = opened;
    return 0;
}

void tools_foreign_close(struct tools_foreign *foreign)
{
    if (!foreign)
        return;
    if (foreign->fd >= 0)
        close(foreign->fd);
    efs_catalog_free(&foreign->catalog);
    free(foreign->floats);
    free(foreign);
}

size_t tools_foreign_count(const struct tools_foreign *foreign)
{
    return foreign->count;
}

static const struct efs_source_tensor *tensor_of(const struct tools_foreign *foreign, size_t index)
{
    return &foreign->catalog.tensors[foreign->floats[index]];
}

struct tools_foreign_tensor tools_foreign_tensor(const struct tools_foreign *foreign, size_t index)
{
    const struct efs_source_tensor *tensor = tensor_of(foreign, index);
    return (struct tools_foreign_tensor){
        .name = tensor->name, .dims = tensor->dims, .elements = tensor->bytes / float_bytes(tensor->dtype)};
}

/* The file of a tensor becomes the one at hand. */
static errint_t open_file(struct tools_foreign *foreign, uint32_t file, struct efs_error *err)
{
    const struct efs_catalog *catalog = &foreign->catalog;
    char *path;
    if (foreign->fd >= 0 && foreign->file == file)
        return 0;
    if (asprintf(&path, "%s/%s", catalog->root, catalog->files[file].path) < 0)
        return efs_fail(err, -ENOMEM, "%s: out of memory", catalog->files[file].path);
    if (foreign->fd >= 0)
        close(foreign->fd);
    foreign->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* it may have become a FIFO since */
    foreign->file = file;
    errint_t rc = foreign->fd < 0 ? efs_fail(err, -errno, "%s: %s", path, strerror(errno)) : 0;
    free(path);
    return rc;
}

static float to_float(enum efs_dtype dtype, const uint8_t *at)
{
    uint16_t half;
    float single;
    double twice;
    switch (dtype) {
    case EFS_DTYPE_BF16:
        memcpy(&half, at, 2);
        return mk_from_bf16(half);
    case EFS_DTYPE_F16:
        memcpy(&half, at, 2);
        return (half & 0x7c00u) == 0x7c00u ? NAN : mk_from_f16(half);
    case EFS_DTYPE_F32:
        memcpy(&single, at, 4);
        return single;
    default:
        memcpy(&twice, at, 8);
        return (float)twice;
    }
}

static errint_t read_piece(struct tools_foreign *foreign, uint64_t offset, uint8_t *bytes, size_t count,
                           struct efs_error *err)
{
    const char *path = foreign->catalog.files[foreign->file].path;
    for (size_t done = 0; done < count;) {
        ssize_t n = pread(foreign->fd, bytes + done, count - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return efs_fail(err, -errno, "%s: read at offset %llu: %s", path, (unsigned long long)(offset + done),
                            strerror(errno));
        if (n == 0)
            return efs_fail(err, -EUCLEAN, "%s: the file became shorter: it ends at offset %llu", path,
                            (unsigned long long)(offset + done));
        done += (size_t)n;
    }
    return 0;
}

errint_t tools_foreign_read(struct tools_foreign *foreign, size_t index, uint64_t first, size_t count, float *out,
                            struct efs_error *err)
{
    const struct efs_source_tensor *tensor = tensor_of(foreign, index);
    uint32_t element = float_bytes(tensor->dtype);
    uint8_t bytes[PIECE * 8];
    errint_t rc = open_file(foreign, tensor->file, err);
    for (size_t done = 0; done < count && rc == 0;) {
        size_t n = count - done < PIECE ? count - done : PIECE;
        rc = read_piece(foreign, tensor->offset + (first + done) * element, bytes, n * element, err);
        for (size_t i = 0; i < n && rc == 0; i++)
            out[done + i] = to_float(tensor->dtype, bytes + i * element);
        done += n;
    }
    return rc;
}
