/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - see world.h: the abstract state of the engine. The only file of the explorer that knows the engine's
 * structs, except world_bytes.c.
 *
 * Not part of it: statistics, clocks, times, addresses, the order of jobs and reads, free structs that are
 * interchangeable, bitmaps that follow from the blocks of extents. Objects are named by the caller for which they were
 * allocated and the number of that allocation.
 */
#include "world.h"

#include "budget.h"
#include "cache.h"
#include "container.h"
#include "extent_internal.h"
#include "policy_internal.h"
#include "slots.h"
#include "snapshot.h"
#include "threads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* ---- hashing ---- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)(hash ^ 0x9e3779b97f4a7c15u) * (value ^ 0xd6e8feb86659fd93u);
    return (uint64_t)product ^ (uint64_t)(product >> 64) ^ (hash << 13 | hash >> 51);
}

#define MIX(hash, ...) mix_all(hash, (const uint64_t[]){__VA_ARGS__}, sizeof((uint64_t[]){__VA_ARGS__}) / 8)

static uint64_t mix_all(uint64_t hash, const uint64_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        hash = mix(hash, values[i]);
    return hash;
}

/* ---- names ---- */

static bool is_request(const struct heap_block *block)
{
    const struct efs_request *r = (const void *)(block + 1);
    return block->bytes >= sizeof(*r) && r->fs == world->fs &&
           (const void *)r->parts == (const void *)(r->items + r->base.count);
}

static uint64_t name(const void *address);

/* A request of an open was allocated by a job: named by its first open. */
static uint64_t request_name(const struct heap_block *block)
{
    const struct efs_request *r = (const void *)(block + 1);
    return r->arrived && r->use == EFS_MEMFILE_EXPORTED ? MIX(1, name(r->items[0].arg)) : MIX(2, block->tag);
}

/* The structs of loads are interchangeable: named by their extents. */
static const struct efs_extent_load *load_at(const void *address)
{
    const struct efs_extents *extents = world->fs->extents;
    const uint8_t *first = (const uint8_t *)extents->load_structs;
    size_t offset = (size_t)((const uint8_t *)address - first);
    return offset < extents->loads_max * sizeof(*extents->load_structs)
               ? extents->load_structs + offset / sizeof(*extents->load_structs)
               : NULL;
}

static uint64_t name(const void *address)
{
    const struct efs_extent_load *of = load_at(address);
    if (of)
        return MIX(6, of->extent, (uint64_t)((const uint8_t *)address - (const uint8_t *)of));
    const struct heap_block *block = heap_contains(address) ? heap_block_at(address) : NULL;
    if (!block)
        return (uint64_t)(uintptr_t)address;
    uint64_t offset = (uint64_t)((const uint8_t *)address - (const uint8_t *)(block + 1));
    if (!is_request(block))
        return MIX(4, block->tag, offset);
    const struct efs_request *r = (const void *)(block + 1);
    bool is_job = (uintptr_t)address >= (uintptr_t)r->jobs; /* which run the next shard: interchangeable */
    return MIX(3, request_name(block), is_job ? UINT64_MAX : offset);
}

/* The same for an element of a list, which must be allocated. */
static uint64_t listed(const void *address)
{
    if (!heap_block_at(address))
        fail_msg("a list has an element that was freed");
    return name(address);
}

/* Words of a struct that this file does not know. */
static uint64_t words_hash(const void *data, size_t bytes)
{
    uint64_t hash = bytes;
    const uint64_t *word = data;
    for (size_t i = 0; i < bytes / 8; i++) {
        const void *address = (const void *)(uintptr_t)word[i];
        uint64_t other = heap_is_half((uint32_t)word[i]) ? word[i] >> 32 : word[i]; /* the rest of an address */
        hash = mix(hash, !heap_contains(address) ? other : heap_is_free(address) ? 0 : name(address));
    }
    return hash;
}

/* ---- extents ---- */

static uint64_t block_hash(const struct efs_block *block)
{
    if (!block->data)
        return 0;
    const struct efs_segment *segment = &world->fs->arena.segments[block->segment];
    return MIX(1, block->segment, (uint64_t)(block->data - segment->base), block->granules);
}

