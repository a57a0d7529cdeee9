/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.c - the table of element types. Sizes: the safetensors format, and ggml's block structures. */
#include "dtype.h"

#include <errno.h>
#include <string.h>

static const struct efs_dtype_info plain[EFS_DTYPE_COUNT] = {
    [EFS_DTYPE_BOOL] = {"BOOL", 1, 8},
    [EFS_DTYPE_U8] = {"U8", 1, 8},
    [EFS_DTYPE_I8] = {"I8", 1, 8},
    [EFS_DTYPE_U16] = {"U16", 1, 16},
    [EFS_DTYPE_I16] = {"I16", 1, 16},
    [EFS_DTYPE_F16] = {"F16", 1, 16},
    [EFS_DTYPE_BF16] = {"BF16", 1, 16},
    [EFS_DTYPE_U32] = {"U32", 1, 32},
    [EFS_DTYPE_I32] = {"I32", 1, 32},
    [EFS_DTYPE_F32] = {"F32", 1, 32},
    [EFS_DTYPE_U64] = {"U64", 1, 64},
    [EFS_DTYPE_I64] = {"I64", 1, 64},
    [EFS_DTYPE_F64] = {"F64", 1, 64},
    [EFS_DTYPE_C64] = {"C64", 1, 64},
    [EFS_DTYPE_F8_E4M3] = {"F8_E4M3", 1, 8},
    [EFS_DTYPE_F8_E5M2] = {"F8_E5M2", 1, 8},
    [EFS_DTYPE_F8_E8M0] = {"F8_E8M0", 1, 8},
    [EFS_DTYPE_F4] = {"F4", 1, 4},
    [EFS_DTYPE_F6_E2M3] = {"F6_E2M3", 1, 6},
    [EFS_DTYPE_F6_E3M2] = {"F6_E3M2", 1, 6},
    [EFS_DTYPE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 1, 8},
    [EFS_DTYPE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 1, 8},
};

/*
 * By ggml's number. Gaps: withdrawn types, plain ones (below), and Q8_1 (9), which is no file type and whose block has
 * 36 bytes in ggml but 40 in the gguf package: its bytes are stored unparsed, as those of unknown types.
 */
#define BLOCK(name, elements, bytes)                                                                                   \
    {                                                                                                                  \
        "ggml:" name, elements, (bytes)*8                                                                              \
    }
static const struct efs_dtype_info ggml[] = {
    [2] = BLOCK("Q4_0", 32, 18),      [3] = BLOCK("Q4_1", 32, 20),      [6] = BLOCK("Q5_0", 32, 22),
    [7] = BLOCK("Q5_1", 32, 24),      [8] = BLOCK("Q8_0", 32, 34),      [10] = BLOCK("Q2_K", 256, 84),
    [11] = BLOCK("Q3_K", 256, 110),   [12] = BLOCK("Q4_K", 256, 144),   [13] = BLOCK("Q5_K", 256, 176),
    [14] = BLOCK("Q6_K", 256, 210),   [15] = BLOCK("Q8_K", 256, 292),   [16] = BLOCK("IQ2_XXS", 256, 66),
    [17] = BLOCK("IQ2_XS", 256, 74),  [18] = BLOCK("IQ3_XXS", 256, 98), [19] = BLOCK("IQ1_S", 256, 50),
    [20] = BLOCK("IQ4_NL", 32, 18),   [21] = BLOCK("IQ3_S", 256, 110),  [22] = BLOCK("IQ2_S", 256, 82),
    [23] = BLOCK("IQ4_XS", 256, 136), [29] = BLOCK("IQ1_M", 256, 56),   [34] = BLOCK("TQ1_0", 256, 54),
    [35] = BLOCK("TQ2_0", 256, 66),   [39] = BLOCK("MXFP4", 32, 17),    [40] = BLOCK("NVFP4", 64, 36),
    [41] = BLOCK("Q1_0", 128, 18),    [42] = BLOCK("Q2_0", 64, 18),
};

static const struct {
    uint32_t type;
    enum efs_dtype dtype;
} ggml_plain[] = {
    {0, EFS_DTYPE_F32},  {1, EFS_DTYPE_F16},  {24, EFS_DTYPE_I8},  {25, EFS_DTYPE_I16},
    {26, EFS_DTYPE_I32}, {27, EFS_DTYPE_I64}, {28, EFS_DTYPE_F64}, {30, EFS_DTYPE_BF16},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

const struct efs_dtype_info *efs_dtype_info(enum efs_dtype dtype)
{
    unsigned number = (unsigned)dtype;
    const struct efs_dtype_info *info = NULL;

    if (number < EFS_DTYPE_COUNT)
        info = &plain[number];
    else if (number >= EFS_DTYPE_GGML && number - EFS_DTYPE_GGML < COUNT(ggml))
        info = &ggml[number - EFS_DTYPE_GGML];
    return info && info->name ? info : NULL;
}

const char *efs_dtype_name(enum efs_dtype dtype)
{
    const struct efs_dtype_info *info = efs_dtype_info(dtype);

    if (info)
        return info->name;
    return (unsigned)dtype >= EFS_DTYPE_GGML ? "ggml:unknown" : "unknown";
}

enum efs_dtype efs_dtype_from_safetensors(const char *name)
{
    for (unsigned i = 0; i < EFS_DTYPE_COUNT; i++)
        if (plain[i].name && strcmp(plain[i].name, name) == 0)
            return (enum efs_dtype)i;
    return EFS_DTYPE_NONE;
}

enum efs_dtype efs_dtype_from_name(const char *name, size_t bytes)
{
    for (unsigned i = 0; i < EFS_DTYPE_COUNT + COUNT(ggml); i++) {
        const enum efs_dtype dtype = i < EFS_DTYPE_COUNT ? i : EFS_DTYPE_GGML + i - EFS_DTYPE_COUNT;
        const struct efs_dtype_info *info = efs_dtype_info(dtype);
        if (info && strlen(info->name) == bytes && memcmp(info->name, name, bytes) == 0)
            return dtype;
    }
    return EFS_DTYPE_NONE;
}

enum efs_dtype efs_dtype_from_ggml(uint32_t type)
{
    for (size_t i = 0; i < COUNT(ggml_plain); i++)
        if (ggml_plain[i].type == type)
            return ggml_plain[i].dtype;
    if (type < COUNT(ggml) && ggml[type].name)
        return (enum efs_dtype)(EFS_DTYPE_GGML + type);
    return EFS_DTYPE_NONE;
}

errint_t efs_dtype_tensor_bytes(enum efs_dtype dtype, uint32_t dims, const uint64_t *shape, uint64_t *bytes)
{
    const struct efs_dtype_info *info = efs_dtype_info(dtype);
    uint64_t elements = 1, bits;

    if (!info)
        return -EUCLEAN;
    for (uint32_t i = 0; i < dims; i++)
        if (__builtin_mul_overflow(elements, shape[i], &elements))
            return -EOVERFLOW;
    uint64_t row = dims ? shape[dims - 1] : 1;
    if (row % info->block_elements)
        return -EUCLEAN;
    if (__builtin_mul_overflow(elements / info->block_elements, info->block_bits, &bits))
        return -EOVERFLOW;
    if (bits % 8)
        return -EUCLEAN;
    *bytes = bits / 8;
    return 0;
}
