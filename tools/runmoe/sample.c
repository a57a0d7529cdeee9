/* SPDX-License-Identifier: Apache-2.0 */
/* sample.c - the most likely token, or one drawn with the probabilities of a temperature. */
#include "sample.h"

#include <math.h>

/* splitmix64: [0, 1) */
static double draw_unit(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

uint32_t sample(struct sampler *sampler, float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    if (sampler->temperature <= 0)
        return best;
    float largest = logits[best];
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        sum += logits[i] = expf((logits[i] - largest) / sampler->temperature);
    double left = draw_unit(&sampler->state) * sum;
    for (uint32_t i = 0; i < vocab; i++) {
        left -= (double)logits[i];
        if (left < 0)
            return i;
    }
    return best; /* what rounding left over */
}
