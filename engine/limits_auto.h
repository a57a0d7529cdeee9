/*
 * limits_auto.h - budget=auto: what this machine and this process's memory cgroup leave.
 */
#ifndef EFS_LIMITS_AUTO_H
#define EFS_LIMITS_AUTO_H

#include <stdint.h>

/*
 * Half of the smallest of: MemAvailable of /proc/meminfo, and for every memory cgroup (v2 or v1) that this process is
 * in, its limit less what it uses without its page cache. Half, since the readers' page cache lives beside us, and a
 * system without page cache is slower than one with a smaller pool.
 */
uint64_t efs_budget_auto(void);

#endif
