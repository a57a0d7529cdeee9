/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optimum.h - the shortest makespan of a small request, by branch and bound over all schedules.
 *
 * Reads depend on nothing, so an optimal schedule reads without a pause: the search tries every order of the reads. For
 * each, it tries the decodes in every order of non-decreasing start times, each on the worker that is free first (on
 * equal workers with release times one of these orders is optimal; a worker may be left idle on purpose). The executor
 * is the last stage, where first come, first served is optimal. Recoveries must cost 0, and decodes must not be fused.
 *
 * The E-chunk reads of a task are interchangeable, as are its decodes, so the search tries one order of them.
 */
#ifndef OPTIMUM_H
#define OPTIMUM_H

#include "bounds.h"

#define OPTIMUM_TASKS 6
#define OPTIMUM_SHARDS 4

struct optimum {
    const struct efs_graph *graph;
    uint64_t best_ns;  /* the shortest makespan found */
    uint64_t lower_ns; /* a lower bound for all schedules */
    bool prune;        /* false: search exhaustively, to check the pruning */
    uint64_t leaves;
    /* reads */
    uint32_t e_left[OPTIMUM_TASKS], reads_left;
    bool sm_left[OPTIMUM_TASKS];
    uint64_t e_ns[OPTIMUM_TASKS][OPTIMUM_SHARDS]; /* when each chunk that was read arrived */
    uint64_t sm_ns[OPTIMUM_TASKS];
    /* decodes */
    uint32_t decoded[OPTIMUM_TASKS];
    uint64_t decoded_ns[OPTIMUM_TASKS]; /* end of the last decode placed */
    uint64_t worker_ns[EFS_TASK_MAX_WORKERS];
};

/* End of the last run when the decodes and the SM-chunk of task i are complete at ready_ns[i]. */
static inline uint64_t optimum_runs(const struct optimum *o, const uint64_t *ready_ns)
{
    const struct efs_graph *graph = o->graph;
    uint64_t at[EFS_TASK_MAX_EXPERTS] = {0}, now_ns = 0;
    bool done[EFS_TASK_MAX_EXPERTS] = {false};
    for (uint32_t i = 0; i < graph->task_count; i++)
        at[graph->tasks[i].expert] = bounds_larger(at[graph->tasks[i].expert], ready_ns[i]);
    for (uint32_t round = 0; round < graph->expert_count; round++) {
        uint32_t next = graph->expert_count;
        for (uint32_t n = 0; n < graph->expert_count; n++)
            if (!done[n] && (next == graph->expert_count || at[n] < at[next]))
                next = n;
        done[next] = true;
        now_ns = bounds_larger(now_ns, at[next]) + graph->ops[graph->first_run + next].cost_ns;
    }
    return now_ns;
}

/* A lower bound for the time when task i is ready. now_ns: end of the reads placed; its remaining reads are assumed to
 * come next. */
static inline uint64_t optimum_ready(const struct optimum *o, uint32_t i, uint64_t now_ns)
{
    const struct efs_task *task = &o->graph->tasks[i];
    uint64_t workers = o->graph->workers, ready_ns = o->decoded_ns[i];
    for (uint32_t k = o->decoded[i]; k < task->shards; k++) {
        uint32_t read = task->shards - o->e_left[i];
        uint64_t there_ns = task->read_e == EFS_OP_NONE ? 0
                            : k < read                  ? o->e_ns[i][k]
                                                        : now_ns + (k - read + 1) * task->e_read_ns;
        ready_ns = bounds_larger(ready_ns, there_ns + (task->shards - k + workers - 1) / workers * task->decode_ns);
    }
    if (task->read_sm == EFS_OP_NONE)
        return ready_ns;
    return bounds_larger(ready_ns, o->sm_left[i] ? now_ns + task->sm_read_ns : o->sm_ns[i]);
}

