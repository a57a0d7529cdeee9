/* mapping.c - see mapping.h. */
#include "mapping.h"

#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

void efs_mapped_path(const char *stack, uint32_t layer, uint32_t expert, char path[EFS_MAPPING_PATH])
{
    snprintf(path, EFS_MAPPING_PATH, "experts/%.31s%sL%02" PRIu32 "/E%03" PRIu32 ".safetensors", stack,
             *stack ? "-" : "", layer, expert);
}

static uint64_t header_bytes(const struct efs_mapped_file *file)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < 8; i++)
        n |= (uint64_t)file->data[i] << (8 * i);
    return n;
}

/* The tensors of the file, in its order. */
static errint_t read_header(const char *path, struct efs_mapped_file *file)
{
    const struct efs_source_input in = {.fd = file->fd, .path = path, .bytes = file->bytes};
    errint_t rc = efs_source_safetensors(&in, &file->list, NULL);
    if (rc < 0)
        return rc;
    if (file->list.count > UINT32_MAX)
        return -EUCLEAN;
    file->tensors = efs_sys_calloc(file->list.count + 1, sizeof(*file->tensors));
    if (!file->tensors)
        return -ENOMEM;
    file->tensor_count = (uint32_t)file->list.count;
    bool unnamed = false;
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        const struct efs_source_entry *e = &file->list.entries[i];
        struct efs_tensor *t = &file->tensors[i];
        *t = (struct efs_tensor){.name = e->tensor.name,
                                 .dtype = e->known ? e->tensor.dtype : EFS_DTYPE_NONE,
                                 .bytes = e->tensor.bytes,
                                 .data = file->data + e->tensor.offset};
        if (e->known) {
            t->dims = e->tensor.dims;
            memcpy(t->shape, e->tensor.shape, t->dims * sizeof(t->shape[0]));
        }
        unnamed = unnamed || (t->dtype == EFS_DTYPE_U8 && t->dims == 1);
    }
    /* the length was checked with the header */
    return unnamed ? efs_mapped_notes((const char *)file->data + 8, (size_t)header_bytes(file), file->tensors,
                                      file->tensor_count)
                   : 0;
}

static errint_t map(const char *path, struct efs_mapped_file *file)
{
    struct stat st;
    errint_t rc = efs_sys_fstat(file->fd, &st);
    if (rc < 0)
        return rc;
    if (!S_ISREG(st.st_mode) || st.st_size < 8)
        return -EUCLEAN;
    if ((uint64_t)st.st_size > SIZE_MAX / 2)
        return -EFBIG;
    file->bytes = (size_t)st.st_size;
    void *data = efs_sys_mmap(NULL, file->bytes, PROT_READ, MAP_SHARED, file->fd, 0);
    if (!data)
        return errno ? -errno : -ENOMEM;
    file->data = data;
    /* pages that cannot be read are an error here, and no signal later */
    rc = efs_sys_madvise(data, file->bytes, MADV_POPULATE_READ);
    if (rc < 0 && rc != -EINVAL)
        return rc == -ENOMEM ? rc : -EIO;
    return read_header(path, file);
}

/* What waiting for an expert means by itself is no error of an expert. */
static errint_t own_error(errint_t rc)
{
    return rc == -ENOENT || rc == -EAGAIN || rc == -ETIMEDOUT ? -EIO : rc;
}

errint_t efs_mapped_open(int root, const char *path, struct efs_mapped_file *file)
{
    *file = (struct efs_mapped_file){.fd = efs_sys_openat(root, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0)};
    if (file->fd < 0) {
        errint_t rc = file->fd;
        *file = (struct efs_mapped_file){.fd = -1};
        return own_error(rc);
    }
    errint_t rc = map(path, file);
    if (rc < 0)
        efs_mapped_close(file);
    return own_error(rc);
}

void efs_mapped_close(struct efs_mapped_file *file)
{
    if (file->fd < 0)
        return;
    free(file->tensors);
    efs_source_list_free(&file->list);
    if (file->data)
        efs_sys_munmap((void *)(uintptr_t)file->data, file->bytes);
    efs_sys_close(file->fd);
    *file = (struct efs_mapped_file){.fd = -1};
}
