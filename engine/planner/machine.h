/* SPDX-License-Identifier: Apache-2.0 */
/*
 * machine.h - whether the machine leaves its disks and processors idle, by the kernel's pressure stall information: the
 * share of time in which a task waited for I/O, and for a processor.
 *
 * Warm reads (prefetch/prefetcher.h) use idle time only, and wait for the disk themselves, which counts as a stall for
 * I/O. So they pause for one sample, in which the stalls are those of other work. If that sample was idle, they may run
 * for EFS_MACHINE_FREE_NS, but end with the first sample in which a task waited for a processor: they use none.
 */
#ifndef EFS_MACHINE_H
#define EFS_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#define EFS_MACHINE_SAMPLE_NS 500000000u /* time between two samples; ... */
#define EFS_MACHINE_RUNNING_NS 40000000u /* ... while warm reads run */
#define EFS_MACHINE_FREE_NS 2000000000u
#define EFS_MACHINE_IO_SHARE 0.05  /* a sample is idle if less of it than this was a stall for I/O, ... */
#define EFS_MACHINE_CPU_SHARE 0.25 /* ... and for a processor */

struct efs_machine {
    int io, cpu;       /* descriptors of /proc/pressure; -1: the kernel has none */
    uint64_t total[2]; /* microseconds of stalls at the last sample: I/O, processor */
    uint64_t at_ns;    /* time of the last sample; 0: none */
    uint64_t free_ns;  /* warm reads may run until this time; 0: they pause */
    bool known;        /* share is of a sample */
    bool missing;      /* the kernel has no such files, or they have another text */
    double share[2];   /* of the last sample without warm reads, or that ended them */
};

/* Opens the files in /proc/pressure, or in $EXPERTFS_PRESSURE (tests). The kernel may have none: then no sample is
 * idle. */
void efs_machine_open(struct efs_machine *machine);
void efs_machine_close(struct efs_machine *machine);
/* Takes a sample at now_ns, EFS_MACHINE_SAMPLE_NS after the last one, or EFS_MACHINE_RUNNING_NS if that returned true:
 * then warm reads may run until the next sample. Two reads of /proc; one thread at a time. */
bool efs_machine_sample(struct efs_machine *machine, uint64_t now_ns);

#endif
