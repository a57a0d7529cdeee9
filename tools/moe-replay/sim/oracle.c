/* SPDX-License-Identifier: Apache-2.0 */
/* oracle.c - Belady's rule with bypass: what no policy on whole experts can beat. */
#include "simulate.h"

#include <stdlib.h>

struct replay_oracle {
    const struct replay_workload *workload;
    size_t request;
    uint64_t room;   /* experts that still fit */
    size_t *next;    /* of every expert that a request asks for: where it is asked for next */
    size_t *use;     /* of every expert of the model, from where we are */
    uint8_t *inside; /* it is kept */
};

static uint32_t unit_of(const struct replay_workload *w, size_t request, size_t i)
{
    return (uint32_t)(request % w->layers) * w->experts + w->ids[i];
}

struct replay_oracle *replay_oracle_new(const struct replay_workload *w, uint64_t units)
{
    struct replay_oracle *o = calloc(1, sizeof(*o));
    size_t requests = w->passes * w->layers, experts = (size_t)w->layers * w->experts;
    if (!o)
        return NULL;
    *o = (struct replay_oracle){.workload = w,
                                .room = units,
                                .next = calloc(w->first[requests], sizeof(*o->next)),
                                .use = calloc(experts, sizeof(*o->use)),
                                .inside = calloc(experts, 1)};
    if (!o->next || !o->use || !o->inside) {
        replay_oracle_free(o);
        return NULL;
    }
    for (size_t u = 0; u < experts; u++)
        o->use[u] = SIZE_MAX;
    for (size_t r = requests; r-- > 0;)
        for (size_t i = w->first[r]; i < w->first[r + 1]; i++) {
            uint32_t unit = unit_of(w, r, i);
            o->next[i] = o->use[unit];
            o->use[unit] = i;
        }
    return o;
}

void replay_oracle_free(struct replay_oracle *o)
{
    if (!o)
        return;
    free(o->next);
    free(o->use);
    free(o->inside);
    free(o);
}

/* Keep unit if there is room, or in the place of what is used latest. */
static void oracle_admit(struct replay_oracle *o, uint32_t unit)
{
    uint32_t worst = unit;
    if (o->room > 0) {
        o->room--;
        o->inside[unit] = 1;
        return;
    }
    for (uint32_t u = 0; u < o->workload->layers * o->workload->experts; u++)
        if (o->inside[u] && o->use[u] > o->use[worst])
            worst = u;
    o->inside[worst] = 0;
    o->inside[unit] = worst != unit;
}

void replay_oracle_request(struct replay_oracle *o, struct efs_placement *placements)
{
    const struct replay_workload *w = o->workload;
    size_t r = o->request++;
    for (size_t i = w->first[r]; i < w->first[r + 1]; i++) {
        uint32_t unit = unit_of(w, r, i);
        uint8_t pool = o->inside[unit] ? EFS_POOL_C : EFS_POOL_M;
        placements[i - w->first[r]] = (struct efs_placement){.expert = w->ids[i], .found = pool, .target = pool};
        o->use[unit] = o->next[i];
        if (pool == EFS_POOL_M)
            oracle_admit(o, unit);
    }
}
