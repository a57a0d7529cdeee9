/* SPDX-License-Identifier: Apache-2.0 */
/* local_map.c - which pages the copies have; reading and checking them. */
#include "local_internal.h"

#include "sys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOAD_ENTRIES 16384u /* read at once */
#define READ_PAGES (EFS_LOCAL_READ_BYTES / EFS_ALIGN)

/* ---- the maps ---- */

/* Entries of whole blocks from `block` on. */
static uint64_t load_blocks(struct efs_local *l, const struct local_file *f, uint32_t block, const uint32_t *entries,
                            uint32_t count)
{
    uint64_t pages = 0;
    for (uint32_t at = 0; at < count; block++) {
        uint64_t there = 0;
        for (unsigned bit = 0; bit < LOCAL_BLOCK_PAGES && at < count; bit++, at++)
            there |= entries[at] ? local_bits(bit, 1) : 0;
        atomic_store(&l->there[f->block_first + block], there);
        pages += (uint64_t)__builtin_popcountll(there);
    }
    return pages;
}

errint_t efs_local_load(struct efs_local *l)
{
    uint32_t *entries = efs_sys_malloc(LOAD_ENTRIES * sizeof(*entries));
    errint_t rc = entries ? 0 : -ENOMEM;
    uint64_t pages = 0;
    for (unsigned i = 0; rc == 0 && i < l->file_count; i++) {
        const struct local_file *f = &l->files[i];
        if (f->fd < 0)
            continue;
        for (uint32_t at = 0; rc == 0 && at < f->page_count; at += LOAD_ENTRIES) {
            uint32_t count = f->page_count - at < LOAD_ENTRIES ? f->page_count - at : LOAD_ENTRIES;
            rc = efs_sys_pread_all(f->map_fd, entries, count * sizeof(*entries),
                                   local_entry_offset((uint64_t)at * EFS_ALIGN));
            if (rc == 0)
                pages += load_blocks(l, f, at / LOCAL_BLOCK_PAGES, entries, count);
        }
        if (rc == -ENODATA && !l->owner)
            rc = 0; /* its owner clears it */
    }
    free(entries);
    if (rc == 0)
        atomic_store(&l->page_count, pages);
    return rc == -ENODATA ? -EIO : rc;
}

/* Clears pages in memory and, as the owner, in the map. Returns whether some were there. */
static bool map_forget(struct efs_local *l, const struct local_file *f, uint32_t block, unsigned first, unsigned count)
{
    uint64_t bits = local_bits(first, count), before = atomic_fetch_and(&l->there[block], ~bits);
    atomic_fetch_sub(&l->page_count, (uint64_t)__builtin_popcountll(before & bits));
    if ((before & bits) && l->owner) {
        errint_t rc = efs_local_write_entries(f, block, first, count, NULL);
        if (rc < 0)
            efs_local_failed(l, f, false, rc);
    }
    return before & bits;
}

void efs_local_forget(struct efs_local *l, uint64_t address, uint64_t bytes)
{
    uint64_t end = efs_page_up(address + bytes);
    for (address = efs_page_down(address); address < end; address += EFS_ALIGN) {
        const struct local_file *f = efs_local_file_at(l, address);
        if (!f)
            continue;
        uint64_t page = (address - f->of.address) / EFS_ALIGN;
        map_forget(l, f, f->block_first + (uint32_t)(page / LOCAL_BLOCK_PAGES), page % LOCAL_BLOCK_PAGES, 1);
    }
}

/* ---- reading ---- */

