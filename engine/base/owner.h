/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner.h - detects that an object is used in a forked child. fork(2) copies the object but not its threads, and the
 * child shares the parent's sockets and files: a child may only close and free the object.
 *
 * The mark is in a page that the kernel clears in a child (MADV_WIPEONFORK). That works also if the child has the same
 * process id in its own pid namespace, or was created without fork() of the C library. Before Linux 4.14 the process id
 * is compared instead.
 */
#ifndef EFS_OWNER_H
#define EFS_OWNER_H

#include "expertfs.h"

#include <stdatomic.h>
#include <sys/types.h>
#include <unistd.h>

struct efs_owner {
    _Atomic uint32_t *mark; /* nonzero in the process that opened it; NULL: compare pid */
    pid_t pid;
};

void efs_owner_begin(struct efs_owner *owner);
void efs_owner_end(struct efs_owner *owner);

static inline bool efs_owner_is_this_process(const struct efs_owner *owner)
{
    return owner->mark ? atomic_load_explicit(owner->mark, memory_order_relaxed) != 0 : owner->pid == getpid();
}

/* 0, or -ECHILD in a process that was forked from the one that opened the object. `what` names the object in err. */
errint_t efs_owner_check(const struct efs_owner *owner, const char *what, struct efs_error *err);

#endif
