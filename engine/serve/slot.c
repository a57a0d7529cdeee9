/*
 * slot.c - see slot.h.
 *
 * What is given out was opened through a clone of the tmpfs that is mounted read-only: who opens it again, by
 * /proc/self/fd or /proc/PID/fd, comes to the same clone and gets EROFS for whatever would change it, also as root. Our
 * own descriptor for writing is closed then. A memfd is sealed instead.
 */
#include "slot.h"

#include "layout.h"
#include "sys.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

void efs_slots_open(struct efs_slots *slots, bool tmpfs)
{
    *slots = (struct efs_slots){.tmpfs = -1, .reading = -1};
    if (!tmpfs)
        return;
    slots->tmpfs = efs_sys_huge_tmpfs();
    if (slots->tmpfs < 0)
        return;
    slots->reading = efs_sys_clone_reading(slots->tmpfs);
    if (slots->reading < 0)
        slots->reading = efs_sys_clone_reading_mounted(slots->tmpfs);
    if (slots->reading < 0) { /* what is given out could be written to: memfds, then */
        efs_sys_close(slots->tmpfs);
        slots->tmpfs = -1;
    }
}

void efs_slots_close(struct efs_slots *slots)
{
    if (slots->tmpfs >= 0) {
        efs_sys_close(slots->tmpfs);
        efs_sys_close(slots->reading);
    }
    slots->tmpfs = slots->reading = -1;
}

struct slot_name {
    char text[24];
};

static struct slot_name name_of(const struct efs_slot *slot)
{
    struct slot_name name;
    snprintf(name.text, sizeof(name.text), "%" PRIu64, slot->name);
    return name;
}

void efs_slot_free(struct efs_slots *slots, struct efs_slot *slot)
{
    if (slot->data)
        efs_sys_munmap(slot->data, slot->bytes);
    if (slot->fd >= 0)
        efs_sys_close(slot->fd);
    if (slot->fd >= 0 && slot->kind == EFS_SLOT_PRIVATE && !slot->memfd)
        efs_sys_unlinkat(slots->tmpfs, name_of(slot).text, 0);
    free(slot);
}

void efs_slot_empty(struct efs_slot *slot)
{
    assert(slot->kind == EFS_SLOT_WINDOW);
    efs_sys_madvise(slot->data, slot->bytes, MADV_REMOVE);
}

/* In the tmpfs with huge pages, which are some ten times cheaper to get and to map, or else a memfd. */
static void memory_file(struct efs_slots *slots, struct efs_slot *slot)
{
    slot->name = atomic_fetch_add(&slots->named, 1) + 1;
    slot->fd = slots->tmpfs >= 0
                   ? efs_sys_openat(slots->tmpfs, name_of(slot).text, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, 0400)
                   : -1;
    slot->memfd = slot->fd < 0;
    if (slot->memfd)
        slot->fd = efs_sys_memfd_create("expertfs", MFD_ALLOW_SEALING);
}

struct efs_slot *efs_slot_new(struct efs_slots *slots, size_t bytes)
{
    struct efs_slot *slot = efs_sys_calloc(1, sizeof(*slot));
    if (!slot)
        return NULL;
    slot->kind = EFS_SLOT_PRIVATE;
    slot->bytes = bytes;
    memory_file(slots, slot);
    if (slot->fd >= 0 && efs_sys_ftruncate(slot->fd, bytes) == 0)
        slot->data = efs_sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, slot->fd, 0);
    if (!slot->data) {
        efs_slot_free(slots, slot);
        return NULL;
    }
    return slot;
}

errint_t efs_slot_resize(struct efs_slot *slot, uint64_t file_bytes)
{
    assert(slot->kind != EFS_SLOT_SHOWN);
    assert(file_bytes <= slot->bytes);
    return slot->kind == EFS_SLOT_WINDOW ? 0 : efs_sys_ftruncate(slot->fd, file_bytes);
}

void efs_slot_reserve(struct efs_slot *slot)
{
    if (slot->kind == EFS_SLOT_PRIVATE && !slot->populated)
        efs_sys_fallocate(slot->fd, FALLOC_FL_KEEP_SIZE, 0, slot->bytes);
}

errint_t efs_slot_populate(struct efs_slot *slot)
{
    volatile uint8_t *data = slot->data;
    assert(slot->kind == EFS_SLOT_PRIVATE);
    /* Not by MADV_POPULATE_WRITE: that keeps the address space locked while pages are cleared, and whoever maps or
     * unmaps something waits for it. Touching a page that is there cannot fail. */
    errint_t rc = efs_sys_fallocate(slot->fd, FALLOC_FL_KEEP_SIZE, 0, slot->bytes);
    for (size_t at = 0; rc == 0 && at < slot->bytes; at += EFS_ALIGN)
        data[at] = 0;
    slot->populated = rc == 0;
    return rc;
}

/* From now on nobody opens it for writing. -errno: it is as it was. */
static errint_t reading_only(struct efs_slots *slots, struct efs_slot *slot, enum efs_slot_kind kind)
{
    if (slot->memfd) {
        errint_t rc = efs_sys_add_seals(slot->fd, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        slot->kind = rc < 0 ? slot->kind : kind;
        return rc;
    }
    int fd = efs_sys_openat(slots->reading, name_of(slot).text, O_RDONLY | O_NOFOLLOW, 0);
    if (fd < 0)
        return fd;
    efs_sys_unlinkat(slots->tmpfs, name_of(slot).text, 0);
    efs_sys_close(slot->fd);
    slot->fd = fd;
    slot->kind = kind;
    return 0;
}

errint_t efs_slot_show(struct efs_slots *slots, struct efs_slot *slot)
{
    if (slot->kind != EFS_SLOT_PRIVATE)
        return slot->kind == EFS_SLOT_SHOWN ? 0 : -EBUSY;
    errint_t rc = reading_only(slots, slot, EFS_SLOT_SHOWN);
    if (rc == 0) /* a mistake of ours is a crash then, never a wrong byte; where that fails, it is right all the same */
        efs_sys_mprotect(slot->data, slot->bytes, PROT_READ);
    return rc;
}

errint_t efs_slot_make_window(struct efs_slots *slots, struct efs_slot *slot)
{
    if (slot->kind != EFS_SLOT_PRIVATE)
        return slot->kind == EFS_SLOT_WINDOW ? 0 : -EBUSY;
    if (slot->memfd) /* sealed, it could not be emptied under those who keep it mapped */
        return -EBUSY;
    errint_t rc = efs_sys_ftruncate(slot->fd, slot->bytes);
    if (rc == 0)
        rc = reading_only(slots, slot, EFS_SLOT_WINDOW);
    if (rc == 0)
        slot->window = ++slots->windows;
    return rc;
}
