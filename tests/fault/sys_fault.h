/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_fault.h - the engine's system calls with faults put in: wrapped around those of engine/base/sys.c by the linker
 * (--wrap).
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
    X(SEALS, "seals")                                                                                                  \
    X(FALLOCATE, "fallocate")                                                                                          \
    X(FREE_BYTES, "free bytes") /* error 0: nothing is free */                                                         \
    X(CLONE_READING, "clone reading")                                                                                  \
    X(CLONE_READING_MOUNTED, "clone reading, mounted")                                                                 \
    X(CLOSE, "close") /* the descriptor is closed all the same, as Linux does */                                       \
    X(UNLINK, "unlink")                                                                                                \
    X(MKDIR, "mkdir")                                                                                                  \
    X(MUNMAP, "munmap")                                                                                                \
    X(THREAD, "thread")                                                                                                \
    X(WRITEBACK, "writeback")                                                                                          \
    X(RENAME, "rename")                                                                                                \
    FAULT_KINDS_OF_READING(X)
/* Calls that are not counted by fault_disk_calls(): the ring's, and what the registration of a segment takes. */
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
