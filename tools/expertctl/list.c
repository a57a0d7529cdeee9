/* SPDX-License-Identifier: Apache-2.0 */
/* list.c - expertctl list: the mounts of expertfs in /proc/self/mountinfo. */
#include "expertctl.h"

#include "mountpoint.h"
#include "options.h"

#include <stdio.h>

static const struct tools_option options[] = {
    {"json", .help = "use `findmnt --json -t fuse.expertfs`", .kind = TOOLS_REMOVED}, {0}};
static const struct tools_command command = {
    .options = options,
    .help =
        "List the mounts of expertfs: store and mountpoint, a line each. No mount is opened: `expertctl status` shows "
        "what one does."};

/* Prints control characters as ?, so that each mount takes one line. */
static void print_path(const char *path)
{
    for (; *path; path++)
        putchar((unsigned char)*path < ' ' ? '?' : *path);
}

static int list_run(int argc, char **argv)
{
    struct ctl_mounts mounts;
    struct efs_error err = {""};
    tools_parse(&command, argc, argv, NULL);
    errint_t rc = ctl_mounts_find(&mounts, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    for (size_t i = 0; i < mounts.count; i++) {
        print_path(mounts.mount[i].source);
        printf(" on ");
        print_path(mounts.mount[i].path);
        putchar('\n');
    }
    if (!mounts.count)
        fprintf(stderr, "expertctl: there is no mount of expertfs\n");
    ctl_mounts_free(&mounts);
    return CTL_OK;
}

const struct ctl_command ctl_list = {"list", "list all mounts", list_run};
