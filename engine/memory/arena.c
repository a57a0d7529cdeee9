/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.c - see arena.h: blocks; segments, which are added, populated and dropped. Each node has a tree over upper
 * bounds of the longest free runs of its segments, which leads to the first candidate in log(segments) steps; the run
 * is then found in the segment's bitmap (64 words for 16 MiB).
 */
#include "arena.h"

#include "runs.h"
#include "sys.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE (2u << 20)
#define RESERVED (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

/* ---- the tree ---- */

static uint32_t granules_of(const struct efs_arena *arena)
{
    return (uint32_t)(arena->segment_bytes / EFS_GRANULE);
}

/* slot: the segment's index within its node. A value in the tree is an upper bound: it can be too large after an
 * allocation. 0: the slot is unused, or the segment takes no new blocks. */
static void set_longest(struct efs_arena_node *node, uint32_t slot, uint32_t granules)
{
    uint32_t i = node->leaves + slot, *tree = node->longest;
    for (tree[i] = granules; i > 1; i /= 2)
        tree[i / 2] = tree[i] > tree[i ^ 1] ? tree[i] : tree[i ^ 1];
}

/* The first slot that may have `need` (at least 1) consecutive free granules, or UINT32_MAX. */
static uint32_t first_with(const struct efs_arena_node *node, uint32_t need)
{
    uint32_t i = 1;
    if (node->longest[1] < need)
        return UINT32_MAX;
    while (i < node->leaves)
        i = node->longest[2 * i] >= need ? 2 * i : 2 * i + 1;
    return i - node->leaves;
}

/* ---- blocks ---- */

static bool alloc_in(struct efs_arena *arena, struct efs_arena_node *node, uint32_t need, bool from_high,
                     struct efs_block *block)
{
    uint32_t all = granules_of(arena), slot;
    while ((slot = first_with(node, need)) != UINT32_MAX) {
        struct efs_segment *s = &arena->segments[node->first + slot];
        uint32_t longest = 0;
        uint32_t g = s->retiring ? all : efs_runs_find(s->allocated, all, need, from_high, &longest);
        if (g == all) { /* the bound was too large */
            set_longest(node, slot, longest);
            continue;
        }
        efs_runs_mark(s->allocated, g, need, true);
        s->free_granules -= need;
        node->used_bytes += (uint64_t)need * EFS_GRANULE;
        arena->used_bytes += (uint64_t)need * EFS_GRANULE;
        *block = (struct efs_block){s->base + (size_t)g * EFS_GRANULE, need, node->first + slot};
        return true;
    }
    return false;
}

static uint32_t with_most_room(const struct efs_arena *arena)
{
    uint32_t best = 0;
    uint64_t most = 0;
    for (uint32_t n = 0; n < arena->node_count; n++) {
        const struct efs_arena_node *node = &arena->nodes[n];
        uint64_t room = (uint64_t)node->segment_count * arena->segment_bytes - node->used_bytes;
        if (room > most) {
            most = room;
            best = n;
        }
    }
    return best;
}

bool efs_arena_alloc_on(struct efs_arena *arena, uint32_t node, size_t bytes, bool from_high, struct efs_block *block)
{
    if (bytes == 0 || bytes > arena->segment_bytes)
        return false;
    uint32_t need = (uint32_t)((bytes + EFS_GRANULE - 1) / EFS_GRANULE);
    uint32_t wanted = node < arena->node_count ? node : with_most_room(arena);
    if (alloc_in(arena, &arena->nodes[wanted], need, from_high, block))
        return true;
    for (uint32_t n = 0; n < arena->node_count; n++)
        if (n != wanted && alloc_in(arena, &arena->nodes[n], need, from_high, block))
            return true;
    return false;
}

bool efs_arena_alloc(struct efs_arena *arena, size_t bytes, bool from_high, struct efs_block *block)
{
    return efs_arena_alloc_on(arena, EFS_ANY_NODE, bytes, from_high, block);
}

