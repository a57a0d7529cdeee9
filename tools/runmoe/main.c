/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - runmoe STORE|MNT: run a whole mixture-of-experts model from a store, or from a mount of one, to show how a
 * runtime uses libexpertfs.
 *
 * Everything but the experts is in this program's memory, as it is; the experts stay in the library, within its budget,
 * or in the mount's memory, mostly compressed, and are run layer by layer when the router has named them (experts.c).
 */
#include <argp.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "expertfs-gpu.h"
#include "forward.h"
#include "clock.h"
#include "mounted.h"
#include "model.h"
#include "options.h"
#include "sample.h"
#include "size.h"
#include "surroundings.h"

enum {
    EXIT_USAGE = 2,
    OPT_SEED = 256,
    OPT_LOGITS,
    OPT_BATCH,
    OPT_ACTIVATIONS,
    OPT_FORM,
    OPT_TRACE,
    OPT_GPU,
    OPT_SHARE,
    OPT_IGNORE
};

#define PROMPTS_MAX 1024u

struct prompt {
    uint32_t *token, tokens;
};

struct arguments {
    const char *store, *logits_path, *trace_path;
    struct prompt prompt[PROMPTS_MAX];
    uint32_t prompts;
    uint32_t tokens, batch;
    unsigned threads;
    bool bf16_activations;
    enum efs_form form;
    uint64_t gpu_bytes; /* 0: without */
    bool share;
    struct ignored ignored;
    struct sampler sampler;
    struct efs_options options;
};

static const struct argp_option options[] = {
    {"prompt", 'p', "IDS", 0,
     "The prompt as numbers of tokens, 15,27,3; @FILE: numbers in a file (default: 0). Several are run one after the "
     "other, each a sequence of its own",
     0},
    {"tokens", 'n', "N", 0, "Generate N tokens after each prompt (default 32; 0: only run the prompt)", 0},
    {"temp", 'T', "T", 0, "Draw with that temperature (default 0: the most likely token)", 0},
    {"seed", OPT_SEED, "N", 0, "For drawing", 0},
    {"batch", OPT_BATCH, "N", 0, "Tokens of the prompt at a time, 1 to 512 (default 32)", 0},
    {"budget", 'b', "SIZE", 0,
     "Of a store: memory for all of it, dense weights included (default: what the machine leaves)", 0},
    {"threads", 't', "N", 0, "Compute with N threads, and let the library decode with N (default: all cores)", 0},
    {"activations", OPT_ACTIVATIONS, "f32|bf16", 0, "What meets BF16 weights: F32 (default), or rounded to BF16", 0},
    {"form", OPT_FORM, "plain|coded|any", 0,
     "Compute on experts decoded, as they are coded, or on each as it is cheaper at the time (default)", 0},
    {"gpu", OPT_GPU, "SIZE", 0,
     "Run the experts on the first graphics processor, with so much of its memory: expertfs-gpu(7). In place of --form",
     0},
    {"share", OPT_SHARE, NULL, 0,
     "With --gpu: run each expert there or on the processor, whichever has the layer done sooner", 0},
    {"ignore", OPT_IGNORE, "KEY", 0,
     "Run as if a key of config.json, or a tensor, were not there; a pattern, such as 'model.layers.*.inv_freq'. "
     "Unknown "
     "ones are refused otherwise. Up to 64 times",
     0},
    {"logits", OPT_LOGITS, "FILE", 0, "Write the logits of all positions there, as F32", 0},
    {"trace", OPT_TRACE, "FILE", 0,
     "Write a routing trace there, expertfs-route(5): experts, probabilities, hidden states, embeddings, routers", 0},
    {0},
};

/* Numbers between commas or blanks. */
static bool parse_prompt(const char *text, struct prompt *prompt)
{
    size_t room = strlen(text) / 2 + 1;
    prompt->token = calloc(room, sizeof(*prompt->token));
    while (prompt->token && *(text += strspn(text, ", \n"))) {
        char *end;
        unsigned long id = strtoul(text, &end, 10);
        if (*text < '0' || *text > '9' || id > INT32_MAX)
            return false;
        prompt->token[prompt->tokens++] = (uint32_t)id;
        text = end;
    }
    return prompt->tokens > 0;
}

static bool parse_prompt_file(const char *path, struct prompt *prompt)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t room = 0;
    bool good = file && getdelim(&text, &room, '\0', file) > 0 && parse_prompt(text, prompt);
    free(text);
    if (file)
        fclose(file);
    return good;
}

