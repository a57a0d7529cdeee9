/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assign_balanced.c - better than Algorithm 1 in the time that a layer has for deciding.
 *
 * Where Algorithm 1 loses: it takes the experts with the largest difference first, which are those that belong on the
 * faster device, and has none left to level with at the end. A few experts are tried out; of more, two starts are made
 * level by moves and exchanges from the device that is done last.
 */
#include "assign_order.h"

#include <errno.h>
#include <string.h>

/* At moves and exchanges, of a start: some microseconds. */
#define LOOKS_MAX 6000u
#define LOOKS_MAX_MANY 1200u /* on more than two devices, where sorting and the first start take most of the time */

/* ---- all assignments of a few experts ------------------------------------------------------------------------ */

struct few {
    const struct efs_assign_problem *problem;
    const uint16_t *order;
    uint32_t count;
    uint64_t best_ns, room_bytes[2];
    uint32_t best; /* bit i: order[i] is on device 1 */
    bool found;
};

static void few_from(struct few *f, uint32_t at, uint32_t chosen, uint64_t ns0, uint64_t ns1, uint64_t bytes0,
                     uint64_t bytes1)
{
    uint64_t makespan_ns = ns0 > ns1 ? ns0 : ns1;
    if (f->found && makespan_ns >= f->best_ns)
        return;
    if (at == f->count) {
        f->found = true;
        f->best = chosen;
        f->best_ns = makespan_ns;
        return;
    }
    const struct efs_assign_problem *p = f->problem;
    uint32_t i = f->order[at];
    uint64_t more0 = efs_assign_bytes(p, 0, i), more1 = efs_assign_bytes(p, 1, i);
    if (more1 <= f->room_bytes[1] - bytes1)
        few_from(f, at + 1, chosen | 1u << at, ns0, ns1 + efs_assign_ns(p, 1, i), bytes0, bytes1 + more1);
    if (more0 <= f->room_bytes[0] - bytes0)
        few_from(f, at + 1, chosen, ns0 + efs_assign_ns(p, 0, i), ns1, bytes0 + more0, bytes1);
}

static int try_all(struct efs_assign_state *state, const uint16_t *order, uint32_t count)
{
    struct few f = {.problem = state->problem, .order = order, .count = count};
    memcpy(f.room_bytes, state->room_bytes, sizeof(f.room_bytes));
    few_from(&f, 0, 0, 0, 0, 0, 0);
    for (uint32_t i = 0; f.found && i < count; i++)
        efs_assign_put(state, order[i], f.best >> i & 1);
    return f.found ? 0 : -ENOSPC;
}

/* ---- starts ------------------------------------------------------------------------------------------------- */

/* How many times as fast device 1 is, in parts that sort. */
static uint64_t ratio_key(uint64_t ns0, uint64_t ns1)
{
    double ratio = ns1 == 0 ? 0x1p60 : (double)ns0 / (double)ns1 * 0x1p20;
    return ratio < 0x1p52 ? (uint64_t)ratio : UINT64_C(1) << 52;
}

/* Of all ways to cut the experts in order of the ratio, the one that ends first. What has no room goes to device 0. */
static int split_start(struct efs_assign_state *state, uint64_t *key, uint16_t *order, uint32_t *sorted)
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
    for (uint32_t i = 0; i < count; i++) {
        uint32_t d = i < best && efs_assign_bytes(p, 1, order[i]) <= state->room_bytes[1];
        if (efs_assign_bytes(p, d, order[i]) > state->room_bytes[d])
            return -ENOSPC;
        efs_assign_put(state, order[i], d);
    }
    return 0;
}

/* The expert first that takes longest on the device where it takes least. */
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
        rc = efs_assign_put_first_done(state, order[i]);
    return rc;
}

/* ---- moves and exchanges ------------------------------------------------------------------------------------- */

struct change {
    uint64_t ns; /* the later of both devices then; what there is to beat before one was found */
    uint32_t device;
    uint16_t expert, other; /* other: EFS_ASSIGN_EXPERTS_MAX: a move */
};

