/* SPDX-License-Identifier: Apache-2.0 */
/* list.c - expertctl list: the mounts of expertfs, as the kernel's table has them. */
#include "expertctl.h"

#include "mountpoint.h"
#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct tools_option options[] = {
    {"json", .help = "use `findmnt --json -t fuse.expertfs`", .kind = TOOLS_GONE}, {0}};
static const struct tools_command command = {
    .options = options,
    .help =
        "List the mounts of expertfs: store and mountpoint, a line each. No mount is opened: `expertctl status` shows "
        "what one does."};

/* A line stays a line. */
static void print_path(const char *path)
{
    for (; *path; path++)
        putchar((unsigned char)*path < ' ' ? '?' : *path);
}

static int list_run(int argc, char **argv)
{
    struct mntent entry;
    struct efs_error err = {""};
    char text[CTL_MOUNT_BYTES];
    bool any = false;
    tools_parse(&command, argc, argv, NULL);
    FILE *table = setmntent(CTL_MOUNTS, "re");
    if (!table)
        return ctl_fail(efs_fail(&err, -errno, CTL_MOUNTS ": %s", strerror(errno)), &err);
    for (; ctl_mounts_next(table, &entry, text, sizeof(text)); any = true) {
        print_path(entry.mnt_fsname);
        printf(" on ");
        print_path(entry.mnt_dir);
        putchar('\n');
    }
    endmntent(table);
    if (!any)
        fprintf(stderr, "expertctl: there is no mount of expertfs\n");
    return CTL_OK;
}

const struct ctl_command ctl_list = {"list", "list all mounts", list_run};
