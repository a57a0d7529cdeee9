/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn.c - what a real run knows when it has ended, for a simulation beside it: what reads and decodes took by
 * the mount's own count, and from the player's clock beside the chart of operations what a layer takes that is none.
 */
#include "live.h"
#include "mount.h"
#include "samples.h"

#include "clock.h"
#include "operations.h"

#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOK_EVERY_NS 1500000000u /* at the chart, which holds the latest operations alone */
#define LOOK_PAUSE_NS 60000000L
#define LAST_LOOK_NS UINT64_C(5000000000)

/* ---- turn-around: the time of a layer that is neither operation nor running experts --------------------------- */

struct look { /* of the process that looks */
    const char *mountpoint;
    const struct replay_stand *stand;
    struct replay_samples full, coded, read; /* layers that found all full; that decoded what was kept; that read */
    struct replay_samples wakes, betweens;
    uint64_t looked_ns, seen_ns; /* the latest look at the chart; the latest layer that was in it */
    struct replay_moment moments[REPLAY_MOMENTS];
};

/* When there was something to decode for this operation: after its reads, or from the layer's first operation on. */
static uint64_t available_ns(const struct tools_operation *layer, size_t count, const struct tools_operation *decode)
{
    uint64_t at = layer[0].begin_ns;
    for (size_t i = 0; i < count; i++)
        if (layer[i].kind != TOOLS_DECODE && layer[i].unit == decode->unit && layer[i].end_ns > at &&
            layer[i].end_ns <= decode->begin_ns && strcmp(layer[i].expert, decode->expert) == 0)
            at = layer[i].end_ns;
    return at;
}

/* A worker that decoded nothing though there was enough for all: it was late by as long as the others took. */
static void add_absent(struct look *t, const struct tools_operations *g, const struct tools_operation *layer,
                       size_t count)
{
    uint64_t end = layer[0].begin_ns;
    size_t decodes = 0, workers = 0;
    for (size_t i = 0; i < count; i++)
        if (layer[i].kind == TOOLS_DECODE) {
            decodes++;
            end = layer[i].end_ns > end ? layer[i].end_ns : end;
        }
    for (uint32_t l = 0; l < g->lanes; l++)
        workers += !g->lane[l].reads;
    for (uint32_t l = 0; l < g->lanes && decodes >= workers; l++) {
        bool there = g->lane[l].reads;
        for (size_t i = 0; i < count && !there; i++)
            there = layer[i].kind == TOOLS_DECODE && layer[i].thread == g->lane[l].thread;
        if (!there)
            replay_samples_add(&t->wakes, (double)(end - layer[0].begin_ns));
    }
}

/* How late decodes began: of workers that had nothing to do when it was there, and after another decode. */
static void add_wakes(struct look *t, const struct tools_operations *g, const struct tools_operation *layer,
                      size_t count)
{
    add_absent(t, g, layer, count);
    for (size_t i = 0; i < count; i++) {
        if (layer[i].kind != TOOLS_DECODE)
            continue;
        uint64_t at = available_ns(layer, count, &layer[i]), before = 0;
        for (size_t n = 0; n < i; n++)
            if (layer[n].kind == TOOLS_DECODE && layer[n].thread == layer[i].thread && layer[n].end_ns > before)
                before = layer[n].end_ns;
        if (before < at)
            replay_samples_add(&t->wakes, (double)(layer[i].begin_ns - at));
        else
            replay_samples_add(&t->betweens, (double)(layer[i].begin_ns - before));
    }
}

/*
 * Of one layer: from asking to its first operation; from its last operation, if the player waited for it, until it
 * heard; giving back. operations are by begin; *next: the first that the layer before did not have.
 */
static void add_turn(struct look *t, const struct replay_moment *m, const struct tools_operations *g, size_t *next)
{
    uint64_t first = UINT64_MAX, last = 0;
    bool reads = false;
    double turn = (double)(m->over_ns - m->run_ns);
    while (*next < g->count && g->operations[*next].begin_ns < m->asked_ns)
        ++*next;
    size_t begin = *next;
    for (; *next < g->count && g->operations[*next].begin_ns < m->here_ns; ++*next) {
        const struct tools_operation *o = &g->operations[*next];
        first = o->begin_ns < first ? o->begin_ns : first;
        reads = reads || o->kind != TOOLS_DECODE;
        last = o->end_ns > last && o->end_ns <= m->here_ns ? o->end_ns : last;
    }
    if (last == 0) {
        replay_samples_add(&t->full, turn + (double)(m->here_ns - m->waiting_ns));
        return;
    }
    turn += (double)(first - m->asked_ns);
    if (last >= m->waiting_ns)
        turn += (double)(m->here_ns - last);
    replay_samples_add(reads ? &t->read : &t->coded, turn);
    add_wakes(t, g, &g->operations[begin], *next - begin);
}

