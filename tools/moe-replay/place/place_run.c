/* SPDX-License-Identifier: Apache-2.0 */
/* place_run.c - one run: places experts by a rule and serves requests in the simulator, with reviews of the placement.
 */
#include "place_command.h"

#include "tables.h"

#include "expertfs-clock-private.h"
#include "interrupt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_S 300.0 /* time for which calls are computed for the first placement */
#define MEASURE_REQUESTS 50u
#define SEED 1u

static const char *const names[] = {"offload", "redirect", "all-local"};

const char *replay_place_name(unsigned row)
{
    return row < EFS_PLACE_RULES ? efs_place_rule_name((enum efs_place_rule)row) : names[row - EFS_PLACE_RULES];
}

struct player {
    struct efs_tables tables;
    const struct replay_place_setup *setup;
    const struct replay_tasks *tasks;
    enum efs_place_rule rule;
    struct efs_place_problem problem;
    struct efs_place_server *server;
    double *calls;
    uint8_t *held, *next, *gpu, *next_gpu;
    double plan_s;
    int rc; /* of the last review */
};

/* Computes the expected calls of each server in a window of WINDOW_S seconds from the tasks' mean calls per pass. */
static void expect_calls(struct player *p, const struct replay_place_point *point)
{
    const struct replay_tasks *tasks = p->tasks;
    size_t all = (size_t)tasks->layers * tasks->experts;
    for (uint32_t n = 0; n < point->servers; n++) {
        struct efs_place_server *s = &p->server[n];
        s->passes = WINDOW_S / p->setup->arrival_s * (1 + tasks->output);
        for (uint32_t t = 0; t < tasks->count; t++) {
            double part = (1 - point->skew) / tasks->count + (n % tasks->count == t ? point->skew : 0);
            for (size_t i = 0; i < all; i++)
                p->calls[n * all + i] += part * s->passes * tasks->task[t].calls[i];
        }
    }
}

static errint_t player_open(struct player *p, const struct replay_place_setup *setup, const struct replay_tasks *tasks,
                            const struct replay_place_point *point, double remote_s, struct efs_error *err)
{
    const struct efs_servers_config *m = &setup->machine;
    size_t all = (size_t)point->servers * tasks->layers * tasks->experts;
    double tokens = 0;
    *p = (struct player){.setup = setup, .tasks = tasks};
    EFS_TABLE(&p->tables, p->server, point->servers);
    EFS_TABLE(&p->tables, p->calls, all);
    EFS_TABLE(&p->tables, p->held, all);
    EFS_TABLE(&p->tables, p->next, all);
    EFS_TABLE(&p->tables, p->gpu, all);
    EFS_TABLE(&p->tables, p->next_gpu, all);
    if (efs_tables_error(&p->tables) < 0)
        return efs_fail(err, -ENOMEM, "no memory");
    p->problem = (struct efs_place_problem){.servers = point->servers,
                                            .layers = tasks->layers,
                                            .experts = tasks->experts,
                                            .expert_bytes = setup->expert_bytes,
                                            .server = p->server,
                                            .calls = p->calls};
    for (uint32_t t = 0; t < tasks->count; t++)
        tokens += tasks->task[t].call_tokens / tasks->count;
    for (uint32_t n = 0; n < point->servers; n++) {
        struct efs_place_server *s = &p->server[n];
        s->gpus = 1 + (n % 3 == 2);
        for (uint32_t g = 0; g < s->gpus; g++)
            s->gpu_bytes[g] = (uint64_t)(setup->memory * tasks->layers * tasks->experts + 1e-9) * setup->expert_bytes;
        s->load_bytes_per_second = REPLAY_PLACE_LOAD;
        s->remote_s = remote_s;
        s->pass_s = 2 * m->latency_s;
        s->call_s = 2 * tokens * m->token_bytes / (point->mbps * 1e6 / 8);
    }
    expect_calls(p, point);
    return 0;
}

