/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_zipmoe.c - Algorithm 1 (cache-affinity scheduling) of ZipMoE appendix A, with Definition A.1.
 *
 * Line 13 inserts a task "at the earliest position" of the block that adds no idle time. In most cases that is the
 * front, so each task overtakes those with more tokens, against the order of sigma: on average the schedule is slower
 * than the order of the request.
 *
 * Choices where the paper is not specific:
 *
 * - "introduces no additional idle period on any thread": the charge of Definition B.1 (idle time of a decode thread
 *   before a decode), summed over all decodes of the block, does not grow. Threads are interchangeable, so an operation
 *   runs on the free thread that has waited least, which minimises the charge (remark to Lemma B.6).
 * - "compute-dominant": the l-th earliest decode thread ends at least l E-chunk reads after the I/O thread, for 1 <= l
 *   <= min(L, K), as 3.3 says in words; where tensors differ, the longest E-chunk read and the largest K.
 * - "append to the tail of any Type-II job with p_i >= p_j": after the last one in the block; in a block without one
 *   (of such p), after the last such Type-I job.
 * - Type-II tasks that remain after the last Type-I task form final blocks in the same way.
 * - The search has a fixed effort, counted in simulated decodes, which requests of usual size do not reach. After that,
 *   all remaining tasks join the last block, each at the position for tasks without a good one.
 */
#include "schedule.h"

/* Limit of simulated decodes, about 13 ns each. 8 experts x 3 tensors x 3 shards need about 2,000, at most 15,600. */
#define EFFORT 20000u

/* State of the threads at the end of a block. */
struct timeline {
    uint64_t io_ns, charge_ns;
    uint64_t thread_ns[EFS_TASK_MAX_WORKERS];
};

struct builder {
    const struct efs_graph *graph;
    uint64_t e_read_ns; /* the longest read of an E-chunk */
    uint32_t threads;   /* min(L, K) */
    uint32_t effort;
};

/* A task whose SM-chunk has to be read is of Type I, any other of Type II (3.3, task partition). */
static bool task_type_one(const struct efs_task *task)
{
    return task->state == EFS_TASK_M || task->state == EFS_TASK_E;
}

/* Task numbers by non-increasing p_n, tasks of an expert together, ties in the order of the request. sorted: task_count
 * entries. */
static void order_sort(const struct efs_graph *graph, uint16_t *sorted)
{
    uint16_t experts[EFS_TASK_MAX_EXPERTS];
    uint32_t out = 0, first[EFS_TASK_MAX_EXPERTS + 1], task = 0;
    for (uint32_t n = 0; n < graph->expert_count; n++) { /* tasks of expert n: first[n] .. first[n + 1] - 1 */
        first[n] = task;
        while (task < graph->task_count && graph->tasks[task].expert == n)
            task++;
        uint64_t run_ns = graph->ops[graph->first_run + n].cost_ns;
        uint32_t at = n;
        for (; at && graph->ops[graph->first_run + experts[at - 1]].cost_ns < run_ns; at--)
            experts[at] = experts[at - 1];
        experts[at] = (uint16_t)n;
    }
    first[graph->expert_count] = task;
    for (uint32_t i = 0; i < graph->expert_count; i++)
        for (uint32_t t = first[experts[i]]; t < first[experts[i] + 1]; t++)
            sorted[out++] = (uint16_t)t;
}

/* Positions of a block with an available decode, as a bitmap. */
struct open {
    uint64_t bits[EFS_TASK_MAX_TASKS / 64];
    uint16_t chunks[EFS_TASK_MAX_TASKS]; /* available decodes, by position */
};

static void open_add(struct open *open, uint32_t position, uint32_t chunks)
{
    open->bits[position / 64] |= UINT64_C(1) << position % 64;
    open->chunks[position] = (uint16_t)(open->chunks[position] + chunks);
}

