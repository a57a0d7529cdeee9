/* SPDX-License-Identifier: Apache-2.0 */
/* player.c - the process that plays a workload: layer by layer request, compute what is ready, release. */
#include "live.h"
#include "reader.h"

#include "clock.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

struct replay_stand {
    size_t bytes;
    _Atomic uint64_t passes, tokens;
    _Atomic bool stop;
    errint_t rc;
    struct efs_error err;
    struct replay_counters before, now;
    uint64_t check;
    uint64_t runs, run_ns;
    struct replay_learned learned; /* of a store in its process */
    _Atomic uint64_t moment_count; /* so far */
    struct replay_moment moments[REPLAY_MOMENTS];
    uint64_t pass_ns[];
};

struct replay_stand *replay_stand_new(uint64_t passes)
{
    size_t bytes = sizeof(struct replay_stand) + passes * sizeof(uint64_t);
    struct replay_stand *s = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED)
        return NULL;
    s->bytes = bytes;
    return s;
}

void replay_stand_free(struct replay_stand *s)
{
    if (s)
        munmap(s, s->bytes);
}

uint64_t replay_stand_tokens(const struct replay_stand *s)
{
    return atomic_load(&s->tokens);
}

void replay_stand_stop(struct replay_stand *s)
{
    atomic_store(&s->stop, true);
}

/* ---- playing ------------------------------------------------------------------------------------------------ */

static errint_t request_layer(const struct replay_play *p, struct replay_reader *reader, struct replay_compute *compute,
                              uint64_t pass, uint32_t layer, struct replay_stand *s)
{
    const struct replay_workload *w = p->workload;
    const size_t *first = &w->first[pass * w->layers + layer];
    struct replay_view view;
    uint32_t count = (uint32_t)(first[1] - first[0]);
    struct replay_moment moment = {.asked_ns = tools_now_ns()};
    errint_t rc = reader->request(reader, layer, &w->ids[first[0]], &w->of_them[first[0]], count, &s->err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        moment.waiting_ns = i ? moment.run_ns : tools_now_ns();
        rc = reader->next(reader, &view, &s->err);
        moment.here_ns = tools_now_ns();
        if (rc == 0)
            rc = replay_compute_run(compute, &view, &s->err);
        moment.run_ns = tools_now_ns();
        s->run_ns += moment.run_ns - moment.here_ns;
        s->runs++;
    }
    reader->release(reader);
    moment.over_ns = tools_now_ns();
    uint64_t at = atomic_load(&s->moment_count);
    s->moments[at % REPLAY_MOMENTS] = moment;
    atomic_store(&s->moment_count, at + 1);
    return rc;
}

/* The reader runs the experts itself. notes: NULL, or of the store in this process. */
static errint_t run_layer(struct replay_reader *reader, struct replay_compute *compute, size_t request,
                          struct replay_notes *notes, struct replay_stand *s)
{
    uint64_t asked_ns = tools_now_ns();
    errint_t rc = reader->run(reader, replay_compute_team(compute), replay_compute_mixture(compute), &s->err);
    if (notes && rc == 0)
        replay_notes_layer(notes, request, asked_ns, tools_now_ns());
    return rc;
}

/* at: the tokens of the pass, in the trace. */
static errint_t play_layer(const struct replay_play *p, struct replay_reader *reader, struct replay_compute *compute,
                           uint64_t pass, const uint64_t *at, uint32_t layer, struct replay_notes *notes,
                           struct replay_stand *s)
{
    if (p->layer_ns > 0) {
        const struct timespec t = {(time_t)(p->layer_ns / 1000000000u), (long)(p->layer_ns % 1000000000u)};
        nanosleep(&t, NULL);
    }
    replay_compute_begin(compute, at, p->workload->width[pass], layer);
    errint_t rc = reader->run ? run_layer(reader, compute, pass * p->workload->layers + layer, notes, s)
                              : request_layer(p, reader, compute, pass, layer, s);
    if (rc == 0)
        replay_compute_end(compute);
    return rc;
}

