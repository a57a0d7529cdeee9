/* SPDX-License-Identifier: Apache-2.0 */
/* reclaim_undo.c - a step back: the step's bytes are written to the source files again, synced, read back and checked;
 * then the journal forgets it, and the store is cut. */
#include "reclaim.h"
#include "sys.h"

static void take_stored(void *arg, uint32_t object, uint32_t shard, bool last_of_object)
{
    struct efs_reclaim *r = arg;
    size_t bytes = efs_reclaim_shard_bytes(&r->plan, object, shard);
    (void)last_of_object;
    r->stored[object] -= bytes;
    r->state.done_bytes -= bytes;
}

errint_t efs_reclaim_back(struct efs_reclaim *r, struct efs_error *err)
{
    const struct efs_reclaim_step *step = &r->steps[r->step_count - 1];
    const struct efs_bytes nothing = {0};
    errint_t rc = efs_reclaim_shards(r, step, EFS_RECLAIM_REFILL, err);
    if (rc == 0)
        rc = efs_reclaim_shards(r, step, EFS_RECLAIM_REFILLED, err);
    if (rc == 0)
        rc = efs_reclaim_journal_add(r, EFS_RECLAIM_UNDONE, &nothing, err);
    if (rc < 0)
        return rc;
    efs_reclaim_walk(&r->plan, step, take_stored, r);
    r->step_count--;
    efs_sys_ftruncate(r->writer.file.fd, step->store_begin); /* else it goes with the folder */
    return 0;
}
