/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request_random.h - random requests for the tests of the scheduler, the same on every machine.
 */
#ifndef REQUEST_RANDOM_H
#define REQUEST_RANDOM_H

#include "task.h"

struct random_request {
    struct efs_task_request request;
    struct efs_task_expert experts[EFS_TASK_MAX_EXPERTS];
    struct efs_task_tensor tensors[EFS_TASK_MAX_TASKS];
};

/* xorshift64*: state must not be 0. */
static inline uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

/* In from .. to, both inclusive. */
static inline uint64_t random_between(uint64_t *state, uint64_t from, uint64_t to)
{
    return from + (random_next(state) >> 11) % (to - from + 1);
}

struct random_limits {
    uint32_t experts, tensors, shards, workers;     /* upper limits; at least 1 */
    uint64_t e_read, sm_read, decode, recover, run; /* upper limits */
    uint64_t least;                                 /* lower limit of times; recovery is 0 if its upper limit is */
    bool same_tensors;                              /* all tensors cost the same, as in the paper */
};

/* A request within the limits, with uniformly distributed states, sizes and times; one in three recovers on the
 * workers. */
static inline void random_request(uint64_t *state, const struct random_limits *limits, struct random_request *out)
{
    out->request = (struct efs_task_request){.experts = out->experts,
                                             .tensors = out->tensors,
                                             .expert_count = (uint32_t)random_between(state, 1, limits->experts),
                                             .workers = (uint32_t)random_between(state, 1, limits->workers)};
    if (random_between(state, 0, 2) == 0)
        out->request.recovery = EFS_RECOVER_WORKER;
    struct efs_task_tensor same = {0};
    for (uint32_t n = 0; n < out->request.expert_count; n++) {
        struct efs_task_expert *expert = &out->experts[n];
        expert->tensors = (uint32_t)random_between(state, 1, limits->tensors);
        expert->run_ns = random_between(state, limits->least, limits->run);
        enum efs_task_state all = (enum efs_task_state)random_between(state, EFS_TASK_F, EFS_TASK_M);
        bool mixed = random_between(state, 0, 7) == 0;
        for (uint32_t i = 0; i < expert->tensors; i++) {
            struct efs_task_tensor tensor = {
                .shards = (uint32_t)random_between(state, 1, limits->shards),
                .e_read_ns = random_between(state, limits->least, limits->e_read),
                .sm_read_ns = random_between(state, limits->least, limits->sm_read),
                .decode_ns = random_between(state, limits->least, limits->decode),
                .recover_ns = limits->recover ? random_between(state, limits->least, limits->recover) : 0,
            };
            if (out->request.tensor_count == 0)
                same = tensor;
            if (limits->same_tensors)
                tensor = same;
            tensor.state = mixed ? (enum efs_task_state)random_between(state, EFS_TASK_F, EFS_TASK_M) : all;
            out->tensors[out->request.tensor_count++] = tensor;
        }
    }
}

#endif
