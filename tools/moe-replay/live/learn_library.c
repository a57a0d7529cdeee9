/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn_library.c - what a run of the library knows when it has ended (see learn.c, of mounts). The library runs a
 * layer's experts by itself, so that the process that plays knows but when it asked and when all had run. The chart of
 * reads says when each expert came. What a layer takes where nothing is read is what running takes; one that reads
 * takes besides what it takes to begin, and what it is later than if each expert had run as soon as it came and the one
 * before it was done: checking what was read, waking, waiting for a core.
 */
#include "live.h"
#include "samples.h"

#include "expertfs-private.h"
#include "mounted.h"
#include "operations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_LAYERS 384u /* between two looks at the chart, which holds the latest operations alone */

struct replay_notes {
    const struct replay_play *play;
    struct efs *fs;
    struct note {
        size_t request;
        uint64_t asked_ns, over_ns;
    } * notes; /* layers since the last look */
    uint32_t count, room;
    uint64_t over_ns; /* the layer before this one; 0: none in this pass */
    struct replay_samples layer, full, read;
    struct replay_learned learned;
};

struct replay_notes *replay_notes_new(const struct replay_play *play, struct efs *fs)
{
    struct replay_notes *n = calloc(1, sizeof(*n));
    if (!n)
        return NULL;
    n->play = play;
    n->fs = fs;
    n->room = LOOK_LAYERS + play->workload->layers;
    n->notes = calloc(n->room, sizeof(*n->notes));
    if (n->notes)
        return n;
    free(n);
    return NULL;
}

void replay_notes_free(struct replay_notes *n)
{
    if (n)
        free(n->notes);
    free(n);
}

void replay_notes_layer(struct replay_notes *n, size_t request, uint64_t asked_ns, uint64_t over_ns)
{
    if (n->over_ns)
        replay_samples_add(&n->layer, (double)(asked_ns - n->over_ns));
    n->over_ns = over_ns;
    if (n->count < n->room)
        n->notes[n->count++] = (struct note){request, asked_ns, over_ns};
}

/* ---- what the library tells ----------------------------------------------------------------------------------- */

/* The number behind "name: " in one of its texts; 0: there is none. */
static double told(void *store, const char *what, const char *name)
{
    char *text, *rest, *line;
    size_t bytes;
    double number = 0;
    if (efs_describe(store, what, &text, &bytes) < 0)
        return 0;
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const char *value = tools_line_value(line, name);
        if (value)
            number = strtod(value, NULL);
    }
    free(text);
    return number;
}

static void note_pools(struct replay_notes *n, uint64_t tokens)
{
    static const char letters[EFS_POOLS] = {'F', 'C', 'S', 'E'};
    struct replay_learned *l = &n->learned;
    struct replay_pools_at now = {.tokens = tokens};
    for (unsigned p = 0; p < EFS_POOLS; p++) {
        struct efs_pool_info info;
        if (efs_pool_info(n->fs, letters[p], &info, sizeof(info)) < 0)
            return;
        now.capacity[p] = info.capacity_bytes;
    }
    if (l->plans < REPLAY_PLANS &&
        (l->plans == 0 || memcmp(l->pools[l->plans - 1].capacity, now.capacity, sizeof(now.capacity)) != 0))
        l->pools[l->plans++] = now;
}

/* ---- layers beside the chart ---------------------------------------------------------------------------------- */

static bool is_of(const struct tools_operation *o, const struct replay_expert *expert)
{
    const char *name = expert->path + strlen("experts/");
    size_t bytes = strlen(o->expert);
    return strncmp(name, o->expert, bytes) == 0 && name[bytes] == '.';
}

