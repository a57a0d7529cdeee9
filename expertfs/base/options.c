/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - see options.h. */
#include "options.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum take {
    TAKE_SIZE,        /* uint64_t bytes */
    TAKE_SIZE_OR,     /* uint64_t bytes, not 0, or the word behind the bar: 0 */
    TAKE_COUNT,       /* uint64_t, 1 to most */
    TAKE_CHOICE,      /* unsigned: position in choices */
    TAKE_FLAG,        /* bool */
    TAKE_CLEAR,       /* bool, cleared */
    TAKE_STRING,      /* char * */
    TAKE_WORD,        /* char *, one of the choices */
    TAKE_MOUNT,       /* handed to the kernel's mount by name */
    TAKE_MOUNT_VALUE, /* the same with its value */
    TAKE_IGNORED,     /* meant for mount(8) or without a meaning here */
};

struct option {
    const char *name;
    enum take take;
    uint16_t at; /* offset in struct efsd_options */
    uint64_t most;
    const char *values; /* as the help shows them; choices are separated by '|' */
    const char *help;
};

#define AT(field) ((uint16_t)offsetof(struct efsd_options, field))

static const struct option table[] = {
    {"budget", TAKE_SIZE_OR, AT(budget_bytes), 0, "SIZE|auto", "all memory of the daemon, together (auto)"},
    {"workers", TAKE_COUNT, AT(workers), 1024, "N", "decoding threads (all cores)"},
    {"threads", TAKE_COUNT, AT(threads), 64, "N", "receiving threads (half of the cores, 2 to 8)"},
    {"readahead", TAKE_SIZE, AT(readahead_bytes), 1u << 30, "SIZE",
     "the kernel's, in mappings, cached reads (by memory)"},
    {"ahead", TAKE_SIZE, AT(ahead_bytes), UINT64_MAX, "SIZE", "the daemon's, of a sequential reader (32M)"},
    {"passthrough", TAKE_CLEAR, AT(no_passthrough), 0, NULL, "the kernel serves open experts itself (default)"},
    {"nopassthrough", TAKE_FLAG, AT(no_passthrough), 0, NULL, "experts are read like all other files"},
    {"lease", TAKE_CHOICE, AT(lease), 0, "read|wait|fail", "no room for an open expert: no lease, wait, ENOMEM"},
    {"direct_io", TAKE_CHOICE, AT(direct_io), 0, "auto|on|off", "read() past the page cache (auto: if mmap works)"},
    {"prealloc", TAKE_FLAG, AT(prealloc), 0, NULL, "take all memory of the budget before the mount is ready"},
    {"warm", TAKE_FLAG, AT(warm), 0, NULL, "fill empty memory while the disk rests, with what is expected"},
    {"odirect", TAKE_CLEAR, AT(no_direct), 0, NULL, "read the store with O_DIRECT (default)"},
    {"nodirect", TAKE_FLAG, AT(no_direct), 0, NULL, "read the store through the page cache"},
    {"policy", TAKE_WORD, AT(policy), 0, "zipmoe|lru|lfu|fifo|marking", "what is kept in memory (zipmoe)"},
    {"pools", TAKE_STRING, AT(pools), 0, "POOLS", "pools that are used: FCSE or some of them (FCSE)"},
    {"plan", TAKE_STRING, AT(plan), 0, "PLAN", "F=10:C=70:S=10:E=10 and the like in percent, or auto (auto)"},
    {"goal", TAKE_WORD, AT(goal), 0, "io|makespan", "what plans minimise (makespan)"},
    {"delta", TAKE_STRING, AT(delta), 0, "RANKS|auto", "margin of the pools' thresholds (auto: no thresholds)"},
    {"schedule", TAKE_WORD, AT(schedule), 0, "best|request|paper", "order of reads and decodes of a request (best)"},
    {"predictor", TAKE_WORD, AT(predictor), 0, "mixed|fmoe|moe-infinity", "what guesses come from (mixed)"},
    {"prefetch", TAKE_STRING, AT(prefetch), 0, "MODE", "read what is guessed: off, auto, always (off)"},
    {"history", TAKE_STRING, AT(history), 0, "FILE", "plan from this routing trace (what earlier mounts counted)"},
    {"state", TAKE_CLEAR, AT(no_state), 0, NULL, "read and save what is known of the store (default)"},
    {"nostate", TAKE_FLAG, AT(no_state), 0, NULL, "neither read nor save them"},
    {"nonempty", TAKE_FLAG, AT(nonempty), 0, NULL, "mount also on a directory that is not empty"},
    {"remount", TAKE_FLAG, AT(remount), 0, NULL, "make a mount that is there ro or rw, change nothing else"},
    {"ro", TAKE_FLAG, AT(read_only), 0, NULL, NULL},
    {"rw", TAKE_CLEAR, AT(read_only), 0, NULL, NULL},
    {"fsname", TAKE_STRING, AT(fsname), 0, "NAME", "the source in /proc/mounts (the store's path)"},
    {"subtype", TAKE_STRING, AT(subtype), 0, "NAME", "the type is fuse.NAME (expertfs)"},
    {"allow_other", TAKE_MOUNT, 0, 0, NULL, "other users may use the mount"},
    {"noexec", TAKE_MOUNT, 0, 0, NULL, "see mount(8)"},
    {"context", TAKE_MOUNT_VALUE, 0, 0, "LABEL", "mount(8); also fscontext, defcontext, rootcontext"},
    {"fscontext", TAKE_MOUNT_VALUE, 0, 0, NULL, NULL},
    {"defcontext", TAKE_MOUNT_VALUE, 0, 0, NULL, NULL},
    {"rootcontext", TAKE_MOUNT_VALUE, 0, 0, NULL, NULL},
};

