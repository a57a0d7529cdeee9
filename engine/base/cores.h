/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cores.h - whether threads of the machine wait for a processor, by the kernel's pressure stall information. A thread
 * of class SCHED_IDLE does not take a processor from threads of its task group only: the daemon is a group of its own
 * (autogroup of a session, cgroup of a service), which gets its share of the processors also if all its threads are of
 * that class. So work for which no thread waits pauses while threads wait for a processor, among them its own.
 */
#ifndef EFS_CORES_H
#define EFS_CORES_H

#include <stdbool.h>
#include <stdint.h>

#define EFS_CORES_RUNNING_NS 40000000u /* between two samples while the work runs; ... */
#define EFS_CORES_PAUSE_NS 500000000u  /* ... while it pauses */
#define EFS_CORES_SHARE 0.25           /* of a sample in which a thread waited: from here on the work pauses */

struct efs_cores {
    int fd;         /* of the file "cpu"; -1: the kernel has none, the work never pauses */
    uint64_t total; /* microseconds of stalls at the last sample */
    uint64_t at_ns; /* time of the last sample; 0: none */
    bool paused;
};

/* Opens a file of /proc/pressure, or of $EXPERTFS_PRESSURE (tests). -errno: the kernel has none. */
int efs_pressure_open(const char *name);
/* The microseconds after "total=" of the first line, "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234". false: not
 * such a file. */
bool efs_pressure_total(int fd, uint64_t *total);

void efs_cores_open(struct efs_cores *cores);
void efs_cores_close(struct efs_cores *cores);
/* The ns for which the work must pause from now_ns on; 0: it may run. Takes a sample if one is due. */
uint64_t efs_cores_pause(struct efs_cores *cores, uint64_t now_ns);

#endif
