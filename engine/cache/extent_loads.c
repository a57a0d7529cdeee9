/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_loads.c - structs for loads. A job on a worker allocates them before they are needed: nothing is allocated
 * with the lock held. Structs of completed loads are reused, so allocations are rare once the maximum number of loads
 * has been in flight.
 */
#include "extent_internal.h"

#include "container.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>

#define LOADS_IDLE 16u  /* if fewer are free, the number of structs is doubled, ... */
#define LOADS_FIRST 64u /* ... starting with these */

void efs_extent_load_put(struct efs *fs, struct efs_extent_load *load)
{
    load->next = fs->extents->free_loads;
    fs->extents->free_loads = load;
    fs->extents->free_count++;
}

/* Without lock: a list of at most `count` structs. */
static struct efs_extent_load *loads_new(unsigned count)
{
    struct efs_extent_load *loads = NULL, *load;
    while (count-- > 0 && (load = efs_sys_calloc(1, sizeof(*load)))) {
        load->next = loads;
        loads = load;
    }
    return loads;
}

static void loads_add(struct efs *fs, struct efs_extent_load *loads)
{
    for (struct efs_extent_load *next; loads; loads = next) {
        next = loads->next;
        efs_extent_load_put(fs, loads);
        fs->extents->load_count++;
    }
}

/* If it fails, the structs in flight have to suffice; a later efs_extent_load_get() tries again. */
static void loads_grow(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct efs *fs = EFS_CONTAINER(job, struct efs_extents, loads_job)->fs;
    (void)scratch;
    efs_lock(fs);
    unsigned count = fs->extents->load_count;
    efs_unlock(fs);
    struct efs_extent_load *loads = loads_new(count);
    efs_lock(fs);
    loads_add(fs, loads);
    fs->extents->loads_growing = false;
    if (loads) {
        efs_retry(fs, EFS_RETRY_EXTENTS);
        efs_retry(fs, EFS_RETRY_ADMIT);
    }
    efs_unlock(fs);
    efs_in_flight_end(fs);
}

struct efs_extent_load *efs_extent_load_get(struct efs *fs)
{
    struct efs_extents *extents = fs->extents;
    struct efs_extent_load *load = extents->free_loads;
    if (load) {
        extents->free_loads = load->next;
        extents->free_count--;
    }
    if (extents->free_count < LOADS_IDLE && !extents->loads_growing) {
        extents->loads_growing = true;
        extents->loads_job.run = loads_grow;
        efs_in_flight_begin(fs);
        efs_defer_job(fs, &extents->loads_job, EFS_JOB_FIRST);
    }
    return load;
}

errint_t efs_extent_loads_build(struct efs *fs)
{
    loads_add(fs, loads_new(LOADS_FIRST));
    return fs->extents->free_loads ? 0 : -ENOMEM;
}

void efs_extent_loads_free(struct efs *fs)
{
    for (struct efs_extent_load *load = fs->extents->free_loads, *next; load; load = next) {
        next = load->next;
        free(load);
    }
    fs->extents->free_loads = NULL;
}
