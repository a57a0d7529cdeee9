/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - runmoe STORE|MNT: run a whole mixture-of-experts model from a store, or from a mount of one, to show how a
 * runtime uses libexpertfs.
 *
 * All weights except the experts are in this program's memory, uncompressed. The experts are in the library's memory,
 * within its budget, or in the mount's, mostly coded, and run layer by layer after the router has chosen (forward.c).
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "expertfs-clock-private.h"
#include "expertfs-gpu.h"
#include "expertfs-peer.h"
#include "expertfs-private.h"
#include "process.h"
#include "forward.h"
#include "measure.h"
#include "model.h"
#include "options.h"
#include "expertfs-stats.h"

#define PROMPTS_MAX 1024u
#define IGNORED_MAX 64u

struct prompt {
    uint32_t *token, tokens;
};

struct arguments {
    struct tools_arguments given;
    const char *store, *logits_path, *trace_path, *peers, *peer_key;
    struct prompt prompt[PROMPTS_MAX];
    uint32_t prompts;
    uint32_t tokens, batch;
    unsigned threads;
    unsigned activations; /* 0: F32, 1: rounded to BF16 */
    double temperature;
    enum efs_form form;
    uint64_t gpu_bytes; /* 0: without */
    bool share;
    uint64_t seed;
    const char *ignored[IGNORED_MAX + 1]; /* ends with NULL */
    uint32_t ignores;
    struct efs_client_options options;
};

/* Parses numbers separated by commas or white space. */
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

static bool parse_prompt_file(const struct argp_state *state, const char *path, struct prompt *prompt)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t room = 0;
    if (!file)
        argp_error(state, "%s: cannot open: %s", path, strerror(errno));
    bool good = file && getdelim(&text, &room, '\0', file) > 0 && parse_prompt(text, prompt);
    free(text);
    if (file)
        fclose(file);
    return good;
}

static void take_prompt(const struct argp_state *state, const struct tools_option *option, char *value, void *into)
{
    struct arguments *a = into;
    struct prompt *prompt = &a->prompt[a->prompts];
    if (a->prompts == PROMPTS_MAX)
        argp_error(state, "--%s: more than %u", option->name, PROMPTS_MAX);
    if (value[0] == '@' ? !parse_prompt_file(state, value + 1, prompt) : !parse_prompt(value, prompt))
        argp_error(state, "--%s %s: numbers of tokens are needed, such as 15,27,3", option->name, value);
    a->prompts++;
}

static void take_ignored(const struct argp_state *state, const struct tools_option *option, char *value, void *into)
{
    struct arguments *a = into;
    if (a->ignores == IGNORED_MAX)
        argp_error(state, "--%s: more than %u", option->name, IGNORED_MAX);
    a->ignored[a->ignores++] = value;
}

