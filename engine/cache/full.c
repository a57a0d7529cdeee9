/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full.c - the full pool: expert files decoded into memory files that have the file's offsets (memfile.h). lease.c
 * grants leases on them.
 *
 * NONE -> FILLING -> READY -> NONE. A READY expert that is leased or being copied from is never evicted; its bytes
 * never change. Memory files that no other process has opened, and windows, are reused for the next expert of their
 * size, so that their pages need no zeroing. An EXPORTED memory file is freed, never reused. While other processes map
 * it, its memory cannot be freed: the expert then stays leased after its last holder has released it (`mapped`).
 */
#include "full.h"

#include "sys.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

size_t efs_memfile_bytes(const struct efs *fs, uint32_t expert)
{
    uint64_t bytes = efs_view_expert_bytes(&fs->view, expert);
    return (size_t)((bytes + EFS_ALIGN - 1) / EFS_ALIGN * EFS_ALIGN);
}

/* ---- memory; lock held ---- */

void efs_full_drop_free_memfiles(struct efs *fs, uint64_t bytes)
{
    uint64_t freed = 0;
    while (fs->full->free && freed < bytes) {
        struct efs_memfile *memfile = fs->full->free;
        fs->full->free = memfile->next;
        freed += memfile->bytes;
        memfile->empty = memfile->kind == EFS_MEMFILE_WINDOW;
        efs_defer_free(fs, memfile);
    }
}

void efs_full_put_memfile(struct efs *fs, struct efs_memfile *memfile)
{
    if (memfile->kind == EFS_MEMFILE_EXPORTED) {
        efs_defer_free(fs, memfile);
        return;
    }
    memfile->next = fs->full->free;
    fs->full->free = memfile;
    if (fs->account.used_bytes > fs->account.budget_bytes) /* the budget was reduced while the file was in use */
        efs_retry(fs, EFS_RETRY_BUDGET);
}

struct efs_memfile *efs_full_get_memfile(struct efs *fs, size_t bytes, enum efs_memfile_kind use)
{
    struct efs_memfile **found = NULL, **p = &fs->full->free;
    for (; *p && !(found && (*found)->kind == use); p = &(*p)->next) {
        assert((*p)->kind != EFS_MEMFILE_EXPORTED);
        if ((*p)->bytes == bytes && ((*p)->kind == use || (!found && (*p)->kind == EFS_MEMFILE_PRIVATE)))
            found = p;
    }
    struct efs_memfile *memfile = found ? *found : NULL;
    if (memfile)
        *found = memfile->next;
    return memfile;
}

/* ---- READY experts; lock held ---- */

struct efs_lru *efs_full_list(struct efs *fs, const struct efs_full *f)
{
    return f->protected ? &fs->full->protected : &fs->full->evictable;
}

void efs_full_protect(struct efs *fs, uint32_t expert, bool protected)
{
    struct efs_full *f = &fs->full->at[expert];
    if (f->protected == protected)
        return;
    if (f->state == EFS_FULL_READY)
        efs_lru_remove(efs_full_list(fs, f), expert);
    f->protected = protected;
    if (f->leases && protected)
        fs->full->leased_evictable_bytes -= f->memfile->bytes;
    else if (f->leases)
        fs->full->leased_evictable_bytes += f->memfile->bytes;
    if (f->state == EFS_FULL_READY)
        efs_lru_insert(efs_full_list(fs, f), expert, true);
}

bool efs_full_will_free(const struct efs *fs)
{
    for (uint32_t e = 0; fs->full->copied_count && e < fs->store->expert_count; e++)
        if (fs->full->at[e].readers && !fs->full->at[e].leases)
            return true;
    return false;
}

void efs_full_evict(struct efs *fs, uint32_t expert)
{
    struct efs_full *f = &fs->full->at[expert];
    assert(f->state == EFS_FULL_READY && f->leases == 0 && f->readers == 0 && !f->waiters && f->memfile);
    assert(fs->full->ready_count > 0);
    efs_lru_remove(efs_full_list(fs, f), expert);
    efs_full_put_memfile(fs, f->memfile);
    f->memfile = NULL;
    f->state = EFS_FULL_NONE;
    fs->full->ready_count--;
}

