/*
 * full.c - the full pool: expert files decoded into memfds that have the file's own offsets. lease.c hands them out.
 *
 * NONE -> FILLING -> READY -> NONE. A READY expert that is leased or being copied from is never evicted; its bytes
 * never change. A memfd whose expert was evicted is kept for the next expert of its size, so that its pages need no
 * zeroing.
 */
#include "serve.h"

#include "residency.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

size_t efs_slot_bytes(const struct efs *fs, uint32_t expert)
{
    uint64_t bytes = efs_view_bytes(&fs->view, fs->view.expert_first + expert);
    return (size_t)((bytes + EFS_ALIGN - 1) / EFS_ALIGN * EFS_ALIGN);
}

/* ---- memfds ---- */

static void slot_free(struct efs_slot *slot)
{
    if (slot->data)
        efs_sys_munmap(slot->data, slot->bytes);
    if (slot->fd >= 0)
        efs_sys_close(slot->fd);
    free(slot);
}

/* A file in memory: in a tmpfs with huge pages, which are some ten times cheaper to get and to map, or else a memfd. */
static void memory_file(const struct efs *fs, struct efs_slot *slot)
{
    slot->fd = fs->huge_tmpfs >= 0 ? efs_sys_openat(fs->huge_tmpfs, ".", O_TMPFILE | O_RDWR, 0600) : -1;
    slot->memfd = slot->fd < 0;
    if (slot->memfd)
        slot->fd = efs_sys_memfd_create("expertfs", 0);
}

struct efs_slot *efs_slot_new(const struct efs *fs, size_t bytes)
{
    struct efs_slot *slot = efs_sys_calloc(1, sizeof(*slot));
    if (!slot)
        return NULL;
    slot->bytes = bytes;
    memory_file(fs, slot);
    if (slot->fd >= 0 && efs_sys_ftruncate(slot->fd, bytes) == 0)
        slot->data = efs_sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, slot->fd, 0);
    if (!slot->data) {
        slot_free(slot);
        return NULL;
    }
    return slot;
}

/* Lock held. */
void efs_full_drop_free_slots(struct efs *fs, uint64_t bytes)
{
    uint64_t freed = 0;
    while (fs->free_slots && freed < bytes) {
        struct efs_slot *slot = fs->free_slots;
        fs->free_slots = slot->next;
        freed += slot->bytes;
        fs->full_bytes -= slot->bytes;
        if (slot->window) /* who still has it mapped must not hold its memory */
            efs_sys_ftruncate(slot->fd, 0);
        slot_free(slot);
    }
}

/* Lock held: where in the list of free slots one of that size hangs; *NULL: nowhere. */
static struct efs_slot **free_slot(struct efs *fs, size_t bytes)
{
    struct efs_slot **p = &fs->free_slots;
    while (*p && (*p)->bytes != bytes)
        p = &(*p)->next;
    return p;
}

bool efs_full_has_free_slot(struct efs *fs, size_t bytes)
{
    return *free_slot(fs, bytes) != NULL;
}

struct efs_slot *efs_slot_take(struct efs *fs, size_t bytes, struct efs_disk_request **submit, errint_t *rc)
{
    if (efs_room_used(fs) > fs->options.budget_bytes) /* it was lowered while leases were held */
        efs_room_shrink(fs, submit);
    uint32_t old = fs->loose_full.oldest;
    if (efs_room_used(fs) + bytes > fs->options.budget_bytes && !fs->free_slots && old != EFS_NONE &&
        efs_slot_bytes(fs, old) == bytes)
        efs_full_evict_oldest(fs, false); /* with the budget used up, an old expert of the same size is taken over */
    for (;;) {
        struct efs_slot **p = free_slot(fs, bytes), *slot = *p;
        if (slot) {
            *p = slot->next;
            slot->shown = false;
            return slot;
        }
        *rc = efs_room_for_full(fs, bytes, submit);
        if (*rc < 0)
            return NULL;
        if (efs_full_has_free_slot(fs, bytes))
            continue;
        slot = efs_slot_new(fs, bytes);
        if (slot)
            fs->full_bytes += bytes;
        else
            *rc = -ENOMEM;
        return slot;
    }
}

