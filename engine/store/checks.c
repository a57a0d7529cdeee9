/* SPDX-License-Identifier: Apache-2.0 */
/* checks.c - see checks.h. */
#include "checks.h"

#include "hash.h"

#include <string.h>

static uint32_t pages_of(uint64_t offset, uint32_t bytes)
{
    return (uint32_t)(efs_page_span(offset, offset + bytes) / EFS_ALIGN);
}

uint32_t efs_checks_bytes(const struct efs_disk_shard *s)
{
    uint32_t pages = pages_of(s->e_offset, s->e_bytes) + pages_of(s->sm_offset, s->sm_bytes);
    return (pages + EFS_CHECKS_PER_BLOCK - 1) / EFS_CHECKS_PER_BLOCK * EFS_CHECKS_BLOCK;
}

uint64_t efs_checks_offset(const struct efs_disk_shard *s)
{
    return (s->sm_bytes ? s->sm_offset : s->e_offset) + (uint64_t)s->checks * EFS_CHECKS_BLOCK;
}

static uint32_t check_of(const void *data, size_t bytes)
{
    return (uint32_t)efs_hash(data, bytes);
}

struct efs_check_place efs_check_at(const struct efs_disk_shard *s, bool sm, uint64_t page)
{
    uint64_t offset = sm ? s->sm_offset : s->e_offset, end = offset + (sm ? s->sm_bytes : s->e_bytes);
    uint64_t from = offset > page ? offset : page, to = end < page + EFS_ALIGN ? end : page + EFS_ALIGN;
    uint32_t number =
        (uint32_t)((page - efs_page_down(offset)) / EFS_ALIGN) + (sm ? pages_of(s->e_offset, s->e_bytes) : 0);
    return (struct efs_check_place){
        .block = efs_checks_offset(s) + (uint64_t)(number / EFS_CHECKS_PER_BLOCK) * EFS_CHECKS_BLOCK,
        .slot = number % EFS_CHECKS_PER_BLOCK,
        .begin = (uint32_t)(from - page),
        .bytes = (uint32_t)(to - from),
    };
}

bool efs_check_block(const void *block)
{
    const size_t covered = EFS_CHECKS_PER_BLOCK * sizeof(uint32_t);
    uint32_t check;
    memcpy(&check, (const uint8_t *)block + covered, sizeof(check));
    return check == check_of(block, covered);
}

bool efs_check_page(const struct efs_check_place *place, const void *block, const void *page)
{
    uint32_t check;
    memcpy(&check, (const uint8_t *)block + place->slot * sizeof(check), sizeof(check));
    return check == check_of((const uint8_t *)page + place->begin, place->bytes);
}

/* Appends the checksums of a chunk's pages; *at: number of the next one. */
static void make_chunk(uint64_t offset, uint32_t bytes, const uint8_t *chunk, uint8_t *out, uint32_t *at)
{
    for (uint32_t done = 0; done < bytes;) {
        uint32_t room = (uint32_t)(EFS_ALIGN - (offset + done) % EFS_ALIGN), left = bytes - done;
        uint32_t n = left < room ? left : room, check = check_of(chunk + done, n);
        memcpy(out + *at / EFS_CHECKS_PER_BLOCK * EFS_CHECKS_BLOCK + *at % EFS_CHECKS_PER_BLOCK * sizeof(check), &check,
               sizeof(check));
        ++*at;
        done += n;
    }
}

void efs_checks_make(const struct efs_disk_shard *s, const void *e, const void *sm, void *out)
{
    const size_t covered = EFS_CHECKS_PER_BLOCK * sizeof(uint32_t);
    uint32_t bytes = efs_checks_bytes(s), at = 0;
    memset(out, 0, bytes);
    make_chunk(s->e_offset, s->e_bytes, e, out, &at);
    make_chunk(s->sm_offset, s->sm_bytes, sm, out, &at);
    for (uint8_t *block = out; block < (uint8_t *)out + bytes; block += EFS_CHECKS_BLOCK) {
        uint32_t check = check_of(block, covered);
        memcpy(block + covered, &check, sizeof(check));
    }
}
