/* SPDX-License-Identifier: Apache-2.0 */
/* assign.c - Algorithm 1 of DALI, on any number of devices, with limited memory. */
#include "assign_internal.h"

#include <errno.h>
#include <string.h>

#define KEY_BITS 53
#define KEY_MOST ((UINT64_C(1) << KEY_BITS) - 1)
#define NUMBER_BITS 10
#define NUMBER_MOST ((UINT64_C(1) << NUMBER_BITS) - 1)

_Static_assert(EFS_ASSIGN_EXPERTS_MAX <= NUMBER_MOST + 1, "an expert's number fits beside its key");

bool efs_assign_valid(const struct efs_assign_problem *p)
{
    if (p->experts < 1 || p->experts > EFS_ASSIGN_EXPERTS_MAX || p->devices < 1 ||
        p->devices > EFS_ASSIGN_DEVICES_MAX || !p->ns)
        return false;
    uint64_t all = 0;
    for (size_t i = 0; i < (size_t)p->devices * p->experts; i++)
        all |= p->ns[i];
    return all <= EFS_ASSIGN_NS_MAX;
}

/* Merges two runs without a branch on the compared values, which would be mispredicted half of the time. */
static void merge_runs(const uint64_t *in, size_t begin, size_t middle, size_t end, uint64_t *out)
{
    size_t a = begin, b = middle;
    for (size_t at = begin; at < end; at++) {
        if (a == middle || b == end) {
            memcpy(out + at, in + (a == middle ? b : a), (end - at) * sizeof(*in));
            return;
        }
        uint64_t x = in[a], y = in[b];
        bool first = x >= y;
        out[at] = first ? x : y;
        a += first;
        b += !first;
    }
}

static uint64_t *sort_falling(uint64_t *keys, uint64_t *other, size_t count)
{
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t begin = 0; begin < count; begin += 2 * width) {
            size_t middle = begin + width < count ? begin + width : count;
            merge_runs(keys, begin, middle, begin + 2 * width < count ? begin + 2 * width : count, other);
        }
        uint64_t *swap = keys;
        keys = other;
        other = swap;
    }
    return keys;
}

uint32_t efs_assign_sorted(const struct efs_assign_problem *p, uint64_t *key, uint16_t *order)
{
    uint64_t other[EFS_ASSIGN_EXPERTS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->experts; i++) {
        uint64_t any = 0;
        for (uint32_t d = 0; d < p->devices; d++)
            any |= efs_assign_ns(p, d, i);
        if (any)
            key[count++] = (key[i] < KEY_MOST ? key[i] : KEY_MOST) << NUMBER_BITS | (NUMBER_MOST - i);
    }
    const uint64_t *sorted = sort_falling(key, other, count);
    for (uint32_t i = 0; i < count; i++)
        order[i] = (uint16_t)(NUMBER_MOST - (sorted[i] & NUMBER_MOST));
    return count;
}

void efs_assign_begin(struct efs_assign_state *state, const struct efs_assign_problem *p, uint8_t *device)
{
    *state = (struct efs_assign_state){.problem = p, .device = device};
    memset(device, EFS_ASSIGN_NONE, p->experts);
    for (uint32_t d = 0; d < p->devices; d++)
        state->room_bytes[d] = p->room_bytes ? p->room_bytes[d] : UINT64_MAX;
}

int efs_assign_add_first_done(struct efs_assign_state *state, uint32_t expert)
{
    const struct efs_assign_problem *p = state->problem;
    uint32_t best = p->devices;
    uint64_t best_ns = UINT64_MAX;
    for (uint32_t d = 0; d < p->devices; d++) {
        uint64_t done_ns = state->ns[d] + efs_assign_ns(p, d, expert);
        bool better = done_ns <= best_ns && efs_assign_bytes(p, d, expert) <= state->room_bytes[d];
        best = better ? d : best;
        best_ns = better ? done_ns : best_ns;
    }
    if (best == p->devices)
        return -ENOSPC;
    efs_assign_add(state, expert, best);
    return 0;
}

uint64_t efs_assign_makespan(const struct efs_assign_state *state)
{
    uint64_t most = 0;
    for (uint32_t d = 0; d < state->problem->devices; d++)
        most = state->ns[d] > most ? state->ns[d] : most;
    return most;
}

void efs_assign_end(const struct efs_assign_state *state, struct efs_assign_sum *sum)
{
    memcpy(sum->device_ns, state->ns, sizeof(sum->device_ns));
    sum->makespan_ns = efs_assign_makespan(state);
}

int efs_assign_greedy_start(struct efs_assign_state *state, uint64_t *key, uint16_t *order, uint32_t *sorted)
{
    const struct efs_assign_problem *p = state->problem;
    for (uint32_t i = 0; i < p->experts; i++) {
        uint64_t least = UINT64_MAX, most = 0;
        for (uint32_t d = 0; d < p->devices; d++) {
            uint64_t ns = efs_assign_ns(p, d, i);
            least = ns < least ? ns : least;
            most = ns > most ? ns : most;
        }
        key[i] = most - least;
    }
    uint32_t count = *sorted = efs_assign_sorted(p, key, order);
    for (uint32_t i = 0; i < count; i++)
        if (efs_assign_add_first_done(state, order[i]) < 0)
            return -ENOSPC;
    return 0;
}

int efs_assign_greedy(const struct efs_assign_problem *p, uint8_t *device, struct efs_assign_sum *sum)
{
    struct efs_assign_state state;
    uint64_t key[EFS_ASSIGN_EXPERTS_MAX];
    uint16_t order[EFS_ASSIGN_EXPERTS_MAX];
    uint32_t count;
    if (!efs_assign_valid(p))
        return -EINVAL;
    efs_assign_begin(&state, p, device);
    int rc = efs_assign_greedy_start(&state, key, order, &count);
    if (rc == 0)
        efs_assign_end(&state, sum);
    return rc;
}

int efs_assign_sum(const struct efs_assign_problem *p, const uint8_t *device, struct efs_assign_sum *sum)
{
    struct efs_assign_state state;
    uint8_t own[EFS_ASSIGN_EXPERTS_MAX];
    if (!efs_assign_valid(p))
        return -EINVAL;
    efs_assign_begin(&state, p, own);
    for (uint32_t i = 0; i < p->experts; i++) {
        uint64_t any = 0;
        for (uint32_t d = 0; d < p->devices; d++)
            any |= efs_assign_ns(p, d, i);
        if (device[i] >= p->devices ? device[i] != EFS_ASSIGN_NONE || any : false)
            return -EINVAL;
        if (device[i] == EFS_ASSIGN_NONE)
            continue;
        if (efs_assign_bytes(p, device[i], i) > state.room_bytes[device[i]])
            return -ENOSPC;
        efs_assign_add(&state, i, device[i]);
    }
    efs_assign_end(&state, sum);
    return 0;
}
