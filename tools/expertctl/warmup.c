/* SPDX-License-Identifier: Apache-2.0 */
/*
 * warmup.c - expertctl warmup MNT: sets warm=always, waits until the mount has read what fits, and sets it back.
 * --local: sets local_fill=on, waits until the mount has set it to off.
 */
#include "expertctl.h"

#include "cleanup.h"
#include "control_file.h"
#include "interrupt.h"
#include "mountpoint.h"
#include "options.h"
#include "progress.h"
#include "sample.h"
#include "size.h"
#include "tune.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#define LOOK_MS 200u

struct arguments {
    struct tools_arguments mount;
    bool quiet, json, local;
};

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"quiet", 'q', NULL, "No progress and no closing line", TOOLS_FLAG, .at = AT(quiet)},
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = AT(json)},
    {"local", 0, NULL, "Read it into the local copy of option local, not into memory", TOOLS_FLAG, .at = AT(local)},
    {0}};
static const struct tools_command command = {
    .options = options,
    .arguments = "MNT",
    .help = "Read a model into the memory of its mount, in coded form, and wait for it: first its experts, then the "
            "rest, as far as the budget has room. MNT may be a path in the mount; the whole model is read. This is the "
            "setting warm=always; the mount's own setting is restored at the end.\v"
            "Examples:\n  expertctl warmup /mnt\n  expertctl warmup --json Qwen--Qwen3-30B-A3B",
    .at = AT(mount)};

/* Bytes read from the store since the mount, and those of chunks in memory. */
static errint_t mount_counts(const char *root, uint64_t *disk_bytes, uint64_t *held_bytes, struct efs_error *err)
{
    cleanup_free char *stat = NULL;
    errint_t rc = tools_control_read(root, "stat", &stat, err);
    *disk_bytes = rc == 0 ? tools_line_number(stat, "disk_bytes") : 0;
    *held_bytes = rc == 0 ? tools_line_number(stat, "chunk_used_bytes") : 0;
    return rc;
}

/* The number of experts, and of those that are in memory, full or coded. */
static void expert_counts(const char *root, size_t *all, size_t *held)
{
    struct efs_error ignored;
    struct ctl_table table = {.text = NULL};
    *all = *held = 0;
    if (ctl_table_read(root, "experts", &table, &ignored) == 0)
        for (*all = table.rows; table.rows; table.rows--)
            *held += strchr("FC", *ctl_table_cell(&table, table.rows, "state")) != NULL;
    ctl_table_free(&table);
}

/* Waits until the mount has read what fits. state: the last one. -ECANCELED: interrupted. */
static errint_t warm_wait(const char *root, struct tools_progress *progress, char *state, size_t room,
                          struct efs_error *err)
{
    for (;;) {
        cleanup_free char *predict = NULL;
        uint64_t disk, held;
        errint_t rc = tools_control_read(root, "predict", &predict, err);
        if (rc == 0)
            rc = mount_counts(root, &disk, &held, err);
        if (rc < 0)
            return rc;
        uint64_t all = tools_line_number(predict, "warm_bytes");
        tools_line_text(predict, "warm_state", state, room);
        if (strncmp(state, "done", 4) == 0)
            return 0;
        if (strcmp(state, "off") == 0)
            return efs_fail(err, -EBUSY, "%s: warm was set to off meanwhile", root);
        if (tools_progress_report(progress, held < all ? held : all, all, "warming") || tools_interrupt_pause(LOOK_MS))
            return -ECANCELED;
    }
}

static int print_result(const struct arguments *a, const char *root, const char *state, uint64_t disk)
{
    char store[16];
    size_t experts, held;
    expert_counts(root, &experts, &held);
    if (a->json)
        return ctl_print_json(json_pack("{s:o, s:s, s:I, s:I, s:I}", "mountpoint", ctl_json_text(root), "warm_state",
                                        state, "disk_bytes", (json_int_t)disk, "experts", (json_int_t)experts,
                                        "experts_in_memory", (json_int_t)held));
    if (a->quiet)
        return CTL_OK;
    printf("%s: %s", root, state);
    if (experts)
        printf(", the daemon holds %zu of %zu experts", held, experts);
    printf(", %s read from the store\n", tools_size_print(disk, store, sizeof(store)));
    return CTL_OK;
}

