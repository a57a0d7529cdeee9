/* SPDX-License-Identifier: Apache-2.0 */
/* charge.c - see efs.h: memory that is charged to the budget as fixed while the store is served. */
#include "efs.h"

#include <errno.h>

/* Segments that cannot be released: the minimum of the chunk pool, or those with pinned chunks. */
static uint64_t segments_minimum_bytes(const struct efs *fs)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < fs->arena.segment_max; i++)
        held += fs->arena.segments[i].long_refs != 0;
    return (held > fs->account.floor_segments ? held : fs->account.floor_segments) * fs->arena.segment_bytes;
}

bool efs_charge_fixed(struct efs *fs, uint64_t bytes, uint64_t expert_bytes)
{
    uint64_t left = fs->account.budget_bytes, least = fs->account.floor_segments * fs->arena.segment_bytes;
    uint64_t fixed = efs_account_fixed(&fs->account) + bytes, always = fixed + least + expert_bytes;
    uint64_t now = fixed + segments_minimum_bytes(fs) + fs->account.bytes[EFS_ACCOUNT_FULL_PINNED];
    if (always > left || now > left)
        return false;
    efs_account_charge(&fs->account, EFS_ACCOUNT_FIXED, bytes);
    return true;
}

errint_t efs_charge(struct efs *fs, uint64_t bytes)
{
    efs_lock(fs);
    bool charged = efs_charge_fixed(fs, bytes, 0);
    efs_unlock(fs);
    return charged ? 0 : -ENOMEM;
}

void efs_uncharge(struct efs *fs, uint64_t bytes)
{
    efs_lock(fs);
    efs_account_release(&fs->account, EFS_ACCOUNT_FIXED, bytes);
    efs_unlock(fs);
}
