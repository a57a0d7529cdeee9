/* SPDX-License-Identifier: Apache-2.0 */
/* cgroup.c - see cgroup.h. */
#include "cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TEXT_BYTES 16384u
#define REMOVE_TRIES 500 /* of 10 ms */

/* ---- files of a group --------------------------------------------------------------------------------------- */

static bool file_path(const char *directory, const char *name, char *path, size_t room)
{
    return (size_t)snprintf(path, room, "%s/%s", directory, name) < room;
}

static int write_file(const char *directory, const char *name, const char *text)
{
    char path[1024];
    if (!file_path(directory, name, path, sizeof(path)))
        return -ENAMETOOLONG;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    int rc = fd < 0 ? -errno : 0;
    if (fd >= 0 && write(fd, text, strlen(text)) < 0)
        rc = -errno;
    if (fd >= 0)
        close(fd);
    return rc;
}

/* A file's text, at most room - 1 bytes of it. */
static int read_file(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t used = 0;
    ssize_t got = 1;
    if (fd < 0)
        return -errno;
    while (used + 1 < room && (got = read(fd, text + used, room - 1 - used)) > 0)
        used += (size_t)got;
    close(fd);
    text[used] = '\0';
    return got < 0 ? -EIO : 0;
}

static bool file_exists(const char *directory, const char *name)
{
    char path[1024];
    return file_path(directory, name, path, sizeof(path)) && access(path, F_OK) == 0;
}

/* ---- where it can be ---------------------------------------------------------------------------------------- */

/* Of a line of mountinfo: root of the mount, its place, type and super options. */
struct mount {
    char root[512], place[512], type[32], options[512];
};

static bool parse_mount(const char *line, struct mount *m)
{
    const char *rest = strstr(line, " - ");
    return sscanf(line, "%*s %*s %*s %511s %511s", m->root, m->place) == 2 && rest &&
           sscanf(rest + 3, "%31s %*s %511s", m->type, m->options) == 2;
}

static bool has_word(const char *list, const char *word)
{
    size_t bytes = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += bytes)
        if ((at == list || at[-1] == ',') && (at[bytes] == '\0' || at[bytes] == ','))
            return true;
    return false;
}

/* Where a hierarchy with the memory controller is mounted. */
static bool find_mount(bool v2, struct mount *found)
{
    char line[4096];
    bool is_there = false;
    FILE *in = fopen("/proc/self/mountinfo", "re");
    while (in && !is_there && fgets(line, sizeof(line), in))
        is_there =
            parse_mount(line, found) && (v2 ? strcmp(found->type, "cgroup2") == 0
                                            : strcmp(found->type, "cgroup") == 0 && has_word(found->options, "memory"));
    if (in)
        fclose(in);
    return is_there;
}

/* The group that this process is in, below its hierarchy's root: "/user.slice/..." */
static bool own_group(bool v2, char *group, size_t room)
{
    char text[TEXT_BYTES];
    if (read_file("/proc/self/cgroup", text, sizeof(text)) < 0)
        return false;
    for (char *line = text, *end; line && *line; line = end ? end + 1 : NULL) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        end = strchr(line, '\n');
        if (end)
            *end = '\0';
        if (!path || (end && path > end))
            continue;
        *path++ = '\0';
        if ((v2 ? controllers[1] == '\0' : has_word(controllers + 1, "memory")) && strlen(path) < room) {
            memcpy(group, path, strlen(path) + 1);
            return true;
        }
    }
    return false;
}

/* Its directory. A mount may show but a part of the hierarchy. */
static bool own_directory(bool v2, char *directory, size_t room)
{
    struct mount mount;
    char group[512];
    if (!find_mount(v2, &mount) || !own_group(v2, group, sizeof(group)))
        return false;
    size_t root = strcmp(mount.root, "/") == 0 ? 0 : strlen(mount.root);
    const char *below =
        strncmp(group, mount.root, root) == 0 && (group[root] == '/' || group[root] == '\0') ? group + root : "";
    if (strcmp(below, "/") == 0)
        below = "";
    return (size_t)snprintf(directory, room, "%s%s", mount.place, below) < room;
}

