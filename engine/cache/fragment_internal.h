/* SPDX-License-Identifier: Apache-2.0 */
/* fragment_internal.h - the slabs of fragments. Private to fragment*.c. */
#ifndef EFS_FRAGMENT_INTERNAL_H
#define EFS_FRAGMENT_INTERNAL_H

#include "fragment.h"

#define EFS_FRAGMENTS_IN_SLAB (EFS_FRAGMENT_SLAB / EFS_GRANULE - 1)

struct efs_fragment {
    struct efs_fragment *next; /* in its bucket */
    struct efs_fragment_key key;
    uint32_t extent; /* EFS_NONE: of none */
    bool referenced; /* read since its slab became the newest */
};

/* In the first granule of a slab's memory; fragment i is in granule i + 1. */
struct efs_fragment_slab {
    struct efs_fragment_slab *newer;
    struct efs_block block;
    uint32_t count;
    struct efs_fragment fragments[EFS_FRAGMENTS_IN_SLAB];
};
_Static_assert(sizeof(struct efs_fragment_slab) <= EFS_GRANULE, "the first granule");

struct efs_fragments {
    struct efs_fragment_slab *oldest, *newest; /* fragments are added to the newest */
    uint64_t slabs;
    uint64_t bucket_count; /* a power of two */
    struct efs_fragment **buckets;
    uint16_t *of_extent; /* number of fragments */
};

/* Makes the slab the newest. */
void efs_fragments_append(struct efs_fragments *f, struct efs_fragment_slab *slab);
/* Adds a fragment to the newest slab, which has room. */
void efs_fragments_add(struct efs_fragments *f, struct efs_fragment_key key, uint32_t extent, const void *page);
/* Removes the oldest slab's fragments that were not read since, at least half of them, and makes it the newest. */
void efs_fragments_recycle(struct efs_fragments *f);

#endif
