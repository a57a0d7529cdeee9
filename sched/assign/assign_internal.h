/* SPDX-License-Identifier: Apache-2.0 */
/* assign_internal.h - functions shared by the assignment rules. Private to sched/assign/. */
#ifndef EFS_ASSIGN_INTERNAL_H
#define EFS_ASSIGN_INTERNAL_H

#include "assign.h"

bool efs_assign_valid(const struct efs_assign_problem *problem);

/* Sorts the experts with work by falling key, ties by number; returns their number. Keys of 2^53 - 1 and above are
 * equal. Overwrites key. */
uint32_t efs_assign_sorted(const struct efs_assign_problem *problem, uint64_t *key, uint16_t *order);

/* A partial assignment. */
struct efs_assign_state {
    const struct efs_assign_problem *problem;
    uint8_t *device;
    uint64_t ns[EFS_ASSIGN_DEVICES_MAX], room_bytes[EFS_ASSIGN_DEVICES_MAX];
};
void efs_assign_begin(struct efs_assign_state *state, const struct efs_assign_problem *problem, uint8_t *device);

static inline uint64_t efs_assign_ns(const struct efs_assign_problem *problem, uint32_t device, uint32_t expert)
{
    return problem->ns[(size_t)device * problem->experts + expert];
}

static inline uint64_t efs_assign_bytes(const struct efs_assign_problem *problem, uint32_t device, uint32_t expert)
{
    return problem->bytes ? problem->bytes[(size_t)device * problem->experts + expert] : 0;
}

static inline void efs_assign_add(struct efs_assign_state *state, uint32_t expert, uint32_t device)
{
    state->device[expert] = (uint8_t)device;
    state->ns[device] += efs_assign_ns(state->problem, device, expert);
    state->room_bytes[device] -= efs_assign_bytes(state->problem, device, expert);
}

static inline void efs_assign_remove(struct efs_assign_state *state, uint32_t expert)
{
    uint32_t device = state->device[expert];
    state->ns[device] -= efs_assign_ns(state->problem, device, expert);
    state->room_bytes[device] += efs_assign_bytes(state->problem, device, expert);
    state->device[expert] = EFS_ASSIGN_NONE;
}

/* Adds an expert to the device that then finishes first. 0 or -ENOSPC. */
int efs_assign_add_first_done(struct efs_assign_state *state, uint32_t expert);
/* Algorithm 1 on an empty state; key and order are scratch for all experts; order and *sorted are as
 * efs_assign_sorted() left them. 0 or -ENOSPC. */
int efs_assign_greedy_start(struct efs_assign_state *state, uint64_t *key, uint16_t *order, uint32_t *sorted);
uint64_t efs_assign_makespan(const struct efs_assign_state *state);
void efs_assign_end(const struct efs_assign_state *state, struct efs_assign_sum *sum);

#endif
