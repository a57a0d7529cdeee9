/* SPDX-License-Identifier: Apache-2.0 */
/* daemon.c - see daemon.h. */
#include "daemon.h"

#include "control_file.h"
#include "expertctl.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define PROBE_MS 3000

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

static bool process_serves(const char *process, unsigned connection)
{
    char path[300];
    const struct dirent *entry;
    bool serves = false;
    snprintf(path, sizeof(path), "/proc/%s/fd", process);
    DIR *descriptors = opendir(path);
    while (descriptors && !serves && (entry = readdir(descriptors)))
        serves = descriptor_serves(process, entry->d_name, connection);
    if (descriptors)
        closedir(descriptors);
    return serves;
}

/* The process that serves a connection, from /proc, without a call on the mount. 0: not found, as on kernels whose
 * fdinfo does not name the connection. */
static pid_t connection_process(unsigned connection)
{
    DIR *processes = opendir("/proc");
    const struct dirent *entry;
    pid_t found = 0;
    while (processes && !found && (entry = readdir(processes)))
        if (*entry->d_name >= '1' && *entry->d_name <= '9' && process_serves(entry->d_name, connection))
            found = (pid_t)strtol(entry->d_name, NULL, 10);
    if (processes)
        closedir(processes);
    return found;
}

void ctl_daemon_find(const struct ctl_mount *mount, struct ctl_daemon *daemon)
{
    *daemon = (struct ctl_daemon){.pidfd = -1, .pid = connection_process(minor(mount->device))};
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
    bool same = served ? connection_process(minor(mount->device)) == daemon->pid
                       : strncmp(ctl_process_name(daemon->pid, name), "expertfs", 8) == 0;
    if (daemon->pidfd >= 0 && !same) { /* the number was given to another process */
        close(daemon->pidfd);
        daemon->pidfd = -1;
    }
}
