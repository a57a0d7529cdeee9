/* SPDX-License-Identifier: Apache-2.0 */
/* source_list.c - see source.h: reads ranges of a file; lists of tensors. */
#include "source.h"

#include "sys.h"

#include <errno.h>
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
    bool inside = offset <= in->bytes && len <= in->bytes - offset;

    if (inside && in->data) {
        memcpy(buf, in->data + offset, len);
        return 0;
    }
    if (inside && in->reader)
        return in->reader->read(in->reader->arg, in->file, offset, buf, len, err);
    int ret = inside ? efs_sys_pread_all(in->fd, buf, len, offset) : -ENODATA;
    if (ret == -ENODATA)
        return efs_fail(err, inside ? -ESTALE : -EUCLEAN, "%s: the file ends inside %zu bytes at offset %llu", in->path,
                        len, (unsigned long long)offset);
    if (ret < 0)
        return efs_fail(err, ret, "%s: read of %zu bytes at offset %llu: %s", in->path, len, (unsigned long long)offset,
                        strerror(-ret));
    return 0;
}

void efs_source_tensor_free(struct efs_source_tensor *tensor)
{
    free(tensor->name);
    free(tensor->type);
}

errint_t efs_source_list_room(const struct efs_source_list *list, uint64_t more, const char *path,
                              struct efs_error *err)
{
    uint64_t tensors = list->before + list->count + more;

    if (tensors <= EFS_SOURCE_MAX_TENSORS)
        return 0;
    return efs_fail(err, -E2BIG, "%s: %llu tensors%s; %u are the most", path, (unsigned long long)tensors,
                    list->before ? ", with those of the files before it" : "", EFS_SOURCE_MAX_TENSORS);
}

errint_t efs_source_list_add(struct efs_source_list *list, const struct efs_source_entry *entry)
{
    errint_t ret = efs_source_grow((void **)&list->entries, list->count, &list->capacity, sizeof(*list->entries));

    if (ret < 0) {
        free(entry->tensor.name);
        free(entry->tensor.type);
        return ret;
    }
    list->entries[list->count++] = *entry;
    return 0;
}

void efs_source_list_free(struct efs_source_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        efs_source_tensor_free(&list->entries[i].tensor);
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
