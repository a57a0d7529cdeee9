/* SPDX-License-Identifier: Apache-2.0 */
/* samples.h - times of one kind, of which the mean counts; none counts as more than some times it. */
#ifndef MOE_REPLAY_SAMPLES_H
#define MOE_REPLAY_SAMPLES_H

#include <stdint.h>

#define REPLAY_SAMPLES 32768u /* what comes later is not kept */

struct replay_samples { /* zeroed at first */
    double value[REPLAY_SAMPLES];
    uint32_t count;
};

void replay_samples_add(struct replay_samples *samples, double value);
double replay_samples_mean(const struct replay_samples *samples); /* 0 when there are none */

#endif