static void finish(const struct argp_state *state, void *into)
{
    struct arguments *a = into;
    a->store = *a->given.word;
    if (a->share && !a->gpu_bytes)
        argp_error(state, "--share is with a graphics processor: --gpu SIZE");
    if (!a->peers != !a->peer_key || (a->peers && a->gpu_bytes))
        argp_error(state, "--peers and --peer-key go together, and not with --gpu");
}

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"prompt", 'p', "IDS",
     "The prompt as numbers of tokens, 15,27,3, no text: there is no tokenizer; @FILE: numbers in a file (default: 0). "
     "Several are run one after the other, each a sequence of its own",
     TOOLS_CALL, .parse = take_prompt},
    {"tokens", 'n', "N", "Generate N tokens after each prompt (default 32; 0: only run the prompt)", TOOLS_UNSIGNED,
     AT(tokens), .most = 1000000},
    {"temp", 'T', "T", "Draw with that temperature (default 0: the most likely token)", TOOLS_DECIMAL, AT(temperature),
     .most = 1000000},
    {"seed", 0, "N", "For drawing", TOOLS_NUMBER, .at = AT(seed)},
    {"batch", 0, "N", "Tokens of the prompt at a time, 1 to 512 (default 32)", TOOLS_UNSIGNED, AT(batch), .least = 1,
     .most = 512},
    {"budget", 'b', "SIZE",
     "Of a store: memory for all of it, dense weights included (default: half of the available memory)", TOOLS_SIZE,
     AT(options.budget_bytes), .least = 1},
    {"threads", 't', "N", "Compute with N threads, and let the library decode with N (default: all cores)",
     TOOLS_UNSIGNED, AT(threads), .least = 1, .most = 1024},
    {"activations", 0, "f32|bf16", "What meets BF16 weights: F32 (default), or rounded to BF16", TOOLS_WORD,
     AT(activations), .words = "f32|bf16"},
    {"form", 0, "plain|coded|any",
     "Compute on experts decoded, as they are coded, or on each as it is cheaper at the time (default)", TOOLS_WORD,
     AT(form), .words = "plain|coded|any"}, /* enum efs_form */
    {"gpu", 0, "SIZE",
     "Run the experts on the first graphics processor, with so much of its memory: expertfs-gpu(7). In place of --form",
     TOOLS_SIZE, AT(gpu_bytes), .least = 1},
    {"share", 0, NULL, "With --gpu: run each expert there or on the processor, whichever has the layer done sooner",
     TOOLS_FLAG, .at = AT(share)},
    {"peers", 0, "HOST:PORT,...",
     "Let these servers, each with expertpeer and the same store, compute experts that are not in memory here, where "
     "that is sooner than reading",
     TOOLS_TEXT, .at = AT(peers)},
    {"peer-key", 0, "FILE", "The key of these servers", TOOLS_TEXT, .at = AT(peer_key)},
    {"ignore", 0, "NAME",
     "Run without a key of config.json, such as rope_scaling.beta_fast, or a tensor, which is not known here; a "
     "pattern, may be given several times",
     TOOLS_CALL, .parse = take_ignored},
    {"logits", 0, "FILE", "Write the logits of all positions there, as F32", TOOLS_TEXT, .at = AT(logits_path)},
    {"trace", 0, "FILE",
     "Write a routing trace there, expertfs-route(5): experts, probabilities, hidden states, embeddings, routers",
     TOOLS_TEXT, .at = AT(trace_path)},
    {0},
};
static const struct tools_command command = {
    .options = options,
    .arguments = "STORE|MNT",
    .help = "Run the Qwen3-MoE model in STORE (made by mkexpertfs from safetensors), or in MNT, a mount of one, its "
            "experts through libexpertfs.\v"
            "Prints the tokens, then what it took: name, colon, value. Exit status: 0 done, 1 failed, 2 wrong usage.",
    .at = AT(given),
    .finish = finish};

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
    uint64_t seed;
    uint32_t sequence;      /* index of the current prompt */
    uint64_t prompt_tokens; /* sum over all prompts */
    FILE *logits_file;
    float *logits;                                      /* [batch][vocab] */
    double opened, first_step, prompt_seconds, seconds; /* times: open, first batch, all prompts, all generated
                                                           tokens after the first ones */
};

/* Runs tokens through the model and writes trace and logits files. logits[0 .. vocab) are then those of the last token.
 */
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

