/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_metadata.c - "expertfs.tensor.NAME": "ggml:Q4_0 [128, 64, 2048], slice 3" in __metadata__ of an expert's file:
 * the type and shape of a tensor that safetensors can only describe as bytes. A slice is an index in the first
 * dimension. A note that does not match the tensor's size is ignored.
 */
#include "file_layout.h"

#include "dtype.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

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

errint_t efs_layout_apply_metadata(const char *header, size_t bytes, struct efs_tensor *tensors, uint32_t count)
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
