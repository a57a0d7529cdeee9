/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assign_simulate.c - simulates a workload layer by layer, with the experts assigned by a rule or a whole system.
 *
 * The link first transfers the experts that the GPU runs and does not have. In the rest of the layer's time it
 * transfers the experts that the cache swaps in, then those predicted for the next layer; a transfer that is not
 * complete when the next layer starts is continued there.
 */
#include "assign_command.h"

#include "gpu_cache.h"
#include "tables.h"

#include "expertfs-clock-private.h"

#include <errno.h>
#include <string.h>

#define DENSE_BYTES (2.0 * (1u << 30)) /* GPU memory reserved for everything but experts */
#define PREFETCHES_MAX 2u              /* most experts transferred ahead for the next layer */
#define CACHE_SWAPS 2u                 /* most experts swapped at a time, DALI's u */
#define RULES_HISTORY_PART 10u         /* without a history, the first tenth of the trace is counted */

struct move { /* a queued transfer into the cache */
    uint32_t layer, in;
};

struct player {
    struct efs_tables tables;
    const struct replay_assign_setup *setup;
    const struct replay_workload *w;
    uint32_t places; /* capacity of the cache, experts per layer */
    uint64_t transfer_ns, room_bytes;
    bool *cached;                 /* [layers][experts]: in the GPU's memory */
    bool *planned;                /* [layers][experts]: in the cache once all moves are done */
    uint64_t *score, *used;       /* [layers][experts]: count in the window; clock of the last use, for LRU */
    struct efs_gpu_cache *window; /* [layers] */
    uint32_t *tokens;             /* [experts] of the current layer */
    struct efs_assign_expert *expert;
    uint8_t *device;
    uint64_t *ns, *bytes;    /* [2][experts]: the layer as a problem */
    uint64_t *ahead_ns;      /* [experts]: time of the transfer for this layer that was spent before it started */
    uint64_t *next_ahead_ns; /* the same for the next layer */
    uint32_t *transitions;   /* [layers][experts][experts]: tokens that chose e, then f one layer later; or NULL */
    double *guess;           /* [experts]: predicted number of tokens in the next layer */
    struct move *moves;      /* ring buffer */
    size_t moves_room, moves_first, moves_count;
    uint64_t move_done_ns, clock;
};

/* ---- the initial cache ---------------------------------------------------------------------------------------- */

static void count_workload(const struct replay_workload *w, uint64_t passes, uint64_t *count)
{
    for (uint64_t pass = 0; pass < passes; pass++)
        for (uint32_t l = 0; l < w->layers; l++)
            for (size_t i = w->first[pass * w->layers + l]; i < w->first[pass * w->layers + l + 1]; i++)
                count[(size_t)l * w->experts + w->ids[i]] += w->of_them[i];
}

static void cache_popular(struct player *p)
{
    const struct replay_workload *w = p->w, *history = p->setup->history;
    memset(p->score, 0, (size_t)w->layers * w->experts * sizeof(*p->score));
    count_workload(history ? history : w, history ? history->passes : w->passes / RULES_HISTORY_PART, p->score);
    for (uint32_t l = 0; l < w->layers; l++)
        for (uint32_t n = 0; n < p->places; n++) {
            size_t best = (size_t)l * w->experts;
            for (size_t i = best; i < (size_t)(l + 1) * w->experts; i++)
                if (!p->cached[i] && (p->cached[best] || p->score[i] > p->score[best]))
                    best = i;
            p->cached[best] = p->planned[best] = true;
        }
    memset(p->score, 0, (size_t)w->layers * w->experts * sizeof(*p->score));
}

