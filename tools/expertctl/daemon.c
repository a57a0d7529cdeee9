/* SPDX-License-Identifier: Apache-2.0 */
/* daemon.c - see daemon.h. */
#include "daemon.h"

#include "control_file.h"
#include "expertctl.h"
#include "expertfs-private.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define PROBE_MS 3000
#define END_MS 30000  /* limit for the daemon to save its state and end, */
#define HANGS_MS 3000 /* and for one that does not answer */
#define SOON_MS 50    /* for one that has nothing to save */
#define LOOK_MS 1000  /* between two looks for what still has its file system mounted */

/* Whether a descriptor of a process is /dev/fuse, opened for this connection, whose number is the minor number of the
 * mount's device. */
static bool descriptor_serves(const char *process, const char *descriptor, unsigned connection)
{
    char path[600], line[128];
    unsigned number;
    bool serves = false;
    snprintf(path, sizeof(path), "/proc/%s/fd/%s", process, descriptor);
    ssize_t n = readlink(path, line, sizeof(line) - 1);
    if (n < 0)
        return false;
    line[n] = '\0';
    if (strcmp(line, "/dev/fuse") != 0)
        return false;
    snprintf(path, sizeof(path), "/proc/%s/fdinfo/%s", process, descriptor);
    FILE *file = fopen(path, "re");
    while (file && !serves && fgets(line, sizeof(line), file))
        serves = sscanf(line, "fuse_connection: %u", &number) == 1 && number == connection;
    if (file)
        fclose(file);
    return serves;
}

static bool process_serves(const char *process, const struct ctl_mount *mount)
{
    char path[300];
    const struct dirent *entry;
    bool serves = false;
    snprintf(path, sizeof(path), "/proc/%s/fd", process);
    DIR *descriptors = opendir(path);
    while (descriptors && !serves && (entry = readdir(descriptors)))
        serves = descriptor_serves(process, entry->d_name, minor(mount->device));
    if (descriptors)
        closedir(descriptors);
    return serves;
}

/* The path at which a process has the file system of a mount; the caller frees it. NULL: nowhere, or its mount table
 * cannot be read. The kernel gives the device number of a file system that has ended to the next one. */
static char *process_mountpoint(const char *process, const struct ctl_mount *of)
{
    struct efs_mounts table;
    struct efs_mount_entry mount;
    char *path = NULL;
    efs_mounts_open(&table, process);
    while (!path && efs_mounts_next(&table, &mount))
        if (mount.device == of->device && strcmp(mount.type, "fuse.expertfs") == 0 &&
            strcmp(mount.source, of->source) == 0)
            path = strdup(mount.path);
    efs_mounts_close(&table);
    return path;
}

static bool process_mounts(const char *process, const struct ctl_mount *mount)
{
    char *path = process_mountpoint(process, mount);
    free(path);
    return path;
}

/* The first process in /proc for which it is true; 0: none. */
static pid_t process_find(bool (*is)(const char *process, const struct ctl_mount *mount), const struct ctl_mount *mount)
{
    DIR *processes = opendir("/proc");
    const struct dirent *entry;
    pid_t found = 0;
    while (processes && !found && (entry = readdir(processes)))
        if (*entry->d_name >= '1' && *entry->d_name <= '9' && is(entry->d_name, mount))
            found = (pid_t)strtol(entry->d_name, NULL, 10);
    if (processes)
        closedir(processes);
    return found;
}

/* The process that serves a mount, without a call on the mount. 0: not found, as on kernels whose fdinfo does not
 * name the connection. */
static pid_t serving_process(const struct ctl_mount *mount)
{
    return process_find(process_serves, mount);
}

void ctl_daemon_find(const struct ctl_mount *mount, struct ctl_daemon *daemon)
{
    *daemon = (struct ctl_daemon){.pidfd = -1, .pid = serving_process(mount)};
    bool served = daemon->pid > 0;
    char name[32];
    errint_t state = mount->usable ? ctl_mount_state(mount->path, PROBE_MS, &daemon->holds_probe) : 0;
    daemon->hangs = state == -ETIMEDOUT;
    char *config = !served && mount->usable && state == 0 ? ctl_mount_probe(mount->path, "config", PROBE_MS) : NULL;
    if (config)
        daemon->pid = (pid_t)tools_line_number(config, "pid");
    free(config);
    if (daemon->pid > 0)
        daemon->pidfd = (int)syscall(SYS_pidfd_open, daemon->pid, 0);
    /* In another PID namespace the number that the daemon reports may be any process. */
    bool same = served ? serving_process(mount) == daemon->pid
                       : strncmp(ctl_process_name(daemon->pid, name), "expertfs", 8) == 0;
    if (daemon->pidfd >= 0 && !same) { /* the number was given to another process */
        close(daemon->pidfd);
        daemon->pidfd = -1;
    }
}

/* Prints where the file system is mounted still: at another path, as by a bind mount, or in a mount namespace that was
 * made after the mount and to which unmounts do not propagate. false: nowhere that this user can see. */
static bool print_mounted_still(const struct ctl_mount *mount, const struct ctl_daemon *daemon)
{
    char name[32], *path = process_mountpoint("self", mount);
    const pid_t process = path ? 0 : process_find(process_mounts, mount);
    if (path || process)
        ctl_print_line(stderr, "expertctl: warning: %s: unmounted, but its daemon, process %d, serves it on %s %s",
                       mount->path, (int)daemon->pid, path ? "at" : "in", path ? path : "another mount namespace");
    if (path)
        ctl_print_line(stderr, "hint: `umount %s` ends it", EFS_WORD(path));
    else if (process)
        ctl_print_line(stderr, "hint: process %d, %s, has it mounted; `kill %d` ends the daemon", (int)process,
                       ctl_process_name(process, name), (int)daemon->pid);
    free(path);
    return path || process;
}

void ctl_daemon_wait(const struct ctl_mount *mount, const struct ctl_daemon *daemon)
{
    struct pollfd wait = {.fd = daemon->pidfd, .events = POLLIN};
    bool ended = poll(&wait, 1, SOON_MS) != 0; /* most do: the mount tables of all processes are not read then */
    /* Later, the device may be that of a new mount. */
    const bool held = !ended && (process_mounts("self", mount) || process_find(process_mounts, mount));
    ended = ended || (daemon->hangs && poll(&wait, 1, HANGS_MS) != 0);
    if (!ended && daemon->hangs && syscall(SYS_pidfd_send_signal, daemon->pidfd, SIGKILL, NULL, 0) == 0)
        ctl_print_line(stderr, "expertctl: warning: %s: its daemon, process %d, did not answer and was killed",
                       mount->path, (int)daemon->pid);
    for (int ms = 0; !ended && ms < END_MS; ms += LOOK_MS) {
        ended = poll(&wait, 1, LOOK_MS) != 0;
        if (!ended && held && print_mounted_still(mount, daemon))
            return;
    }
    if (!ended)
        ctl_print_line(stderr, "expertctl: warning: %s: unmounted, but its daemon, process %d, has not ended in %d s",
                       mount->path, (int)daemon->pid, END_MS / 1000);
}
