/* SPDX-License-Identifier: Apache-2.0 */
/* fragment.c - see fragment.h. */
#include "fragment.h"

#include "extent.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#define PAGES_PER_BUCKET 8 /* of the budget */
#define BUCKETS_MIN 256u
#define POOL_SHARE 2 /* fragments take at most half of the pools */
#define MANY_SHARE 8 /* fragments with more than 1/8 of the pools are evicted before extents */
#define PROMOTE_MIN 64u
#define IN_SLAB (EFS_FRAGMENT_SLAB / EFS_GRANULE - 1)
#define ALL_USED ((UINT64_C(1) << IN_SLAB) - 1)

struct efs_fragment {
    struct efs_fragment *next; /* in its bucket */
    struct efs_fragment_key key;
    uint32_t extent; /* EFS_NONE: of none */
    bool referenced; /* read since its slab became the newest */
};

/* In the first granule of a slab's memory; fragment i is in granule i + 1. */
struct efs_fragment_slab {
    TAILQ_ENTRY(efs_fragment_slab) link;
    struct efs_block block;
    uint64_t used; /* a bit for each fragment */
    struct efs_fragment fragments[IN_SLAB];
};
_Static_assert(IN_SLAB < 64, "a bit for each fragment");
_Static_assert(sizeof(struct efs_fragment_slab) <= EFS_GRANULE, "the first granule");

struct efs_fragments {
    TAILQ_HEAD(slabs, efs_fragment_slab) slabs; /* oldest first; fragments are added to the newest */
    uint64_t slab_count;
    uint64_t bucket_count; /* a power of two */
    struct efs_fragment *buckets[];
};

static uint64_t bucket_count(const struct efs *fs)
{
    uint64_t count = BUCKETS_MIN;
    while (count * PAGES_PER_BUCKET * EFS_GRANULE < fs->options.budget_bytes)
        count *= 2;
    return count;
}

uint64_t efs_fragments_bytes(const struct efs *fs)
{
    if (!fs->store->plain && !(fs->store->sb.incompat & EFS_INCOMPAT_CHECKS))
        return 0;
    return sizeof(struct efs_fragments) + bucket_count(fs) * sizeof(struct efs_fragment *);
}

errint_t efs_fragments_build(struct efs *fs)
{
    if (efs_fragments_bytes(fs) == 0)
        return 0;
    struct efs_fragments *f = fs->fragments = efs_sys_calloc(1, efs_fragments_bytes(fs));
    if (!f)
        return -ENOMEM;
    TAILQ_INIT(&f->slabs);
    f->bucket_count = bucket_count(fs);
    return 0;
}

void efs_fragments_destroy(struct efs *fs)
{
    free(fs->fragments);
    fs->fragments = NULL;
}

/* ---- the table ---- */

static struct efs_fragment **bucket_of(struct efs_fragments *f, struct efs_fragment_key key)
{
    uint64_t x = (key.page ^ (uint64_t)key.chunk << 40) * UINT64_C(0x9e3779b97f4a7c15);
    return &f->buckets[(x >> 20) & (f->bucket_count - 1)];
}

static struct efs_fragment *find(struct efs_fragments *f, struct efs_fragment_key key)
{
    struct efs_fragment *x = *bucket_of(f, key);
    while (x && (x->key.page != key.page || x->key.chunk != key.chunk))
        x = x->next;
    return x;
}

static uint8_t *page_of(struct efs_fragment *x)
{
    struct efs_fragment_slab *slab = (void *)((uint8_t *)x - (uintptr_t)x % EFS_GRANULE);
    return slab->block.data + (size_t)(x - slab->fragments + 1) * EFS_GRANULE;
}

static void unlink_fragment(struct efs *fs, struct efs_fragment *x)
{
    struct efs_fragment **at = bucket_of(fs->fragments, x->key);
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    if (x->extent != EFS_NONE)
        fs->extents->at[x->extent].fragments--;
}

bool efs_fragment_get(struct efs *fs, struct efs_fragment_key key, size_t begin, size_t bytes, void *dst)
{
    struct efs_fragment *x = find(fs->fragments, key);
    if (!x)
        return false;
    x->referenced = true;
    efs_copy_locked(fs, dst, page_of(x) + begin, bytes);
    return true;
}

