/* SPDX-License-Identifier: Apache-2.0 */
/* guard.c - see guard.h. */
#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
/* What the guard is told: the main thread has ended; shared->connection is known. */
#define DIED SIGUSR1
#define KNOWN SIGUSR2

struct efsd_guard_shared {
    _Atomic uint32_t connection;
};

/* The folder of fusectl, from a mount that nobody else sees. -1: we may not. */
static int open_fusectl(void)
{
    int context = fsopen("fusectl", FSOPEN_CLOEXEC);
    if (context < 0 || fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -1;
    return fsmount(context, FSMOUNT_CLOEXEC, 0);
}

/* The file that ends the connection, of this one for ever: where the number is given to another connection, writing to
 * the file does nothing. */
static int open_abort(uint32_t connection)
{
    char path[64];
    snprintf(path, sizeof(path), "/sys/fs/fuse/connections/%u/abort", connection);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        snprintf(path, sizeof(path), "%u/abort", connection);
        fd = openat(open_fusectl(), path, O_WRONLY | O_CLOEXEC);
    }
    return fd;
}

/* The guard. It has the daemon's memory as of the fork, and of its descriptors only the one that it answers by. */
_Noreturn static void guard_run(const struct efsd_guard *guard, int answer_fd, pid_t daemon, const sigset_t *signals)
{
    int number = DIED, abort_fd = -1;
    if (prctl(PR_SET_PDEATHSIG, DIED) < 0 || dup2(answer_fd, STDIN_FILENO) < 0 ||
        syscall(SYS_close_range, STDIN_FILENO + 1, ~0U, 0) < 0)
        _exit(1);
    prctl(PR_SET_NAME, "efs-guard");
    while (getppid() == daemon && sigwait(signals, &number) == 0 && number == KNOWN) {
        abort_fd = open_abort(atomic_load(&guard->shared->connection));
        close(STDIN_FILENO); /* the answer */
    }
    _exit(abort_fd < 0 || write(abort_fd, "1", 1) < 0);
}

void efsd_guard_start(struct efsd_guard *guard)
{
    const pid_t daemon = getpid();
    sigset_t signals, before;
    int pipe_fds[2];
    void *shared = mmap(NULL, sizeof(*guard->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    guard->shared = shared == MAP_FAILED ? NULL : shared;
    if (!guard->shared || pipe2(pipe_fds, O_CLOEXEC) < 0)
        return;
    sigemptyset(&signals);
    sigaddset(&signals, DIED);
    sigaddset(&signals, KNOWN);
    sigprocmask(SIG_BLOCK, &signals, &before); /* so that none comes before the guard waits for it */
    guard->pid = fork();
    if (guard->pid == 0)
        guard_run(guard, pipe_fds[1], daemon, &signals);
    sigprocmask(SIG_SETMASK, &before, NULL);
    close(pipe_fds[1]);
    guard->answer_fd = pipe_fds[0];
    if (guard->pid < 0) {
        guard->pid = 0;
        close(guard->answer_fd);
    }
}

void efsd_guard_watch(struct efsd_guard *guard, dev_t device)
{
    char end;
    if (!guard->pid || !device)
        return;
    atomic_store(&guard->shared->connection, (uint32_t)minor(device)); /* by which the kernel names it */
    if (kill(guard->pid, KNOWN) < 0)
        return; /* a filter of system calls refuses it: without an abort file the guard does nothing */
    while (read(guard->answer_fd, &end, 1) < 0 && errno == EINTR) {
    }
}

void efsd_guard_stop(struct efsd_guard *guard)
{
    if (guard->pid) {
        if (kill(guard->pid, SIGKILL) == 0) /* else it ends with the daemon */
            waitpid(guard->pid, NULL, 0);
        close(guard->answer_fd);
        guard->pid = 0;
    }
    if (guard->shared)
        munmap(guard->shared, sizeof(*guard->shared));
    guard->shared = NULL;
}
