/* main.c - mkmodel: write a checkpoint of random weights that looks like a real one. */
#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "checkpoint.h"
#include "outdir.h"
#include "progress.h"

/* The C library looks for this by name, so it must be visible. */
__attribute__((visibility("default"))) const char *argp_program_version = "mkmodel (expertfs) " EFS_VERSION_STRING;

enum { EXIT_USAGE = 2, KEY_PRESET = 0x100, KEY_FORMAT, KEY_DTYPE, KEY_TOP, KEY_VOCAB, KEY_SHARD, KEY_SIZE, KEY_SEED };

static const struct argp_option options[] = {
    {0, 0, 0, 0, "What to make:", 1},
    {"family", 'F', "NAME", 0, "mixtral, qwen3-moe, deepseek-v2, gpt-oss or switch", 1},
    {"preset", KEY_PRESET, "NAME", 0, "family and sizes at once; other options go before what it says", 1},
    {"format", KEY_FORMAT, "FORMAT", 0, "safetensors (default) or gguf (mixtral, qwen3-moe)", 1},
    {"dtype", KEY_DTYPE, "TYPE", 0,
     "bf16 (default), f16, f32, or fp8 with 128x128 block scales (qwen3-moe, "
     "deepseek-v2)",
     1},
    {"seed", KEY_SEED, "N", 0, "another seed, other weights (default 0)", 1},
    {0, 0, 0, 0, "Sizes:", 2},
    {"layers", 'l', "N", 0, "layers, or --size; of each stack for switch", 2},
    {"experts", 'e', "N", 0, "experts a layer", 2},
    {"experts-per-token", KEY_TOP, "N", 0, "experts that a token uses", 2},
    {"hidden", 'd', "N", 0, "hidden size", 2},
    {"intermediate", 'i', "N", 0, "inner size of an expert", 2},
    {"vocab", KEY_VOCAB, "N", 0, "tokens in the vocabulary", 2},
    {"shard-size", KEY_SHARD, "SIZE", 0, "tensors in a safetensors file, at most (default 5GB)", 2},
    {"size", KEY_SIZE, "SIZE", 0, "choose the number of layers so that all tensors come near this", 2},
    {0, 0, 0, 0, "How:", 3},
    {"threads", 't', "N", 0, "threads (default: all cores); the bytes do not depend on it", 3},
    {"force", 'f', 0, 0, "write into OUT_DIR even if it has files: those of a checkpoint are replaced", 3},
    {"quiet", 'q', 0, 0, "no progress, no summary", 3},
    {0}};

struct arguments {
    struct mk_model model;
    const char *preset, *out;
    unsigned threads;
    bool force, quiet;
};

/* "64", "64K", "1.5GiB", "5GB": bytes. 1024 to the K, but 1000 to the KB. */
static bool parse_size(const char *text, uint64_t *bytes)
{
    char *end;
    double value = strtod(text, &end);
    const char *units = "KMGT", *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (end == text || !(value > 0) || (*end && !unit))
        return false;
    if (unit) {
        bool decimal = toupper((unsigned char)end[1]) == 'B' && !end[2];
        if (end[1] && !decimal && strcasecmp(end + 1, "ib") != 0)
            return false;
        for (long i = unit - units; i >= 0; i--)
            value *= decimal ? 1000 : 1024;
    }
    if (value < 1 || value > 0x1p50)
        return false;
    *bytes = (uint64_t)value;
    return true;
}

static bool parse_number(const char *text, uint64_t limit, uint64_t *number)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno || value > limit)
        return false;
    *number = value;
    return true;
}

static void take_count(struct argp_state *state, const char *name, const char *text, uint32_t *field)
{
    uint64_t number;
    if (!parse_number(text, 1u << 30, &number) || !number)
        argp_error(state, "--%s: '%s' is not a number above 0", name, text);
    else
        *field = (uint32_t)number;
}