static uint64_t extents_hash(const struct efs *fs)
{
    const struct efs_extents *all = fs->extents;
    uint64_t hash = MIX(all->refs, all->long_refs, all->loads[0], all->loads[1], all->loads[2], all->loads[3],
                        all->ahead_bytes, all->scan_bytes, all->wanted);
    for (uint32_t i = 0; i < all->count; i++) {
        const struct efs_extent *x = &all->at[i];
        uint64_t flags = (uint64_t)(x->discard | (x->load != NULL) << 1 | x->kind << 2);
        if (x->state == EFS_EXTENT_IDLE && !x->resident && !x->protected && !x->refs && !x->waiters) {
            hash = mix(hash, flags);
            continue;
        }
        hash = MIX(hash, x->state, x->resident, x->protected, x->list, flags, x->refs, x->ahead_bytes, x->checked,
                   block_hash(&x->e), block_hash(&x->sm));
        for (const struct efs_extent_waiter *w = x->waiters; w; w = w->next)
            hash = mix(hash, listed(w));
    }
    for (uint32_t x = all->waiting.oldest; x != EFS_NONE; x = efs_lru_newer(&all->waiting, x))
        hash = MIX(hash, 1, x);
    for (unsigned i = 0; i < EFS_LISTS; i++, hash = mix(hash, 2))
        for (uint32_t x = all->lists[i].oldest; x != EFS_NONE; x = efs_lru_newer(&all->lists[i], x))
            hash = mix(hash, x);
    for (const struct efs_extent_waiter *w = all->used_up; w; w = w->next)
        hash = MIX(hash, 3, listed(w));
    return hash;
}

/* ---- full experts ---- */

static uint64_t memfile_hash(const struct efs_memfile *memfile)
{
    return memfile ? MIX(1, memfile->kind, memfile->populated, memfile->fd >= 0) : 0;
}

static uint64_t full_hash(const struct efs *fs)
{
    uint64_t hash = MIX(fs->full->copied_count, fs->full->sampled);
    for (uint32_t e = 0; e < fs->store->expert_count; e++) {
        const struct efs_full *f = efs_full_of(fs, e);
        hash = MIX(hash, f->state, f->protected, f->mapped, f->leases, f->readers, memfile_hash(f->memfile));
        for (const struct efs_request_item *item = f->waiters; item; item = item->next_waiter)
            hash = MIX(hash, listed(item), item->got == EFS_GOT_MEMFILE ? memfile_hash(item->memfile) : 0);
    }
    const struct efs_lru *lists = fs->full->lists;
    for (unsigned i = 0; i < 2; i++, hash = mix(hash, 1))
        for (uint32_t e = lists[i].oldest; e != EFS_NONE; e = efs_lru_newer(&lists[i], e))
            hash = mix(hash, e);
    for (const struct efs_memfile *memfile = fs->full->free; memfile; memfile = memfile->next)
        hash = MIX(hash, 2, memfile_hash(memfile));
    return hash;
}

/* ---- the budget ---- */

static uint64_t budget_hash(const struct efs *fs)
{
    const struct efs_account *a = &fs->account;
    const struct efs_budget *b = fs->budget;
    uint64_t hash = mix_all(a->used_bytes, a->bytes, EFS_ACCOUNT_KINDS);
    hash = MIX(hash, a->budget_bytes, a->floor_segments, a->planned_segments, a->prefetch_bytes,
               a->returned_bytes == b->grow.returned_bytes, fs->options.budget_bytes);
    hash = MIX(hash, b->grow.busy, b->grow.failed, b->grow.is_new, b->retirement.busy);
    if (b->retirement.busy)
        hash = mix(hash, b->retirement.request.segment);
    for (unsigned i = 0; i < b->grow.count; i++)
        hash = mix(hash, b->grow.ready[i].segment);
    for (uint32_t i = 0; i < fs->arena.segment_max; i++) {
        const struct efs_segment *s = &fs->arena.segments[i];
        hash = MIX(hash, s->base != NULL, s->retiring, s->pending, s->populating, s->pages_released, s->long_refs);
    }
    return hash;
}

/* ---- the cache state, the LRU policy ---- */

