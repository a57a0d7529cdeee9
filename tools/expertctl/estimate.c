/* SPDX-License-Identifier: Apache-2.0 */
/* estimate.c - expertctl estimate STORE|CHECKPOINT: what fits into memory, which budget and flags, how fast it will be.
 */
#include "estimate.h"

#include "expertctl.h"
#include "mountpoint.h"
#include "options.h"
#include "reclaim_left.h"
#include "size.h"

#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#define CONTEXT_DEFAULT 4096
#define CONTEXT_MAX (UINT64_C(1) << 30)
#define BATCH 512                        /* tokens that llama.cpp computes at a time */
#define PROGRAM_BYTES (64 << 20)         /* code, tokenizer and the like */
#define RAM_MIN 1024                     /* who writes less has left out the unit */
#define FLOOR_BYTES (UINT64_C(64) << 20) /* a mount with less does nothing but read */

#define INDENT "             "

enum { OPT_JSON = 256, OPT_RAM, OPT_CTX };

struct arguments {
    struct estimate e;
    bool json;
};

static const struct argp_option options[] = {
    {"ram", OPT_RAM, "SIZE", 0, "Memory for all of it (default: what the machine, or its memory cgroup, has)", 0},
    {"ctx", OPT_CTX, "N", 0, "Tokens of context (default: 4096)", 0},
    {"json", OPT_JSON, NULL, 0, "Print JSON", 0},
    {0}};

static error_t estimate_parse(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case OPT_RAM:
        if (!tools_size_parse(value, &a->e.ram_bytes) || !a->e.ram_bytes || a->e.ram_bytes > INT64_MAX)
            argp_error(state, "--ram %s: a size such as 32G", value);
        if (a->e.ram_bytes < RAM_MIN)
            argp_error(state, "--ram %s: so many bytes hold nothing; a size is written 32G", value);
        return 0;
    case OPT_CTX:
        a->e.context = tools_option_number(state, "ctx", value, 1, CONTEXT_MAX);
        return 0;
    case OPT_JSON:
        a->json = true;
        return 0;
    default:
        return tools_option_argument(state, key, value, "STORE or CHECKPOINT", &a->e.path);
    }
}

/* Of layers with a window llama.cpp keeps that, and a batch, in cells of 256. */
static uint64_t window_tokens(const struct estimate *e)
{
    uint64_t kept = (e->config.window + BATCH + 255) / 256 * 256;
    return e->config.window == 0 ? 0 : kept < e->context ? kept : e->context;
}

/* Beside the experts: what the system needs, dense weights, which each token reads, keys and values in halves, and
 * llama.cpp's results of a batch. The rest is the budget. */
static void estimate_memory(struct estimate *e)
{
    const uint64_t least = UINT64_C(256) << 20;
    e->system_bytes = e->ram_bytes / 32 > least ? e->ram_bytes / 32 : least;
    e->window_tokens = window_tokens(e);
    double kv = 2 * ((double)e->config.kv_elements * (double)e->context +
                     (double)e->config.window_elements * (double)e->window_tokens);
    double work = (double)BATCH * 4 * ((double)e->config.vocab + 16 * (double)e->config.hidden) + PROGRAM_BYTES;
    e->kv_bytes = (uint64_t)fmin(kv, 9e18);
    e->work_bytes = (uint64_t)fmin(work, 9e18);
    double rest = (double)e->ram_bytes - (double)e->system_bytes - (double)e->dense_bytes - kv - work;
    double most = (double)e->coded_bytes * 1.02 + (double)FLOOR_BYTES; /* more is of no use */
    rest = fmin(rest, most);
    e->fits = rest >= (double)FLOOR_BYTES;
    e->budget_bytes = e->fits ? (uint64_t)rest >> 20 << 20 : 0;
}

/* ---- text ---- */

static void print_bytes(const char *name, uint64_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void print_bytes(const char *name, uint64_t bytes, const char *format, ...)
{
    char size[16], text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    printf("  %-10s %9s  %s\n", name, tools_size_print(bytes, size, sizeof(size)), text);
}

static double coded_part(const struct estimate *e)
{
    double part = e->coded_bytes ? (double)e->budget_bytes / (double)e->coded_bytes : 0;
    return fmin(part, 1);
}

static double tokens_per_second(const struct estimate *e)
{
    double ns = e->read_ns + e->compute_ns;
    return e->fits && e->config.chosen && e->disk_bytes_per_second > 0 && e->compute_ns > 0 ? 1e9 / ns : 0;
}

/* The path as a shell takes it: as it stands, or quoted; for free(). */
static char *path_quoted(const char *path)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+,:@%=";
    char *quoted = malloc(4 * strlen(path) + 5), *to = quoted;
    if (!quoted)
        return NULL;
    if (path[0] == '-') /* else it is an option */
        to = stpcpy(to, "./");
    if (path[0] && !path[strspn(path, plain)]) {
        strcpy(to, path);
        return quoted;
    }
    *to++ = '\'';
    for (; *path; path++)
        to = *path == '\'' ? stpcpy(to, "'\\''") : (*to = *path, to + 1);
    strcpy(to, "'");
    return quoted;
}

