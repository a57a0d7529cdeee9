/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cases.c - draw requests.
 */
#include "cases.h"

#define ELEMENTS (UINT64_C(3) << 19) /* of one tensor: 3 MiB of BF16 */
#define SHARDS 3u
#define CODED (1. / 3)
#define LAYER_EXPERTS 32u

const struct profile profiles[] = {
    {"zstd", 1.5, 2.5, 20, false},
    {"cascade, then merge", 1.5, 18, 20, false},
    {"cascade, fused", 1.5, 18, 0, true},
};
const uint32_t profile_count = sizeof profiles / sizeof profiles[0];

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((next_random(state) >> 32) * n >> 32);
}

static enum efs_task_state state_of_rank(uint32_t rank)
{
    return rank < 2 ? EFS_TASK_F : rank < 9 ? EFS_TASK_C : rank < 12 ? EFS_TASK_S : rank < 14 ? EFS_TASK_E : EFS_TASK_M;
}

/* 8 different ranks of 32, rank r with weight 1 / (r + 1). */
static void draw_skewed(uint64_t *state, enum efs_task_state *states)
{
    bool taken[LAYER_EXPERTS] = {false};
    for (uint32_t i = 0; i < CASE_EXPERTS; i++) {
        double sum = 0;
        for (uint32_t r = 0; r < LAYER_EXPERTS; r++)
            sum += taken[r] ? 0 : 1. / (r + 1);
        double at = (double)(next_random(state) >> 11) / 9007199254740992. * sum;
        uint32_t rank = LAYER_EXPERTS;
        for (uint32_t r = 0; r < LAYER_EXPERTS && (rank == LAYER_EXPERTS || at >= 0); r++) {
            if (taken[r])
                continue;
            rank = r;
            at -= 1. / (r + 1);
        }
        taken[rank] = true;
        states[i] = state_of_rank(rank);
    }
}

void next_case(struct cases *cases, struct case_request *out)
{
    const struct profile *profile = cases->profile;
    const struct efs_task_tensor tensor = {
        .shards = SHARDS,
        .e_read_ns = (uint64_t)(ELEMENTS * CODED / SHARDS / profile->disk),
        .sm_read_ns = (uint64_t)(ELEMENTS / profile->disk),
        .decode_ns = (uint64_t)(ELEMENTS / profile->decode / SHARDS),
        .recover_ns = profile->merge > 0 ? (uint64_t)(2 * ELEMENTS / profile->merge) : 0,
    };
    enum efs_task_state states[CASE_EXPERTS];
    for (uint32_t n = 0; n < CASE_EXPERTS; n++)
        states[n] = (enum efs_task_state)random_below(&cases->state, EFS_TASK_STATES);
    if (cases->mix == MIX_SKEWED)
        draw_skewed(&cases->state, states);
    for (uint32_t n = 0; n < CASE_EXPERTS; n++) {
        uint64_t tokens = random_below(&cases->state, 4) ? 1 : 2 + random_below(&cases->state, 7);
        out->experts[n] = (struct efs_task_expert){.tensors = CASE_TENSORS, .run_ns = tokens * cases->run_token_ns};
        for (uint32_t i = 0; i < CASE_TENSORS; i++) {
            out->tensors[n * CASE_TENSORS + i] = tensor;
            out->tensors[n * CASE_TENSORS + i].state = states[n];
        }
    }
    out->request = (struct efs_task_request){.experts = out->experts,
                                             .expert_count = CASE_EXPERTS,
                                             .tensors = out->tensors,
                                             .tensor_count = CASE_EXPERTS * CASE_TENSORS,
                                             .workers = cases->workers,
                                             .recovery = EFS_RECOVER_WORKER,
                                             .fused = profile->fused};
}
