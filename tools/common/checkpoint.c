/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.c - see checkpoint.h. */
#include "checkpoint.h"

#include "catalog.h"
#include "model_config.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* -ENOMEM: more kinds than there is room for, which no checkpoint has. */
static struct efs_pack_row *row_of(struct tools_checkpoint *c, const char *tensor_class, const char *dtype)
{
    for (unsigned i = 0; i < c->row_count; i++)
        if (strcmp(c->rows[i].tensor_class, tensor_class) == 0 && strcmp(c->rows[i].dtype, dtype) == 0)
            return &c->rows[i];
    if (c->row_count == EFS_PACK_ROWS)
        return &c->rows[EFS_PACK_ROWS - 1];
    struct efs_pack_row *row = &c->rows[c->row_count++];
    snprintf(row->tensor_class, sizeof(row->tensor_class), "%s", tensor_class);
    snprintf(row->dtype, sizeof(row->dtype), "%s", dtype);
    return row;
}

static void count_experts(struct tools_checkpoint *c, const struct efs_catalog *catalog)
{
    uint32_t in_layer = 0;
    for (size_t e = 0; e < catalog->expert_count; e++) { /* by stack, layer, number */
        const struct efs_source_expert *now = &catalog->experts[e], *before = e ? now - 1 : NULL;
        if (!before || before->layer != now->layer || strcmp(before->stack, now->stack) != 0) {
            c->layers++;
            in_layer = 0;
        }
        if (++in_layer > c->experts)
            c->experts = in_layer;
    }
}

static bool is_model(const struct efs_catalog *catalog, const struct efs_source_file *file)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", catalog->root, file->path);
    return tools_gguf_file_is_model(path);
}

errint_t tools_checkpoint_read(const char *path, struct tools_checkpoint *checkpoint, struct efs_error *err)
{
    struct efs_catalog catalog;
    memset(checkpoint, 0, sizeof(*checkpoint));
    errint_t rc = efs_catalog_read(path, &catalog, err);
    if (rc < 0)
        return rc;
    snprintf(checkpoint->family, sizeof(checkpoint->family), "%s", catalog.family ? catalog.family : "?");
    for (size_t f = 0; f < catalog.file_count; f++) {
        const struct efs_source_file *file = &catalog.files[f];
        checkpoint->bytes += file->bytes;
        if (strcmp(file->path, "config.json") == 0)
            snprintf(checkpoint->config, sizeof(checkpoint->config), "%s/%s", catalog.root, file->path);
        if (file->gguf && !file->apart && !checkpoint->gguf[0] && is_model(&catalog, file))
            snprintf(checkpoint->gguf, sizeof(checkpoint->gguf), "%s/%s", catalog.root, file->path);
    }
    for (size_t t = 0; t < catalog.tensor_count; t++) {
        const struct efs_source_tensor *tensor = &catalog.tensors[t];
        struct efs_pack_row *row = row_of(checkpoint, tensor->tensor_class == EFS_CLASS_DENSE ? "dense" : "expert",
                                          efs_dtype_name(tensor->dtype));
        row->tensors++;
        row->raw_bytes += tensor->bytes;
    }
    count_experts(checkpoint, &catalog);
    efs_catalog_free(&catalog);
    return 0;
}