static uint64_t cache_hash(const struct efs *fs)
{
    const struct efs_cache *r = fs->cache;
    const struct efs_policy *p = r->policy;
    const uint64_t *key = *(const uint64_t *const *)p->state; /* the first member of its heap: time of the last use */
    uint64_t hash = MIX(r->leased_peak_bytes, r->leased_recent_bytes, r->leases != 0, r->pools_bytes);
    for (uint32_t e = 0; e < fs->store->expert_count; e++) {
        uint64_t older = 0;
        for (uint32_t other = 0; other < fs->store->expert_count; other++)
            older += key[other] < key[e];
        hash = MIX(hash, p->pool[e], p->evictable[e], p->pins[e], older, r->expert[e].pins, r->expert[e].left_bytes,
                   r->expert[e].demoting);
    }
    return hash;
}

/* ---- requests and reads ---- */

static uint64_t parts_hash(const struct efs_request_item *item)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < item->part_count; i++) {
        const struct efs_part *p = &item->parts[i];
        hash = MIX(hash, p->next_shard, p->done_shards, p->ready, p->gate, p->waiter.referenced, p->waiter.load != NULL,
                   (uint64_t)p->waiter.error);
    }
    return hash;
}

static uint64_t request_hash(const struct efs_request *r)
{
    uint64_t hash = MIX(r->refs, r->base.oversize, r->in_line, r->waiting,
                        r->oversize_item ? (uint64_t)(r->oversize_item - r->items) + 1 : 0);
    for (uint32_t i = 0; i < r->base.count; i++) {
        const struct efs_request_item *item = &r->items[i];
        hash = MIX(hash, item->form, item->base.state, item->got, item->waiting, item->base.reported, item->was_full,
                   (uint64_t)item->base.error, item->remaining, (uint64_t)item->load_error, item->from_disk,
                   item->was_loading);
        if (item->remaining || item->form == EFS_FORM_CODED) /* else its parts are not used any more */
            hash = MIX(hash, r->job_next, parts_hash(item));
    }
    return hash;
}

/* Requests, and structs of reads and opens, which are private to their files. */
static uint64_t blocks_hash(const struct efs *fs)
{
    uint64_t hash = 0;
    for (const struct heap_block *b = heap_live(); b; b = b->next) {
        bool of_engine = b->tag >> 32 == 1;
        if (is_request(b))
            hash += MIX(name(b + 1), request_hash((const void *)(b + 1)));
        else if (of_engine &&
                 (b->bytes == sizeof(struct efs_memfile) || b->bytes == fs->arena.segment_bytes / EFS_GRANULE / 8))
            continue; /* hashed by full_hash(); or the bitmap of a segment */
        else
            hash += MIX(name(b + 1), words_hash(b + 1, b->bytes));
    }
    return hash;
}

/* Bounce slots: those that are not free. */
static uint64_t slots_hash(const struct efs *fs)
{
    const struct efs_slots *slots = (const void *)fs->uncached;
    size_t bytes = ((const struct heap_block *)(const void *)fs->uncached - 1)->bytes - sizeof(*slots),
           stride = bytes / 4;
    uint64_t hash = 0;
    for (unsigned i = 0; i < fs->options.workers + 1; i++) {
        const uint8_t *slot = (const uint8_t *)(slots + 1) + i * stride;
        const struct efs_slot *free_slot = slots->free;
        while (free_slot && (const void *)free_slot != slot)
            free_slot = free_slot->next;
        if (!free_slot)
            hash += MIX(1, words_hash(slot + sizeof(struct efs_slot), stride - sizeof(struct efs_slot)));
    }
    for (const struct efs_slot_waiter *w = slots->waiting.head; w; w = w->next)
        hash = MIX(hash, listed(w));
    return hash;
}

/* ---- jobs and reads that are queued ---- */

static uint64_t job_hash(const struct efs_job *job)
{
    const struct efs_extent_load *load = load_at(job);
    if (load)
        return MIX(1, load->extent, (uint64_t)load->error);
    return MIX(2, (uint64_t)(uintptr_t)job->run, name(job));
}

