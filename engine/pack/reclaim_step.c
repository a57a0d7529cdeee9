/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim_step.c - a step forward: pack, sync, read back and compare, journal, free. In this order, since each is only
 * safe when those before it are on disk. */
#include "reclaim.h"
#include "source.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define REPORT_BYTES (256u << 10) /* more than the report in the index takes */

/* The index behind the chunks, and what the journal is still to hold. */
static uint64_t reserved_bytes(const struct efs_pack_plan *p)
{
    uint64_t index = p->string_bytes + p->file_count * sizeof(*p->files) + p->extent_count * sizeof(*p->extents) +
                     p->tensor_count * sizeof(*p->tensors) + p->group_count * sizeof(*p->groups) +
                     p->object_count * sizeof(*p->objects) + p->shard_count * sizeof(*p->shards);
    uint64_t journal = p->shard_count * (sizeof(*p->shards) + sizeof(double));
    return index + journal + REPORT_BYTES;
}

bool efs_reclaim_cancelled(const struct efs_reclaim *r)
{
    return r->options.progress &&
           r->options.progress(r->options.progress_arg, r->state.done_bytes, r->plan.source_bytes, "packing");
}

errint_t efs_reclaim_room(const struct efs_reclaim *r, uint64_t *bytes, struct efs_error *err)
{
    uint32_t block;
    int rc = efs_sys_free_bytes(r->parent, bytes, &block);
    if (rc < 0)
        return efs_fail(err, rc, "%s: cannot tell what is free on its disk: %s", r->out, strerror(-rc));
    uint64_t reserved = reserved_bytes(&r->plan);
    *bytes = *bytes > reserved ? *bytes - reserved : 0;
    return 0;
}

static errint_t step_limit(const struct efs_reclaim *r, uint64_t *limit, struct efs_error *err)
{
    struct efs_pack_cursor at = r->state.cursor;
    uint64_t room = 0, raw = 0, run = efs_reclaim_run_most(&r->plan, &at, &raw, NULL, NULL);
    errint_t rc = efs_reclaim_room(r, &room, err);
    if (rc == 0 && room < run + r->step_bytes) { /* some filesystems give freed blocks back late */
        efs_sys_syncfs(r->root_dir);
        rc = efs_reclaim_room(r, &room, err);
    }
    if (rc < 0)
        return rc;
    if (room < run)
        return efs_fail(err, -ENOSPC, "%s: the next step may need %llu MiB of disk, %llu MiB are available", r->folder,
                        (unsigned long long)(run >> 20) + 1, (unsigned long long)(room >> 20));
    uint64_t most = room - run;
    *limit = most < r->step_bytes ? most : r->step_bytes;
    *limit -= *limit / 32; /* padding */
    if (*limit == 0)
        *limit = 1;
    return 0;
}

/* Nothing wrote to the step's files since the start. */
static errint_t check_touched(struct efs_reclaim *r, struct efs_error *err)
{
    for (uint32_t f = 0; f < r->catalog.file_count; f++) {
        if (!r->files[f].touched)
            continue;
        int fd = efs_reclaim_open(r, f, O_RDONLY, false, err);
        if (fd < 0)
            return fd;
        efs_sys_close(fd);
    }
    return 0;
}

static void add_stored(void *arg, uint32_t object, uint32_t shard, bool last_of_object)
{
    struct efs_reclaim *r = arg;
    (void)last_of_object;
    r->stored[object] += efs_reclaim_shard_bytes(&r->plan, object, shard);
}

static errint_t journal_step(struct efs_reclaim *r, const struct efs_reclaim_step *step, struct efs_error *err)
{
    struct efs_bytes record = {0};
    errint_t rc = efs_source_grow((void **)&r->steps, r->step_count, &r->step_capacity, sizeof(*r->steps));
    if (rc < 0)
        return efs_reclaim_fail(r, rc, EFS_RECLAIM_JOURNAL, "write", err);
    efs_reclaim_put_step(r, step, &record);
    rc = efs_reclaim_journal_add(r, EFS_RECLAIM_STEP, &record, err);
    free(record.data);
    if (rc == 0) {
        r->steps[r->step_count++] = *step;
        efs_reclaim_walk(&r->plan, step, add_stored, r);
    }
    return rc;
}

errint_t efs_reclaim_forward(struct efs_reclaim *r, struct efs_error *err)
{
    struct efs_reclaim_step step = {.begin = r->state.cursor, .store_begin = r->writer.offset};
    uint64_t limit = 0;
    errint_t rc = step_limit(r, &limit, err);
    if (rc == 0)
        rc = efs_pack_run(&r->plan, r->source, &r->writer, &r->options, &r->state, limit, err);
    if (rc == 0)
        rc = efs_store_writer_sync(&r->writer, err);
    step.end = r->state.cursor;
    step.store_end = r->writer.offset;
    if (rc == 0)
        rc = efs_reclaim_shards(r, &step, EFS_RECLAIM_COMPARE, err);
    if (rc == 0)
        rc = check_touched(r, err);
    if (rc == 0 && efs_reclaim_cancelled(r))
        rc = efs_fail(err, -ECANCELED, "interrupted");
    if (rc == 0)
        rc = journal_step(r, &step, err);
    if (rc == 0)
        rc = efs_reclaim_free(r, false, err);
    return rc;
}
