/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assign_balanced.c - better than Algorithm 1 in the time that a layer allows for the decision.
 *
 * Where Algorithm 1 loses: it takes the experts with the largest difference first, which are those that belong on the
 * faster device, and has none left for balancing at the end. Here each start is improved by moves and exchanges from
 * the device that finishes last; on two devices a search in the tree of assignments follows.
 */
#include "assign_internal.h"

#include <errno.h>
#include <string.h>

/* Limit of evaluated moves and exchanges for one start: a few microseconds. */
#define EVALUATIONS_MAX 6000u
#define EVALUATIONS_MAX_MANY 1200u /* on more than two devices */

/* ---- a tree of assignments to two devices ------------------------------------------------------------------------ */

#define NODES_MAX 2100u /* a few microseconds; the full tree of EFS_ASSIGN_FEW experts has fewer */
_Static_assert((2u << EFS_ASSIGN_FEW) <= NODES_MAX, "few experts are tried in all ways");

/*
 * Searches for an assignment better than the best known, expert by expert. For any weight w from 0 to 1 the makespan is
 * at least w times the time of device 0 plus 1 - w times that of device 1; with w from the fractional optimum and the
 * smaller of both for each undecided expert, that is a close bound. Experts that lose most on the other device are
 * decided first, so that the experts at the leaves matter least.
 */
struct tree {
    const struct efs_assign_problem *problem;
    const uint16_t *order;
    double rest_ns[EFS_ASSIGN_EXPERTS_MAX + 1]; /* [at]: lower bound of what order[at...] add */
    uint32_t count, nodes;
    double weight;
    uint64_t best_ns, room_bytes[2];
    uint8_t *device, *now; /* the best assignment; the current partial one */
    bool found;
};

static void tree_from(struct tree *t, uint32_t at, const uint64_t ns[2], const uint64_t room_bytes[2])
{
    const struct efs_assign_problem *p = t->problem;
    uint64_t makespan_ns = ns[0] > ns[1] ? ns[0] : ns[1];
    double bound_ns = t->weight * (double)ns[0] + (1 - t->weight) * (double)ns[1] + t->rest_ns[at];
    if (t->nodes == NODES_MAX || makespan_ns >= t->best_ns || bound_ns * (1 - 1e-9) >= (double)t->best_ns)
        return;
    t->nodes++;
    if (at == t->count) {
        t->found = true;
        t->best_ns = makespan_ns;
        memcpy(t->device, t->now, p->experts);
        return;
    }
    uint32_t i = t->order[at];
    uint32_t first = (1 - t->weight) * (double)efs_assign_ns(p, 1, i) <= t->weight * (double)efs_assign_ns(p, 0, i);
    for (unsigned k = 0; k < 2; k++) {
        uint32_t d = k ? 1 - first : first;
        if (efs_assign_bytes(p, d, i) > room_bytes[d])
            continue;
        uint64_t ns_then[2] = {ns[0], ns[1]}, room_then[2] = {room_bytes[0], room_bytes[1]};
        ns_then[d] += efs_assign_ns(p, d, i);
        room_then[d] -= efs_assign_bytes(p, d, i);
        t->now[i] = (uint8_t)d;
        tree_from(t, at + 1, ns_then, room_then);
    }
}

/* device and best_ns: the best known assignment; device is updated if the search finds a better one. key, order and now
 * are scratch for all experts. Inlined, it would make its caller's frame larger than 16 KiB. */
static __attribute__((noinline)) bool search_tree(const struct efs_assign_problem *p, double weight, uint64_t *key,
                                                  uint16_t *order, uint8_t *now, uint64_t best_ns, uint8_t *device)
{
    const uint64_t none[2] = {0, 0};
    struct tree t = {.problem = p, .order = order, .weight = weight, .best_ns = best_ns, .device = device, .now = now};
    for (uint32_t i = 0; i < p->experts; i++) {
        double differ = weight * (double)efs_assign_ns(p, 0, i) - (1 - weight) * (double)efs_assign_ns(p, 1, i);
        key[i] = (uint64_t)(differ < 0 ? -differ : differ);
    }
    memset(now, EFS_ASSIGN_NONE, p->experts);
    t.count = efs_assign_sorted(p, key, order);
    t.rest_ns[t.count] = 0;
    for (uint32_t at = t.count; at-- > 0;) {
        double here = weight * (double)efs_assign_ns(p, 0, t.order[at]);
        double there = (1 - weight) * (double)efs_assign_ns(p, 1, t.order[at]);
        t.rest_ns[at] = t.rest_ns[at + 1] + (here < there ? here : there);
    }
    for (uint32_t d = 0; d < 2; d++)
        t.room_bytes[d] = p->room_bytes ? p->room_bytes[d] : UINT64_MAX;
    tree_from(&t, 0, none, t.room_bytes);
    return t.found;
}