/* The command that runs llama.cpp so, for free(); NULL: it reads GGUF files alone, or does not fit. */
static char *estimate_command(const struct estimate *e)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    char *command, *path = path_quoted(e->path);
    if (!e->gguf || !e->fits || !path ||
        asprintf(&command, "expertctl run -o budget=%lluM %s -- llama-server -m {gguf} -c %llu -t %ld%s",
                 (unsigned long long)(e->budget_bytes >> 20), e->packed ? path : "OUT.efs",
                 (unsigned long long)e->context, cores > 1 ? cores - 1 : 1,
                 estimate_coded(e) ? "" : " --no-repack") < 0)
        command = NULL;
    free(path);
    return command;
}

static void print_time(const struct estimate *e)
{
    if (!e->config.chosen) {
        printf("tokens       not reckoned: the model does not say how many experts a token needs\n");
        return;
    }
    printf("tokens       ");
    if (tokens_per_second(e) > 0)
        printf("about %.*f a second: %.3g ms to read, %.3g ms or more to compute\n",
               tokens_per_second(e) < 10 ? 2 : tokens_per_second(e) < 100, tokens_per_second(e),
               e->read_ns < 1000 ? 0 : e->read_ns / 1e6, e->compute_ns / 1e6);
    else
        printf("not reckoned: its files are too small to measure the disk\n");
    printf(INDENT "%.0f %% of the experts in memory, whole or in part (skew: %s)\n" INDENT, 100 * e->hit_part, e->skew);
    if (e->disk_bytes_per_second > 0)
        printf("disk %.3g GB/s (%s), ", e->disk_bytes_per_second / 1e9, e->rates);
    printf("memory %.1f GB/s\n", e->memory_bytes_per_second / 1e9);
}

static void print_llama(const struct estimate *e, const char *command)
{
    printf("run          %s\n"
           "flags        -c: without it the context is the model's own, %llu tokens\n" INDENT
           "-t: one core is the mount's\n",
           command, (unsigned long long)e->config.context);
    if (!estimate_coded(e))
        printf(INDENT "--no-repack: repacking copies experts; in %s llama.cpp\n" INDENT "computes them itself\n",
               e->dtype);
    printf(INDENT "leave out --mlock, --no-mmap, --load-mode, --cpu-moe:\n" INDENT "`expertctl doctor` says why\n");
}

static void print_commands(const struct estimate *e)
{
    char *command = estimate_command(e);
    char *path = path_quoted(e->path);
    if (!e->packed)
        printf("pack         mkexpertfs %s OUT.efs\n", path ? path : "?");
    if (!e->gguf)
        printf("run          expertctl run -o budget=%lluM %s -- PROGRAM {}\n" INDENT
               "{} is the mount; llama.cpp reads GGUF files alone\n",
               (unsigned long long)(e->budget_bytes >> 20), e->packed && path ? path : "OUT.efs");
    else
        print_llama(e, command ? command : "?");
    free(path);
    free(command);
}

static void estimate_print(const struct estimate *e)
{
    char a[16], b[16];
    printf("%s: %s, %u layers of %u experts in %s", e->path, e->family, e->layers, e->experts, e->dtype);
    if (e->config.chosen)
        printf(", %llu a token", (unsigned long long)e->config.chosen);
    printf("\nsize         %s, %s %s\n", tools_size_print(e->source_bytes, a, sizeof(a)),
           e->packed ? "packed" : "would be packed to about", tools_size_print(e->store_bytes, b, sizeof(b)));
    printf("memory       %s, of it\n", tools_size_print(e->ram_bytes, a, sizeof(a)));
    print_bytes("system", e->system_bytes, "and other programs");
    print_bytes("dense", e->dense_bytes, "attention and the like, which each token reads");
    if (e->window_tokens && e->window_tokens < e->context)
        print_bytes("KV cache", e->kv_bytes, "%llu tokens, in F16;\n%24slayers with a sliding window keep %llu",
                    (unsigned long long)e->context, "", (unsigned long long)e->window_tokens);
    else if (e->kv_bytes)
        print_bytes("KV cache", e->kv_bytes, "%llu tokens, in F16", (unsigned long long)e->context);
    else
        printf("  KV cache           ?  the model does not tell its heads: leave room for it\n");
    print_bytes("work", e->work_bytes, "of the program");
    if (!e->fits) {
        uint64_t least = e->system_bytes + e->dense_bytes + e->kv_bytes + e->work_bytes + FLOOR_BYTES;
        printf("  experts            -  does not fit: it takes %s at least\n", tools_size_print(least, a, sizeof(a)));
        return;
    }
    print_bytes("experts", e->budget_bytes, "the budget: %.0f %% of %s coded, %s plain", 100 * coded_part(e),
                tools_size_print(e->coded_bytes, a, sizeof(a)), tools_size_print(e->expert_bytes, b, sizeof(b)));
    print_time(e);
    print_commands(e);
}

