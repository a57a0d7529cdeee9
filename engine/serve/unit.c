/* unit.c - what a unit consists of, and where it stands. See serve.h for what a unit is. */
#include "unit_core.h"

#include "huge.h"
#include "kernels.h"
#include "sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Is there less than a page between the end of a chunk and the next one? */
static bool near(uint64_t end, uint64_t next)
{
    return next >= end && next - end < EFS_ALIGN;
}

/* Does shard b follow a on disk, E after E and SM after SM? A chunk without bytes follows only its like. */
static bool follows(const struct efs_disk_shard *a, const struct efs_disk_shard *b)
{
    if ((a->e_bytes == 0) != (b->e_bytes == 0) || (a->sm_bytes == 0) != (b->sm_bytes == 0))
        return false;
    return (a->e_bytes == 0 || near(a->e_offset + a->e_bytes, b->e_offset)) &&
           (a->sm_bytes == 0 || near(a->sm_offset + a->sm_bytes, b->sm_offset));
}

/* How many shards from `first` on make one unit. */
static uint16_t unit_length(const struct efs *fs, uint32_t first, uint32_t end)
{
    const struct efs_disk_shard *s = fs->store->shards;
    uint64_t bytes = efs_page_up(s[first].e_bytes) + efs_page_up(s[first].sm_bytes);
    uint32_t n = 1;
    while (first + n < end && n < EFS_UNIT_SHARDS && follows(&s[first + n - 1], &s[first + n])) {
        bytes += efs_page_up(s[first + n].e_bytes) + efs_page_up(s[first + n].sm_bytes);
        if (bytes > fs->unit_max_bytes)
            break;
        n++;
    }
    return (uint16_t)n;
}

/* One pass to count, one to fill units and the first unit of each object. */
static uint32_t lay_units(const struct efs *fs, struct efs_unit *units, uint32_t *object_unit)
{
    uint32_t n = 0;
    for (uint32_t o = 0; o < fs->store->object_count; o++) {
        const struct efs_disk_object *object = &fs->store->objects[o];
        uint32_t end = object->shard_first + object->shard_count;
        if (units)
            object_unit[o] = n;
        for (uint32_t s = object->shard_first; s < end; n++) {
            uint16_t length = unit_length(fs, s, end);
            if (units) {
                units[n].object = o;
                units[n].shard_first = s;
                units[n].shard_count = length;
                units[n].needs = (uint8_t)((fs->store->shards[s].e_bytes ? EFS_HALF_E : 0) |
                                           (fs->store->shards[s].sm_bytes ? EFS_HALF_SM : 0));
            }
            s += length;
        }
    }
    if (units)
        object_unit[fs->store->object_count] = n;
    return n;
}

uint32_t efs_units_count(const struct efs *fs)
{
    return lay_units(fs, NULL, NULL);
}

errint_t efs_units_build(struct efs *fs, struct efs_error *err)
{
    fs->units = efs_sys_calloc(fs->unit_count + 1u, sizeof(*fs->units));
    fs->object_unit = efs_sys_calloc(fs->store->object_count + 1u, sizeof(uint32_t));
    if (!fs->units || !fs->object_unit)
        return efs_fail(err, -ENOMEM, "%s: no memory for the table of units", fs->store->path);
    efs_ask_huge(fs->units, (fs->unit_count + (size_t)1) * sizeof(*fs->units));
    lay_units(fs, fs->units, fs->object_unit);
    efs_lru_init(&fs->kept_units, &fs->units[0].link, sizeof(struct efs_unit));
    efs_lru_init(&fs->loose_units, &fs->units[0].link, sizeof(struct efs_unit));
    efs_lru_init(&fs->passing_units, &fs->units[0].link, sizeof(struct efs_unit));
    fs->starved_tail = &fs->starved;
    return 0;
}

uint64_t efs_object_shard_bytes(const struct efs *fs, uint32_t object)
{
    return (uint64_t)fs->store->sb.shard_elements *
           efs_format_bytes((enum efs_format)fs->store->objects[object].format);
}

uint64_t efs_unit_begin(const struct efs *fs, uint32_t unit)
{
    const struct efs_unit *u = &fs->units[unit];
    return (u->shard_first - fs->store->objects[u->object].shard_first) * efs_object_shard_bytes(fs, u->object);
}

uint32_t efs_unit_at(const struct efs *fs, uint32_t object, uint64_t offset, uint64_t *end)
{
    uint32_t shard = fs->store->objects[object].shard_first + (uint32_t)(offset / efs_object_shard_bytes(fs, object));
    uint32_t low = fs->object_unit[object], high = fs->object_unit[object + 1];
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (fs->units[mid].shard_first <= shard)
            low = mid;
        else
            high = mid;
    }
    *end = low + 1 < fs->object_unit[object + 1] ? efs_unit_begin(fs, low + 1) : fs->store->objects[object].bytes;
    return low;
}

bool efs_unit_decodes_inline(const struct efs *fs, uint32_t unit)
{
    const struct efs_unit *u = &fs->units[unit];
    for (uint32_t i = 0; i < u->shard_count; i++) {
        uint32_t codec = fs->store->shards[u->shard_first + i].codec;
        if (codec != EFS_CODEC_CASCADE && codec != EFS_CODEC_NONE)
            return false;
    }
    return true;
}
