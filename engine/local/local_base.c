/* SPDX-License-Identifier: Apache-2.0 */
/* local_base.c - what the other files of the room share: places of pages, their entries, a failed disk. */
#include "local_internal.h"

#include "hash.h"
#include "sys.h"

#include <stdio.h>
#include <string.h>

struct local_file *efs_local_file_at(const struct efs_local *l, uint64_t address)
{
    for (unsigned i = 0; i < l->file_count; i++) {
        struct local_file *f = &l->files[i];
        if (address >= f->of.address && address - f->of.address < (uint64_t)f->page_count * EFS_ALIGN)
            return f;
    }
    return NULL;
}

struct local_file *efs_local_file_of(const struct efs_local *l, uint32_t block)
{
    unsigned i = 0;
    while (block - l->files[i].block_first >= l->files[i].block_count)
        i++;
    return &l->files[i];
}

uint32_t efs_local_check(const void *page)
{
    uint32_t check = (uint32_t)efs_hash(page, EFS_ALIGN);
    return check ? check : 1;
}

errint_t efs_local_write_entries(const struct local_file *f, uint32_t block, unsigned first, unsigned count,
                                 const uint32_t *checks)
{
    static const uint32_t none[LOCAL_BLOCK_PAGES];
    uint64_t offset = local_offset(f, block) + (uint64_t)first * EFS_ALIGN;
    return efs_sys_pwrite_all(f->map_fd, checks ? checks : none, count * sizeof(uint32_t), local_entry_offset(offset));
}

void efs_local_failed(struct efs_local *l, const struct local_file *f, bool reading, errint_t error)
{
    char line[400];
    _Atomic bool *flag = reading ? &l->off : &l->writes;
    snprintf(line, sizeof(line), "%s/%s: cannot %s: %s; %s", l->folder, f->of.name, reading ? "read" : "write",
             strerror(-error),
             reading ? "the store is read without its local copy" : "the local copy gets no more of the store");
    pthread_mutex_lock(&l->lock);
    bool first = reading ? !atomic_exchange(flag, true) : atomic_exchange(flag, false);
    if (first)
        memcpy(l->fault, line, sizeof(l->fault));
    if (reading)
        atomic_store(&l->writes, false);
    pthread_mutex_unlock(&l->lock);
    if (first && l->o.warn)
        l->o.warn(l->o.arg, line);
}
