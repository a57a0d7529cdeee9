/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - mkmodel: write a checkpoint of random weights that looks like a real one. */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "checkpoint.h"
#include "clock.h"
#include "interrupt.h"
#include "outdir.h"
#include "progress.h"
#include "samples.h"
#include "size.h"
#include "surroundings.h"

/* The C library looks for this by name, so it must be visible. */
__attribute__((visibility("default"))) const char *argp_program_version = "mkmodel (expertfs) " EFS_VERSION_STRING;

enum {
    EXIT_USAGE = 2,
    KEY_PRESET = 0x100,
    KEY_FORMAT,
    KEY_DTYPE,
    KEY_TOP,
    KEY_VOCAB,
    KEY_SHARD,
    KEY_SIZE,
    KEY_SEED,
    KEY_SPLIT,
    KEY_WEIGHTS
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "What to make:", 1},
    {"family", 'F', "NAME", 0, "mixtral, qwen3-moe, deepseek-v2, gpt-oss or switch", 1},
    {"preset", KEY_PRESET, "NAME", 0, "family and sizes at once; other options go before what it says", 1},
    {"format", KEY_FORMAT, "FORMAT", 0, "safetensors (default) or gguf (mixtral, qwen3-moe)", 1},
    {"dtype", KEY_DTYPE, "TYPE", 0,
     "bf16 (default), f16, f32, or fp8 with 128x128 block scales (qwen3-moe, "
     "deepseek-v2)",
     1},
    {"weights", KEY_WEIGHTS, "KIND|FILE", 0,
     "scaled (default: normal, rows of different scales, some tensors with heavy tails), normal (one scale a tensor), "
     "heavy (heavy tails everywhere), or a checkpoint, a file or a directory, whose tensors' BF16 values are drawn "
     "from; a file in the working directory with one of these names is ./NAME",
     1},
    {"seed", KEY_SEED, "N", 0, "another seed, other weights (default 0)", 1},
    {0, 0, 0, 0, "Sizes:", 2},
    {"layers", 'l', "N", 0, "layers, or --size; of each stack for switch", 2},
    {"experts", 'e', "N", 0, "experts a layer", 2},
    {"experts-per-token", KEY_TOP, "N", 0, "experts that a token uses", 2},
    {"hidden", 'd', "N", 0, "hidden size", 2},
    {"intermediate", 'i', "N", 0, "inner size of an expert", 2},
    {"vocab", KEY_VOCAB, "N", 0, "tokens in the vocabulary", 2},
    {"shard-size", KEY_SHARD, "SIZE", 0, "tensors in a safetensors file, at most (default 5000000000, as transformers)",
     2},
    {"split", KEY_SPLIT, 0, 0, "cut a GGUF at --shard-size, too", 2},
    {"size", KEY_SIZE, "SIZE", 0, "choose the number of layers so that all tensors come near this", 2},
    {0, 0, 0, 0, "How:", 3},
    {"threads", 't', "N", 0, "threads (default: all cores); the bytes do not depend on it", 3},
    {"force", 'f', 0, 0, "write into OUT_DIR even if it has files: those of a checkpoint are replaced", 3},
    {"quiet", 'q', 0, 0, "no progress, no summary", 3},
    {0}};

struct arguments {
    struct mk_model model;
    const char *preset, *out;
    enum mk_weights weights;
    const char *sampled; /* for MK_SAMPLED */
    unsigned threads;
    bool force, quiet;
};

static void take_count(struct argp_state *state, const char *name, const char *text, uint32_t *field)
{
    uint64_t number;
    if (!tools_number_parse(text, 1, 1u << 30, &number))
        argp_error(state, "--%s: '%s' is not a number above 0", name, text);
    else
        *field = (uint32_t)number;
}

static void take_size(struct argp_state *state, const char *name, const char *text, uint64_t *field)
{
    if (!tools_size_parse(text, field) || !*field || *field > UINT64_C(1) << 50)
        argp_error(state, "--%s: '%s' is not a size", name, text);
}

