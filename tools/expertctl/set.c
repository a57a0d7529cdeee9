/* SPDX-License-Identifier: Apache-2.0 */
/* set.c - expertctl set MOUNT NAME=VALUE...: tune a mount while it serves. */
#include "expertctl.h"
#include "mountpoint.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define PAIRS_MAX 64

struct arguments {
    const char *path;
    char *pairs[PAIRS_MAX]; /* NAME=VALUE, or NAME with reset */
    unsigned count;
    bool reset;
};

static const struct argp_option options[] = {
    {"reset", 'r', NULL, 0, "Set back to what it was when the mount began (a pin: to none)", 0}, {0}};

static error_t set_parse(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case 'r':
        a->reset = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            a->path = value;
        else if (a->count == PAIRS_MAX)
            argp_error(state, "more than %d settings", PAIRS_MAX);
        else
            a->pairs[a->count++] = value;
        return 0;
    case ARGP_KEY_END:
        if (a->count == 0)
            argp_error(state, "a mount (or a file or folder in it) and a setting are needed");
        for (unsigned i = 0; i < a->count; i++) {
            bool pair = strchr(a->pairs[i], '=') && a->pairs[i][0] != '=';
            if (pair == a->reset && !pair && strchr(a->path, '=') && access(a->path, F_OK) < 0)
                argp_error(state, "\"%s\": the mount comes first, then NAME=VALUE", a->path);
            if (pair == a->reset)
                argp_error(state,
                           a->reset ? "\"%s\": with --reset there is a NAME alone"
                                    : "\"%s\" is not of the form NAME=VALUE",
                           a->pairs[i]);
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Why the mount refused, in words. */
static errint_t set_refused(const char *root, const struct arguments *a, const char *name, errint_t rc,
                            struct efs_error *err)
{
    char answer[1400];
    struct stat st;
    switch (-rc) {
    case EINVAL:
    case ERANGE:
    case ENOMEM:
        ctl_mount_answer(root, answer, sizeof(answer));
        return efs_fail(err, rc, "%s: %.900s", a->path, *answer ? answer : strerror(-rc));
    case EPERM:
        if (geteuid() == 0 || (stat(root, &st) == 0 && st.st_uid == geteuid()))
            return efs_fail(err, rc, "%s: %s can only be read", a->path, name);
        return efs_fail(err, rc, "%s: only who mounted it, and root, may set %s", a->path, name);
    case ENODATA:
        return efs_fail(err, rc, "%s: there is no %s here", a->path, name);
    case EROFS:
        return efs_fail(err, rc, "%s: remounted with ro; mount -o remount,rw %s", a->path, root);
    default:
        return efs_fail(err, rc, "%s: %s: %s", a->path, name, strerror(-rc));
    }
}

static errint_t set_one(const char *root, const struct arguments *a, const char *pair, struct efs_error *err)
{
    char name[64], full[sizeof(CTL_XATTR) + sizeof(name)];
    const char *equals = strchr(pair, '=');
    size_t bytes = equals ? (size_t)(equals - pair) : strlen(pair);
    if (bytes >= sizeof(name))
        return efs_fail(err, -EINVAL, "%s: there is no %s here", a->path, pair);
    memcpy(name, pair, bytes);
    name[bytes] = '\0';
    snprintf(full, sizeof(full), CTL_XATTR "%s", name);
    int rc = a->reset ? removexattr(a->path, full) : setxattr(a->path, full, equals + 1, strlen(equals + 1), 0);
    if (rc < 0)
        return set_refused(root, a, name, -errno, err);
    char answer[1400];
    ctl_mount_answer(root, answer, sizeof(answer));
    if (*answer && strcmp(answer, "ok") != 0)
        printf("%s\n", answer);
    return 0;
}

static int set_run(int argc, char **argv)
{
    const struct argp argp = {.options = options,
                              .parser = set_parse,
                              .args_doc = "PATH NAME=VALUE...\n--reset PATH NAME...",
                              .doc = "Tune a mount while it serves. PATH is the mount, or a layer's folder or an "
                                     "expert's file in it (pin).\vWithout output all is set. `expertctl get PATH` "
                                     "tells what can be set; expertfs-proc(5) explains it."};
    struct arguments a = {.count = 0};
    struct efs_error err = {""};
    char *root;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    errint_t rc = ctl_mount_of(a.path, &root, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    for (unsigned i = 0; i < a.count && rc == 0; i++) /* what came before an error stays set */
        rc = set_one(root, &a, a.pairs[i], &err);
    free(root);
    return rc < 0 ? ctl_fail(rc, &err) : CTL_OK;
}

const struct ctl_command ctl_set = {"set", "tune a mount: budget, pools, plan, policy, pins", set_run};