static errint_t player_open(struct player *p, const struct replay_assign_setup *setup, const struct replay_workload *w)
{
    size_t all = (size_t)w->layers * w->experts;
    double held = setup->cached * w->experts * w->layers * (double)setup->cpu.expert_bytes;
    *p = (struct player){.setup = setup, .w = w, .places = (uint32_t)(setup->cached * w->experts)};
    if (held + DENSE_BYTES > setup->gpu.memory_bytes)
        return -ENOSPC;
    p->room_bytes = (uint64_t)(setup->gpu.memory_bytes - DENSE_BYTES - held);
    p->transfer_ns = (uint64_t)replay_gpu_transfer_ns(&setup->gpu, setup->cpu.expert_bytes);
    p->moves_room = (size_t)w->layers * EFS_GPU_SWAPS_MAX;
    EFS_TABLE(&p->tables, p->cached, all);
    EFS_TABLE(&p->tables, p->planned, all);
    EFS_TABLE(&p->tables, p->score, all);
    EFS_TABLE(&p->tables, p->used, all);
    EFS_TABLE(&p->tables, p->window, w->layers);
    EFS_TABLE(&p->tables, p->tokens, w->experts);
    EFS_TABLE(&p->tables, p->expert, w->experts);
    EFS_TABLE(&p->tables, p->device, w->experts);
    EFS_TABLE(&p->tables, p->ns, 2 * w->experts);
    EFS_TABLE(&p->tables, p->bytes, 2 * w->experts);
    EFS_TABLE(&p->tables, p->ahead_ns, w->experts);
    EFS_TABLE(&p->tables, p->next_ahead_ns, w->experts);
    EFS_TABLE(&p->tables, p->guess, w->experts);
    EFS_TABLE(&p->tables, p->moves, p->moves_room);
    if (efs_tables_error(&p->tables) < 0)
        return -ENOMEM;
    for (uint32_t l = 0; l < w->layers; l++)
        p->window[l] = (struct efs_gpu_cache){.experts = w->experts,
                                              .window = EFS_GPU_WINDOW,
                                              .swaps = CACHE_SWAPS,
                                              .cached = p->planned + (size_t)l * w->experts,
                                              .score = p->score + (size_t)l * w->experts};
    return 0;
}

/* ---- a layer -------------------------------------------------------------------------------------------------- */

static struct efs_assign_pair describe(struct player *p, uint64_t pass, uint32_t layer)
{
    const struct replay_workload *w = p->w;
    const struct replay_assign_setup *s = p->setup;
    const bool *cached = p->cached + (size_t)layer * w->experts;
    memset(p->tokens, 0, w->experts * sizeof(*p->tokens));
    for (size_t i = w->first[pass * w->layers + layer]; i < w->first[pass * w->layers + layer + 1]; i++)
        p->tokens[w->ids[i]] = w->of_them[i];
    for (uint32_t e = 0; e < w->experts; e++) {
        uint32_t tokens = p->tokens[e];
        p->expert[e] = (struct efs_assign_expert){
            .tokens = tokens,
            .cached = cached[e] || p->ahead_ns[e] >= p->transfer_ns,
            .cpu_ns = (uint64_t)(replay_cpu_ns(&s->cpu, tokens) / s->cpu_speed) + (tokens > 0),
            .gpu_ns = (uint64_t)replay_gpu_compute_ns(&s->gpu, s->cpu.expert_bytes, tokens),
            .transfer_ns = p->transfer_ns - (p->ahead_ns[e] < p->transfer_ns ? p->ahead_ns[e] : p->transfer_ns),
            .bytes = s->cpu.expert_bytes};
    }
    return (struct efs_assign_pair){.experts = w->experts, .expert = p->expert, .room_bytes = p->room_bytes};
}

/* ---- comparison of the rules ----------------------------------------------------------------------------------- */

/* The optimal time of the layer. unknown: the search hit its limit, and the result is a lower bound. */
static double layer_optimum(struct player *p, const struct efs_assign_pair *pair, bool *unknown)
{
    uint64_t room[2];
    struct efs_assign_sum sum;
    *unknown = efs_assign_by(EFS_ASSIGN_OPTIMUM, pair, p->device, &sum) < 0;
    if (!*unknown)
        return (double)sum.makespan_ns;
    const struct efs_assign_problem problem = efs_assign_pair_problem(pair, p->ns, p->bytes, room);
    return (double)efs_assign_bound_ns(&problem);
}

