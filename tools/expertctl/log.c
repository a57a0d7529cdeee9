/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - expertctl log [MNT]: the latest messages of a mount, from .expertfs/log. */
#include "expertctl.h"
#include "expertfs-private.h"

#include "cleanup.h"
#include "control_file.h"
#include "interrupt.h"
#include "mountpoint.h"
#include "options.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLLOW_MS 500

struct arguments {
    struct tools_arguments mount;
    uint64_t lines; /* 0: all */
    bool follow, json;
};

static void check_arguments(const struct argp_state *state, void *into)
{
    const struct arguments *a = into;
    if (a->follow && a->json)
        argp_error(state, "--json goes without --follow");
}

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"lines", 'n', "N", "Print the last N messages (default: all)", TOOLS_NUMBER, AT(lines), .least = 1},
    {"follow", 'f', NULL, "Print also the messages to come, until interrupted or unmounted", TOOLS_FLAG,
     .at = AT(follow)},
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = AT(json)},
    {0}};
static const struct tools_command command = {
    .options = options,
    .arguments = "[MNT]",
    .help =
        "Print the latest messages of a mount, oldest first: time, level, text. The daemon keeps the last 64 KiB of "
        "them, wherever else they go. Without MNT, of the only mount that this user may read.\v"
        "Examples:\n  expertctl log\n  expertctl log -n 5 /mnt\n  expertctl log -f /mnt",
    .at = AT(mount),
    .finish = check_arguments};

/* The last `lines` lines of text, which ends with a newline. */
static char *last_lines(char *text, uint64_t lines)
{
    char *at = text + strlen(text);
    if (at > text)
        at--; /* the newline of the last line */
    while (at > text && lines > 0)
        lines -= *--at == '\n';
    return lines == 0 ? at + 1 : text;
}

/* Lines are "TIME LEVEL: TEXT". */
static json_t *lines_json(char *text)
{
    json_t *array = json_array();
    for (char *line; (line = strsep(&text, "\n")) && *line;) {
        char *rest = line, *when = strsep(&rest, " "), *level = strsep(&rest, ":");
        json_array_append_new(array, json_pack("{s:s, s:s, s:o}", "time", when, "level", level ? level : "", "text",
                                               ctl_json_text(rest && *rest ? rest + 1 : "")));
    }
    return array;
}

/* Prints a copy, made printable: the text is compared with a later one. */
static void print_text(const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return;
    efs_make_printable(copy, true);
    fputs(copy, stdout);
    free(copy);
}

/* The lines of `is` that were added since `was`, of which the daemon may have dropped the oldest. */
static const char *lines_added(const char *was, const char *is)
{
    while (*was && strncmp(is, was, strlen(was)) != 0) {
        was += strcspn(was, "\n");
        was += *was == '\n';
    }
    return is + strlen(was);
}

/* Prints what is added to the log after `text`, until interrupted or unmounted, which are no failures. Returns the exit
 * status. */
static int follow(const char *root, char **text)
{
    struct efs_error err = {""};
    errint_t rc = 0;
    tools_interrupt_catch();
    while (!tools_interrupt_pause(FOLLOW_MS)) {
        char *is = NULL;
        rc = ctl_mount_check(root, &err);
        if (rc == 0)
            rc = tools_control_read(root, "log", &is, &err);
        if (rc < 0)
            return ctl_mount_was_unmounted(root) ? CTL_OK : ctl_fail(rc, &err);
        print_text(lines_added(*text, is));
        free(*text);
        *text = is;
        if (fflush(stdout) != 0)
            return ctl_fail(-errno, &err);
    }
    return CTL_OK;
}

static int log_run(int argc, char **argv)
{
    struct arguments a = {.lines = 0};
    struct efs_error err = {""};
    cleanup_free char *root = NULL, *text = NULL;
    tools_parse(&command, argc, argv, &a);
    errint_t rc = a.mount.count ? ctl_mount_of(*a.mount.word, &root, &err) : ctl_mount_only(&root, &err);
    if (rc == 0)
        rc = tools_control_read(root, "log", &text, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    char *from = a.lines ? last_lines(text, a.lines) : text;
    int status = CTL_OK;
    if (a.json)
        status = ctl_print_json(lines_json(from));
    else
        print_text(from);
    if (a.follow)
        status = fflush(stdout) == 0 ? follow(root, &text) : CTL_FAILED;
    return status;
}

const struct ctl_command ctl_log = {"log", "print the latest messages of a mount", log_run};
