/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - mkexpertfs SRC OUT: pack a checkpoint into a store. */
#include "failure.h"
#include "mkexpertfs.h"

#include "interrupt.h"
#include "options.h"
#include "progress.h"
#include "reclaim_left.h"
#include "size.h"
#include "surroundings.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USAGE = 2 };

#define BF16_BYTES 2
#define SHARD_STEP_BYTES (16u << 10) /* a block of 8192 elements */
#define SHARD_BYTES_MAX (8u << 20)
#define THREADS_MAX 1024
#define STEP_BYTES_MIN (1u << 20)

struct arguments {
    const char *src, *out;
    struct efs_pack_options options;
    struct reclaim reclaim;
    bool quiet, json;
};

enum {
    OPT_CODEC = 256,
    OPT_SHARD_SIZE,
    OPT_JSON,
    OPT_VERIFY,
    OPT_RECLAIM,
    OPT_RESUME,
    OPT_UNDO,
    OPT_DRY_RUN,
    OPT_STEP,
    OPT_ANY
};

static const struct argp_option options[] = {
    {"codec", OPT_CODEC, "NAME", 0, "How exponents are coded: auto (default), cascade, zstd, lz4 or raw (not at all)",
     0},
    {"threads", 't', "N", 0, "Code with N threads (default: all cores)", 0},
    {"shard-size", OPT_SHARD_SIZE, "SIZE", 0,
     "The unit of decoding, as bytes of BF16: 16K to 8M in steps of 16K (default 1M); other formats take shards of as "
     "many "
     "elements",
     0},
    {"force", 'f', NULL, 0, "Replace OUT if it exists", 0},
    {"any", OPT_ANY, NULL, 0, "Pack SRC also if it has no weights, not all, or twice", 0},
    {"verify", OPT_VERIFY, NULL, 0, "Decode everything and compare it with SRC before OUT appears", 0},
    {"reclaim", OPT_RECLAIM, NULL, 0,
     "Pack SRC in its own place, for a disk that cannot hold both: SRC is freed as OUT grows, and removed", 0},
    {"dry-run", OPT_DRY_RUN, NULL, 0, "With --reclaim: tell whether it can be done and what room it takes", 0},
    {"step", OPT_STEP, "SIZE", 0,
     "With --reclaim and --resume: free about SIZE of SRC at a time, 1M or more (default 256M, or less where room is "
     "short)",
     0},
    {"yes", 'y', NULL, 0, "With --reclaim: do not ask", 0},
    {"resume", OPT_RESUME, NULL, 0, "Go on with a --reclaim that was interrupted; SRC may be left out", 0},
    {"undo", OPT_UNDO, NULL, 0, "Go back: give SRC again what was freed in it, and remove the rest", 0},
    {"quiet", 'q', NULL, 0, "No progress and no table", 0},
    {"json", OPT_JSON, NULL, 0, "Print the closing table as JSON", 0},
    {0},
};

static enum efs_codec_choice parse_codec(const char *name, struct argp_state *state)
{
    enum efs_codec_choice choice;
    if (efs_codec_choose(name, &choice) < 0)
        argp_error(state, "--codec %s: must be auto, cascade, zstd, lz4 or raw", name);
    return choice;
}