static uint64_t read_hash(const struct efs *fs, const struct efs_io *io)
{
    uint64_t hash = MIX(io->bytes, io->class, io->change);
    if (io->bytes == 0 || io->segment == EFS_NONE)
        return MIX(hash, io->segment, name(io), io->offset);
    for (uint32_t i = 0; i < fs->extents->count; i++) {
        const struct efs_extent *x = &fs->extents->at[i];
        if (io->data != x->e.data && io->data != x->sm.data)
            continue;
        const struct efs_extent_load *load = io->owner;
        return MIX(hash, i, io->data == x->e.data, load->why, load->components, load->was, (uint64_t)load->error);
    }
    fail_msg("a read into memory of no extent");
    return 0;
}

static uint64_t queued_hash(const struct efs *fs)
{
    uint64_t hash = 0;
    for (unsigned i = 0; i < one_thread->job_count; i++)
        hash += job_hash(one_thread->jobs[i]);
    for (unsigned i = 0; i < one_thread->read_count; i++)
        hash += read_hash(fs, one_thread->reads[i]);
    return hash;
}

/* ---- the rest ---- */

static uint64_t shared_hash(const struct efs *fs)
{
    const struct efs_deferred *d = &fs->deferred;
    const struct efs_leases *leases = fs->leases;
    uint64_t hash = MIX(fs->in_flight, fs->items_waiting, fs->coded_pinned, fs->admission_starved, fs->growing,
                        fs->queue_starts, fs->blocking_pushed, d->any, d->retries, d->admitted, d->memfile_bytes);
    for (const struct efs_task *task = d->tasks.head; task; task = task->next)
        hash = MIX(hash, 1, (uint64_t)(uintptr_t)task->run, name(task));
    for (const struct efs_memfile *memfile = d->memfiles.head; memfile; memfile = memfile->next)
        hash = MIX(hash, 3, memfile_hash(memfile));
    for (const struct efs_request *r = leases->queue.head; r; r = r->next)
        hash = MIX(hash, 4, listed(r));
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        hash = MIX(hash, leases->at[e].coded_pins, leases->at[e].preloading);
    return MIX(hash, leases->last_use, name(leases->open_list));
}

static uint64_t callers_hash(void)
{
    uint64_t hash = MIX(world->failed, world->cancelled, world->unmapped, world->shrunk);
    for (unsigned n = 0; n < world->caller_count; n++) {
        const struct caller *c = &world->callers[n];
        hash = MIX(hash, c->stage, c->ended, c->request != NULL, c->lease != NULL, (uint64_t)(uintptr_t)c->oversize);
        for (unsigned i = 0; i < ITEMS_MAX; i++)
            hash = MIX(hash, c->here[i], c->gone[i], c->cancelled[i]);
    }
    return hash;
}

uint64_t state_step_name(struct step step)
{
    if (step.kind == STEP_JOB)
        return MIX(1, job_hash(one_thread->jobs[step.at]));
    if (step.kind == STEP_READ || step.kind == STEP_READ_FAILS)
        return MIX(2, step.kind, read_hash(world->fs, one_thread->reads[step.at]));
    return MIX(3, step.kind, step.at, step.item);
}

void world_describe(struct step step, char *text, size_t bytes)
{
    static const char *const names[] = {"job",     "read",   "read fails", "begin", "drop",
                                        "release", "cancel", "budget",     "look",  "resume"};
    if (step.kind == STEP_READ || step.kind == STEP_READ_FAILS)
        snprintf(text, bytes, "%s at offset %llu", names[step.kind],
                 (unsigned long long)one_thread->reads[step.at]->offset);
    else if (step.kind == STEP_JOB)
        snprintf(text, bytes, "job %u of %u", step.at, one_thread->job_count);
    else if (step.kind == STEP_RESUME)
        snprintf(text, bytes, "thread %u goes on", step.at);
    else
        snprintf(text, bytes, "%s of caller %u, expert %u", names[step.kind], step.at, step.item);
}

uint64_t state_hash(void)
{
    const struct efs *fs = world->fs;
    return MIX(world->threads ? threads_hash(world->threads, words_hash) : 0, callers_hash(), extents_hash(fs),
               full_hash(fs), budget_hash(fs), cache_hash(fs), blocks_hash(fs), slots_hash(fs), queued_hash(fs),
               shared_hash(fs));
}

/* ---- invariants ---- */

