/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expertctl.h - the subcommands, one file each.
 *
 * expertctl/ is the command that shows, checks, unpacks, mounts and tunes stores. Users run it; no other program
 * includes its headers. It never writes to a store and never serves one: `expertctl run` starts the daemon.
 *
 * A new subcommand needs a file, a line here and one in expertctl.c's table.
 */
#ifndef EXPERTCTL_H
#define EXPERTCTL_H

#include "expertfs.h"
#include "process.h"

enum { CTL_OK = 0, CTL_FAILED = 1, CTL_USAGE = 2 };

struct ctl_command {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* argv[0] is "expertctl NAME"; returns the exit status */
};

extern const struct ctl_command ctl_info, ctl_verify, ctl_unpack, ctl_profile, ctl_list, ctl_get, ctl_set, ctl_status,
    ctl_run, ctl_doctor;

/* tools_fail() for expertctl. rc: -errno. */
static inline int ctl_fail(errint_t rc, const struct efs_error *err)
{
    return tools_fail("expertctl", rc, err);
}

#endif
