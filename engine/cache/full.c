/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full.c - the full pool: expert files decoded into memory files that have the file's own offsets (memfile.h). lease.c
 * hands them out.
 *
 * NONE -> FILLING -> READY -> NONE. A READY expert that is leased or being copied from is never evicted; its bytes
 * never change. Memory that nobody else has seen, and windows, are kept for the next expert of their size, so that
 * their pages need no zeroing. What was shown as a file goes back to the kernel, and the next expert gets fresh memory.
 */
#include "serve.h"

#include "cache.h"
#include "sys.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

size_t efs_memfile_bytes(const struct efs *fs, uint32_t expert)
{
    uint64_t bytes = efs_view_bytes(&fs->view, fs->view.expert_first + expert);
    return (size_t)((bytes + EFS_ALIGN - 1) / EFS_ALIGN * EFS_ALIGN);
}

/* ---- memory; lock held ---- */

/* Its memory goes after the lock, and counts until then. */
static void memfile_drop(struct efs *fs, struct efs_memfile *memfile)
{
    assert(fs->full_bytes >= memfile->bytes);
    fs->full_bytes -= memfile->bytes;
    fs->freeing_bytes += memfile->bytes;
    efs_defer_free(fs, memfile);
}

void efs_full_drop_free_memfiles(struct efs *fs, uint64_t bytes)
{
    uint64_t freed = 0;
    while (fs->free_memfiles && freed < bytes) {
        struct efs_memfile *memfile = fs->free_memfiles;
        fs->free_memfiles = memfile->next;
        freed += memfile->bytes;
        memfile->empty = memfile->kind == EFS_MEMFILE_WINDOW;
        memfile_drop(fs, memfile);
    }
}

void efs_full_give_back(struct efs *fs, struct efs_memfile *memfile)
{
    if (memfile->kind == EFS_MEMFILE_SHOWN) {
        memfile_drop(fs, memfile);
        return;
    }
    memfile->next = fs->free_memfiles;
    fs->free_memfiles = memfile;
}

/* Where in the list of free memfiles the best one of that size for the use hangs; *NULL: nowhere. */
static struct efs_memfile **free_memfile(struct efs *fs, size_t bytes, enum efs_memfile_kind use)
{
    struct efs_memfile **found = NULL, **p = &fs->free_memfiles;
    for (; *p; p = &(*p)->next) {
        assert((*p)->kind != EFS_MEMFILE_SHOWN);
        if ((*p)->bytes == bytes && (*p)->kind == use)
            return p;
        if ((*p)->bytes == bytes && !found && (*p)->kind == EFS_MEMFILE_PRIVATE)
            found = p;
    }
    return found ? found : p;
}

bool efs_full_has_free_memfile(struct efs *fs, size_t bytes, enum efs_memfile_kind use)
{
    return *free_memfile(fs, bytes, use) != NULL;
}

errint_t efs_memfile_take(struct efs *fs, size_t bytes, enum efs_memfile_kind use, struct efs_memfile **memfile)
{
    *memfile = NULL;
    if (efs_budget_used(fs) > fs->options.budget_bytes) /* it was lowered while leases were held */
        efs_budget_shrink(fs);
    uint32_t old = fs->evictable_full.oldest;
    if (efs_budget_used(fs) + bytes > fs->options.budget_bytes && !fs->free_memfiles && old != EFS_NONE &&
        efs_memfile_bytes(fs, old) == bytes)
        efs_full_evict_oldest(fs, false); /* with the budget used up, an old expert of the same size gives its place */
    struct efs_memfile **p = free_memfile(fs, bytes, use);
    if (!*p) {
        errint_t rc = efs_budget_reserve_full(fs, bytes, use);
        if (rc < 0)
            return rc;
        p = free_memfile(fs, bytes, use);
    }
    *memfile = *p;
    if (*p)
        *p = (*p)->next;
    else
        fs->full_bytes += bytes;
    return 0;
}

/* ---- READY experts; lock held ---- */

struct efs_lru *efs_full_list(struct efs *fs, const struct efs_full *f)
{
    return f->kept ? &fs->protected_full : &fs->evictable_full;
}

