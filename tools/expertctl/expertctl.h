/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertctl.h - the subcommands, one file each.
 *
 * expertctl/ is the command that shows, checks, unpacks, mounts and tunes stores. Users run it; no other program
 * includes its headers. It never writes to a store (rm deletes it) and never serves one: `expertctl up`
 * starts mkexpertfs and the daemon.
 *
 * A new subcommand needs a file, a line here and one in expertctl.c's table.
 */
#ifndef EXPERTCTL_H
#define EXPERTCTL_H

#include "expertfs.h"
#include "process.h"

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>
#include <time.h>

enum { CTL_OK = 0, CTL_FAILED = 1, CTL_USAGE = 2 };

struct ctl_command {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* argv[0] is "expertctl NAME"; returns the exit status */
};

extern const struct ctl_command ctl_up, ctl_down, ctl_ls, ctl_rm, ctl_status, ctl_log, ctl_warmup, ctl_get, ctl_set,
    ctl_info, ctl_verify, ctl_unpack, ctl_profile, ctl_doctor, ctl_cluster;

/* Prints json, and frees it; NULL, as of json_pack() without memory, is an error. Returns the exit status. */
struct json_t;
int ctl_print_json(struct json_t *json);
/* A JSON string of a path or a message, with U+FFFD for bytes that are not UTF-8. NULL: no memory. */
struct json_t *ctl_json_text(const char *text);

/* Prints a line for people, made printable; the format has no newline. */
__attribute__((format(printf, 2, 3))) void ctl_print_line(FILE *to, const char *format, ...);

/* Appends an entry to a list for people, after ", " if it is not the first; "..." in place of those that do not fit. */
void ctl_list_add(char *list, size_t room, const char *entry);
/* The name of a user, or the number; of a process, or "?". */
const char *ctl_user_name(uid_t user, char text[32]);
const char *ctl_process_name(pid_t pid, char text[32]);

/* Compares times of files, to the nanosecond: two may be made within a second. */
static inline bool ctl_is_later(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

/* tools_fail() for expertctl. rc: -errno. */
static inline int ctl_fail(errint_t rc, const struct efs_error *err)
{
    return tools_fail("expertctl", rc, err);
}

#endif