bool efs_full_is_unusable(const struct efs_full *f, enum efs_memfile_kind use)
{
    return f->state == EFS_FULL_READY && !f->leases && !f->readers && use != EFS_MEMFILE_PRIVATE &&
           f->memfile->kind != EFS_MEMFILE_PRIVATE && f->memfile->kind != use;
}

bool efs_full_evict_for(struct efs *fs, uint32_t expert, enum efs_memfile_kind use)
{
    if (!efs_full_is_unusable(&fs->full->at[expert], use))
        return false;
    efs_full_evict(fs, expert);
    return true;
}

/* Charges the memory file as pinned before the first lease or reader, and ends that after the last. */
static void full_pin_begin(struct efs *fs, const struct efs_full *f)
{
    if (!f->leases && !f->readers)
        efs_account_charge(&fs->account, EFS_ACCOUNT_FULL_PINNED, f->memfile->bytes);
}

static void full_pin_end(struct efs *fs, const struct efs_full *f)
{
    if (!f->leases && !f->readers)
        efs_account_release(&fs->account, EFS_ACCOUNT_FULL_PINNED, f->memfile->bytes);
}

void efs_full_copy_begin(struct efs *fs, uint32_t expert)
{
    assert(fs->full->at[expert].state == EFS_FULL_READY);
    full_pin_begin(fs, &fs->full->at[expert]);
    fs->full->copied_count += fs->full->at[expert].readers++ == 0;
}

void efs_full_copy_end(struct efs *fs, uint32_t expert)
{
    assert(fs->full->at[expert].state == EFS_FULL_READY && fs->full->at[expert].readers > 0);
    if (--fs->full->at[expert].readers)
        return;
    fs->full->copied_count--;
    full_pin_end(fs, &fs->full->at[expert]);
    efs_retry(fs, EFS_RETRY_BUDGET); /* the budget may have been reduced during the copy */
    efs_retry(fs, EFS_RETRY_ADMIT);
}

const uint8_t *efs_full_pin(struct efs *fs, uint32_t expert)
{
    const uint8_t *data = NULL;
    struct efs_full *f = &fs->full->at[expert];
    if (f->state == EFS_FULL_READY) {
        efs_full_copy_begin(fs, expert);
        data = f->memfile->data;
        efs_lru_use(efs_full_list(fs, f), expert);
    }
    return data;
}

/* ---- leased, filled ---- */

void efs_full_lease(struct efs *fs, uint32_t expert)
{
    struct efs_full_pool *pool = fs->full;
    struct efs_full *f = &pool->at[expert];
    full_pin_begin(fs, f);
    if (f->readers) /* its memory is no longer about to be freed: see efs_full_will_free() */
        efs_retry(fs, EFS_RETRY_BUDGET);
    if (f->leases++ == 0) {
        pool->leased_count++;
        pool->leased_bytes += f->memfile->bytes;
        pool->leased_evictable_bytes += f->protected ? 0 : f->memfile->bytes;
    }
    efs_lru_use(efs_full_list(fs, f), expert);
}

/* The descriptor of the expert's file if the caller has its last lease, apart from that for mappings; < 0: none. */
static int full_take_fd(struct efs_full *f)
{
    assert(f->state == EFS_FULL_READY && f->leases > f->mapped);
    return f->leases - f->mapped > 1 ? -1 : efs_memfile_take_fd(f->memfile);
}

/* The caller has a lease. */
static void full_set_mapped(struct efs_full_pool *pool, struct efs_full *f, bool mapped)
{
    if (f->mapped == mapped)
        return;
    f->mapped = mapped;
    f->leases = mapped ? f->leases + 1 : f->leases - 1;
    atomic_fetch_add(&pool->mapped_count, mapped ? 1u : UINT32_MAX);
}