static void compare_rules(struct player *p, const struct efs_assign_pair *pair, struct replay_assign_rules *r)
{
    bool unknown;
    uint64_t began = efs_now_ns();
    double optimum_ns = layer_optimum(p, pair, &unknown);
    r->rule[EFS_ASSIGN_OPTIMUM].decide_ns += (double)(efs_now_ns() - began);
    r->layers++;
    r->unknown += unknown;
    r->optimum_ns += optimum_ns;
    for (unsigned k = 0; k < EFS_ASSIGN_RULES; k++) {
        struct efs_assign_sum sum = {.makespan_ns = (uint64_t)optimum_ns};
        struct replay_assign_rule *rule = &r->rule[k];
        if (k != EFS_ASSIGN_OPTIMUM) {
            began = efs_now_ns();
            efs_assign_by((enum efs_assign_rule)k, pair, p->device, &sum);
            double took_ns = (double)(efs_now_ns() - began);
            rule->decide_ns += took_ns;
            rule->decide_worst_ns = took_ns > rule->decide_worst_ns ? took_ns : rule->decide_worst_ns;
        } else if (!unknown) {
            efs_assign_by(EFS_ASSIGN_OPTIMUM, pair, p->device, &sum);
        }
        rule->moe_ns += (double)sum.makespan_ns;
        double ratio = optimum_ns > 0 ? (double)sum.makespan_ns / optimum_ns : 1;
        rule->worst = ratio > rule->worst ? ratio : rule->worst;
    }
}

errint_t replay_assign_rules(const struct replay_assign_setup *setup, const struct replay_workload *w,
                             struct replay_assign_rules *result)
{
    struct player p;
    *result = (struct replay_assign_rules){0};
    errint_t rc = player_open(&p, setup, w);
    if (rc == 0)
        cache_popular(&p);
    for (uint64_t pass = 0; rc == 0 && pass < w->passes; pass++)
        for (uint32_t l = 0; l < w->layers; l++) {
            const struct efs_assign_pair pair = describe(&p, pass, l);
            compare_rules(&p, &pair, result);
        }
    efs_tables_free(&p.tables);
    return rc;
}

/* ---- predictions for the next layer ----------------------------------------------------------------------------- */

static const uint16_t *chosen_by(const struct replay_workload *w, uint64_t token, uint32_t layer)
{
    return w->route->ids + (w->at[token] * w->route->layers + layer) * w->route->chosen;
}

static void learn_transitions(uint32_t *transitions, const struct replay_workload *w, uint64_t first, uint32_t width)
{
    for (uint64_t t = first; t < first + width; t++)
        for (uint32_t l = 0; l + 1 < w->layers; l++)
            for (uint32_t i = 0; i < w->route->chosen; i++)
                for (uint32_t j = 0; j < w->route->chosen; j++)
                    transitions[((size_t)l * w->experts + chosen_by(w, t, l)[i]) * w->experts +
                                chosen_by(w, t, l + 1)[j]]++;
}

/* Predicts the number of tokens of each expert in the next layer, from the transitions. */
static void predict_next(struct player *p, uint64_t first, uint32_t width, uint32_t layer)
{
    const struct replay_workload *w = p->w;
    memset(p->guess, 0, w->experts * sizeof(*p->guess));
    for (uint64_t t = first; t < first + width; t++)
        for (uint32_t i = 0; i < w->route->chosen; i++) {
            const uint32_t *row =
                p->transitions + ((size_t)layer * w->experts + chosen_by(w, t, layer)[i]) * w->experts;
            double sum = 1;
            for (uint32_t e = 0; e < w->experts; e++)
                sum += row[e];
            for (uint32_t e = 0; e < w->experts; e++)
                p->guess[e] += row[e] / sum;
        }
}

static void predict_perfectly(struct player *p, uint64_t pass, uint32_t layer)
{
    const struct replay_workload *w = p->w;
    memset(p->guess, 0, w->experts * sizeof(*p->guess));
    for (size_t i = w->first[pass * w->layers + layer + 1]; i < w->first[pass * w->layers + layer + 2]; i++)
        p->guess[w->ids[i]] = w->of_them[i];
}

/* ---- transfers in the rest of a layer's time ------------------------------------------------------------------- */

/* Evicts a cached expert that is not planned. One exists: rows of cached and planned have the same number of experts.
 */
static void make_place(struct player *p, size_t row)
{
    uint32_t e = 0;
    while (e + 1 < p->w->experts && (!p->cached[row + e] || p->planned[row + e]))
        e++;
    p->cached[row + e] = false;
}

