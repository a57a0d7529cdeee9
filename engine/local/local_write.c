/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_write.c - writes what was read from the source: the thread efs-local. The I/O thread copies pages to slots, the
 * thread writes the slots that wait, syncs once for all of them, and then writes their checksums. When all slots wait,
 * pages are not stored, so that no read waits for the local disk. Where another process writes, the thread reads the
 * maps again instead. While no page waits it has missing ones read (local_fill.c).
 */
#include "local_internal.h"

#include "sys.h"
#include "thread.h"

#include "expertfs-clock-private.h"

#include <errno.h>
#include <linux/ioprio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BYTES_PER_SECOND (256u << 20) /* limit of the rate of writing */
#define RELOAD_NS 1000000000u         /* at least between two readings of maps that another process writes */

/* ---- offering ---- */

static struct local_slot *take_slot(struct efs_local *l)
{
    pthread_mutex_lock(&l->lock);
    struct local_slot *slot = l->free_slots;
    if (slot)
        l->free_slots = slot->next;
    pthread_mutex_unlock(&l->lock);
    return slot;
}

static void queue_slot(struct efs_local *l, struct local_slot *slot)
{
    pthread_mutex_lock(&l->lock);
    slot->next = NULL;
    *l->queue_tail = slot;
    l->queue_tail = &slot->next;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
}

/* Where copying is: the block of the slot in use, and whether its pages still find room. */
struct offer {
    struct local_slot *slot;
    uint32_t block;
    bool full;
};

static void offer_page(struct efs_local *l, struct offer *o, uint64_t address, const uint8_t *page)
{
    const struct local_file *f = efs_local_file_at(l, address);
    if (!f || o->full)
        return;
    uint64_t number = (address - f->of.address) / EFS_ALIGN;
    uint32_t block = f->block_first + (uint32_t)(number / LOCAL_BLOCK_PAGES);
    unsigned bit = number % LOCAL_BLOCK_PAGES;
    if ((atomic_load(&l->there[block]) | atomic_load(&l->waiting[block])) >> bit & 1)
        return;
    if (!o->slot || o->slot->block != block) {
        if (o->slot)
            queue_slot(l, o->slot);
        o->slot = take_slot(l);
        o->full = !o->slot;
        if (o->full)
            return;
        o->slot->block = block;
        o->slot->offered = 0;
    }
    memcpy(o->slot->data + (size_t)bit * EFS_ALIGN, page, EFS_ALIGN);
    o->slot->offered |= local_bits(bit, 1);
    atomic_fetch_or(&l->waiting[block], local_bits(bit, 1));
}

void efs_local_offer(struct efs_local *l, uint64_t address, const struct iovec *buffers, unsigned count, size_t bytes)
{
    struct offer o = {0};
    if (!atomic_load(&l->writes)) {
        pthread_mutex_lock(&l->lock);
        l->reload = !l->owner;
        pthread_cond_signal(&l->wake);
        pthread_mutex_unlock(&l->lock);
        return;
    }
    for (unsigned i = 0; i < count && bytes >= EFS_ALIGN; i++)
        for (size_t at = 0; at + EFS_ALIGN <= buffers[i].iov_len && bytes >= EFS_ALIGN; at += EFS_ALIGN) {
            offer_page(l, &o, address, (const uint8_t *)buffers[i].iov_base + at);
            address += EFS_ALIGN;
            bytes -= EFS_ALIGN;
        }
    if (o.slot)
        queue_slot(l, o.slot);
}

/* ---- writing ---- */

/* Pages of the slot that the copy lacks. */
static uint64_t missing(const struct efs_local *l, const struct local_slot *slot)
{
    return slot->offered & ~atomic_load(&l->there[slot->block]);
}

static errint_t write_pages(struct local_file *f, const struct local_slot *slot)
{
    errint_t rc = 0;
    for (unsigned first = 0, count; rc == 0 && local_next_run(slot->pages, &first, &count); first += count)
        rc = efs_sys_pwrite_all(f->fd, slot->data + (size_t)first * EFS_ALIGN, (size_t)count * EFS_ALIGN,
                                local_offset(f, slot->block) + (uint64_t)first * EFS_ALIGN);
    if (rc == 0 && local_offset(f, slot->block) + EFS_LOCAL_BLOCK > f->of.bytes)
        rc = efs_sys_ftruncate(f->fd, f->of.bytes); /* its last page is shorter */
    f->written = true;
    return rc;
}

static errint_t write_entries(const struct local_file *f, const struct local_slot *slot)
{
    uint32_t checks[LOCAL_BLOCK_PAGES];
    errint_t rc = 0;
    for (unsigned first = 0, count; rc == 0 && local_next_run(slot->pages, &first, &count); first += count) {
        for (unsigned i = 0; i < count; i++)
            checks[i] = efs_local_check(slot->data + (size_t)(first + i) * EFS_ALIGN);
        rc = efs_local_write_entries(f, slot->block, first, count, checks);
    }
    return rc;
}