/* Waits until the mount has set local_fill to off. -ECANCELED: interrupted; -EIO: the copy gets no more. */
static errint_t local_wait(const char *root, struct tools_progress *progress, uint64_t *held, uint64_t *all,
                           struct efs_error *err)
{
    for (;;) {
        cleanup_free char *stat = NULL, *config = NULL;
        char fill[16], fault[400], text[2][16];
        errint_t rc = tools_control_read(root, "config", &config, err);
        rc = rc < 0 ? rc : tools_control_read(root, "stat", &stat, err);
        if (rc < 0)
            return rc;
        *held = tools_line_number(stat, "local_held_bytes");
        *all = tools_line_number(config, "store_bytes");
        if (strcmp(tools_line_text(config, "local_fill", fill, sizeof(fill)), "on") != 0) {
            tools_line_text(config, "local_fault", fault, sizeof(fault));
            return !*fault || strcmp(fault, "-") == 0
                       ? 0
                       : efs_fail(err, -EIO, "%s: the local copy has %s of %s: %s", root,
                                  tools_size_print(*held, text[0], sizeof(text[0])),
                                  tools_size_print(*all, text[1], sizeof(text[1])), fault);
        }
        if (tools_progress_report(progress, *held < *all ? *held : *all, *all, "filling") ||
            tools_interrupt_pause(LOOK_MS))
            return -ECANCELED;
    }
}

static int local_run(const struct arguments *a, const char *root)
{
    struct efs_error err = {""}, ignored;
    struct tools_progress progress;
    uint64_t held = 0, all = 0;
    char text[2][16];
    tools_interrupt_catch();
    tools_progress_init(&progress, a->quiet);
    errint_t rc = ctl_setting_make(root, root, "local_fill=on", NULL, &err);
    if (rc == 0) {
        rc = local_wait(root, &progress, &held, &all, &err);
        if (rc < 0)
            ctl_setting_make(root, root, "local_fill=off", NULL, &ignored);
    }
    tools_progress_clear(&progress);
    if (rc < 0)
        return ctl_fail(rc, &err);
    if (a->json)
        return ctl_print_json(json_pack("{s:o, s:I, s:I}", "mountpoint", ctl_json_text(root), "local_held_bytes",
                                        (json_int_t)held, "store_bytes", (json_int_t)all));
    if (!a->quiet)
        printf("%s: the local copy has %s of %s\n", root, tools_size_print(held, text[0], sizeof(text[0])),
               tools_size_print(all, text[1], sizeof(text[1])));
    return CTL_OK;
}

static int warmup_run(int argc, char **argv)
{
    struct arguments a = {.json = false};
    struct efs_error err = {""}, ignored;
    struct tools_progress progress;
    char state[100] = "", set[64] = "warm=";
    uint64_t before, after, held;
    cleanup_free char *root = NULL;
    tools_parse(&command, argc, argv, &a);
    errint_t rc = ctl_mount_of(a.mount.word[0], &root, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    if (a.local)
        return local_run(&a, root);
    const size_t bytes = strlen(set);
    const ssize_t n = getxattr(root, CTL_XATTR "warm", set + bytes, sizeof(set) - bytes - 1);
    set[bytes + (n > 0 ? (size_t)n : 0)] = '\0';
    tools_interrupt_catch();
    tools_progress_init(&progress, a.quiet);
    rc = mount_counts(root, &before, &held, &err);
    if (rc == 0)
        rc = ctl_setting_make(root, root, "warm=always", NULL, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    rc = warm_wait(root, &progress, state, sizeof(state), &err);
    tools_progress_clear(&progress);
    if (mount_counts(root, &after, &held, &ignored) < 0 || after < before)
        after = before;
    errint_t back = n > 0 ? ctl_setting_make(root, root, set, NULL, rc < 0 ? &ignored : &err) : 0;
    rc = rc < 0 ? rc : back;
    return rc < 0 ? ctl_fail(rc, &err) : print_result(&a, root, state, after - before);
}

const struct ctl_command ctl_warmup = {"warmup", "read a model into the memory or the local copy of its mount",
                                       warmup_run};
