/*
 * matvec_input.c - lays out vectors for products, see matvec_ops.h.
 */
#include "matvec_ops.h"

#include <errno.h>
#include <string.h>

#define INPUT_MAGIC 0x6e693031u

/* Floats from token to token: a gap keeps the tokens of wide inputs from meeting in the same sets of the cache. */
static size_t token_stride(uint32_t cols)
{
    return ((size_t)cols + EFS_GROUP - 1) / EFS_GROUP * EFS_GROUP + EFS_GROUP;
}

size_t efs_input_bytes(uint32_t cols, uint32_t tokens)
{
    if (cols == 0 || cols > EFS_COLS_MAX || tokens == 0 || tokens > EFS_TOKENS_MAX)
        return 0;
    return sizeof(struct efs_input) + tokens * token_stride(cols) * sizeof(float);
}

static float number(enum efs_input_type type, const void *x, size_t i)
{
    float f;
    uint32_t bits;
    uint16_t half;

    if (type == EFS_INPUT_F32) {
        memcpy(&f, (const uint8_t *)x + 4 * i, 4);
    } else {
        memcpy(&half, (const uint8_t *)x + 2 * i, 2);
        bits = (uint32_t)half << 16;
        memcpy(&f, &bits, 4);
    }
    return f;
}

/* Floats first..first + n - 1 of x, n <= EFS_GROUP, as a group. */
static void put_group(enum efs_input_type type, const void *x, size_t first, size_t n, float *group)
{
    for (unsigned at = 0; at < EFS_GROUP; at++) {
        unsigned c = at % 16 / 4 * 16 + at / 32 * 8 + at % 4 * 2 + at / 16 % 2;
        group[at] = c < n ? number(type, x, first + c) : 0;
    }
}

int efs_input_prepare(enum efs_input_type type, const void *x, size_t x_stride, uint32_t cols, uint32_t tokens,
                      void *memory)
{
    struct efs_input *input = memory;

    if (efs_input_bytes(cols, tokens) == 0 || (type != EFS_INPUT_F32 && type != EFS_INPUT_BF16) || x == NULL ||
        memory == NULL || (uintptr_t)memory % EFS_MATVEC_ALIGN != 0)
        return -EINVAL;
    *input = (struct efs_input){.magic = INPUT_MAGIC, .cols = cols, .tokens = tokens, .stride = token_stride(cols)};
    for (size_t t = 0; t < tokens; t++) {
        for (size_t c = 0; c < cols; c += EFS_GROUP)
            put_group(type, x, t * x_stride + c, cols - c < EFS_GROUP ? cols - c : EFS_GROUP,
                      input->x + t * input->stride + c);
    }
    return 0;
}

const struct efs_input *efs_input_checked(const void *memory, uint32_t cols)
{
    const struct efs_input *input = memory;

    if (memory == NULL || (uintptr_t)memory % EFS_MATVEC_ALIGN != 0 || input->magic != INPUT_MAGIC ||
        input->cols != cols || input->tokens == 0 || input->tokens > EFS_TOKENS_MAX)
        return NULL;
    return input;
}
