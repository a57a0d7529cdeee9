/* arena.c - see arena.h. Free runs are found by scanning a bitmap: 256 words for 64 MiB. */
#include "arena.h"

#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE (2u << 20)

static uint32_t granules_of(const struct efs_arena *arena)
{
    return (uint32_t)(arena->segment_bytes / EFS_GRANULE);
}

errint_t efs_arena_init(struct efs_arena *arena, size_t segment_bytes, uint32_t segment_max)
{
    *arena = (struct efs_arena){.segment_bytes = segment_bytes, .segment_max = segment_max};
    arena->segments = efs_sys_calloc(segment_max, sizeof(*arena->segments));
    return arena->segments ? 0 : -ENOMEM;
}

void efs_arena_destroy(struct efs_arena *arena)
{
    for (uint32_t i = 0; arena->segments && i < arena->segment_max; i++)
        if (arena->segments[i].base)
            efs_arena_drop(arena, i);
    free(arena->segments);
    arena->segments = NULL;
}

/* Memory whose start lies on a huge page: map more and cut both ends off. */
static uint8_t *map_aligned(size_t bytes)
{
    uint8_t *p = efs_sys_mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!p)
        return NULL;
    size_t head = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (head)
        efs_sys_munmap(p, head);
    if (HUGE_PAGE - head)
        efs_sys_munmap(p + head + bytes, HUGE_PAGE - head);
    efs_sys_madvise(p + head, bytes, MADV_HUGEPAGE); /* refused: small pages, slower */
    return p + head;
}

errint_t efs_arena_grow(struct efs_arena *arena)
{
    uint32_t i = 0;
    while (i < arena->segment_max && arena->segments[i].base)
        i++;
    if (i == arena->segment_max)
        return -ENOMEM;
    struct efs_segment *s = &arena->segments[i];
    uint32_t words = (granules_of(arena) + 63) / 64;
    uint64_t *taken = efs_sys_calloc(words, sizeof(uint64_t));
    uint8_t *base = taken ? map_aligned(arena->segment_bytes) : NULL;
    if (!base) {
        free(taken);
        return -ENOMEM;
    }
    *s = (struct efs_segment){.base = base, .taken = taken, .free_granules = granules_of(arena)};
    arena->segment_count++;
    return 0;
}

void efs_arena_drop(struct efs_arena *arena, uint32_t segment)
{
    struct efs_segment *s = &arena->segments[segment];
    efs_sys_munmap(s->base, arena->segment_bytes);
    free(s->taken);
    *s = (struct efs_segment){0};
    arena->segment_count--;
}

static bool is_taken(const struct efs_segment *s, uint32_t g)
{
    return s->taken[g / 64] >> (g % 64) & 1;
}

static void mark(struct efs_segment *s, uint32_t first, uint32_t count, bool taken)
{
    for (uint32_t g = first; g < first + count; g++)
        if (taken)
            s->taken[g / 64] |= 1ull << (g % 64);
        else
            s->taken[g / 64] &= ~(1ull << (g % 64));
}

/* The first run of `need` free granules from the chosen end, or all when there is none. */
static uint32_t find_run(const struct efs_segment *s, uint32_t all, uint32_t need, bool from_high)
{
    uint32_t run = 0;
    for (uint32_t i = 0; i < all; i++) {
        uint32_t g = from_high ? all - 1 - i : i;
        if (run == 0 && g % 64 == (from_high ? 63 : 0) && s->taken[g / 64] == UINT64_MAX) {
            i += 63; /* a full word */
            continue;
        }
        run = is_taken(s, g) ? 0 : run + 1;
        if (run == need)
            return from_high ? g : g - need + 1;
    }
    return all;
}

bool efs_arena_alloc(struct efs_arena *arena, size_t bytes, bool from_high, struct efs_block *block)
{
    uint32_t all = granules_of(arena), need = (uint32_t)((bytes + EFS_GRANULE - 1) / EFS_GRANULE);
    for (uint32_t i = 0; need && need <= all && i < arena->segment_max; i++) {
        struct efs_segment *s = &arena->segments[i];
        if (!s->base || s->retiring || s->free_granules < need)
            continue;
        uint32_t g = find_run(s, all, need, from_high);
        if (g == all)
            continue;
        mark(s, g, need, true);
        s->free_granules -= need;
        arena->used_bytes += (uint64_t)need * EFS_GRANULE;
        *block = (struct efs_block){s->base + (size_t)g * EFS_GRANULE, need, i};
        return true;
    }
    return false;
}

void efs_arena_free(struct efs_arena *arena, struct efs_block *block)
{
    if (!block->data)
        return;
    struct efs_segment *s = &arena->segments[block->segment];
    mark(s, (uint32_t)((size_t)(block->data - s->base) / EFS_GRANULE), block->granules, false);
    s->free_granules += block->granules;
    arena->used_bytes -= (uint64_t)block->granules * EFS_GRANULE;
    *block = (struct efs_block){0};
}

bool efs_arena_segment_empty(const struct efs_arena *arena, uint32_t segment)
{
    return arena->segments[segment].base && arena->segments[segment].free_granules == granules_of(arena);
}
