/* SPDX-License-Identifier: Apache-2.0 */
/* file_layout.c - see file_layout.h. */
#include "file_layout.h"

#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES 8u /* before a header */

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
    return unnamed
               ? efs_layout_apply_metadata((const char *)layout->header + LENGTH_BYTES,
                                           layout->header_bytes - LENGTH_BYTES, layout->tensors, layout->tensor_count)
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
