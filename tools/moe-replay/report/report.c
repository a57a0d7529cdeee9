/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - prints runs as tables. */
#include "report.h"

#include "size.h"

#include <stdio.h>
#include <string.h>

#define TIE 0.01 /* relative difference within which a run is marked as equal to the least */

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

unsigned replay_run_numbers(const struct replay_report *report, const struct replay_run_record *run,
                            struct replay_number numbers[REPLAY_NUMBERS])
{
    const struct replay_setup *s = report->setup;
    const struct replay_result *r = &run->result;
    double tokens = (double)r->tokens, time_ns = (double)r->all.time_ns, io_ns = (double)r->all.busy_ns[EFS_ON_IO];
    const struct replay_number all[] = {
        {"tpot_ns_median", "TPOT ms", 1e-6, 8, 2, (double)r->tpot_ns_median},
        {"tpot_ns_p99", "p99", 1e-6, 8, 2, (double)r->tpot_ns_p99},
        {"ttft_ns_median", "TTFT ms", 1e-6, 8, 2, (double)r->ttft_ns_median},
        {"ttft_ns_p99", "p99", 1e-6, 8, 2, (double)r->ttft_ns_p99},
        {"tokens_per_second", "tok/s", 1, 8, 1, share(tokens * 1e9, time_ns)},
        {"io_ns_per_token", "I/O ms", 1e-6, 8, 3, share(io_ns, tokens)},
        {"read_bytes_per_token", "MB/tok", 1e-6, 8, 2, share((double)r->all.read_bytes, tokens)},
        {"io_utilisation", "I/O%", 100, 4, 0, share(io_ns, time_ns)},
        {"decode_utilisation", "dec%", 100, 4, 0,
         share((double)r->all.busy_ns[EFS_ON_WORKER], time_ns * (s->workers ? s->workers : 1))},
        {"recoded_bytes_per_token", "recoded", 1e-6, 7, 2, share(r->recoded_bytes, tokens)},
        {"policy_ns_mean", NULL, 0, 0, 0, r->policy_ns},
        {"limit_ns_per_token", NULL, 0, 0, 0, share(r->limit_ns, tokens)},
        {"planned_io_ns", NULL, 0, 0, 0, run->plan.io_ns},
        {"planned_makespan_ns", NULL, 0, 0, 0, run->plan.makespan_ns},
        {"batch", NULL, 0, 0, 0, run->batch},
        {"budget_bytes", NULL, 0, 0, 0, (double)run->budget_bytes},
        {"tokens", NULL, 0, 0, 0, tokens},
        {"passes", NULL, 0, 0, 0, (double)r->passes},
        {"workers", NULL, 0, 0, 0, s->workers},
        {"layers", NULL, 0, 0, 0, s->layers},
        {"experts", NULL, 0, 0, 0, s->experts},
    };
    _Static_assert(sizeof(all) / sizeof(all[0]) <= REPLAY_NUMBERS, "numbers[] has room");
    memcpy(numbers, all, sizeof(all));
    return sizeof(all) / sizeof(all[0]);
}

void replay_run_name(const struct replay_run_record *run, char *name, size_t room)
{
    if (run->runner >= REPLAY_MMAP)
        snprintf(name, room, "%s", replay_runner_name(run->runner));
    else if (run->policy.cache != REPLAY_CACHE_NONE)
        snprintf(name, room, "%s", run->policy.name);
    else
        snprintf(name, room, "%s:%s%s%s", run->policy.name, replay_pools_name(run->policy.pools),
                 run->predictor ? " +" : "", run->predictor ? run->predictor : "");
}

/* ---- a row for each run ------------------------------------------------------------------------------------- */

void replay_report_head(const struct replay_report *report)
{
    const struct replay_run_record *run = &report->runs[report->count - 1];
    struct replay_number numbers[REPLAY_NUMBERS];
    unsigned count = replay_run_numbers(report, run, numbers);
    char budget[16];
    printf("\nbudget %s: %s of experts; batch %u\n%-24s", report->budgets[run->budget],
           tools_size_print(run->budget_bytes, budget, sizeof(budget)), run->batch, "");
    for (unsigned i = 0; i < count; i++)
        if (numbers[i].title)
            printf(" %*s", numbers[i].width, numbers[i].title);
    printf("    F%%    C%%    S%%    E%%    M%%\n");
}

/* The run with the same settings without prefetch; NULL: none. */
static const struct replay_run_record *find_plain(const struct replay_report *report,
                                                  const struct replay_run_record *run)
{
    for (size_t i = 0; i < report->count; i++) {
        const struct replay_run_record *other = &report->runs[i];
        if (!other->predictor && other->batch == run->batch && other->budget == run->budget &&
            other->policy.pools == run->policy.pools && strcmp(other->policy.name, run->policy.name) == 0)
            return other;
    }
    return NULL;
}

static void print_guesses(const struct replay_run_record *run, const struct replay_run_record *plain)
{
    const struct replay_result *r = &run->result, *without = &plain->result;
    const struct replay_prefetch_counts *a = &r->prefetch;
    double tokens = share((double)r->tokens, (double)without->tokens);
    printf("%24s %.3f times as fast, limit %.3f; %.2f of what is missing, %.2f of what is read right; %.2f of the "
           "bytes; used %llu, late %llu, in vain %llu\n",
           "guesses:", share((double)without->all.time_ns * tokens, (double)r->all.time_ns),
           share((double)without->all.time_ns, without->limit_ns),
           share((double)a->right_bytes, (double)a->missing_bytes), share((double)a->right_bytes, (double)a->bytes),
           share((double)(r->all.read_bytes + a->bytes), (double)without->all.read_bytes * tokens),
           (unsigned long long)a->used, (unsigned long long)a->late, (unsigned long long)(a->wasted + a->cancelled));
}

