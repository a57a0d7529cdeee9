/*
 * full.c - the full pool: expert files decoded into memfds that have the file's own offsets, and the leases on them.
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

struct efs_lease { /* one an expert: all leases on it are counted in struct efs_full */
    struct efs *fs;
    uint32_t expert;
};

struct efs_full_waiter { /* one call of efs_lease() */
    struct efs_full_waiter *next;
    uint32_t expert;
    efs_leased_fn *done;
    void *arg;
};

static size_t slot_bytes(const struct efs *fs, uint32_t expert)
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
static int memory_file(const struct efs *fs)
{
    int fd = fs->huge_tmpfs >= 0 ? efs_sys_openat(fs->huge_tmpfs, ".", O_TMPFILE | O_RDWR, 0600) : -1;
    return fd >= 0 ? fd : efs_sys_memfd_create("expertfs", 0);
}

static struct efs_slot *slot_new(const struct efs *fs, size_t bytes)
{
    struct efs_slot *slot = efs_sys_calloc(1, sizeof(*slot));
    if (!slot)
        return NULL;
    slot->bytes = bytes;
    slot->fd = memory_file(fs);
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
        slot_free(slot);
    }
}

/* Lock held. A memfd of that size: a recycled one, or a new one within the budget. NULL: *rc says why. */
static struct efs_slot *slot_take(struct efs *fs, size_t bytes, struct efs_disk_request **submit, errint_t *rc)
{
    if (efs_room_used(fs) > fs->options.budget_bytes) /* it was lowered while leases were held */
        efs_room_shrink(fs, submit);
    for (;;) {
        for (struct efs_slot **p = &fs->free_slots; *p; p = &(*p)->next)
            if ((*p)->bytes == bytes) {
                struct efs_slot *slot = *p;
                *p = slot->next;
                return slot;
            }
        /* with the budget used up, an old expert of the same size is taken over whole */
        uint32_t old = fs->loose_full.oldest;
        if (efs_room_used(fs) + bytes > fs->options.budget_bytes && !fs->free_slots && old != EFS_NONE &&
            slot_bytes(fs, old) == bytes && efs_full_evict_oldest(fs, false))
            continue;
        break;
    }
    *rc = efs_room_for_full(fs, bytes, submit);
    if (*rc < 0)
        return NULL;
    struct efs_slot *slot = slot_new(fs, bytes);
    if (slot)
        fs->full_bytes += bytes;
    else
        *rc = -ENOMEM;
    return slot;
}

/* ---- READY experts; lock held ---- */

static struct efs_lru *list_of(struct efs *fs, const struct efs_full *f)
{
    return f->kept ? &fs->kept_full : &fs->loose_full;
}

void efs_full_keep(struct efs *fs, uint32_t expert, bool kept)
{
    struct efs_full *f = &fs->full[expert];
    if (f->kept == kept)
        return;
    if (f->state == EFS_FULL_READY)
        efs_lru_remove(list_of(fs, f), expert);
    f->kept = kept;
    if (f->state == EFS_FULL_READY)
        efs_lru_insert(list_of(fs, f), expert, true);
}

bool efs_full_evict_oldest(struct efs *fs, bool kept)
{
    const struct efs_lru *list = kept ? &fs->kept_full : &fs->loose_full;
    for (uint32_t e = list->oldest; e != EFS_NONE; e = efs_lru_newer(list, e)) {
        struct efs_full *f = &fs->full[e];
        if (f->leases || f->readers)
            continue;
        efs_lru_remove(list_of(fs, f), e);
        f->slot->next = fs->free_slots;
        fs->free_slots = f->slot;
        f->slot = NULL;
        f->state = EFS_FULL_NONE;
        fs->full_ready_count--;
        efs_count(&fs->stats, evictions_f, 1);
        efs_residency_dropped_full(fs, e);
        return true;
    }
    return false;
}

/* ---- leases ---- */

/* Lock held: one more lease on a READY expert. */
static void lease_begin(struct efs *fs, uint32_t expert)
{
    if (fs->full[expert].leases++ == 0) {
        fs->leased_count++;
        fs->leased_bytes += fs->full[expert].slot->bytes;
    }
    efs_lru_use(list_of(fs, &fs->full[expert]), expert);
    efs_residency_leased(fs);
}