/* What is guessed from this pass on, if another turn begins with it. */
static errint_t take_turn(const struct replay_play *p, const struct replay_reader *reader, uint64_t pass,
                          struct replay_stand *s)
{
    uint32_t turns = p->guesses ? p->live->turns : 0;
    if (turns == 0 || pass % turns)
        return 0;
    const char *prefetch = (pass / turns % 2 != 0) == p->begins_without ? p->live->prefetch : p->live->without;
    if (reader->fs)
        return efs_set(reader->fs, "prefetch", prefetch, NULL, &s->err);
    if (setxattr(p->mountpoint, "user.expertfs.prefetch", prefetch, strlen(prefetch), 0) == 0)
        return 0;
    return efs_fail(&s->err, -errno, "%s: prefetch=%s: %s", p->mountpoint, prefetch, strerror(errno));
}

static errint_t play_all(const struct replay_play *p, struct replay_reader *reader, struct replay_compute *compute,
                         struct replay_notes *notes, struct replay_stand *s)
{
    const struct replay_workload *w = p->workload;
    const uint64_t *at = w->at;
    errint_t rc = reader->count(reader, &s->before, &s->err);
    s->now = s->before;
    for (uint64_t pass = 0; rc == 0 && pass < w->passes && !atomic_load(&s->stop); pass++) {
        rc = take_turn(p, reader, pass, s);
        uint64_t began = tools_now_ns(), off = reader->off_clock_ns;
        for (uint32_t l = 0; rc == 0 && l < w->layers; l++)
            rc = atomic_load(&s->stop) ? -ECANCELED : play_layer(p, reader, compute, pass, at, l, notes, s);
        if (rc < 0)
            break;
        s->pass_ns[pass] = tools_now_ns() - began - (reader->off_clock_ns - off);
        rc = reader->count(reader, &s->now, &s->err); /* not on the clock */
        s->check = replay_compute_check(compute);
        atomic_store(&s->passes, pass + 1);
        atomic_fetch_add(&s->tokens, w->width[pass]);
        if (notes)
            replay_notes_pass(notes, atomic_load(&s->tokens));
        at += w->width[pass];
    }
    return rc == -ECANCELED ? 0 : rc;
}

/* Memory that was used a moment ago: in a virtual machine the host must find what was not. */
static void warm_memory(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return;
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    (void)madvise(memory, bytes, MADV_POPULATE_WRITE);
    munmap(memory, bytes);
}

static errint_t open_reader(const struct replay_play *p, uint32_t request_max, struct replay_reader **reader,
                            struct efs_error *err)
{
    const struct replay_model *model = &p->live->model;
    if (p->library) {
        setenv("EXPERTFS_STATE", p->live->stage.state, 1);
        return replay_reader_library(p->live->store, p->library, reader, err);
    }
    switch (p->runner) {
    case REPLAY_EXPERTFS:
        return replay_reader_mount(model, p->mountpoint, request_max,
                                   p->compute == REPLAY_COMPUTE_FFN_CODED ? &p->form : NULL, p->guesses, reader, err);
    case REPLAY_MMAP:
        if (p->live->prealloc)
            warm_memory(p->budget_bytes);
        return replay_reader_mmap(model, request_max, reader, err);
    default:
        return replay_reader_lru(model, p->budget_bytes, request_max, p->live->prealloc, reader, err);
    }
}

static errint_t player_run(const struct replay_play *p, struct replay_stand *s)
{
    const struct replay_workload *w = p->workload;
    struct replay_reader *reader = NULL;
    uint32_t request_max = 1;
    for (size_t r = 0; r < w->passes * w->layers; r++)
        if (w->first[r + 1] - w->first[r] > request_max)
            request_max = (uint32_t)(w->first[r + 1] - w->first[r]);
    errint_t rc = p->limited ? replay_cgroup_enter(&p->live->stage.cgroup) : 0;
    if (rc < 0)
        return efs_fail(&s->err, rc, "%s: %s", p->live->stage.cgroup.path, strerror(-rc));
    rc = open_reader(p, request_max, &reader, &s->err);
    if (rc < 0)
        return rc;
    struct replay_compute *compute = replay_compute_new(p->compute, p->live->threads, &p->live->model, w);
    struct replay_notes *notes = reader->fs ? replay_notes_new(p, reader->fs) : NULL;
    rc = compute && !notes == !reader->fs ? play_all(p, reader, compute, notes, s)
                                          : efs_fail(&s->err, -ENOMEM, "no memory");
    if (notes)
        replay_notes_end(notes, &s->learned);
    replay_notes_free(notes);
    replay_compute_free(compute);
    reader->close(reader);
    return rc;
}

