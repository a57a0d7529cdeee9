/* SPDX-License-Identifier: Apache-2.0 */
/* measure.c - see measure.h. */
#include "measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double tools_uniform(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return ((double)((z ^ (z >> 31)) >> 11) + 0.5) / 9007199254740992.0;
}

double tools_normal(uint64_t *state)
{
    double radius = sqrt(-2 * log(tools_uniform(state)));
    return radius * cos(6.283185307179586 * tools_uniform(state));
}

uint16_t tools_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static int compare_values(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double tools_median(double *values, unsigned n)
{
    qsort(values, n, sizeof(*values), compare_values);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) /* which is not there yet when one is chosen */
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#endif
uint64_t
tools_read_words(const uint64_t *words, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum ^= words[i];
    return sum;
}
