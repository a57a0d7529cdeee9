/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_layout.c - see file_layout.h: layouts of files.
 *
 * "expertfs.tensor.NAME": "ggml:Q4_0 [128, 64, 2048], slice 3" in __metadata__ of an expert's file is the type and
 * shape of a tensor that safetensors can only describe as bytes. A slice is an index in the first dimension. A note
 * that does not match the tensor's size is ignored.
 */
#include "file_layout.h"

#include "dtype.h"
#include "sys.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES 8u /* before a header */
#define PREFIX "expertfs.tensor."

/* Parses a list such as "[3, 4]" and returns how many numbers it has; 0: not such a list, or more than 8. *end: the
 * text after it. */
static uint32_t note_numbers(const char *text, uint64_t shape[8], const char **end)
{
    json_error_t read;
    json_t *list = json_loads(text, JSON_DISABLE_EOF_CHECK, &read);
    uint32_t dims = json_array_size(list) <= 8 ? (uint32_t)json_array_size(list) : 0;
    for (uint32_t i = 0; i < dims; i++) {
        const json_t *number = json_array_get(list, i);
        shape[i] = (uint64_t)json_integer_value(number);
        if (!json_is_integer(number) || json_integer_value(number) < 0)
            dims = 0;
    }
    *end = text + (list ? read.position : 0);
    json_decref(list);
    return dims;
}

static void note_apply(struct efs_tensor *t, const char *note)
{
    uint64_t shape[8], bytes;
    const char *space = strchr(note, ' '), *behind;
    enum efs_dtype dtype = space ? efs_dtype_from_name(note, (size_t)(space - note)) : EFS_DTYPE_NONE;
    uint32_t dims = dtype >= EFS_DTYPE_GGML ? note_numbers(space + 1, shape, &behind) : 0;
    if (dims == 0)
        return;
    uint32_t slice = strncmp(behind, ", slice ", 8) == 0;
    if (dims - slice == 0 || efs_dtype_tensor_bytes(dtype, dims - slice, shape + slice, &bytes) < 0 ||
        bytes != t->bytes)
        return;
    t->dtype = dtype;
    t->dims = dims - slice;
    memcpy(t->shape, shape + slice, t->dims * sizeof(shape[0]));
}

/* Reads from __metadata__ the type and shape of tensors that safetensors has no dtype for. The header was checked.
 * -ENOMEM. */
static errint_t apply_metadata(const char *header, size_t bytes, struct efs_tensor *tensors, uint32_t count)
{
    json_error_t error;
    json_t *root = json_loadb(header, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return -ENOMEM; /* it was parsed before, so memory is short */
    const json_t *metadata = json_object_get(root, "__metadata__");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        const char *note = json_string_value(value);
        if (!note || strncmp(key, PREFIX, strlen(PREFIX)) != 0)
            continue;
        for (uint32_t i = 0; i < count; i++)
            if (tensors[i].dtype == EFS_DTYPE_U8 && tensors[i].dims == 1 &&
                strcmp(tensors[i].name, key + strlen(PREFIX)) == 0)
                note_apply(&tensors[i], note);
    }
    json_decref(root);
    return 0;
}

static errint_t layout_fill_tensors(struct efs_file_layout *layout)
{
    bool unnamed = false;
    for (uint32_t i = 0; i < layout->tensor_count; i++) {
        const struct efs_source_entry *e = &layout->list.entries[i];
        struct efs_tensor *t = &layout->tensors[i];
        bool known = e->known && !e->tensor.type;
        *t = (struct efs_tensor){
            .name = e->tensor.name, .dtype = known ? e->tensor.dtype : EFS_DTYPE_NONE, .bytes = e->tensor.bytes};
        if (known) {
            t->dims = e->tensor.dims;
            memcpy(t->shape, e->tensor.shape, t->dims * sizeof(t->shape[0]));
        }
        unnamed = unnamed || (t->dtype == EFS_DTYPE_U8 && t->dims == 1);
    }
    return unnamed ? apply_metadata((const char *)layout->header + LENGTH_BYTES, layout->header_bytes - LENGTH_BYTES,
                                    layout->tensors, layout->tensor_count)
                   : 0;
}

static errint_t layout_fill(struct efs_file_layout *layout, const uint8_t *data, size_t bytes)
{
    const struct efs_source_input in = {.fd = -1, .data = data, .path = "", .bytes = bytes};
    uint64_t length;
    errint_t rc = efs_source_safetensors(&in, &layout->list, NULL);
    if (rc < 0)
        return rc;
    if (layout->list.count > UINT32_MAX)
        return -EUCLEAN;
    memcpy(&length, data,
           sizeof(length)); /* checked by efs_source_safetensors(), but the file may have changed since */
    if (length > bytes - LENGTH_BYTES)
        return -EUCLEAN;
    layout->file_bytes = bytes;
    layout->header_bytes = LENGTH_BYTES + (size_t)length;
    layout->tensor_count = (uint32_t)layout->list.count;
    layout->tensors = efs_sys_calloc(layout->list.count + 1, sizeof(*layout->tensors));
    layout->header = efs_sys_malloc(layout->header_bytes);
    if (!layout->tensors || !layout->header)
        return -ENOMEM;
    memcpy(layout->header, data, layout->header_bytes);
    return layout_fill_tensors(layout);
}

errint_t efs_layout_read(const uint8_t *data, size_t bytes, struct efs_file_layout **out)
{
    struct efs_file_layout *layout = efs_sys_calloc(1, sizeof(*layout));
    errint_t rc = layout ? layout_fill(layout, data, bytes) : -ENOMEM;
    if (rc < 0)
        efs_layout_free(layout);
    else
        *out = layout;
    return rc;
}

void efs_layout_free(struct efs_file_layout *layout)
{
    while (layout) {
        struct efs_file_layout *older = layout->older;
        efs_source_list_free(&layout->list);
        free(layout->shards);
        free(layout->tensors);
        free(layout->header);
        free(layout);
        layout = older;
    }
}

bool efs_layout_matches(const struct efs_file_layout *layout, const uint8_t *data)
{
    return memcmp(layout->header, data, layout->header_bytes) == 0;
}

struct efs_tensor *efs_layout_tensors(const struct efs_file_layout *layout, const uint8_t *data)
{
    struct efs_tensor *tensors = efs_sys_calloc(layout->tensor_count + 1, sizeof(*tensors));
    for (uint32_t i = 0; tensors && i < layout->tensor_count; i++) {
        tensors[i] = layout->tensors[i];
        tensors[i].data = data ? data + layout->list.entries[i].tensor.offset : NULL;
    }
    return tensors;
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

void efs_mapped_free(struct efs_mapped_file *file)
{
    free(file->tensors);
    free(file->shards);
    efs_layout_free(file->new_layout);
    *file = (struct efs_mapped_file){.data = NULL};
}
