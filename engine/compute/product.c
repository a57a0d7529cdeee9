/* SPDX-License-Identifier: Apache-2.0 */
/* product.c - efs_product(): rows of one matrix of an expert times vectors, on the caller's thread. */
#include "ffn.h"

#include <errno.h>
#include <string.h>

_Static_assert(EFS_VECTORS_MAX == EFS_TOKENS_MAX, "what the header promises is what the kernels take");

size_t efs_vectors_bytes(uint32_t cols, uint32_t count)
{
    return efs_input_bytes(cols, count);
}

errint_t efs_vectors_prepare(enum efs_activation activation, const float *x, size_t x_stride, uint32_t cols,
                             uint32_t count, void *memory)
{
    static const enum efs_input_type types[] = {EFS_INPUT_F32, EFS_INPUT_F32_DOT, EFS_INPUT_F32_TO_F16};
    if ((unsigned)activation > EFS_ACTIVATION_F16)
        return -EINVAL;
    return efs_input_prepare(types[activation], x, x_stride, cols, count, memory);
}

/* Layout of scratch: the kernel's scratch, the matrix's shards, exponents of one shard, each aligned to 64 bytes. */
struct product_scratch {
    size_t shards, exponents, bytes; /* offsets and the total; bytes == 0: not a valid matrix */
};

static struct product_scratch product_layout(const struct efs_tensor *t)
{
    struct product_scratch s = {0};
    if (t->dims != 2 || t->shape[1] == 0 || t->shape[1] > EFS_COLS_MAX)
        return s;
    uint32_t cols = (uint32_t)t->shape[1];
    size_t one = efs_matvec_scratch_bytes(cols, 1), many = efs_matvec_scratch_bytes(cols, EFS_TOKENS_MAX);
    s.shards = ((one > many ? one : many) + 63) / 64 * 64;
    s.exponents = s.shards + ((size_t)t->shard_count * sizeof(struct efs_matrix_shard) + 63) / 64 * 64;
    s.bytes = s.exponents + (t->data ? 64 : t->shard_elements);
    return s;
}

size_t efs_product_scratch_bytes(const struct efs_tensor *matrix)
{
    return product_layout(matrix).bytes;
}

errint_t efs_product(const struct efs_tensor *matrix, const void *vectors, uint32_t row_begin, uint32_t row_end,
                     float *y, size_t y_stride, void *scratch, struct efs_error *err)
{
    struct product_scratch layout = product_layout(matrix);
    struct efs_matrix_shard *shards = (void *)((uint8_t *)scratch + layout.shards);
    struct efs_ffn_exponents exponents = {.shards = matrix->shards, .e = (uint8_t *)scratch + layout.exponents};
    struct efs_matrix w;
    if (err)
        err->text[0] = '\0';
    if (layout.bytes == 0 || !scratch)
        return efs_fail(err, -EINVAL, "%s: no matrix, or no memory for its product", matrix->name);
    errint_t rc = efs_ffn_matrix(&w, shards, matrix, err);
    if (rc < 0)
        return rc;
    exponents.format = w.f16 ? EFS_FORMAT_F16 : EFS_FORMAT_BF16;
    w.exponents = efs_ffn_exponents;
    w.user = &exponents;
    for (uint32_t i = 0; i < matrix->shard_count && !w.plain && !exponents.scratch; i++)
        if (shards[i].form == EFS_E_CALLBACK && efs_codec_scratch_new(matrix->shard_elements, &exponents.scratch) < 0)
            return efs_fail(err, -ENOMEM, "%s: no memory to decode a shard", matrix->name);
    rc = efs_matvec(&w, vectors, row_begin, row_end, y, y_stride, scratch);
    efs_codec_scratch_free(exponents.scratch);
    return rc < 0 ? efs_fail(err, rc, "%s: its product failed: %s", matrix->name, strerror(-rc)) : 0;
}
