/* SPDX-License-Identifier: Apache-2.0 */
/* run_mount.c - see run_mount.h. */
#include "run_mount.h"

#include "unmount.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DAEMON_ENDS_SECONDS 30 /* it saves its counts; then it is killed */
#define UNMOUNT_TRIES 250
#define UNMOUNT_PAUSE_US 20000

const char *ctl_program_folder(char *path, size_t room)
{
    ssize_t n = readlink("/proc/self/exe", path, room - 1);
    path[n < 0 ? 0 : n] = '\0';
    char *slash = strrchr(path, '/');
    path[slash ? slash - path : 0] = '\0';
    return path;
}

static int child_wait(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

/* Where something is mounted, -EBUSY: the daemon was killed, or is ending still. */
static void folder_remove(const struct ctl_run_mount *mount)
{
    for (int tries = 0; tries < UNMOUNT_TRIES && rmdir(mount->path) < 0 && errno == EBUSY; tries++) {
        tools_unmount_fuse(mount->path);
        usleep(UNMOUNT_PAUSE_US);
    }
    rmdir(mount->folder);
}

/* ---- the keeper ---- */

struct keeper {
    const struct ctl_run_mount *mount;
    const char *store;
    pid_t daemon;
    int life, ready, messages; /* messages: what the daemon writes */
    char line[2 * 4104 + 512]; /* what the daemon says when it is ready has both paths in it */
    size_t used;
    bool ending;
};

/* The daemon's program: beside this one, or where programs are. */
static void daemon_exec(const struct keeper *k, const char *options)
{
    char folder[4096], path[4112];
    snprintf(path, sizeof(path), "%s/expertfs", ctl_program_folder(folder, sizeof(folder)));
    execl(path, "expertfs", "-f", "-o", options, k->store, k->mount->path, (char *)NULL);
    execlp("expertfs", "expertfs", "-f", "-o", options, k->store, k->mount->path, (char *)NULL);
    dprintf(STDERR_FILENO, "expertctl: expertfs is neither in %s nor in PATH: %s\n", folder, strerror(errno));
}

static errint_t daemon_start(struct keeper *k, const char *options, const sigset_t *mask)
{
    int ends[2];
    pid_t keeper = getpid();
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    k->daemon = fork();
    if (k->daemon == 0) {
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* the keeper is killed: it unmounts all the same */
        dup2(null, STDIN_FILENO);
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        sigprocmask(SIG_SETMASK, mask, NULL);
        signal(SIGXFSZ, SIG_DFL);
        if (getppid() == keeper)
            daemon_exec(k, options ? options : "ro");
        _exit(127);
    }
    close(ends[1]);
    k->messages = ends[0];
    return k->daemon < 0 ? -errno : 0;
}

/* A line of the daemon: passed on, unless it is one of the two that are no news to who asked for the mount. */
static void keeper_line(struct keeper *k)
{
    static const char before[] = "expertfs: ", unmounting[] = ": unmounting ";
    const char *store = strstr(k->line, k->store), *end = strstr(k->line, unmounting);
    const char *path = store ? strstr(store, k->mount->path) : NULL;
    if (strncmp(k->line, before, strlen(before)) == 0 && store == k->line + strlen(before) && path &&
        path == store + strlen(k->store) + strlen(" on ")) {
        if (k->ready >= 0) {
            while (write(k->ready, "+", 1) < 0 && errno == EINTR) {
            }
            close(k->ready);
            k->ready = -1;
        }
    } else if (!k->ending || !end || strcmp(end + strlen(unmounting), k->mount->path) != 0) {
        fprintf(stderr, "%s\n", k->line);
    }
}

/* False: the daemon has ended. */
static bool keeper_read(struct keeper *k)
{
    char text[1024];
    ssize_t n = read(k->messages, text, sizeof(text));
    if (n < 0 && errno == EINTR)
        return true;
    for (ssize_t i = 0; i < n; i++) {
        if (text[i] != '\n' && k->used < sizeof(k->line) - 1) {
            k->line[k->used++] = text[i];
        } else if (text[i] == '\n') {
            k->line[k->used] = '\0';
            k->used = 0;
            keeper_line(k);
        }
    }
    return n > 0;
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Where a filter of system calls refuses kill(2), the daemon ends with its mount. */
static void daemon_end(const struct keeper *k, int number)
{
    if (kill(k->daemon, number) < 0)
        tools_unmount_fuse(k->mount->path);
}

__attribute__((noreturn)) static void keeper_run(struct keeper *k, const char *options, const sigset_t *mask)
{
    setsid(); /* Ctrl-C is the program's */
    signal(SIGPIPE, SIG_IGN);
    errint_t rc = daemon_start(k, options, mask);
    double until = 0;
    bool running = rc == 0, wanted = true, killed = false;
    if (rc < 0)
        fprintf(stderr, "expertctl: cannot start the daemon: %s\n", strerror(-rc));
    while (running || wanted) {
        struct pollfd fds[] = {{.fd = wanted ? k->life : -1, .events = POLLIN},
                               {.fd = running ? k->messages : -1, .events = POLLIN}};
        poll(fds, 2, k->ending ? 100 : -1);
        if (wanted && fds[0].revents) {
            wanted = false;
            k->ending = true;
            until = seconds_now() + DAEMON_ENDS_SECONDS;
            if (running)
                daemon_end(k, SIGTERM);
        }
        if (running && fds[1].revents && !keeper_read(k)) {
            int status = child_wait(k->daemon);
            running = false;
            if (k->ready < 0 && !killed && WIFSIGNALED(status))
                fprintf(stderr, "expertctl: the daemon of %s was ended by signal %d (%s)\n", k->mount->path,
                        WTERMSIG(status), strsignal(WTERMSIG(status)));
            if (k->ready >= 0)
                close(k->ready); /* without a byte: it did not start */
            k->ready = -1;
        }
        if (running && k->ending && until && seconds_now() > until) {
            daemon_end(k, SIGKILL);
            killed = true;
            until = 0;
        }
    }
    folder_remove(k->mount);
    _exit(0);
}

/* ---- who wants the mount ---- */

static errint_t folder_make(struct ctl_run_mount *mount, struct efs_error *err)
{
    const char *temporary = getenv("TMPDIR");
    if (!temporary || !*temporary)
        temporary = "/tmp";
    char folder[sizeof(mount->folder) - 32], *real = realpath(temporary, NULL);
    if (!real || snprintf(folder, sizeof(folder), "%s", real) >= (int)sizeof(folder)) {
        free(real);
        return efs_fail(err, -ENOENT, "%s: no folder for temporary files; TMPDIR names another", temporary);
    }
    free(real);
    if (strchr(folder, '\n'))
        return efs_fail(err, -EINVAL, "%s: a line end is in the path; TMPDIR names another folder", folder);
    snprintf(mount->folder, sizeof(mount->folder), "%s/expertfs-XXXXXX", folder);
    if (!mkdtemp(mount->folder)) {
        mount->folder[0] = '\0';
        return efs_fail(err, -errno, "%s: %s; TMPDIR names another folder", folder, strerror(errno));
    }
    snprintf(mount->path, sizeof(mount->path), "%s/mnt", mount->folder);
    if (mkdir(mount->path, 0700) < 0)
        return efs_fail(err, -errno, "%s: %s", mount->path, strerror(errno));
    return 0;
}

/* Wait for the keeper's byte, or for a signal that is more than the end of some child. */
static errint_t ready_wait(struct ctl_run_mount *mount, int ready, int signal_fd, struct efs_error *err)
{
    struct pollfd fds[] = {{.fd = ready, .events = POLLIN}, {.fd = signal_fd, .events = POLLIN}};
    struct signalfd_siginfo info;
    char byte;
    for (;;) {
        if (poll(fds, 2, -1) < 0)
            continue;
        if (fds[0].revents)
            return read(ready, &byte, 1) == 1 ? 0 : -ENODEV;
        if (read(signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info) && info.ssi_signo != SIGCHLD) {
            mount->signal = (int)info.ssi_signo;
            return efs_fail(err, -EINTR, "interrupted");
        }
    }
}

errint_t ctl_run_mount_begin(struct ctl_run_mount *mount, const char *store, const char *options, const sigset_t *mask,
                             int signal_fd, struct efs_error *err)
{
    int life[2] = {-1, -1}, ready[2] = {-1, -1};
    mount->life = -1;
    errint_t rc = folder_make(mount, err);
    if (rc == 0 && (pipe2(life, O_CLOEXEC) < 0 || pipe2(ready, O_CLOEXEC) < 0))
        rc = efs_fail(err, -errno, "pipe: %s", strerror(errno));
    fflush(NULL);
    if (rc == 0 && (mount->keeper = fork()) < 0) {
        rc = efs_fail(err, -errno, "fork: %s", strerror(errno));
        mount->keeper = 0;
    }
    if (rc == 0 && mount->keeper == 0) {
        struct keeper k = {.mount = mount, .store = store, .life = life[0], .ready = ready[1], .messages = -1};
        close(life[1]);
        close(ready[0]);
        keeper_run(&k, options, mask);
    }
    mount->life = life[1];
    if (life[0] >= 0)
        close(life[0]);
    if (ready[1] >= 0)
        close(ready[1]);
    if (rc == 0)
        rc = ready_wait(mount, ready[0], signal_fd, err);
    if (rc == -ENODEV)
        efs_fail(err, rc, "%s could not be mounted", store);
    if (ready[0] >= 0)
        close(ready[0]);
    if (rc < 0)
        ctl_run_mount_end(mount);
    return rc;
}

void ctl_run_mount_end(struct ctl_run_mount *mount)
{
    if (!mount->folder[0])
        return;
    if (mount->life >= 0)
        close(mount->life);
    if (mount->keeper > 0)
        child_wait(mount->keeper);
    folder_remove(mount); /* the keeper may have been killed */
    *mount = (struct ctl_run_mount){.life = -1, .signal = mount->signal};
}
