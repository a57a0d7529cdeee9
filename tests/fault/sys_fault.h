/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_fault.h - injects faults into the engine's system calls, the functions of engine/base/sys.c, which the linker
 * wraps (--wrap).
 */
#ifndef EFS_SYS_FAULT_H
#define EFS_SYS_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* X(kind, its name in messages) */
#define FAULT_KINDS(X)                                                                                                 \
    X(OPEN, "open")                                                                                                    \
    X(FSTAT, "fstat")                                                                                                  \
    X(PREAD, "pread")                                                                                                  \
    X(PWRITE, "pwrite")                                                                                                \
    X(FSYNC, "fsync")                                                                                                  \
    X(FTRUNCATE, "ftruncate")                                                                                          \
    X(LINK, "link")                                                                                                    \
    X(MEMFD, "memfd")                                                                                                  \
    X(HUGE_TMPFS, "huge tmpfs")                                                                                        \
    X(MMAP, "mmap")                                                                                                    \
    X(MEMORY, "memory")                                                                                                \
    X(MPROTECT, "mprotect")                                                                                            \
    X(MBIND, "mbind")                                                                                                  \
    X(SOLE_USER, "sole user")                                                                                          \
    X(SEALS, "seals")                                                                                                  \
    X(FALLOCATE, "fallocate")                                                                                          \
    X(FREE_BYTES, "free bytes") /* error 0: nothing is free */                                                         \
    X(CLONE_READING, "clone reading")                                                                                  \
    X(CLONE_READING_MOUNTED, "clone reading, mounted")                                                                 \
    X(CLOSE, "close") /* the descriptor is closed nevertheless, as on Linux */                                         \
    X(UNLINK, "unlink")                                                                                                \
    X(MKDIR, "mkdir")                                                                                                  \
    X(MUNMAP, "munmap")                                                                                                \
    X(THREAD, "thread")                                                                                                \
    X(WRITEBACK, "writeback")                                                                                          \
    X(RENAME, "rename")                                                                                                \
    FAULT_KINDS_OF_READING(X)
/* Calls that fault_disk_calls() does not count: those of the ring, and those that register a segment. */
#define FAULT_KINDS_OF_READING(X)                                                                                      \
    X(URING_INIT, "uring init")                                                                                        \
    X(URING_FILES, "uring files")                                                                                      \
    X(URING_SLOTS, "uring slots")                                                                                      \
    X(URING_PIN, "uring pin")                                                                                          \
    X(URING_UNPIN, "uring unpin")                                                                                      \
    X(URING_SUBMIT, "uring submit")                                                                                    \
    X(URING_WAIT, "uring wait") /* submitted reads are in flight */                                                    \
    X(URING_RESULT, "uring result")                                                                                    \
    X(HUGE_BYTES, "huge bytes")                                                                                        \
    X(MADVISE, "madvise")

enum fault_call {
#define FAULT_KIND(kind, name) FAULT_##kind,
    FAULT_KINDS(FAULT_KIND) FAULT_CALLS
#undef FAULT_KIND
};
extern const char *const fault_names[FAULT_CALLS];

/* The nth call (from 1) of the kind fails with -error; with error 0 it is short (reads and writes transfer half). Later
 * calls work again, unless forever. */
void fault_plan(enum fault_call call, unsigned nth, int error, bool forever);
void fault_clear(void);
bool fault_triggered(void); /* since fault_plan() */
/* The next call of the kind first calls what(), once, and then works. */
void fault_run_before(enum fault_call call, void (*what)(void));
/* Number of calls by the I/O thread since the last call of this function, without those of the ring and those that
 * register a segment. */
unsigned fault_disk_calls(void);
/* While on, O_TMPFILE fails, as on filesystems without it. */
void fault_no_tmpfile(bool on);
/* While on, only mounted filesystems can be cloned, as before Linux 6.15. */
void fault_old_kernel(bool on);

/* Sets the free bytes of the engine's tmpfs, which must have been mounted after the first call; less than a page: no
 * page can be allocated. UINT64_MAX: a size of 1 TiB. */
void fault_tmpfs_free(uint64_t bytes);

/* From now on the process exits with POWER_EXIT at the nth call that changes files. lose: unsynced changes are undone
 * first, as in a power failure. nth 0: calls are only counted. */
#define POWER_EXIT 99
void fault_power(unsigned nth, bool lose);
/* Keeps a part of the unsynced changes, chosen by this seed; 0: none. */
void fault_power_partial(uint64_t seed);
/* Sends this signal to the process instead of exiting; 0: exits. */
void fault_power_signal(int number);
unsigned fault_power_calls(void); /* calls since fault_power(); stops counting */

#endif
