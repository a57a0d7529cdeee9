/* SPDX-License-Identifier: Apache-2.0 */
/* charge.c - see efs.h: memory that is charged to the budget as fixed while the store is served. */
#include "efs.h"

#include <errno.h>

bool efs_charge_fixed(struct efs *fs, uint64_t bytes, uint64_t expert_bytes)
{
    const uint64_t left = fs->account.budget_bytes, floor = fs->account.floor_segments;
    const uint64_t segment = fs->arena.segment_bytes, fixed = efs_account_fixed(&fs->account) + bytes;
    uint64_t held = 0; /* segments with pinned chunks: these, or the minimum of the chunk pool, cannot be released */
    for (uint32_t i = 0; i < fs->arena.segment_max; i++)
        held += fs->arena.segments[i].long_refs != 0;
    const uint64_t always = fixed + floor * segment + expert_bytes;
    const uint64_t now = fixed + (held > floor ? held : floor) * segment + fs->account.bytes[EFS_ACCOUNT_FULL_PINNED];
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
