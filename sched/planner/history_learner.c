/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history_learner.c - a trace through a policy that keeps nothing, to see at which ranks experts are asked for.
 */
#include "history.h"

#include <errno.h>
#include <stdlib.h>

struct efs_history_learner {
    struct efs_history *history;
    struct efs_policy *policy;
    struct efs_placement *placements; /* [experts] */
    uint32_t *ranks;                  /* [experts] */
};

int efs_history_learner_new(struct efs_history *history, double chosen, const struct efs_policy_tuning *tuning,
                            struct efs_history_learner **learner)
{
    static const uint64_t bytes[1][EFS_POOLS] = {{1, 1, 1, 1}};
    struct efs_policy_config config = {.kind = EFS_POLICY_ZIPMOE,
                                       .layers = history->layers,
                                       .experts = history->experts,
                                       .chosen = chosen,
                                       .bytes = bytes,
                                       .same_bytes = true};
    struct efs_history_learner *l = calloc(1, sizeof(*l));
    int rc = l ? 0 : -ENOMEM;

    *learner = NULL;
    if (rc < 0)
        return rc;
    if (tuning)
        config.tuning = *tuning;
    l->history = history;
    l->placements = calloc(history->experts, sizeof(*l->placements));
    l->ranks = calloc(history->experts, sizeof(*l->ranks));
    rc = l->placements && l->ranks ? efs_policy_new(&config, &l->policy) : -ENOMEM;
    if (rc < 0) {
        efs_history_learner_free(l);
        return rc;
    }
    *learner = l;
    return 0;
}

void efs_history_learner_free(struct efs_history_learner *l)
{
    if (!l)
        return;
    efs_policy_free(l->policy);
    free(l->placements);
    free(l->ranks);
    free(l);
}

void efs_history_learner_begin(struct efs_history_learner *l, bool tell)
{
    l->history->sequences++;
    if (tell)
        efs_policy_begin(l->policy);
}

int efs_history_learner_request(struct efs_history_learner *l, unsigned layer, const uint32_t *experts, unsigned count)
{
    const struct efs_history *h = l->history;
    int rc;

    if (layer >= h->layers || count > h->experts)
        return -EINVAL;
    for (unsigned i = 0; i < count; i++)
        if (experts[i] >= h->experts)
            return -EINVAL;
    efs_policy_ranks(l->policy, layer, experts, count, l->ranks);
    rc = efs_policy_request(l->policy, layer, experts, count, l->placements);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < count; i++)
        efs_policy_unpin(l->policy, layer, experts[i]);
    return efs_history_request(l->history, layer, experts, l->ranks, count);
}
