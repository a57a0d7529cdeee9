/* SPDX-License-Identifier: Apache-2.0 */
/* assign_costs.c - see assign_costs.h. */
#include "assign_costs.h"

#include <errno.h>

static uint32_t bucket_of(enum efs_assign_cost what, uint32_t tokens)
{
    uint32_t bucket = 0;
    for (; tokens > 1 && what != EFS_ASSIGN_COST_LINK && bucket < EFS_ASSIGN_BUCKETS - 1; tokens /= 2)
        bucket++;
    return bucket;
}

void efs_assign_costs_took(struct efs_assign_costs *costs, enum efs_assign_cost what, uint32_t tokens, uint64_t ns)
{
    if (tokens == 0 || ns == 0)
        return;
    double *of = &costs->ns[what][bucket_of(what, tokens)];
    const double now = (double)(ns < EFS_ASSIGN_NS_MAX ? ns : EFS_ASSIGN_NS_MAX);
    *of = *of > 0 ? *of + (now - *of) / 4 : now;
}

uint64_t efs_assign_costs_ns(const struct efs_assign_costs *costs, enum efs_assign_cost what, uint32_t tokens)
{
    const uint32_t bucket = bucket_of(what, tokens);
    const double *ns = costs->ns[what];
    for (uint32_t away = 0; away < EFS_ASSIGN_BUCKETS; away++) {
        if (away <= bucket && ns[bucket - away] > 0)
            return (uint64_t)ns[bucket - away];
        if (bucket + away < EFS_ASSIGN_BUCKETS && ns[bucket + away] > 0)
            return (uint64_t)ns[bucket + away];
    }
    return 0;
}

static void set_times(const struct efs_assign_costs *costs, struct efs_assign_expert *e)
{
    const uint64_t cpu_ns = efs_assign_costs_ns(costs, EFS_ASSIGN_COST_CPU, e->tokens);
    const uint64_t gpu_ns = efs_assign_costs_ns(costs, EFS_ASSIGN_COST_GPU, e->tokens);
    e->cpu_ns = cpu_ns ? cpu_ns : gpu_ns ? gpu_ns : 1;
    e->gpu_ns = gpu_ns ? gpu_ns : e->cpu_ns;
    e->transfer_ns = efs_assign_costs_ns(costs, EFS_ASSIGN_COST_LINK, e->tokens);
}

/* Whether the cost can be measured on this expert if it is on that device. */
static bool shows(enum efs_assign_cost what, const struct efs_assign_expert *e, uint8_t device)
{
    return what == EFS_ASSIGN_COST_CPU ? device == EFS_ASSIGN_CPU
                                       : device == EFS_ASSIGN_GPU && (what == EFS_ASSIGN_COST_GPU || !e->cached);
}

static bool is_given(enum efs_assign_cost what, const struct efs_assign_expert *experts, uint32_t count,
                     const uint8_t *device)
{
    for (uint32_t i = 0; i < count; i++)
        if (shows(what, &experts[i], device[i]))
            return true;
    return false;
}

/* Moves the expert with the least extra time to the side where `what` can be measured. False: no such expert. */
static bool give_one(enum efs_assign_cost what, const struct efs_assign_expert *experts, uint32_t count,
                     uint8_t *device)
{
    const uint8_t side = what == EFS_ASSIGN_COST_CPU ? EFS_ASSIGN_CPU : EFS_ASSIGN_GPU;
    uint32_t best = count;
    int64_t least_ns = INT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const int64_t cpu_ns = (int64_t)experts[i].cpu_ns, gpu_ns = (int64_t)efs_assign_gpu_ns(&experts[i]);
        const int64_t more_ns = side == EFS_ASSIGN_CPU ? cpu_ns - gpu_ns : gpu_ns - cpu_ns;
        if (device[i] != side && shows(what, &experts[i], side) && more_ns < least_ns) {
            best = i;
            least_ns = more_ns;
        }
    }
    if (best < count)
        device[best] = side;
    return best < count;
}

int efs_assign_by_costs(struct efs_assign_costs *costs, struct efs_assign_expert *experts, uint32_t count,
                        uint64_t room_bytes, uint8_t *device)
{
    const struct efs_assign_pair pair = {.experts = count, .expert = experts, .room_bytes = room_bytes};
    struct efs_assign_sum sum;
    if (count == 0 || count > EFS_ASSIGN_EXPERTS_MAX)
        return -EINVAL;
    for (uint32_t i = 0; i < count; i++) {
        if (experts[i].tokens == 0)
            return -EINVAL;
        set_times(costs, &experts[i]);
    }
    int rc = efs_assign_by(EFS_ASSIGN_BALANCED, &pair, device, &sum);
    if (rc < 0)
        return rc;
    /* At most one per layer: otherwise two costs that are due would alternate on a layer's only expert. */
    for (enum efs_assign_cost what = 0; what < EFS_ASSIGN_COSTS; what++)
        if (costs->rest[what] == 0 && !is_given(what, experts, count, device) && give_one(what, experts, count, device))
            break;
    for (enum efs_assign_cost what = 0; what < EFS_ASSIGN_COSTS; what++)
        if (is_given(what, experts, count, device))
            costs->rest[what] = EFS_ASSIGN_TRY;
        else if (costs->rest[what])
            costs->rest[what]--;
    return 0;
}
