/* SPDX-License-Identifier: Apache-2.0 */
/* pack_ring.c - memory that is taken at one end and given back, in the same order, at the other. */
#include "pack.h"
#include "sys.h"

#include <errno.h>
#include <sys/mman.h>

errint_t efs_pack_ring_init(struct efs_pack_ring *ring, size_t bytes)
{
    *ring = (struct efs_pack_ring){.bytes = bytes};
    ring->base = efs_sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!ring->base)
        return -ENOMEM;
    efs_sys_madvise(ring->base, bytes, MADV_HUGEPAGE); /* fewer faults; as well without */
    return 0;
}

void efs_pack_ring_free(struct efs_pack_ring *ring)
{
    if (ring->base)
        efs_sys_munmap(ring->base, ring->bytes);
    ring->base = NULL;
}

uint8_t *efs_pack_ring_take(struct efs_pack_ring *ring, size_t bytes, uint64_t *end)
{
    if (ring->begin == ring->end)
        ring->begin = ring->end = 0;
    uint64_t at = ring->end;
    if (at % ring->bytes + bytes > ring->bytes) /* not cut at the top: begin again at the bottom */
        at += ring->bytes - at % ring->bytes;
    if (at + bytes - ring->begin > ring->bytes)
        return NULL;
    ring->end = *end = at + bytes;
    return ring->base + at % ring->bytes;
}

void efs_pack_ring_give(struct efs_pack_ring *ring, uint64_t end)
{
    ring->begin = end;
}
