/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order.c - see order.h. A task of the schedule is a tensor of an expert: all parts of a fetch that are of one object.
 * Where experts consist of more tensors than a schedule takes, or where nothing is to be read, parts go in the order in
 * which they were asked for.
 */
#include "order.h"

#include "cache.h"
#include "schedule.h"
#include "plan_thread.h"
#include "sys.h"

#include <stdlib.h>
#include <string.h>

struct draft {
    struct efs_task_request request;
    struct efs_task_expert *experts;
    struct efs_task_tensor *tensors;
    uint32_t *first; /* part of each tensor, and one after the last: as the parts were before they are sorted */
};

static enum efs_task_state order_state_of(unsigned found)
{
    switch (found) {
    case EFS_BOTH:
        return EFS_TASK_C;
    case EFS_COMPONENT_SM:
        return EFS_TASK_S;
    case EFS_COMPONENT_E:
        return EFS_TASK_E;
    default:
        return EFS_TASK_M;
    }
}

/* What is in memory now; a moment later it may be more. Returns whether anything is to be read. */
static bool order_look(struct efs *fs, struct efs_fetch_part **parts, uint32_t count)
{
    bool reads = false;
    efs_lock(fs);
    for (uint32_t i = 0; i < count; i++) {
        const struct efs_extent *x = efs_extent(fs, parts[i]->waiter.extent);
        unsigned have = x->state == EFS_EXTENT_LOADING ? EFS_BOTH : x->have | (EFS_BOTH & ~(unsigned)x->needs);
        parts[i]->found = (uint8_t)have;
        reads = reads || have != EFS_BOTH;
    }
    efs_unlock(fs);
    return reads;
}

static uint64_t order_clip(double ns)
{
    return ns < 1 ? 1 : ns < (double)EFS_TASK_MAX_NS ? (uint64_t)ns : EFS_TASK_MAX_NS;
}

/* A tensor has a component if all of its extents have it; what is read of one is what lacks. */
static void order_describe(const struct efs *fs, const struct efs_plan_thread_costs *costs,
                           const struct efs_fetch_part *parts, uint32_t count, struct efs_task_tensor *t)
{
    unsigned found = EFS_BOTH;
    uint32_t shards = 0;
    double e = 0, sm = 0, raw = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct efs_extent *x = efs_extent(fs, parts[i].waiter.extent);
        for (uint32_t s = x->shard_first; s < x->shard_first + x->shard_count; s++) {
            e += parts[i].found & EFS_COMPONENT_E ? 0 : fs->store->shards[s].e_bytes;
            sm += parts[i].found & EFS_COMPONENT_SM ? 0 : fs->store->shards[s].sm_bytes;
        }
        found &= parts[i].found;
        shards += parts[i].shards;
        raw += (double)parts[i].bytes;
    }
    *t = (struct efs_task_tensor){.state = order_state_of(found),
                                  .shards = shards,
                                  .e_read_ns = order_clip(e / shards * costs->read_ns_per_byte),
                                  .sm_read_ns = order_clip(sm * costs->read_ns_per_byte),
                                  .decode_ns =
                                      parts->fetch->memfile ? order_clip(raw / shards * costs->decode_ns_per_byte) : 0};
}

/* How many parts from this one on are of one tensor. */
static uint32_t order_same_tensor(const struct efs *fs, const struct efs_fetch_part *parts, uint32_t count)
{
    uint32_t object = efs_extent(fs, parts->waiter.extent)->object, n = 1;
    while (n < count && efs_extent(fs, parts[n].waiter.extent)->object == object)
        n++;
    return n;
}

/* false: more than a schedule takes. */
static bool draft_request(struct efs *fs, struct efs_fetch **fetches, uint32_t count, struct draft *d)
{
    struct efs_plan_thread_costs costs;
    uint32_t tensor = 0;
    efs_plan_thread_costs(fs, &costs);
    if (count > EFS_TASK_MAX_EXPERTS)
        return false;
    for (uint32_t f = 0; f < count; f++) {
        const struct efs_fetch *fetch = fetches[f];
        enum efs_rates_run run = fetch->memfile ? EFS_RUN_FULL : EFS_RUN_CODED;
        uint32_t begin = tensor;
        for (uint32_t i = 0, n; i < fetch->part_count; i += n) {
            n = order_same_tensor(fs, &fetch->parts[i], fetch->part_count - i);
            order_describe(fs, &costs, &fetch->parts[i], n, &d->tensors[tensor++]);
            d->first[tensor] = d->first[tensor - 1] + n;
        }
        d->experts[f] = (struct efs_task_expert){
            .tensors = tensor - begin,
            .run_ns = order_clip(costs.run_expert_ns[run] + fetch->tokens * costs.run_token_ns[run])};
    }
    unsigned workers = fs->options.workers;
    d->request = (struct efs_task_request){.experts = d->experts,
                                           .expert_count = count,
                                           .tensors = d->tensors,
                                           .tensor_count = tensor,
                                           .workers = workers < EFS_TASK_MAX_WORKERS ? workers : EFS_TASK_MAX_WORKERS,
                                           .recovery = EFS_RECOVER_WORKER,
                                           .fused = true};
    return true;
}

