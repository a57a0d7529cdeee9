/* SPDX-License-Identifier: Apache-2.0 */
/* live_run.c - see live_run.h. */
#include "live_run.h"

#include "expertfs-clock-private.h"
#include "interrupt.h"
#include "control_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct live_run {
    struct replay_reader *reader;
    struct replay_compute *compute;
    const struct replay_workload *workload;
    bool runs; /* the reader runs the experts */
    uint64_t layer_ns;
};

static errint_t run_layer(const struct live_run *p, uint64_t pass, const uint64_t *at, uint32_t layer,
                          struct efs_error *err)
{
    const struct replay_workload *w = p->workload;
    const size_t *first = &w->first[pass * w->layers + layer];
    struct replay_reader *reader = p->reader;
    uint32_t count = (uint32_t)(first[1] - first[0]);
    if (p->layer_ns > 0) {
        const struct timespec t = {(time_t)(p->layer_ns / 1000000000u), (long)(p->layer_ns % 1000000000u)};
        nanosleep(&t, NULL);
    }
    replay_compute_begin(p->compute, at, w->width[pass], layer);
    errint_t rc = 0;
    if (p->runs) {
        rc = reader->run(reader, layer, replay_compute_team(p->compute), replay_compute_mixture(p->compute), err);
    } else {
        rc = reader->request(reader, layer, &w->ids[first[0]], &w->of_them[first[0]], count, err);
        for (uint32_t i = 0; rc == 0 && i < count; i++) {
            struct replay_view view;
            rc = reader->next(reader, &view, err);
            if (rc == 0)
                rc = replay_compute_run(p->compute, &view, err);
        }
        if (reader->release)
            reader->release(reader);
    }
    if (rc == 0)
        replay_compute_end(p->compute);
    return rc;
}

/* Plays the passes and writes their times to pass_ns, without the time of the reader's counters. */
static errint_t run_passes(const struct live_run *p, replay_progress_fn *progress, void *arg, uint64_t *pass_ns,
                           struct replay_run_record *record, struct replay_counters *now, struct efs_error *err)
{
    const struct replay_workload *w = p->workload;
    struct replay_result *r = &record->result;
    const uint64_t *at = w->at;
    errint_t rc = 0;
    for (bool stop = false; rc == 0 && !stop && r->passes < w->passes; stop = progress(arg, r->tokens)) {
        uint64_t began = efs_now_ns(), off = p->reader->off_clock_ns;
        for (uint32_t l = 0; rc == 0 && l < w->layers; l++)
            rc = tools_interrupted() ? -ECANCELED : run_layer(p, r->passes, at, l, err);
        if (rc < 0)
            break;
        pass_ns[r->passes] = efs_now_ns() - began - (p->reader->off_clock_ns - off);
        r->all.time_ns += pass_ns[r->passes];
        rc = p->reader->count(p->reader, now, err);
        record->check = replay_compute_check(p->compute);
        at += w->width[r->passes];
        r->tokens += w->width[r->passes++];
    }
    return rc == -ECANCELED ? 0 : rc;
}

static void record_counters(const struct replay_counters *before, const struct replay_counters *now,
                            const struct replay_workload *w, struct replay_result *r)
{
    uint64_t asked = w->first[r->passes * w->layers], counted = 0;
    r->requests = r->passes * w->layers;
    for (unsigned state = 0; state < REPLAY_STATES; state++) {
        r->all.hits[state] = now->hits[state] - before->hits[state];
        counted += r->all.hits[state];
    }
    if (counted < asked) /* the client still held these from an earlier request and sent none to the mount */
        r->all.hits[EFS_POOL_F] += asked - counted;
    r->all.read_bytes = now->read_bytes - before->read_bytes;
    r->all.busy_ns[EFS_ON_IO] = now->io_ns - before->io_ns;
    r->all.busy_ns[EFS_ON_WORKER] = now->decode_ns - before->decode_ns;
    r->policy_ns = r->requests ? (double)(now->policy_ns - before->policy_ns) / (double)r->requests : 0;
    r->recoded_bytes = (double)(now->recoded_bytes - before->recoded_bytes);
    const uint64_t *from = (const uint64_t *)&before->prefetch, *to = (const uint64_t *)&now->prefetch;
    for (size_t i = 0; i < sizeof(r->prefetch) / sizeof(*to); i++)
        ((uint64_t *)&r->prefetch)[i] = to[i] - from[i];
}

