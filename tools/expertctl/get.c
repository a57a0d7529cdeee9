/* SPDX-License-Identifier: Apache-2.0 */
/* get.c - expertctl get PATH [NAME...]: how a mount is tuned, or where an expert is. */
#include "expertctl.h"
#include "mountpoint.h"
#include "size.h"

#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#define NAMES_MAX 64
enum { OPT_JSON = 256 };

struct arguments {
    const char *path;
    const char *names[NAMES_MAX];
    unsigned count;
    bool human;
    json_t *json; /* what is told, with --json */
};

static const struct argp_option options[] = {
    {"human-readable", 'h', NULL, 0, "Tell sizes as 6.00 GiB in place of bytes", 0},
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {0}};

static error_t get_parse(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case 'h':
        a->human = true;
        return 0;
    case OPT_JSON:
        if (!a->json && !(a->json = json_object()))
            return ENOMEM;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            a->path = value;
        else if (a->count == NAMES_MAX)
            argp_error(state, "more than %d names", NAMES_MAX);
        else
            a->names[a->count++] = value;
        return 0;
    case ARGP_KEY_END:
        if (!a->path)
            argp_error(state, "a mount, or a file or folder in it, is needed");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static bool get_is_size(const char *name)
{
    static const char *const sizes[] = {"budget", "effective_budget", "bytes"};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (strcmp(name, sizes[i]) == 0)
            return true;
    return false;
}

/* alone: the value without its name. */
static errint_t get_one(const struct arguments *a, const char *name, bool alone, struct efs_error *err)
{
    const char *path = a->path;
    char full[300], value[2048];
    uint64_t bytes;
    snprintf(full, sizeof(full), CTL_XATTR "%s", name);
    ssize_t n = getxattr(path, full, value, sizeof(value) - 1);
    if (n < 0)
        return errno == ENODATA
                   ? efs_fail(err, -errno, "%s: there is no %s here; `expertctl get %s` lists what there is", path,
                              name, path)
                   : efs_fail(err, -errno, "%s: %s: %s", path, name, strerror(errno));
    value[n] = '\0';
    if (a->human && get_is_size(name) && tools_number_parse(value, 0, UINT64_MAX, &bytes))
        n = (ssize_t)strlen(tools_size_print(bytes, value, sizeof(value)));
    if (a->json) {
        bool number = tools_number_parse(value, 0, INT64_MAX, &bytes);
        if (json_object_set_new(a->json, name, number ? json_integer((json_int_t)bytes) : ctl_json_text(value)) < 0)
            return efs_fail(err, -ENOMEM, "no memory");
    } else if (alone)
        printf("%.*s\n", (int)n, value);
    else
        printf("%s: %.*s\n", name, (int)n, value);
    return 0;
}

/* What has no attributes prints nothing. */
static errint_t get_all(const struct arguments *a, struct efs_error *err)
{
    char names[2048], *rest = names;
    ssize_t n = getxattr(a->path, CTL_XATTR "names", names, sizeof(names) - 1);
    if (n < 0)
        return errno == ENODATA ? 0 : efs_fail(err, -errno, "%s: %s", a->path, strerror(errno));
    names[n] = '\0';
    errint_t rc = 0;
    for (const char *name; rc == 0 && (name = strsep(&rest, " "));)
        rc = get_one(a, name, false, err);
    return rc;
}

static int get_run(int argc, char **argv)
{
    const struct argp argp = {.options = options,
                              .parser = get_parse,
                              .args_doc = "PATH [NAME...]",
                              .doc =
                                  "Tell how a mount is tuned, or where an expert is. PATH is the mount, or a layer's "
                                  "folder or an expert's file in it.\vWithout NAME everything is told, a line each. "
                                  "Of one NAME the value alone."};
    struct arguments a = {.count = 0};
    struct efs_error err = {""};
    char *root;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    errint_t rc = ctl_mount_of(a.path, &root, &err);
    if (rc == 0)
        free(root);
    if (rc == 0 && a.count == 0)
        rc = get_all(&a, &err);
    for (unsigned i = 0; i < a.count && rc == 0; i++)
        rc = get_one(&a, a.names[i], a.count == 1, &err);
    if (rc == 0 && a.json)
        return ctl_print_json(a.json);
    json_decref(a.json);
    return rc < 0 ? ctl_fail(rc, &err) : CTL_OK;
}

const struct ctl_command ctl_get = {"get", "tell how a mount is tuned, or where an expert is", get_run};