static uint64_t link_moves(struct player *p, uint64_t idle_ns, struct replay_assign_run *run)
{
    while (p->moves_count > 0) {
        const struct move *m = &p->moves[p->moves_first];
        size_t row = (size_t)m->layer * p->w->experts;
        bool wanted = p->planned[row + m->in] && !p->cached[row + m->in];
        if (wanted && idle_ns < p->transfer_ns - p->move_done_ns) {
            p->move_done_ns += idle_ns;
            return 0;
        }
        if (wanted) {
            idle_ns -= p->transfer_ns - p->move_done_ns;
            make_place(p, row);
            p->cached[row + m->in] = true;
            run->moved_bytes += (double)p->setup->cpu.expert_bytes;
        }
        p->move_done_ns = 0;
        p->moves_first = (p->moves_first + 1) % p->moves_room;
        p->moves_count--;
    }
    return idle_ns;
}

/* Starts up to two transfers for the next layer: of the missing experts with the most predicted tokens. */
static void link_prefetches(struct player *p, uint32_t layer, uint64_t idle_ns, struct replay_assign_run *run)
{
    const struct replay_workload *w = p->w;
    const bool *cached = p->cached + (size_t)(layer + 1) * w->experts;
    for (uint32_t n = 0; n < PREFETCHES_MAX && idle_ns > 0; n++) {
        uint32_t best = w->experts;
        for (uint32_t e = 0; e < w->experts; e++)
            if (!cached[e] && p->next_ahead_ns[e] == 0 && p->guess[e] > 0 &&
                (best == w->experts || p->guess[e] > p->guess[best]))
                best = e;
        if (best == w->experts)
            return;
        p->next_ahead_ns[best] = idle_ns < p->transfer_ns ? idle_ns : p->transfer_ns;
        idle_ns -= p->next_ahead_ns[best];
        run->guessed++;
        run->moved_bytes += (double)p->setup->cpu.expert_bytes;
    }
}

/* ---- cache policies -------------------------------------------------------------------------------------------- */

static void lru_update(struct player *p, uint32_t layer)
{
    size_t row = (size_t)layer * p->w->experts;
    p->clock++;
    for (uint32_t e = 0; e < p->w->experts; e++)
        if (p->tokens[e])
            p->used[row + e] = p->clock;
    for (uint32_t e = 0; e < p->w->experts && p->places > 0; e++) {
        if (p->device[e] != EFS_ASSIGN_GPU || p->cached[row + e])
            continue;
        uint32_t oldest = p->w->experts;
        for (uint32_t f = 0; f < p->w->experts; f++)
            if (p->cached[row + f] && (oldest == p->w->experts || p->used[row + f] < p->used[row + oldest]))
                oldest = f;
        p->cached[row + e] = true;
        p->cached[row + oldest] = false;
    }
}

static void window_update(struct player *p, uint32_t layer)
{
    struct efs_gpu_swap swaps[EFS_GPU_SWAPS_MAX];
    uint32_t count = efs_gpu_cache_pass(&p->window[layer], p->tokens, swaps);
    for (uint32_t i = 0; i < count && p->moves_count < p->moves_room; i++) {
        size_t at = (p->moves_first + p->moves_count++) % p->moves_room;
        p->moves[at] = (struct move){layer, swaps[i].in};
    }
}

/* ---- a system -------------------------------------------------------------------------------------------------- */

/* Time of the link to copy the missing experts of the layer that the GPU runs; paged: all missing experts. */
static uint64_t copy_ns(const struct player *p, bool paged)
{
    uint64_t ns = 0;
    for (uint32_t e = 0; e < p->w->experts; e++)
        if ((paged || p->device[e] == EFS_ASSIGN_GPU) && !p->expert[e].cached)
            ns += p->expert[e].transfer_ns;
    return ns;
}

/* MoE-Lightning: the copies of a layer overlap with the computation of another one. Its attention, on the CPU, overlaps
 * too, and is not in the times of the other systems. */
static int run_paged(struct player *p, struct efs_assign_sum *sum)
{
    uint64_t copies_ns = copy_ns(p, true);
    *sum = (struct efs_assign_sum){0};
    for (uint32_t e = 0; e < p->w->experts; e++) {
        p->device[e] = p->tokens[e] ? EFS_ASSIGN_GPU : EFS_ASSIGN_NONE;
        sum->device_ns[EFS_ASSIGN_GPU] += p->tokens[e] ? p->expert[e].gpu_ns : 0;
    }
    if (sum->device_ns[EFS_ASSIGN_GPU] < copies_ns)
        sum->device_ns[EFS_ASSIGN_GPU] = copies_ns;
    sum->makespan_ns = sum->device_ns[EFS_ASSIGN_GPU];
    return 0;
}

