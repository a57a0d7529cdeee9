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
#include "expertfs-stats.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

size_t efs_memfile_bytes(const struct efs *fs, uint32_t expert)
{
    return (size_t)efs_page_up(efs_view_expert_bytes(&fs->view, expert));
}

/* ---- memory; lock held ---- */

static void full_free_memfile(struct efs *fs, struct efs_memfile *memfile)
{
    memfile->empty = memfile->kind == EFS_MEMFILE_WINDOW;
    efs_defer_free(fs, memfile);
}

bool efs_full_drop_free_memfiles(struct efs *fs, uint64_t bytes)
{
    uint64_t freed = 0;
    while (fs->full->free && freed < bytes) {
        struct efs_memfile *memfile = fs->full->free;
        fs->full->free = memfile->next;
        freed += memfile->bytes;
        full_free_memfile(fs, memfile);
    }
    return freed > 0;
}

void efs_full_put_memfile(struct efs *fs, struct efs_memfile *memfile)
{
    bool over = fs->account.used_bytes > fs->account.budget_bytes; /* it was reduced while the file was in use */
    if (over || memfile->kind == EFS_MEMFILE_EXPORTED) {
        full_free_memfile(fs, memfile);
        return;
    }
    memfile->next = fs->full->free;
    fs->full->free = memfile;
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

/* Adds a READY expert to the numbers of leased ones (by: 1), or takes it off (-1): around each change. */
static void full_count(struct efs_full_pool *pool, const struct efs_full *f, uint64_t by)
{
    pool->leased_count += f->leases ? (uint32_t)by : 0;
    pool->leased_bytes += f->leases ? by * f->memfile->bytes : 0;
    pool->leased_evictable_bytes += f->leases && !f->protected ? by * f->memfile->bytes : 0;
}

static void full_account(struct efs *fs, enum efs_account_kind kind, bool was, bool is, uint64_t bytes)
{
    if (!was && is)
        efs_account_charge(&fs->account, kind, bytes);
    if (was && !is)
        efs_account_release(&fs->account, kind, bytes);
}

static void full_set_pins(struct efs *fs, struct efs_full *f, uint32_t leases, uint32_t readers)
{
    uint64_t bytes = f->memfile->bytes;
    full_account(fs, EFS_ACCOUNT_FULL_PINNED, f->leases || f->readers, leases || readers, bytes);
    full_account(fs, EFS_ACCOUNT_FULL_COPIED, f->readers && !f->leases, readers && !leases, bytes);
    full_count(fs->full, f, UINT64_MAX);
    f->leases = leases;
    f->readers = readers;
    full_count(fs->full, f, 1);
}

void efs_full_protect(struct efs *fs, uint32_t expert, bool protected)
{
    struct efs_full *f = &fs->full->at[expert];
    if (f->protected == protected)
        return;
    full_count(fs->full, f, UINT64_MAX);
    if (f->state == EFS_FULL_READY)
        efs_lru_use(&fs->full->lists[protected], expert);
    f->protected = protected;
    full_count(fs->full, f, 1);
}

void efs_full_evict(struct efs *fs, uint32_t expert)
{
    struct efs_full *f = &fs->full->at[expert];
    assert(f->state == EFS_FULL_READY && f->leases == 0 && f->readers == 0 && !f->waiters && f->memfile);
    assert(fs->full->ready_count > 0);
    efs_lru_remove(&fs->full->lists[f->protected], expert);
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

void efs_full_copy_begin(struct efs *fs, uint32_t expert)
{
    struct efs_full *f = &fs->full->at[expert];
    assert(f->state == EFS_FULL_READY);
    full_set_pins(fs, f, f->leases, f->readers + 1);
}

void efs_full_copy_end(struct efs *fs, uint32_t expert)
{
    struct efs_full *f = &fs->full->at[expert];
    assert(f->state == EFS_FULL_READY && f->readers > 0);
    full_set_pins(fs, f, f->leases, f->readers - 1);
}

const uint8_t *efs_full_pin(struct efs *fs, uint32_t expert)
{
    const uint8_t *data = NULL;
    struct efs_full *f = &fs->full->at[expert];
    if (f->state == EFS_FULL_READY) {
        efs_full_copy_begin(fs, expert);
        data = f->memfile->data;
        efs_lru_use(&fs->full->lists[f->protected], expert);
    }
    return data;
}

/* ---- leased, filled ---- */

void efs_full_lease(struct efs *fs, uint32_t expert)
{
    struct efs_full *f = &fs->full->at[expert];
    full_set_pins(fs, f, f->leases + 1, f->readers);
    efs_lru_use(&fs->full->lists[f->protected], expert);
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

void efs_full_unlease(struct efs *fs, uint32_t expert, int *fd)
{
    struct efs_full *f = &fs->full->at[expert];
    int open = full_take_fd(f);
    if (open >= 0) {
        *fd = open;
        full_set_mapped(fs->full, f, true); /* it was not looked at yet */
    }
    full_set_pins(fs, f, f->leases - 1, f->readers);
}

/* Looks for mappings by other processes, without the lock; the caller has a lease. fd: see full_take_fd(). */
static void full_look(struct efs *fs, struct efs_full *f, int fd)
{
    efs_unlock(fs);
    bool mapped = efs_memfile_is_mapped_elsewhere(&fs->full->memfiles, f->memfile, fd);
    efs_lock(fs);
    full_set_mapped(fs->full, f, mapped);
}

static void full_close(struct efs *fs, uint32_t expert)
{
    struct efs_full *f = &fs->full->at[expert];
    int fd;
    while ((fd = full_take_fd(f)) >= 0) /* again, if it was opened and closed meanwhile */
        full_look(fs, f, fd);
    efs_full_unlease(fs, expert, &fd);
}

void efs_full_close(struct efs *fs, uint32_t expert)
{
    struct efs_full_pool *pool = fs->full;
    uint32_t before[EFS_FULL_CLOSED], count = pool->closed_count;
    memcpy(before, pool->closed, count * sizeof(before[0]));
    pool->closed_count = 0;
    full_close(fs, expert);
    if (pool->at[expert].mapped && pool->closed_count < EFS_FULL_CLOSED)
        pool->closed[pool->closed_count++] = expert;
    for (uint32_t i = 0; i < count; i++)
        efs_full_look(fs, before[i]);
}

bool efs_full_look(struct efs *fs, uint32_t expert)
{
    struct efs_full *f = &fs->full->at[expert];
    if (!f->mapped || f->leases > 1)
        return false;
    f->leases++;
    full_look(fs, f, -1);
    full_close(fs, expert);
    return true;
}

void efs_full_sample(struct efs *fs, uint32_t most)
{
    struct efs_full_pool *pool = fs->full;
    uint32_t count = fs->store->expert_count;
    if (!atomic_load_explicit(&pool->mapped_count, memory_order_relaxed))
        return;
    efs_lock(fs);
    for (uint32_t i = 0; i < count && most && pool->mapped_count; i++) {
        pool->sampled = (pool->sampled + 1) % count;
        most -= efs_full_look(fs, pool->sampled);
    }
    efs_unlock(fs);
}

struct efs_request_item *efs_full_add_waiter(struct efs *fs, uint32_t expert, struct efs_request_item *waiter,
                                             bool fresh)
{
    struct efs_full *f = &fs->full->at[expert];
    struct efs_request_item *before = f->waiters;
    assert(f->state != EFS_FULL_READY && !f->memfile);
    f->waiters = waiter;
    if (f->state == EFS_FULL_FILLING)
        return before;
    f->state = EFS_FULL_FILLING;
    fs->full->filling_count++;
    efs_account_charge(&fs->account, EFS_ACCOUNT_FULL_PINNED, efs_memfile_bytes(fs, expert));
    efs_account_charge(&fs->account, EFS_ACCOUNT_UNTOUCHED, fresh ? efs_memfile_bytes(fs, expert) : 0);
    return NULL;
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
        efs_lru_insert(&fs->full->lists[f->protected], expert, true);
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

errint_t efs_full_build(struct efs *fs)
{
    uint32_t count = fs->store->expert_count;
    fs->full->at = efs_sys_calloc(count + (size_t)2, sizeof(*fs->full->at));
    if (!fs->full->at)
        return -ENOMEM;
    efs_memfiles_open(&fs->full->memfiles, fs->options.full_pool, fs->options.exports);
    if (fs->options.exports)
        fs->arena.memfiles = &fs->full->memfiles;
    for (unsigned i = 0; i < 2; i++)
        efs_lru_init(&fs->full->lists[i], &fs->full->at[0].link, sizeof(struct efs_full), count + i);
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
        full_set_pins(fs, f, 0, 0); /* the store is closed before its experts are released */
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
