/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases.h - the requests that schedcmp compares schedules on: machine profiles, mixes of states, run times.
 */
#ifndef SCHEDCMP_CASES_H
#define SCHEDCMP_CASES_H

#include "task.h"

#define CASE_EXPERTS 8u
#define CASE_TENSORS 3u

/* What reading, decoding and joining cost. Rates in bytes a nanosecond, which is GB/s. */
struct profile {
    const char *name;
    double disk, decode, merge; /* decode: exponent bytes, one thread; merge: BF16 bytes, 0: part of decoding */
    bool fused;
};

/* How the experts of a request are cached. */
enum mix {
    MIX_EVEN,  /* F, C, S, E, M equally likely */
    MIX_SKEWED /* 8 of 32 experts drawn by popularity; the popular ones are F, then C, S, E, M by rank */
};

struct cases {
    const struct profile *profile;
    enum mix mix;
    uint64_t run_token_ns; /* p_n = tokens * this; one token, and one expert in four gets 2 to 8 */
    uint32_t workers;
    uint64_t state; /* of the random numbers; not 0 */
};

extern const struct profile profiles[];
extern const uint32_t profile_count;

struct case_request {
    struct efs_task_request request;
    struct efs_task_expert experts[CASE_EXPERTS];
    struct efs_task_tensor tensors[CASE_EXPERTS * CASE_TENSORS];
};

/* Draw the next request: 8 experts of 3 tensors of 3 MiB, 3 shards each, the exponents coded to a third. */
void next_case(struct cases *cases, struct case_request *out);

#endif
