/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - see options.h. */
#include "options.h"

#include "expertfs-placement-private.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum take {
    TAKE_COUNT,  /* uint64_t, 1 to COUNT_MOST */
    TAKE_CHOICE, /* unsigned: position in values */
    TAKE_SIZE,   /* uint64_t, bytes, not 0 */
    TAKE_FLAG,   /* bool */
    TAKE_CLEAR,  /* bool, cleared */
    TAKE_STRING, /* char * */
    TAKE_MOUNT,  /* passed to the kernel's mount */
};

#define COUNT_MOST 1024u

struct option {
    const char *name;
    enum take take;
    uint16_t at;        /* offset in struct efsd_options */
    const char *values; /* as printed by the help; choices are separated by '|'. NULL: the option takes no value */
    const char *help;   /* NULL: not listed */
};

#define AT(field) ((uint16_t)offsetof(struct efsd_options, field))

static const struct option table[] = {
    {"workers", TAKE_COUNT, AT(workers), "N", "decoding threads (all cores)"},
    {"direct_io", TAKE_CHOICE, AT(direct_io), "auto|on|off", "bypass the page cache (auto: unless the files fit)"},
    {"store_direct", TAKE_CHOICE, AT(store_direct), "auto|on|off", "read the store with O_DIRECT (auto: a local one)"},
    {"local", TAKE_STRING, AT(local), "DIR", "keep what is read of a slow store in DIR, too"},
    {"local-size", TAKE_SIZE, AT(local_bytes), "SIZE", "of that copy and its map, at most"},
    {"placement", TAKE_STRING, AT(placement), "FILE", "keep the experts that FILE puts on this server"},
    {"server", TAKE_STRING, AT(server), "NAME", "this server's name there (the host's)"},
    {"nopassthrough", TAKE_FLAG, AT(no_passthrough), NULL, "serve experts like all other files"},
    {"prealloc", TAKE_FLAG, AT(prealloc), NULL, "allocate the pools before the mount is ready"},
    {"noexperts", TAKE_FLAG, AT(no_experts), NULL, "show the checkpoint's files without experts/"},
    {"nostate", TAKE_FLAG, AT(no_state), NULL, "neither load nor save what was learned of the store"},
    {"nonempty", TAKE_FLAG, AT(nonempty), NULL, "mount on a directory that is not empty"},
    {"allow_other", TAKE_MOUNT, 0, NULL, "other users may use the mount"},
    {"fsname", TAKE_STRING, AT(fsname), "NAME", "the source in /proc/mounts (the path of the store)"},
    {"context", TAKE_MOUNT, 0, "LABEL", "SELinux label; see mount(8)"},
    {"remount", TAKE_FLAG, AT(remount), NULL, "make a mount ro, rw or noexec, and set its tunables"},
    {"log", TAKE_STRING, AT(log), "FILE", NULL},
    {"log_level", TAKE_CHOICE, AT(log_level), "error|warning|info", NULL},
    {"noexec", TAKE_MOUNT, 0, NULL, NULL},
    {"fscontext", TAKE_MOUNT, 0, "LABEL", NULL},
    {"defcontext", TAKE_MOUNT, 0, "LABEL", NULL},
    {"rootcontext", TAKE_MOUNT, 0, "LABEL", NULL},
    {"ro", TAKE_FLAG, AT(read_only), NULL, NULL},
    {"rw", TAKE_CLEAR, AT(read_only), NULL, NULL},
};

/* Accepted without effect because mount(8), fstab and systemd pass them: always in force here (nosuid, nodev), handled
 * by these programs, or about timestamps and writes, which a read-only file system does not have. */
static const char *const ignored[] = {
    /* mount(8) copies these from the mount table for a remount */
    "user_id",     "group_id",      "max_read",
    "suid",        "nosuid",        "dev",
    "nodev",       "exec",          "user",
    "nouser",      "users",         "owner",
    "group",       "auto",          "noauto",
    "defaults",    "nofail",        "_netdev",
    "relatime",    "atime",         "noatime",
    "diratime",    "nodiratime",    "norelatime",
    "strictatime", "sync",          "async",
    "dirsync",     "lazytime",      "nolazytime",
    "silent",      "nostrictatime", "default_permissions",
};

