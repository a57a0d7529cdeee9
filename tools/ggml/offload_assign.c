/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offload_assign.c - which experts of a call the device computes, and which the processor where they lie: by
 * efs_assign_by_costs() and the times of the calls before. An expert that has a slot needs no copy; a copy to
 * an empty slot counts as free.
 */
#include "offload.h"

#include <errno.h>
#include <string.h>

static uint32_t tokens_of(const struct offload_call *call, const struct chosen *c)
{
    return call->p.needs[c->item].tokens;
}

/* Sets side[] for each chosen expert. */
static errint_t assign(struct offload_call *call, struct efs_assign_expert *experts, uint8_t *side)
{
    const struct efsg_offload *o = call->o;
    const uint32_t count = call->p.chosen_count;
    uint32_t missing = 0;
    memset(side, EFS_ASSIGN_GPU, count);
    call->choice.extra = EFS_ASSIGN_COSTS;
    if (!o->shares || count > EFS_ASSIGN_EXPERTS_MAX)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct chosen *c = &call->p.chosen[i];
        const bool cached = efs_device_slots_find(o->slots, call->index, c->expert) >= 0;
        experts[i] = (struct efs_assign_expert){.tokens = tokens_of(call, c), .cached = cached};
        missing += !cached;
    }
    return efs_assign_by_costs(call->costs, experts, count, UINT64_MAX,
                               missing <= efs_device_slots_empty(o->slots, call->index),
                               (uint32_t)call->p.nodes[0]->src[2]->ne[1], side, &call->choice);
}

errint_t offload_assign(struct offload_call *call)
{
    struct efsg_offload *o = call->o;
    const uint32_t count = call->p.chosen_count;
    struct efs_assign_expert *experts =
        efsg_memory(&o->split, count * (sizeof(*experts) + 2 * sizeof(*call->order) + 2 * sizeof(uint32_t) + 1));
    if (!experts)
        return -ENOMEM;
    call->order = (void *)(experts + count);
    call->missing = call->order + count;
    uint32_t *numbers = (void *)(call->missing + count), *tokens = numbers + count, at = 0, end[3];
    uint8_t *side = (void *)(tokens + count);
    errint_t rc = assign(call, experts, side);
    for (unsigned kind = 0; kind < 3; end[kind++] = at) /* in slots; to be copied; of the processor */
        for (uint32_t i = 0; i < count; i++) {
            const struct chosen *c = &call->p.chosen[i];
            const bool cached = efs_device_slots_find(o->slots, call->index, c->expert) >= 0;
            if ((side[i] == EFS_ASSIGN_CPU ? 2u : !cached) == kind)
                call->order[at++] = c;
            numbers[i] = c->expert;
            tokens[i] = tokens_of(call, c);
        }
    call->found = end[0];
    call->device = end[1];
    call->whole = call->device == count && count <= o->slot_count;
    return rc == 0 ? efs_device_slots_request(o->slots, call->index, numbers, tokens, count) : rc;
}

/* Records the time of some experts, as if each had the same number of tokens. */
static void record(struct offload_call *call, enum efs_assign_cost what, uint32_t begin, uint32_t end, uint64_t ns)
{
    uint64_t tokens = 0;
    for (uint32_t i = begin; i < end; i++)
        tokens += tokens_of(call, call->order[i]);
    if (end > begin)
        efs_assign_costs_record(call->costs, what, (uint32_t)(tokens / (end - begin)), ns / (end - begin));
}

void offload_measured(struct offload_call *call, uint64_t ns)
{
    const uint32_t count = call->p.chosen_count;
    if (call->copied)
        efs_assign_costs_record(call->costs, EFS_ASSIGN_COST_LINK, 1, call->copy_ns / call->copied);
    record(call, EFS_ASSIGN_COST_GPU, 0, call->device, call->device_ns);
    record(call, EFS_ASSIGN_COST_CPU, call->device, count, call->host_ns);
    efs_assign_costs_record_layer(call->costs, &call->choice, ns);
    call->o->counts.computed += count - call->device;
}
