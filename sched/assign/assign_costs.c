/* SPDX-License-Identifier: Apache-2.0 */
/* assign_costs.c - see assign_costs.h. */
#include "assign_costs.h"

#include <errno.h>
#include <string.h>

static uint32_t bucket_of(enum efs_assign_cost what, uint32_t tokens)
{
    uint32_t bucket = 0;
    for (; tokens > 1 && what != EFS_ASSIGN_COST_LINK && bucket < EFS_ASSIGN_BUCKETS - 1; tokens /= 2)
        bucket++;
    return bucket;
}

void efs_assign_costs_record(struct efs_assign_costs *costs, enum efs_assign_cost what, uint32_t tokens, uint64_t ns)
{
    if (tokens == 0 || ns == 0)
        return;
    double *of = &costs->ns[what][bucket_of(what, tokens)];
    const double now = (double)(ns < EFS_ASSIGN_NS_MAX ? ns : EFS_ASSIGN_NS_MAX);
    *of = *of > 0 ? *of + (now - *of) / (now < *of ? 2 : 4) : now;
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

static void set_times(const struct efs_assign_costs *costs, bool fill, struct efs_assign_expert *e)
{
    const uint64_t cpu_ns = efs_assign_costs_ns(costs, EFS_ASSIGN_COST_CPU, e->tokens);
    const uint64_t gpu_ns = efs_assign_costs_ns(costs, EFS_ASSIGN_COST_GPU, e->tokens);
    e->cpu_ns = cpu_ns ? cpu_ns : gpu_ns ? gpu_ns : 1;
    e->gpu_ns = gpu_ns ? gpu_ns : e->cpu_ns;
    e->transfer_ns = fill ? 0 : efs_assign_costs_ns(costs, EFS_ASSIGN_COST_LINK, e->tokens);
}

/* Whether the cost can be measured on this expert if it is on that device. */
static bool can_measure(enum efs_assign_cost what, const struct efs_assign_expert *e, uint8_t device)
{
    return what == EFS_ASSIGN_COST_CPU ? device == EFS_ASSIGN_CPU
                                       : device == EFS_ASSIGN_GPU && (what == EFS_ASSIGN_COST_GPU || !e->cached);
}

static bool is_measured(enum efs_assign_cost what, const struct efs_assign_expert *experts, uint32_t count,
                        const uint8_t *device)
{
    for (uint32_t i = 0; i < count; i++)
        if (can_measure(what, &experts[i], device[i]))
            return true;
    return false;
}

/* Moves the expert with the least extra time to the side where `what` can be measured. False: no such expert. */
static bool move_one_to_measure(enum efs_assign_cost what, const struct efs_assign_expert *experts, uint32_t count,
                                uint8_t *device)
{
    const uint8_t side = what == EFS_ASSIGN_COST_CPU ? EFS_ASSIGN_CPU : EFS_ASSIGN_GPU;
    uint32_t best = count;
    int64_t least_ns = INT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const int64_t cpu_ns = (int64_t)experts[i].cpu_ns, gpu_ns = (int64_t)efs_assign_gpu_ns(&experts[i]);
        const int64_t more_ns = side == EFS_ASSIGN_CPU ? cpu_ns - gpu_ns : gpu_ns - cpu_ns;
        if (device[i] != side && can_measure(what, &experts[i], side) && more_ns < least_ns) {
            best = i;
            least_ns = more_ns;
        }
    }
    if (best < count)
        device[best] = side;
    return best < count;
}

/* ---- the layer's extra time ---- */

void efs_assign_costs_record_layer(struct efs_assign_costs *costs, const struct efs_assign_choice *choice, uint64_t ns)
{
    if (choice->extra < EFS_ASSIGN_COSTS)
        efs_assign_costs_record(costs, choice->extra, choice->tokens, ns > choice->ns ? ns - choice->ns : 1);
}

/* Sets which extra time an assignment has, and its time without it. */
static void choose(const struct efs_assign_expert *experts, uint32_t count, const uint8_t *device,
                   struct efs_assign_choice *choice)
{
    uint64_t cpu_ns = 0, gpu_ns = 0;
    uint32_t there = 0;
    for (uint32_t i = 0; i < count; i++) {
        there += device[i] == EFS_ASSIGN_GPU;
        cpu_ns += device[i] == EFS_ASSIGN_CPU ? experts[i].cpu_ns : 0;
        gpu_ns += device[i] == EFS_ASSIGN_GPU ? efs_assign_gpu_ns(&experts[i]) : 0;
    }
    choice->extra = there == 0 ? EFS_ASSIGN_EXTRA_CPU : there == count ? EFS_ASSIGN_EXTRA_GPU : EFS_ASSIGN_EXTRA_BOTH;
    choice->ns = cpu_ns > gpu_ns ? cpu_ns : gpu_ns;
}

