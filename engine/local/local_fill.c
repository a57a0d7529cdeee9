/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_fill.c - has missing pages read, one run at a time while no page waits to be written: their bytes are offered
 * and written like all others, within the same rate. A pass over the blocks leaves out what finds no slot, so there may
 * be several.
 */
#include "local_internal.h"

#define FILL_PASSES 8u /* limit: what finds no slot in any of them stays missing */

/* The pages of a block that the copy lacks and filling wants. */
static uint64_t lacks(const struct efs_local *l, const struct local_file *f, uint32_t block)
{
    uint32_t left = f->page_count - (block - f->block_first) * LOCAL_BLOCK_PAGES;
    if (l->fill == EFS_LOCAL_FILL_TABLES && l->unit[block] != EFS_LOCAL_TABLES)
        return 0;
    return local_bits(0, left) & ~(atomic_load(&l->there[block]) | atomic_load(&l->waiting[block]));
}

/* The next run of missing pages. Returns their number; 0: none. */
static uint64_t next_missing(struct efs_local *l, uint64_t *address)
{
    const uint64_t end = (uint64_t)l->block_count * LOCAL_BLOCK_PAGES;
    uint64_t at = l->fill_at, pages = 0;
    const struct local_file *f = NULL;
    for (; at < end; at = (at / LOCAL_BLOCK_PAGES + 1) * LOCAL_BLOCK_PAGES) {
        uint32_t block = (uint32_t)(at / LOCAL_BLOCK_PAGES);
        f = efs_local_file_of(l, block);
        uint64_t bits = lacks(l, f, block) >> at % LOCAL_BLOCK_PAGES;
        if (bits) {
            at += (unsigned)__builtin_ctzll(bits);
            break;
        }
    }
    l->fill_at = at;
    for (; l->fill_at < end && pages < EFS_LOCAL_FILL_BYTES / EFS_ALIGN; pages++, l->fill_at++) {
        uint32_t block = (uint32_t)(l->fill_at / LOCAL_BLOCK_PAGES);
        if (block - f->block_first >= f->block_count || !(lacks(l, f, block) >> l->fill_at % LOCAL_BLOCK_PAGES & 1))
            break;
    }
    if (pages > 0)
        *address = f->of.address + (at - (uint64_t)f->block_first * LOCAL_BLOCK_PAGES) * EFS_ALIGN;
    return pages;
}

void efs_local_fill_next(struct efs_local *l)
{
    uint64_t address = 0;
    if (l->fill == EFS_LOCAL_FILL_OFF || l->fill_reads || l->stop)
        return;
    uint64_t pages = next_missing(l, &address);
    if (pages == 0 && ++l->fill_passes < FILL_PASSES) {
        l->fill_at = 0;
        pages = next_missing(l, &address);
    }
    l->fill_reads = pages > 0 && atomic_load(&l->writes) && atomic_load(&l->page_count) + pages <= l->page_limit &&
                    (l->fill_error = l->o.read(l->o.arg, address, l->fill_data, pages * EFS_ALIGN)) == 0;
    if (!l->fill_reads)
        l->fill = EFS_LOCAL_FILL_OFF;
}

void efs_local_fill(struct efs_local *l, enum efs_local_fill fill)
{
    pthread_mutex_lock(&l->lock);
    l->fill = l->o.read ? fill : EFS_LOCAL_FILL_OFF;
    l->fill_at = 0;
    l->fill_passes = 0;
    l->fill_error = fill == EFS_LOCAL_FILL_OFF ? l->fill_error : 0;
    l->reload = l->reload || (fill == EFS_LOCAL_FILL_ALL && !l->owner); /* is it complete by now? */
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
}

enum efs_local_fill efs_local_filling(struct efs_local *l)
{
    pthread_mutex_lock(&l->lock);
    enum efs_local_fill fill = l->fill;
    pthread_mutex_unlock(&l->lock);
    return fill;
}

void efs_local_filled(struct efs_local *l, errint_t error)
{
    pthread_mutex_lock(&l->lock);
    l->fill_reads = false;
    if (error < 0) {
        l->fill = EFS_LOCAL_FILL_OFF;
        l->fill_error = error;
    }
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
}