/* The time to load all new experts: the maximum over the servers, which load in parallel. */
static double loading_s(const struct player *p)
{
    double most = 0;
    size_t all = (size_t)p->problem.layers * p->problem.experts;
    for (uint32_t n = 0; n < p->problem.servers; n++) {
        double bytes = 0;
        for (size_t i = n * all; i < (n + 1) * all; i++)
            bytes +=
                p->next_gpu[i] != EFS_PLACE_NO_GPU && p->next_gpu[i] != p->gpu[i] ? (double)p->setup->expert_bytes : 0;
        double s = bytes / p->server[n].load_bytes_per_second / p->server[n].gpus;
        most = s > most ? s : most;
    }
    return most;
}

static bool player_review(void *arg, double now_s, const double *calls, const double *passes, uint8_t *held,
                          double *ready_s)
{
    struct player *p = arg;
    struct efs_place_problem problem = p->problem;
    problem.calls = calls;
    for (uint32_t n = 0; n < problem.servers; n++)
        p->server[n].passes = passes[n];
    p->rc = efs_place_by(p->rule, &problem, SEED, p->next);
    if (p->rc == 0)
        p->rc = efs_place_pack(&problem, p->next, p->gpu, p->next_gpu);
    if (p->rc < 0)
        return false;
    bool pays = p->rule == EFS_PLACE_TIME
                    ? efs_place_wait_s(&problem, p->next) + efs_place_migration_s(&problem, p->gpu, p->next_gpu) <
                          efs_place_wait_s(&problem, held)
                    : efs_place_migrates(&problem, held, p->next, p->gpu, p->next_gpu);
    if (!pays)
        return false;
    *ready_s = now_s + loading_s(p);
    size_t bytes = efs_place_at(&problem, problem.servers, 0, 0);
    memcpy(held, p->next, bytes);
    memcpy(p->gpu, p->next_gpu, bytes);
    return true;
}

static bool player_stop(void *arg)
{
    (void)arg;
    return tools_interrupted();
}

