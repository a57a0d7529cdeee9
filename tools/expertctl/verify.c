/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c - expertctl verify STORE: check every chunk. */
#include "expertctl.h"

#include "interrupt.h"
#include "expertfs-pack.h"
#include "mountpoint.h"
#include "options.h"
#include "progress.h"
#include "size.h"

#include <argp.h>
#include <jansson.h>
#include <stdio.h>

enum { OPT_DECODE = 256, OPT_JSON };
#define THREADS_MAX 1024

struct arguments {
    const char *store;
    bool decode, quiet, json;
    unsigned threads;
};

static const struct argp_option options[] = {
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {"decode", OPT_DECODE, NULL, 0, "Decode every chunk, too, and check the bytes that readers would get", 0},
    {"threads", 't', "N", 0, "Use N threads (default: all cores)", 0},
    {"quiet", 'q', NULL, 0, "No progress and no closing line; damage is printed", 0},
    {0},
};

static error_t verify_parse(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case OPT_DECODE:
        a->decode = true;
        return 0;
    case OPT_JSON:
        a->json = true;
        return 0;
    case 't':
        a->threads = (unsigned)tools_option_number(state, "threads", value, 1, THREADS_MAX);
        return 0;
    case 'q':
        a->quiet = true;
        return 0;
    default:
        return tools_option_argument(state, key, value, "STORE", &a->store);
    }
}

/* What is told while it runs: damage can be of any length, so that JSON is printed as it comes. */
struct telling {
    struct tools_progress progress;
    bool json;
    uint64_t lines;
};

static bool tell_progress(void *telling, uint64_t done, uint64_t total, const char *phase)
{
    return tools_progress_tell(&((struct telling *)telling)->progress, done, total, phase);
}

/* From any thread, one at a time. */
static void tell_damage(void *arg, const char *line)
{
    struct telling *telling = arg;
    if (telling->progress.terminal && !telling->progress.quiet)
        fputs("\r\033[K", stderr); /* the bar, which its own thread draws again */
    if (telling->json) {
        json_t *text = ctl_json_text(line);
        printf("%s\n    ", telling->lines ? "," : "");
        json_dumpf(text, stdout, JSON_ENCODE_ANY);
        json_decref(text);
    } else {
        printf("%s\n", line);
    }
    telling->lines++;
}

static void json_begin(const struct arguments *a)
{
    json_t *store = ctl_json_text(a->store);
    printf("{\n  \"store\": ");
    json_dumpf(store, stdout, JSON_ENCODE_ANY);
    printf(",\n  \"damage\": [");
    json_decref(store);
}

static void json_end(const struct arguments *a, const struct telling *telling, bool whole,
                     const struct efs_store_info *info)
{
    printf("%s],\n  \"whole\": %s,\n  \"decoded\": %s,\n  \"shards\": %llu,\n  \"store_bytes\": %llu\n}\n",
           telling->lines ? "\n  " : "", whole ? "true" : "false", a->decode ? "true" : "false",
           (unsigned long long)info->shards, (unsigned long long)info->store_bytes);
}

static int verify_run(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = verify_parse,
        .args_doc = "STORE",
        .doc = "Read all of STORE and check every checksum. Each damaged chunk is one line on standard output, with "
               "the file, the tensor and the place in the store; the exit status is 1 if there is any."};
    struct arguments a = {0};
    static const struct ctl_mount_hint of_a_mount = {
        "verify", "", "reads its store; of the mount, `expertctl get` and `expertctl top` tell"};
    struct efs_store *store;
    struct efs_store_info info;
    struct efs_error err = {""};
    uint64_t damaged = 0;
    char size[16];
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    errint_t rc = ctl_store_open(a.store, &of_a_mount, &store, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    tools_interrupt_catch();
    struct telling telling = {.json = a.json};
    tools_progress_init(&telling.progress, a.quiet);
    if (a.json)
        json_begin(&a);
    rc = efs_store_verify(store, a.decode, a.threads, tell_progress, tell_damage, &telling, &damaged, &err);
    tools_progress_clear(&telling.progress);
    efs_store_info(store, &info, sizeof(info));
    if (a.json)
        json_end(&a, &telling, rc == 0, &info);
    else if (rc == 0 && !a.quiet)
        printf("%s: ok: %llu shards, %s%s\n", a.store, (unsigned long long)info.shards,
               tools_size_print(info.store_bytes, size, sizeof(size)), a.decode ? ", decoded" : "");
    efs_store_close(store);
    return rc < 0 ? ctl_fail(rc, &err) : CTL_OK;
}

const struct ctl_command ctl_verify = {"verify", "check every chunk of a store", verify_run};