/* Accepted because mount(8), fstab and systemd pass them: always so here (nosuid, nodev), for programs before us, or
 * about times and writes that a file system that never changes does not have. */
static const char *const ignored[] = {
    /* what mount(8) finds in the table of a mount that it remounts */
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
    *options = (struct efsd_options){.readahead_bytes = EFSD_READAHEAD_DEFAULT};
}

void efsd_options_free(struct efsd_options *options)
{
    free(options->store);
    free(options->mountpoint);
    free(options->mount);
    free(options->policy);
    free(options->pools);
    free(options->plan);
    free(options->goal);
    free(options->delta);
    free(options->schedule);
    free(options->predictor);
    free(options->prefetch);
    free(options->history);
    free(options->fsname);
    free(options->subtype);
    *options = (struct efsd_options){0};
}

static errint_t option_take_count(const struct option *option, const char *value, uint64_t *out, struct efs_error *err)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno || n < 1 || n > option->most) {
        return efs_fail(err, -EINVAL, "option %s=%s: not a number from 1 to %llu", option->name, value,
                        (unsigned long long)option->most);
    }
    *out = n;
    return 0;
}

static errint_t option_take_size(const struct option *option, const char *value, uint64_t *out, struct efs_error *err)
{
    errint_t rc = efs_parse_size(value, out);
    if (rc == -EINVAL)
        return efs_fail(err, rc, "option %s=%s: not a size such as 8G, 512M or 65536", option->name, value);
    if (rc || (option->most && *out > option->most))
        return efs_fail(err, -EINVAL, "option %s=%s: too large", option->name, value);
    return 0;
}

static errint_t option_take_choice(const struct option *option, const char *value, unsigned *out, struct efs_error *err)
{
    unsigned position = 0;
    size_t bytes = strlen(value);
    for (const char *choice = option->values; choice; position++) {
        const char *bar = strchr(choice, '|');
        size_t choice_bytes = bar ? (size_t)(bar - choice) : strlen(choice);
        if (choice_bytes == bytes && memcmp(choice, value, bytes) == 0) {
            *out = position;
            return 0;
        }
        choice = bar ? bar + 1 : NULL;
    }
    return efs_fail(err, -EINVAL, "option %s=%s: must be one of %s", option->name, value, option->values);
}