/* The shortest run time of the experts that still have decodes left; 0 when none has. */
static inline uint64_t optimum_shortest_run(const struct optimum *o)
{
    uint64_t run_ns = UINT64_MAX;
    for (uint32_t i = 0; i < o->graph->task_count; i++)
        if (o->decoded[i] < o->graph->tasks[i].shards && o->graph->tasks[i].run_ns < run_ns)
            run_ns = o->graph->tasks[i].run_ns;
    return run_ns == UINT64_MAX ? 0 : run_ns;
}

/*
 * A lower bound for the end of the last decode, the larger of two. By reads: the j-th of the unread chunks arrives
 * after at least j of the shortest reads, and the workers share all decodes from the i-th arrival on. By decodes: the
 * workers share the remaining decodes in addition to those already placed.
 */
static inline uint64_t optimum_capacity(const struct optimum *o, uint64_t now_ns)
{
    const struct efs_graph *graph = o->graph;
    uint64_t there_ns[OPTIMUM_TASKS * OPTIMUM_SHARDS], e_ns = UINT64_MAX, c_ns = UINT64_MAX, end_ns = 0, sum_ns = 0;
    uint32_t count = 0, unread = 0;
    for (uint32_t l = 0; l < graph->workers; l++)
        sum_ns += o->worker_ns[l];
    for (uint32_t i = 0; i < graph->task_count; i++) {
        const struct efs_task *task = &graph->tasks[i];
        for (uint32_t k = o->decoded[i]; k < task->shards; k++) {
            sum_ns += task->decode_ns;
            c_ns = task->decode_ns < c_ns ? task->decode_ns : c_ns;
            if (o->e_left[i] && k >= task->shards - o->e_left[i]) {
                e_ns = task->e_read_ns < e_ns ? task->e_read_ns : e_ns;
                unread++;
                continue;
            }
            uint64_t arrival_ns = task->read_e == EFS_OP_NONE ? 0 : o->e_ns[i][k];
            uint32_t at = count++;
            for (; at && there_ns[at - 1] > arrival_ns; at--)
                there_ns[at] = there_ns[at - 1];
            there_ns[at] = arrival_ns;
        }
    }
    for (uint32_t j = 1; j <= unread; j++)
        there_ns[count++] = now_ns + j * e_ns;
    for (uint32_t i = 0; i < count; i++)
        end_ns = bounds_larger(end_ns, there_ns[i] + (count - i + graph->workers - 1) / graph->workers * c_ns);
    return bounds_larger(end_ns, (sum_ns + graph->workers - 1) / graph->workers);
}

static inline bool optimum_hopeless(const struct optimum *o, uint64_t now_ns)
{
    uint64_t ready_ns[OPTIMUM_TASKS];
    if (!o->prune)
        return false;
    if (o->best_ns == o->lower_ns || optimum_capacity(o, now_ns) + optimum_shortest_run(o) >= o->best_ns)
        return true;
    for (uint32_t i = 0; i < o->graph->task_count; i++)
        ready_ns[i] = optimum_ready(o, i, now_ns);
    return optimum_runs(o, ready_ns) >= o->best_ns;
}

/* True if tasks a and b of one expert are equal and neither was started: only one of them needs to be tried next. */
static inline bool optimum_alike(const struct optimum *o, uint32_t a, uint32_t b)
{
    const struct efs_task *x = &o->graph->tasks[a], *y = &o->graph->tasks[b];
    bool same = x->expert == y->expert && x->state == y->state && x->shards == y->shards &&
                x->e_read_ns == y->e_read_ns && x->sm_read_ns == y->sm_read_ns && x->decode_ns == y->decode_ns;
    if (!same || !o->prune || o->decoded[a] || o->decoded[b])
        return false;
    if (o->reads_left)
        return o->e_left[a] == (x->read_e == EFS_OP_NONE ? 0 : x->shards) && o->e_left[b] == o->e_left[a] &&
               o->sm_left[a] == (x->read_sm != EFS_OP_NONE) && o->sm_left[b] == o->sm_left[a];
    return x->read_e == EFS_OP_NONE && o->sm_ns[a] == o->sm_ns[b];
}

static inline bool optimum_tried(const struct optimum *o, uint32_t task)
{
    for (uint32_t i = 0; i < task; i++)
        if (optimum_alike(o, i, task))
            return true;
    return false;
}