static bool parse_form(const char *text, enum efs_form *form)
{
    static const char *const names[] = {[EFS_FORM_FULL] = "plain", [EFS_FORM_CODED] = "coded", [EFS_FORM_ANY] = "any"};
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(text, names[i]) == 0) {
            *form = (enum efs_form)i;
            return true;
        }
    return false;
}

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    struct prompt *prompt = &a->prompt[a->prompts];
    double temperature = 0;
    switch (key) {
    case 'p':
        if (a->prompts == PROMPTS_MAX)
            argp_error(state, "--prompt: more than %u", PROMPTS_MAX);
        if (value[0] == '@' ? !parse_prompt_file(value + 1, prompt) : !parse_prompt(value, prompt))
            argp_error(state, "--prompt %s: numbers of tokens are needed", value);
        a->prompts++;
        return 0;
    case 'n':
        a->tokens = (uint32_t)tools_option_number(state, "tokens", value, 0, 1000000);
        return 0;
    case 'T':
        if (!tools_decimal_parse(value, 0, 1e6, &temperature))
            argp_error(state, "--temp %s: a number from 0 to 1000000", value);
        a->sampler.temperature = (float)temperature;
        return 0;
    case OPT_SEED:
        a->sampler.state = tools_option_number(state, "seed", value, 0, UINT64_MAX);
        return 0;
    case OPT_BATCH:
        a->batch = (uint32_t)tools_option_number(state, "batch", value, 1, 512);
        return 0;
    case 'b':
        if (efs_parse_size(value, &a->options.budget_bytes) < 0 || !a->options.budget_bytes)
            argp_error(state, "--budget %s: a size, such as 2G", value);
        return 0;
    case 't':
        a->threads = (unsigned)tools_option_number(state, "threads", value, 1, 1024);
        return 0;
    case OPT_ACTIVATIONS:
        a->bf16_activations = strcmp(value, "bf16") == 0;
        if (!a->bf16_activations && strcmp(value, "f32") != 0)
            argp_error(state, "--activations %s: f32 or bf16", value);
        return 0;
    case OPT_FORM:
        if (!parse_form(value, &a->form))
            argp_error(state, "--form %s: plain, coded or any", value);
        return 0;
    case OPT_GPU:
        if (efs_parse_size(value, &a->gpu_bytes) < 0 || !a->gpu_bytes)
            argp_error(state, "--gpu %s: a size, such as 8G", value);
        return 0;
    case OPT_SHARE:
        a->share = true;
        return 0;
    case OPT_IGNORE:
        if (a->ignored.count == IGNORED_MAX)
            argp_error(state, "--ignore: more than %u", IGNORED_MAX);
        a->ignored.pattern[a->ignored.count++] = value;
        return 0;
    case OPT_LOGITS:
        a->logits_path = value;
        return 0;
    case OPT_TRACE:
        a->trace_path = value;
        return 0;
    case ARGP_KEY_SUCCESS:
        if (a->share && !a->gpu_bytes)
            argp_error(state, "--share is with a graphics processor: --gpu SIZE");
        return 0;
    default:
        return tools_option_argument(state, key, value, "STORE or MNT", &a->store);
    }
}

static void print_log(void *arg, enum efs_log_level level, const char *line)
{
    (void)arg;
    if (level < EFS_LOG_INFO)
        fprintf(stderr, "runmoe: %s\n", line);
}

struct run {
    const struct arguments *a;
    struct model model;
    struct forward *forward;
    struct trace *trace;
    uint32_t sequence;       /* the prompt at hand */
    uint64_t prompt_tokens;  /* of all prompts */
    struct efs_stats before; /* of a mount: what it had counted */
    FILE *logits_file;
    float *logits;                                      /* [batch][vocab] */
    double opened, first_step, prompt_seconds, seconds; /* to open; of the first batch, of all prompts, of the
                                                           tokens after the first ones */
};

/* Tokens through the model; logits then begin with those of the last one. */
static errint_t run_step(struct run *r, const uint32_t *tokens, uint32_t count, enum trace_kind kind,
                         struct efs_error *err)
{
    size_t vocab = r->model.config.vocab;
    errint_t rc = forward_run(r->forward, tokens, count, !r->logits_file, r->logits, err);
    if (rc == 0)
        rc = trace_tokens(r->trace, r->sequence, kind, count, err);
    if (rc < 0 || !r->logits_file)
        return rc;
    if (fwrite(r->logits, vocab * sizeof(float), count, r->logits_file) != count)
        return efs_fail(err, -errno, "%s: %s", r->a->logits_path, strerror(errno));
    memmove(r->logits, r->logits + (count - 1) * vocab, vocab * sizeof(float));
    return 0;
}

