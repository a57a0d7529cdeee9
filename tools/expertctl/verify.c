/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c - expertctl verify STORE: checks every chunk. */
#include "expertctl.h"

#include "interrupt.h"
#include "expertfs-pack.h"
#include "names.h"
#include "options.h"
#include "progress.h"
#include "size.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>

#define THREADS_MAX 1024

struct arguments {
    struct tools_arguments store;
    bool decode, quiet, json;
    unsigned threads;
};

/* The argument of both callbacks. */
struct sweep {
    struct tools_progress progress; /* first: tools_progress_report() takes the same pointer */
    json_t *damage;                 /* lines; NULL: print them */
};

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"decode", 0, NULL, "Decode every chunk, too, and check the bytes that readers would get", TOOLS_FLAG,
     .at = AT(decode)},
    {"threads", 't', "N", "Use N threads (default: all cores)", TOOLS_UNSIGNED, AT(threads), .least = 1,
     .most = THREADS_MAX},
    {"quiet", 'q', NULL, "No progress and no closing line; damage is printed", TOOLS_FLAG, .at = AT(quiet)},
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = AT(json)},
    {0},
};
static const struct tools_command command = {
    .options = options,
    .arguments = "STORE|NAME",
    .help = "Read all of STORE and check every checksum. Each damaged chunk is one line on standard output, with the "
            "file, the tensor and the place in the store; the exit status is 1 if there is any.\v"
            "Examples:\n  expertctl verify model.efs\n  expertctl verify --decode --json model.efs",
    .at = AT(store)};

/* efs_store_verify() calls it from any of its threads, one call at a time. */
static void take_damage(void *arg, const char *line)
{
    struct sweep *sweep = arg;
    if (sweep->damage)
        json_array_append_new(sweep->damage, ctl_json_text(line));
    else {
        tools_progress_clear(&sweep->progress);
        ctl_print_line(stdout, "%s", line);
    }
}

static int verify_run(int argc, char **argv)
{
    struct arguments a = {.threads = 0};
    struct efs_store *store;
    struct efs_store_info info;
    struct efs_error err = {""};
    struct sweep sweep = {.damage = NULL};
    uint64_t damaged = 0;
    char size[16], shards[32];
    char path[4400];
    tools_parse(&command, argc, argv, &a);
    errint_t rc = ctl_name_open(*a.store.word, path, sizeof(path), &store, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    tools_interrupt_catch();
    tools_progress_init(&sweep.progress, a.quiet);
    sweep.damage = a.json ? json_array() : NULL;
    rc = efs_store_verify(store, a.decode, a.threads, tools_progress_report, take_damage, &sweep, &damaged, &err);
    tools_progress_clear(&sweep.progress);
    fflush(stdout); /* the damage before the message */
    efs_store_info(store, &info);
    if (a.json && (rc == 0 || rc == -EUCLEAN))
        ctl_print_json(json_pack("{s:o, s:I, s:I, s:b, s:b, s:o}", "store", ctl_json_text(path), "store_bytes",
                                 (json_int_t)info.store_bytes, "shards", (json_int_t)info.shards, "decoded",
                                 (int)a.decode, "in_place", (int)info.in_place, "damage", sweep.damage));
    else if (rc == 0 && !a.quiet && info.in_place)
        ctl_print_line(stdout, "%s: read: %s; a checkpoint that is not packed has no checksums", path,
                       tools_size_print(info.source_bytes, size, sizeof(size)));
    else if (rc == 0 && !a.quiet)
        ctl_print_line(stdout, "%s: ok: %s, %s%s", path,
                       tools_count_print(info.shards, "shard", shards, sizeof(shards)),
                       tools_size_print(info.store_bytes, size, sizeof(size)), a.decode ? ", decoded" : "");
    efs_store_close(store);
    return rc < 0 ? ctl_fail(rc, &err) : CTL_OK;
}

const struct ctl_command ctl_verify = {"verify", "check every chunk of a store", verify_run};