static void take_name(struct argp_state *state, int key, const char *text, struct mk_model *model)
{
    static const char *const dtypes[MK_DTYPES] = {"bf16", "f16", "f32", "fp8"};
    if (key == 'F') {
        model->family = mk_family_find(text);
        if (!model->family)
            argp_error(state, "--family: '%s' is not known", text);
        return;
    }
    if (key == KEY_FORMAT) {
        if (strcmp(text, "safetensors") != 0 && strcmp(text, "gguf") != 0)
            argp_error(state, "--format: '%s' is not known", text);
        model->format = strcmp(text, "gguf") ? MK_SAFETENSORS : MK_GGUF;
        return;
    }
    for (int d = 0; d < MK_DTYPES; d++) {
        if (!strcmp(text, dtypes[d])) {
            model->dtype = (enum mk_dtype)d;
            return;
        }
    }
    argp_error(state, "--dtype: '%s' is not known", text);
}

static error_t parse(int key, char *text, struct argp_state *state)
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
    case KEY_SEED:
        if (!parse_number(text, INT64_MAX, &model->seed))
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
        if (!parse_size(text, &model->shard_bytes))
            argp_error(state, "--shard-size: '%s' is not a size", text);
        break;
    case KEY_SIZE:
        if (!parse_size(text, &model->target_bytes))
            argp_error(state, "--size: '%s' is not a size", text);
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

static volatile sig_atomic_t stopped; /* the signal that asked to stop */

static void stop(int number)
{
    stopped = number;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = stop}, before;
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (!sigaction(numbers[i], NULL, &before) && before.sa_handler != SIG_IGN) /* nohup stays nohup */
            sigaction(numbers[i], &action, NULL);
}

/* Everything that is to be written, and what it is made of. */
struct made {
    struct mk_plan plan, gguf;
    struct mk_tokenizer tokenizer;
    struct mk_files files;
};

static int make(const struct mk_model *model, struct made *made)
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
    mk_files_free(&made->files);
    mk_tokenizer_free(&made->tokenizer);
    mk_plan_free(&made->gguf);
    mk_plan_free(&made->plan);
}

static int write_out(const struct arguments *arguments, const struct made *made, struct mk_error *error)
{
    struct mk_outdir outdir;
    int rc = mk_outdir_begin(&outdir, arguments->out, arguments->force, error);
    if (rc)
        return rc;
    struct mk_tables *tables = malloc(sizeof(*tables));
    if (tables) {
        mk_tables_init(tables);
        struct mk_progress progress;
        mk_progress_begin(&progress, mk_files_bytes(&made->files), arguments->quiet);
        struct mk_writer writer = {tables, arguments->threads, &stopped, mk_progress_add, &progress};
        rc = mk_files_write(&made->files, outdir.directory, &writer, error);
        mk_progress_end(&progress, rc ? NULL : arguments->out);
    } else {
        rc = -ENOMEM;
    }
    free(tables);
    if (!rc)
        return mk_outdir_commit(&outdir, &made->files, error);
    mk_outdir_abandon(&outdir, &made->files);
    return rc;
}

int main(int argc, char **argv)
{
    struct argp argp = {.options = options,
                        .parser = parse,
                        .args_doc = "OUT_DIR",
                        .doc = "Write a mixture-of-experts checkpoint of random weights with the names, shapes and "
                               "files of a real one.\v",
                        .help_filter = add_presets};
    struct arguments arguments = {.threads = (unsigned)get_nprocs()};
    struct mk_error error = {""};
    argp_err_exit_status = EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &arguments))
        return EXIT_USAGE;
    if (arguments.preset && !mk_model_preset(&arguments.model, arguments.preset)) {
        fprintf(stderr, "mkmodel: --preset: '%s' is not known; see --help\n", arguments.preset);
        return EXIT_USAGE;
    }
    int rc = mk_model_derive(&arguments.model, &error);
    if (rc == -EINVAL) {
        fprintf(stderr, "mkmodel: %s\n", error.text);
        return EXIT_USAGE;
    }
    catch_signals();
    struct made made = {0};
    if (!rc)
        rc = make(&arguments.model, &made);
    if (!rc)
        rc = write_out(&arguments, &made, &error);
    made_free(&made);
    if (rc == -ECANCELED && stopped) {
        signal(stopped, SIG_DFL);
        raise(stopped);
    }
    if (rc)
        fprintf(stderr, "mkmodel: %s\n", error.text[0] ? error.text : strerror(-rc));
    return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