/* A prompt, then token by token; they are printed as they come. */
static errint_t run_prompt(struct run *r, const struct prompt *prompt, struct sampler *sampler, struct efs_error *err)
{
    const struct arguments *a = r->a;
    double began = tools_now_s();
    errint_t rc = 0;
    forward_begin(r->forward);
    for (uint32_t at = 0; at < prompt->tokens && rc == 0; at += a->batch) {
        uint32_t left = prompt->tokens - at;
        rc = run_step(r, prompt->token + at, left < a->batch ? left : a->batch, TRACE_PROMPT, err);
        r->first_step = at || r->sequence ? r->first_step : tools_now_s() - began;
    }
    r->prompt_seconds += tools_now_s() - began;
    began = tools_now_s();
    for (uint32_t i = 0; i < a->tokens && rc == 0; i++) {
        uint32_t token = sample(sampler, r->logits, r->model.config.vocab);
        printf("%s%u%s", i ? " " : "tokens: ", token, i + 1 < a->tokens ? "" : "\n");
        fflush(stdout);
        if (i + 1 < a->tokens)
            rc = run_step(r, &token, 1, TRACE_DECODE, err);
    }
    r->seconds += tools_now_s() - began;
    return rc;
}

static errint_t run_generate(struct run *r, struct efs_error *err)
{
    struct sampler sampler = r->a->sampler;
    errint_t rc = 0;
    for (r->sequence = 0; r->sequence < r->a->prompts && rc == 0; r->sequence++)
        rc = run_prompt(r, &r->a->prompt[r->sequence], &sampler, err);
    return rc;
}

/* What was counted so far: by the library, or by the mount, for all who use it. */
static void run_count(const struct run *r, struct efs_stats *s)
{
    *s = (struct efs_stats){0};
    if (r->model.fs) {
        efs_stats(r->model.fs, s, sizeof(*s));
        return;
    }
    const struct {
        const char *name;
        uint64_t *number;
    } wanted[] = {{"budget_bytes", &s->budget_bytes}, {"requests_f", &s->requests_f}, {"requests_c", &s->requests_c},
                  {"requests_s", &s->requests_s},     {"requests_e", &s->requests_e}, {"requests_p", &s->requests_p},
                  {"requests_m", &s->requests_m},     {"disk_bytes", &s->disk_bytes}};
    char text[16384], path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/.expertfs/stat", r->model.mountpoint);
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    text[got] = '\0';
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        const char *value = tools_line_value(text, wanted[i].name);
        *wanted[i].number = value ? strtoull(value, NULL, 10) : 0;
    }
    if (file)
        fclose(file);
}

static void print_report(const struct run *r)
{
    struct efs_stats s;
    const struct efs_stats *b = &r->before;
    uint32_t prompts = r->a->prompts;
    uint64_t after_first = r->a->tokens > 1 ? (uint64_t)prompts * (r->a->tokens - 1) : 0;
    run_count(r, &s);
    printf("prompt_tokens: %llu\ngenerated_tokens: %llu\n", (unsigned long long)r->prompt_tokens,
           (unsigned long long)prompts * r->a->tokens);
    printf("open_s: %.4f\nfirst_step_s: %.4f\ntime_to_first_token_s: %.4f\n", r->opened, r->first_step,
           r->prompt_seconds / prompts);
    printf("prompt_tokens_per_second: %.2f\n", (double)r->prompt_tokens / r->prompt_seconds);
    if (after_first)
        printf("tokens_per_second: %.2f\n", (double)after_first / r->seconds);
    printf("budget_bytes: %llu\nown_bytes: %llu\n", (unsigned long long)s.budget_bytes,
           (unsigned long long)r->a->options.reserved_bytes);
    printf("experts_f: %llu\nexperts_c: %llu\nexperts_part: %llu\nexperts_m: %llu\n",
           (unsigned long long)(s.requests_f - b->requests_f), (unsigned long long)(s.requests_c - b->requests_c),
           (unsigned long long)(s.requests_s + s.requests_e + s.requests_p - b->requests_s - b->requests_e -
                                b->requests_p),
           (unsigned long long)(s.requests_m - b->requests_m));
    printf("disk_bytes: %llu\n", (unsigned long long)(s.disk_bytes - b->disk_bytes));
    struct efs_gpu_stats gpu;
    if (efs_client_gpu_stats(r->model.client, &gpu, sizeof(gpu)) == 0)
        printf("gpu_budget_bytes: %llu\ngpu_hits: %llu\ngpu_brought: %llu\ngpu_link_bytes: %llu\ngpu_experts: %llu\n"
               "cpu_experts: %llu\n",
               (unsigned long long)gpu.g_budget_bytes, (unsigned long long)gpu.g_hits,
               (unsigned long long)gpu.g_brought, (unsigned long long)gpu.g_link_bytes, (unsigned long long)gpu.g_ran,
               (unsigned long long)gpu.g_shared);
}