bool efs_fragments_serve(const struct efs *fs, uint32_t extent)
{
    const struct efs_extent *x = &fs->extents->at[extent];
    if (!fs->fragments || fs->closing || x->state != EFS_EXTENT_IDLE || x->resident)
        return false;
    uint64_t half = efs_extent_span(fs, x, x->required) / EFS_GRANULE / 2;
    return x->fragments < (half > PROMOTE_MIN ? half : PROMOTE_MIN);
}

/* ---- slabs ---- */

/* Removes the oldest slab's fragments that were not read since, at least half of them, and makes it the newest. */
static void slab_recycle(struct efs *fs)
{
    struct efs_fragments *f = fs->fragments;
    struct efs_fragment_slab *slab = TAILQ_FIRST(&f->slabs);
    uint32_t kept = 0;
    for (uint64_t left = slab->used; left != 0; left &= left - 1) {
        struct efs_fragment *x = &slab->fragments[__builtin_ctzll(left)];
        if (x->referenced && kept < IN_SLAB / 2) {
            x->referenced = false;
            kept++;
        } else {
            unlink_fragment(fs, x);
            slab->used ^= left & -left;
        }
    }
    TAILQ_REMOVE(&f->slabs, slab, link);
    TAILQ_INSERT_TAIL(&f->slabs, slab, link);
}

bool efs_fragments_may_grow(const struct efs *fs)
{
    uint64_t count = fs->fragments->slab_count;
    return count == 0 || (count + 1) * EFS_FRAGMENT_SLAB <= efs_account_available(&fs->account) / POOL_SHARE;
}

bool efs_fragments_make_room(struct efs *fs, const struct efs_block *block)
{
    struct efs_fragments *f = fs->fragments;
    if (block->data) {
        struct efs_fragment_slab *slab = (void *)block->data;
        slab->block = *block;
        slab->used = 0;
        f->slab_count++;
        TAILQ_INSERT_TAIL(&f->slabs, slab, link);
    } else if (f->slab_count > 0) {
        slab_recycle(fs);
    }
    return f->slab_count > 0;
}

bool efs_fragments_add(struct efs *fs, struct efs_fragment_key key, uint32_t extent, const void *page)
{
    struct efs_fragments *f = fs->fragments;
    struct efs_fragment_slab *newest = TAILQ_LAST(&f->slabs, slabs);
    if (find(f, key)) /* another read has added it */
        return true;
    if (!newest || newest->used == ALL_USED)
        return false;
    const uint64_t bit = ~newest->used & (newest->used + 1);
    struct efs_fragment *x = &newest->fragments[__builtin_ctzll(bit)];
    newest->used |= bit;
    struct efs_fragment **bucket = bucket_of(f, key);
    *x = (struct efs_fragment){.next = *bucket, .key = key, .extent = extent};
    *bucket = x;
    if (extent != EFS_NONE)
        fs->extents->at[extent].fragments++;
    efs_copy_locked(fs, page_of(x), page, EFS_GRANULE);
    return true;
}

static void slab_free(struct efs *fs, struct efs_fragment_slab *slab)
{
    struct efs_block block = slab->block; /* the slab is in it */
    for (uint64_t left = slab->used; left != 0; left &= left - 1)
        unlink_fragment(fs, &slab->fragments[__builtin_ctzll(left)]);
    TAILQ_REMOVE(&fs->fragments->slabs, slab, link);
    fs->fragments->slab_count--;
    efs_arena_free(&fs->arena, &block);
}

bool efs_fragments_evict(struct efs *fs, bool if_many)
{
    const uint64_t share = if_many ? efs_account_available(&fs->account) / MANY_SHARE : 0;
    if (!fs->fragments || fs->fragments->slab_count * EFS_FRAGMENT_SLAB <= share)
        return false;
    slab_free(fs, TAILQ_FIRST(&fs->fragments->slabs));
    return true;
}

void efs_fragments_drop_retiring(struct efs *fs)
{
    struct efs_fragment_slab *slab = fs->fragments ? TAILQ_FIRST(&fs->fragments->slabs) : NULL;
    for (struct efs_fragment_slab *next; slab; slab = next) {
        next = TAILQ_NEXT(slab, link);
        if (fs->arena.segments[slab->block.segment].retiring)
            slab_free(fs, slab);
    }
}
