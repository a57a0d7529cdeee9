/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_loads.c - structs for loads, allocated before they are needed: nothing is allocated with the lock held.
 * Structs of completed loads are reused, so allocations are rare once the maximum number of loads has been in flight.
 */
#include "extent_internal.h"

#include "sys.h"

#include <stdlib.h>

#define LOADS_IDLE 16u  /* if fewer are free, the number of structs is doubled, ... */
#define LOADS_FIRST 64u /* ... starting with these */

void efs_extent_load_put(struct efs *fs, struct efs_extent_load *load)
{
    load->next = fs->extents->free_loads;
    fs->extents->free_loads = load;
    fs->extents->free_count++;
}

unsigned efs_extent_loads_wanted(const struct efs *fs)
{
    unsigned made = fs->extents->load_count;
    return fs->extents->free_count >= LOADS_IDLE ? 0 : made < LOADS_FIRST ? LOADS_FIRST : made;
}

struct efs_extent_load *efs_extent_loads_new(unsigned count)
{
    struct efs_extent_load *loads = NULL, *load;
    while (count-- > 0 && (load = efs_sys_calloc(1, sizeof(*load)))) {
        load->next = loads;
        loads = load;
    }
    return loads;
}

void efs_extent_loads_add(struct efs *fs, struct efs_extent_load *loads)
{
    for (struct efs_extent_load *next; loads; loads = next) {
        next = loads->next;
        efs_extent_load_put(fs, loads);
        fs->extents->load_count++;
    }
}

struct efs_extent_load *efs_extent_load_get(struct efs *fs)
{
    struct efs_extent_load *load = fs->extents->free_loads;
    if (load) {
        fs->extents->free_loads = load->next;
        fs->extents->free_count--;
    }
    if (fs->extents->free_count < LOADS_IDLE)
        atomic_store(&fs->refill_wanted, true);
    return load;
}

void efs_extent_loads_free(struct efs *fs)
{
    for (struct efs_extent_load *load = fs->extents->free_loads, *next; load; load = next) {
        next = load->next;
        free(load);
    }
    fs->extents->free_loads = NULL;
}