void state_count(struct situations *s)
{
    const struct efs *fs = world->fs;
    s->waiting += fs->items_waiting != 0;
    s->starved += fs->admission_starved;
    s->extents_wait += efs_extents_wait(fs);
    s->retiring += fs->account.bytes[EFS_ACCOUNT_RETIRING] != 0;
    s->filling += fs->full->filling_count != 0;
    s->blocking += fs->blocking_pushed;
    s->uncached += slots_hash(fs) != 0;
    for (const struct efs_request *r = fs->leases->queue.head; r; r = r->next)
        s->oversize += r->base.oversize;
}

/* All references are zero, and no queue has an element. */
static void check_final(const struct efs *fs)
{
    assert_int_equal(fs->items_waiting, 0);
    assert_int_equal(fs->coded_pinned, 0);
    assert_int_equal(fs->extents->refs, 0);
    assert_int_equal(fs->extents->long_refs, 0);
    assert_false(efs_extents_wait(fs));
    assert_int_equal(fs->account.bytes[EFS_ACCOUNT_FULL_PINNED], 0);
    assert_int_equal(fs->account.bytes[EFS_ACCOUNT_CODED_PINNED], 0);
    assert_int_equal(fs->account.bytes[EFS_ACCOUNT_UNTOUCHED], 0);
    assert_int_equal(fs->account.bytes[EFS_ACCOUNT_RETIRING], 0);
    assert_int_equal(fs->account.bytes[EFS_ACCOUNT_RETURNING], 0);
    assert_int_equal(fs->in_flight, 1);
    assert_false(fs->admission_starved);
    for (uint32_t e = 0; e < fs->store->expert_count; e++) {
        assert_int_equal(fs->cache->expert[e].pins, 0);
        assert_int_equal(fs->cache->policy->pins[e], 0);
    }
    for (uint32_t i = 0; i < fs->extents->count; i++)
        assert_true(fs->extents->at[i].state == EFS_EXTENT_IDLE && !fs->extents->at[i].waiters);
    for (const struct heap_block *b = heap_live(); b; b = b->next)
        assert_false(is_request(b));
}

void state_check(bool final)
{
    const struct efs *fs = world->fs;
    assert_true(efs_admission_is_live(fs));
    assert_true(efs_account_adds_up(&fs->account, (uint64_t)fs->arena.segment_count * fs->arena.segment_bytes));
    assert_true(efs_account_is_within_budget(&fs->account, fs->arena.segment_bytes));
    uint64_t refs = 0, granules = 0, scan_bytes = 0;
    for (uint32_t i = 0; i < fs->extents->count; i++) {
        const struct efs_extent *x = efs_extent(fs, i);
        refs += x->refs;
        scan_bytes += x->kind == EFS_LIST_SCAN ? efs_extent_span(fs, x, x->required) : 0;
        granules += x->e.granules + x->sm.granules;
        unsigned blocks = (x->e.data ? EFS_COMPONENT_E : 0u) | (x->sm.data ? EFS_COMPONENT_SM : 0u);
        assert_true(blocks == x->resident || (x->state == EFS_EXTENT_LOADING && (blocks & x->resident) == x->resident));
        assert_true(x->refs == 0 || (x->resident == x->required && x->state == EFS_EXTENT_IDLE));
    }
    for (unsigned n = 0; n < world->caller_count; n++) {
        const struct caller *c = &world->callers[n];
        if (c->request && world->plan->callers[n].kind == CALLER_SESSION)
            assert_true(c->request->oversize == (c->oversize != NULL));
    }
    assert_int_equal(refs, fs->extents->refs);
    assert_int_equal(scan_bytes, fs->extents->scan_bytes);
    assert_int_equal(granules * EFS_GRANULE, fs->arena.used_bytes);
    bytes_check_extents();
    uint32_t leased = 0, copied = 0;
    for (uint32_t e = 0; e < fs->store->expert_count; e++) {
        const struct efs_full *f = efs_full_of(fs, e);
        leased += f->leases > 0;
        copied += f->readers > 0 && f->leases == 0;
        if (f->state == EFS_FULL_READY)
            bytes_check_full(e);
    }
    assert_int_equal(leased, fs->full->leased_count);
    assert_int_equal(copied, fs->full->copied_count);
    if (final)
        check_final(fs);
}
