/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assign_optimum.c - the optimum on two devices, as the reference for the other rules.
 *
 * Expert by expert, the search keeps all reachable pairs of sums, except those that cannot become the best: another
 * pair has at most the same times and memory; or, even with the remaining experts divided exactly, the pair would not
 * end before the best known assignment. Experts are in order of falling times, so that the bound prunes early.
 */
#include "assign_internal.h"

#include <errno.h>
#include <stdlib.h>

struct partial {
    uint64_t ns[2], bytes;        /* bytes: taken on device 1 */
    uint32_t before, on_device_1; /* index of the partial assignment without the last expert; its device */
};

struct search {
    const struct efs_assign_problem *problem;
    uint16_t order[EFS_ASSIGN_EXPERTS_MAX];
    uint32_t count;
    uint64_t least_ns[EFS_ASSIGN_EXPERTS_MAX + 1]; /* [at]: sum over order[at...] of the smaller time */
    struct partial *level[EFS_ASSIGN_EXPERTS_MAX + 1];
    size_t size[EFS_ASSIGN_EXPERTS_MAX + 1];
    size_t kept;
    uint64_t known_ns;
};

static bool can_be_better(const struct search *s, uint32_t at, uint64_t ns0, uint64_t ns1)
{
    uint64_t more = ns0 > ns1 ? ns0 : ns1;
    return more < s->known_ns && (ns0 + ns1 + s->least_ns[at] + 1) / 2 < s->known_ns;
}

/* Appends a partial assignment, in order of device 0's time, unless it cannot become the best or one of the last three
 * dominates it. */
static void add_partial(struct search *s, uint32_t at, struct partial *out, size_t *size, const struct partial *p)
{
    if (!can_be_better(s, at, p->ns[0], p->ns[1]))
        return;
    for (size_t i = *size; i-- > 0 && i + 4 > *size;) /* the nearest dominate most often */
        if (out[i].ns[1] <= p->ns[1] && out[i].bytes <= p->bytes)
            return;
    out[(*size)++] = *p;
}

/* Both choices for the next expert: merges two lists in order of device 0's time. */
static int next_level(struct search *s, uint32_t at)
{
    const struct efs_assign_problem *p = s->problem;
    const struct partial *in = s->level[at];
    size_t count = s->size[at], stay = 0, move = 0, size = 0;
    uint32_t i = s->order[at];
    uint64_t ns0 = efs_assign_ns(p, 0, i), ns1 = efs_assign_ns(p, 1, i), bytes = efs_assign_bytes(p, 1, i);
    uint64_t room_bytes = p->room_bytes ? p->room_bytes[1] : UINT64_MAX;
    struct partial *out = malloc((2 * count + 1) * sizeof(*out));
    if (!out)
        return -ENOMEM;
    while (stay < count || move < count) {
        struct partial next;
        if (move < count && (stay == count || in[move].ns[0] <= in[stay].ns[0] + ns0)) {
            next = in[move];
            next.before = (uint32_t)move++;
            next.on_device_1 = 1;
            next.ns[1] += ns1;
            if (bytes > room_bytes - next.bytes)
                continue;
            next.bytes += bytes;
        } else {
            next = in[stay];
            next.before = (uint32_t)stay++;
            next.on_device_1 = 0;
            next.ns[0] += ns0;
        }
        add_partial(s, at + 1, out, &size, &next);
    }
    s->level[at + 1] = out;
    s->size[at + 1] = size;
    s->kept += size;
    return s->kept > EFS_ASSIGN_STATES_MAX ? -E2BIG : 0;
}

/* Traces back the best of the last level; without one the known assignment is the optimum. */
static void follow_back(const struct search *s, uint8_t *device)
{
    const struct partial *last = s->level[s->count];
    size_t best = 0;
    uint64_t best_ns = s->known_ns;
    bool found = false;
    for (size_t i = 0; i < s->size[s->count]; i++) {
        uint64_t ns = last[i].ns[0] > last[i].ns[1] ? last[i].ns[0] : last[i].ns[1];
        found = found || ns < best_ns;
        best = ns < best_ns ? i : best;
        best_ns = ns < best_ns ? ns : best_ns;
    }
    for (uint32_t at = s->count; found && at > 0; at--) {
        const struct partial *p = &s->level[at][best];
        device[s->order[at - 1]] = (uint8_t)p->on_device_1;
        best = p->before;
    }
}