static int compare_ns(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* When each expert of a layer came, in order; *first: when the first read for it began. false: nothing was read. */
static bool layer_arrivals(const struct replay_notes *n, const struct note *note, const struct tools_operations *chart,
                           uint64_t *arrived, uint32_t *count, uint64_t *first)
{
    const struct replay_workload *w = n->play->workload;
    const size_t *ids = &w->first[note->request];
    bool reads = false;
    *first = UINT64_MAX;
    *count = (uint32_t)(ids[1] - ids[0]);
    for (uint32_t i = 0; i < *count; i++)
        arrived[i] = note->asked_ns;
    for (size_t o = 0; o < chart->count && chart->operations[o].begin_ns < note->over_ns; o++) {
        const struct tools_operation *op = &chart->operations[o];
        if (op->kind == TOOLS_DECODE || op->end_ns <= note->asked_ns || op->end_ns > note->over_ns)
            continue;
        for (uint32_t i = 0; i < *count; i++)
            if (is_of(op, replay_model_expert(&n->play->live->model, (uint32_t)(note->request % w->layers),
                                              w->ids[ids[0] + i]))) {
                arrived[i] = op->end_ns > arrived[i] ? op->end_ns : arrived[i];
                *first = op->begin_ns < *first ? op->begin_ns : *first;
                reads = true;
            }
    }
    qsort(arrived, *count, sizeof(*arrived), compare_ns);
    return reads;
}

/* What a layer that reads takes beside its reads and runs. */
static double beside(const struct note *note, const uint64_t *arrived, uint32_t count, uint64_t first, double run_ns)
{
    double begun = first > note->asked_ns ? (double)(first - note->asked_ns) : 0, end = 0;
    for (uint32_t i = 0; i < count; i++) {
        double came = (double)(arrived[i] - note->asked_ns);
        end = (came > end ? came : end) + run_ns;
    }
    double late = (double)(note->over_ns - note->asked_ns) - end;
    return begun + (late > 0 ? late : 0);
}

static double run_ns_of(const struct replay_notes *n)
{
    return n->full.count ? replay_samples_mean(&n->full) : told(n->fs, "plan", "product_coded_ns");
}

/* Layers that read, or those that do not. */
static void look_at_layers(struct replay_notes *n, const struct tools_operations *chart, bool reading)
{
    uint64_t arrived[REPLAY_REQUEST_MAX], first;
    uint32_t count;
    double run_ns = run_ns_of(n);
    for (uint32_t i = 0; i < n->count; i++) {
        const struct note *note = &n->notes[i];
        if (note->asked_ns <= chart->operations[0].begin_ns) /* the chart may not have all of it any more */
            continue;
        bool reads = layer_arrivals(n, note, chart, arrived, &count, &first);
        if (reads && reading)
            replay_samples_add(&n->read, beside(note, arrived, count, first, run_ns));
        else if (!reads && !reading)
            replay_samples_add(&n->full, (double)(note->over_ns - note->asked_ns) / count);
    }
}

static void look(struct replay_notes *n)
{
    struct efs_error ignored = {""};
    struct tools_operations chart;
    char *text;
    size_t bytes;
    if (efs_describe(n->fs, "sched", &text, &bytes) < 0)
        return;
    FILE *in = fmemopen(text, bytes, "r");
    if (in && tools_operations_take(in, "sched", 0, &chart, &ignored) == 0) {
        look_at_layers(n, &chart, false);
        look_at_layers(n, &chart, true);
        tools_operations_free(&chart);
    }
    if (in)
        fclose(in);
    free(text);
    n->count = 0;
}

void replay_notes_pass(struct replay_notes *n, uint64_t tokens)
{
    n->over_ns = 0;
    note_pools(n, tokens);
    if (n->count >= LOOK_LAYERS)
        look(n);
}

void replay_notes_end(struct replay_notes *n, struct replay_learned *learned)
{
    struct replay_learned *l = &n->learned;
    look(n);
    l->run_ns = run_ns_of(n);
    l->read_turn_ns = replay_samples_mean(&n->read);
    l->layer_ns = replay_samples_mean(&n->layer);
    replay_learned_take(l, told, n->fs);
    if (replay_learned_check(l))
        *learned = *l;
}