/* Removes one decode of the first position with one and returns the position; count if no position has any. */
static uint32_t open_take(struct open *open, uint32_t count)
{
    for (uint32_t w = 0; w * 64 < count; w++) {
        if (!open->bits[w])
            continue;
        uint32_t position = w * 64 + (uint32_t)__builtin_ctzll(open->bits[w]);
        if (--open->chunks[position] == 0)
            open->bits[w] &= open->bits[w] - 1;
        return position;
    }
    return count;
}

/*
 * The thread for a decode that can start at `from` at the earliest: among the threads free by then the one that was
 * busy longest (least charge), else the one that is free first.
 */
static uint32_t timeline_pick_thread(const struct timeline *line, uint32_t workers, uint64_t from)
{
    uint32_t best = 0;
    for (uint32_t l = 1; l < workers; l++) {
        uint64_t end = line->thread_ns[l], best_end = line->thread_ns[best];
        if (best_end > from ? end < best_end : end <= from && end > best_end)
            best = l;
    }
    return best;
}

static uint64_t timeline_first_free(const struct timeline *line, uint32_t workers)
{
    uint64_t free_ns = line->thread_ns[0];
    for (uint32_t l = 1; l < workers; l++)
        free_ns = line->thread_ns[l] < free_ns ? line->thread_ns[l] : free_ns;
    return free_ns;
}

/* Simulates a block of tasks from the state of the threads: reads and decodes on work-conserving threads. */
static void block_run(struct builder *builder, const uint16_t *tasks, uint32_t count, const struct timeline *start,
                      struct timeline *line)
{
    const struct efs_task *all = builder->graph->tasks;
    uint32_t workers = builder->graph->workers, left = 0, position, chunk = 0;
    struct open open;
    for (uint32_t w = 0; w * 64 < count; w++)
        open.bits[w] = 0;
    *line = *start;
    line->charge_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct efs_task *task = &all[tasks[i]];
        open.chunks[i] = 0;
        left += task->shards;
        line->io_ns += task->e_read_ns * task->shards + task->sm_read_ns;
        if (task->read_e == EFS_OP_NONE)
            open_add(&open, i, task->shards);
    }
    builder->effort = builder->effort > left ? builder->effort - left : 0;

    /* E-chunks arrive in the order of the block: position and chunk are the next one, arrival_ns its arrival. */
    uint64_t arrival_ns = start->io_ns, now_ns = 0;
    for (position = 0; position < count && all[tasks[position]].read_e == EFS_OP_NONE; position++)
        ;
    if (position < count)
        arrival_ns += all[tasks[position]].e_read_ns;
    for (; left; left--) {
        uint64_t free_ns = timeline_first_free(line, workers);
        now_ns = free_ns > now_ns ? free_ns : now_ns;
        uint32_t taken = count;
        for (;;) {
            while (position < count && arrival_ns <= now_ns) {
                open_add(&open, position, 1);
                if (++chunk == all[tasks[position]].shards) {
                    chunk = 0;
                    for (position++; position < count && all[tasks[position]].read_e == EFS_OP_NONE; position++)
                        ;
                }
                arrival_ns += position < count ? all[tasks[position]].e_read_ns : 0;
            }
            taken = open_take(&open, count);
            if (taken < count)
                break;
            now_ns = arrival_ns; /* no decode available: wait for the next chunk */
        }
        uint32_t thread = timeline_pick_thread(line, workers, now_ns);
        line->charge_ns += now_ns - line->thread_ns[thread];
        line->thread_ns[thread] = now_ns + all[tasks[taken]].decode_ns;
    }
}

