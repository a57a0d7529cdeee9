/* SPDX-License-Identifier: Apache-2.0 */
/* item.c - see fetch.h: what all files of this room do with items. */
#include "fetch.h"

#include "cache.h"

#include <stdlib.h>

void efs_item_free_load(struct efs_request_item *item)
{
    struct efs_load *load = item->load;
    item->load = NULL;
    if (load && atomic_fetch_sub(&load->refs, 1) == 1)
        free(load);
}

void efs_lease_get(struct efs *fs, uint32_t expert)
{
    efs_full_lease(fs, expert);
    efs_cache_leased(fs);
}

void efs_item_defer_answer(struct efs *fs, struct efs_request_item *item, errint_t error)
{
    item->load_error = error;
    efs_defer_task(fs, &item->task, item->ops->answer);
}