/* Replaces the assignment by one to a single device, if that ends sooner with the extra time. */
static void prefer_single_device(const struct efs_assign_costs *costs, const struct efs_assign_expert *experts,
                                 uint32_t count, uint64_t room_bytes, uint32_t tokens, uint8_t *device)
{
    uint8_t one[EFS_ASSIGN_EXPERTS_MAX];
    struct efs_assign_choice choice;
    uint64_t missing_bytes = 0;
    choose(experts, count, device, &choice);
    uint64_t best_ns = choice.ns + efs_assign_costs_ns(costs, choice.extra, tokens);
    for (uint32_t i = 0; i < count; i++)
        missing_bytes += experts[i].cached ? 0 : experts[i].bytes;
    for (uint8_t side = EFS_ASSIGN_CPU; side <= EFS_ASSIGN_GPU; side++) {
        if (side == EFS_ASSIGN_GPU && missing_bytes > room_bytes)
            continue;
        memset(one, side, count);
        choose(experts, count, one, &choice);
        const uint64_t ns = choice.ns + efs_assign_costs_ns(costs, choice.extra, tokens);
        if (ns < best_ns) {
            memcpy(device, one, count);
            best_ns = ns;
        }
    }
}

/* Shortens the extra times of the ways that were not used, so that they are tried again. */
static void decay(struct efs_assign_costs *costs, enum efs_assign_cost used)
{
    for (enum efs_assign_cost extra = EFS_ASSIGN_MEASURED; extra < EFS_ASSIGN_COSTS; extra++)
        for (uint32_t b = 0; b < EFS_ASSIGN_BUCKETS && extra != used; b++)
            costs->ns[extra][b] -= costs->ns[extra][b] / (4 * EFS_ASSIGN_MEASURE_INTERVAL);
}

int efs_assign_by_costs(struct efs_assign_costs *costs, struct efs_assign_expert *experts, uint32_t count,
                        uint64_t room_bytes, bool fill, uint32_t tokens, uint8_t *device,
                        struct efs_assign_choice *choice)
{
    const struct efs_assign_pair pair = {.experts = count, .expert = experts, .room_bytes = room_bytes};
    struct efs_assign_sum sum;
    if (count == 0 || count > EFS_ASSIGN_EXPERTS_MAX)
        return -EINVAL;
    for (uint32_t i = 0; i < count; i++) {
        if (experts[i].tokens == 0)
            return -EINVAL;
        set_times(costs, fill, &experts[i]);
    }
    int rc = efs_assign_by(costs->greedy ? EFS_ASSIGN_GREEDY : EFS_ASSIGN_BALANCED, &pair, device, &sum);
    if (rc < 0)
        return rc;
    prefer_single_device(costs, experts, count, room_bytes, tokens, device);
    /* At most one per layer: otherwise two costs that are due would alternate on a layer's only expert. */
    for (enum efs_assign_cost what = 0; what < EFS_ASSIGN_MEASURED; what++)
        if (costs->layers_until_due[what] == 0 && !is_measured(what, experts, count, device) &&
            move_one_to_measure(what, experts, count, device))
            break;
    for (enum efs_assign_cost what = 0; what < EFS_ASSIGN_MEASURED; what++)
        if (is_measured(what, experts, count, device)) {
            costs->layers_until_due[what] =
                costs->tries[what] < 5 ? 2u << costs->tries[what] : EFS_ASSIGN_MEASURE_INTERVAL;
            costs->tries[what] += costs->tries[what] < EFS_ASSIGN_MEASURE_INTERVAL;
        } else if (costs->layers_until_due[what]) {
            costs->layers_until_due[what]--;
        }
    choose(experts, count, device, choice);
    decay(costs, choice->extra);
    choice->tokens = tokens;
    for (uint32_t i = 0; i < count && fill; i++)
        if (device[i] == EFS_ASSIGN_GPU && !experts[i].cached)
            choice->extra = EFS_ASSIGN_COSTS; /* with transfers that were not counted */
    return 0;
}
