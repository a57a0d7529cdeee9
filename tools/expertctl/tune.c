/* SPDX-License-Identifier: Apache-2.0 */
/* tune.c - expertctl get and set: the extended attributes user.expertfs.* of a mount, a layer or an expert. */
#include "expertctl.h"

#include "expertfs-private.h"
#include "mountpoint.h"
#include "options.h"
#include "size.h"
#include "tune.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

struct arguments {
    struct tools_arguments given; /* PATH, then names or settings */
    bool human, reset, json;
    json_t *values; /* with --json: what get printed, what set has set */
};

#define AT(member) offsetof(struct arguments, member)
#define NAME_MAX_BYTES 64

static errint_t attribute_of(const char *path, const char *name, size_t bytes,
                             char full[sizeof(CTL_XATTR) + NAME_MAX_BYTES], struct efs_error *err)
{
    if (bytes >= NAME_MAX_BYTES)
        return efs_fail(err, -EINVAL, "%s: %.*s: unknown setting", path, (int)bytes, name);
    sprintf(full, CTL_XATTR "%.*s", (int)bytes, name);
    return 0;
}

/* Replaces PATH by the root of its mount if it was the mount's name and no path in it. */
static void use_root(struct arguments *a, char *root)
{
    struct stat given, mount;
    bool in_mount = stat(a->given.word[0], &given) == 0 && stat(root, &mount) == 0 && given.st_dev == mount.st_dev;
    if (!in_mount)
        a->given.word[0] = root;
}

/* ---- get -------------------------------------------------------------------------------------------------------- */

static const struct tools_option get_options[] = {
    {"human-readable", 'h', NULL, "Print sizes as 6.00 GiB in place of bytes", TOOLS_FLAG, .at = AT(human)},
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = AT(json)},
    {0}};
static const struct tools_command get_command = {
    .options = get_options,
    .arguments = "PATH [NAME...]",
    .help = "Print how a mount is tuned, or where an expert is. PATH is the mount, or a layer's folder or an expert's "
            "file in it.\vWithout NAME all values are printed, a line each; of one NAME the value alone.\n\n"
            "Examples:\n  expertctl get -h /mnt budget\n  expertctl get /mnt/experts/L00/E007.safetensors state pin",
    .at = AT(given)};

static bool get_is_size(const char *name)
{
    const struct efs_tunable *t = efs_tunable_find(name);
    return t ? strncmp(t->values, "SIZE", 4) == 0 : strcmp(name, "effective_budget") == 0 || strcmp(name, "bytes") == 0;
}

/* The names of the attributes of a file, separated by blanks; "": none. Returns names. */
static const char *attribute_names(const char *path, char *names, size_t room)
{
    ssize_t n = getxattr(path, CTL_XATTR "names", names, room - 1);
    names[n < 0 ? 0 : n] = '\0';
    return names;
}

static errint_t get_unknown(const char *path, const char *name, struct efs_error *err)
{
    char names[2048], *rest = names;
    const char *best = NULL;
    attribute_names(path, names, sizeof(names));
    for (const char *is; (is = strsep(&rest, " "));)
        best = efs_nearer_word(name, best, is);
    return best ? efs_fail(err, -ENODATA, "%s: %s: unknown setting\nhint: did you mean %s?", path, name, best)
                : efs_fail(err, -ENODATA, "%s: %s: unknown setting\nhint: `expertctl get %s` lists those that it has",
                           path, name, EFS_WORD(path));
}