void efsd_options_init(struct efsd_options *options)
{
    *options = (struct efsd_options){.log_level = EFS_LOG_INFO};
}

void efsd_options_free(struct efsd_options *options)
{
    free(options->store);
    free(options->mountpoint);
    free(options->mount);
    free(options->local);
    free(options->placement);
    free(options->server);
    for (size_t i = 0; i < EFS_TUNABLES; i++)
        free(options->tune[i]);
    free(options->fsname);
    free(options->log);
    *options = (struct efsd_options){0};
}

static errint_t option_parse_count(const struct option *option, const char *value, uint64_t *out, struct efs_error *err)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno || n < 1 || n > COUNT_MOST)
        return efs_fail(err, -EINVAL, "option %s=%s: not a number from 1 to %u", option->name, value, COUNT_MOST);
    *out = n;
    return 0;
}

static errint_t option_parse_size(const struct option *option, const char *value, uint64_t *out, struct efs_error *err)
{
    uint64_t bytes;
    if (efs_parse_size(value, &bytes) < 0 || bytes == 0)
        return efs_fail(err, -EINVAL, "option %s=%s: not a size such as 512M or 20G", option->name, value);
    *out = bytes;
    return 0;
}

static errint_t option_parse_mount(struct efsd_options *options, const char *name, const char *value,
                                   struct efs_error *err)
{
    char *joined;
    if (asprintf(&joined, "%s%s%s%s%s", options->mount ? options->mount : "", options->mount ? "," : "", name,
                 value ? "=" : "", value ? value : "") < 0)
        return efs_fail(err, -ENOMEM, "no memory");
    free(options->mount);
    options->mount = joined;
    return 0;
}

bool efsd_options_mounts_with(const struct efsd_options *options, const char *name)
{
    size_t bytes = strlen(name);
    for (const char *at = options->mount; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, bytes) == 0 && (at[bytes] == '\0' || at[bytes] == ','))
            return true;
    }
    return false;
}

static errint_t option_parse_string(char **at, const char *value, struct efs_error *err)
{
    char *copy = strdup(value);
    if (!copy)
        return efs_fail(err, -ENOMEM, "no memory");
    free(*at);
    *at = copy;
    return 0;
}

/* Checks and stores the text of a tunable; also the bytes of budget. */
static errint_t option_parse_tunable(struct efsd_options *options, const struct efs_tunable *t, const char *value,
                                     struct efs_error *err)
{
    size_t number = (size_t)(t - efs_tunables);
    if (!value || !*value)
        return efs_fail(err, -EINVAL, "option %s needs a value: %s=%s", t->name, t->name, t->values);
    errint_t rc = efs_tunable_check(t, value, err);
    if (!rc && number == EFS_TUNE_budget)
        rc = efs_parse_budget(value, &options->budget_bytes, err);
    return rc ? rc : option_parse_string(&options->tune[number], value, err);
}

static errint_t option_parse(struct efsd_options *options, const struct option *option, const char *value,
                             struct efs_error *err)
{
    if (option->values && (!value || !*value))
        return efs_fail(err, -EINVAL, "option %s needs a value: %s=%s", option->name, option->name, option->values);
    if (!option->values && value)
        return efs_fail(err, -EINVAL, "option %s takes no value", option->name);
    void *at = (char *)options + option->at;
    switch (option->take) {
    case TAKE_COUNT:
        return option_parse_count(option, value, at, err);
    case TAKE_SIZE:
        return option_parse_size(option, value, at, err);
    case TAKE_CHOICE:
        return efs_choice_parse(option->name, option->values, value, at, err);
    case TAKE_FLAG:
    case TAKE_CLEAR:
        *(bool *)at = option->take == TAKE_FLAG;
        return 0;
    case TAKE_STRING:
        return option_parse_string(at, value, err);
    case TAKE_MOUNT:
        return option_parse_mount(options, option->name, value, err);
    }
    return 0;
}