/* ---- starts ------------------------------------------------------------------------------------------------------ */

/* Speed of device 1 relative to device 0, as a sort key in units of 2^-20. */
static uint64_t ratio_key(uint64_t ns0, uint64_t ns1)
{
    double ratio = ns1 == 0 ? 0x1p60 : (double)ns0 / (double)ns1 * 0x1p20;
    return ratio < 0x1p52 ? (uint64_t)ratio : UINT64_C(1) << 52;
}

/* The best of all splits of the experts in order of the ratio. Experts without room on device 1 go to device 0. */
static int split_start(struct efs_assign_state *state, uint64_t *key, uint16_t *order, uint32_t *sorted, double *weight)
{
    const struct efs_assign_problem *p = state->problem;
    for (uint32_t i = 0; i < p->experts; i++)
        key[i] = ratio_key(efs_assign_ns(p, 0, i), efs_assign_ns(p, 1, i));
    uint32_t count = *sorted = efs_assign_sorted(p, key, order), best = 0;
    uint64_t rest_ns = 0, taken_ns = 0, best_ns;
    for (uint32_t i = 0; i < count; i++)
        rest_ns += efs_assign_ns(p, 0, order[i]);
    best_ns = rest_ns;
    for (uint32_t i = 0; i < count; i++) {
        rest_ns -= efs_assign_ns(p, 0, order[i]);
        taken_ns += efs_assign_ns(p, 1, order[i]);
        uint64_t makespan_ns = rest_ns > taken_ns ? rest_ns : taken_ns;
        best = makespan_ns < best_ns ? i + 1 : best;
        best_ns = makespan_ns < best_ns ? makespan_ns : best_ns;
    }
    if (count > 0) { /* at this weight the expert at the split costs the same on both devices */
        uint32_t at = order[best < count ? best : count - 1];
        double ns0 = (double)efs_assign_ns(p, 0, at), ns1 = (double)efs_assign_ns(p, 1, at);
        *weight = ns1 / (ns0 + ns1);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t d = i < best && efs_assign_bytes(p, 1, order[i]) <= state->room_bytes[1];
        if (efs_assign_bytes(p, d, order[i]) > state->room_bytes[d])
            return -ENOSPC;
        efs_assign_add(state, order[i], d);
    }
    return 0;
}

/* Takes experts in order of falling time on their fastest device. */
static int longest_start(struct efs_assign_state *state, uint64_t *key, uint16_t *order, uint32_t *sorted)
{
    const struct efs_assign_problem *p = state->problem;
    int rc = 0;
    for (uint32_t i = 0; i < p->experts; i++) {
        key[i] = UINT64_MAX;
        for (uint32_t d = 0; d < p->devices; d++)
            key[i] = efs_assign_ns(p, d, i) < key[i] ? efs_assign_ns(p, d, i) : key[i];
    }
    uint32_t count = *sorted = efs_assign_sorted(p, key, order);
    for (uint32_t i = 0; rc == 0 && i < count; i++)
        rc = efs_assign_add_first_done(state, order[i]);
    return rc;
}

/* ---- moves and exchanges ----------------------------------------------------------------------------------------- */

struct change {
    uint64_t ns; /* later end of both devices after the change; initially the value to beat */
    uint32_t device;
    uint16_t expert, other; /* other: EFS_ASSIGN_EXPERTS_MAX for a move */
};

static void evaluate_moves(const struct efs_assign_state *state, uint32_t last, uint16_t i, struct change *best)
{
    const struct efs_assign_problem *p = state->problem;
    uint64_t left_ns = state->ns[last] - efs_assign_ns(p, last, i);
    for (uint32_t d = 0; d < p->devices; d++) {
        if (d == last || efs_assign_bytes(p, d, i) > state->room_bytes[d])
            continue;
        uint64_t there_ns = state->ns[d] + efs_assign_ns(p, d, i), ns = left_ns > there_ns ? left_ns : there_ns;
        if (ns < best->ns)
            *best = (struct change){ns, d, i, EFS_ASSIGN_EXPERTS_MAX};
    }
}