static int run_search(struct search *s)
{
    const struct efs_assign_problem *p = s->problem;
    uint64_t key[EFS_ASSIGN_EXPERTS_MAX];
    int rc = 0;
    for (uint32_t i = 0; i < p->experts; i++)
        key[i] = efs_assign_ns(p, 0, i) > efs_assign_ns(p, 1, i) ? efs_assign_ns(p, 0, i) : efs_assign_ns(p, 1, i);
    s->count = efs_assign_sorted(p, key, s->order);
    for (uint32_t at = s->count; at-- > 0;) {
        uint64_t ns0 = efs_assign_ns(p, 0, s->order[at]), ns1 = efs_assign_ns(p, 1, s->order[at]);
        s->least_ns[at] = s->least_ns[at + 1] + (ns0 < ns1 ? ns0 : ns1);
    }
    s->level[0] = calloc(1, sizeof(*s->level[0]));
    s->size[0] = 1;
    if (!s->level[0])
        return -ENOMEM;
    for (uint32_t at = 0; rc == 0 && at < s->count; at++)
        rc = next_level(s, at);
    return rc;
}

int efs_assign_optimum(const struct efs_assign_problem *p, uint8_t *device, struct efs_assign_sum *sum)
{
    if (p->devices != 2 || !efs_assign_valid(p) || (p->room_bytes && p->room_bytes[0] != UINT64_MAX))
        return -EINVAL;
    int rc = efs_assign_balanced(p, device, sum);
    struct search *s = rc == 0 ? calloc(1, sizeof(*s)) : NULL;
    if (!s)
        return rc < 0 ? rc : -ENOMEM;
    s->problem = p;
    s->known_ns = sum->makespan_ns;
    rc = run_search(s);
    if (rc == 0)
        follow_back(s, device);
    for (uint32_t at = 0; at <= s->count; at++)
        free(s->level[at]);
    free(s);
    return rc < 0 ? rc : efs_assign_sum(p, device, sum);
}

/* The fractional optimum fills device 1 in order of the ratio until both devices end together. */
uint64_t efs_assign_bound_ns(const struct efs_assign_problem *p)
{
    uint64_t key[EFS_ASSIGN_EXPERTS_MAX];
    uint16_t order[EFS_ASSIGN_EXPERTS_MAX];
    double here = 0, there = 0;
    if (p->devices != 2 || !efs_assign_valid(p))
        return 0;
    for (uint32_t i = 0; i < p->experts; i++) {
        uint64_t ns1 = efs_assign_ns(p, 1, i);
        double ratio = ns1 ? (double)efs_assign_ns(p, 0, i) / (double)ns1 * 0x1p20 : 0x1p52;
        key[i] = ratio < 0x1p52 ? (uint64_t)ratio : UINT64_C(1) << 52;
        here += (double)efs_assign_ns(p, 0, i);
    }
    uint32_t count = efs_assign_sorted(p, key, order);
    for (uint32_t i = 0; i < count; i++) {
        double ns0 = (double)efs_assign_ns(p, 0, order[i]), ns1 = (double)efs_assign_ns(p, 1, order[i]);
        if (there + ns1 >= here - ns0) { /* divide this one: there + part * ns1 = here - part * ns0 */
            double part = ns0 + ns1 > 0 ? (here - there) / (ns0 + ns1) : 0;
            double ns = there + part * ns1;
            return (uint64_t)(ns * (1 - 1e-6)); /* keys are rounded: keeps the result at most the true bound */
        }
        there += ns1;
        here -= ns0;
    }
    return (uint64_t)(there > here ? there : here);
}
