/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - runs as JSON. */
#include "report.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char pool_letters[EFS_POOLS + 2] = "FCSEM";

static double json_share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* An object with the pools' letters as names; NULL: no memory. */
static json_t *json_by_pool(const uint64_t *numbers, unsigned count)
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

/* A list of how long answers of 1, 2, 4, ... tokens take, as far as there are any. NULL: no memory. */
static json_t *latency_json(const struct replay_result *r)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < REPLAY_LENGTHS && list && r->latency[i].sequences; i++) {
        const struct replay_latency *l = &r->latency[i];
        json_t *one = json_pack("{s:I, s:I, s:I}", "tokens", (json_int_t)1 << i, "ns_median", (json_int_t)l->ns_median,
                                "sequences", (json_int_t)l->sequences);
        if (json_array_append_new(list, one) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

/* What all runs have. */
static json_t *common_json(const struct replay_report *report, const struct replay_run_record *run)
{
    const struct replay_setup *s = report->setup;
    const struct replay_result *r = &run->result;
    double time_ns = (double)r->all.time_ns, tokens = (double)r->tokens;
    char hash[24];
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)s->profile.content_hash);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:f, s:f, s:f, s:f, s:f, s:s, s:s, "
        "s:s?, s:I, s:I, s:I, s:f, s:f, s:o}",
        "trace", report->trace, "runner", replay_runner_name(run->runner), "policy", run->policy.name, "pools",
        run->policy.keeper == REPLAY_KEEP_ORACLE ? "oracle" : replay_pools_name(run->policy.pools), "batch",
        (json_int_t)run->batch, "budget", report->budgets[run->budget], "budget_bytes", (json_int_t)run->budget_bytes,
        "tokens", (json_int_t)r->tokens, "passes", (json_int_t)r->passes, "tpot_ns_median",
        (json_int_t)r->tpot_ns_median, "tpot_ns_p99", (json_int_t)r->tpot_ns_p99, "ttft_ns_median",
        (json_int_t)r->ttft_ns_median, "ttft_ns_p99", (json_int_t)r->ttft_ns_p99, "hits",
        json_by_pool(r->all.hits, EFS_POOLS + 1), "read_bytes_per_token", json_share((double)r->all.read_bytes, tokens),
        "io_ns_per_token", json_share((double)r->all.busy_ns[EFS_ON_IO], tokens), "tokens_per_second",
        replay_tokens_per_second(r), "io_utilisation", json_share((double)r->all.busy_ns[EFS_ON_IO], time_ns),
        "decode_utilisation", json_share((double)r->all.busy_ns[EFS_ON_WORKER], time_ns * s->workers), "schedule",
        replay_schedule_name(s->schedule), "profile", hash, "plan_from", report->history, "workers",
        (json_int_t)s->workers, "layers", (json_int_t)s->layers, "experts", (json_int_t)s->experts, "policy_ns_mean",
        r->policy_ns, "recoded_bytes_per_token", json_share(r->recoded_bytes, tokens), "latency", latency_json(r));
}

/* What a real run was like, and a simulation beside it went by; null: not known. */
static json_t *learned_json(const struct replay_learned *l)
{
    if (!l->known)
        return json_null();
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "disk_bytes_per_second",
                     l->disk_bytes_per_second, "read_latency_ns", l->read_latency_ns, "read_together", l->read_together,
                     "read_window_bytes", l->read_window_bytes, "decode_fresh_bytes_per_second",
                     l->decode_fresh_bytes_per_second, "decode_kept_bytes_per_second", l->decode_kept_bytes_per_second,
                     "read_turn_ns", l->read_turn_ns, "coded_turn_ns", l->coded_turn_ns, "full_turn_ns",
                     l->full_turn_ns, "wake_ns", l->wake_ns, "between_ns", l->between_ns, "run_ns", l->run_ns,
                     "layer_ns", l->layer_ns, "plans", (json_int_t)l->plans);
}