static void take_name(struct argp_state *state, int key, const char *text, struct mk_model *model)
{
    static const char *const dtypes[MK_DTYPES] = {"bf16", "f16", "f32", "fp8"};
    if (key == 'F') {
        model->family = mk_family_find(text);
        if (!model->family)
            argp_error(state, "--family: '%s' is not known: mixtral, qwen3-moe, deepseek-v2, gpt-oss or switch", text);
        return;
    }
    if (key == KEY_FORMAT) {
        if (strcmp(text, "safetensors") != 0 && strcmp(text, "gguf") != 0)
            argp_error(state, "--format: '%s' is not known: safetensors or gguf", text);
        model->format = strcmp(text, "gguf") ? MK_SAFETENSORS : MK_GGUF;
        return;
    }
    for (int d = 0; d < MK_DTYPES; d++) {
        if (!strcmp(text, dtypes[d])) {
            model->dtype = (enum mk_dtype)d;
            return;
        }
    }
    argp_error(state, "--dtype: '%s' is not known: bf16, f16, f32 or fp8", text);
}

static void take_weights(const char *text, struct arguments *arguments)
{
    static const char *const kinds[MK_SAMPLED] = {"scaled", "normal", "heavy"};
    arguments->weights = MK_SCALED;
    while (arguments->weights < MK_SAMPLED && strcmp(kinds[arguments->weights], text) != 0)
        arguments->weights++;
    arguments->sampled = text;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct arguments *arguments = state->input;
    struct mk_model *model = &arguments->model;
    uint32_t threads = 0;
    switch (key) {
    case 'F':
    case KEY_FORMAT:
    case KEY_DTYPE:
        take_name(state, key, text, model);
        break;
    case KEY_PRESET:
        arguments->preset = text;
        break;
    case KEY_WEIGHTS:
        take_weights(text, arguments);
        break;
    case KEY_SEED:
        if (!tools_number_parse(text, 0, INT64_MAX, &model->seed))
            argp_error(state, "--seed: '%s' is not a number", text);
        break;
    case 'l':
        take_count(state, "layers", text, &model->layers);
        break;
    case 'e':
        take_count(state, "experts", text, &model->experts);
        break;
    case KEY_TOP:
        take_count(state, "experts-per-token", text, &model->experts_per_token);
        break;
    case 'd':
        take_count(state, "hidden", text, &model->hidden);
        break;
    case 'i':
        take_count(state, "intermediate", text, &model->intermediate);
        break;
    case KEY_VOCAB:
        take_count(state, "vocab", text, &model->vocab);
        break;
    case KEY_SHARD:
        take_size(state, "shard-size", text, &model->shard_bytes);
        break;
    case KEY_SPLIT:
        model->split = true;
        break;
    case KEY_SIZE:
        take_size(state, "size", text, &model->target_bytes);
        break;
    case 't':
        take_count(state, "threads", text, &threads);
        arguments->threads = threads < 256 ? threads : 256;
        break;
    case 'f':
        arguments->force = true;
        break;
    case 'q':
        arguments->quiet = true;
        break;
    case ARGP_KEY_ARG:
        if (arguments->out)
            argp_error(state, "one OUT_DIR, please");
        arguments->out = text;
        break;
    case ARGP_KEY_END:
        if (!arguments->out)
            argp_error(state, "OUT_DIR is missing");
        if (model->layers && model->target_bytes)
            argp_error(state, "--layers and --size exclude each other");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static char *add_presets(int key, const char *text, void *input)
{
    char *whole = NULL;
    (void)input;
    if (key != ARGP_KEY_HELP_POST_DOC)
        return (char *)(uintptr_t)text;
    return asprintf(&whole, "Presets:\n%s", mk_preset_help) < 0 ? NULL : whole;
}

/* Everything that is to be written, and what it is made of. */
struct made {
    struct mk_plan plan, gguf;
    struct mk_tokenizer tokenizer;
    struct mk_files files;
    struct mk_samples samples;
};

static int model_make(const struct mk_model *model, struct made *made)
{
    mk_plan_init(&made->plan, model);
    mk_plan_init(&made->gguf, model);
    model->family->plan(model, &made->plan);
    int rc = made->plan.failed ? -ENOMEM : mk_tokenizer_init(&made->tokenizer, model->vocab);
    if (!rc && model->format == MK_GGUF)
        return mk_gguf_files(model, &made->plan, &made->tokenizer, &made->gguf, &made->files);
    if (!rc)
        rc = mk_config_files(model, &made->tokenizer, &made->files);
    return rc ? rc : mk_safetensors_files(model, &made->plan, &made->files);
}

static void made_free(struct made *made)
{
    mk_samples_free(&made->samples);
    mk_files_free(&made->files);
    mk_tokenizer_free(&made->tokenizer);
    mk_plan_free(&made->gguf);
    mk_plan_free(&made->plan);
}

/* Make and write the files, in the directory at hand. */
static int write_files(const struct arguments *arguments, const struct made *made, int directory,
                       struct mk_error *error)
{
    struct mk_tables *tables = malloc(sizeof(*tables));
    if (!tables)
        return -ENOMEM;
    mk_tables_init(tables);
    tables->weights = arguments->weights;
    tables->samples = &made->samples;
    struct tools_progress progress;
    tools_progress_init(&progress, arguments->quiet);
    struct mk_writer writer = {
        .tables = tables, .threads = arguments->threads, .progress = tools_progress_tell, .arg = &progress};
    double began = tools_now_s();
    int rc = mk_files_write(&made->files, directory, &writer, error);
    tools_progress_clear(&progress);
    free(tables);
    if (!rc && !arguments->quiet) {
        char bytes[16], rate[16];
        double seconds = tools_now_s() - began;
        tools_size_print(writer.total, bytes, sizeof(bytes));
        tools_size_print((uint64_t)((double)writer.total / (seconds + 1e-9)), rate, sizeof(rate));
        fprintf(stderr, "%s: %s in %.1f s, %s/s\n", arguments->out, bytes, seconds, rate);
    }
    return rc;
}

static int write_out(const struct arguments *arguments, const struct made *made, struct mk_error *error)
{
    struct mk_outdir outdir;
    int rc = mk_outdir_begin(&outdir, arguments->out, arguments->force, error);
    if (rc)
        return rc;
    rc = write_files(arguments, made, outdir.directory, error);
    if (!rc)
        return mk_outdir_commit(&outdir, &made->files, error);
    mk_outdir_abandon(&outdir, &made->files);
    return rc;
}

int main(int argc, char **argv)
{
    struct argp argp = {.options = options,
                        .parser = parse_option,
                        .args_doc = "OUT_DIR",
                        .doc = "Write a mixture-of-experts checkpoint of random weights with the names, shapes and "
                               "files of a real one.\v",
                        .help_filter = add_presets};
    struct arguments arguments = {.threads = (unsigned)get_nprocs()};
    struct mk_error error = {""};
    tools_surroundings();
    argp_err_exit_status = EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &arguments))
        return EXIT_USAGE;
    if (arguments.preset && !mk_model_preset(&arguments.model, arguments.preset)) {
        fprintf(stderr, "mkmodel: --preset: '%s' is not known. Presets:\n%s\n", arguments.preset, mk_preset_help);
        return EXIT_USAGE;
    }
    int rc = mk_model_derive(&arguments.model, &error);
    if (rc == -EINVAL) {
        fprintf(stderr, "mkmodel: %s\n", error.text);
        return EXIT_USAGE;
    }
    tools_interrupt_catch();
    struct made made = {0};
    if (arguments.weights == MK_SAMPLED && !rc)
        rc = mk_samples_read(arguments.sampled, &made.samples, &error);
    if (!rc)
        rc = model_make(&arguments.model, &made);
    if (!rc)
        rc = write_out(&arguments, &made, &error);
    made_free(&made);
    if (rc == -ECANCELED) {
        fprintf(stderr, "mkmodel: interrupted; nothing was left behind\n");
        return TOOLS_EXIT_INTERRUPTED;
    }
    if (rc)
        fprintf(stderr, "mkmodel: %s\n", error.text[0] ? error.text : strerror(-rc));
    return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