static void evaluate_exchange(const struct efs_assign_state *state, uint32_t last, uint16_t i, uint16_t j,
                              struct change *best)
{
    const struct efs_assign_problem *p = state->problem;
    uint32_t d = state->device[j];
    uint64_t here_ns = state->ns[last] - efs_assign_ns(p, last, i) + efs_assign_ns(p, last, j);
    uint64_t there_ns = state->ns[d] - efs_assign_ns(p, d, j) + efs_assign_ns(p, d, i);
    uint64_t ns = here_ns > there_ns ? here_ns : there_ns;
    if (ns < best->ns && efs_assign_bytes(p, d, i) <= state->room_bytes[d] + efs_assign_bytes(p, d, j) &&
        efs_assign_bytes(p, last, j) <= state->room_bytes[last] + efs_assign_bytes(p, last, i))
        *best = (struct change){ns, d, i, j};
}

static void make_change(struct efs_assign_state *state, uint32_t last, const struct change *c)
{
    efs_assign_remove(state, c->expert);
    if (c->other < EFS_ASSIGN_EXPERTS_MAX) {
        efs_assign_remove(state, c->other);
        efs_assign_add(state, c->other, last);
    }
    efs_assign_add(state, c->expert, c->device);
}

/* Terminates even without the limit: after each change both devices end before the time of the one that was last. */
static void balance(struct efs_assign_state *state, const uint16_t *order, uint32_t count)
{
    const struct efs_assign_problem *p = state->problem;
    uint32_t evaluations = 0, most = p->devices > 2 ? EVALUATIONS_MAX_MANY : EVALUATIONS_MAX;
    while (evaluations < most) {
        uint32_t last = 0;
        for (uint32_t d = 1; d < p->devices; d++)
            last = state->ns[d] > state->ns[last] ? d : last;
        struct change best = {.ns = state->ns[last], .device = p->devices};
        for (uint32_t i = 0; i < count && evaluations < most; i++) {
            if (state->device[order[i]] != last)
                continue;
            evaluations += p->devices;
            evaluate_moves(state, last, order[i], &best);
            for (uint32_t j = 0; j < count && evaluations < most; j++)
                if (state->device[order[j]] != last) {
                    evaluations++;
                    evaluate_exchange(state, last, order[i], order[j], &best);
                }
        }
        if (best.device == p->devices)
            return;
        make_change(state, last, &best);
    }
}

/* Improves a valid start, and keeps it if it ends before the best known assignment. */
static void improve_start(int rc, struct efs_assign_state *start, const uint16_t *order, uint32_t count, bool *known,
                          uint8_t *device, struct efs_assign_sum *sum)
{
    if (rc < 0)
        return;
    balance(start, order, count);
    if (*known && efs_assign_makespan(start) >= sum->makespan_ns)
        return;
    *known = true;
    memcpy(device, start->device, start->problem->experts);
    efs_assign_end(start, sum);
}

int efs_assign_balanced(const struct efs_assign_problem *p, uint8_t *device, struct efs_assign_sum *sum)
{
    struct efs_assign_state state;
    uint64_t key[EFS_ASSIGN_EXPERTS_MAX];
    uint16_t order[EFS_ASSIGN_EXPERTS_MAX];
    uint8_t start[EFS_ASSIGN_EXPERTS_MAX];
    uint32_t count = 0;
    double weight = 0.5;
    bool known = false;
    if (!efs_assign_valid(p))
        return -EINVAL;
    efs_assign_begin(&state, p, start);
    int rc = efs_assign_greedy_start(&state, key, order, &count);
    improve_start(rc, &state, order, count, &known, device, sum);
    if (p->devices == 2 || !known) { /* with more devices a second start gains less */
        efs_assign_begin(&state, p, start);
        rc = p->devices == 2 ? split_start(&state, key, order, &count, &weight)
                             : longest_start(&state, key, order, &count);
        improve_start(rc, &state, order, count, &known, device, sum);
    }
    if (p->devices == 2 && search_tree(p, weight, key, order, start, known ? sum->makespan_ns : UINT64_MAX, device))
        return efs_assign_sum(p, device, sum);
    return known ? 0 : -ENOSPC;
}