/* Prints one attribute. alone: prints the value without the name. */
static errint_t get_one(const struct arguments *a, const char *name, bool alone, struct efs_error *err)
{
    const char *path = a->given.word[0];
    char full[sizeof(CTL_XATTR) + NAME_MAX_BYTES], value[2048];
    uint64_t bytes;
    errint_t rc = attribute_of(path, name, strlen(name), full, err);
    if (rc < 0)
        return rc;
    ssize_t n = getxattr(path, full, value, sizeof(value) - 1);
    if (n < 0)
        return errno == ENODATA ? get_unknown(path, name, err)
                                : efs_fail(err, -errno, "%s: %s: %s", path, name, strerror(errno));
    value[n] = '\0';
    efs_join_hint(value, sizeof(value)); /* of answer */
    if (a->human && get_is_size(name) && tools_number_parse(value, 0, UINT64_MAX, &bytes))
        tools_size_print(bytes, value, sizeof(value));
    if (a->json)
        json_object_set_new(a->values, name, ctl_json_text(value));
    else
        printf("%s%s%s\n", alone ? "" : name, alone ? "" : ": ", value);
    return 0;
}

/* Prints all attributes that `names` lists. */
static errint_t get_all(const struct arguments *a, const char *root, struct efs_error *err)
{
    char names[2048], *rest = names;
    ssize_t n = getxattr(a->given.word[0], CTL_XATTR "names", names, sizeof(names) - 1);
    if (n < 0 && errno == ENODATA)
        return efs_fail(err, -ENODATA,
                        "%s: has no settings; a mount has, and the layers and files in its experts/\nhint: `expertctl "
                        "get %s` prints those of the mount",
                        a->given.word[0], EFS_WORD(root));
    if (n < 0)
        return efs_fail(err, -errno, "%s: %s", a->given.word[0], strerror(errno));
    names[n] = '\0';
    errint_t rc = 0;
    for (const char *name; rc == 0 && (name = strsep(&rest, " "));)
        rc = get_one(a, name, false, err);
    return rc;
}

static int get_run(int argc, char **argv)
{
    struct arguments a = {.values = json_object()};
    struct efs_error err = {""};
    char *root;
    tools_parse(&get_command, argc, argv, &a);
    errint_t rc = ctl_mount_of(a.given.word[0], &root, &err);
    if (rc == 0)
        use_root(&a, root);
    if (rc == 0 && a.given.count == 1)
        rc = get_all(&a, root, &err);
    for (uint32_t i = 1; i < a.given.count && rc == 0; i++)
        rc = get_one(&a, a.given.word[i], a.given.count == 2, &err);
    free(root);
    int status = rc < 0 ? ctl_fail(rc, &err) : a.json ? ctl_print_json(json_incref(a.values)) : CTL_OK;
    json_decref(a.values);
    return status;
}

/* ---- set -------------------------------------------------------------------------------------------------------- */

static void set_check(const struct argp_state *state, void *into)
{
    const struct arguments *a = into;
    char **word = a->given.word;
    for (uint32_t i = 1; i < a->given.count; i++) {
        bool pair = strchr(word[i], '=') && word[i][0] != '=';
        if (pair == a->reset && !pair && strchr(word[0], '=') && access(word[0], F_OK) < 0)
            argp_error(state, "\"%s\": the mount comes first, then NAME=VALUE", word[0]);
        if (pair == a->reset)
            argp_error(state, a->reset ? "\"%s\": --reset takes NAME alone" : "\"%s\" is not of the form NAME=VALUE",
                       word[i]);
    }
}

static const struct tools_option set_options[] = {
    {"reset", 'r', NULL, "Set back to the value at the mount (a pin: to none)", TOOLS_FLAG, .at = AT(reset)},
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = AT(json)},
    {0}};
static const struct tools_command set_command = {
    .options = set_options,
    .arguments = "PATH NAME=VALUE...\n--reset PATH NAME...",
    .help =
        "Tune a mount while it serves. PATH is the mount, or a layer's folder or an expert's file in it (pin).\v"
        "Nothing is printed when all is set. `expertctl get PATH` prints the names; expertfs-proc(5) explains them.\n\n"
        "Examples:\n  expertctl set /mnt budget=6G\n  expertctl set --reset /mnt policy\n"
        "  expertctl set /mnt/experts/L00 pin=C",
    .at = AT(given),
    .finish = set_check};