bool efs_full_unlease(struct efs *fs, uint32_t expert, int *fd)
{
    struct efs_full_pool *pool = fs->full;
    struct efs_full *f = &pool->at[expert];
    int open = full_take_fd(f);
    if (open >= 0) {
        *fd = open;
        full_set_mapped(pool, f, true); /* it was not looked at yet */
    }
    if (--f->leases)
        return false;
    assert(pool->leased_count > 0 && pool->leased_bytes >= f->memfile->bytes);
    pool->leased_count--;
    pool->leased_bytes -= f->memfile->bytes;
    pool->leased_evictable_bytes -= f->protected ? 0 : f->memfile->bytes;
    full_pin_end(fs, f);
    return true;
}

void efs_full_release(struct efs *fs, uint32_t expert, int *fd)
{
    if (efs_full_unlease(fs, expert, fd)) {
        efs_retry(fs, EFS_RETRY_BUDGET);  /* the budget may have been reduced during the lease */
        efs_retry(fs, EFS_RETRY_EXTENTS); /* the chunk pool may grow again */
    }
    efs_retry(fs, EFS_RETRY_ADMIT); /* also after an earlier lease: its request may now hold nothing */
}

/* Looks for mappings by other processes, without the lock; the caller has a lease. fd: see full_take_fd(). */
static void full_look(struct efs *fs, struct efs_full *f, int fd)
{
    efs_unlock(fs);
    bool mapped = efs_memfile_is_mapped_elsewhere(&fs->full->memfiles, f->memfile, fd);
    efs_lock(fs);
    full_set_mapped(fs->full, f, mapped);
}

void efs_full_close(struct efs *fs, uint32_t expert)
{
    struct efs_full *f = &fs->full->at[expert];
    int fd;
    while ((fd = full_take_fd(f)) >= 0) /* again, if it was opened and closed meanwhile */
        full_look(fs, f, fd);
    efs_full_release(fs, expert, &fd);
}

void efs_full_sample(struct efs *fs, uint32_t most)
{
    struct efs_full_pool *pool = fs->full;
    uint32_t count = fs->store->expert_count;
    if (!atomic_load_explicit(&pool->mapped_count, memory_order_relaxed))
        return;
    efs_lock(fs);
    for (uint32_t i = 0; i < count && most && pool->mapped_count; i++) {
        uint32_t expert = pool->sampled = (pool->sampled + 1) % count;
        struct efs_full *f = &pool->at[expert];
        if (!f->mapped || f->leases > 1)
            continue;
        f->leases++;
        full_look(fs, f, -1);
        efs_full_close(fs, expert);
        most--;
    }
    efs_unlock(fs);
}

bool efs_full_any_in_use(const struct efs *fs)
{
    return fs->full->leased_count + fs->full->filling_count + fs->full->copied_count > 0;
}

void efs_full_fill(struct efs *fs, uint32_t expert, struct efs_request_item *waiter, bool fresh)
{
    struct efs_full *f = &fs->full->at[expert];
    assert(f->state == EFS_FULL_NONE && !f->memfile && !f->waiters);
    f->state = EFS_FULL_FILLING;
    f->waiters = waiter;
    fs->full->filling_count++;
    efs_account_charge(&fs->account, EFS_ACCOUNT_FULL_PINNED, efs_memfile_bytes(fs, expert));
    efs_account_charge(&fs->account, EFS_ACCOUNT_UNTOUCHED, fresh ? efs_memfile_bytes(fs, expert) : 0);
}

struct efs_request_item *efs_full_join(struct efs *fs, uint32_t expert, struct efs_request_item *waiter)
{
    struct efs_full *f = &fs->full->at[expert];
    struct efs_request_item *before = f->waiters;
    assert(f->state == EFS_FULL_FILLING);
    f->waiters = waiter;
    return before;
}