void efs_arena_free(struct efs_arena *arena, struct efs_block *block)
{
    if (!block->data)
        return;
    struct efs_segment *s = &arena->segments[block->segment];
    struct efs_arena_node *node = &arena->nodes[s->node];
    uint32_t first = (uint32_t)((size_t)(block->data - s->base) / EFS_GRANULE), slot = block->segment - node->first;
    efs_runs_mark(s->allocated, first, block->granules, false);
    s->free_granules += block->granules;
    node->used_bytes -= (uint64_t)block->granules * EFS_GRANULE;
    arena->used_bytes -= (uint64_t)block->granules * EFS_GRANULE;
    if (s->retiring) {
        arena->emptied |= efs_arena_segment_is_unused(arena, block->segment);
    } else {
        uint32_t run = efs_runs_around(s->allocated, granules_of(arena), first, block->granules);
        if (run > node->longest[node->leaves + slot])
            set_longest(node, slot, run);
    }
    *block = (struct efs_block){0};
}

uint32_t efs_arena_node_of(const struct efs_arena *arena, const struct efs_block *block)
{
    return block->data ? arena->segments[block->segment].node : EFS_ANY_NODE;
}

bool efs_arena_segment_is_unused(const struct efs_arena *arena, uint32_t segment)
{
    const struct efs_segment *s = &arena->segments[segment];
    return s->retiring && s->free_granules == granules_of(arena) && !atomic_load(&s->populating);
}

void efs_arena_retire(struct efs_arena *arena, uint32_t segment)
{
    arena->segments[segment].retiring = true;
    arena->emptied |= efs_arena_segment_is_unused(arena, segment);
}

void efs_arena_set_populating(struct efs_arena *arena, uint32_t segment, bool populating)
{
    atomic_store(&arena->segments[segment].populating, populating);
    arena->emptied |= efs_arena_segment_is_unused(arena, segment);
}

/* ---- the table of nodes ---- */

/* Maps memory or reserves addresses with a start aligned to 2 MiB: maps more and unmaps both ends. NULL on failure. */
static uint8_t *map_aligned(size_t bytes, int prot, int flags)
{
    uint8_t *p = efs_sys_mmap(NULL, bytes + HUGE_PAGE, prot, flags, -1, 0);
    if (!p)
        return NULL;
    size_t head = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (head)
        efs_sys_munmap(p, head);
    if (HUGE_PAGE - head)
        efs_sys_munmap(p + head + bytes, HUGE_PAGE - head);
    return p + head;
}

static errint_t init_node(struct efs_arena *arena, const struct efs_numa_node *numa, uint32_t first, uint32_t slots)
{
    struct efs_arena_node *node = &arena->nodes[arena->node_count];
    uint32_t leaves = 1;
    while (leaves < slots)
        leaves *= 2;
    *node = (struct efs_arena_node){.numa = *numa, .first = first, .slots = slots, .leaves = leaves};
    node->longest = efs_sys_calloc(2ull * leaves, sizeof(*node->longest));
    if (!node->longest)
        return -ENOMEM;
    for (uint32_t i = first; i < first + slots; i++)
        arena->segments[i].node = arena->node_count;
    arena->node_count++;
    size_t bytes;
    if (!__builtin_mul_overflow(arena->segment_bytes, slots, &bytes) && bytes <= SIZE_MAX - HUGE_PAGE)
        node->base = map_aligned(bytes, PROT_NONE, RESERVED);
    node->reserved = node->base;
    return 0;
}

errint_t efs_arena_init_nodes(struct efs_arena *arena, size_t segment_bytes, uint32_t segment_max,
                              const struct efs_numa *numa)
{
    memset(arena, 0, sizeof(*arena));
    arena->watch_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    if (segment_bytes == 0 || segment_bytes % HUGE_PAGE || segment_bytes / EFS_GRANULE > UINT32_MAX ||
        segment_max == 0 || segment_max > UINT32_MAX / 4 || numa->node_count == 0)
        return -EINVAL;
    arena->segment_bytes = segment_bytes;
    arena->segment_max = segment_max;
    arena->numa_kind = numa->kind;
    arena->bind = numa->bind;
    arena->available_bytes = numa->available_bytes;
    arena->segments = efs_sys_calloc(segment_max, sizeof(*arena->segments));
    arena->nodes = efs_sys_calloc(numa->node_count, sizeof(*arena->nodes));
    errint_t rc = arena->segments && arena->nodes ? 0 : -ENOMEM;
    double total = 0, sum = 0;
    for (uint32_t n = 0; n < numa->node_count; n++)
        total += (double)numa->nodes[n].memory_bytes + 1;
    for (uint32_t n = 0, first = 0; rc == 0 && n < numa->node_count; n++) {
        sum += (double)numa->nodes[n].memory_bytes + 1;
        uint32_t end = n + 1 == numa->node_count ? segment_max : (uint32_t)(sum / total * segment_max);
        if (end > first)
            rc = init_node(arena, &numa->nodes[n], first, end - first);
        first = end;
    }
    if (rc < 0)
        efs_arena_destroy(arena);
    return rc;
}