static void look_at_moves(const struct efs_assign_state *state, uint32_t last, uint16_t i, struct change *best)
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

static void look_at_exchange(const struct efs_assign_state *state, uint32_t last, uint16_t i, uint16_t j,
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
    efs_assign_take(state, c->expert);
    if (c->other < EFS_ASSIGN_EXPERTS_MAX) {
        efs_assign_take(state, c->other);
        efs_assign_put(state, c->other, last);
    }
    efs_assign_put(state, c->expert, c->device);
}

/* Each change makes both devices that it is about end before the one that was last, so it ends by itself. */
static void make_level(struct efs_assign_state *state, const uint16_t *order, uint32_t count)
{
    const struct efs_assign_problem *p = state->problem;
    uint32_t looks = 0, most = p->devices > 2 ? LOOKS_MAX_MANY : LOOKS_MAX;
    while (looks < most) {
        uint32_t last = 0;
        for (uint32_t d = 1; d < p->devices; d++)
            last = state->ns[d] > state->ns[last] ? d : last;
        struct change best = {.ns = state->ns[last], .device = p->devices};
        for (uint32_t i = 0; i < count && looks < most; i++) {
            if (state->device[order[i]] != last)
                continue;
            looks += p->devices;
            look_at_moves(state, last, order[i], &best);
            for (uint32_t j = 0; j < count && looks < most; j++)
                if (state->device[order[j]] != last) {
                    looks++;
                    look_at_exchange(state, last, order[i], order[j], &best);
                }
        }
        if (best.device == p->devices)
            return;
        make_change(state, last, &best);
    }
}

/* A start that was found is made level, and kept if it ends before what is known. */
static void keep_better(int rc, struct efs_assign_state *start, const uint16_t *order, uint32_t count, bool *known,
                        uint8_t *device, struct efs_assign_sum *sum)
{
    if (rc < 0)
        return;
    make_level(start, order, count);
    if (*known && efs_assign_makespan(start) >= sum->makespan_ns)
        return;
    *known = true;
    memcpy(device, start->device, start->problem->experts);
    efs_assign_end(start, sum);
}

/* Up to EFS_ASSIGN_FEW experts on two devices; more, or on another number: -E2BIG. */
static int decide_few(struct efs_assign_state *state, uint64_t *key, uint16_t *order, struct efs_assign_sum *sum)
{
    if (state->problem->devices != 2)
        return -E2BIG;
    memset(key, 0, state->problem->experts * sizeof(*key));
    uint32_t count = efs_assign_sorted(state->problem, key, order);
    if (count > EFS_ASSIGN_FEW)
        return -E2BIG;
    int rc = try_all(state, order, count);
    if (rc == 0)
        efs_assign_end(state, sum);
    return rc;
}

int efs_assign_balanced(const struct efs_assign_problem *p, uint8_t *device, struct efs_assign_sum *sum)
{
    struct efs_assign_state state;
    uint64_t key[EFS_ASSIGN_EXPERTS_MAX];
    uint16_t order[EFS_ASSIGN_EXPERTS_MAX];
    uint8_t start[EFS_ASSIGN_EXPERTS_MAX];
    uint32_t count = 0;
    bool known = false;
    if (!efs_assign_valid(p))
        return -EINVAL;
    efs_assign_begin(&state, p, device);
    int rc = decide_few(&state, key, order, sum);
    if (rc != -E2BIG)
        return rc;
    efs_assign_begin(&state, p, start);
    rc = efs_assign_greedy_start(&state, key, order, &count);
    keep_better(rc, &state, order, count, &known, device, sum);
    if (p->devices == 2 || !known) { /* the time of a second start is better spent on the first where there are more */
        efs_assign_begin(&state, p, start);
        rc = p->devices == 2 ? split_start(&state, key, order, &count) : longest_start(&state, key, order, &count);
        keep_better(rc, &state, order, count, &known, device, sum);
    }
    return known ? 0 : -ENOSPC;
}