/* What was read ahead, or null: nothing was guessed. */
static json_t *ahead_json(const struct replay_run_record *run)
{
    const struct replay_ahead_result *a = &run->result.ahead;
    double tokens = (double)run->result.tokens;
    if (!run->predictor)
        return json_null();
    return json_pack("{s:s, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:f, s:f}", "predictor", run->predictor,
                     "missing_bytes_per_token", json_share((double)a->missing_bytes, tokens), "read_bytes_per_token",
                     json_share((double)a->bytes, tokens), "right_bytes_per_token",
                     json_share((double)a->right_bytes, tokens), "used", (json_int_t)a->counts.used, "late",
                     (json_int_t)a->counts.late, "wasted", (json_int_t)a->counts.wasted, "cancelled",
                     (json_int_t)a->counts.cancelled, "on", json_share((double)a->on, (double)a->requests),
                     "measured_ratio", a->ratio);
}

static json_t *simulated_json(const struct replay_report *report, const struct replay_run_record *run)
{
    const struct replay_result *r = &run->result;
    return json_pack("{s:I, s:I, s:o, s:f, s:f, s:I, s:s, s:o, s:f, s:o}", "schedule_ns_median",
                     (json_int_t)r->schedule_ns_median, "schedule_ns_p99", (json_int_t)r->schedule_ns_p99, "plan_bytes",
                     json_by_pool(run->plan.capacity, EFS_POOLS), "planned_io_ns", run->plan.io_ns,
                     "planned_makespan_ns", run->plan.makespan_ns, "seed", (json_int_t)report->setup->seed,
                     "costs_from", run->learned.known ? "run" : "profile", "costs", learned_json(&run->learned),
                     "limit_ns_per_token", json_share(r->limit_ns, (double)r->tokens), "guesses", ahead_json(run));
}

/* The same of a live run: experts. */
static json_t *guesses_json(const struct replay_run_record *run)
{
    const struct replay_guesses *g = &run->result.guesses;
    double tokens = (double)run->result.tokens;
    if (!run->predictor)
        return json_null();
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "predictor", run->predictor, "missing",
                     (json_int_t)g->missed, "used", (json_int_t)g->covered, "late", (json_int_t)g->late, "wasted",
                     (json_int_t)g->wasted, "cancelled", (json_int_t)g->cancelled, "read_bytes_per_token",
                     json_share((double)g->bytes, tokens), "wasted_bytes_per_token",
                     json_share((double)g->wasted_bytes, tokens));
}

/* The turns of a run, or null: it has none. */
static json_t *turns_json(const struct replay_report *report, const struct replay_run_record *run)
{
    if (!run->pass_ns)
        return json_null();
    json_t *list = json_array();
    for (uint64_t i = 0; list && i < run->result.passes; i++)
        json_array_append_new(list, json_integer((json_int_t)run->pass_ns[i]));
    return json_pack("{s:I, s:s, s:o}", "passes", (json_int_t)report->turns, "begins",
                     run->begins_without ? "without" : "with", "pass_ns", list);
}

static json_t *live_json(const struct replay_report *report, const struct replay_run_record *run)
{
    char check[24];
    snprintf(check, sizeof(check), "%016llx", (unsigned long long)run->check);
    return json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:o, s:o, s:o}", "compute", run->compute, "serving_path",
                     run->path, "memory_limit_bytes", (json_int_t)run->limit_bytes, "memory_peak_bytes",
                     (json_int_t)run->peak_bytes, "check", check, "note", run->note, "costs",
                     learned_json(&run->learned), "guesses", guesses_json(run), "turns", turns_json(report, run));
}

static json_t *run_json(const struct replay_report *report, const struct replay_run_record *run)
{
    json_t *all = common_json(report, run);
    json_t *more = run->runner == REPLAY_SIMULATE ? simulated_json(report, run) : live_json(report, run);
    if (!all || !more || json_object_update(all, more) != 0) {
        json_decref(all);
        all = NULL;
    }
    json_decref(more);
    return all;
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