static void waiter_done(struct efs *fs, struct efs_full_waiter *w, errint_t error)
{
    if (error < 0) {
        efs_count(&fs->stats, lease_errors, 1);
        pthread_mutex_lock(&fs->lock);
        efs_residency_release(fs, w->expert);
        pthread_mutex_unlock(&fs->lock);
    }
    w->done(w->arg, error, error < 0 ? NULL : &fs->lease_handles[w->expert]);
    free(w);
    efs_active_end(fs);
}

struct fill;
struct fill_piece {
    struct efs_unit_waiter waiter;
    struct fill *fill;
    uint64_t file_offset, object_offset;
    size_t bytes;
};
struct fill {
    struct efs *fs;
    uint32_t expert;
    struct efs_slot *slot;
    _Atomic uint32_t remaining;
    _Atomic errint_t error;
    _Atomic bool from_disk;
    uint32_t piece_count;
    struct fill_piece pieces[];
};

static void fill_done(struct fill *fill)
{
    struct efs *fs = fill->fs;
    struct efs_full *f = &fs->full[fill->expert];
    errint_t error = fill->error;
    pthread_mutex_lock(&fs->lock);
    struct efs_full_waiter *waiters = f->waiters;
    f->waiters = NULL;
    if (error == 0) {
        f->slot = fill->slot;
        f->state = EFS_FULL_READY;
        fs->full_ready_count++;
        efs_lru_insert(list_of(fs, f), fill->expert, true);
        for (struct efs_full_waiter *w = waiters; w; w = w->next)
            lease_begin(fs, fill->expert);
    } else {
        f->state = EFS_FULL_NONE;
        fill->slot->next = fs->free_slots;
        fs->free_slots = fill->slot;
        efs_residency_dropped_full(fs, fill->expert);
    }
    pthread_mutex_unlock(&fs->lock);
    if (error == 0 && fill->from_disk)
        efs_count(&fs->stats, leases_m, 1);
    else if (error == 0)
        efs_count(&fs->stats, leases_c, 1);
    while (waiters) {
        struct efs_full_waiter *w = waiters;
        waiters = w->next;
        if (error == 0 && waiters) /* all but one came while it was being filled */
            efs_count(&fs->stats, leases_shared, 1);
        waiter_done(fs, w, error);
    }
    free(fill);
    efs_full_retry(fs); /* an error, or an expert that nobody waited for, left room */
}

static void fill_piece_run(struct efs_job *job, struct efs_codec_scratch *scratch)
{
    struct fill_piece *p = (struct fill_piece *)((char *)job - offsetof(struct fill_piece, waiter.job));
    struct fill *fill = p->fill;
    struct efs *fs = fill->fs;
    errint_t rc = p->waiter.error;
    if (rc == 0) {
        rc = efs_unit_decode(fs, p->waiter.unit, p->object_offset, p->bytes, fill->slot->data + p->file_offset, true,
                             scratch);
        efs_unit_first_to_go(fs, p->waiter.unit, false); /* the same bytes are full now */
        efs_unit_put(fs, p->waiter.unit);
    }
    if (rc < 0)
        fill->error = rc;
    if (atomic_fetch_sub(&fill->remaining, 1) == 1)
        fill_done(fill);
}

static uint32_t count_pieces(const struct efs *fs, const struct efs_expert_part *parts, uint32_t n)
{
    uint32_t pieces = 0;
    for (uint32_t i = 0; i < n; i++)
        pieces += fs->object_unit[parts[i].object + 1] - fs->object_unit[parts[i].object];
    return pieces;
}

static struct fill *fill_new(struct efs *fs, uint32_t expert)
{
    struct efs_expert_part parts[EFS_EXPERT_OBJECTS];
    uint32_t n = efs_view_expert_parts(&fs->view, expert, parts), pieces = count_pieces(fs, parts, n), at = 0;
    struct fill *fill = efs_sys_calloc(1, sizeof(*fill) + pieces * sizeof(struct fill_piece));
    if (!fill)
        return NULL;
    fill->fs = fs;
    fill->expert = expert;
    fill->piece_count = pieces;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t u = fs->object_unit[parts[i].object]; u < fs->object_unit[parts[i].object + 1]; u++) {
            struct fill_piece *p = &fill->pieces[at++];
            uint64_t begin = efs_unit_begin(fs, u), end;
            efs_unit_at(fs, parts[i].object, begin, &end);
            p->fill = fill;
            p->waiter.unit = u;
            p->waiter.job.run = fill_piece_run;
            p->file_offset = parts[i].file_offset + begin;
            p->object_offset = begin;
            p->bytes = (size_t)(end - begin);
        }
    return fill;
}