/* ---- READY experts; lock held ---- */

struct efs_lru *efs_full_list(struct efs *fs, const struct efs_full *f)
{
    return f->kept ? &fs->kept_full : &fs->loose_full;
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
        fs->leased_loose_bytes -= f->slot->bytes;
    else if (f->leases)
        fs->leased_loose_bytes += f->slot->bytes;
    if (f->state == EFS_FULL_READY)
        efs_lru_insert(efs_full_list(fs, f), expert, true);
}

/*
 * May its memory be used for another? A mapping that a program made of the file through the mount goes on when it
 * closes the file, which ends the lease: the kernel has mapped our file, not FUSE's. Such bytes must never change.
 */
static bool is_mapped_elsewhere(const struct efs_slot *slot)
{
    return slot->shown && !slot->memfd && efs_sys_unshared(slot->fd) < 0;
}

bool efs_full_may_go(const struct efs_full *f)
{
    return f->state == EFS_FULL_READY && !f->leases && !is_mapped_elsewhere(f->slot);
}

/* Lock held: an expert's memory is free again. One that others may still have mapped unseen is left to them. */
static void slot_give_back(struct efs *fs, struct efs_slot *slot)
{
    if (slot->shown && slot->memfd) {
        fs->full_bytes -= slot->bytes;
        slot_free(slot);
        return;
    }
    slot->next = fs->free_slots;
    fs->free_slots = slot;
}

bool efs_full_evict_oldest(struct efs *fs, bool kept)
{
    const struct efs_lru *list = kept ? &fs->kept_full : &fs->loose_full;
    for (uint32_t e = list->oldest; e != EFS_NONE; e = efs_lru_newer(list, e)) {
        struct efs_full *f = &fs->full[e];
        if (f->leases || f->readers || is_mapped_elsewhere(f->slot))
            continue;
        efs_lru_remove(efs_full_list(fs, f), e);
        slot_give_back(fs, f->slot);
        f->slot = NULL;
        f->state = EFS_FULL_NONE;
        fs->full_ready_count--;
        efs_count(&fs->stats, evictions_f, 1);
        efs_residency_dropped_full(fs, e);
        return true;
    }
    return false;
}

const uint8_t *efs_full_hold(struct efs *fs, uint32_t expert)
{
    const uint8_t *data = NULL;
    pthread_mutex_lock(&fs->lock);
    struct efs_full *f = &fs->full[expert];
    if (f->state == EFS_FULL_READY) {
        f->readers++;
        data = f->slot->data;
        efs_lru_use(efs_full_list(fs, f), expert);
    }
    pthread_mutex_unlock(&fs->lock);
    return data;
}

void efs_full_unhold(struct efs *fs, uint32_t expert)
{
    struct efs_disk_request *submit = NULL;
    pthread_mutex_lock(&fs->lock);
    bool last = --fs->full[expert].readers == 0;
    if (last)
        efs_room_shrink(fs, &submit); /* the budget may have become smaller meanwhile */
    last = last && fs->lease_queue;
    pthread_mutex_unlock(&fs->lock);
    efs_disk_submit_all(fs, submit);
    if (last)
        efs_full_retry(fs);
}

errint_t efs_full_build(struct efs *fs)
{
    uint32_t count = fs->store->expert_count;
    fs->full = efs_sys_calloc(count + 1u, sizeof(*fs->full));
    if (!fs->full)
        return -ENOMEM;
    fs->huge_tmpfs = fs->options.full_pool ? efs_sys_huge_tmpfs() : -1;
    efs_lru_init(&fs->kept_full, &fs->full[0].link, sizeof(struct efs_full));
    efs_lru_init(&fs->loose_full, &fs->full[0].link, sizeof(struct efs_full));
    return efs_leases_build(fs);
}

void efs_full_destroy(struct efs *fs)
{
    for (uint32_t e = 0; fs->full && e < fs->store->expert_count; e++)
        if (fs->full[e].slot)
            slot_free(fs->full[e].slot);
    efs_full_drop_free_slots(fs, UINT64_MAX);
    if (fs->huge_tmpfs >= 0)
        efs_sys_close(fs->huge_tmpfs);
    efs_leases_destroy(fs);
    free(fs->full);
}