/* As asked for: expert after expert, the E-chunks of each, then its SM-chunks. */
static void order_as_asked(struct efs_order_plan *plan, struct efs_fetch_part **parts, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        plan->ask[i] = parts[i];
        plan->reads[plan->read_count++] = (struct efs_order_read){parts[i], false};
        plan->reads[plan->read_count++] = (struct efs_order_read){parts[i], true};
    }
}

/* Tasks are numbered as the tensors were; those of a schedule come in the order of their blocks. */
static void order_take(struct efs_order_plan *plan, struct efs_fetch_part **parts, uint32_t count,
                       const uint32_t *first, const struct efs_graph *graph, const struct efs_schedule *schedule)
{
    uint32_t asked = 0, sorted = 0;
    for (uint32_t i = 0; i < schedule->io_count; i++) {
        const struct efs_op *op = &graph->ops[schedule->io[i]];
        bool sm = op->kind == EFS_OP_READ_SM;
        if (!sm && op->shard > 0)
            continue; /* the E-chunks of a tensor come one after the other */
        for (uint32_t n = first[op->task]; n < first[op->task + 1u]; n++) {
            plan->reads[plan->read_count++] = (struct efs_order_read){parts[n], sm};
            if (!plan->here[n]) /* a mark, till it is filled below */
                plan->ask[asked++] = plan->here[n] = parts[n];
        }
    }
    for (uint32_t i = 0; i < count; i++)
        if (!plan->here[i]) {
            plan->ask[asked++] = parts[i];
            plan->reads[plan->read_count++] = (struct efs_order_read){parts[i], false};
            plan->reads[plan->read_count++] = (struct efs_order_read){parts[i], true};
        }
    memcpy(plan->here, parts, count * sizeof(*parts)); /* by number, while they are sorted by priority */
    for (uint32_t i = 0; i < schedule->order.count; i++)
        for (uint32_t n = first[schedule->order.task[i]]; n < first[schedule->order.task[i] + 1u]; n++)
            parts[sorted++] = plan->here[n];
    plan->makespan_ns = schedule->makespan_ns;
}

static bool order_schedule(struct efs *fs, struct efs_order_plan *plan, struct efs_fetch_part **parts, uint32_t count,
                           struct efs_fetch **fetches, uint32_t fetch_count)
{
    struct draft d = {.experts = efs_sys_calloc(fetch_count, sizeof(*d.experts)),
                      .tensors = efs_sys_calloc(count, sizeof(*d.tensors)),
                      .first = efs_sys_calloc(count + 1u, sizeof(*d.first))};
    struct efs_graph graph;
    struct efs_schedule schedule;
    void *memory = NULL, *more = NULL;
    bool done = false;
    size_t bytes = d.experts && d.tensors && d.first && draft_request(fs, fetches, fetch_count, &d)
                       ? efs_graph_bytes(&d.request)
                       : 0;
    if (bytes)
        memory = efs_sys_malloc(bytes);
    if (memory && efs_graph_build(&d.request, memory, bytes, &graph) == 0 &&
        graph.task_count == d.request.tensor_count) {
        bytes = efs_schedule_bytes(&graph);
        more = efs_sys_malloc(bytes);
        done = more && efs_schedule_make(&graph, (enum efs_schedule_kind)fs->schedule, more, bytes, &schedule) == 0;
    }
    if (done)
        order_take(plan, parts, count, d.first, &graph, &schedule);
    free(more);
    free(memory);
    free(d.first);
    free(d.tensors);
    free(d.experts);
    return done;
}

struct efs_order_plan *efs_order_new(struct efs *fs, struct efs_fetch_part **parts, uint32_t count,
                                     struct efs_fetch **fetches, uint32_t fetch_count)
{
    struct efs_order_plan *plan = efs_sys_calloc(1, sizeof(*plan));
    if (!plan)
        return NULL;
    plan->ask = efs_sys_calloc(count + 1u, sizeof(struct efs_fetch_part *));
    plan->here = efs_sys_calloc(count + 1u, sizeof(struct efs_fetch_part *));
    plan->reads = efs_sys_calloc(2 * (size_t)count + 1, sizeof(*plan->reads));
    if (!plan->ask || !plan->here || !plan->reads) {
        efs_order_free(plan);
        return NULL;
    }
    bool reads = order_look(fs, parts, count);
    uint64_t begin = efs_now_ns();
    if (!reads || count < 2 || !order_schedule(fs, plan, parts, count, fetches, fetch_count)) {
        order_as_asked(plan, parts, count);
    } else {
        efs_count(&fs->stats, schedules, 1);
        efs_count(&fs->stats, schedule_ns, efs_now_ns() - begin);
    }
    return plan;
}

void efs_order_free(struct efs_order_plan *plan)
{
    free(plan->reads);
    free(plan->here);
    free(plan->ask);
    free(plan);
}
