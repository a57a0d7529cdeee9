/* main.c - mkexpertfs SRC OUT: pack a checkpoint into a store. */
#include "mkexpertfs.h"

#include "interrupt.h"
#include "options.h"
#include "progress.h"
#include "size.h"
#include "surroundings.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2 };

#define BF16_BYTES 2
#define SHARD_STEP_BYTES (16u << 10) /* a block of 8192 elements */
#define SHARD_BYTES_MAX (8u << 20)
#define THREADS_MAX 1024

struct arguments {
    const char *src, *out;
    struct efs_pack_options options;
    bool quiet, json;
};

enum { OPT_CODEC = 256, OPT_SHARD_SIZE, OPT_JSON, OPT_VERIFY };

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
    {"verify", OPT_VERIFY, NULL, 0, "Decode everything and compare it with SRC before OUT appears", 0},
    {"quiet", 'q', NULL, 0, "No progress and no table", 0},
    {"json", OPT_JSON, NULL, 0, "Print the closing table as JSON", 0},
    {0},
};

static enum efs_codec_choice parse_codec(const char *name, struct argp_state *state)
{
    static const char *const names[] = {[EFS_CHOOSE_AUTO] = "auto",
                                        [EFS_CHOOSE_CASCADE] = "cascade",
                                        [EFS_CHOOSE_ZSTD] = "zstd",
                                        [EFS_CHOOSE_LZ4] = "lz4",
                                        [EFS_CHOOSE_RAW] = "raw"};
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return (enum efs_codec_choice)i;
    argp_error(state, "--codec %s: must be auto, cascade, zstd, lz4 or raw", name);
    return EFS_CHOOSE_AUTO;
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
    case OPT_VERIFY:
        a->options.verify = true;
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
            argp_error(state, "more than SRC and OUT");
        return 0;
    case ARGP_KEY_END:
        if (state->arg_num < 2)
            argp_error(state, "SRC and OUT are needed");
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

static int report_failure(errint_t rc, const struct efs_error *err)
{
    if (rc == -ECANCELED && tools_interrupted()) {
        fprintf(stderr, "mkexpertfs: interrupted; nothing was left behind\n");
        return TOOLS_EXIT_INTERRUPTED;
    }
    fprintf(stderr, "mkexpertfs: %s\n", err->text[0] ? err->text : strerror(-rc));
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        options,
        parse_option,
        "SRC OUT",
        "Pack the checkpoint SRC, a directory (safetensors, GGUF and any other files) or one file, losslessly into the "
        "store OUT, which expertfs mounts.\v"
        "OUT appears when it is complete and on disk; a run that fails or is interrupted leaves nothing behind. Exit "
        "status: 0 packed, 1 failed, 2 wrong usage, 130 interrupted.",
        NULL,
        NULL,
        NULL};
    struct arguments a = {0};
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
    errint_t rc = efs_pack(a.src, a.out, &a.options, &report, &err);
    tools_progress_clear(&progress);
    if (rc < 0)
        return report_failure(rc, &err);
    if (report.notice[0] && !a.quiet)
        fprintf(stderr, "mkexpertfs: note: %s\n", report.notice);
    if (a.json) {
        if (!print_report_json(&report, a.out))
            return report_failure(-ENOMEM, &err);
    } else if (!a.quiet) {
        print_report(&report, a.out);
    }
    return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
