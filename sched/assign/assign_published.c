/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assign_published.c - one CPU and one GPU: the rules of other published systems, as baselines.
 *
 * HybriMoE, from its published description: a simulation of three queues. The CPU takes experts that are not cached,
 * the lightest first; the link transfers such experts, the heaviest first; the GPU runs experts that are cached or
 * transferred. The queue that would finish first takes the next expert. Cached experts stay on the GPU.
 */
#include "assign_internal.h"

#include <errno.h>
#include <stdlib.h>

static const char *const names[EFS_ASSIGN_RULES] = {"cpu",    "popular",  "fiddler", "hybrimoe",
                                                    "greedy", "balanced", "optimum"};

const char *efs_assign_rule_name(enum efs_assign_rule rule)
{
    return names[rule];
}

struct efs_assign_problem efs_assign_pair_problem(const struct efs_assign_pair *pair, uint64_t *ns, uint64_t *bytes,
                                                  uint64_t *room_bytes)
{
    uint32_t count = pair->experts;
    for (uint32_t i = 0; i < count; i++) {
        const struct efs_assign_expert *e = &pair->expert[i];
        ns[i] = e->tokens ? e->cpu_ns : 0;
        ns[count + i] = efs_assign_gpu_ns(e);
        bytes[i] = 0;
        bytes[count + i] = e->cached ? 0 : e->bytes;
    }
    room_bytes[0] = UINT64_MAX;
    room_bytes[1] = pair->room_bytes;
    return (struct efs_assign_problem){
        .experts = count, .devices = 2, .ns = ns, .bytes = bytes, .room_bytes = room_bytes};
}

static void one_by_one(const struct efs_assign_pair *pair, enum efs_assign_rule rule, struct efs_assign_state *state)
{
    for (uint32_t i = 0; i < pair->experts; i++) {
        const struct efs_assign_expert *e = &pair->expert[i];
        if (e->tokens == 0)
            continue;
        bool there = rule != EFS_ASSIGN_ALL_CPU && e->cached;
        if (rule == EFS_ASSIGN_FIDDLER && !e->cached)
            there = e->transfer_ns + e->gpu_ns < e->cpu_ns && e->bytes <= state->room_bytes[1];
        efs_assign_add(state, i, there);
    }
}

static void hybrimoe(const struct efs_assign_pair *pair, struct efs_assign_state *state)
{
    uint64_t key[EFS_ASSIGN_EXPERTS_MAX];
    uint16_t order[EFS_ASSIGN_EXPERTS_MAX];
    const struct efs_assign_problem *p = state->problem;
    uint64_t cpu_ns = 0, link_ns = 0, gpu_ns = 0;
    for (uint32_t i = 0; i < p->experts; i++)
        key[i] = pair->expert[i].tokens;
    uint32_t count = efs_assign_sorted(p, key, order), missing = 0;
    for (uint32_t n = 0; n < count; n++)
        if (pair->expert[order[n]].cached) {
            efs_assign_add(state, order[n], EFS_ASSIGN_GPU);
            gpu_ns += pair->expert[order[n]].gpu_ns;
        } else {
            order[missing++] = order[n];
        }
    for (uint32_t heavy = 0, light = missing; heavy < light;) {
        const struct efs_assign_expert *last = &pair->expert[order[light - 1]], *first = &pair->expert[order[heavy]];
        uint64_t come_ns = link_ns + first->transfer_ns;
        uint64_t there_ns = (come_ns > gpu_ns ? come_ns : gpu_ns) + first->gpu_ns;
        if (there_ns < cpu_ns + last->cpu_ns && first->bytes <= state->room_bytes[1]) {
            efs_assign_add(state, order[heavy++], EFS_ASSIGN_GPU);
            link_ns = come_ns;
            gpu_ns = there_ns;
        } else {
            efs_assign_add(state, order[--light], EFS_ASSIGN_CPU);
            cpu_ns += last->cpu_ns;
        }
    }
}

/* p: the pair as a problem. */
static int assign_problem(enum efs_assign_rule rule, const struct efs_assign_pair *pair,
                          const struct efs_assign_problem *p, uint8_t *device, struct efs_assign_sum *sum)
{
    if (rule == EFS_ASSIGN_GREEDY)
        return efs_assign_greedy(p, device, sum);
    if (rule == EFS_ASSIGN_BALANCED)
        return efs_assign_balanced(p, device, sum);
    if (rule == EFS_ASSIGN_OPTIMUM)
        return efs_assign_optimum(p, device, sum);
    if (!efs_assign_valid(p))
        return -EINVAL;
    struct efs_assign_state state;
    efs_assign_begin(&state, p, device);
    if (rule == EFS_ASSIGN_HYBRIMOE)
        hybrimoe(pair, &state);
    else
        one_by_one(pair, rule, &state);
    efs_assign_end(&state, sum);
    return 0;
}

int efs_assign_by(enum efs_assign_rule rule, const struct efs_assign_pair *pair, uint8_t *device,
                  struct efs_assign_sum *sum)
{
    uint64_t room_bytes[2];
    if (pair->experts < 1 || pair->experts > EFS_ASSIGN_EXPERTS_MAX || rule >= EFS_ASSIGN_RULES)
        return -EINVAL;
    uint64_t *ns = malloc(4 * (size_t)pair->experts * sizeof(*ns));
    if (!ns)
        return -ENOMEM;
    const struct efs_assign_problem p = efs_assign_pair_problem(pair, ns, ns + 2 * (size_t)pair->experts, room_bytes);
    int rc = assign_problem(rule, pair, &p, device, sum);
    free(ns);
    return rc;
}