errint_t replay_run_live(struct replay_reader *reader, const struct replay_model *model,
                         const struct replay_workload *w, enum replay_compute_kind kind, uint64_t layer_ns,
                         replay_progress_fn *progress, void *arg, struct replay_run_record *record,
                         struct efs_error *err)
{
    static const char *const names[] = {"none", "touch", "touch-coded", "ffn", "ffn-coded"};
    struct replay_counters before, now;
    bool runs = kind == REPLAY_COMPUTE_FFN_CODED && reader->run;
    kind = kind == REPLAY_COMPUTE_FFN_CODED && !runs ? REPLAY_COMPUTE_FFN : kind;
    record->compute = names[kind];
    record->result = (struct replay_result){0};
    if (kind >= REPLAY_COMPUTE_FFN && model->hidden == 0)
        return efs_fail(err, -EOPNOTSUPP, "--compute %s: the experts have no gate, up and down matrices in BF16",
                        names[kind]);
    const struct live_run p = {reader, replay_compute_new(kind, model, w), w, runs, layer_ns};
    uint64_t *pass_ns = calloc(w->passes + 1, sizeof(*pass_ns));
    errint_t rc = p.compute && pass_ns ? reader->count(reader, &before, err) : efs_fail(err, -ENOMEM, "no memory");
    if (rc == 0) {
        now = before;
        rc = run_passes(&p, progress, arg, pass_ns, record, &now, err);
        record_counters(&before, &now, w, &record->result);
        if (replay_compute_times(w, pass_ns, &record->result) < 0 && rc == 0)
            rc = efs_fail(err, -ENOMEM, "no memory");
    }
    replay_compute_free(p.compute);
    free(pass_ns);
    return rc;
}

/* ---- settings of a mount ------------------------------------------------------------------------------------ */

static const struct {
    const char *plan, *goal; /* NULL: the engine has no such pools */
} settings[REPLAY_POOLS] = {[REPLAY_IO] = {"auto", "io"},
                            [REPLAY_MAKESPAN] = {"auto", "makespan"},
                            [REPLAY_CODED] = {"C=100", "io"},
                            [REPLAY_FULL] = {"F=100", "io"}};

bool replay_engine_pools(const struct replay_policy *policy, const char **plan, const char **goal)
{
    *plan = settings[policy->pools].plan;
    *goal = settings[policy->pools].goal;
    return !policy->published && policy->cache == REPLAY_CACHE_NONE && *plan;
}

errint_t replay_mount_describe(const char *mountpoint, struct replay_run_record *record, struct efs_error *err)
{
    char plan[64], goal[64], *config;
    errint_t rc = tools_control_read(mountpoint, "config", &config, err);
    if (rc < 0)
        return rc;
    record->budget_bytes = tools_line_number(config, "budget_bytes");
    tools_line_text(config, "policy", record->policy.name, sizeof(record->policy.name));
    tools_line_text(config, "plan", plan, sizeof(plan));
    tools_line_text(config, "goal", goal, sizeof(goal));
    free(config);
    bool planned = strcmp(plan, "auto") == 0;
    for (unsigned p = 0; p < REPLAY_POOLS; p++)
        if (settings[p].plan && (planned ? strcmp(goal, settings[p].goal) == 0 && p <= REPLAY_MAKESPAN
                                         : strstr(plan, settings[p].plan) != NULL))
            record->policy.pools = (enum replay_pools)p;
    return 0;
}
