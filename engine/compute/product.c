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

#define TRANSPOSED_ROWS 32u /* copied at a time */

/* Layout of scratch: the kernel's scratch, the matrix's shards or rows of a transposed one, exponents of one shard,
 * each aligned to 64 bytes. */
struct product_scratch {
    size_t shards, exponents, bytes; /* offsets and the total; bytes == 0: not a valid matrix */
};

static struct product_scratch product_layout(const struct efs_tensor *t, bool transposed)
{
    struct product_scratch s = {0};
    const uint64_t vector = t->dims == 2 ? t->shape[transposed ? 0 : 1] : 0;
    if (vector == 0 || vector > EFS_COLS_MAX)
        return s;
    uint32_t cols = (uint32_t)vector;
    size_t one = efs_matvec_scratch_bytes(cols, 1), many = efs_matvec_scratch_bytes(cols, EFS_TOKENS_MAX);
    s.shards = ((one > many ? one : many) + 63) / 64 * 64;
    const size_t shards = (size_t)t->shard_count * sizeof(struct efs_matrix_shard);
    const size_t rows = transposed ? 2 * (size_t)cols * TRANSPOSED_ROWS : 0;
    s.exponents = s.shards + ((shards > rows ? shards : rows) + 63) / 64 * 64;
    s.bytes = s.exponents + (t->data ? 64 : t->shard_elements);
    return s;
}

size_t efs_product_scratch_bytes(const struct efs_tensor *matrix, bool transposed)
{
    return product_layout(matrix, transposed).bytes;
}

static errint_t product_transposed(const struct efs_matrix *w, const void *vectors, uint32_t begin, uint32_t end,
                                   float *y, size_t y_stride, void *scratch, void *rows)
{
    errint_t rc = begin <= end && end <= w->cols ? 0 : -EINVAL;
    for (uint32_t row = begin; row < end && rc == 0; row += TRANSPOSED_ROWS) {
        const uint32_t count = end - row < TRANSPOSED_ROWS ? end - row : TRANSPOSED_ROWS;
        const struct efs_matrix some = efs_ffn_transposed_rows(w, row, 1, count, rows);
        rc = efs_matvec(&some, vectors, 0, count, y + row, y_stride, scratch);
    }
    return rc;
}

errint_t efs_product(const struct efs_tensor *matrix, bool transposed, const void *vectors, uint32_t row_begin,
                     uint32_t row_end, float *y, size_t y_stride, void *scratch, struct efs_error *err)
{
    struct product_scratch layout = product_layout(matrix, transposed);
    struct efs_matrix_shard *shards = (void *)((uint8_t *)scratch + layout.shards);
    struct efs_ffn_exponents exponents = {.shards = matrix->shards, .e = (uint8_t *)scratch + layout.exponents};
    struct efs_matrix w;
    if (err)
        err->text[0] = '\0';
    if (layout.bytes == 0 || !scratch)
        return efs_fail(err, -EINVAL, "%s: no matrix, or no memory for its product", matrix->name);
    if (transposed && !matrix->data)
        return efs_fail(err, -EOPNOTSUPP, "%s: transposed, which only the full form serves", matrix->name);
    errint_t rc = efs_ffn_matrix(&w, shards, matrix, err);
    if (rc < 0)
        return rc;
    exponents.format = w.f16 ? EFS_FORMAT_F16 : EFS_FORMAT_BF16;
    w.exponents = efs_ffn_exponents;
    w.user = &exponents;
    for (uint32_t i = 0; i < matrix->shard_count && !w.plain && !exponents.scratch; i++)
        if (shards[i].form == EFS_E_CALLBACK && efs_codec_scratch_new(matrix->shard_elements, &exponents.scratch) < 0)
            return efs_fail(err, -ENOMEM, "%s: no memory to decode a shard", matrix->name);
    rc = transposed ? product_transposed(&w, vectors, row_begin, row_end, y, y_stride, scratch, shards)
                    : efs_matvec(&w, vectors, row_begin, row_end, y, y_stride, scratch);
    efs_codec_scratch_free(exponents.scratch);
    return rc < 0 ? efs_fail(err, rc, "%s: its product failed: %s", matrix->name, strerror(-rc)) : 0;
}
