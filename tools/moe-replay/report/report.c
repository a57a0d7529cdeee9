/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - runs as tables. */
#include "report.h"

#include "size.h"

#include <stdio.h>
#include <string.h>

#define TIE 0.01 /* runs this near to each other are called even */

static double per_token(const struct replay_result *r, double sum)
{
    return r->tokens ? sum / (double)r->tokens : 0;
}

static double report_share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

double replay_tokens_per_second(const struct replay_result *r)
{
    return report_share((double)r->tokens * 1e9, (double)r->all.time_ns);
}

void replay_run_name(const struct replay_report *report, const struct replay_run_record *run, char *name, size_t room)
{
    char policy[64];
    if (run->policy.keeper != REPLAY_KEEP_NONE)
        snprintf(policy, sizeof(policy), "%s", run->policy.name);
    else
        snprintf(policy, sizeof(policy), "%s:%s%s%s", run->policy.name, replay_pools_name(run->policy.pools),
                 run->predictor ? " +" : "", run->predictor ? run->predictor : "");
    if (run->runner == REPLAY_MMAP || run->runner == REPLAY_READ_LRU)
        snprintf(name, room, "%s", replay_runner_name(run->runner));
    else if (run->runner == REPLAY_EXPERTFS || report->live)
        snprintf(name, room, "%s %s", replay_runner_name(run->runner), policy);
    else
        snprintf(name, room, "%s", policy);
}

/* ---- a row for each run ------------------------------------------------------------------------------------- */

void replay_report_head(const struct replay_report *report)
{
    const struct replay_run_record *run = &report->runs[report->count - 1];
    uint64_t raw = report->setup->bytes[EFS_POOL_F] * report->setup->layers * report->setup->experts;
    char budget[16], whole[16];
    tools_size_print(run->budget_bytes, budget, sizeof(budget));
    tools_size_print(raw, whole, sizeof(whole));
    printf("\nbudget %s: %s of %s raw experts; batch %u\n", report->budgets[run->budget], budget, whole, run->batch);
    printf("%-24s %8s %8s %8s %8s %8s %8s %8s %5s %5s %5s %5s %5s %4s %4s %6s %7s\n", "", "TPOT ms", "p99", "TTFT ms",
           "p99", "tok/s", "I/O ms", "MB/tok", "F%", "C%", "S%", "E%", "M%", "I/O%", "dec%", "sched", "recoded");
}

void replay_report_row(const struct replay_report *report)
{
    const struct replay_run_record *run = &report->runs[report->count - 1];
    const struct replay_result *r = &run->result;
    double time_ns = (double)r->all.time_ns, hits = 0;
    char name[64];
    replay_run_name(report, run, name, sizeof(name));
    for (unsigned p = 0; p <= EFS_POOLS; p++)
        hits += (double)r->all.hits[p];
    printf("%-24s %8.2f %8.2f %8.2f %8.2f %8.1f %8.3f %8.2f", name, (double)r->tpot_ns_median / 1e6,
           (double)r->tpot_ns_p99 / 1e6, (double)r->ttft_ns_median / 1e6, (double)r->ttft_ns_p99 / 1e6,
           replay_tokens_per_second(r), per_token(r, (double)r->all.busy_ns[EFS_ON_IO]) / 1e6,
           per_token(r, (double)r->all.read_bytes) / 1e6);
    for (unsigned p = 0; p <= EFS_POOLS; p++)
        printf(" %5.1f", 100 * report_share((double)r->all.hits[p], hits));
    printf(" %4.0f %4.0f %4.0fus %7.2f\n", 100 * report_share((double)r->all.busy_ns[EFS_ON_IO], time_ns),
           100 * report_share((double)r->all.busy_ns[EFS_ON_WORKER], time_ns * report->setup->workers),
           (double)r->schedule_ns_median / 1e3, per_token(r, r->recoded_bytes) / 1e6);
    if (run->note[0])
        printf("%24s %s\n", "note:", run->note);
}

/* The run of the same without guesses; NULL: there is none. */
static const struct replay_run_record *find_plain(const struct replay_report *report,
                                                  const struct replay_run_record *run)
{
    for (size_t i = 0; i < report->count; i++) {
        const struct replay_run_record *other = &report->runs[i];
        if (!other->predictor && other->runner == run->runner && other->batch == run->batch &&
            other->budget == run->budget && other->policy.pools == run->policy.pools &&
            strcmp(other->policy.name, run->policy.name) == 0)
            return other;
    }
    return NULL;
}