/* Temperature 0: the most likely token. Otherwise draws a token; overwrites the logits. */
static uint32_t sample(float temperature, uint64_t *seed, float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    double sum = 0;
    for (uint32_t i = 1; i < vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    if (temperature <= 0)
        return best;
    float largest = logits[best];
    for (uint32_t i = 0; i < vocab; i++)
        sum += logits[i] = expf((logits[i] - largest) / temperature);
    double left = tools_uniform(seed) * sum;
    for (uint32_t i = 0; i < vocab; i++) {
        left -= (double)logits[i];
        if (left < 0)
            return i;
    }
    return best; /* rounding errors of the sum */
}

/* Runs a prompt in batches, then generates and prints one token at a time. */
static errint_t run_prompt(struct run *r, const struct prompt *prompt, struct efs_error *err)
{
    const struct arguments *a = r->a;
    double began = efs_now_seconds();
    errint_t rc = 0;
    forward_begin(r->forward);
    for (uint32_t at = 0; at < prompt->tokens && rc == 0; at += a->batch) {
        uint32_t left = prompt->tokens - at;
        rc = run_step(r, prompt->token + at, left < a->batch ? left : a->batch, TRACE_PROMPT, err);
        r->first_step = at || r->sequence ? r->first_step : efs_now_seconds() - began;
    }
    r->prompt_seconds += efs_now_seconds() - began;
    began = efs_now_seconds();
    for (uint32_t i = 0; i < a->tokens && rc == 0; i++) {
        uint32_t token = sample((float)a->temperature, &r->seed, r->logits, r->model.config.vocab);
        printf("%s%u%s", i ? " " : "tokens: ", token, i + 1 < a->tokens ? "" : "\n");
        fflush(stdout);
        if (i + 1 < a->tokens)
            rc = run_step(r, &token, 1, TRACE_DECODE, err);
    }
    r->seconds += efs_now_seconds() - began;
    return rc;
}

#define U(x) ((unsigned long long)(x))

/* Prints times and, for a store, counters. The counters of a mount include all its clients: see .expertfs/stat. */
static void print_report(const struct run *r)
{
    struct efs_stats s;
    struct efs_gpu_stats gpu;
    uint32_t prompts = r->a->prompts;
    uint64_t after_first = r->a->tokens > 1 ? (uint64_t)prompts * (r->a->tokens - 1) : 0;
    printf("prompt_tokens: %llu\ngenerated_tokens: %llu\n", U(r->prompt_tokens), U(prompts) * r->a->tokens);
    printf("open_s: %.4f\nfirst_step_s: %.4f\ntime_to_first_token_s: %.4f\n", r->opened, r->first_step,
           r->prompt_seconds / prompts);
    printf("prompt_tokens_per_second: %.2f\n", (double)r->prompt_tokens / r->prompt_seconds);
    if (after_first)
        printf("tokens_per_second: %.2f\n", (double)after_first / r->seconds);
    if (r->model.fs) {
        efs_stats(r->model.fs, &s);
        printf("budget_bytes: %llu\nown_bytes: %llu\n", U(s.budget_bytes), U(r->a->options.reserved_bytes));
        printf("experts_f: %llu\nexperts_c: %llu\nexperts_part: %llu\nexperts_m: %llu\n", U(s.requests_f),
               U(s.requests_c), U(s.requests_s + s.requests_e + s.requests_p), U(s.requests_m));
        printf("disk_bytes: %llu\n", U(s.disk_bytes));
    }
    struct efs_peer_stats peers;
    efs_client_peer_stats(r->model.client, &peers);
    if (peers.peers)
        printf("peer_vectors: %llu\nown_vectors: %llu\npeer_failures: %llu\npeers_connected: %u\n", U(peers.remote),
               U(peers.local), U(peers.failed), peers.ready);
    if (peers.peers && !peers.ready && !peers.remote)
        fprintf(stderr,
                "runmoe: warning: %s: no peer answered; all was computed here\nhint: expertpeer serves the same store "
                "there, with the same key\n",
                r->a->peers);
    if (efs_client_gpu_stats(r->model.client, &gpu) == 0)
        printf("gpu_budget_bytes: %llu\ngpu_hits: %llu\ngpu_brought: %llu\ngpu_link_bytes: %llu\ngpu_experts: %llu\n"
               "cpu_experts: %llu\n",
               U(gpu.g_budget_bytes), U(gpu.g_hits), U(gpu.g_brought), U(gpu.g_link_bytes), U(gpu.g_ran),
               U(gpu.g_shared));
}

static errint_t run_start(struct run *r, struct arguments *a, struct efs_error *err)
{
    double began = efs_now_seconds();
    uint32_t longest = 0;
    errint_t rc = model_open(a->store, &a->options, a->ignored, &r->model, err);
    if (rc < 0)
        return rc;
    const struct config *c = &r->model.config;
    r->model.bf16_activations = a->activations;
    r->model.form = !a->gpu_bytes ? a->form : a->share ? EFS_FORM_SHARED : EFS_FORM_DEVICE;
    const struct efs_gpu_options gpu = {.budget_bytes = a->gpu_bytes};
    if (a->gpu_bytes && (rc = efs_client_gpu(r->model.client, &gpu, err)) < 0)
        return rc;
    if (a->peers && (rc = efs_client_peers(r->model.client, a->peers, a->peer_key, err)) < 0)
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
        rc = efs_reserve(r->model.fs, more, err); /* counts this memory against the budget */
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
    r->opened = efs_now_seconds() - began;
    return rc;
}

static int run(struct arguments *a)
{
    struct run r = {.a = a, .seed = a->seed};
    struct efs_error err = {""};
    errint_t rc = run_start(&r, a, &err);
    for (; rc == 0 && r.sequence < a->prompts; r.sequence++)
        rc = run_prompt(&r, &a->prompt[r.sequence], &err);
    rc = trace_end(r.trace, rc, &err);
    if (rc == 0)
        print_report(&r);
    if (r.logits_file && fclose(r.logits_file) != 0 && rc == 0)
        rc = efs_fail(&err, -errno, "%s: %s", a->logits_path, strerror(errno));
    int status = rc < 0 ? tools_fail("runmoe", rc, &err) : EXIT_SUCCESS;
    forward_stop(r.forward);
    free(r.logits);
    model_close(&r.model);
    return status;
}

int main(int argc, char **argv)
{
    /* By default idle OpenMP threads spin for about 300,000 iterations while the library's threads compute, which costs
     * a third of the tokens per second (2 processors). libgomp reads the variable before main(), so execute again. */
    if (!getenv("GOMP_SPINCOUNT") && setenv("GOMP_SPINCOUNT", "2000", 1) == 0)
        execv("/proc/self/exe", argv);
    static uint32_t first_token = 0;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    static struct arguments a; /* 17 KB */
    a = (struct arguments){.tokens = 32, .batch = 32, .form = EFS_FORM_ANY, .threads = cores > 0 ? (unsigned)cores : 1};
    a.options = (struct efs_client_options){.log = print_log};
    tools_init();
    tools_parse(&command, argc, argv, &a);
    a.options.workers = a.threads;
    a.options.coded_only = a.form == EFS_FORM_CODED;
    uint32_t given = a.prompts;
    if (!given)
        a.prompt[a.prompts++] = (struct prompt){&first_token, 1};
    int status = run(&a);
    for (uint32_t p = 0; p < given; p++)
        free(a.prompt[p].token);
    return status;
}