/* At the end: SRC is not needed where the store tells it. */
static void check_arguments(struct arguments *a, const struct argp_state *state)
{
    bool again = a->reclaim.mode > RECLAIM_BEGIN;
    if (state->arg_num < (again ? 1u : 2u))
        argp_error(state, again ? "OUT is needed" : "SRC and OUT are needed");
    if (state->arg_num == 1) {
        a->out = a->src;
        a->src = NULL;
    }
    if (a->reclaim.mode != RECLAIM_NONE && a->options.force)
        argp_error(state, "--reclaim and --force exclude each other");
    if (a->options.reclaim_step_bytes && a->reclaim.mode != RECLAIM_BEGIN && a->reclaim.mode != RECLAIM_RESUME)
        argp_error(state, "--step goes with --reclaim or --resume");
    if (a->reclaim.mode != RECLAIM_BEGIN && (a->reclaim.dry_run || a->reclaim.yes))
        argp_error(state, "--%s goes with --reclaim", a->reclaim.dry_run ? "dry-run" : "yes");
}

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    uint64_t number;
    switch (key) {
    case OPT_CODEC:
        a->options.codec = parse_codec(value, state);
        return 0;
    case 't':
        a->options.threads = (unsigned)tools_option_number(state, "threads", value, 1, THREADS_MAX);
        return 0;
    case OPT_SHARD_SIZE:
        if (!tools_size_parse(value, &number) || number < SHARD_STEP_BYTES || number > SHARD_BYTES_MAX ||
            number % SHARD_STEP_BYTES != 0)
            argp_error(state, "--shard-size %s: 16K to 8M in steps of 16K", value);
        a->options.shard_elements = (uint32_t)(number / BF16_BYTES);
        return 0;
    case 'f':
        a->options.force = true;
        return 0;
    case OPT_ANY:
        a->options.weights = false;
        return 0;
    case OPT_VERIFY:
        a->options.verify = true;
        return 0;
    case OPT_RECLAIM:
        if (a->reclaim.mode == RECLAIM_NONE)
            a->reclaim.mode = RECLAIM_BEGIN;
        return 0;
    case OPT_RESUME:
    case OPT_UNDO:
        if (a->reclaim.mode > RECLAIM_BEGIN)
            argp_error(state, "only one of --resume and --undo");
        a->reclaim.mode = key == OPT_RESUME ? RECLAIM_RESUME : RECLAIM_UNDO;
        return 0;
    case OPT_STEP:
        if (!tools_size_parse(value, &number) || number < STEP_BYTES_MIN)
            argp_error(state, "--step %s: 1M or more", value);
        a->options.reclaim_step_bytes = number;
        return 0;
    case OPT_DRY_RUN:
        a->reclaim.dry_run = true;
        return 0;
    case 'y':
        a->reclaim.yes = true;
        return 0;
    case 'q':
        a->quiet = true;
        return 0;
    case OPT_JSON:
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            a->src = value;
        else if (state->arg_num == 1)
            a->out = value;
        else
            argp_error(state, "too many arguments");
        return 0;
    case ARGP_KEY_END:
        check_arguments(a, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_version(FILE *stream, struct argp_state *state)
{
    (void)state;
    fprintf(stream, "mkexpertfs (expertfs) %s\n", efs_version());
}

/* NAME/NAME, as models are called where they are downloaded from. */
static bool is_hub_name(const char *src)
{
    const char *slash = src ? strchr(src, '/') : NULL;
    return slash && slash > src && slash[1] && !strchr(slash + 1, '/') && *src != '.' && *src != '~';
}

static int report_failure(const struct arguments *a, errint_t rc, const struct efs_error *err)
{
    bool interrupted = rc == -ECANCELED && tools_interrupted();
    bool left = a->reclaim.mode != RECLAIM_NONE && efs_reclaim_unfinished(a->out);
    if (interrupted)
        fprintf(stderr, "mkexpertfs: interrupted%s\n", left ? "" : "; nothing was left behind");
    else
        fprintf(stderr, "mkexpertfs: %s\n", err->text[0] ? err->text : strerror(-rc));
    if (rc == -ENOENT && is_hub_name(a->src) && access(a->src, F_OK) < 0)
        fprintf(stderr,
                "mkexpertfs: SRC is a directory or file of this machine; `hf download %s --local-dir DIR` gets a model "
                "of that name from the Hugging Face Hub\n",
                a->src);
    if (rc == -ENOSPC && a->reclaim.mode == RECLAIM_NONE)
        fprintf(stderr, "mkexpertfs: where SRC is on the same disk, --reclaim packs it in its own place\n");
    if (left)
        reclaim_tell_left(a->out);
    return interrupted ? TOOLS_EXIT_INTERRUPTED : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse_option,
        .args_doc = "SRC OUT\n--resume [SRC] OUT\n--undo [SRC] OUT",
        .doc = "Pack the checkpoint SRC, a directory (safetensors, GGUF and any other files) or one file, losslessly "
               "into the store OUT, which expertfs mounts.\v"
               "OUT appears when it is complete and on disk; a run that fails or is interrupted leaves nothing behind. "
               "With --reclaim it leaves OUT.reclaim, which together with what is left of SRC holds everything. Exit "
               "status: 0 packed, 1 failed, 2 wrong usage, 130 interrupted."};
    struct arguments a = {.options = {.size = sizeof(a.options), .weights = true}};
    struct efs_pack_report report;
    struct efs_error err = {""};
    struct tools_progress progress;
    tools_surroundings();
    argp_err_exit_status = EXIT_USAGE;
    argp_program_version_hook = print_version;
    argp_parse(&argp, argc, argv, 0, NULL, &a);

    tools_interrupt_catch();
    tools_progress_init(&progress, a.quiet);
    a.options.progress = tools_progress_tell;
    a.options.progress_arg = &progress;
    bool done = true;
    errint_t rc = a.reclaim.mode <= RECLAIM_BEGIN ? tools_reclaim_left(a.src, a.out, &err) : 0;
    if (rc == 0)
        rc = a.reclaim.mode == RECLAIM_NONE ? efs_pack(a.src, a.out, &a.options, &report, sizeof(report), &err)
                                            : reclaim_run(&a.reclaim, a.src, a.out, &a.options, &report, &done, &err);
    tools_progress_clear(&progress);
    if (rc < 0)
        return report_failure(&a, rc, &err);
    if (!done)
        return EXIT_SUCCESS;
    for (const char *line = report.notice; *line && !a.quiet; line += strspn(line, "\n")) {
        size_t bytes = strcspn(line, "\n");
        fprintf(stderr, "mkexpertfs: note: %.*s\n", (int)bytes, line);
        line += bytes;
    }
    if (a.json) {
        if (!print_report_json(&report, a.out))
            return report_failure(&a, -ENOMEM, &err);
    } else if (!a.quiet) {
        print_report(&report, a.out);
    }
    return EXIT_SUCCESS;
}
