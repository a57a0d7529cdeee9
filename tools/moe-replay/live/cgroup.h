/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cgroup.h - a memory cgroup around what is measured, version 1 or 2: memory, memfds and page cache of all
 * processes in it count, and nothing more than the limit stays.
 */
#ifndef MOE_REPLAY_CGROUP_H
#define MOE_REPLAY_CGROUP_H

#include "expertfs.h"

#include <sys/types.h>

struct replay_cgroup {
    char path[512]; /* "": there is none */
    bool v2;
};

/* Where this process could make one, and under what name; nothing is made yet. -EOPNOTSUPP: no memory controller. */
errint_t replay_cgroup_place(struct replay_cgroup *cgroup, struct efs_error *err);
/* Make it with that limit, without swap. -EACCES, -EPERM, -EROFS: no privilege. */
errint_t replay_cgroup_make(const struct replay_cgroup *cgroup, uint64_t limit_bytes, struct efs_error *err);
/* The calling process goes in, with what it starts from now on. */
errint_t replay_cgroup_enter(const struct replay_cgroup *cgroup);
uint64_t replay_cgroup_peak_bytes(const struct replay_cgroup *cgroup); /* 0: not known */
uint64_t replay_cgroup_kills(const struct replay_cgroup *cgroup);      /* processes ended since the limit was reached */
/* End what is still in it and remove it. Waits up to some seconds. Nothing happens if it was never made. */
void replay_cgroup_remove(const struct replay_cgroup *cgroup);

#endif