struct efs_request_item *efs_full_filled(struct efs *fs, uint32_t expert, struct efs_memfile *memfile, bool fresh)
{
    struct efs_full *f = &fs->full->at[expert];
    struct efs_request_item *waiters = f->waiters;
    assert(f->state == EFS_FULL_FILLING && f->leases == 0 && f->readers == 0 && !f->memfile);
    assert(fs->full->filling_count > 0);
    efs_account_release(&fs->account, EFS_ACCOUNT_FULL_PINNED, efs_memfile_bytes(fs, expert));
    efs_account_release(&fs->account, EFS_ACCOUNT_UNTOUCHED, fresh ? efs_memfile_bytes(fs, expert) : 0);
    fs->full->filling_count--;
    f->waiters = NULL;
    f->state = memfile ? EFS_FULL_READY : EFS_FULL_NONE;
    f->memfile = memfile;
    if (memfile) {
        fs->full->ready_count++;
        efs_lru_insert(efs_full_list(fs, f), expert, true);
    }
    return waiters;
}

void efs_full_stats(const struct efs *fs, struct efs_stats *stats)
{
    stats->full_pool_bytes = fs->account.bytes[EFS_ACCOUNT_FULL] + fs->account.bytes[EFS_ACCOUNT_RETURNING];
    stats->full_experts = fs->full->ready_count;
    stats->leased_bytes = fs->full->leased_bytes;
    stats->leased_experts = fs->full->leased_count;
}

struct efs_memfile *efs_full_memfile_new(struct efs *fs, size_t bytes)
{
    return efs_memfile_new(&fs->full->memfiles, bytes);
}

errint_t efs_full_export(struct efs *fs, uint32_t expert)
{
    return efs_memfile_export(&fs->full->memfiles, fs->full->at[expert].memfile);
}

errint_t efs_full_make_window(struct efs *fs, uint32_t expert)
{
    return efs_memfile_make_window(&fs->full->memfiles, fs->full->at[expert].memfile);
}

errint_t efs_full_build(struct efs *fs)
{
    uint32_t count = fs->store->expert_count;
    fs->full->at = efs_sys_calloc(count + 1u, sizeof(*fs->full->at));
    if (!fs->full->at)
        return -ENOMEM;
    efs_memfiles_open(&fs->full->memfiles, fs->options.full_pool);
    if (fs->options.chunk_windows && fs->full->memfiles.tmpfs >= 0)
        fs->arena.memfiles = &fs->full->memfiles;
    efs_lru_init(&fs->full->protected, &fs->full->at[0].link, sizeof(struct efs_full));
    efs_lru_init(&fs->full->evictable, &fs->full->at[0].link, sizeof(struct efs_full));
    return 0;
}

void efs_full_destroy(struct efs *fs)
{
    if (!fs->full->at)
        return;
    efs_lock(fs);
    for (uint32_t e = 0; e < fs->store->expert_count; e++) {
        struct efs_full *f = &fs->full->at[e];
        if (!f->memfile)
            continue;
        if (f->leases || f->readers) /* the store is closed before its experts are released */
            efs_account_release(&fs->account, EFS_ACCOUNT_FULL_PINNED, f->memfile->bytes);
        efs_defer_free(fs, f->memfile);
    }
    efs_full_drop_free_memfiles(fs, UINT64_MAX);
    assert(fs->account.bytes[EFS_ACCOUNT_FULL] == 0);
    efs_unlock(fs);
    efs_memfiles_close(&fs->full->memfiles);
    free(fs->full->at);
}

void efs_full_close_in_child(struct efs *fs)
{
    struct efs_full_pool *pool = fs->full;
    bool whole = pthread_mutex_trylock(&fs->lock) == 0; /* else another thread held it at the fork */
    for (uint32_t e = 0; whole && e < fs->store->expert_count; e++)
        if (pool->at[e].memfile)
            efs_memfile_unmap_in_child(pool->at[e].memfile);
    for (struct efs_memfile *m = whole ? pool->free : NULL; m; m = m->next)
        efs_memfile_unmap_in_child(m);
    efs_memfiles_close(&pool->memfiles);
}