void replay_report_ahead(const struct replay_report *report)
{
    const struct replay_run_record *run = &report->runs[report->count - 1], *plain = find_plain(report, run);
    const struct replay_result *r = &run->result;
    const struct replay_ahead_result *a = &r->ahead;
    if (!run->predictor || !plain || !plain->result.tokens)
        return;
    double time_ns = (double)plain->result.all.time_ns / (double)plain->result.tokens * (double)r->tokens;
    if (run->runner == REPLAY_EXPERTFS) {
        const struct replay_guesses *g = &r->guesses;
        printf("%24s %.3f times as fast; %.2f of what is missing, %.2f of the bytes read right; %.2f of the bytes; "
               "used %llu, late %llu, in vain %llu\n",
               "guesses:", report_share(time_ns, (double)r->all.time_ns),
               report_share((double)g->covered, (double)g->missed),
               report_share((double)(g->bytes - g->wasted_bytes), (double)g->bytes),
               report_share(per_token(r, (double)r->all.read_bytes),
                            per_token(&plain->result, (double)plain->result.all.read_bytes)),
               (unsigned long long)g->covered, (unsigned long long)g->late,
               (unsigned long long)(g->wasted + g->cancelled));
        return;
    }
    printf(
        "%24s %.3f times as fast, limit %.3f; %.2f of what is missing, %.2f of what is read right; %.2f of the bytes; "
        "used %llu, late %llu, in vain %llu; on %.2f\n",
        "guesses:", report_share(time_ns, (double)r->all.time_ns),
        report_share((double)plain->result.all.time_ns, plain->result.limit_ns),
        report_share((double)a->right_bytes, (double)a->missing_bytes),
        report_share((double)a->right_bytes, (double)a->bytes),
        report_share(per_token(r, (double)(r->all.read_bytes + a->bytes)),
                     per_token(&plain->result, (double)plain->result.all.read_bytes)),
        (unsigned long long)a->counts.used, (unsigned long long)a->counts.late,
        (unsigned long long)(a->counts.wasted + a->counts.cancelled), report_share((double)a->on, (double)a->requests));
}

/* ---- the summary -------------------------------------------------------------------------------------------- */

/* What a summary tells of a run: less is better. */
struct measure {
    const char *name;
    double (*of)(const struct replay_result *r);
};

static double io_ms(const struct replay_result *r)
{
    return per_token(r, (double)r->all.busy_ns[EFS_ON_IO]) / 1e6;
}

static double tpot_ms(const struct replay_result *r)
{
    return (double)r->tpot_ns_median / 1e6;
}

static double read_mb(const struct replay_result *r)
{
    return per_token(r, (double)r->all.read_bytes) / 1e6;
}

static const struct measure measures[] = {
    {"TPOT ms, median", tpot_ms}, {"MB read per token", read_mb}, {"I/O ms per token", io_ms}, {NULL, NULL}};

static const struct replay_run_record *find_run(const struct replay_report *report, const char *name, uint32_t batch,
                                                uint32_t budget)
{
    char other[64];
    for (size_t i = 0; i < report->count; i++) {
        const struct replay_run_record *run = &report->runs[i];
        replay_run_name(report, run, other, sizeof(other));
        if (run->batch == batch && run->budget == budget && run->result.tokens > 0 && strcmp(name, other) == 0)
            return run;
    }
    return NULL;
}

/* Runs are compared with those of their kind, and not with one that knows the future. */
static bool compares(const struct replay_run_record *run, bool simulated)
{
    return run->result.tokens > 0 && run->policy.keeper != REPLAY_KEEP_ORACLE &&
           (run->runner == REPLAY_SIMULATE) == simulated;
}

/* The least of a budget; negative: no run. */
static double report_least(const struct replay_report *report, const struct measure *measure, bool simulated,
                           uint32_t batch, uint32_t budget)
{
    double so_far = -1;
    for (size_t i = 0; i < report->count; i++) {
        const struct replay_run_record *run = &report->runs[i];
        double value = measure->of(&run->result);
        if (run->batch == batch && run->budget == budget && compares(run, simulated) && (so_far < 0 || value < so_far))
            so_far = value;
    }
    return so_far;
}

/* Is it the first run of its name with this batch size? */
static bool is_first(const struct replay_report *report, size_t i, const char *name)
{
    char other[64];
    for (size_t j = 0; j < i; j++) {
        replay_run_name(report, &report->runs[j], other, sizeof(other));
        if (report->runs[j].batch == report->runs[i].batch && strcmp(other, name) == 0)
            return false;
    }
    return true;
}