size_t efs_local_run(struct efs_local *l, uint64_t address, size_t bytes, bool *there)
{
    const struct local_file *f = atomic_load(&l->off) ? NULL : efs_local_file_at(l, address);
    *there = false;
    if (!f)
        return bytes;
    uint64_t page = (address - f->of.address) / EFS_ALIGN, wanted = (bytes + EFS_ALIGN - 1) / EFS_ALIGN;
    uint32_t now = atomic_fetch_add(&l->clock, 1) + 1;
    size_t run = 0;
    wanted = wanted > f->page_count - page ? f->page_count - page : wanted;
    for (; run < wanted && run < READ_PAGES; run++, page++) {
        uint32_t block = f->block_first + (uint32_t)(page / LOCAL_BLOCK_PAGES);
        bool has = atomic_load(&l->there[block]) >> (page % LOCAL_BLOCK_PAGES) & 1;
        if (run > 0 && has != *there)
            break;
        *there = has;
        atomic_store_explicit(&l->used[block], now, memory_order_relaxed);
    }
    return run * EFS_ALIGN < bytes ? run * EFS_ALIGN : bytes;
}

/* Zeros over the buffers from byte `from` on. */
static void zero_from(const struct iovec *buffers, unsigned count, size_t from)
{
    for (unsigned i = 0; i < count; i++) {
        if (from < buffers[i].iov_len)
            memset((uint8_t *)buffers[i].iov_base + from, 0, buffers[i].iov_len - from);
        from -= from < buffers[i].iov_len ? from : buffers[i].iov_len;
    }
}

/* Reads a page and its entry alone. */
static bool page_is_right(const struct local_file *f, uint64_t page)
{
    uint8_t data[EFS_ALIGN] __attribute__((aligned(EFS_ALIGN))) = {0};
    const struct iovec buffer = {data, sizeof(data)};
    uint32_t entry;
    return efs_sys_pread_all(f->map_fd, &entry, sizeof(entry), local_entry_offset(page * EFS_ALIGN)) == 0 && entry &&
           efs_sys_preadv(f->fd, &buffer, 1, page * EFS_ALIGN) > 0 && entry == efs_local_check(data);
}

/* Forgets the pages whose checksum differs. Returns whether all are right. Another thread or process may have dropped
 * them meanwhile: then they are not counted as damaged; or written them again: then they stay. */
static bool check_pages(struct efs_local *l, const struct local_file *f, uint64_t page, const struct iovec *buffers,
                        unsigned count, const uint32_t *entries)
{
    bool right = true;
    uint64_t first = page;
    for (unsigned i = 0; i < count; i++)
        for (size_t at = 0; at + EFS_ALIGN <= buffers[i].iov_len; at += EFS_ALIGN, page++) {
            uint32_t entry = entries[page - first], block = f->block_first + (uint32_t)(page / LOCAL_BLOCK_PAGES);
            unsigned bit = page % LOCAL_BLOCK_PAGES;
            if (entry && entry == efs_local_check((uint8_t *)buffers[i].iov_base + at))
                continue;
            right = false;
            if (!page_is_right(f, page) && map_forget(l, f, block, bit, 1) && entry && l->owner)
                efs_count(l->o.stats, local_damaged, 1);
        }
    return right;
}

errint_t efs_local_read(struct efs_local *l, uint64_t address, const struct iovec *buffers, unsigned count,
                        size_t bytes)
{
    uint32_t entries[READ_PAGES];
    const struct local_file *f = efs_local_file_at(l, address);
    if (!f || bytes > EFS_LOCAL_READ_BYTES)
        return -EAGAIN;
    uint64_t offset = address - f->of.address, left = f->of.bytes - offset;
    size_t want = bytes < left ? bytes : (size_t)left;
    errint_t rc = efs_sys_pread_all(f->map_fd, entries, (bytes + EFS_ALIGN - 1) / EFS_ALIGN * sizeof(entries[0]),
                                    local_entry_offset(offset));
    ssize_t n = rc < 0 ? rc : efs_sys_preadv(f->fd, buffers, (int)count, offset);
    if (n < 0) {
        efs_local_failed(l, f, true, (errint_t)n);
        return -EAGAIN;
    }
    if ((size_t)n < want) { /* the copy was cut */
        efs_local_forget(l, address, bytes);
        return -EAGAIN;
    }
    zero_from(buffers, count, want);
    return check_pages(l, f, offset / EFS_ALIGN, buffers, count, entries) ? 0 : -EAGAIN;
}
