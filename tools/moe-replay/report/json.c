/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - writes runs as JSON. */
#include "report.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double per_token(const struct replay_run_record *run, uint64_t sum)
{
    return run->result.tokens ? (double)sum / (double)run->result.tokens : 0;
}

/* An object with the letters of the pools as keys. */
static json_t *by_pool(const uint64_t *numbers, unsigned count)
{
    json_t *object = json_object();
    for (unsigned p = 0; p < count; p++)
        json_object_set_new(object, (const char[]){"FCSEM"[p], '\0'}, json_integer((json_int_t)numbers[p]));
    return object;
}

/* null: no prefetch. Missing experts are counted in bytes by the simulator, in experts by the engine. */
static json_t *guesses_json(const struct replay_run_record *run)
{
    const struct replay_prefetch_counts *g = &run->result.prefetch;
    if (!run->predictor)
        return json_null();
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "predictor", run->predictor, "missing",
                     (json_int_t)g->missing, "used", (json_int_t)g->used, "late", (json_int_t)g->late, "wasted",
                     (json_int_t)g->wasted, "cancelled", (json_int_t)g->cancelled, "missing_bytes_per_token",
                     per_token(run, g->missing_bytes), "read_bytes_per_token", per_token(run, g->bytes),
                     "right_bytes_per_token", per_token(run, g->right_bytes));
}

static json_t *run_json(const struct replay_report *report, const struct replay_run_record *run)
{
    struct replay_number numbers[REPLAY_NUMBERS];
    unsigned count = replay_run_numbers(report, run, numbers);
    char hash[24], check[24];
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)report->setup->profile.content_hash);
    snprintf(check, sizeof(check), "%016llx", (unsigned long long)run->check);
    json_t *all =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s?, s:s?, s:s?, s:o, s:o, s:o}", "trace", report->trace,
                  "runner", replay_runner_name(run->runner), "policy", run->policy.name, "pools",
                  run->policy.cache == REPLAY_CACHE_ORACLE ? "oracle" : replay_pools_name(run->policy.pools), "budget",
                  report->budgets[run->budget], "schedule", replay_schedule_name(report->setup->schedule), "profile",
                  hash, "plan_from", report->history, "compute", run->compute, "check", run->compute ? check : NULL,
                  "hits", by_pool(run->result.all.hits, EFS_POOLS + 1), "plan_bytes",
                  by_pool(run->plan.capacity, EFS_POOLS), "guesses", guesses_json(run));
    for (unsigned i = 0; i < count; i++) {
        double value = numbers[i].value;
        bool whole = value == floor(value) && fabs(value) < 1e15;
        json_object_set_new(all, numbers[i].name, whole ? json_integer((json_int_t)value) : json_real(value));
    }
    return all;
}

int replay_report_json(const struct replay_report *report, const char *path, struct efs_error *err)
{
    json_t *list = json_array();
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < report->count; i++)
        rc = json_array_append_new(list, run_json(report, &report->runs[i])) == 0 ? 0 : -ENOMEM;
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