void efs_full_keep(struct efs *fs, uint32_t expert, bool kept)
{
    struct efs_full *f = &fs->full[expert];
    if (f->kept == kept)
        return;
    if (f->state == EFS_FULL_READY)
        efs_lru_remove(efs_full_list(fs, f), expert);
    f->kept = kept;
    if (f->leases && kept)
        fs->leased_evictable_bytes -= f->memfile->bytes;
    else if (f->leases)
        fs->leased_evictable_bytes += f->memfile->bytes;
    if (f->state == EFS_FULL_READY)
        efs_lru_insert(efs_full_list(fs, f), expert, true);
}

bool efs_full_may_go(const struct efs_full *f)
{
    return f->state == EFS_FULL_READY && !f->leases;
}

/* It is READY and nobody's. */
static void leave(struct efs *fs, uint32_t expert)
{
    struct efs_full *f = &fs->full[expert];
    assert(f->state == EFS_FULL_READY && f->leases == 0 && f->readers == 0 && !f->waiters && f->memfile);
    assert(fs->full_ready_count > 0);
    efs_lru_remove(efs_full_list(fs, f), expert);
    efs_full_give_back(fs, f->memfile);
    f->memfile = NULL;
    f->state = EFS_FULL_NONE;
    fs->full_ready_count--;
}

bool efs_full_evict_oldest(struct efs *fs, bool kept)
{
    const struct efs_lru *list = kept ? &fs->protected_full : &fs->evictable_full;
    for (uint32_t e = list->oldest; e != EFS_NONE; e = efs_lru_newer(list, e)) {
        if (fs->full[e].leases || fs->full[e].readers)
            continue;
        leave(fs, e);
        efs_count(&fs->stats, evictions_f, 1);
        efs_cache_dropped_full(fs, e);
        return true;
    }
    return false;
}

bool efs_full_must_leave(const struct efs_full *f, enum efs_memfile_kind use)
{
    return f->state == EFS_FULL_READY && !f->leases && !f->readers && use != EFS_MEMFILE_PRIVATE &&
           f->memfile->kind != EFS_MEMFILE_PRIVATE && f->memfile->kind != use;
}

bool efs_full_leave_for(struct efs *fs, uint32_t expert, enum efs_memfile_kind use)
{
    if (!efs_full_must_leave(&fs->full[expert], use))
        return false;
    leave(fs, expert);
    efs_count(&fs->stats, leases_moved, 1);
    return true;
}

const uint8_t *efs_full_pin(struct efs *fs, uint32_t expert)
{
    const uint8_t *data = NULL;
    struct efs_full *f = &fs->full[expert];
    if (f->state == EFS_FULL_READY) {
        f->readers++;
        data = f->memfile->data;
        efs_lru_use(efs_full_list(fs, f), expert);
    }
    return data;
}

void efs_full_unpin(struct efs *fs, uint32_t expert)
{
    assert(fs->full[expert].state == EFS_FULL_READY && fs->full[expert].readers > 0);
    if (--fs->full[expert].readers)
        return;
    efs_budget_shrink(fs); /* the budget may have become smaller meanwhile */
    efs_again(fs, EFS_AGAIN_LEASES);
}

errint_t efs_full_build(struct efs *fs)
{
    uint32_t count = fs->store->expert_count;
    fs->full = efs_sys_calloc(count + 1u, sizeof(*fs->full));
    if (!fs->full)
        return -ENOMEM;
    efs_memfiles_open(&fs->memfiles, fs->options.full_pool);
    efs_memory_left_open(&fs->memory_left);
    efs_lru_init(&fs->protected_full, &fs->full[0].link, sizeof(struct efs_full));
    efs_lru_init(&fs->evictable_full, &fs->full[0].link, sizeof(struct efs_full));
    return efs_leases_build(fs);
}

void efs_full_destroy(struct efs *fs)
{
    efs_lock(fs);
    for (uint32_t e = 0; fs->full && e < fs->store->expert_count; e++)
        if (fs->full[e].memfile)
            memfile_drop(fs, fs->full[e].memfile);
    efs_full_drop_free_memfiles(fs, UINT64_MAX);
    assert(fs->full_bytes == 0);
    efs_unlock(fs);
    efs_memfiles_close(&fs->memfiles);
    efs_memory_left_close(&fs->memory_left);
    efs_leases_destroy(fs);
    free(fs->full);
}