static inline void optimum_decode(struct optimum *o, uint64_t last_start_ns, uint32_t left)
{
    const struct efs_graph *graph = o->graph;
    if (optimum_hopeless(o, 0))
        return;
    if (left == 0) {
        uint64_t ready_ns[OPTIMUM_TASKS];
        for (uint32_t i = 0; i < graph->task_count; i++)
            ready_ns[i] = bounds_larger(o->decoded_ns[i], o->sm_ns[i]);
        uint64_t end_ns = optimum_runs(o, ready_ns);
        o->best_ns = end_ns < o->best_ns ? end_ns : o->best_ns;
        o->leaves++;
        return;
    }
    uint32_t worker = 0;
    for (uint32_t l = 1; l < graph->workers; l++)
        worker = o->worker_ns[l] < o->worker_ns[worker] ? l : worker;
    for (uint32_t i = 0; i < graph->task_count; i++) {
        const struct efs_task *task = &graph->tasks[i];
        uint32_t k = o->decoded[i];
        if (k == task->shards || optimum_tried(o, i))
            continue;
        uint64_t there_ns = task->read_e == EFS_OP_NONE ? 0 : o->e_ns[i][k];
        uint64_t start_ns = bounds_larger(there_ns, o->worker_ns[worker]);
        if (start_ns < last_start_ns)
            continue;
        uint64_t worker_ns = o->worker_ns[worker], decoded_ns = o->decoded_ns[i];
        o->worker_ns[worker] = start_ns + task->decode_ns;
        o->decoded_ns[i] = bounds_larger(decoded_ns, start_ns + task->decode_ns);
        o->decoded[i]++;
        optimum_decode(o, start_ns, left - 1);
        o->decoded[i]--;
        o->decoded_ns[i] = decoded_ns;
        o->worker_ns[worker] = worker_ns;
    }
}

static inline void optimum_read(struct optimum *o, uint64_t now_ns)
{
    const struct efs_graph *graph = o->graph;
    if (optimum_hopeless(o, now_ns))
        return;
    if (o->reads_left == 0) {
        optimum_decode(o, 0, graph->decodes);
        return;
    }
    for (uint32_t i = 0; i < graph->task_count; i++) {
        const struct efs_task *task = &graph->tasks[i];
        if (optimum_tried(o, i))
            continue;
        o->reads_left--;
        if (o->e_left[i]) {
            uint64_t end_ns = now_ns + task->e_read_ns;
            o->e_ns[i][task->shards - o->e_left[i]] = end_ns;
            o->e_left[i]--;
            optimum_read(o, end_ns);
            o->e_left[i]++;
        }
        if (o->sm_left[i]) {
            o->sm_left[i] = false;
            o->sm_ns[i] = now_ns + task->sm_read_ns;
            optimum_read(o, o->sm_ns[i]);
            o->sm_ns[i] = 0;
            o->sm_left[i] = true;
        }
        o->reads_left++;
    }
}

/*
 * The optimum of a graph of at most OPTIMUM_TASKS tasks. known_ns: the makespan of some schedule, or UINT64_MAX. The
 * search stops early only at lower_ns, which must be a true lower bound. Adds the number of complete schedules to
 * *leaves.
 */
static inline uint64_t optimum_search(const struct efs_graph *graph, uint64_t known_ns, uint64_t lower_ns, bool prune,
                                      uint64_t *leaves)
{
    struct optimum o = {.graph = graph, .best_ns = known_ns, .lower_ns = lower_ns, .prune = prune};
    for (uint32_t i = 0; i < graph->task_count; i++) {
        o.e_left[i] = graph->tasks[i].read_e == EFS_OP_NONE ? 0 : graph->tasks[i].shards;
        o.sm_left[i] = graph->tasks[i].read_sm != EFS_OP_NONE;
        o.reads_left += o.e_left[i] + o.sm_left[i];
    }
    optimum_read(&o, 0);
    if (leaves)
        *leaves += o.leaves;
    return o.best_ns;
}

#endif
