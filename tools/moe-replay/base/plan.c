/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - plans the sizes of the pools from the history and the profile. */
#include "replay.h"
#include "expertfs-profile-private.h"

#include <string.h>

/* The costs of the profile, with the workers, tensors and shards of the setup. */
static struct efs_pools_costs costs_of(const struct replay_setup *s)
{
    const struct efs_profile *p = &s->profile;
    return (struct efs_pools_costs){.full_bytes = p->full_bytes,
                                    .coded_bytes = p->coded_bytes,
                                    .sm_bytes = p->sm_bytes,
                                    .e_bytes = p->e_bytes,
                                    .tensors = s->tensors,
                                    .shards = s->shards,
                                    .workers = s->workers,
                                    .disk_bytes_per_second = p->disk_bytes_per_second,
                                    .read_latency_ns = p->read_latency_ns,
                                    .decode_bytes_per_second = p->decode_bytes_per_second};
}

void replay_setup_fill(struct replay_setup *s)
{
    struct efs_pools_costs costs = costs_of(s);
    struct efs_cost cost;
    costs.tensors = s->profile.tensors;
    costs.shards = s->profile.shards;
    costs.workers = s->profile.workers;
    cost = efs_pools_cost(&costs, s->bytes);
    s->tensors = cost.tensors;
    s->shards = cost.shards;
    s->workers = cost.threads;
}

struct efs_cost replay_cost(const struct replay_setup *s)
{
    struct efs_pools_costs costs = costs_of(s);
    uint64_t bytes[EFS_POOLS];
    return efs_pools_cost(&costs, bytes);
}

/* ---- the history -------------------------------------------------------------------------------------------- */

/* Counts the requests of w, with the rank of each expert in zipmoe's policy at the time of its request. */
static int history_learn(const struct replay_setup *s, const struct replay_workload *w, struct efs_history *seen)
{
    static const uint64_t bytes[1][EFS_POOLS] = {{1, 1, 1, 1}}; /* sizes; capacities are 0, so nothing is cached */
    const struct efs_policy_config config = {.kind = EFS_POLICY_ZIPMOE,
                                             .layers = s->layers,
                                             .experts = s->experts,
                                             .chosen = w->chosen,
                                             .bytes = bytes,
                                             .same_bytes = true};
    struct efs_placement placements[REPLAY_REQUEST_MAX];
    uint32_t ranks[REPLAY_REQUEST_MAX];
    struct efs_policy *policy = NULL;
    int rc = efs_history_init(seen, s->layers, s->experts);
    if (rc == 0)
        rc = efs_policy_new(&config, &policy);
    for (size_t r = 0; rc == 0 && r < w->passes * w->layers; r++) {
        const uint32_t layer = (uint32_t)(r % w->layers), *ids = &w->ids[w->first[r]];
        unsigned count = (unsigned)(w->first[r + 1] - w->first[r]);
        seen->sequences += layer == 0 && w->starts[r / w->layers];
        efs_policy_ranks(policy, layer, ids, count, ranks);
        rc = efs_policy_request(policy, layer, ids, count, placements);
        for (unsigned i = 0; rc == 0 && i < count; i++)
            efs_policy_unpin(policy, layer, ids[i]);
        if (rc == 0)
            rc = efs_history_request(seen, layer, ids, ranks, count);
    }
    efs_policy_free(policy);
    return rc;
}

int replay_history_learn(const struct replay_setup *s, const struct replay_workload *history, double chosen,
                         struct replay_history *h)
{
    *h = (struct replay_history){.workload = history};
    int rc = history ? history_learn(s, history, &h->seen) : 0;
    if (rc == 0)
        rc = efs_skew_learn(&h->skew, history ? &h->seen : NULL, s->layers, s->experts, chosen);
    if (rc < 0)
        replay_history_free(h);
    return rc;
}

void replay_history_free(struct replay_history *h)
{
    efs_history_free(&h->seen);
    efs_skew_free(&h->skew);
    *h = (struct replay_history){0};
}

/* ---- plans -------------------------------------------------------------------------------------------------- */

static int plan_pools(const struct replay_setup *s, enum replay_pools pools, const struct replay_history *h,
                      uint64_t budget, struct replay_plan *plan)
{
    const struct efs_pools_request request = {.costs = costs_of(s),
                                              .skew = &h->skew,
                                              .budget_bytes = budget,
                                              .goal = pools == REPLAY_MAKESPAN ? EFS_PLAN_MAKESPAN : EFS_PLAN_IO,
                                              .how = EFS_POOLS_SHARED};
    struct efs_pools planned;
    int rc = efs_pools_plan(&request, &planned);
    if (rc < 0)
        return rc;
    memcpy(plan->capacity, planned.pool_bytes, sizeof(plan->capacity));
    plan->io_ns = planned.io_ns;
    plan->makespan_ns = planned.makespan_ns;
    return 0;
}

int replay_plan_make(const struct replay_setup *s, const struct replay_policy *policy, const struct replay_history *h,
                     uint64_t budget, struct replay_plan *plan)
{
    enum replay_pools pools = policy->pools;
    *plan = (struct replay_plan){{0}, 0, 0};
    if (pools == REPLAY_IO || pools == REPLAY_MAKESPAN)
        return plan_pools(s, pools, h, budget, plan);
    plan->capacity[pools == REPLAY_FULL || pools == REPLAY_RAW ? EFS_POOL_F : EFS_POOL_C] = budget;
    return 0;
}
