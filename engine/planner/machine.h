/* SPDX-License-Identifier: Apache-2.0 */
/*
 * machine.h - whether the machine leaves its disks and processors idle, by the kernel's pressure stall information: the
 * share of time in which a task waited for I/O, and for a processor.
 *
 * Warm reads (prefetch/prefetcher.h) use idle time only, and wait for the disk themselves, which counts as a stall. So
 * they pause for one sample in five, in which the stalls are those of other work; the next four are free for them if
 * that sample was idle.
 */
#ifndef EFS_MACHINE_H
#define EFS_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#define EFS_MACHINE_IO_SHARE 0.05  /* a sample is idle if less of it than this was a stall for I/O, ... */
#define EFS_MACHINE_CPU_SHARE 0.25 /* ... and for a processor */

struct efs_machine {
    int io, cpu;       /* descriptors of /proc/pressure; -1: the kernel has none */
    uint64_t total[2]; /* microseconds of stalls at the last sample: I/O, processor */
    uint64_t at_ns;    /* time of the last sample; 0: none */
    unsigned free;     /* samples that warm reads may still use before the next pause */
    bool known;        /* share is of a sample */
    double share[2];   /* of the last sample without warm reads */
};

/* Opens the files in /proc/pressure, or in $EXPERTFS_PRESSURE (tests). The kernel may have none: then no sample is
 * idle. */
void efs_machine_open(struct efs_machine *machine);
void efs_machine_close(struct efs_machine *machine);
/* Takes a sample at now_ns; the caller does so at regular times. Two reads of /proc; one thread at a time. Returns
 * whether warm reads may run until the next sample. */
bool efs_machine_sample(struct efs_machine *machine, uint64_t now_ns);

#endif