static errint_t option_take_mount(struct efsd_options *options, const char *name, const char *value,
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

static errint_t option_take_string(char **at, const char *value, struct efs_error *err)
{
    char *copy = strdup(value);
    if (!copy)
        return efs_fail(err, -ENOMEM, "no memory");
    free(*at);
    *at = copy;
    return 0;
}

static errint_t option_take(struct efsd_options *options, const struct option *option, const char *value,
                            struct efs_error *err)
{
    bool wants_value = option->take != TAKE_FLAG && option->take != TAKE_CLEAR && option->take != TAKE_MOUNT;
    if (wants_value && (!value || !*value)) {
        return efs_fail(err, -EINVAL, "option %s needs a value: %s=%s", option->name, option->name,
                        option->values ? option->values : "VALUE");
    }
    if (!wants_value && value)
        return efs_fail(err, -EINVAL, "option %s takes no value", option->name);
    unsigned choice;
    void *at = (char *)options + option->at;
    switch (option->take) {
    case TAKE_SIZE_OR:
        if (strcmp(value, strchr(option->values, '|') + 1) == 0) {
            *(uint64_t *)at = 0;
            return 0;
        }
        if (option_take_size(option, value, at, err))
            return -EINVAL;
        return *(uint64_t *)at ? 0
                               : efs_fail(err, -EINVAL, "option %s=%s: must be greater than 0", option->name, value);
    case TAKE_SIZE:
        return option_take_size(option, value, at, err);
    case TAKE_COUNT:
        return option_take_count(option, value, at, err);
    case TAKE_CHOICE:
        return option_take_choice(option, value, at, err);
    case TAKE_FLAG:
        *(bool *)at = true;
        return 0;
    case TAKE_CLEAR:
        *(bool *)at = false;
        return 0;
    case TAKE_WORD:
        if (option_take_choice(option, value, &choice, err))
            return -EINVAL;
        return option_take_string(at, value, err);
    case TAKE_STRING:
        return option_take_string(at, value, err);
    case TAKE_MOUNT:
    case TAKE_MOUNT_VALUE:
        return option_take_mount(options, option->name, value, err);
    case TAKE_IGNORED:
        return 0;
    }
    return -EINVAL;
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

/* Is this a part of a plan that a comma cut off? */
static bool option_is_part_of_plan(const struct efsd_options *options, const char *name, const char *value)
{
    return value && options->plan && strchr(options->plan, '=') && strlen(name) == 1 && strchr("FCSEfcse", *name);
}

/* Options of earlier versions, and what to use. */
static const struct {
    const char *name, *use;
} gone[] = {
    {"page_cache", "gone; use a memory cgroup of the readers (memory.high)"},
};

static errint_t option_unknown(const struct efsd_options *options, const char *name, const char *value,
                               struct efs_error *err)
{
    if (option_is_part_of_plan(options, name, value)) {
        return efs_fail(err, -EINVAL,
                        "option plan: a comma ends it, its parts are joined by colons: plan=%.64s:%s=%.16s",
                        options->plan, name, value);
    }
    for (size_t i = 0; i < sizeof(gone) / sizeof(*gone); i++)
        if (strcmp(name, gone[i].name) == 0)
            return efs_fail(err, -EINVAL, "option %s: %s", name, gone[i].use);
    return efs_fail(err, -EINVAL, "unknown option \"%.64s\"; `expertfs --help` lists those that there are", name);
}

static errint_t options_take_one(struct efsd_options *options, char *item, struct efs_error *err)
{
    char *value = strchr(item, '=');
    if (value)
        *value++ = '\0';
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
        if (strcmp(item, table[i].name) == 0)
            return option_take(options, &table[i], value, err);
    return option_is_ignored(item) ? 0 : option_unknown(options, item, value, err);
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
            rc = options_take_one(options, item, err);
    free(copy);
    return rc;
}

bool efsd_options_form(const char *item, char *form, size_t room)
{
    size_t bytes = strcspn(item, "=");
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
        if (strlen(table[i].name) != bytes || memcmp(item, table[i].name, bytes) != 0)
            continue;
        const char *values = item[bytes] ? NULL : table[i].values;
        snprintf(form, room, "%s%s%s", item, values ? "=" : "", values ? values : "");
        return true;
    }
    return false;
}

#define HELP_INDENT 25 /* columns */
#define HELP_COLUMNS 79

/* A line of an option; what does not fit goes on below, at the same column. argp would go on at the first. */
static void help_print(FILE *out, const char *option, const char *text)
{
    int at = fprintf(out, "  %s", option);
    if (at > HELP_INDENT - 2)
        at = HELP_COLUMNS;
    for (size_t bytes; *text; text += bytes + strspn(text + bytes, " ")) {
        bytes = strcspn(text, " ");
        if (at + 1 + (int)bytes > HELP_COLUMNS) {
            fprintf(out, "\n%*s", HELP_INDENT, "");
            at = HELP_INDENT;
        } else if (at < HELP_INDENT) {
            fprintf(out, "%*s", HELP_INDENT - at, "");
            at = HELP_INDENT;
        } else {
            fputc(' ', out);
            at++;
        }
        fprintf(out, "%.*s", (int)bytes, text);
        at += (int)bytes;
    }
    fputc('\n', out);
}

void efsd_options_help(FILE *out)
{
    fputs("Options of -o (SIZE takes K, M, G, T):\n", out);
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
        char option[48];
        if (!table[i].help)
            continue;
        snprintf(option, sizeof(option), "%s%s%s", table[i].name, table[i].values ? "=" : "",
                 table[i].values ? table[i].values : "");
        help_print(out, option, table[i].help);
    }
    fputs("  ro, noauto, nofail, user, _netdev, x-*, ... of mount(8): accepted, no effect\n", out);
}