static errint_t play_layer(struct player *p, const struct replay_assign_system *system, uint64_t pass, uint64_t first,
                           uint32_t layer, struct replay_assign_run *run)
{
    const struct replay_workload *w = p->w;
    const struct efs_assign_pair pair = describe(p, pass, layer);
    struct efs_assign_sum sum;
    bool paged = system->layout == REPLAY_GPU_PAGED;
    uint64_t began = efs_now_ns();
    int rc = paged ? run_paged(p, &sum) : efs_assign_by(system->rule, &pair, p->device, &sum);
    if (rc < 0)
        return rc;
    run->decide_ns += (double)(efs_now_ns() - began);
    for (uint32_t e = 0; e < w->experts; e++) {
        run->asked += p->tokens[e] > 0;
        run->hits += p->tokens[e] > 0 && p->cached[(size_t)layer * w->experts + e];
        run->guessed_right += p->tokens[e] > 0 && p->ahead_ns[e] > 0;
    }
    uint64_t link_ns = copy_ns(p, paged);
    run->moved_bytes += (double)link_ns / (double)p->transfer_ns * (double)p->setup->cpu.expert_bytes;
    run->moe_ns += (double)sum.makespan_ns;
    run->cpu_ns += (double)sum.device_ns[EFS_ASSIGN_CPU];
    run->gpu_ns += (double)sum.device_ns[EFS_ASSIGN_GPU];
    run->time_ns += (double)sum.makespan_ns;
    if (system->keeps == REPLAY_GPU_LRU)
        lru_update(p, layer);
    else if (system->keeps == REPLAY_GPU_WINDOW)
        window_update(p, layer);
    uint64_t idle_ns = link_moves(p, sum.makespan_ns > link_ns ? sum.makespan_ns - link_ns : 0, run);
    memset(p->next_ahead_ns, 0, w->experts * sizeof(*p->next_ahead_ns));
    if (system->guess != REPLAY_PREDICT_NONE && layer + 1 < w->layers) {
        if (system->guess == REPLAY_PREDICT_ORACLE)
            predict_perfectly(p, pass, layer);
        else
            predict_next(p, first, w->width[pass], layer);
        link_prefetches(p, layer, idle_ns, run);
    }
    uint64_t *swap = p->ahead_ns;
    p->ahead_ns = p->next_ahead_ns;
    p->next_ahead_ns = swap;
    return 0;
}

static errint_t begin_system(struct player *p, const struct replay_assign_system *system)
{
    const struct replay_workload *w = p->w, *history = p->setup->history;
    uint32_t whole = system->layout == REPLAY_GPU_LAYERS ? p->places * w->layers / w->experts : 0;
    if (system->keeps != REPLAY_GPU_NOTHING)
        cache_popular(p);
    for (uint32_t l = 0; l < w->layers; l++) {
        uint32_t kept = l + whole >= w->layers ? w->experts : system->layout == REPLAY_GPU_PAGED ? p->places : 0;
        memset(p->cached + (size_t)l * w->experts, true, kept);
    }
    if (system->guess != REPLAY_PREDICT_TRANSITIONS)
        return 0;
    EFS_TABLE(&p->tables, p->transitions, (size_t)w->layers * w->experts * w->experts);
    if (efs_tables_error(&p->tables) < 0)
        return -ENOMEM;
    for (uint64_t pass = 0, first = 0; history && pass < history->passes; first += history->width[pass++])
        learn_transitions(p->transitions, history, first, history->width[pass]);
    return 0;
}

errint_t replay_assign_simulate(const struct replay_assign_setup *setup, const struct replay_workload *w,
                                const struct replay_assign_system *system, struct replay_assign_run *run)
{
    struct player p;
    *run = (struct replay_assign_run){.tokens = w->tokens};
    errint_t rc = player_open(&p, setup, w);
    if (rc == 0)
        rc = begin_system(&p, system);
    for (uint64_t pass = 0, first = 0; rc == 0 && pass < w->passes; first += w->width[pass++]) {
        for (uint32_t l = 0; rc == 0 && l < w->layers; l++)
            rc = play_layer(&p, system, pass, first, l, run);
        if (rc == 0 && p.transitions)
            learn_transitions(p.transitions, w, first, w->width[pass]);
    }
    efs_tables_free(&p.tables);
    return rc;
}