pid_t replay_player_start(const struct replay_play *p, struct replay_stand *s)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid < 0 ? -errno : pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid(); /* Ctrl-C is for the process that started it */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    s->rc = player_run(p, s);
    _exit(s->rc == 0 ? 0 : 1);
}

const struct replay_learned *replay_stand_learned(const struct replay_stand *s)
{
    return &s->learned;
}

uint32_t replay_stand_moments(const struct replay_stand *s, struct replay_moment *moments, uint64_t *runs,
                              uint64_t *run_ns)
{
    uint64_t all = atomic_load(&s->moment_count), count = all < REPLAY_MOMENTS / 2 ? all : REPLAY_MOMENTS / 2;
    for (uint64_t i = 0; i < count; i++) /* it goes on meanwhile, and writes over what is older than these */
        moments[i] = s->moments[(all - count + i) % REPLAY_MOMENTS];
    *runs = s->runs;
    *run_ns = s->run_ns;
    return (uint32_t)count;
}

/* ---- afterwards --------------------------------------------------------------------------------------------- */

uint64_t *replay_stand_passes(const struct replay_stand *s)
{
    uint64_t *pass_ns = calloc(s->passes + 1, sizeof(*pass_ns));
    if (pass_ns)
        memcpy(pass_ns, s->pass_ns, s->passes * sizeof(*pass_ns));
    return pass_ns;
}

errint_t replay_stand_result(const struct replay_stand *s, const struct replay_workload *w, struct replay_result *r,
                             uint64_t *check, struct efs_error *err)
{
    *r = (struct replay_result){.passes = s->passes, .tokens = s->tokens, .requests = s->passes * w->layers};
    for (unsigned state = 0; state < REPLAY_STATES; state++)
        r->all.hits[state] = s->now.hits[state] - s->before.hits[state];
    uint64_t asked = w->first[r->passes * w->layers], counted = 0;
    for (unsigned state = 0; state < REPLAY_STATES; state++)
        counted += r->all.hits[state];
    if (counted < asked) /* still open from the last time: the mount did not hear of it */
        r->all.hits[EFS_POOL_F] += asked - counted;
    for (uint64_t i = 0; i < r->passes; i++)
        r->all.time_ns += s->pass_ns[i];
    r->all.read_bytes = s->now.read_bytes - s->before.read_bytes;
    r->all.busy_ns[EFS_ON_IO] = s->now.io_ns - s->before.io_ns;
    r->all.busy_ns[EFS_ON_WORKER] = s->now.decode_ns - s->before.decode_ns;
    r->policy_ns = r->requests ? (double)(s->now.policy_ns - s->before.policy_ns) / (double)r->requests : 0;
    r->recoded_bytes = (double)(s->now.recoded_bytes - s->before.recoded_bytes);
    r->guesses = (struct replay_guesses){.missed = s->now.missed - s->before.missed,
                                         .covered = s->now.covered - s->before.covered,
                                         .late = s->now.late - s->before.late,
                                         .wasted = s->now.wasted - s->before.wasted,
                                         .cancelled = s->now.cancelled - s->before.cancelled,
                                         .bytes = s->now.guessed_bytes - s->before.guessed_bytes,
                                         .wasted_bytes = s->now.wasted_bytes - s->before.wasted_bytes};
    *check = s->check;
    int rc = replay_take_times(w, s->pass_ns, NULL, 0, r);
    return s->rc < 0 ? efs_fail(err, s->rc, "%s", s->err.text) : rc < 0 ? efs_fail(err, rc, "no memory") : 0;
}