/* The expert is FILLING and has a slot. */
static void fill_run(struct fill *fill)
{
    struct efs *fs = fill->fs;
    uint64_t file_bytes = efs_view_bytes(&fs->view, fs->view.expert_first + fill->expert);
    efs_view_expert_header(&fs->view, fill->expert, (char *)fill->slot->data);
    memset(fill->slot->data + file_bytes, 0, fill->slot->bytes - file_bytes);
    if (efs_sys_ftruncate(fill->slot->fd, file_bytes) < 0)
        fill->error = -EIO;
    fill->remaining = fill->piece_count + 1;
    for (uint32_t i = 0; i < fill->piece_count; i++) {
        struct fill_piece *p = &fill->pieces[i];
        p->waiter.error = 0;
        if (efs_unit_get(fs, p->waiter.unit, &p->waiter))
            efs_workers_push(fs->workers, &p->waiter.job);
        else
            fill->from_disk = true;
    }
    if (atomic_fetch_sub(&fill->remaining, 1) == 1)
        fill_done(fill);
}

/* Lock held: find a place for w. Returns a fill to run; NULL with *rc = 0: w waits; with *rc < 0: tell w. */
static struct fill *admit(struct efs *fs, struct efs_full_waiter *w, struct efs_disk_request **submit, errint_t *rc)
{
    uint32_t expert = w->expert;
    struct fill *fill = fill_new(fs, expert);
    *rc = -ENOMEM;
    struct efs_slot *slot = fill ? slot_take(fs, slot_bytes(fs, expert), submit, rc) : NULL;
    if (!slot) {
        free(fill);
        return NULL;
    }
    *rc = 0;
    fill->slot = slot;
    fs->full[expert].state = EFS_FULL_FILLING;
    w->next = NULL;
    fs->full[expert].waiters = w;
    return fill;
}

static void enqueue(struct efs *fs, struct efs_full_waiter *w)
{
    w->next = NULL;
    *fs->lease_queue_tail = w;
    fs->lease_queue_tail = &w->next;
}

/* One step for a lease request. Lock held on entry, released on return. queued: it comes from the queue's head. */
static bool lease_step(struct efs *fs, struct efs_full_waiter *w, bool queued)
{
    uint32_t expert = w->expert;
    struct efs_full *f = &fs->full[expert];
    struct efs_full_waiter *behind = w->next; /* in the queue */
    struct efs_disk_request *submit = NULL;
    struct fill *fill = NULL;
    errint_t rc = fs->closing ? -ECANCELED : 0;
    bool ready = false, waits = false;
    if (rc == 0 && f->state == EFS_FULL_READY) {
        lease_begin(fs, expert);
        ready = true;
    } else if (rc == 0 && f->state == EFS_FULL_FILLING) {
        w->next = f->waiters;
        f->waiters = w;
    } else if (rc == 0) {
        fill = admit(fs, w, &submit, &rc);
        waits = !fill && (rc == -EAGAIN || (rc == -ENOMEM && fs->options.lease_wait && fs->leased_count > 0));
        if (waits && !queued) {
            enqueue(fs, w);
            efs_count(&fs->stats, lease_waits, 1);
        }
    }
    if (queued && !waits) {
        fs->lease_queue = behind;
        if (!fs->lease_queue)
            fs->lease_queue_tail = &fs->lease_queue;
    }
    pthread_mutex_unlock(&fs->lock);
    efs_disk_submit_all(fs, submit);
    if (waits)
        return false;
    if (ready)
        efs_count(&fs->stats, leases_f, 1);
    if (fill)
        fill_run(fill);
    else if (ready || rc < 0)
        waiter_done(fs, w, rc);
    return true;
}

