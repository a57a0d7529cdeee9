/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weight.c - finds the tensors of a model that are experts of the source: by name (blk.3.ffn_up_exps.weight is layer
 * 3), type and shape, and by their bytes (identity.c).
 */
#include "plugin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The layer in a tensor's name; -1: not the name of a tensor of experts. */
static int layer_of(const char *name)
{
    unsigned layer;
    int end = 0;
    if (sscanf(name, "blk.%5u.ffn_%n", &layer, &end) < 1 || end == 0)
        return -1;
    static const char *const parts[] = {"gate_exps.weight", "up_exps.weight", "gate_up_exps.weight",
                                        "down_exps.weight"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcmp(name + end, parts[i]) == 0)
            return (int)layer;
    return -1;
}

const struct efs_tensor *efsg_weight_matrix(const struct efsg_weight *weight, const struct efs_tensor *tensors,
                                            uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(tensors[i].name, weight->name) == 0)
            return tensors[i].dtype == weight->dtype && tensors[i].dims == 2 && tensors[i].shape[0] == weight->rows &&
                           tensors[i].shape[1] == weight->cols &&
                           tensors[i].bytes == (uint64_t)weight->rows * weight->row_bytes
                       ? &tensors[i]
                       : NULL;
    return NULL;
}

/* Checks that efs_product() accepts the matrix in the source's form, by the product of its first row with zeros. */
static errint_t library_multiplies(const struct efs_tensor *matrix, enum efs_activation activation,
                                   struct efs_error *err)
{
    uint32_t cols = (uint32_t)matrix->shape[1];
    size_t vector_bytes = (efs_vectors_bytes(cols, 1) + 63) / 64 * 64;
    size_t scratch_bytes = (efs_product_scratch_bytes(matrix, false) + 63) / 64 * 64;
    float *x = calloc(cols, sizeof(float)), y = 0;
    uint8_t *memory = vector_bytes && scratch_bytes ? aligned_alloc(64, vector_bytes + scratch_bytes) : NULL;
    errint_t rc = x && memory ? efs_vectors_prepare(activation, x, cols, cols, 1, memory) : -ENOMEM;
    if (rc == 0)
        rc = efs_product(matrix, false, memory, 0, 1, &y, 1, memory + vector_bytes, err);
    free(x);
    free(memory);
    return rc;
}

static bool is_coded(const struct efs_tensor *matrix)
{
    uint32_t i = 0;
    while (i < matrix->shard_count && matrix->shards[i].codec == 0)
        i++;
    return i < matrix->shard_count;
}

/* Chooses the kernels: the library's for coded floats in a form that they accept, else the host's, which add up F16 in
 * another order. */
static errint_t choose_kernel(struct efsg_weight *weight, const struct efs_tensor *matrix, struct efs_error *err)
{
    const enum ggml_type type = weight->type;
    const bool ours = (type == GGML_TYPE_BF16 || type == GGML_TYPE_F16) && is_coded(matrix);
    errint_t rc = ours ? library_multiplies(matrix, weight->activation, err) : -EOPNOTSUPP;
    if (rc != -EOPNOTSUPP)
        return rc;
    return efsg_host_kernels(type, &weight->host)
               ? 0
               : efs_fail(err, rc, "this ggml has no kernels for %s", efsg_host.type_name(type));
}

/* Checks that the tensor's bytes are the source's, and the form of the layer's last expert. Logs a warning on failure.
 */
static bool weight_checked(struct efsg_weight *weight, const struct efsg_file *file, const struct ggml_tensor *tensor)
{
    struct efs_need need = {.expert = weight->experts - 1, .tokens = 1};
    struct efs_client_request *request = NULL;
    struct efs_error err = {""};
    const struct efs_tensor *tensors, *matrix = NULL;
    uint32_t count;
    errint_t rc = efsg_source_same_experts(weight->source, file, tensor, weight->layer, &err);
    if (rc == 0)
        rc = efsg_source_begin(weight->source, weight->layer, &need, 1, false, &request, &err);
    if (rc == 0)
        rc = efs_client_wait(request);
    if (rc == 0)
        rc = efs_client_tensors(request, 0, &tensors, &count);
    if (rc == 0 && !(matrix = efsg_weight_matrix(weight, tensors, count)))
        rc = efs_fail(&err, -ENOENT, "another shape");
    if (rc == 0)
        rc = choose_kernel(weight, matrix, &err);
    efs_client_release(request);
    if (rc < 0)
        efsg_log(GGML_LOG_LEVEL_WARN, "%s is left to the processor: %s", weight->name,
                 err.text[0] ? err.text : strerror(-rc));
    return rc == 0;
}

bool efsg_weight_type(enum ggml_type type)
{
    struct efsg_kernels host;
    return type == GGML_TYPE_BF16 || type == GGML_TYPE_F16 || efsg_host_kernels(type, &host);
}

bool efsg_weight_same_input(const struct efsg_weight *a, const struct efsg_weight *b)
{
    if (!a->host.vec_dot || !b->host.vec_dot)
        return a->host.vec_dot == b->host.vec_dot && a->activation == b->activation;
    return a->host.vector_type == b->host.vector_type;
}

static enum efs_dtype dtype_of(enum ggml_type type)
{
    switch (type) {
    case GGML_TYPE_F32:
        return EFS_DTYPE_F32;
    case GGML_TYPE_F16:
        return EFS_DTYPE_F16;
    case GGML_TYPE_BF16:
        return EFS_DTYPE_BF16;
    default:
        return (enum efs_dtype)(EFS_DTYPE_GGML + (unsigned)type);
    }
}

struct efsg_weight *efsg_weight_new(struct efsg_source *source, const struct efsg_file *file,
                                    const struct ggml_tensor *tensor)
{
    int layer = layer_of(tensor->name);
    if (layer < 0 || !efsg_weight_type(tensor->type) || tensor->ne[3] != 1 || tensor->ne[0] < 1 || tensor->ne[1] < 1 ||
        tensor->ne[2] < 1 || tensor->ne[0] > INT32_MAX || tensor->ne[1] > UINT32_MAX || tensor->ne[2] > UINT32_MAX)
        return NULL;
    struct efsg_weight *weight = calloc(1, sizeof(*weight));
    if (!weight)
        return NULL;
    weight->source = source;
    weight->activation = tensor->type == GGML_TYPE_F16 ? EFS_ACTIVATION_F16 : EFS_ACTIVATION_BF16;
    weight->type = tensor->type;
    weight->dtype = dtype_of(tensor->type);
    weight->row_bytes = tensor->nb[1];
    weight->first = !strstr(tensor->name, ".ffn_down_");
    weight->layer = (uint32_t)layer;
    weight->cols = (uint32_t)tensor->ne[0];
    weight->rows = (uint32_t)tensor->ne[1];
    weight->experts = (uint32_t)tensor->ne[2];
    snprintf(weight->name, sizeof(weight->name), "%s", tensor->name);
    if (weight_checked(weight, file, tensor))
        return weight;
    free(weight);
    return NULL;
}
