/*
 * sys_fault.h - the engine's system calls with faults put in: linked instead of engine/base/sys.c by the tests here.
 */
#ifndef EFS_SYS_FAULT_H
#define EFS_SYS_FAULT_H

#include <stdbool.h>

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
    FAULT_CALLS
};
extern const char *const fault_names[FAULT_CALLS];

/* The nth call (from 1) of that kind fails with -error; error 0: it is short (reads and writes do half). Every later
 * call works again, unless forever. */
void fault_plan(enum fault_call call, unsigned nth, int error, bool forever);
void fault_none(void);
bool fault_happened(void); /* since fault_plan() */

#endif