void efs_full_retry(struct efs *fs)
{
    for (;;) {
        pthread_mutex_lock(&fs->lock);
        struct efs_full_waiter *w = fs->lease_queue;
        if (!w) {
            pthread_mutex_unlock(&fs->lock);
            return;
        }
        if (!lease_step(fs, w, true))
            return;
    }
}

void efs_lease(struct efs *fs, uint32_t file, efs_leased_fn *done, void *arg)
{
    struct efs_file_info info;
    errint_t rc = efs_view_info(&fs->view, file, &info);
    if (rc == 0 && (info.kind != EFS_FILE_EXPERT || !fs->options.full_pool))
        rc = -EINVAL;
    struct efs_full_waiter *w = rc == 0 ? efs_sys_calloc(1, sizeof(*w)) : NULL;
    efs_count(&fs->stats, leases, 1);
    if (!w) {
        efs_count(&fs->stats, lease_errors, 1);
        done(arg, rc ? rc : -ENOMEM, NULL);
        return;
    }
    *w = (struct efs_full_waiter){.expert = info.expert, .done = done, .arg = arg};
    efs_active_begin(fs);
    pthread_mutex_lock(&fs->lock);
    fs->touches[info.expert]++;
    efs_residency_request(fs, &info.expert, 1);
    lease_step(fs, w, false);
}

int efs_lease_fd(const struct efs_lease *lease)
{
    return lease->fs->full[lease->expert].slot->fd;
}

const void *efs_lease_data(const struct efs_lease *lease)
{
    return lease->fs->full[lease->expert].slot->data;
}

void efs_lease_release(struct efs_lease *lease)
{
    struct efs *fs = lease->fs;
    struct efs_full *f = &fs->full[lease->expert];
    struct efs_disk_request *submit = NULL;
    pthread_mutex_lock(&fs->lock);
    bool last = --f->leases == 0;
    efs_residency_release(fs, lease->expert);
    if (last) {
        fs->leased_count--;
        fs->leased_bytes -= f->slot->bytes;
        if (efs_room_used(fs) > fs->options.budget_bytes)
            efs_room_shrink(fs, &submit);
    }
    pthread_mutex_unlock(&fs->lock);
    efs_disk_submit_all(fs, submit);
    if (last)
        efs_full_retry(fs);
}

const uint8_t *efs_full_hold(struct efs *fs, uint32_t expert)
{
    const uint8_t *data = NULL;
    pthread_mutex_lock(&fs->lock);
    struct efs_full *f = &fs->full[expert];
    if (f->state == EFS_FULL_READY) {
        f->readers++;
        data = f->slot->data;
        efs_lru_use(list_of(fs, f), expert);
    }
    pthread_mutex_unlock(&fs->lock);
    return data;
}

void efs_full_unhold(struct efs *fs, uint32_t expert)
{
    pthread_mutex_lock(&fs->lock);
    bool last = --fs->full[expert].readers == 0 && fs->lease_queue;
    pthread_mutex_unlock(&fs->lock);
    if (last)
        efs_full_retry(fs);
}

errint_t efs_full_build(struct efs *fs)
{
    uint32_t count = fs->store->expert_count;
    fs->full = efs_sys_calloc(count + 1u, sizeof(*fs->full));
    fs->lease_handles = efs_sys_calloc(count + 1u, sizeof(*fs->lease_handles));
    if (!fs->full || !fs->lease_handles)
        return -ENOMEM;
    for (uint32_t e = 0; e < count; e++) {
        fs->lease_handles[e] = (struct efs_lease){fs, e};
    }
    fs->huge_tmpfs = fs->options.full_pool ? efs_sys_huge_tmpfs() : -1;
    efs_lru_init(&fs->kept_full, &fs->full[0].link, sizeof(struct efs_full));
    efs_lru_init(&fs->loose_full, &fs->full[0].link, sizeof(struct efs_full));
    fs->lease_queue_tail = &fs->lease_queue;
    return 0;
}

void efs_full_destroy(struct efs *fs)
{
    for (uint32_t e = 0; fs->full && e < fs->store->expert_count; e++)
        if (fs->full[e].slot)
            slot_free(fs->full[e].slot);
    efs_full_drop_free_slots(fs, UINT64_MAX);
    if (fs->huge_tmpfs >= 0)
        efs_sys_close(fs->huge_tmpfs);
    free(fs->lease_handles);
    free(fs->full);
}
