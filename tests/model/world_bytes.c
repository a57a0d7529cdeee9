/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world_bytes.c - see world.h: tags in place of bytes, and the memory behind them. The addresses of segments and memory
 * files are reserved once, and calls that would map or release them do nothing.
 */
#include "world.h"

#include "extent.h"
#include "snapshot.h"
#include "wrapped.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <cmocka.h>

static uint8_t *memfile_memory; /* MEMFILES_MAX memory files; not restored */
static size_t memfile_bytes;

static uint8_t tag_of(uint32_t extent, unsigned component)
{
    return (uint8_t)(1 + 2 * extent + (component == EFS_COMPONENT_SM));
}

void bytes_set_memfile(size_t bytes)
{
    if (memfile_memory)
        munmap(memfile_memory, MEMFILES_MAX * memfile_bytes);
    memfile_bytes = bytes;
    memfile_memory =
        mmap(NULL, MEMFILES_MAX * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(memfile_memory != MAP_FAILED);
}

/* The number of the memory file that contains the address; MEMFILES_MAX: none. */
uint64_t bytes_memfile_offset(const void *address)
{
    uintptr_t offset = (uintptr_t)address - (uintptr_t)memfile_memory;
    return memfile_memory && offset < MEMFILES_MAX * memfile_bytes ? offset % memfile_bytes : UINT64_MAX;
}

static unsigned memfile_at(const void *address)
{
    uintptr_t offset = (uintptr_t)address - (uintptr_t)memfile_memory;
    return offset < MEMFILES_MAX * memfile_bytes ? (unsigned)(offset / memfile_bytes) : MEMFILES_MAX;
}

/* ---- the chunk pool ---- */

/* Tags of the granules from an address in the chunk pool on. */
static uint8_t *granules_at(const uint8_t *data, uint32_t segment)
{
    const struct efs_arena *arena = &world->fs->arena;
    const uint8_t *base = arena->segments[segment].base;
    return world->granules + (segment * arena->segment_bytes + (size_t)(data - base)) / EFS_GRANULE;
}

static bool component_is_right(const struct efs *fs, uint32_t extent, unsigned component)
{
    const struct efs_extent *x = efs_extent(fs, extent);
    const struct efs_block *block = component == EFS_COMPONENT_E ? &x->e : &x->sm;
    const uint8_t *tags = granules_at(block->data, block->segment);
    size_t count = efs_extent_span(fs, x, component) / EFS_GRANULE;
    uint8_t tag = tag_of(extent, component);
    return tags[0] == tag && memcmp(tags, tags + 1, count - 1) == 0;
}

void bytes_check_extents(void)
{
    const struct efs *fs = world->fs;
    for (uint32_t i = 0; i < fs->extents->count; i++)
        for (unsigned component = EFS_COMPONENT_E; component <= EFS_COMPONENT_SM; component++)
            if (efs_extent(fs, i)->resident & component && !component_is_right(fs, i, component))
                fail_msg("extent %u, component %u: wrong bytes", i, component);
}

static void on_read(const struct efs_io *io)
{
    const struct efs *fs = world->fs;
    if (io->bytes == 0)
        return;
    for (uint32_t i = 0; i < fs->extents->count; i++)
        for (unsigned component = EFS_COMPONENT_E; component <= EFS_COMPONENT_SM; component++) {
            const struct efs_disk_shard *s = efs_extent_first_shard(fs, efs_extent(fs, i));
            uint64_t offset = component == EFS_COMPONENT_E ? s->e_offset : s->sm_offset;
            if (efs_page_down(offset) != io->offset || io->bytes != efs_extent_span(fs, efs_extent(fs, i), component))
                continue;
            if (io->segment != EFS_NONE) {
                memset(granules_at(io->data, io->segment), tag_of(i, component), io->bytes / EFS_GRANULE);
                return;
            }
            unsigned slot = 0;
            while (slot < SLOTS_MAX && world->slots[slot].memory && world->slots[slot].memory != io->data)
                slot++;
            if (slot == SLOTS_MAX)
                break;
            world->slots[slot] = (struct slot_tag){io->data, tag_of(i, component)};
            return;
        }
    fail_msg("a read at offset %llu of no extent", (unsigned long long)io->offset);
}

/* ---- decoding ---- */

/* The bytes of an expert were decoded to this address. */
static void decoded_to(void *dst, uint8_t tag)
{
    unsigned memfile = memfile_at(dst);
    if (memfile < MEMFILES_MAX)
        world->memfile_tags[memfile] = tag;
    else
        *(uint8_t *)dst = tag;
}

static uint8_t expert_tag(uint32_t expert)
{
    return (uint8_t)(expert + 1);
}

static void on_decode(struct efs *fs, uint32_t extent, void *dst)
{
    assert_true(component_is_right(fs, extent, EFS_COMPONENT_E) && component_is_right(fs, extent, EFS_COMPONENT_SM));
    decoded_to(dst, expert_tag(fs->store->objects[efs_extent(fs, extent)->object].group));
}

static void on_check(struct efs *fs, uint32_t extent)
{
    assert_true(component_is_right(fs, extent, EFS_COMPONENT_E) && component_is_right(fs, extent, EFS_COMPONENT_SM));
}

static uint8_t slot_tag_at(const uint8_t *chunk)
{
    for (unsigned i = 0; i < SLOTS_MAX && world->slots[i].memory; i++)
        if ((uintptr_t)world->slots[i].memory == efs_page_down((uintptr_t)chunk))
            return world->slots[i].tag;
    return 0;
}

static void on_decode_slot(struct efs *fs, uint32_t object, const uint8_t *e, const uint8_t *sm, void *dst)
{
    uint32_t extent = efs_extents(fs)->object_first[object];
    assert_int_equal(slot_tag_at(e), tag_of(extent, EFS_COMPONENT_E));
    assert_int_equal(slot_tag_at(sm), tag_of(extent, EFS_COMPONENT_SM));
    decoded_to(dst, expert_tag(fs->store->objects[object].group));
}

bool bytes_are_of(const void *bytes, uint32_t expert)
{
    return *(const uint8_t *)bytes == expert_tag(expert);
}

void bytes_check_full(uint32_t expert)
{
    const struct efs_full *f = efs_full_of(world->fs, expert);
    assert_int_equal(f->state, EFS_FULL_READY);
    assert_int_equal(world->memfile_tags[memfile_at(f->memfile->data)], expert_tag(expert));
}

/* Copies tags where the engine copies bytes: reads from full experts. */
WRAPPED(void *, memcpy, (void *restrict to, const void *restrict from, size_t bytes))
{
    if (world && memfile_at(from) < MEMFILES_MAX) {
        *(uint8_t *)to = world->memfile_tags[memfile_at(from)];
        return to;
    }
    return __real_memcpy(to, from, bytes);
}

void bytes_begin(void)
{
    const struct efs_arena *arena = &world->fs->arena;
    world->granules = calloc(arena->segment_max, arena->segment_bytes / EFS_GRANULE);
    world->thread.read = on_read;
    world->thread.decode = on_decode;
    world->thread.check = on_check;
    world->thread.decode_slot = on_decode_slot;
}

/* ---- memory files ---- */

WRAPPED(struct efs_memfile *, efs_memfile_new, (struct efs_memfiles * memfiles, size_t bytes))
{
    unsigned n = 0;
    while (n < MEMFILES_MAX && world->memfiles[n])
        n++;
    assert_true(bytes <= memfile_bytes);
    if (n == MEMFILES_MAX)
        return NULL;
    struct efs_memfile *memfile = calloc(1, sizeof(*memfile));
    *memfile = (struct efs_memfile){
        .memfiles = memfiles, .fd = -1, .data = memfile_memory + n * memfile_bytes, .bytes = bytes};
    world->memfiles[n] = memfile;
    return memfile;
}

WRAPPED(void, efs_memfile_free, (struct efs_memfile * memfile))
{
    const unsigned number = memfile_at(memfile->data);
    assert_in_range(number, 0, MEMFILES_MAX - 1);
    world->memfiles[number % MEMFILES_MAX] = NULL; /* the compiler does not know that the assertion ends it */
    world->memfile_tags[number % MEMFILES_MAX] = 0;
    free(memfile);
}

WRAPPED(void, efs_memfile_resize, (struct efs_memfile * memfile, uint64_t file_bytes))
{
    assert_int_not_equal(memfile->kind, EFS_MEMFILE_EXPORTED);
    memfile->file_bytes = file_bytes;
    world->memfile_tags[memfile_at(memfile->data)] = 0;
}

static errint_t memfile_become(struct efs_memfile *memfile, enum efs_memfile_kind kind)
{
    if (memfile->kind != EFS_MEMFILE_PRIVATE && memfile->kind != kind)
        return -EBUSY;
    memfile->kind = kind;
    return 0;
}

WRAPPED(errint_t, efs_memfile_export, (struct efs_memfiles * memfiles, struct efs_memfile *memfile))
{
    (void)memfiles;
    errint_t rc = memfile_become(memfile, EFS_MEMFILE_EXPORTED);
    memfile->fd = rc == 0 ? 0 : memfile->fd;
    return rc;
}

WRAPPED(bool, efs_memfile_is_mapped_elsewhere, (struct efs_memfiles * memfiles, struct efs_memfile *memfile, int fd))
{
    (void)memfiles;
    (void)fd;
    return memfile->fd >= 0 || (world->plan->maps && !world->unmapped);
}

WRAPPED(errint_t, efs_memfile_make_window, (struct efs_memfiles * memfiles, struct efs_memfile *memfile))
{
    (void)memfiles;
    return memfile_become(memfile, EFS_MEMFILE_WINDOW);
}

/* The header of an expert's file is not written. */
WRAPPED(void, efs_view_expert_header, (const struct efs_view *view, uint32_t expert, char *header))
{
    (void)view;
    (void)expert;
    (void)header;
}

/* ---- system calls ---- */

WRAPPED(void *, efs_sys_mmap, (void *address, size_t bytes, int prot, int flags, int fd, uint64_t offset))
{
    bool reserves = fd < 0 && prot == PROT_NONE;
    if (world && flags & MAP_FIXED)
        return address;
    return __real_efs_sys_mmap(address, bytes, reserves ? PROT_READ | PROT_WRITE : prot, flags, fd, offset);
}

WRAPPED(int, efs_sys_close, (int fd))
{
    return world && fd == 0 ? 0 : __real_efs_sys_close(fd); /* 0: of efs_memfile_export() */
}

WRAPPED(int, efs_sys_madvise, (void *address, size_t bytes, int advice))
{
    return world ? 0 : __real_efs_sys_madvise(address, bytes, advice);
}

WRAPPED(int, efs_sys_mprotect, (void *address, size_t bytes, int prot))
{
    return world ? 0 : __real_efs_sys_mprotect(address, bytes, prot);
}

WRAPPED(int, efs_sys_mbind, (void *address, size_t bytes, uint32_t node))
{
    return world ? 0 : __real_efs_sys_mbind(address, bytes, node);
}

/* Time stands still. */
WRAPPED(int, clock_gettime, (clockid_t clock, struct timespec *now))
{
    if (!world)
        return __real_clock_gettime(clock, now);
    *now = (struct timespec){.tv_sec = 1};
    return 0;
}

WRAPPED(int64_t, efs_sys_huge_bytes, (const void *address, size_t bytes))
{
    return world ? 0 : __real_efs_sys_huge_bytes(address, bytes);
}

/* Full experts that move to lower pools are not encoded: they are dropped. */
WRAPPED(errint_t, efs_demotion_build, (struct efs * fs))
{
    (void)fs;
    return 0;
}