/* The layers that the chart has all operations of. */
static void look_at_chart(struct look *t)
{
    struct efs_error ignored = {""};
    struct tools_operations chart;
    char path[4200];
    uint64_t runs, run_ns;
    size_t next = 0;
    snprintf(path, sizeof(path), "%s/.expertfs/sched", t->mountpoint);
    t->looked_ns = tools_now_ns();
    uint32_t count = replay_stand_moments(t->stand, t->moments, &runs, &run_ns);
    if (tools_operations_read(path, 0, &chart, &ignored) < 0)
        return;
    uint64_t oldest = chart.operations[0].begin_ns > t->seen_ns ? chart.operations[0].begin_ns : t->seen_ns;
    for (uint32_t i = 0; i < count; i++)
        if (t->moments[i].asked_ns > oldest) {
            add_turn(t, &t->moments[i], &chart, &next);
            t->seen_ns = t->moments[i].asked_ns;
        }
    tools_operations_free(&chart);
}

/* "F 452984832 ...". false: they are not told. */
static bool read_pools(const char *mountpoint, uint64_t capacity[EFS_POOLS])
{
    static const char letters[EFS_POOLS] = {'F', 'C', 'S', 'E'};
    char path[4200], line[512], letter;
    unsigned found = 0;
    snprintf(path, sizeof(path), "%s/.expertfs/pools", mountpoint);
    FILE *in = fopen(path, "re");
    while (in && fgets(line, sizeof(line), in)) {
        uint64_t bytes;
        if (sscanf(line, "%c %" SCNu64, &letter, &bytes) != 2)
            continue;
        for (unsigned p = 0; p < EFS_POOLS; p++)
            if (letter == letters[p]) {
                capacity[p] = bytes;
                found |= 1u << p;
            }
    }
    if (in)
        fclose(in);
    return found == (1u << EFS_POOLS) - 1;
}

static void look_at_pools(const struct look *t, struct replay_learned *l)
{
    struct replay_pools_at now = {.tokens = replay_stand_tokens(t->stand)};
    if (l->plans == REPLAY_PLANS || !read_pools(t->mountpoint, now.capacity))
        return;
    if (l->plans == 0 || memcmp(l->pools[l->plans - 1].capacity, now.capacity, sizeof(now.capacity)) != 0)
        l->pools[l->plans++] = now;
}

/* ---- all of it ---------------------------------------------------------------------------------------------- */

static double told(void *look, const char *text, const char *name)
{
    return replay_mount_number(((const struct look *)look)->mountpoint, text, name);
}

static void learn_last(struct look *t, struct replay_learned *l)
{
    uint64_t runs, run_ns;
    replay_learned_take(l, told, t);
    if (!replay_learned_check(l))
        return;
    look_at_chart(t);
    replay_stand_moments(t->stand, t->moments, &runs, &run_ns);
    l->run_ns = runs ? (double)run_ns / (double)runs : 0;
    l->full_turn_ns = replay_samples_mean(&t->full);
    l->coded_turn_ns = replay_samples_mean(t->coded.count ? &t->coded : &t->read);
    l->read_turn_ns = replay_samples_mean(t->read.count ? &t->read : &t->coded);
    l->wake_ns = replay_samples_mean(&t->wakes);
    l->between_ns = replay_samples_mean(&t->betweens);
}

/* ---- the process that looks ----------------------------------------------------------------------------------- */

struct replay_learner { /* shared with it */
    pid_t pid;
    _Atomic bool stop;
    struct replay_learned learned;
};

static void pause_ns(long ns)
{
    const struct timespec t = {.tv_nsec = ns};
    nanosleep(&t, NULL);
}

static void learn_look(struct replay_learner *learner, const char *mountpoint, const struct replay_stand *stand)
{
    struct look *t = calloc(1, sizeof(*t));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid(); /* Ctrl-C is for the process that started it */
    if (!t)
        _exit(1);
    *t = (struct look){.mountpoint = mountpoint, .stand = stand, .looked_ns = tools_now_ns()};
    while (!atomic_load(&learner->stop)) {
        look_at_pools(t, &learner->learned);
        if (tools_now_ns() - t->looked_ns >= LOOK_EVERY_NS)
            look_at_chart(t);
        pause_ns(LOOK_PAUSE_NS);
    }
    learn_last(t, &learner->learned);
    _exit(0);
}

struct replay_learner *replay_learner_start(const char *mountpoint, const struct replay_stand *stand)
{
    struct replay_learner *learner =
        mmap(NULL, sizeof(*learner), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (learner == MAP_FAILED)
        return NULL;
    pid_t pid = fork();
    if (pid == 0)
        learn_look(learner, mountpoint, stand);
    if (pid < 0) {
        munmap(learner, sizeof(*learner));
        return NULL;
    }
    learner->pid = pid;
    return learner;
}

void replay_learner_end(struct replay_learner *learner, struct replay_learned *learned)
{
    int status = 1;
    if (!learner)
        return;
    uint64_t end = tools_now_ns() + LAST_LOOK_NS;
    atomic_store(&learner->stop, true);
    while (waitpid(learner->pid, &status, WNOHANG) == 0 && tools_now_ns() < end + LAST_LOOK_NS) {
        if (tools_now_ns() > end) /* one that waits for the mount even so goes with the mount */
            kill(learner->pid, SIGKILL);
        pause_ns(LOOK_PAUSE_NS / 8);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        *learned = learner->learned;
    munmap(learner, sizeof(*learner));
}
