/* replay_report.c - runs as a table, a summary and JSON. */
#include "replay.h"

#include "size.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIE 0.01 /* runs this near to each other are called even */

static const char pool_letters[EFS_POOLS + 2] = "FCSEM";

static double per_token(const struct replay_result *r, double sum)
{
    return r->tokens ? sum / (double)r->tokens : 0;
}

static double io_ns_per_token(const struct replay_result *r)
{
    return per_token(r, (double)r->all.busy_ns[EFS_ON_IO]);
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static void run_name(const struct replay_run_record *run, char *name, size_t room)
{
    if (run->policy.oracle)
        snprintf(name, room, "oracle");
    else
        snprintf(name, room, "%s:%s", run->policy.name, replay_pools_name(run->policy.pools));
}

void replay_report_head(const struct replay_report *report)
{
    const struct replay_run_record *run = &report->runs[report->count - 1];
    uint64_t raw = report->setup->bytes[EFS_POOL_F] * report->setup->layers * report->setup->experts;
    char budget[16], whole[16];
    tools_size_print(run->budget_bytes, budget, sizeof(budget));
    tools_size_print(raw, whole, sizeof(whole));
    printf("\nbudget %s: %s of %s raw experts; batch %u\n", report->budgets[run->budget], budget, whole, run->batch);
    printf("%-18s %8s %8s %8s %8s %8s %8s %8s %5s %5s %5s %5s %5s %4s %4s %6s %7s\n", "", "TPOT ms", "p99", "TTFT ms",
           "p99", "tok/s", "I/O ms", "MB/tok", "F%", "C%", "S%", "E%", "M%", "I/O%", "dec%", "sched", "recoded");
}

void replay_report_row(const struct replay_report *report)
{
    const struct replay_run_record *run = &report->runs[report->count - 1];
    const struct replay_result *r = &run->result;
    double time_ns = (double)r->all.time_ns, hits = 0;
    char name[64];
    run_name(run, name, sizeof(name));
    for (unsigned p = 0; p <= EFS_POOLS; p++)
        hits += (double)r->all.hits[p];
    printf("%-18s %8.2f %8.2f %8.2f %8.2f %8.1f %8.3f %8.2f", name, (double)r->tpot_ns_median / 1e6,
           (double)r->tpot_ns_p99 / 1e6, (double)r->ttft_ns_median / 1e6, (double)r->ttft_ns_p99 / 1e6,
           share((double)r->tokens * 1e9, time_ns), io_ns_per_token(r) / 1e6,
           per_token(r, (double)r->all.read_bytes) / 1e6);
    for (unsigned p = 0; p <= EFS_POOLS; p++)
        printf(" %5.1f", 100 * share((double)r->all.hits[p], hits));
    printf(" %4.0f %4.0f %4.0fus %7.2f\n", 100 * share((double)r->all.busy_ns[EFS_ON_IO], time_ns),
           100 * share((double)r->all.busy_ns[EFS_ON_WORKER], time_ns * report->setup->workers),
           (double)r->schedule_ns_median / 1e3, per_token(r, r->recoded_bytes) / 1e6);
}

/* ---- the summary -------------------------------------------------------------------------------------------- */

static const struct replay_run_record *find_run(const struct replay_report *report, const char *name, uint32_t batch,
                                                uint32_t budget)
{
    char other[64];
    for (size_t i = 0; i < report->count; i++) {
        const struct replay_run_record *run = &report->runs[i];
        run_name(run, other, sizeof(other));
        if (run->batch == batch && run->budget == budget && run->result.tokens > 0 && strcmp(name, other) == 0)
            return run;
    }
    return NULL;
}

/* The least I/O time of the policies that do not know the future; negative: no run. */
static double least_io(const struct replay_report *report, uint32_t batch, uint32_t budget)
{
    double least = -1;
    for (size_t i = 0; i < report->count; i++) {
        const struct replay_run_record *run = &report->runs[i];
        double io = io_ns_per_token(&run->result);
        if (run->batch == batch && run->budget == budget && run->result.tokens > 0 && !run->policy.oracle &&
            (least < 0 || io < least))
            least = io;
    }
    return least;
}

static void print_summary_of(const struct replay_report *report, uint32_t batch)
{
    printf("\nI/O ms per token, batch %u; * least, = within 1 %% of it\n%-18s", batch, "");
    for (uint32_t b = 0; b < report->budget_count; b++)
        printf(" %10s ", report->budgets[b]);
    printf("\n");
    for (size_t i = 0; i < report->count; i++) {
        char name[64];
        run_name(&report->runs[i], name, sizeof(name));
        if (report->runs[i].batch != batch || report->runs[i].budget != 0)
            continue;
        printf("%-18s", name);
        for (uint32_t b = 0; b < report->budget_count; b++) {
            const struct replay_run_record *run = find_run(report, name, batch, b);
            double least = least_io(report, batch, b), io = run ? io_ns_per_token(&run->result) : 0;
            char mark = !run || run->policy.oracle ? ' ' : io <= least ? '*' : io <= least * (1 + TIE) ? '=' : ' ';
            if (run)
                printf(" %10.3f%c", io / 1e6, mark);
            else
                printf(" %10s ", "-");
        }
        printf("\n");
    }
}

void replay_report_summary(const struct replay_report *report)
{
    for (size_t i = 0; i < report->count; i++) {
        bool seen = false;
        for (size_t j = 0; j < i; j++)
            seen = seen || report->runs[j].batch == report->runs[i].batch;
        if (!seen)
            print_summary_of(report, report->runs[i].batch);
    }
}

/* ---- JSON --------------------------------------------------------------------------------------------------- */

/* An object with the pools' letters as names; NULL: no memory. */
static json_t *by_pool(const uint64_t *numbers, unsigned count)
{
    json_t *object = json_object();
    for (unsigned p = 0; p < count && object; p++) {
        const char name[2] = {pool_letters[p], '\0'};
        if (json_object_set_new(object, name, json_integer((json_int_t)numbers[p])) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    return object;
}

static json_t *run_json(const struct replay_report *report, const struct replay_run_record *run)
{
    const struct replay_setup *s = report->setup;
    const struct replay_result *r = &run->result;
    double time_ns = (double)r->all.time_ns;
    char hash[24];
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)s->profile.content_hash);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:f, s:f, s:f, s:f, s:f, s:I, s:I, "
        "s:f, s:f, s:o, s:f, s:f, s:s, s:I, s:s, s:s?, s:I, s:I, s:I}",
        "trace", report->trace, "runner", "simulate", "policy", run->policy.name, "pools",
        run->policy.oracle ? "oracle" : replay_pools_name(run->policy.pools), "batch", (json_int_t)run->batch, "budget",
        report->budgets[run->budget], "budget_bytes", (json_int_t)run->budget_bytes, "tokens", (json_int_t)r->tokens,
        "passes", (json_int_t)r->passes, "tpot_ns_median", (json_int_t)r->tpot_ns_median, "tpot_ns_p99",
        (json_int_t)r->tpot_ns_p99, "ttft_ns_median", (json_int_t)r->ttft_ns_median, "ttft_ns_p99",
        (json_int_t)r->ttft_ns_p99, "hits", by_pool(r->all.hits, EFS_POOLS + 1), "read_bytes_per_token",
        per_token(r, (double)r->all.read_bytes), "io_ns_per_token", io_ns_per_token(r), "tokens_per_second",
        share((double)r->tokens * 1e9, time_ns), "io_utilisation", share((double)r->all.busy_ns[EFS_ON_IO], time_ns),
        "decode_utilisation", share((double)r->all.busy_ns[EFS_ON_WORKER], time_ns * s->workers), "schedule_ns_median",
        (json_int_t)r->schedule_ns_median, "schedule_ns_p99", (json_int_t)r->schedule_ns_p99, "policy_ns_mean",
        r->policy_ns, "recoded_bytes_per_token", per_token(r, r->recoded_bytes), "plan_bytes",
        by_pool(run->plan.capacity, EFS_POOLS), "planned_io_ns", run->plan.io_ns, "planned_makespan_ns",
        run->plan.makespan_ns, "schedule", replay_schedule_name(s->schedule), "seed", (json_int_t)s->seed, "profile",
        hash, "plan_from", report->history, "workers", (json_int_t)s->workers, "layers", (json_int_t)s->layers,
        "experts", (json_int_t)s->experts);
}

int replay_report_json(const struct replay_report *report, const char *path, struct efs_error *err)
{
    json_t *list = json_array();
    int rc = list ? 0 : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < report->count; i++)
        if (json_array_append_new(list, run_json(report, &report->runs[i])) != 0)
            rc = -ENOMEM;
    char *text = rc == 0 ? json_dumps(list, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) : NULL;
    json_decref(list);
    if (!text)
        return efs_fail(err, -ENOMEM, "no memory for the JSON");
    FILE *out = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");
    rc = out ? 0 : -errno;
    if (out && (fprintf(out, "%s\n", text) < 0 || fflush(out) != 0))
        rc = -errno;
    if (out && out != stdout && fclose(out) != 0 && rc == 0)
        rc = -errno;
    free(text);
    return rc < 0 ? efs_fail(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}
