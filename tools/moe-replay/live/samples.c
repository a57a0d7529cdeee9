/* SPDX-License-Identifier: Apache-2.0 */
/* samples.c - see samples.h. */
#include "samples.h"

#define CLIP 8.0 /* no sample counts as more than so many times the mean: a process that was away for a while */

void replay_samples_add(struct replay_samples *s, double value)
{
    if (s->count < REPLAY_SAMPLES)
        s->value[s->count++] = value;
}

double replay_samples_mean(const struct replay_samples *s)
{
    double most = 1e18, mean = 0;
    for (unsigned round = 0; round < 2 && s->count; round++, most = CLIP * mean) {
        double sum = 0;
        for (uint32_t i = 0; i < s->count; i++)
            sum += s->value[i] < most ? s->value[i] : most;
        mean = sum / s->count;
    }
    return mean;
}