/* Definition A.1. */
static bool block_compute_dominant(const struct builder *builder, const struct timeline *line)
{
    uint64_t sorted[EFS_TASK_MAX_WORKERS];
    uint32_t workers = builder->graph->workers;
    for (uint32_t l = 0; l < workers; l++) {
        uint32_t at = l;
        for (; at && sorted[at - 1] > line->thread_ns[l]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = line->thread_ns[l];
    }
    for (uint32_t l = 1; l <= builder->threads; l++)
        if (sorted[l - 1] < line->io_ns + l * builder->e_read_ns)
            return false;
    return true;
}

static void block_insert(uint16_t *block, uint32_t count, uint32_t position, uint16_t task)
{
    for (uint32_t i = count; i > position; i--)
        block[i] = block[i - 1];
    block[position] = task;
}

/* The position after the last Type-II task of the block with p_i >= p_j, or else after the last such Type-I task, or
 * else the end. */
static uint32_t block_tail_position(const struct efs_task *all, const uint16_t *block, uint32_t count, uint16_t task)
{
    uint32_t type_one = count, type_two = 0;
    bool found_one = false;
    for (uint32_t i = 0; i < count; i++) {
        if (all[block[i]].run_ns < all[task].run_ns)
            continue;
        if (!task_type_one(&all[block[i]])) {
            type_two = i + 1;
        } else {
            type_one = i + 1;
            found_one = true;
        }
    }
    if (type_two)
        return type_two;
    return found_one ? type_one : count;
}

/* Inserts a task into a block of count tasks with timeline *line, and updates the timeline. */
static void block_place(struct builder *builder, uint16_t *block, uint32_t count, uint16_t task,
                        const struct timeline *start, struct timeline *line)
{
    struct timeline trial;
    uint64_t charge_ns = line->charge_ns;
    block_insert(block, count, 0, task);
    for (uint32_t position = 0; builder->effort && position <= count; position++) {
        block_run(builder, block, count + 1, start, &trial);
        if (trial.charge_ns <= charge_ns) {
            *line = trial;
            return;
        }
        if (position < count) {
            block[position] = block[position + 1];
            block[position + 1] = task;
        }
    }
    /* No such position: remove the task from where the search left it, and insert it at the tail. */
    uint32_t at = 0;
    while (block[at] != task)
        at++;
    for (; at < count; at++)
        block[at] = block[at + 1];
    block_insert(block, count, block_tail_position(builder->graph->tasks, block, count, task), task);
    if (builder->effort)
        block_run(builder, block, count + 1, start, line);
}

/* The tasks of one type that are in no block yet, in order. */
struct queue {
    uint16_t *task;
    uint32_t next, count;
};

static bool queue_pop(struct queue *queue, uint16_t *task)
{
    if (queue->next == queue->count)
        return false;
    *task = queue->task[queue->next++];
    return true;
}

void efs_order_paper(const struct efs_graph *graph, uint16_t *scratch, struct efs_order *order)
{
    struct builder builder = {.graph = graph, .effort = EFFORT};
    struct queue one = {.task = scratch}, two = {.task = scratch};
    uint16_t *sorted = order->task, next; /* all are in the queues before the order is written */
    uint32_t shards = 0;
    order_sort(graph, sorted);
    for (uint32_t i = 0; i < graph->task_count; i++)
        two.task += task_type_one(&graph->tasks[i]);
    for (uint32_t i = 0; i < graph->task_count; i++) {
        const struct efs_task *task = &graph->tasks[sorted[i]];
        struct queue *queue = task_type_one(task) ? &one : &two;
        queue->task[queue->count++] = sorted[i];
        shards = task->shards > shards ? task->shards : shards;
        builder.e_read_ns = task->e_read_ns > builder.e_read_ns ? task->e_read_ns : builder.e_read_ns;
    }
    builder.threads = graph->workers < shards ? graph->workers : shards;

    struct timeline start = {0}, line;
    order->count = 0;
    for (uint16_t block = 0; queue_pop(&one, &next) || queue_pop(&two, &next); block++) {
        uint16_t *tasks = order->task + order->count;
        uint32_t count = 1;
        tasks[0] = next;
        block_run(&builder, tasks, count, &start, &line);
        while ((!builder.effort || !block_compute_dominant(&builder, &line)) &&
               (queue_pop(&two, &next) || queue_pop(&one, &next))) {
            block_place(&builder, tasks, count, next, &start, &line);
            count++;
        }
        for (uint32_t i = 0; i < count; i++)
            order->block[order->count + i] = block;
        order->count += count;
        start = line;
    }
}