static errint_t run_start(struct run *r, struct arguments *a, struct efs_error *err)
{
    double began = tools_now_s();
    uint32_t longest = 0;
    errint_t rc = model_open(a->store, &a->options, &a->ignored, &r->model, err);
    if (rc < 0)
        return rc;
    const struct config *c = &r->model.config;
    r->model.bf16_activations = a->bf16_activations;
    r->model.form = !a->gpu_bytes ? a->form : a->share ? EFS_FORM_SHARED : EFS_FORM_DEVICE;
    const struct efs_gpu_options gpu = {.size = sizeof(struct efs_gpu_options), .budget_bytes = a->gpu_bytes};
    if (a->gpu_bytes && (rc = efs_client_gpu(r->model.client, &gpu, err)) < 0)
        return rc;
    for (uint32_t p = 0; p < a->prompts; p++) {
        const struct prompt *prompt = &a->prompt[p];
        for (uint32_t i = 0; i < prompt->tokens; i++)
            if (prompt->token[i] >= c->vocab)
                return efs_fail(err, -EINVAL, "token %u of the prompt: the vocabulary has %u", prompt->token[i],
                                c->vocab);
        longest = prompt->tokens > longest ? prompt->tokens : longest;
        r->prompt_tokens += prompt->tokens;
    }
    uint32_t positions = longest + a->tokens;
    size_t logits_bytes = (size_t)a->batch * c->vocab * sizeof(float);
    uint64_t more = forward_bytes(&r->model, positions, a->batch) + logits_bytes;
    uint64_t run_tokens = r->prompt_tokens + (uint64_t)a->prompts * (a->tokens ? a->tokens - 1 : 0);
    more += a->trace_path ? trace_bytes(c, a->batch) : 0;
    if (!r->model.fs && a->options.budget_bytes)
        return efs_fail(err, -EINVAL, "--budget is for a store: %s is a mount, which has its own", a->store);
    if (r->model.fs)
        rc = efs_reserve(r->model.fs, more, err); /* so that all stays within the budget */
    else
        run_count(r, &r->before);
    if (rc < 0)
        return rc;
    a->options.reserved_bytes += more;
    r->logits = malloc(logits_bytes);
    rc = r->logits ? forward_start(&r->model, a->threads, positions, a->batch, &r->forward) : -ENOMEM;
    if (rc < 0)
        return rc;
    if (a->logits_path && !(r->logits_file = fopen(a->logits_path, "wb")))
        return efs_fail(err, -errno, "%s: %s", a->logits_path, strerror(errno));
    if (a->trace_path) {
        rc = trace_start(a->trace_path, &r->model, run_tokens, a->batch, &r->trace, err);
        forward_trace(r->forward, r->trace);
    }
    r->opened = tools_now_s() - began;
    return rc;
}

static int run(struct arguments *a)
{
    struct run r = {.a = a};
    struct efs_error err = {""};
    errint_t rc = run_start(&r, a, &err);
    if (rc == 0)
        rc = run_generate(&r, &err);
    rc = trace_end(r.trace, rc, &err);
    if (rc == 0)
        print_report(&r);
    if (r.logits_file && fclose(r.logits_file) != 0 && rc == 0)
        rc = efs_fail(&err, -errno, "%s: %s", a->logits_path, strerror(errno));
    if (rc < 0)
        fprintf(stderr, "runmoe: %s\n", err.text[0] ? err.text : strerror(-rc));
    forward_stop(r.forward);
    free(r.logits);
    model_close(&r.model);
    return rc < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

static void print_version(FILE *stream, struct argp_state *state)
{
    (void)state;
    fprintf(stream, "runmoe (expertfs) %s\n", efs_version());
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse_option,
        .args_doc = "STORE|MNT",
        .doc =
            "Run the Qwen3-MoE model in STORE (made by mkexpertfs from safetensors), or in MNT, a mount of one, its "
            "experts through libexpertfs.\v"
            "Prints the tokens, then what it took: name, colon, value. Exit status: 0 done, 1 failed, 2 wrong usage."};
    static uint32_t first_token = 0;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct arguments a = {.tokens = 32, .batch = 32, .form = EFS_FORM_ANY, .threads = cores > 0 ? (unsigned)cores : 1};
    a.options = (struct efs_options){.size = sizeof(struct efs_options), .lease_wait = true, .log = print_log};
    tools_surroundings();
    argp_err_exit_status = EXIT_USAGE;
    argp_program_version_hook = print_version;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    a.options.workers = a.threads;
    a.options.full_pool = a.form != EFS_FORM_CODED;
    uint32_t given = a.prompts;
    if (!given)
        a.prompt[a.prompts++] = (struct prompt){&first_token, 1};
    int status = run(&a);
    for (uint32_t p = 0; p < given; p++)
        free(a.prompt[p].token);
    return status;
}
