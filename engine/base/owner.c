/* SPDX-License-Identifier: Apache-2.0 */
/* owner.c - see owner.h. */
#include "owner.h"

#include "sys.h"

#include <errno.h>
#include <sys/mman.h>

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void efs_owner_begin(struct efs_owner *owner)
{
    void *page = efs_sys_mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *owner = (struct efs_owner){.pid = getpid()};
    if (page && efs_sys_madvise(page, page_bytes(), MADV_WIPEONFORK) == 0) {
        owner->mark = page;
        atomic_store(owner->mark, 1);
    } else if (page) {
        efs_sys_munmap(page, page_bytes());
    }
}

void efs_owner_end(struct efs_owner *owner)
{
    if (owner->mark)
        efs_sys_munmap(owner->mark, page_bytes());
    owner->mark = NULL;
}

errint_t efs_owner_check(const struct efs_owner *owner, const char *what, struct efs_error *err)
{
    if (efs_owner_is_this_process(owner))
        return 0;
    return efs_fail(err, -ECHILD, "%s was opened in another process, from which this one was forked: open one here",
                    what);
}
