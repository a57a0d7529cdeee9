/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.c - see model.h. */
#include "model.h"

const char *mk_dtype_name(enum mk_dtype dtype)
{
    static const char *const names[MK_DTYPES] = {"BF16", "F16", "F32", "F8_E4M3"};
    return names[dtype];
}

const char *mk_dtype_torch(enum mk_dtype dtype)
{
    static const char *const names[MK_DTYPES] = {"bfloat16", "float16", "float32", "bfloat16"};
    return names[dtype];
}

uint32_t mk_dtype_bytes(enum mk_dtype dtype)
{
    static const uint32_t bytes[MK_DTYPES] = {2, 2, 4, 1};
    return bytes[dtype];
}