void replay_report_row(const struct replay_report *report)
{
    const struct replay_run_record *run = &report->runs[report->count - 1], *plain = find_plain(report, run);
    struct replay_number numbers[REPLAY_NUMBERS];
    unsigned count = replay_run_numbers(report, run, numbers);
    double hits = 0;
    char name[64];
    replay_run_name(run, name, sizeof(name));
    printf("%-24s", name);
    for (unsigned i = 0; i < count; i++)
        if (numbers[i].title)
            printf(" %*.*f", numbers[i].width, numbers[i].digits, numbers[i].scale * numbers[i].value);
    for (unsigned p = 0; p <= EFS_POOLS; p++)
        hits += (double)run->result.all.hits[p];
    for (unsigned p = 0; p <= EFS_POOLS; p++)
        printf(" %5.1f", 100 * share((double)run->result.all.hits[p], hits));
    printf("\n");
    if (run->predictor && plain)
        print_guesses(run, plain);
    if (run->plan.makespan_ns > 0) {
        printf("%24s", "plan:");
        for (unsigned p = 0; p < EFS_POOLS; p++)
            if (run->plan.capacity[p])
                printf(" %c %s", "FCSE"[p], tools_size_print(run->plan.capacity[p], name, sizeof(name)));
        printf("; %.3f ms I/O, %.3f ms in all expected of a pass\n", run->plan.io_ns / 1e6,
               run->plan.makespan_ns / 1e6);
    }
}

/* ---- the summary: a table of runs by budget for each of three numbers, lower is better ----------------------- */

static double number_of(const struct replay_report *report, const struct replay_run_record *run, const char *name,
                        struct replay_number *found)
{
    struct replay_number numbers[REPLAY_NUMBERS];
    unsigned i = 0;
    replay_run_numbers(report, run, numbers);
    while (strcmp(numbers[i].name, name) != 0)
        i++;
    *found = numbers[i];
    return numbers[i].scale * numbers[i].value;
}

/* The first run of that name, batch and budget; NULL: none. */
static const struct replay_run_record *find_run(const struct replay_report *report, const char *name, uint32_t batch,
                                                uint32_t budget)
{
    char other[64];
    for (size_t i = 0; i < report->count; i++) {
        const struct replay_run_record *run = &report->runs[i];
        replay_run_name(run, other, sizeof(other));
        if (run->batch == batch && run->budget == budget && run->result.tokens > 0 && strcmp(name, other) == 0)
            return run;
    }
    return NULL;
}

/* '*': least of its batch and budget; '=': at most 1 % above the least; the oracle is not compared. */
static char mark_of(const struct replay_report *report, const struct replay_run_record *run, const char *number)
{
    struct replay_number n;
    double value = number_of(report, run, number, &n), least = value;
    if (run->policy.cache == REPLAY_CACHE_ORACLE)
        return ' ';
    for (size_t i = 0; i < report->count; i++) {
        const struct replay_run_record *other = &report->runs[i];
        double is = number_of(report, other, number, &n);
        if (other->batch == run->batch && other->budget == run->budget && other->result.tokens > 0 &&
            other->policy.cache != REPLAY_CACHE_ORACLE && is < least)
            least = is;
    }
    return value <= least ? '*' : value <= least * (1 + TIE) ? '=' : ' ';
}

static void print_table(const struct replay_report *report, const char *number, uint32_t batch)
{
    struct replay_number n;
    number_of(report, &report->runs[0], number, &n);
    printf("\n%s, batch %u; * least, = within 1 %% of it\n%-24s", n.title, batch, "");
    for (uint32_t b = 0; b < report->budget_count; b++)
        printf(" %10s ", report->budgets[b]);
    printf("\n");
    for (size_t i = 0; i < report->count; i++) {
        char name[64];
        bool first = true;
        replay_run_name(&report->runs[i], name, sizeof(name));
        for (uint32_t b = 0; b < report->budget_count && first; b++) {
            const struct replay_run_record *run = find_run(report, name, batch, b);
            first = !run || run >= &report->runs[i];
        }
        if (report->runs[i].batch != batch || !first)
            continue;
        printf("%-24s", name);
        for (uint32_t b = 0; b < report->budget_count; b++) {
            const struct replay_run_record *run = find_run(report, name, batch, b);
            if (run)
                printf(" %10.3f%c", number_of(report, run, number, &n), mark_of(report, run, number));
            else
                printf(" %10s ", "-");
        }
        printf("\n");
    }
}

void replay_report_summary(const struct replay_report *report)
{
    static const char *const compared[] = {"tpot_ns_median", "read_bytes_per_token", "io_ns_per_token"};
    for (size_t i = 0; i < report->count; i++)
        for (size_t n = 0; n < 3 && (i == 0 || report->runs[i].batch != report->runs[i - 1].batch); n++)
            print_table(report, compared[n], report->runs[i].batch);
    printf("\nTPOT: time per token after the first, TTFT: to the first; F%% to M%%: where experts were found: full, "
           "coded, in\none of two components (S, E), missing. Without options a mount is zipmoe:io.\n");
}
