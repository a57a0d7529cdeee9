/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refill.c - allocates memory that critical sections with efs.lock may need before they start: segments of the chunk
 * pool that are ready to be added to its table, structs for loads, and the reading of free memory. A critical section
 * takes from this reserve; it is replenished before the next critical section, and a critical section that needs more
 * waits for the next refill.
 *
 * While critical sections use the amount of free memory, it is read again when the reading is 20 ms old or memory was
 * freed since. Bytes allocated since the last reading are subtracted.
 */
#include "budget.h"

#include "extent.h"

#include <errno.h>

#define VALID_NS 20000000u /* other processes allocate little in that time; margins cover it */
#define FIRST_USE_NS                                                                                                   \
    200000000u                /* the same for the first use after a reading: the caller may have waited for the lock */
#define UNUSED_NS 1000000000u /* without use for that long, free memory is not read until the next use */

static bool refill_is_stale(const struct efs_refill *s, uint64_t now, uint64_t after_ns)
{
    return atomic_load(&s->frees) != atomic_load(&s->frees_measured) || now - atomic_load(&s->measured_ns) > after_ns;
}

static bool refill_must_measure(const struct efs_refill *s)
{
    uint64_t asked = atomic_load(&s->used_ns);
    if (asked == 0)
        return false;
    uint64_t now = efs_now_ns();
    return now - asked < UNUSED_NS && refill_is_stale(s, now, VALID_NS);
}

/* With lock held: limit of the memory in use when `left` bytes are free. Memory without pages yet is in no count of the
 * system: memory files that are being filled, and about a segment; see efs_refill_check_memory(). */
static uint64_t refill_limit(const struct efs *fs, uint64_t used, int64_t left)
{
    uint64_t promised = fs->account.bytes[EFS_ACCOUNT_UNTOUCHED] + fs->arena.segment_bytes;
    uint64_t have = used > promised ? used - promised : 0;
    if (left < 0)
        return have > (uint64_t)-left ? have - (uint64_t)-left : 0;
    return (uint64_t)left > UINT64_MAX - have ? UINT64_MAX : have + (uint64_t)left;
}

/* With lock held: bytes in use, less those that were freed and are still counted: free memory includes them. */
static uint64_t refill_used(const struct efs *fs)
{
    uint64_t used = fs->account.used_bytes, freed = efs_account_freed(&fs->account);
    return used > freed ? used - freed : 0;
}

static void refill_run(struct efs *fs, struct efs_refill *s, bool measure)
{
    struct efs_pending_segment pending[EFS_READY_SEGMENTS];
    errint_t error[EFS_READY_SEGMENTS];
    unsigned count = 0, loads = 0;
    bool wanted = atomic_exchange(&fs->refill_wanted, false);
    uint64_t nodes = wanted ? efs_arena_nodes_with_memory(&fs->arena) : 0;
    uint32_t freed = atomic_load(&s->frees); /* memory freed from here on requires another reading */
    pthread_mutex_lock(&fs->lock);
    while (wanted && s->count + count < EFS_READY_SEGMENTS && efs_arena_choose(&fs->arena, nodes, &pending[count]))
        count++;
    if (wanted)
        loads = efs_extent_loads_wanted(fs);
    uint64_t allocated = fs->account.allocated_bytes, used = refill_used(fs);
    pthread_mutex_unlock(&fs->lock);

    int64_t left = measure ? efs_memory_left_bytes(&fs->budget->memory_left) : 0;
    for (unsigned i = 0; i < count; i++)
        error[i] = efs_arena_prepare(&fs->arena, &pending[i]);
    struct efs_extent_load *made = efs_extent_loads_new(loads);

    pthread_mutex_lock(&fs->lock);
    bool failed = loads && !made;
    for (unsigned i = 0; i < count; i++) {
        if (error[i] == 0)
            s->segments[s->count++] = pending[i];
        else
            efs_arena_discard(&fs->arena, &pending[i]);
        failed = failed || error[i] < 0;
    }
    if (wanted)
        fs->refill_failed = failed;
    efs_extent_loads_add(fs, made);
    if (measure) {
        s->limit_bytes = allocated + (left > 0 ? (uint64_t)left : 0);
        s->is_unused = true;
        atomic_store(&s->measured_ns, efs_now_ns());
        atomic_store(&s->frees_measured, freed);
        /* `left` may include changes since the first reading of `used`: use the larger value */
        used = refill_used(fs) > used ? refill_used(fs) : used;
        s->measured_bytes = left == INT64_MAX ? UINT64_MAX : refill_limit(fs, used, left);
        s->has_measured = true;
        efs_retry(fs, EFS_RETRY_BUDGET);
    }
    pthread_mutex_unlock(&fs->lock);
}

void efs_refill(struct efs *fs, uint64_t freed_bytes)
{
    struct efs_refill *s = &fs->budget->refill;
    if (freed_bytes) {
        efs_account_add_freed(&fs->account, freed_bytes);
        atomic_fetch_add(&s->frees, 1);
    }
    if (!atomic_load(&fs->refill_wanted) && !refill_must_measure(s))
        return;
    pthread_mutex_lock(&s->lock);
    bool measure = refill_must_measure(s);
    if (atomic_load(&fs->refill_wanted) || measure) /* else another thread was faster */
        refill_run(fs, s, measure);
    pthread_mutex_unlock(&s->lock);
}

void efs_refill_measure(struct efs *fs)
{
    struct efs_refill *s = &fs->budget->refill;
    pthread_mutex_lock(&s->lock);
    refill_run(fs, s, true);
    pthread_mutex_unlock(&s->lock);
    efs_lock(fs); /* run the retries that the reading requested */
    efs_unlock(fs);
}

errint_t efs_refill_add_segment(struct efs *fs)
{
    struct efs_refill *s = &fs->budget->refill;
    if (s->count == 0)
        return efs_defer_refill(fs);
    efs_arena_add(&fs->arena, &s->segments[0]);
    s->segments[0] = s->segments[--s->count];
    efs_account_charge(&fs->account, EFS_ACCOUNT_SEGMENTS, fs->arena.segment_bytes);
    efs_account_add_allocated(&fs->account, fs->arena.segment_bytes);
    atomic_store(&fs->refill_wanted, true);
    return 0;
}

errint_t efs_refill_check_memory(struct efs *fs, uint64_t bytes)
{
    struct efs_refill *s = &fs->budget->refill;
    uint64_t now = efs_now_ns();
    atomic_store(&s->used_ns, now);
    if (refill_is_stale(s, now, s->is_unused ? FIRST_USE_NS : VALID_NS)) {
        fs->deferred.any = fs->deferred.refill = true;
        return -EAGAIN;
    }
    s->is_unused = false;
    /* memory without pages yet is in no count of the system: memory files being filled, and about a segment */
    uint64_t need = bytes + fs->account.bytes[EFS_ACCOUNT_UNTOUCHED] + fs->arena.segment_bytes;
    return s->limit_bytes >= need && s->limit_bytes - need >= fs->account.allocated_bytes ? 0 : -ENOMEM;
}
