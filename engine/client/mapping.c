/* SPDX-License-Identifier: Apache-2.0 */
/* mapping.c - see mapping.h. */
#include "mapping.h"

#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

void efs_mapped_path(const struct efs_expert_key *key, char path[EFS_MAPPING_PATH])
{
    snprintf(path, EFS_MAPPING_PATH, "experts/%s%sL%02" PRIu32 "/E%03" PRIu32 ".safetensors", key->stack,
             *key->stack ? "-" : "", key->layer, key->expert);
}

/* Sets the file's size from the known layout, or by fstat(2), which the kernel may send to the mount. 0, -EUCLEAN. */
static errint_t mapped_find_bytes(const struct efs_file_layout *known, struct efs_mapped_file *file)
{
    struct stat st;
    errint_t rc = known ? 0 : efs_sys_fstat(file->fd, &st);
    if (rc == 0 && !known && (!S_ISREG(st.st_mode) || st.st_size < 8 || (uint64_t)st.st_size > SIZE_MAX / 2))
        rc = -EUCLEAN;
    if (rc == 0)
        file->bytes = known ? known->file_bytes : (size_t)st.st_size;
    return rc;
}

static errint_t mapped_map(struct efs_mapped_file *file)
{
    void *data = efs_sys_mmap(NULL, file->bytes, PROT_READ, MAP_SHARED, file->fd, 0);
    if (!data)
        return errno ? -errno : -ENOMEM;
    file->data = data;
    /* pages that cannot be read are reported here, not by a SIGBUS later */
    errint_t rc = efs_sys_madvise(data, file->bytes, MADV_POPULATE_READ);
    return rc == 0 || rc == -EINVAL ? 0 : rc == -ENOMEM ? rc : -EIO;
}

errint_t efs_mapped_tensors(const struct efs_file_layout *known, struct efs_mapped_file *file)
{
    if (!known || known->file_bytes != file->bytes || !efs_layout_matches(known, file->data)) {
        errint_t rc = efs_layout_read(file->data, file->bytes, &file->new_layout);
        if (rc < 0)
            return rc;
        known = file->new_layout;
    }
    file->tensor_count = known->tensor_count;
    file->tensors = efs_layout_tensors(known, file->data);
    return file->tensors ? 0 : -ENOMEM;
}

/* Maps the file and sets its tensors, from this layout if the file still has it, else from its header. */
static errint_t mapped_map_known(const struct efs_file_layout *layout, struct efs_mapped_file *file)
{
    errint_t rc = mapped_find_bytes(layout, file);
    if (rc == 0)
        rc = mapped_map(file);
    if (layout && (rc == -EIO || (rc == 0 && !efs_layout_matches(layout, file->data)))) {
        if (file->data)
            efs_sys_munmap((void *)(uintptr_t)file->data, file->bytes);
        file->data = NULL;
        return mapped_map_known(NULL, file);
    }
    return rc < 0 ? rc : efs_mapped_tensors(layout, file);
}

errint_t efs_mapped_open(int root, const struct efs_expert_key *key, const struct efs_file_layout *known,
                         struct efs_mapped_file *file)
{
    char path[EFS_MAPPING_PATH];
    efs_mapped_path(key, path);
    *file = (struct efs_mapped_file){.fd = efs_sys_openat(root, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0)};
    errint_t rc = file->fd < 0 ? file->fd : mapped_map_known(known, file);
    if (rc < 0)
        efs_mapped_close(file);
    return rc == -EAGAIN ? -EIO : rc; /* efs_client_tensors() returns -EAGAIN for an expert that is not loaded yet */
}

void efs_mapped_close(struct efs_mapped_file *file)
{
    if (file->fd >= 0) {
        if (file->data)
            efs_sys_munmap((void *)(uintptr_t)file->data, file->bytes);
        efs_sys_close(file->fd);
    }
    free(file->tensors);
    free(file->shards);
    efs_layout_free(file->new_layout);
    *file = (struct efs_mapped_file){.fd = -1};
}
