/* SPDX-License-Identifier: Apache-2.0 */
/* run_mount.c - see run_mount.h. */
#include "run_mount.h"

#include "mountpoint.h"
#include "run_ggml.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DAEMON_ENDS_SECONDS 30 /* limit for the daemon to save its counts and exit */

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

/* Removes the mount point and its folder; unmounts first if rmdir(2) fails with EBUSY because of a mount. */
static void mount_remove(const struct ctl_run_mount *mount)
{
    if (rmdir(mount->path) < 0 && errno == EBUSY) {
        const char *const words[] = {"fusermount3", "-uzq", "--", mount->path, NULL};
        sigset_t mask;
        sigprocmask(SIG_BLOCK, NULL, &mask);
        if (umount2(mount->path, MNT_DETACH | UMOUNT_NOFOLLOW) < 0)
            ctl_program_run(words, &mask, CTL_PROGRAM_QUIET);
        rmdir(mount->path);
    }
    rmdir(mount->folder);
}

/* ---- the supervisor ---- */

/* Says that a signal has ended a program, which could not say so itself; nothing of SIGINT, which the user sent. */
static void print_signal(const char *name, int status)
{
    if (!WIFSIGNALED(status) || WTERMSIG(status) == SIGINT)
        return;
    fprintf(stderr, "expertctl: %s was ended by signal %d (%s)\n", name, WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (WTERMSIG(status) == SIGKILL)
        fputs("hint: `dmesg` says if memory was short: raise the limit of memory, or end other programs\n", stderr);
}

int ctl_program_run(const char *const *words, const sigset_t *mask, enum ctl_program_how how)
{
    char folder[4096], path[4352];
    pid_t child = fork();
    if (child < 0)
        fprintf(stderr, "expertctl: cannot start %s: %s\n", words[0], strerror(errno));
    if (child > 0) {
        const int status = child_wait(child);
        print_signal(words[0], status);
        return status;
    }
    if (child < 0)
        return -1;
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* it cleans up when this program is killed */
    signal(SIGXFSZ, SIG_DFL);
    sigprocmask(SIG_SETMASK, mask, NULL);
    if (how == CTL_PROGRAM_SESSION)
        setsid();
    int null = how == CTL_PROGRAM_QUIET ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;
    if (null >= 0)
        dup2(null, STDOUT_FILENO);
    snprintf(path, sizeof(path), "%s/%s", ctl_program_folder(folder, sizeof(folder)), words[0]);
    char *const *arguments = (char *const *)(uintptr_t)words;
    execv(path, arguments);
    execvp(words[0], arguments);
    dprintf(STDERR_FILENO, "expertctl: %s is neither in %s nor in PATH: %s\n", words[0], folder, strerror(errno));
    _exit(127);
}

__attribute__((noreturn)) static void supervisor_run(const struct ctl_run_mount *mount, const char *store,
                                                     const char *options, const sigset_t *mask, int life, int ready)
{
    char byte;
    int status = 0;
    setsid();
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* the daemon's parent exits: waitpid() finds the daemon here */
    const char *const words[] = {"expertfs", "-o", options, store, mount->path, NULL};
    bool mounted = ctl_program_run(words, mask, CTL_PROGRAM_PLAIN) == 0;
    while (mounted && write(ready, "+", 1) < 0 && errno == EINTR) {
    }
    close(ready);
    while (mounted && read(life, &byte, 1) < 0 && errno == EINTR) {
    }
    mount_remove(mount);
    signal(SIGALRM, SIG_DFL);
    alarm(DAEMON_ENDS_SECONDS);
    while (waitpid(-1, &status, 0) > 0 || errno == EINTR)
        if (WIFSIGNALED(status))
            fprintf(stderr, "expertctl: the daemon of %s was ended by signal %d (%s)\n", mount->path, WTERMSIG(status),
                    strsignal(WTERMSIG(status)));
    _exit(0);
}

/* ---- the process that requests the mount ---- */

static errint_t folder_make(struct ctl_run_mount *mount, struct efs_error *err)
{
    const char *temporary = getenv("TMPDIR");
    if (!temporary || !*temporary)
        temporary = "/tmp";
    char *real = realpath(temporary, NULL);
    bool fits = real && (size_t)snprintf(mount->folder, sizeof(mount->folder), "%s/expertfs-XXXXXX", real) <
                            sizeof(mount->folder);
    free(real);
    if (!fits || !mkdtemp(mount->folder)) {
        mount->folder[0] = '\0';
        return efs_fail(err, -errno, "%s: %s; TMPDIR names another folder", temporary,
                        fits || !real ? strerror(errno) : strerror(ENAMETOOLONG));
    }
    snprintf(mount->path, sizeof(mount->path), "%s/mnt", mount->folder);
    return mkdir(mount->path, 0700) < 0 ? efs_fail(err, -errno, "%s: %s", mount->path, strerror(errno)) : 0;
}

errint_t ctl_check_device(struct efs_error *err)
{
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    errint_t rc = -errno;
    if (fd >= 0) {
        close(fd);
        return 0;
    }
    return efs_fail(err, rc, "/dev/fuse: %s\nhint: %s", strerror(-rc),
                    rc == -EACCES ? "root lets users open it: chmod 666 /dev/fuse (a udev rule makes that permanent)"
                    : rc == -ENOENT || rc == -ENODEV
                        ? "load the kernel module: modprobe fuse; a container must be given the device"
                        : "a container must be given the device");
}

/* Whether ctl_program_run() finds fusermount3. libfuse finds the one in /usr/bin without PATH. */
static bool unmounts(void)
{
    char folder[4096], path[4352];
    snprintf(path, sizeof(path), "%s/fusermount3", ctl_program_folder(folder, sizeof(folder)));
    return access(path, X_OK) == 0 || ctl_find_program("fusermount3", path, sizeof(path));
}

errint_t ctl_check_mount(struct efs_error *err)
{
    errint_t rc = ctl_check_device(err);
    if (rc < 0)
        return rc;
    if (ctl_may_mount())
        return 0;
    if (!unmounts())
        return efs_fail(err, -ENOENT,
                        "fusermount3: not in PATH: it is needed to unmount\nhint: install fuse3, or add its folder, as "
                        "/usr/bin, to PATH");
    if (access("/etc/mtab", R_OK) == 0)
        return 0;
    return efs_fail(err, -errno,
                    "/etc/mtab: %s: fusermount3 could not unmount\nhint: as root: ln -s /proc/self/mounts /etc/mtab",
                    strerror(errno));
}

errint_t ctl_run_mount_begin(struct ctl_run_mount *mount, const char *store, const char *options, struct efs_error *err)
{
    int life[2] = {-1, -1}, ready[2] = {-1, -1};
    char byte;
    ssize_t n = 0;
    sigset_t all, mask;
    mount->life = -1;
    errint_t rc = ctl_check_mount(err);
    if (rc < 0)
        return rc;
    /* No signal may end this process after folder_make() and before fork(): the supervisor removes the folder, and
     * keeps the signals blocked. */
    sigfillset(&all);
    sigdelset(&all, SIGALRM);
    sigprocmask(SIG_BLOCK, &all, &mask);
    rc = folder_make(mount, err);
    if (rc == 0 && (pipe2(life, O_CLOEXEC) < 0 || pipe2(ready, O_CLOEXEC) < 0))
        rc = efs_fail(err, -errno, "pipe: %s", strerror(errno));
    fflush(NULL);
    if (rc == 0 && (mount->supervisor = fork()) < 0) {
        rc = efs_fail(err, -errno, "fork: %s", strerror(errno));
        mount->supervisor = 0;
    }
    if (rc == 0 && mount->supervisor == 0) {
        close(life[1]);
        close(ready[0]);
        supervisor_run(mount, store, options ? options : "rw", &mask, life[0], ready[1]);
    }
    sigprocmask(SIG_SETMASK, &mask, NULL);
    mount->life = life[1];
    if (life[0] >= 0)
        close(life[0]);
    if (ready[1] >= 0)
        close(ready[1]);
    while (rc == 0 && (n = read(ready[0], &byte, 1)) < 0 && errno == EINTR) {
    }
    if (ready[0] >= 0)
        close(ready[0]);
    if (rc == 0 && n != 1)
        rc = efs_fail(err, -ENODEV, "%s could not be mounted", store);
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
    if (mount->supervisor > 0)
        child_wait(mount->supervisor);
    mount_remove(mount); /* again, in case the supervisor was killed */
    *mount = (struct ctl_run_mount){.life = -1};
}
