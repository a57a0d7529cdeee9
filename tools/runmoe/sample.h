/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample.h - the next token from the logits.
 */
#ifndef RUNMOE_SAMPLE_H
#define RUNMOE_SAMPLE_H

#include <stdint.h>

struct sampler {
    float temperature; /* 0: always the most likely */
    uint64_t state;    /* of the random numbers: the seed at first */
};

/* Changes the logits when it draws. */
uint32_t sample(struct sampler *sampler, float *logits, uint32_t vocab);

#endif
