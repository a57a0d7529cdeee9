/* SPDX-License-Identifier: Apache-2.0 */
/* place_optimum.c - see place_optimum.h. */
#include "place_optimum.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TRIES_MOST 5000000u

struct tries {
    const struct efs_place_problem *problem;
    size_t all;
    bool by_time, found;
    double best;
    uint64_t room[32];
    uint8_t *held, *best_held;
};

static void try_from(struct tries *t, size_t item)
{
    const struct efs_place_problem *p = t->problem;
    if (item == t->all) {
        double cost = t->by_time ? efs_place_wait_s(p, t->held) : efs_place_remote_s(p, t->held);
        if (!t->found || cost < t->best) {
            t->found = true;
            t->best = cost;
            memcpy(t->best_held, t->held, p->servers * t->all);
        }
        return;
    }
    for (uint32_t set = 1; set < 1u << p->servers; set++) {
        bool fits = true;
        for (uint32_t n = 0; n < p->servers; n++)
            fits = fits && (!(set >> n & 1) || t->room[n] > 0);
        if (!fits)
            continue;
        for (uint32_t n = 0; n < p->servers; n++) {
            t->held[n * t->all + item] = set >> n & 1;
            t->room[n] -= set >> n & 1;
        }
        try_from(t, item + 1);
        for (uint32_t n = 0; n < p->servers; n++)
            t->room[n] += set >> n & 1;
    }
}

int place_optimum(const struct efs_place_problem *p, enum efs_place_rule aim, uint8_t *held)
{
    int rc = efs_place_check(p);
    if (rc < 0)
        return rc;
    struct tries t = {.problem = p, .all = (size_t)p->layers * p->experts, .by_time = aim == EFS_PLACE_TIME};
    if (p->servers > 5 || t.all > 20 || (aim != EFS_PLACE_TIME && aim != EFS_PLACE_GAIN))
        return aim == EFS_PLACE_TIME || aim == EFS_PLACE_GAIN ? -E2BIG : -EINVAL;
    double tries = 1;
    for (size_t i = 0; i < t.all; i++)
        tries *= (double)((1u << p->servers) - 1);
    if (tries > TRIES_MOST)
        return -E2BIG;
    for (uint32_t n = 0; n < p->servers; n++)
        t.room[n] = efs_place_slots(p, n);
    t.best_held = held;
    t.held = calloc(p->servers, t.all);
    if (!t.held)
        return -ENOMEM;
    try_from(&t, 0);
    free(t.held);
    return t.found ? 0 : -ENOSPC;
}