static void print_summary_of(const struct replay_report *report, const struct measure *measure, uint32_t batch)
{
    printf("\n%s, batch %u; * least, = within 1 %% of it%s\n%-24s", measure->name, batch,
           report->live ? ", simulated and real apart" : "", "");
    for (uint32_t b = 0; b < report->budget_count; b++)
        printf(" %10s ", report->budgets[b]);
    printf("\n");
    for (size_t i = 0; i < report->count; i++) {
        char name[64];
        replay_run_name(report, &report->runs[i], name, sizeof(name));
        if (report->runs[i].batch != batch || !is_first(report, i, name))
            continue;
        printf("%-24s", name);
        for (uint32_t b = 0; b < report->budget_count; b++) {
            const struct replay_run_record *run = find_run(report, name, batch, b);
            bool simulated = run && run->runner == REPLAY_SIMULATE;
            double best = report_least(report, measure, simulated, batch, b),
                   value = run ? measure->of(&run->result) : 0;
            char mark = !run || !compares(run, simulated) ? ' '
                        : value <= best                   ? '*'
                        : value <= best * (1 + TIE)       ? '='
                                                          : ' ';
            if (run)
                printf(" %10.3f%c", value, mark);
            else
                printf(" %10s ", "-");
        }
        printf("\n");
    }
}

static void print_legend(void)
{
    printf(
        "\nTPOT: time per token after the first, TTFT: time to the first; p99: of 100 tokens one takes longer.\n"
        "F%% to M%%: where the experts asked for were: full, coded, in one of two components (S, E), missing.\n"
        "I/O%%, dec%%: part of the time that the disk, and each decoding thread, is busy. sched: to order a request.\n"
        "recoded: MB per token that went from full back to coded.\n"
        "Budgets are memory for experts, in percent of all experts in full. A mount's budget= holds them and what it\n"
        "needs itself (`expertctl status': fixed). Without options a mount is zipmoe:makespan.\n");
}

/* What came out, a sentence for each budget: the fastest run, and the slowest beside it. Real runs where there are any,
 * else simulated ones. */
static void print_words_of(const struct replay_report *report, uint32_t batch, uint32_t budget, bool simulated)
{
    const struct replay_run_record *fast = NULL, *slow = NULL;
    char name[64], other[64];
    for (size_t i = 0; i < report->count; i++) {
        const struct replay_run_record *run = &report->runs[i];
        if (run->batch != batch || run->budget != budget || !compares(run, simulated))
            continue;
        double rate = replay_tokens_per_second(&run->result);
        fast = !fast || rate > replay_tokens_per_second(&fast->result) ? run : fast;
        slow = !slow || rate < replay_tokens_per_second(&slow->result) ? run : slow;
    }
    if (!fast || replay_tokens_per_second(&slow->result) <= 0)
        return;
    double rate = replay_tokens_per_second(&fast->result), over = rate / replay_tokens_per_second(&slow->result);
    replay_run_name(report, fast, name, sizeof(name));
    replay_run_name(report, slow, other, sizeof(other));
    printf("With a budget of %s and batch %u, %s", report->budgets[budget], batch, simulated ? "simulated, " : "");
    if (slow != fast && over < 1 + TIE)
        printf("all are within 1 %% of each other: %.1f tokens a second.\n", rate);
    else if (slow != fast)
        printf("%s is fastest: %.1f tokens a second, %.2f times as many as %s.\n", name, rate, over, other);
    else
        printf("%s: %.1f tokens a second.\n", name, rate);
}

static void print_words(const struct replay_report *report)
{
    print_legend();
    printf("\n");
    for (size_t i = 0; i < report->count; i++) {
        const struct replay_run_record *run = &report->runs[i];
        bool seen = false;
        for (size_t j = 0; j < i; j++)
            seen = seen || (report->runs[j].batch == run->batch && report->runs[j].budget == run->budget);
        if (!seen)
            print_words_of(report, run->batch, run->budget, !report->live);
    }
}

void replay_report_summary(const struct replay_report *report)
{
    for (size_t i = 0; i < report->count; i++) {
        bool seen = false;
        for (size_t j = 0; j < i; j++)
            seen = seen || report->runs[j].batch == report->runs[i].batch;
        for (const struct measure *m = measures; !seen && m->name; m++)
            print_summary_of(report, m, report->runs[i].batch);
    }
    print_words(report);
}