errint_t efs_arena_init(struct efs_arena *arena, size_t segment_bytes, uint32_t segment_max)
{
    struct efs_numa numa;
    efs_numa_discover(&numa);
    return efs_arena_init_nodes(arena, segment_bytes, segment_max, &numa);
}

/* ---- adding segments ---- */

/* Whether the node, after adding a segment, still has 1/64 of its memory available: bound allocations must not
 * trigger the OOM killer. */
static bool has_memory(const struct efs_arena *arena, const struct efs_arena_node *node)
{
    if (!arena->available_bytes)
        return true;
    uint64_t available = arena->available_bytes(node->numa.id), margin = node->numa.memory_bytes / 64;
    return available >= margin && available - margin >= arena->segment_bytes;
}

uint64_t efs_arena_nodes_with_memory(const struct efs_arena *arena)
{
    uint64_t with = 0;
    for (uint32_t n = 0; n < arena->node_count; n++)
        with |= has_memory(arena, &arena->nodes[n]) ? UINT64_C(1) << n : 0;
    return with;
}

/* Among `nodes` (bit mask), the one that has used the least of its slots. EFS_ANY_NODE: none has a free slot. */
static uint32_t choose_node(const struct efs_arena *arena, uint64_t nodes)
{
    uint32_t best = EFS_ANY_NODE;
    for (uint32_t n = 0; n < arena->node_count; n++) {
        const struct efs_arena_node *node = &arena->nodes[n],
                                    *least = best == EFS_ANY_NODE ? NULL : &arena->nodes[best];
        uint64_t count = node->segment_count + node->pending_count;
        if (count == node->slots || !(nodes & UINT64_C(1) << n))
            continue;
        if (!least || count * least->slots < (uint64_t)(least->segment_count + least->pending_count) * node->slots)
            best = n;
    }
    return best;
}

bool efs_arena_choose(struct efs_arena *arena, uint64_t with_memory, struct efs_pending_segment *pending)
{
    uint32_t n = choose_node(arena, with_memory);
    bool full = n == EFS_ANY_NODE;
    if (full)
        n = choose_node(arena, UINT64_MAX);
    if (n == EFS_ANY_NODE)
        return false;
    uint32_t segment = arena->nodes[n].first;
    while (arena->segments[segment].base || arena->segments[segment].pending)
        segment++;
    *pending = (struct efs_pending_segment){.segment = segment, .full = full};
    arena->segments[segment].pending = true;
    arena->nodes[n].pending_count++;
    return true;
}

/* Maps memory for a segment at the reserved address `at`, or anywhere if it is NULL: a window file if other
 * processes may map segments and one can be created, else anonymous memory. NULL on failure. */
