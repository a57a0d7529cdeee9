/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_paper.c - Algorithm 1 (cache-affinity scheduling) of ZipMoE appendix A, with Definition A.1.
 *
 * Line 13 inserts a task "at the earliest position" of the block that adds no idle time. Mostly that is the very front,
 * so that each task overtakes those with more tokens, against the order of sigma: the schedule is slower than the order
 * of the request on average.
 *
 * Where the paper leaves a choice:
 *  - "introduces no additional idle period on any thread": the charge of Definition B.1 (idle time of a decode thread
 *    before a decode), summed over all decodes of the block, does not grow. Threads are interchangeable, so an
 *    operation goes to the free thread that has waited least, which keeps the charge smallest (remark to Lemma B.6).
 *  - "compute-dominant": the l-th earliest decode thread ends at least l E-chunk reads after the I/O thread, for
 *    1 <= l <= min(L, K), as 3.3 says in words; where tensors differ, the longest E-chunk read and the largest K.
 *  - "append to the tail of any Type-II job with p_i >= p_j": after the last one in the block; a block without one
 *    (of such p) takes the last such Type-I job.
 *  - Type-II tasks that remain when no Type-I task is left form last blocks in the same way.
 *  - The search has a fixed effort, counted in simulated decodes, which requests of usual size do not reach; when it is
 *    spent, all that is left joins the last block, each task where one without a good position goes.
 */
#include "schedule.h"

/* Decodes that it may simulate, about 13 ns each. For 8 experts x 3 tensors x 3 shards it wants some 2,000, 15,600 at
 * the most. */
#define EFFORT 20000u

/* Where the threads stand at the end of a block. */
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

/* Task numbers by non-increasing p_n, tasks of an expert together, ties as asked for. sorted: task_count entries. */
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

/* Positions of a block that have a decode available, as a bitmap. */
struct open {
    uint64_t bits[EFS_TASK_MAX_TASKS / 64];
    uint16_t chunks[EFS_TASK_MAX_TASKS]; /* decodes available now, by position */
};

static void open_add(struct open *open, uint32_t position, uint32_t chunks)
{
    open->bits[position / 64] |= UINT64_C(1) << position % 64;
    open->chunks[position] = (uint16_t)(open->chunks[position] + chunks);
}

/* Take one decode of the first position that has one; count when none has. */
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
 * The thread that does a decode which can start at `from` at the earliest: among those free by then the one that was
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

/* Run a block of tasks from where the threads stand: reads and decodes, as the work-conserving threads would. */
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

    /* E-chunks come in the order of the block: position and chunk are the next one, arrival_ns when it is there. */
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
            now_ns = arrival_ns; /* nothing to decode: wait for the next chunk */
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

/* Behind the last Type-II task of the block with p_i >= p_j, or else behind the last such Type-I task. */
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

/* Insert a task into a block of count tasks whose timeline is *line, which is brought up to date. */
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
    /* No such position: take it out again, wherever the search left it, and put it at the tail. */
    uint32_t at = 0;
    while (block[at] != task)
        at++;
    for (; at < count; at++)
        block[at] = block[at + 1];
    block_insert(block, count, block_tail_position(builder->graph->tasks, block, count, task), task);
    if (builder->effort)
        block_run(builder, block, count + 1, start, line);
}

/* The tasks of one type that are not in a block yet, in their order. */
struct queue {
    uint16_t task[EFS_TASK_MAX_TASKS];
    uint32_t next, count;
};

static bool queue_take(struct queue *queue, uint16_t *task)
{
    if (queue->next == queue->count)
        return false;
    *task = queue->task[queue->next++];
    return true;
}

void efs_order_paper(const struct efs_graph *graph, struct efs_order *order)
{
    struct builder builder = {.graph = graph, .effort = EFFORT};
    struct queue one, two;
    uint16_t sorted[EFS_TASK_MAX_TASKS], next;
    uint32_t shards = 0;
    one.next = one.count = two.next = two.count = 0;
    order_sort(graph, sorted);
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
    for (uint16_t block = 0; queue_take(&one, &next) || queue_take(&two, &next); block++) {
        uint16_t *tasks = order->task + order->count;
        uint32_t count = 1;
        tasks[0] = next;
        block_run(&builder, tasks, count, &start, &line);
        while ((!builder.effort || !block_compute_dominant(&builder, &line)) &&
               (queue_take(&two, &next) || queue_take(&one, &next))) {
            block_place(&builder, tasks, count, next, &start, &line);
            count++;
        }
        for (uint32_t i = 0; i < count; i++)
            order->block[order->count + i] = block;
        order->count += count;
        start = line;
    }
}