/* Reads the attribute `answer`, the daemon's reply to the last setting; "": cannot be read. Returns text. */
static const char *mount_answer(const char *root, char *text, size_t room)
{
    ssize_t n = getxattr(root, CTL_XATTR "answer", text, room - 1);
    text[n < 0 ? 0 : n] = '\0';
    return text;
}

static errint_t set_refused(const char *root, const char *path, const char *name, errint_t rc, struct efs_error *err)
{
    char answer[1400];
    struct stat st;
    switch (-rc) {
    case EINVAL:
    case ERANGE:
    case ENOMEM:
    case ENODATA:
        mount_answer(root, answer, sizeof(answer));
        return efs_fail(err, rc, "%s: %s", path, *answer ? answer : strerror(-rc));
    case EPERM:
        if (geteuid() == 0 || (stat(root, &st) == 0 && st.st_uid == geteuid()))
            return efs_fail(err, rc, "%s: %s can only be read", path, name);
        return efs_fail(err, rc, "%s: only the user who mounted it, and root, may set %s", path, name);
    case EROFS:
        return efs_fail(err, rc, "%s: mounted with ro\nhint: mount -o remount,rw %s", path, EFS_WORD(root));
    default:
        return efs_fail(err, rc, "%s: %s: %s", path, name, strerror(-rc));
    }
}

errint_t ctl_setting_make(const char *root, const char *path, const char *pair, json_t *values, struct efs_error *err)
{
    char full[sizeof(CTL_XATTR) + NAME_MAX_BYTES], answer[1400];
    size_t bytes = strcspn(pair, "=");
    bool reset = !pair[bytes];
    errint_t rc = attribute_of(path, pair, bytes, full, err);
    if (rc < 0)
        return rc;
    const char *value = pair + bytes + !reset;
    if ((reset ? removexattr(path, full) : setxattr(path, full, value, strlen(value), 0)) < 0)
        return set_refused(root, path, full + strlen(CTL_XATTR), -errno, err);
    bool warns = *mount_answer(root, answer, sizeof(answer)) && strcmp(answer, "ok") != 0;
    if (warns)
        fprintf(stderr, "expertctl: warning: %s\n", answer);
    ssize_t n = getxattr(path, full, answer, sizeof(answer) - 1);
    if (values)
        json_object_set_new(values, full + strlen(CTL_XATTR), json_stringn(answer, n < 0 ? 0 : (size_t)n));
    return 0;
}

/* Appends the names of the first `count` settings, which stay in effect, to the hint of err. */
static void add_settings_made(const struct arguments *a, uint32_t count, struct efs_error *err)
{
    size_t used = strlen(err->text);
    const char *before = strstr(err->text, "\nhint: ") ? "; " : "\nhint: ";
    for (uint32_t i = 1; i <= count && used < sizeof(err->text); i++)
        used += (size_t)snprintf(err->text + used, sizeof(err->text) - used, "%s%.*s%s", i > 1 ? ", " : before,
                                 (int)strcspn(a->given.word[i], "="), a->given.word[i],
                                 i < count    ? ""
                                 : count == 1 ? " was set"
                                              : " were set");
}

static int set_run(int argc, char **argv)
{
    struct arguments a = {.values = json_object()};
    struct efs_error err = {""};
    char *root;
    tools_parse(&set_command, argc, argv, &a);
    errint_t rc = ctl_mount_of(a.given.word[0], &root, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    use_root(&a, root);
    for (uint32_t i = 1; i < a.given.count && rc == 0; i++) {
        rc = ctl_setting_make(root, a.given.word[0], a.given.word[i], a.values, &err);
        if (rc < 0)
            add_settings_made(&a, i - 1, &err);
    }
    free(root);
    int status = rc < 0 ? ctl_fail(rc, &err) : a.json ? ctl_print_json(json_incref(a.values)) : CTL_OK;
    json_decref(a.values);
    return status;
}

const struct ctl_command ctl_get = {"get", "print how a mount is tuned, or where an expert is", get_run};
const struct ctl_command ctl_set = {"set", "tune a mount: budget, pools, plan, policy, pins", set_run};