/* Version 2: a group that has processes has no groups below it, so ours goes beside our own, but for the root. */
static bool place_v2(char *directory)
{
    struct mount mount;
    if (!file_exists(directory, "cgroup.procs") || !find_mount(true, &mount))
        return false;
    char *slash = strrchr(directory, '/');
    if (strcmp(directory, mount.place) != 0 && slash)
        *slash = '\0';
    char path[1024], text[512];
    return file_path(directory, "cgroup.controllers", path, sizeof(path)) && read_file(path, text, sizeof(text)) == 0 &&
           strstr(text, "memory");
}

errint_t replay_cgroup_place(struct replay_cgroup *c, struct efs_error *err)
{
    char directory[400];
    *c = (struct replay_cgroup){.v2 = false};
    if (own_directory(false, directory, sizeof(directory)) && file_exists(directory, "memory.limit_in_bytes"))
        c->v2 = false;
    else if (own_directory(true, directory, sizeof(directory)) && place_v2(directory))
        c->v2 = true;
    else
        return efs_fail(err, -EOPNOTSUPP, "there is no memory cgroup");
    snprintf(c->path, sizeof(c->path), "%s/moe-replay-%ld", directory, (long)getpid());
    return 0;
}

/* ---- its life ----------------------------------------------------------------------------------------------- */

errint_t replay_cgroup_make(const struct replay_cgroup *c, uint64_t limit_bytes, struct efs_error *err)
{
    char limit[32], parent[512];
    snprintf(limit, sizeof(limit), "%llu", (unsigned long long)limit_bytes);
    memcpy(parent, c->path, sizeof(parent));
    *strrchr(parent, '/') = '\0';
    if (c->v2 && !file_exists(c->path, "memory.max"))
        (void)write_file(parent, "cgroup.subtree_control", "+memory"); /* it says itself below if that was no use */
    int rc = mkdir(c->path, 0755) == 0 || errno == EEXIST ? 0 : -errno;
    if (rc == 0)
        rc = write_file(c->path, c->v2 ? "memory.max" : "memory.limit_in_bytes", limit);
    if (rc == 0 && file_exists(c->path, c->v2 ? "memory.swap.max" : "memory.memsw.limit_in_bytes"))
        rc = write_file(c->path, c->v2 ? "memory.swap.max" : "memory.memsw.limit_in_bytes", c->v2 ? "0" : limit);
    if (rc < 0) {
        (void)rmdir(c->path);
        return efs_fail(err, rc, "%s: %s", c->path, strerror(-rc));
    }
    return 0;
}

errint_t replay_cgroup_enter(const struct replay_cgroup *c)
{
    return write_file(c->path, "cgroup.procs", "0");
}

/* The number behind a word, or a file's only number (word ""). */
static uint64_t cgroup_number(const struct replay_cgroup *c, const char *name, const char *word)
{
    char path[1024], text[1024];
    if (!c->path[0] || !file_path(c->path, name, path, sizeof(path)) || read_file(path, text, sizeof(text)) < 0)
        return 0;
    const char *at = strstr(text, word);
    return at ? strtoull(at + strlen(word), NULL, 10) : 0;
}

uint64_t replay_cgroup_peak_bytes(const struct replay_cgroup *c)
{
    return cgroup_number(c, c->v2 ? "memory.peak" : "memory.max_usage_in_bytes", "");
}

uint64_t replay_cgroup_kills(const struct replay_cgroup *c)
{
    return cgroup_number(c, c->v2 ? "memory.events" : "memory.oom_control", "oom_kill ");
}

/* SIGKILL to what is in it: only what was started for it is. */
static void cgroup_kill(const struct replay_cgroup *c)
{
    char path[1024], text[TEXT_BYTES];
    if (!file_path(c->path, "cgroup.procs", path, sizeof(path)) || read_file(path, text, sizeof(text)) < 0)
        return;
    for (char *at = text; *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : at + strlen(at)) {
        long pid = strtol(at, NULL, 10);
        if (pid > 1 && pid != (long)getpid())
            kill((pid_t)pid, SIGKILL);
    }
}

void replay_cgroup_remove(const struct replay_cgroup *c)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    for (unsigned i = 0; c->path[0] && i < REMOVE_TRIES && rmdir(c->path) != 0 && errno == EBUSY; i++) {
        cgroup_kill(c);
        nanosleep(&pause, NULL);
    }
}