static uint8_t *segment_map(const struct efs_arena *arena, uint8_t *at, struct efs_window_file *file)
{
    size_t bytes = arena->segment_bytes;
    uint8_t *base = arena->memfiles ? efs_window_file_map(arena->memfiles, at, bytes, file) : NULL;
    if (base)
        return base;
    *file = (struct efs_window_file){.number = 0};
    if (!at)
        return map_aligned(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    return efs_sys_mprotect(at, bytes, PROT_READ | PROT_WRITE) < 0 ? NULL : at;
}

errint_t efs_arena_prepare(const struct efs_arena *arena, struct efs_pending_segment *pending)
{
    const struct efs_arena_node *node = &arena->nodes[arena->segments[pending->segment].node];
    size_t bytes = arena->segment_bytes;
    pending->allocated = efs_sys_calloc(granules_of(arena) / 64, sizeof(uint64_t));
    if (!pending->allocated)
        return -ENOMEM;
    uint8_t *at = node->base ? node->base + (pending->segment - node->first) * bytes : NULL;
    pending->base = segment_map(arena, at, &pending->file);
    if (!pending->base)
        return -ENOMEM;
    efs_sys_madvise(pending->base, bytes, MADV_HUGEPAGE); /* failure costs speed only */
    /* Without MADV_DONTFORK, a write after fork(2) copies pages shared with the child: the copies are not counted in
     * the budget, and an O_DIRECT read in flight at the fork may write to the wrong copy (open(2), NOTES). */
    efs_sys_madvise(pending->base, bytes, MADV_DONTFORK);
    if (arena->bind)
        pending->bind_error = pending->full ? -ENOMEM : arena->bind(pending->base, bytes, node->numa.id);
    return 0;
}

void efs_arena_add(struct efs_arena *arena, const struct efs_pending_segment *pending)
{
    struct efs_segment *s = &arena->segments[pending->segment];
    struct efs_arena_node *node = &arena->nodes[s->node];
    uint32_t all = granules_of(arena);
    *s = (struct efs_segment){.base = pending->base,
                              .allocated = pending->allocated,
                              .free_granules = all,
                              .node = s->node,
                              .file = pending->file,
                              .bound = arena->bind && pending->bind_error == 0};
    node->bound_count += s->bound;
    node->bind_error = pending->bind_error < 0 ? pending->bind_error : node->bind_error;
    set_longest(node, pending->segment - node->first, all);
    node->pending_count--;
    node->segment_count++;
    arena->segment_count++;
    arena->newest = pending->segment;
}

/* Replaces the pages with an empty reservation, which also releases locked pages and resets memory policy and
 * advice. */
static void release_pages(const struct efs_arena *arena, const struct efs_arena_node *node, uint8_t *base)
{
    if (!node->base) {
        efs_sys_munmap(base, arena->segment_bytes);
        return;
    }
    if (efs_sys_mmap(base, arena->segment_bytes, PROT_NONE, RESERVED | MAP_FIXED, -1, 0))
        return;
    efs_sys_madvise(base, arena->segment_bytes, MADV_DONTNEED);
    efs_sys_mprotect(base, arena->segment_bytes, PROT_NONE);
}

void efs_arena_discard(struct efs_arena *arena, const struct efs_pending_segment *pending)
{
    struct efs_segment *s = &arena->segments[pending->segment];
    if (pending->base) {
        efs_window_file_free(arena->memfiles, &pending->file, pending->base, arena->segment_bytes, true);
        release_pages(arena, &arena->nodes[s->node], pending->base);
    }
    free(pending->allocated);
    s->pending = false;
    arena->nodes[s->node].pending_count--;
}

errint_t efs_arena_grow(struct efs_arena *arena)
{
    struct efs_pending_segment pending;
    if (!efs_arena_choose(arena, efs_arena_nodes_with_memory(arena), &pending))
        return -ENOMEM;
    errint_t rc = efs_arena_prepare(arena, &pending);
    if (rc == 0)
        efs_arena_add(arena, &pending);
    else
        efs_arena_discard(arena, &pending);
    return rc;
}

errint_t efs_arena_populate(struct efs_arena *arena, uint32_t segment)
{
    struct efs_segment *s = &arena->segments[segment];
    bool populated = true;
    int rc = s->populated ? 0 : efs_sys_populate(s->base, arena->segment_bytes, &populated);
    if (rc < 0 || !populated || s->populated)
        return rc;
    s->populated = true;
    int64_t huge = efs_sys_huge_bytes(s->base, arena->segment_bytes);
    s->huge_bytes = huge < 0 ? 0 : (uint64_t)huge;
    if (huge < 0)
        atomic_store(&arena->huge_unknown, true);
    atomic_fetch_add(&arena->populated_bytes, arena->segment_bytes);
    atomic_fetch_add(&arena->huge_bytes, s->huge_bytes);
    return 0;
}

/* ---- dropping segments ---- */

void efs_arena_watch(struct efs_arena *arena, struct efs_chunk_watch *watch)
{
    pthread_mutex_lock(&arena->watch_lock);
    watch->next = arena->watch;
    arena->watch = watch;
    pthread_mutex_unlock(&arena->watch_lock);
}

void efs_arena_unwatch(struct efs_arena *arena, struct efs_chunk_watch *watch)
{
    pthread_mutex_lock(&arena->watch_lock);
    struct efs_chunk_watch **at = &arena->watch;
    while (*at != watch)
        at = &(*at)->next;
    *at = watch->next;
    pthread_mutex_unlock(&arena->watch_lock);
}

void *efs_arena_segment_at(const struct efs_arena *arena, const void *address)
{
    for (uint32_t i = 0; i < arena->segment_max; i++) {
        uint8_t *base = arena->segments[i].base;
        if (base && (uintptr_t)address - (uintptr_t)base < arena->segment_bytes)
            return base;
    }
    return NULL;
}

void efs_arena_release_pages(struct efs_arena *arena, uint32_t segment)
{
    struct efs_segment *s = &arena->segments[segment];
    pthread_mutex_lock(&arena->watch_lock);
    for (struct efs_chunk_watch *watch = arena->watch; watch; watch = watch->next)
        watch->gone(watch->arg, s->base);
    pthread_mutex_unlock(&arena->watch_lock);
    efs_window_file_free(arena->memfiles, &s->file, s->base, arena->segment_bytes, true);
    release_pages(arena, &arena->nodes[s->node], s->base);
    s->pages_released = true;
}

/* empty: also remove the pages from mappings of other processes. */
static void segment_drop(struct efs_arena *arena, uint32_t segment, bool empty)
{
    struct efs_segment *s = &arena->segments[segment];
    struct efs_arena_node *node = &arena->nodes[s->node];
    if (!s->pages_released && empty) {
        efs_arena_release_pages(arena, segment);
    } else if (!s->pages_released) {
        efs_window_file_free(arena->memfiles, &s->file, s->base, arena->segment_bytes, false);
        release_pages(arena, node, s->base);
    }
    free(s->allocated);
    if (s->populated) {
        atomic_fetch_sub(&arena->populated_bytes, arena->segment_bytes);
        atomic_fetch_sub(&arena->huge_bytes, s->huge_bytes);
    }
    node->bound_count -= s->bound;
    node->segment_count--;
    arena->segment_count--;
    set_longest(node, segment - node->first, 0);
    *s = (struct efs_segment){.node = s->node};
}

void efs_arena_drop(struct efs_arena *arena, uint32_t segment)
{
    segment_drop(arena, segment, true);
}

void efs_arena_destroy(struct efs_arena *arena)
{
    for (uint32_t i = 0; arena->segment_count && i < arena->segment_max; i++)
        if (arena->segments[i].base)
            segment_drop(arena, i, false); /* other processes keep the pages that they map */
    for (uint32_t n = 0; n < arena->node_count; n++) {
        if (arena->nodes[n].base)
            efs_sys_munmap(arena->nodes[n].base, arena->segment_bytes * arena->nodes[n].slots);
        free(arena->nodes[n].longest);
    }
    free(arena->segments);
    free(arena->nodes);
    arena->segments = NULL;
    arena->nodes = NULL;
    arena->node_count = 0;
}

void efs_arena_describe(const struct efs_arena *arena, FILE *out)
{
    fprintf(out, "numa: %s\nnuma_nodes: %u\nnuma_bytes:", arena->numa_kind, arena->node_count);
    for (uint32_t n = 0; n < arena->node_count; n++)
        fprintf(out, " N%u=%" PRIu64, arena->nodes[n].numa.id,
                (uint64_t)arena->nodes[n].segment_count * arena->segment_bytes);
    fprintf(out, "\nnuma_bound_bytes:");
    for (uint32_t n = 0; n < arena->node_count; n++)
        fprintf(out, " N%u=%" PRIu64, arena->nodes[n].numa.id,
                (uint64_t)arena->nodes[n].bound_count * arena->segment_bytes);
    fprintf(out, "\nnuma_reason:");
    bool all = true;
    for (uint32_t n = 0; n < arena->node_count; n++) {
        errint_t error = arena->nodes[n].bind_error;
        if (error && arena->nodes[n].bound_count < arena->nodes[n].segment_count) {
            fprintf(out, "%s N%u: %s", all ? "" : ";", arena->nodes[n].numa.id,
                    error == -ENOMEM ? "the node is full" : strerror(-error));
            all = false;
        }
    }
    fprintf(out, "%s\npopulated_bytes: %" PRIu64 "\n", all ? " -" : "", atomic_load(&arena->populated_bytes));
    if (atomic_load(&arena->huge_unknown))
        fprintf(out, "huge_bytes: unknown\n");
    else
        fprintf(out, "huge_bytes: %" PRIu64 "\n", atomic_load(&arena->huge_bytes));
}