static errint_t sync_written(struct efs_local *l)
{
    errint_t rc = 0;
    for (unsigned i = 0; i < l->file_count; i++) {
        if (rc == 0 && l->files[i].written)
            rc = efs_sys_fsync(l->files[i].fd);
        l->files[i].written = false;
    }
    return rc;
}

/* Writes the slots of a list in their order while their pages fit into `room` pages. */
static errint_t write_slots(struct efs_local *l, struct local_slot *slots, uint64_t room)
{
    errint_t rc = 0;
    for (struct local_slot *s = slots; s; s = s->next) {
        s->pages = missing(l, s);
        uint64_t pages = (uint64_t)__builtin_popcountll(s->pages);
        if (rc < 0 || pages > room || pages == 0) {
            s->pages = 0;
            continue;
        }
        rc = write_pages(efs_local_file_of(l, s->block), s);
        room -= pages;
    }
    rc = rc < 0 ? rc : sync_written(l);
    for (struct local_slot *s = slots; rc == 0 && s; s = s->next) {
        rc = s->pages ? write_entries(efs_local_file_of(l, s->block), s) : 0;
        if (rc < 0 || !s->pages)
            continue;
        uint64_t pages = (uint64_t)__builtin_popcountll(s->pages & ~atomic_fetch_or(&l->there[s->block], s->pages));
        atomic_fetch_add(&l->page_count, pages);
        atomic_store_explicit(&l->used[s->block], atomic_load(&l->clock), memory_order_relaxed);
        efs_count(l->o.stats, local_written_bytes, pages * EFS_ALIGN);
    }
    return rc;
}

/* Returns the bytes of the pages. */
static uint64_t write_queued(struct efs_local *l, struct local_slot *slots)
{
    uint64_t pages = 0;
    for (const struct local_slot *s = slots; s; s = s->next)
        pages += (uint64_t)__builtin_popcountll(missing(l, s));
    if (!atomic_load(&l->writes) || pages == 0)
        return 0;
    errint_t rc = write_slots(l, slots, efs_local_make_room(l, pages));
    if (rc < 0)
        efs_local_failed(l, efs_local_file_of(l, slots->block), false, rc);
    return pages * EFS_ALIGN;
}

/* ---- the thread ---- */

/* With the lock: waits until a time, or stop. */
static void wait_until(struct efs_local *l, uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u), .tv_nsec = (long)(until_ns % 1000000000u)};
    while (!l->stop && efs_now_ns() < until_ns)
        pthread_cond_timedwait(&l->wake, &l->lock, &until);
}

static void *local_run(void *arg)
{
    struct efs_local *l = arg;
    syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0));
    if (atomic_load(&l->writes))
        efs_local_make_room(l, 0); /* the size may be smaller than at the mount before */
    pthread_mutex_lock(&l->lock);
    while (!l->stop || l->queue) {
        struct local_slot *slots = l->queue, *last = NULL;
        bool reload = l->reload;
        if (!slots && !reload) {
            efs_local_fill_next(l);
            pthread_cond_wait(&l->wake, &l->lock);
            continue;
        }
        uint64_t begin_ns = efs_now_ns();
        l->queue = NULL;
        l->queue_tail = &l->queue;
        l->reload = false;
        pthread_mutex_unlock(&l->lock);
        for (unsigned i = 0; reload && i < l->file_count; i++)
            if (l->files[i].fd < 0) /* its owner may have created it by now */
                efs_local_open_copy(l, &l->files[i], NULL);
        if (reload)
            efs_local_load(l); /* an error leaves pages to the source */
        uint64_t bytes = write_queued(l, slots);
        pthread_mutex_lock(&l->lock);
        for (struct local_slot *s = slots; s; s = s->next) {
            atomic_fetch_and(&l->waiting[s->block], ~s->offered);
            last = s;
        }
        if (last) {
            last->next = l->free_slots;
            l->free_slots = slots;
        }
        wait_until(l, begin_ns + (reload ? RELOAD_NS : bytes * 1000000000u / BYTES_PER_SECOND));
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

errint_t efs_local_start(struct efs_local *l)
{
    atomic_store(&l->writes, l->owner);
    errint_t rc = efs_thread_start(local_run, l, "efs-local", &l->thread);
    l->started = rc == 0;
    if (rc < 0) {
        pthread_mutex_lock(&l->lock);
        atomic_store(&l->writes, false);
        l->owner = false;
        l->refused = rc;
        pthread_mutex_unlock(&l->lock);
    }
    return rc;
}
