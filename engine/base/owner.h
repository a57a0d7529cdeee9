/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner.h - the process that opened an object. fork(2) copies the object, but not its threads, and the copy has the
 * parent's sockets and files: in the child it is closed and freed, and nothing else.
 *
 * The mark is on a page that the kernel clears in a child (MADV_WIPEONFORK), also where the child has the same process
 * id in a namespace of its own, or was not made by fork() of the C library. Before Linux 4.14 the process id tells.
 */
#ifndef EFS_OWNER_H
#define EFS_OWNER_H

#include "expertfs.h"

#include <stdatomic.h>
#include <sys/types.h>
#include <unistd.h>

struct efs_owner {
    _Atomic uint32_t *mark; /* not 0 in the process that opened it; NULL: pid tells */
    pid_t pid;
};

void efs_owner_begin(struct efs_owner *owner);
void efs_owner_end(struct efs_owner *owner);

static inline bool efs_owner_is_here(const struct efs_owner *owner)
{
    return owner->mark ? atomic_load_explicit(owner->mark, memory_order_relaxed) != 0 : owner->pid == getpid();
}

/* -ECHILD: it was opened in the process from which this one was forked; err names what it is. */
errint_t efs_owner_check(const struct efs_owner *owner, const char *what, struct efs_error *err);

#endif
