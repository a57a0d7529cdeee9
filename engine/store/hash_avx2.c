/* SPDX-License-Identifier: Apache-2.0 */
/* hash_avx2.c - XXH3_64 compiled for AVX2; the file's name asks the Makefile for the flags. */
#include "hash.h"

#ifdef __AVX2__
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t efs_hash_avx2(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}
#else
/* Not this processor's family: nothing to build. */
typedef int efs_hash_avx2_absent; /* ISO C wants a declaration */
#endif
