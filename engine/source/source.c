/* SPDX-License-Identifier: Apache-2.0 */
/* source.c - a checkpoint on disk to a catalogue: walk, parse each tensor file, find the experts. */
#include "source.h"

#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

errint_t efs_source_grow(void **array, size_t count, size_t *capacity, size_t element_bytes)
{
    size_t wanted, bytes;

    if (count < *capacity)
        return 0;
    if (__builtin_mul_overflow(*capacity, 2, &wanted) || wanted < 16)
        wanted = 16;
    if (__builtin_mul_overflow(wanted, element_bytes, &bytes))
        return -ENOMEM;
    void *grown = efs_sys_realloc(*array, bytes);
    if (!grown)
        return -ENOMEM;
    *array = grown;
    *capacity = wanted;
    return 0;
}

errint_t efs_source_read(const struct efs_source_input *in, uint64_t offset, void *buf, size_t len,
                         struct efs_error *err)
{
    int ret = -ENODATA;
    bool inside = offset <= in->bytes && len <= in->bytes - offset;

    if (inside && in->data) {
        memcpy(buf, in->data + offset, len);
        return 0;
    }
    if (inside)
        ret = efs_sys_pread_all(in->fd, buf, len, offset);
    if (ret == -ENODATA)
        return efs_fail(err, -EUCLEAN, "%s: the file ends inside %zu bytes at offset %llu", in->path, len,
                        (unsigned long long)offset);
    if (ret < 0)
        return efs_fail(err, ret, "%s: read of %zu bytes at offset %llu: %s", in->path, len, (unsigned long long)offset,
                        strerror(-ret));
    return 0;
}

errint_t efs_source_list_add(struct efs_source_list *list, const struct efs_source_entry *entry)
{
    errint_t ret = list->count >= EFS_SOURCE_MAX_TENSORS ? -E2BIG : 0;

    if (ret == 0)
        ret = efs_source_grow((void **)&list->entries, list->count, &list->capacity, sizeof(*list->entries));
    if (ret < 0) {
        free(entry->tensor.name);
        return ret;
    }
    list->entries[list->count++] = *entry;
    return 0;
}

void efs_source_list_free(struct efs_source_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->entries[i].tensor.name);
    free(list->entries);
    *list = (struct efs_source_list){0};
}

static int compare_place(const void *a, const void *b)
{
    const struct efs_source_tensor *x = &((const struct efs_source_entry *)a)->tensor;
    const struct efs_source_tensor *y = &((const struct efs_source_entry *)b)->tensor;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

void efs_source_list_sort(struct efs_source_list *list)
{
    if (list->count)
        qsort(list->entries, list->count, sizeof(*list->entries), compare_place);
}

/* Move the known tensors of a file to the end of the catalogue's. */
static errint_t take_tensors(struct efs_catalog *catalog, size_t *capacity, struct efs_source_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        if (!list->entries[i].known)
            continue;
        if (catalog->tensor_count >= EFS_SOURCE_MAX_TENSORS)
            return -E2BIG;
        errint_t ret =
            efs_source_grow((void **)&catalog->tensors, catalog->tensor_count, capacity, sizeof(*catalog->tensors));
        if (ret < 0)
            return ret;
        catalog->tensors[catalog->tensor_count++] = list->entries[i].tensor;
        list->entries[i].tensor.name = NULL;
    }
    return 0;
}

static errint_t open_input(const struct efs_catalog *catalog, uint32_t file, struct efs_source_input *in,
                           struct efs_error *err)
{
    const struct efs_source_file *f = &catalog->files[file];
    struct stat st;
    char *path = NULL;

    if (asprintf(&path, "%s/%s", catalog->root, f->path) < 0)
        return efs_fail(err, -ENOMEM, "%s: out of memory", f->path);
    /* The name may have come to mean a FIFO since the walk: opening must not wait for a writer. */
    int fd = efs_sys_open(path, O_RDONLY | O_NONBLOCK, 0);
    free(path);
    if (fd < 0)
        return efs_fail(err, fd, "%s: cannot open: %s", f->path, strerror(-fd));
    int ret = efs_sys_fstat(fd, &st);
    if (ret == 0 && (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->bytes))
        ret = -ESTALE;
    if (ret < 0) {
        efs_sys_close(fd);
        return efs_fail(err, ret, "%s: %s", f->path,
                        ret == -ESTALE ? "the file changed while it was read" : strerror(-ret));
    }
    *in = (struct efs_source_input){.fd = fd, .path = f->path, .bytes = f->bytes, .file = file};
    return 0;
}

static errint_t parse_file(struct efs_catalog *catalog, uint32_t file, size_t *capacity, struct efs_error *err)
{
    struct efs_source_input in;
    struct efs_source_list list = {0};
    bool gguf = efs_source_is_gguf(catalog->files[file].path);

    errint_t ret = open_input(catalog, file, &in, err);
    if (ret < 0)
        return ret;
    ret = gguf ? efs_source_gguf(&in, &list, err) : efs_source_safetensors(&in, &list, err);
    efs_sys_close(in.fd);
    if (ret == 0) {
        ret = take_tensors(catalog, capacity, &list);
        if (ret < 0)
            efs_fail(err, ret, "%s: %s", in.path, ret == -E2BIG ? "too many tensors" : "out of memory");
    }
    efs_source_list_free(&list);
    return ret;
}

errint_t efs_catalog_read(const char *src, struct efs_catalog *catalog, struct efs_error *err)
{
    size_t capacity = 0;

    *catalog = (struct efs_catalog){0};
    errint_t ret = efs_source_walk(src, catalog, err);
    for (uint32_t i = 0; ret == 0 && i < catalog->file_count; i++)
        if (catalog->files[i].has_tensors)
            ret = parse_file(catalog, i, &capacity, err);
    if (ret == 0)
        ret = efs_source_name_experts(catalog, err);
    if (ret < 0)
        efs_catalog_free(catalog);
    return ret;
}

void efs_catalog_free(struct efs_catalog *catalog)
{
    for (size_t i = 0; i < catalog->file_count; i++)
        free(catalog->files[i].path);
    for (size_t i = 0; i < catalog->tensor_count; i++)
        free(catalog->tensors[i].name);
    for (size_t i = 0; i < catalog->expert_count; i++)
        free(catalog->experts[i].stack);
    free(catalog->root);
    free(catalog->files);
    free(catalog->tensors);
    free(catalog->experts);
    free(catalog->family);
    *catalog = (struct efs_catalog){0};
}
