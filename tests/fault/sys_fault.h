/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_fault.h - the engine's system calls with faults put in: linked instead of engine/base/sys.c by the tests here.
 */
#ifndef EFS_SYS_FAULT_H
#define EFS_SYS_FAULT_H

#include <stdbool.h>
#include <stdint.h>

enum fault_call {
    FAULT_OPEN,
    FAULT_FSTAT,
    FAULT_PREAD,
    FAULT_PWRITE,
    FAULT_FSYNC,
    FAULT_FTRUNCATE,
    FAULT_LINK,
    FAULT_MEMFD,
    FAULT_HUGE_TMPFS,
    FAULT_MMAP,
    FAULT_MEMORY,
    FAULT_URING_INIT,
    FAULT_URING_PIN,
    FAULT_URING_RESULT,
    FAULT_MPROTECT,
    FAULT_MBIND,
    FAULT_HUGE_BYTES,
    FAULT_SEALS,
    FAULT_FALLOCATE,
    FAULT_FREE_BYTES, /* error 0: nothing is free */
    FAULT_CLONE_READING,
    FAULT_CLONE_READING_MOUNTED,
    FAULT_CLOSE, /* the descriptor is closed all the same, as Linux does */
    FAULT_UNLINK,
    FAULT_MKDIR,
    FAULT_MUNMAP,
    FAULT_MADVISE,
    FAULT_THREAD,
    FAULT_URING_SUBMIT,
    FAULT_WRITEBACK,
    FAULT_URING_FILES,
    FAULT_URING_SLOTS,
    FAULT_URING_UNPIN,
    FAULT_URING_WAIT, /* reads that were submitted are under way then */
    FAULT_RENAME,
    FAULT_CALLS
};
extern const char *const fault_names[FAULT_CALLS];

/* The nth call (from 1) of that kind fails with -error; error 0: it is short (reads and writes do half). Every
 * later call works again, unless forever. */
void fault_plan(enum fault_call call, unsigned nth, int error, bool forever);
void fault_none(void);
bool fault_happened(void); /* since fault_plan() */
/* The next call of that kind does this first, once, and works. */
void fault_meanwhile(enum fault_call call, void (*what)(void));
/* Calls that the I/O thread has made, but for the ring's and those that registering a segment takes, since this was
 * asked last. */
unsigned fault_disk_calls(void);
/* From now on there are no files without a name (O_TMPFILE), as on filesystems that have none. */
void fault_named_files(bool on);
/* From now on only what is mounted somewhere can be cloned, as before Linux 6.15. */
void fault_old_kernel(bool on);

/* A tmpfs of our own that is made from now on has a size, and so much of it is free now; less has no room for a page.
 * UINT64_MAX: enough for all. */
void fault_tmpfs_room(uint64_t bytes);

/* From now on the process ends, with POWER_EXIT, at the nth call that changes files; lose: as when the power fails,
 * with what was not synced lost. nth 0: calls are only counted. */
#define POWER_EXIT 99
void fault_power(unsigned nth, bool lose);
/* Of what was not synced some reaches the disk all the same, by this seed; 0: nothing does. */
void fault_power_some(uint64_t seed);
/* In place of the end the process sends itself a signal; 0: the end again. */
void fault_power_signal(int number);
unsigned fault_power_calls(void); /* so far; no more of it from now on */

#endif
