/* SPDX-License-Identifier: Apache-2.0 */
/* one_thread.c - see one_thread.h. */
#include "one_thread.h"

#include "budget.h"
#include "extent.h"
#include "idle.h"
#include "plan_thread.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct one_thread *one_thread;

/* Declares and defines the replacement of a function of the engine. */
#define REPLACED(type, name, parameters)                                                                               \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters

REPLACED(uint64_t, efs_thread_number, (void))
{
    return one_thread->number;
}

/* ---- workers ---- */

REPLACED(errint_t, efs_workers_start, (unsigned count, uint32_t shard_elements, struct efs_workers **workers))
{
    (void)count;
    *workers = (struct efs_workers *)&one_thread;
    return one_thread->scratch ? 0 : efs_codec_scratch_new(shard_elements, &one_thread->scratch);
}
REPLACED(void, efs_workers_stop, (struct efs_workers * workers))
{
    assert_true(!workers || one_thread->job_count == 0);
    efs_codec_scratch_free(one_thread->scratch);
    one_thread->scratch = NULL;
}
REPLACED(void, efs_workers_push, (struct efs_workers * workers, struct efs_job *job, enum efs_job_order order))
{
    (void)workers, (void)order;
    assert_true(one_thread->job_count < ONE_THREAD_MAX);
    job->next = NULL;
    one_thread->jobs[one_thread->job_count++] = job;
}

void one_thread_run(unsigned index)
{
    struct efs_job *job = one_thread->jobs[index];
    for (unsigned i = index + 1; i < one_thread->job_count; i++)
        one_thread->jobs[i - 1] = one_thread->jobs[i];
    one_thread->jobs[--one_thread->job_count] = NULL;
    job->run(job, one_thread->scratch);
}

/* ---- the I/O thread ---- */

REPLACED(errint_t, efs_io_queue_start, (const struct efs_io_options *options, struct efs_io_queue **queue))
{
    one_thread->io = *options;
    *queue = (struct efs_io_queue *)&one_thread;
    return 0;
}
REPLACED(void, efs_io_queue_cancel, (struct efs_io_queue * queue))
{
    (void)queue;
}

REPLACED(void, efs_io_queue_stop, (struct efs_io_queue * queue))
{
    assert_true(!queue || one_thread->read_count == 0);
    if (queue)
        one_thread->io.backing->ops->close(one_thread->io.backing, false);
}
REPLACED(void, efs_io_queue_free, (struct efs_io_queue * queue))
{
    (void)queue;
}
REPLACED(void, efs_io_submit, (struct efs_io_queue * queue, struct efs_io *requests))
{
    (void)queue;
    for (struct efs_io *next; requests; requests = next) {
        assert_true(one_thread->read_count < ONE_THREAD_MAX);
        next = requests->next;
        requests->next = NULL;
        one_thread->reads[one_thread->read_count++] = requests;
    }
}
REPLACED(void, efs_io_apply_changes, (struct efs_io_queue * queue))
{
    (void)queue;
}

REPLACED(void, efs_io_wake, (struct efs_io_queue * queue))
{
    (void)queue;
    one_thread->io.completed(one_thread->io.arg);
}

/* ---- the thread of idle work ---- */

REPLACED(errint_t, efs_idle_start, (struct efs_idle * *idle))
{
    *idle = (struct efs_idle *)&one_thread;
    return 0;
}
REPLACED(void, efs_idle_stop, (struct efs_idle * idle))
{
    (void)idle;
}
REPLACED(void, efs_idle_free, (struct efs_idle * idle))
{
    (void)idle;
}
REPLACED(void, efs_idle_push, (struct efs_idle * idle, struct efs_job *job))
{
    (void)idle;
    __wrap_efs_workers_push(NULL, job, EFS_JOB_LOW);
}

void one_thread_complete(unsigned index, errint_t error)
{
    struct efs_io *read = one_thread->reads[index];
    for (unsigned i = index + 1; i < one_thread->read_count; i++)
        one_thread->reads[i - 1] = one_thread->reads[i];
    one_thread->reads[--one_thread->read_count] = NULL;
    if (atomic_load(&read->change) == EFS_IO_CANCEL)
        error = -ECANCELED;
    if (error == 0 && one_thread->read)
        one_thread->read(read);
    read->complete(read, error);
}

/* ---- the plan thread ---- */

REPLACED(errint_t, efs_plan_thread_start, (struct efs * of, struct efs_error *err))
{
    (void)of;
    (void)err;
    return 0;
}
REPLACED(void, efs_plan_thread_stop, (struct efs * of))
{
    (void)of;
}
REPLACED(void, efs_plan_thread_free, (struct efs * of))
{
    (void)of;
}
REPLACED(void, efs_plan_thread_record, (struct efs * of, uint32_t layer, const uint32_t *ids, uint32_t count))
{
    (void)of;
    (void)layer;
    (void)ids;
    (void)count;
}
REPLACED(void, efs_plan_thread_replan, (struct efs * of))
{
    (void)of;
}
REPLACED(void, efs_plan_thread_kick, (struct efs * of))
{
    (void)of;
}

/* ---- bytes ---- */

static void assert_held(const struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = efs_extent(fs, extent);
    assert_true(x->refs > 0 && x->resident == x->required);
}

REPLACED(errint_t, efs_extent_decode,
         (struct efs * of, uint32_t extent, uint32_t object, uint64_t begin, size_t bytes, void *dst, bool stream,
          struct efs_codec_scratch *with))
{
    (void)object;
    (void)begin;
    (void)bytes;
    (void)stream;
    (void)with;
    assert_held(of, extent);
    if (one_thread->decode)
        one_thread->decode(of, extent, dst);
    return 0;
}
REPLACED(errint_t, efs_extent_check, (struct efs * of, uint32_t extent, uint32_t shard))
{
    assert_held(of, extent);
    if (one_thread->check)
        one_thread->check(of, extent);
    atomic_fetch_or(&of->extents->at[extent].checked, 1ull << shard);
    return 0;
}
REPLACED(errint_t, efs_shard_decode_from,
         (struct efs * of, const struct efs_piece *piece, const uint8_t *e, const uint8_t *sm, bool check, void *dst,
          struct efs_codec_scratch *with))
{
    (void)check;
    (void)with;
    if (one_thread->decode_slot)
        one_thread->decode_slot(of, piece->object, e, sm, dst);
    return 0;
}
REPLACED(errint_t, efs_memfile_reserve, (struct efs_memfile * memfile))
{
    (void)memfile;
    return 0;
}
REPLACED(int, efs_sys_populate, (void *data, size_t bytes, bool *populated))
{
    (void)data;
    (void)bytes;
    if (populated)
        *populated = true;
    return 0;
}
REPLACED(int64_t, efs_memory_left_read, (const struct efs_memory_left *left, struct efs_memory *memory))
{
    (void)left;
    *memory = (struct efs_memory){.limit_bytes = UINT64_MAX};
    return INT64_MAX;
}