static bool option_is_ignored(const char *name)
{
    if (strncmp(name, "x-", 2) == 0 || strcmp(name, "comment") == 0)
        return true;
    for (size_t i = 0; i < sizeof(ignored) / sizeof(*ignored); i++)
        if (strcmp(name, ignored[i]) == 0)
            return true;
    return false;
}

static errint_t option_unknown(const char *name, struct efs_error *err)
{
    const char *best = NULL;
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
        best = efs_nearer_word(name, best, table[i].name);
    for (size_t i = 0; i < EFS_TUNABLES; i++)
        best = efs_nearer_word(name, best, efs_tunables[i].name);
    if (best)
        return efs_fail(err, -EINVAL, "unknown option \"%.64s\"\nhint: did you mean %s?", name, best);
    return efs_fail(err, -EINVAL, "unknown option \"%.64s\"\nhint: `expertfs --help` lists the options", name);
}

errint_t efsd_options_set(struct efsd_options *options, const char *item, const char *value, struct efs_error *err)
{
    const struct efs_tunable *tunable = efs_tunable_find(item);
    if (tunable)
        return option_parse_tunable(options, tunable, value, err);
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
        if (strcmp(item, table[i].name) == 0)
            return option_parse(options, &table[i], value, err);
    if (option_is_ignored(item))
        return 0;
    return option_unknown(item, err);
}

static errint_t options_parse_one(struct efsd_options *options, char *item, struct efs_error *err)
{
    char *value = strchr(item, '=');
    if (value)
        *value++ = '\0';
    return efsd_options_set(options, item, value, err);
}

errint_t efsd_options_parse(struct efsd_options *options, const char *list, struct efs_error *err)
{
    char *copy = strdup(list);
    if (!copy)
        return efs_fail(err, -ENOMEM, "no memory");
    errint_t rc = 0;
    char *rest = copy, *item;
    while (!rc && (item = strsep(&rest, ",")))
        if (*item)
            rc = options_parse_one(options, item, err);
    free(copy);
    return rc;
}

errint_t efsd_options_check(const struct efsd_options *options, struct efs_error *err)
{
    if (options->server && !options->placement)
        return efs_fail(err, -EINVAL, "option server needs option placement=FILE");
    const errint_t rc = options->server ? efs_server_name_check(options->server, err) : 0;
    if (rc < 0)
        return rc;
    if (!options->local == !options->local_bytes)
        return 0;
    return efs_fail(err, -EINVAL, "option %s needs option %s", options->local ? "local" : "local-size",
                    options->local ? "local-size=SIZE" : "local=DIR");
}

static void help_line(FILE *out, const char *name, const char *values, const char *help)
{
    char option[80];
    snprintf(option, sizeof(option), "%s%s%s", name, values ? "=" : "", values ? values : "");
    fprintf(out, "  %-24s %s", option, help);
}

void efsd_options_help(FILE *out)
{
    fputs("Options of -o, with their defaults (SIZE takes K, M, G, T). Tunables, which\n"
          "`expertctl set' changes later:\n",
          out);
    for (size_t i = 0; i < EFS_TUNABLES; i++) {
        help_line(out, efs_tunables[i].name, efs_tunables[i].values, efs_tunables[i].help);
        fprintf(out, " (%s)\n", efs_tunables[i].start);
    }
    fputs("Others:\n", out);
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
        if (table[i].help) {
            help_line(out, table[i].name, table[i].values, table[i].help);
            fputc('\n', out);
        }
    fputs("budget=auto is half of the available memory. Options of mount(8) without a\n"
          "meaning here (noauto, nofail, _netdev, x-*) are accepted.\n\n"
          "Example: expertfs -o budget=8G model.efs mnt\n",
          out);
}