static errint_t player_place(struct player *p, unsigned row, struct efs_error *err)
{
    uint64_t began = efs_now_ns();
    size_t bytes = efs_place_at(&p->problem, p->problem.servers, 0, 0);
    int rc = 0;
    if (row == REPLAY_PLACE_ALL_LOCAL)
        memset(p->held, 1, bytes);
    else
        rc = efs_place_by(p->rule, &p->problem, SEED, p->held);
    p->plan_s = (double)(efs_now_ns() - began) / 1e9;
    if (rc == 0 && row != REPLAY_PLACE_ALL_LOCAL)
        rc = efs_place_pack(&p->problem, p->held, NULL, p->gpu);
    if (rc == -ENOSPC)
        return efs_fail(err, rc, "%u servers hold fewer than all experts: more --memory is needed", p->problem.servers);
    return rc < 0 ? efs_fail(err, rc, "placing failed: %s", strerror(-rc)) : 0;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static errint_t player_serve(struct player *p, const struct replay_place_point *point, unsigned row, size_t most,
                             struct replay_place_run *run, struct efs_error *err)
{
    const struct replay_place_setup *s = p->setup;
    const struct replay_tasks *tasks = p->tasks;
    struct efs_servers_config c = s->machine;
    size_t count;
    c.servers = point->servers;
    c.layers = tasks->layers;
    c.experts = tasks->experts;
    c.chosen = tasks->chosen;
    c.bytes_per_second = point->mbps * 1e6 / 8;
    c.load_s = (double)s->expert_bytes / REPLAY_PLACE_LOAD;
    c.missing = row == REPLAY_PLACE_OFFLOAD    ? EFS_SERVERS_LOAD
                : row == REPLAY_PLACE_REDIRECT ? EFS_SERVERS_REDIRECT
                                               : EFS_SERVERS_CALL;
    /* As in the paper, all rules except the random ones migrate experts at a review. */
    c.review_s =
        row < EFS_PLACE_RULES && row != EFS_PLACE_UNIFORM && row != EFS_PLACE_REDUNDANCE && most == 0 ? s->review_s : 0;
    c.review = player_review;
    c.stop = player_stop;
    c.arg = p;
    struct efs_servers_request *requests =
        replay_tasks_requests(tasks, point->servers, point->skew, s->arrival_s, s->duration_s,
                              s->switched ? s->duration_s / 2 : 0, most > 0, SEED, &count);
    if (!requests)
        return efs_fail(err, -ENOMEM, "no memory");
    uint64_t began = efs_now_ns();
    int rc = efs_servers_run(&c, p->held, requests, most && count > most ? most : count, &run->result);
    run->simulate_s = (double)(efs_now_ns() - began) / 1e9;
    free(requests);
    if (rc == 0)
        rc = p->rc;
    struct efs_servers_result *r = &run->result;
    if (rc < 0)
        return efs_fail(err, rc, "serving failed: %s", strerror(-rc));
    qsort(r->latencies, r->requests, sizeof(*r->latencies), compare_doubles);
    run->p95_s = r->requests ? r->latencies[(r->requests - 1) * 95 / 100] : 0;
    run->remote_s =
        r->calls > r->local && c.missing == EFS_SERVERS_CALL ? r->remote_s / (double)(r->calls - r->local) : 0;
    return 0;
}

/* most > 0: serves at most that many requests, from the planning half, without reviews; 0: serves all requests, from
 * the other half. */
static errint_t run_row(const struct replay_place_setup *setup, const struct replay_tasks *tasks,
                        const struct replay_place_point *point, unsigned row, enum efs_place_rule rule, double remote_s,
                        size_t most, struct replay_place_run *run, struct efs_error *err)
{
    struct player p;
    *run = (struct replay_place_run){.point = *point, .row = row};
    errint_t rc = player_open(&p, setup, tasks, point, remote_s, err);
    p.rule = rule;
    if (rc == 0)
        rc = player_place(&p, row, err);
    if (rc == 0) {
        run->plan_s = p.plan_s;
        rc = player_serve(&p, point, row, most, run, err);
    }
    efs_tables_free(&p.tables);
    return rc;
}

/* Chooses the rule whose placement has the least total latency in a short run. */
static errint_t choose_rule(const struct replay_place_setup *setup, const struct replay_tasks *tasks,
                            const struct replay_place_point *point, double remote_s, enum efs_place_rule *rule,
                            struct efs_error *err)
{
    static const enum efs_place_rule tried[] = {EFS_PLACE_TIME, EFS_PLACE_GAIN, EFS_PLACE_PRISM};
    double best_s = 0;
    errint_t rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof(tried) / sizeof(tried[0]); i++) {
        struct replay_place_run run;
        rc = run_row(setup, tasks, point, tried[i], tried[i], remote_s, (size_t)MEASURE_REQUESTS * point->servers, &run,
                     err);
        if (rc == 0 && (i == 0 || run.result.latency_s < best_s)) {
            best_s = run.result.latency_s;
            *rule = tried[i];
        }
        efs_servers_free(&run.result);
    }
    return rc;
}

errint_t replay_place_run(const struct replay_place_setup *setup, const struct replay_tasks *tasks,
                          const struct replay_place_point *point, unsigned row, double remote_s,
                          struct replay_place_run *run, struct efs_error *err)
{
    enum efs_place_rule rule = row < EFS_PLACE_RULES ? (enum efs_place_rule)row : EFS_PLACE_GAIN;
    errint_t rc = row == EFS_PLACE_TIME ? choose_rule(setup, tasks, point, remote_s, &rule, err) : 0;
    *run = (struct replay_place_run){.point = *point, .row = row};
    return rc == 0 ? run_row(setup, tasks, point, row, rule, remote_s, 0, run, err) : rc;
}

errint_t replay_place_measure(const struct replay_place_setup *setup, const struct replay_tasks *tasks,
                              const struct replay_place_point *point, double *remote_s, struct efs_error *err)
{
    struct replay_place_run run;
    double guess_s = 2 * setup->machine.latency_s + 2 * setup->machine.token_bytes / (point->mbps * 1e6 / 8);
    errint_t rc = run_row(setup, tasks, point, EFS_PLACE_PRISM, EFS_PLACE_PRISM, guess_s,
                          (size_t)MEASURE_REQUESTS * point->servers, &run, err);
    *remote_s = rc == 0 && run.remote_s > 0 ? run.remote_s : guess_s;
    efs_servers_free(&run.result);
    return rc;
}
