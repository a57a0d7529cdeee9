/* SPDX-License-Identifier: Apache-2.0 */
/*
 * routing.c - finds experts by stack, layer and number in the layer; checks the chosen or predicted experts that a
 * caller reports, and passes them to prefetch/, or counts them. Reports that experts are used to the trace, the
 * predictor, the planner and the policy, in this order: the first three see the experts where the request found them.
 */
#include "fetch.h"

#include "budget.h"
#include "plan_thread.h"
#include "prefetcher.h"
#include "record.h"

#include <errno.h>
#include <string.h>

/* The experts of a layer: numbers [first, end) in the store. */
struct span {
    uint32_t first, end;
};

static bool span_find(const struct efs *fs, const char *stack, uint32_t layer, struct span *span)
{
    const struct efs_store *store = fs->store;
    size_t stack_bytes = strlen(stack);
    for (uint32_t l = 0; l < efs_cache(fs)->layers; l++) {
        const struct efs_disk_group *g = &store->groups[efs_cache(fs)->layer_first[l]];
        if (g->layer == layer && g->stack_bytes == stack_bytes &&
            memcmp(store->strings + g->stack_offset, stack, stack_bytes) == 0) {
            *span = (struct span){efs_cache(fs)->layer_first[l], efs_cache(fs)->layer_first[l + 1]};
            return true;
        }
    }
    return false;
}

/* Binary search by number in the layer. Returns the number in the store; UINT32_MAX: none. */
static uint32_t span_expert(const struct efs *fs, struct span span, uint32_t number)
{
    while (span.first < span.end) {
        uint32_t middle = span.first + (span.end - span.first) / 2, at = fs->store->groups[middle].expert;
        if (at == number)
            return middle;
        if (at < number)
            span.first = middle + 1;
        else
            span.end = middle;
    }
    return UINT32_MAX;
}

errint_t efs_experts_find(const struct efs *fs, const char *stack, uint32_t layer, struct efs_need *needs,
                          uint32_t count, struct efs_error *err)
{
    struct span span;
    if (!span_find(fs, stack, layer, &span))
        return efs_fail(err, -ENOENT, "there is no layer experts/%.31s%sL%02u", stack, *stack ? "-" : "", layer);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t found = span_expert(fs, span, needs[i].expert);
        if (found == UINT32_MAX)
            return efs_fail(err, -ENOENT, "layer %.31s%sL%02u has no expert %u", stack, *stack ? "-" : "", layer,
                            needs[i].expert);
        needs[i].expert = found;
    }
    return 0;
}

/* ---- routing ---- */

/* Programs here have chosen these experts: for the trace, and the counts. Lock held. */
static void count_choice(struct efs *fs, uint32_t layer, const uint32_t *ids, const uint32_t *tokens, uint32_t count,
                         bool named)
{
    efs_record_request(fs, layer, ids, tokens, count, named);
    if (efs_cache(fs)->policy)
        efs_plan_thread_record(fs, layer, ids, count);
}

errint_t efs_routing_submit(struct efs *fs, uint32_t observer, enum efs_routing_kind kind,
                            const struct efs_routing *from, struct efs_error *err)
{
    struct efs_routing routing;
    struct efs_need needs[EFS_ROUTING_EXPERTS];
    uint32_t ids[EFS_ROUTING_EXPERTS], tokens[EFS_ROUTING_EXPERTS];
    errint_t rc = efs_routing_check(from, &routing, kind, err);
    struct efs_prefetcher_layer layer = {.observer = observer,
                                         .sequence = routing.sequence,
                                         .count = routing.count,
                                         .ids = ids,
                                         .weights = routing.weights};
    for (uint32_t i = 0; rc == 0 && i < routing.count; i++)
        needs[i] = (struct efs_need){.expert = routing.experts[i]};
    if (rc == 0 && routing.count)
        rc = efs_experts_find(fs, routing.stack, routing.layer, needs, routing.count, err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < routing.count; i++) {
        layer.layer = efs_cache(fs)->expert[needs[i].expert].layer;
        ids[i] = needs[i].expert - efs_cache(fs)->layer_first[layer.layer];
        tokens[i] = routing.weights && routing.weights[i] >= 1 ? (uint32_t)routing.weights[i] : 1;
    }
    if (kind == EFS_ROUTING_CHOSEN) {
        efs_prefetcher_observe(fs, &layer);
    } else if (kind == EFS_ROUTING_PREDICTED && routing.count) {
        efs_prefetcher_hint(fs, &layer);
    } else if (routing.count) {
        efs_lock(fs);
        count_choice(fs, layer.layer, ids, tokens, routing.count, true);
        efs_unlock(fs);
    }
    return 0;
}

/* ---- uses ---- */

static void uses_place(struct efs *fs, const struct efs_uses *uses, bool counted)
{
    if (!uses->count)
        return;
    if (!counted)
        count_choice(fs, uses->layer, uses->ids, uses->tokens, uses->count, uses->named);
    efs_prefetcher_requested(fs, uses->layer, uses->ids, uses->count, uses->named);
    efs_cache_place(fs, uses);
}

void efs_use_experts(struct efs *fs, const struct efs_need *needs, uint32_t count, enum efs_use_kind kind)
{
    struct efs_uses uses;
    efs_budget_use_experts(fs);
    efs_cache_request(fs, needs, count, kind, &uses);
    uses_place(fs, &uses, kind == EFS_USE_COUNTED);
}

void efs_use_bytes(struct efs *fs, uint32_t expert, uint64_t bytes)
{
    struct efs_uses uses;
    efs_cache_read(fs, expert, bytes, &uses);
    uses_place(fs, &uses, false);
}