/* ---- JSON ---- */

static json_t *estimate_to_json(const struct estimate *e)
{
    char *command = estimate_command(e);
    json_t *json = json_pack("{s:o, s:b, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "source",
                             ctl_json_text(e->path), "packed", e->packed, "family", e->family, "dtype", e->dtype,
                             "layers", (json_int_t)e->layers, "experts", (json_int_t)e->experts, "chosen",
                             (json_int_t)e->config.chosen, "source_bytes", (json_int_t)e->source_bytes, "store_bytes",
                             (json_int_t)e->store_bytes, "expert_raw_bytes", (json_int_t)e->expert_bytes,
                             "expert_coded_bytes", (json_int_t)e->coded_bytes, "context", (json_int_t)e->context);
    json_t *more = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:f, s:s, s:f, s:f, s:f, s:f, s:f, s:o}", "ram_bytes",
                             (json_int_t)e->ram_bytes, "system_bytes", (json_int_t)e->system_bytes, "dense_bytes",
                             (json_int_t)e->dense_bytes, "kv_bytes", (json_int_t)e->kv_bytes, "work_bytes",
                             (json_int_t)e->work_bytes, "budget_bytes", (json_int_t)e->budget_bytes, "fits", e->fits,
                             "hit_part", e->hit_part, "skew", e->skew, "disk_bytes_per_second",
                             e->disk_bytes_per_second, "memory_bytes_per_second", e->memory_bytes_per_second, "read_ns",
                             e->read_ns, "compute_ns", e->compute_ns, "tokens_per_second", tokens_per_second(e),
                             "command", command ? ctl_json_text(command) : json_null());
    if (json && json_object_update(json, more) < 0) {
        json_decref(json);
        json = NULL;
    }
    json_decref(more);
    free(command);
    return json;
}

/* A mount's files are the checkpoint's and more: experts/ would count twice. */
static errint_t estimate_refuse_mount(const char *path, struct efs_error *err)
{
    if (getxattr(path, CTL_XATTR "answer", NULL, 0) < 0)
        return 0;
    return efs_fail(err, -EINVAL, "%s: a mount; estimate takes its store, which `expertctl list' names", path);
}

static int estimate_run(int argc, char **argv)
{
    const struct argp argp = {
        .options = options,
        .parser = estimate_parse,
        .args_doc = "STORE|CHECKPOINT",
        .doc = "Reckon what of a model fits into memory when llama.cpp runs it, which budget a mount can have, and "
               "about how many tokens a second come of it; of a store, or of a checkpoint before it is packed.\vThe "
               "disk, and memory, are looked at for a second. The exit status is 1 if it does not fit."};
    struct arguments a = {.e = {.context = CONTEXT_DEFAULT}};
    struct efs_error err = {""}, taken = {""};
    struct efs_memory memory;
    efs_memory(&memory, sizeof(memory));
    a.e.ram_bytes = memory.limit_bytes;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    errint_t rc = estimate_refuse_mount(a.e.path, &err);
    if (rc == 0)
        rc = estimate_model(&a.e, &err);
    if (rc < 0 && tools_reclaim_left(a.e.path, NULL, &taken) < 0)
        err = taken;
    if (rc == 0)
        estimate_memory(&a.e);
    if (rc == 0 && a.e.fits && a.e.config.chosen)
        rc = estimate_rates(&a.e, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    int printed = CTL_OK;
    if (a.json)
        printed = ctl_print_json(estimate_to_json(&a.e));
    else
        estimate_print(&a.e);
    return a.e.fits ? printed : CTL_FAILED;
}

const struct ctl_command ctl_estimate = {"estimate", "reckon what fits into memory, and how fast it will be",
                                         estimate_run};
