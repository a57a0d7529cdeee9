/* SPDX-License-Identifier: Apache-2.0 */
/* fragment.c - see fragment.h: the table of fragments, and eviction. */
#include "fragment_internal.h"

#include "extent.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PAGES_PER_BUCKET 8 /* of the budget */
#define BUCKETS_MIN 256u
#define MANY_SHARE 8 /* fragments with more than 1/8 of the pools are evicted before extents */

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
    return bucket_count(fs) * sizeof(struct efs_fragment *) + fs->extents->count * sizeof(uint16_t);
}

errint_t efs_fragments_build(struct efs *fs)
{
    if (efs_fragments_bytes(fs) == 0)
        return 0;
    struct efs_fragments *f = efs_sys_calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    fs->fragments = f;
    f->bucket_count = bucket_count(fs);
    f->buckets = efs_sys_calloc(f->bucket_count, sizeof(*f->buckets));
    f->of_extent = efs_sys_calloc((size_t)fs->extents->count + 1, sizeof(*f->of_extent));
    return f->buckets && f->of_extent ? 0 : -ENOMEM;
}

void efs_fragments_destroy(struct efs *fs)
{
    if (!fs->fragments)
        return;
    free(fs->fragments->buckets);
    free(fs->fragments->of_extent);
    free(fs->fragments);
    fs->fragments = NULL;
}

/* ---- the table ---- */

static struct efs_fragment **bucket_of(const struct efs_fragments *f, struct efs_fragment_key key)
{
    uint64_t x = (key.page ^ (uint64_t)key.chunk << 40) * UINT64_C(0x9e3779b97f4a7c15);
    return &f->buckets[(x >> 20) & (f->bucket_count - 1)];
}

static struct efs_fragment *find(const struct efs_fragments *f, struct efs_fragment_key key)
{
    struct efs_fragment *x = *bucket_of(f, key);
    while (x && (x->key.page != key.page || x->key.chunk != key.chunk))
        x = x->next;
    return x;
}

static struct efs_fragment_slab *slab_of(struct efs_fragment *x)
{
    return (struct efs_fragment_slab *)(void *)((uint8_t *)x - (uintptr_t)x % EFS_GRANULE);
}

static uint8_t *page_of(struct efs_fragment *x)
{
    struct efs_fragment_slab *slab = slab_of(x);
    return slab->block.data + (size_t)(x - slab->fragments + 1) * EFS_GRANULE;
}

static void link_fragment(struct efs_fragments *f, struct efs_fragment *x)
{
    struct efs_fragment **bucket = bucket_of(f, x->key);
    x->next = *bucket;
    *bucket = x;
    if (x->extent != EFS_NONE && f->of_extent[x->extent] < UINT16_MAX)
        f->of_extent[x->extent]++;
}

static void unlink_fragment(struct efs_fragments *f, struct efs_fragment *x)
{
    struct efs_fragment **at = bucket_of(f, x->key);
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    if (x->extent != EFS_NONE && f->of_extent[x->extent] > 0)
        f->of_extent[x->extent]--;
}

bool efs_fragment_get(struct efs *fs, struct efs_fragment_key key, void *page)
{
    struct efs_fragment *x = find(fs->fragments, key);
    if (!x)
        return false;
    x->referenced = true;
    memcpy(page, page_of(x), EFS_GRANULE);
    return true;
}

uint32_t efs_fragments_of(const struct efs *fs, uint32_t extent)
{
    return fs->fragments->of_extent[extent];
}

void efs_fragments_add(struct efs_fragments *f, struct efs_fragment_key key, uint32_t extent, const void *page)
{
    if (find(f, key)) /* another read has added it */
        return;
    struct efs_fragment *x = &f->newest->fragments[f->newest->count++];
    *x = (struct efs_fragment){.key = key, .extent = extent};
    memcpy(page_of(x), page, EFS_GRANULE);
    link_fragment(f, x);
}

/* ---- slabs ---- */

void efs_fragments_append(struct efs_fragments *f, struct efs_fragment_slab *slab)
{
    slab->newer = NULL;
    if (f->newest)
        f->newest->newer = slab;
    else
        f->oldest = slab;
    f->newest = slab;
}

static struct efs_fragment_slab *take_oldest(struct efs_fragments *f)
{
    struct efs_fragment_slab *slab = f->oldest;
    f->oldest = slab->newer;
    if (!f->oldest)
        f->newest = NULL;
    return slab;
}

void efs_fragments_recycle(struct efs_fragments *f)
{
    struct efs_fragment_slab *slab = take_oldest(f);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < slab->count; i++) {
        struct efs_fragment *x = &slab->fragments[i], *to = &slab->fragments[kept];
        unlink_fragment(f, x);
        if (!x->referenced || kept == EFS_FRAGMENTS_IN_SLAB / 2)
            continue;
        if (to != x)
            memcpy(page_of(to), page_of(x), EFS_GRANULE);
        *to = (struct efs_fragment){.key = x->key, .extent = x->extent};
        link_fragment(f, to);
        kept++;
    }
    slab->count = kept;
    efs_fragments_append(f, slab);
}

static void free_slab(struct efs *fs, struct efs_fragment_slab *slab)
{
    struct efs_block block = slab->block; /* the slab is in it */
    for (uint32_t i = 0; i < slab->count; i++)
        unlink_fragment(fs->fragments, &slab->fragments[i]);
    fs->fragments->slabs--;
    efs_arena_free(&fs->arena, &block);
}

bool efs_fragments_are_many(const struct efs *fs)
{
    return fs->fragments && fs->fragments->slabs * EFS_FRAGMENT_SLAB > efs_account_available(&fs->account) / MANY_SHARE;
}

bool efs_fragments_evict(struct efs *fs)
{
    if (!fs->fragments || !fs->fragments->oldest)
        return false;
    free_slab(fs, take_oldest(fs->fragments));
    return true;
}

void efs_fragments_drop_retiring(struct efs *fs)
{
    struct efs_fragments *f = fs->fragments;
    struct efs_fragment_slab *slab = f ? f->oldest : NULL, *next;
    if (!f)
        return;
    f->oldest = f->newest = NULL;
    for (; slab; slab = next) {
        next = slab->newer;
        if (fs->arena.segments[slab->block.segment].retiring) {
            free_slab(fs, slab);
            efs_retry(fs, EFS_RETRY_SEGMENTS);
        } else {
            efs_fragments_append(f, slab);
        }
    }
}
