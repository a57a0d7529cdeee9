/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - see world.h: the abstract state of the engine. The only file of the explorer that knows the engine's
 * structs, except world_bytes.c.
 *
 * A struct is hashed as a whole, less the members that are named: so a new member is part of the state. Not part of it:
 * statistics, clocks, times, links of lists (which are walked), the order of jobs and reads, free structs that are
 * interchangeable, bitmaps that follow from the blocks of extents. Objects are named by the caller for which they were
 * allocated and the number of that allocation.
 */
#include "world.h"

#include "budget.h"
#include "cache.h"
#include "container.h"
#include "extent.h"
#include "policy_internal.h"
#include "slot.h"
#include "snapshot.h"
#include "threads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
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

/* Memory files are hashed where they are used. */
static bool is_memfile(const void *address)
{
    unsigned n = 0;
    while (n < MEMFILES_MAX && world->memfiles[n] != address)
        n++;
    return n < MEMFILES_MAX;
}

/* Whether it has the granules of a segment, or of one that is being prepared. */
static bool is_bitmap(const struct efs *fs, const void *address)
{
    const struct efs_grow *g = &fs->budget->grow;
    bool found = false;
    for (uint32_t i = 0; i < fs->arena.segment_max; i++)
        found |= fs->arena.segments[i].allocated == address;
    for (unsigned i = 0; i < g->count; i++)
        found |= g->ready[i].allocated == address;
    return found;
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

static bool read_is_queued(const struct efs_io *io)
{
    unsigned i = 0;
    while (i < one_thread->read_count && one_thread->reads[i] != io)
        i++;
    return i < one_thread->read_count;
}

/* Whether the reads of a load are deferred, by a step that is suspended. Other pointers to it that are on stacks are
 * stale: its struct is free, or was reused. */
static bool load_is_deferred(const struct efs_extent_load *load)
{
    return world->fs->extents->at[load->extent].load == load && load->pending && !read_is_queued(&load->e) &&
           !read_is_queued(&load->sm);
}

static uint64_t name(const void *address)
{
    const struct efs_extent_load *of = load_at(address);
    if (of && !load_is_deferred(of))
        return 0;
    if (of)
        return MIX(6, of->extent, (uint64_t)((const uint8_t *)address - (const uint8_t *)of));
    const struct heap_block *block = heap_contains(address) ? heap_block_at(address) : NULL;
    if (!block)
        return (uint64_t)(uintptr_t)address;
    if (is_memfile(block + 1)) /* of a list or an expert, or a stale pointer */
        return 0;
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

/* Memory files are interchangeable, and so are addresses in them. */
static uint64_t word_name(uint64_t word)
{
    const void *address = (const void *)(uintptr_t)word;
    const uint64_t offset = bytes_memfile_offset(address);
    if (offset != UINT64_MAX)
        return MIX(5, offset);
    return word < UINT32_MAX || !heap_contains(address) ? word : heap_is_free(address) ? 0 : name(address);
}

static uint64_t words_hash(const void *data, size_t bytes)
{
    uint64_t hash = bytes;
    const uint64_t *word = data;
    for (size_t i = 0; i < bytes / 8; i++)
        hash = mix(hash, word_name(word[i]));
    return hash;
}

/* Whether a word has one or two bytes after the rest of an address, which has 6. */
static bool has_rest(uint64_t word)
{
    const void *address = (const void *)(uintptr_t)(word << 16 >> 16);
    return word >> 48 && (heap_contains(address) || bytes_memfile_offset(address) != UINT64_MAX);
}

/* Words of a stack, or of a struct that this file does not know: where a smaller member follows the rest of an address,
 * that is not part of the state. */
static uint64_t foreign_hash(const void *data, size_t bytes)
{
    uint64_t hash = bytes;
    const uint64_t *word = data;
    for (size_t i = 0; i < bytes / 8; i++) {
        bool rest = !heap_contains((const void *)(uintptr_t)word[i]) && heap_is_half((uint32_t)word[i]);
        hash = mix(hash, rest ? word[i] >> 32 : has_rest(word[i]) ? word[i] >> 48 : word_name(word[i]));
    }
    return hash;
}

/* A member of a struct that is not part of the state, or is hashed in another way. */
struct member {
    size_t offset, bytes;
};
#define MEMBER(type, member)                                                                                           \
    {                                                                                                                  \
        offsetof(struct type, member), sizeof(((struct type *)0)->member)                                              \
    }
/* Mixes a struct, less these members. */
#define MIX_STRUCT(hash, type, data, ...)                                                                              \
    mix_struct(hash, (const struct type *){data}, sizeof(struct type), (const struct member[]){__VA_ARGS__},           \
               sizeof((struct member[]){__VA_ARGS__}) / sizeof(struct member))

static uint64_t mix_struct(uint64_t hash, const void *data, size_t bytes, const struct member *less, size_t count)
{
    static _Alignas(8) uint8_t copy[8192];
    size_t whole = (bytes + 7) / 8 * 8;
    assert_true(whole <= sizeof(copy));
    memcpy(copy, data, bytes);
    memset(copy + bytes, 0, whole - bytes);
    for (size_t i = 0; i < count; i++)
        memset(copy + less[i].offset, 0, less[i].bytes);
    return MIX(hash, words_hash(copy, whole));
}

/* ---- extents ---- */

static uint64_t list_hash(uint64_t hash, const struct efs_lru *list)
{
    for (uint32_t x = efs_lru_oldest(list); x != EFS_NONE; x = efs_lru_newer(list, x))
        hash = MIX(hash, 1, x);
    return mix(hash, 2);
}

static uint64_t extent_hash(uint64_t hash, const struct efs_extent *x)
{
    bool complete = efs_extent_is_complete(x);
    hash = MIX_STRUCT(hash, efs_extent, x, MEMBER(efs_extent, link), MEMBER(efs_extent, waiting),
                      MEMBER(efs_extent, waiters), MEMBER(efs_extent, load), MEMBER(efs_extent, scan_clock),
                      MEMBER(efs_extent, checked) /* set to 0 by the next load */);
    hash = MIX(hash, x->load != NULL, x->rank == EFS_RANK_SCAN ? x->scan_clock : 0, complete ? x->checked : 0);
    for (const struct efs_extent_waiter *w = x->waiters; w; w = w->next)
        hash = MIX(hash, 3, listed(w));
    return hash;
}

static uint64_t extents_hash(const struct efs *fs)
{
    const struct efs_extents *all = fs->extents;
    /* structs of loads are interchangeable */
    uint64_t hash =
        MIX_STRUCT(0, efs_extents, all, MEMBER(efs_extents, free_loads), MEMBER(efs_extents, loads_used),
                   MEMBER(efs_extents, load_structs), MEMBER(efs_extents, used_up), MEMBER(efs_extents, streams.walks));
    for (unsigned i = 0; i < EFS_WALKS; i++)
        if (all->streams.walks[i].used)
            hash = MIX_STRUCT(MIX(hash, i), efs_walk, &all->streams.walks[i]);
    for (uint32_t i = 0; i < all->count; i++)
        hash = extent_hash(hash, &all->at[i]);
    for (unsigned i = 0; i < EFS_RANKS; i++)
        hash = list_hash(hash, &all->lists[i]);
    for (const struct efs_extent_waiter *w = all->used_up; w; w = w->next)
        hash = MIX(hash, 3, listed(w));
    return list_hash(hash, &all->waiting);
}

/* ---- full experts ---- */

/* Memory files of one kind are interchangeable. */
static uint64_t memfile_hash(const struct efs_memfile *memfile)
{
    return memfile ? MIX_STRUCT(1, efs_memfile, memfile, MEMBER(efs_memfile, next), MEMBER(efs_memfile, data),
                                MEMBER(efs_memfile, file.number), MEMBER(efs_memfile, file_bytes))
                   : 0;
}

static uint64_t memfiles_hash(uint64_t hash, const struct efs_memfile *list)
{
    for (const struct efs_memfile *memfile = list; memfile; memfile = memfile->next)
        hash = MIX(hash, 2, memfile_hash(memfile));
    return hash;
}

static uint64_t full_hash(const struct efs *fs)
{
    const struct efs_full_pool *pool = fs->full;
    uint64_t hash = MIX_STRUCT(0, efs_full_pool, pool, MEMBER(efs_full_pool, free), MEMBER(efs_full_pool, closed));
    for (uint32_t e = 0; e < fs->store->expert_count; e++) {
        const struct efs_full *f = efs_full_of(fs, e);
        hash =
            MIX_STRUCT(hash, efs_full, f, MEMBER(efs_full, memfile), MEMBER(efs_full, waiters), MEMBER(efs_full, link));
        hash = MIX(hash, memfile_hash(f->memfile));
        for (const struct efs_request_item *item = f->waiters; item; item = item->next_waiter)
            hash = MIX(hash, listed(item), item->got == EFS_GOT_MEMFILE ? memfile_hash(item->memfile) : 0);
    }
    for (uint32_t i = 0; i < pool->closed_count; i++)
        hash = MIX(hash, 3, pool->closed[i]);
    for (unsigned i = 0; i < 2; i++)
        hash = list_hash(hash, &pool->lists[i]);
    return memfiles_hash(hash, pool->free);
}

/* ---- the budget ---- */

static uint64_t segment_hash(uint64_t hash, const struct efs_segment *s)
{
    return MIX_STRUCT(hash, efs_segment, s, MEMBER(efs_segment, allocated));
}

static uint64_t budget_hash(const struct efs *fs)
{
    const struct efs_budget *b = fs->budget;
    /* the system has unlimited memory */
    uint64_t hash = MIX_STRUCT(
        0, efs_budget, b, MEMBER(efs_budget, memory_left), MEMBER(efs_budget, retirement.request),
        MEMBER(efs_budget, retirement.job), MEMBER(efs_budget, grow.job), MEMBER(efs_budget, grow.ready),
        MEMBER(efs_budget, grow.before), MEMBER(efs_budget, grow.limit_bytes), MEMBER(efs_budget, grow.returned_bytes));
    hash = MIX_STRUCT(hash, efs_account, &fs->account, MEMBER(efs_account, allocated_bytes),
                      MEMBER(efs_account, returned_bytes));
    hash = MIX(hash, fs->account.returned_bytes == b->grow.returned_bytes);
    if (b->retirement.busy)
        hash = mix(hash, b->retirement.request.segment);
    for (unsigned i = 0; i < b->grow.count; i++)
        hash = mix(hash, b->grow.ready[i].segment);
    for (uint32_t i = 0; i < fs->arena.segment_max; i++)
        hash = segment_hash(hash, &fs->arena.segments[i]);
    for (uint32_t i = 0; i < fs->arena.node_count; i++)
        hash = MIX_STRUCT(hash, efs_arena_node, &fs->arena.nodes[i], MEMBER(efs_arena_node, longest));
    return hash;
}

/* ---- the cache state, the LRU policy ---- */

static uint64_t policy_hash(const struct efs *fs)
{
    const struct efs_policy *p = fs->cache->policy;
    const uint64_t *key = *(const uint64_t *const *)p->state; /* the first member of its heap: time of the last use */
    uint64_t hash = MIX_STRUCT(0, efs_policy, p, MEMBER(efs_policy, clock), MEMBER(efs_policy, move_count),
                               MEMBER(efs_policy, info));
    for (unsigned pool = 0; pool < EFS_POOLS; pool++)
        hash = MIX(hash, p->capacity[0][pool], p->used[0][pool]);
    for (uint32_t e = 0; e < p->units; e++) {
        uint64_t older = 0;
        for (uint32_t other = 0; other < p->units; other++)
            older += key[other] < key[e];
        hash = MIX(hash, p->pool[e], p->evictable[e], p->user_pin[e], p->pins[e], p->frozen[e], older);
    }
    return hash;
}

static uint64_t cache_hash(const struct efs *fs)
{
    const struct efs_cache *r = fs->cache;
    uint64_t hash = MIX_STRUCT(policy_hash(fs), efs_cache, r, MEMBER(efs_cache, requests), MEMBER(efs_cache, leases),
                               MEMBER(efs_cache, partial), MEMBER(efs_cache, saved_bytes), MEMBER(efs_cache, hits));
    hash = MIX(hash, r->leases != 0);
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        hash = MIX_STRUCT(hash, efs_cache_expert, &r->expert[e], MEMBER(efs_cache_expert, touches));
    return hash;
}

/* ---- requests and reads ---- */

static uint64_t part_hash(uint64_t hash, const struct efs_part *p)
{
    hash = MIX_STRUCT(hash, efs_part, p, MEMBER(efs_part, waiter.next), MEMBER(efs_part, waiter.job),
                      MEMBER(efs_part, waiter.load), MEMBER(efs_part, span.next), MEMBER(efs_part, span.dst));
    return MIX(hash, p->waiter.load != NULL);
}

static uint64_t item_hash(uint64_t hash, const struct efs_request_item *item)
{
    hash = MIX_STRUCT(hash, efs_request_item, item, MEMBER(efs_request_item, task),
                      MEMBER(efs_request_item, next_waiter), MEMBER(efs_request_item, memfile));
    if (item->remaining == 0 && item->form == EFS_FORM_FULL) /* its parts are not used any more */
        return hash;
    for (uint32_t i = 0; i < item->part_count; i++)
        hash = part_hash(hash, &item->parts[i]);
    return hash;
}

static uint64_t request_hash(const struct efs_request *r)
{
    /* jobs are interchangeable */
    uint64_t hash = MIX_STRUCT(0, efs_request, r, MEMBER(efs_request, next), MEMBER(efs_request, job_next),
                               MEMBER(efs_request, holding), MEMBER(efs_request, is_short));
    for (uint32_t i = 0; i < r->base.count; i++)
        hash = item_hash(hash, &r->items[i]);
    return hash;
}

/* Requests, and structs of reads and opens, which are private to their files. */
static uint64_t blocks_hash(const struct efs *fs)
{
    uint64_t hash = 0;
    for (const struct heap_block *b = heap_live(); b; b = b->next)
        if (is_request(b))
            hash += MIX(name(b + 1), request_hash((const void *)(b + 1)));
        else if (is_memfile(b + 1) || is_bitmap(fs, b + 1))
            continue;
        else
            hash += MIX(name(b + 1), foreign_hash(b + 1, b->bytes));
    return hash;
}

/* Slots that are not free. */
static uint64_t slots_hash(const struct efs *fs)
{
    const struct efs_slots *slots = fs->slots;
    uint64_t hash = 0;
    for (unsigned i = 0; i < slots->count; i++) {
        const struct efs_slot *slot = &slots->slots[i], *free_slot = slots->pools[slot->is_bounce].free;
        while (free_slot && free_slot != slot)
            free_slot = free_slot->next;
        if (free_slot)
            continue;
        /* `io` has reads of earlier pieces, too */
        uint64_t own =
            MIX_STRUCT(1, efs_slot, slot, MEMBER(efs_slot, next), MEMBER(efs_slot, memory), MEMBER(efs_slot, io));
        hash += MIX(own, foreign_hash(slot->io, slot->io_count * sizeof(slot->io[0])));
    }
    for (unsigned kind = 0; kind < 2; kind++)
        for (const struct efs_uncached *read = slots->pools[kind].waiting.head; read; read = read->next)
            hash = MIX(hash, listed(read));
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

static uint64_t leases_hash(const struct efs *fs)
{
    const struct efs_leases *leases = fs->leases;
    uint64_t hash = MIX_STRUCT(0, efs_leases, leases, MEMBER(efs_leases, queue), MEMBER(efs_leases, coalesce_job),
                               MEMBER(efs_leases, holding));
    for (const struct efs_request *r = leases->queue.head; r; r = r->next)
        hash = MIX(hash, 4, listed(r));
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        hash = MIX_STRUCT(hash, efs_lease, &leases->at[e]);
    return hash;
}

static uint64_t shared_hash(const struct efs *fs)
{
    const struct efs_deferred *d = &fs->deferred;
    uint64_t hash = MIX_STRUCT(leases_hash(fs), efs, fs, MEMBER(efs, stats), MEMBER(efs, account),
                               MEMBER(efs, blocking_job), MEMBER(efs, deferred.memfiles));
    for (const struct efs_task *task = d->tasks.head; task; task = task->next)
        hash = MIX(hash, 1, (uint64_t)(uintptr_t)task->run, name(task));
    return memfiles_hash(hash, d->memfiles.head);
}

static uint64_t callers_hash(void)
{
    uint64_t hash = MIX(world->failed, world->cancelled, world->unmapped, world->shrunk);
    for (unsigned n = 0; n < world->caller_count; n++) {
        const struct caller *c = &world->callers[n];
        hash = MIX_STRUCT(hash, caller, c, MEMBER(caller, request), MEMBER(caller, lease), MEMBER(caller, bytes));
        hash = MIX(hash, c->request != NULL, c->lease != NULL);
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
    static const char *const names[] = {"job",    "read", "read fails", "begin", "drop",  "release",
                                        "cancel", "wait", "budget",     "look",  "resume"};
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
    return MIX(world->threads ? threads_hash(world->threads, foreign_hash) : 0, callers_hash(), extents_hash(fs),
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
        scan_bytes += x->rank == EFS_RANK_SCAN ? efs_extent_span(fs, x, x->required) : 0;
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
    assert_int_equal(copied != 0, fs->account.bytes[EFS_ACCOUNT_FULL_COPIED] != 0);
    if (final)
        check_final(fs);
}
