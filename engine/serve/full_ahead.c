/*
 * full_ahead.c - fresh memory for the next experts gets its pages before it is needed. What was shown as a file goes
 * back to the kernel, so the next expert needs pages that the kernel has to clear first: as long as decoding takes, or
 * longer.
 *
 * By decode workers that have nothing else to do, a huge page a job, one slot at a time. Room for it comes from what is
 * free and from the oldest loose experts; never more than a part of the full pool.
 */
#include "serve.h"

#include "workers.h"

#include <assert.h>
#include <errno.h>

#define AHEAD 8u       /* slots: about what a layer's request takes */
#define AHEAD_SHARE 8u /* of the full pool */
#define PART (2u << 20)

static void populate(struct efs_job *job, struct efs_codec_scratch *scratch);

/* Spare slots of that size. */
static uint64_t spares(const struct efs *fs, size_t bytes)
{
    uint64_t count = 0;
    for (const struct efs_slot *s = fs->free_slots; s; s = s->next)
        count += s->kind == EFS_SLOT_PRIVATE && s->bytes == bytes;
    return count;
}

static bool has_room(struct efs *fs, size_t bytes)
{
    uint64_t used = efs_room_used_with(fs, fs->floor_segments), budget = fs->options.budget_bytes;
    if (used + bytes > budget && (fs->segments_leaving || !efs_full_evict_oldest(fs, false)))
        return false;
    used = efs_room_used_with(fs, fs->floor_segments);
    return used + bytes <= budget && efs_room_memory_left(fs, bytes);
}

/* Lock held: begin with the next slot, if one is called for. */
static void go_on(struct efs *fs)
{
    struct efs_next_slot *n = &fs->next_slot;
    uint64_t most = fs->full_bytes / AHEAD_SHARE;
    if (n->busy || n->left == 0 || fs->closing || !fs->workers || fs->lease_queue ||
        (spares(fs, n->bytes) + 1) * n->bytes > most || !has_room(fs, n->bytes))
        return;
    n->slot = efs_slot_new(&fs->slots, n->bytes);
    if (!n->slot)
        return;
    n->busy = true;
    n->left--;
    n->done = 0;
    n->job.run = populate;
    fs->full_bytes += n->bytes;
    fs->fresh_bytes += n->bytes;
    fs->active++;
    efs_workers_push_low(fs->workers, &n->job);
}

void efs_full_ahead(struct efs *fs, size_t bytes)
{
    struct efs_next_slot *n = &fs->next_slot;
    if (n->busy && n->bytes != bytes)
        return;
    n->bytes = bytes;
    n->left = AHEAD;
    go_on(fs);
}

static void ended(struct efs *fs, bool whole)
{
    struct efs_next_slot *n = &fs->next_slot;
    struct efs_disk_request *submit = NULL;
    pthread_mutex_lock(&fs->lock);
    assert(n->busy && n->slot && fs->fresh_bytes >= n->slot->bytes);
    assert(n->slot->populated == whole);
    fs->fresh_bytes -= n->slot->bytes;
    efs_full_give_back(fs, n->slot);
    n->slot = NULL;
    n->busy = false;
    if (efs_room_used(fs) > fs->options.budget_bytes)
        efs_room_shrink(fs, &submit);
    else if (whole)
        go_on(fs);
    bool waited_for = fs->lease_queue != NULL;
    pthread_mutex_unlock(&fs->lock);
    efs_disk_submit_all(fs, submit);
    if (waited_for)
        efs_full_retry(fs);
    efs_active_end(fs);
}

static void populate(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs_next_slot *n = (struct efs_next_slot *)((char *)job - offsetof(struct efs_next_slot, job));
    struct efs *fs = (struct efs *)((char *)n - offsetof(struct efs, next_slot));
    (void)scratch;
    pthread_mutex_lock(&fs->lock);
    bool stop = fs->closing || fs->lease_queue;
    pthread_mutex_unlock(&fs->lock);
    size_t part = n->bytes - n->done < PART ? n->bytes - n->done : PART;
    errint_t rc = stop ? -ECANCELED : efs_slot_populate(n->slot, n->done, part);
    n->done += part;
    if (rc < 0 || n->done == n->bytes)
        ended(fs, rc == 0);
    else
        efs_workers_push_low(fs->workers, &n->job);
}
