/* SPDX-License-Identifier: Apache-2.0 */
/*
 * counts_route.c - the history of a routing trace, for a store of some shape.
 */
#include "counts.h"

#include "sys.h"

#include <errno.h>
#include <stdlib.h>

/* What one layer of the store asks for at a token: the trace's experts modulo, each once. Returns how many. */
static unsigned route_ask(const struct efs_route *route, uint64_t token, unsigned layer, unsigned experts,
                          uint32_t *ids)
{
    const uint16_t *chosen = route->ids + (token * route->layers + layer % route->layers) * route->chosen;
    unsigned count = 0;
    for (unsigned i = 0; i < route->chosen; i++) {
        uint32_t expert = chosen[i] % experts;
        bool again = false;
        for (unsigned j = 0; j < count && !again; j++)
            again = ids[j] == expert;
        if (!again)
            ids[count++] = expert;
    }
    return count;
}

/* Experts of a request, mean: of the layers that the trace tells apart. */
static double mean_chosen(const struct efs_route *route, unsigned layers, unsigned experts, uint32_t *ids)
{
    uint64_t asked = 0;
    unsigned distinct = layers < route->layers ? layers : route->layers;
    for (uint64_t t = 0; t < route->tokens; t++)
        for (unsigned l = 0; l < distinct; l++)
            asked += route_ask(route, t, l, experts, ids);
    return (double)asked / (double)route->tokens / distinct;
}

errint_t efs_counts_from_route(const struct efs_route *route, unsigned layers, unsigned experts,
                               const struct efs_policy_tuning *tuning, struct efs_history *history)
{
    struct efs_history_learner *learner = NULL;
    uint32_t *ids = efs_sys_calloc(route->chosen, sizeof(*ids));
    errint_t rc = efs_history_init(history, layers, experts);
    if (rc == 0 && !ids)
        rc = -ENOMEM;
    if (rc == 0)
        rc = efs_history_learner_new(history, mean_chosen(route, layers, experts, ids), tuning, &learner);
    for (uint64_t t = 0; rc == 0 && t < route->tokens; t++) {
        if (t == 0 || route->sequence[t] != route->sequence[t - 1])
            efs_history_learner_begin(learner, false);
        for (unsigned l = 0; rc == 0 && l < layers; l++)
            rc = efs_history_learner_request(learner, l, ids, route_ask(route, t, l, experts, ids));
    }
    efs_history_learner_free(learner);
    free(ids);
    return rc;
}
