/* SPDX-License-Identifier: Apache-2.0 */
/* account.c - see account.h. */
#include "account.h"

void efs_account_add_allocated(struct efs_account *a, uint64_t bytes)
{
    a->allocated_bytes += bytes;
}

void efs_account_return(struct efs_account *a, enum efs_account_kind kind, uint64_t bytes)
{
    efs_account_release(a, kind, bytes);
    a->returned_bytes += bytes;
}

unsigned efs_account_take_changed(struct efs_account *a)
{
    unsigned changed = a->changed;
    a->changed = 0;
    return changed;
}

static void account_limit(struct efs_account *a, uint64_t *limit, uint64_t value)
{
    if (*limit != value)
        a->changed |= 1u << EFS_ACCOUNT_LIMITS;
    *limit = value;
}

void efs_account_set_budget(struct efs_account *a, uint64_t budget_bytes, uint64_t floor_segments)
{
    account_limit(a, &a->budget_bytes, budget_bytes);
    account_limit(a, &a->floor_segments, floor_segments);
}

void efs_account_set_planned(struct efs_account *a, uint64_t segments, uint64_t unplanned_bytes)
{
    account_limit(a, &a->planned_segments, segments);
    account_limit(a, &a->unplanned_bytes, unplanned_bytes);
}

void efs_account_set_prefetch(struct efs_account *a, uint64_t bytes)
{
    account_limit(a, &a->prefetch_bytes, bytes);
}

bool efs_account_adds_up(const struct efs_account *a, uint64_t segments_bytes)
{
    uint64_t sum = 0;
    for (unsigned kind = 0; kind < EFS_ACCOUNT_USED_KINDS; kind++)
        sum += a->bytes[kind];
    return sum == a->used_bytes && a->bytes[EFS_ACCOUNT_SEGMENTS] == segments_bytes &&
           a->bytes[EFS_ACCOUNT_RETIRING] <= a->bytes[EFS_ACCOUNT_SEGMENTS] &&
           a->bytes[EFS_ACCOUNT_RETIRING_HELD] <= a->bytes[EFS_ACCOUNT_RETIRING] &&
           a->bytes[EFS_ACCOUNT_FULL_COPIED] <= a->bytes[EFS_ACCOUNT_FULL_PINNED] &&
           a->bytes[EFS_ACCOUNT_UNTOUCHED] <= a->bytes[EFS_ACCOUNT_FULL_PINNED] &&
           a->bytes[EFS_ACCOUNT_FULL_PINNED] <= a->bytes[EFS_ACCOUNT_FULL];
}

bool efs_account_is_within_budget(const struct efs_account *a, uint64_t segment_bytes)
{
    uint64_t stays = a->used_bytes - a->bytes[EFS_ACCOUNT_RETIRING] - a->bytes[EFS_ACCOUNT_RETURNING];
    uint64_t least = efs_account_fixed(a) + a->floor_segments * segment_bytes + a->bytes[EFS_ACCOUNT_FULL_PINNED];
    return stays <= a->budget_bytes || stays <= least;
}
