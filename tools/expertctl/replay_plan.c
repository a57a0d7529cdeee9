/* replay_plan.c - from the history and the profile to the pools. */
#include "replay.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYER_STEP 0.1 /* of the grid where every layer is planned by itself */
#define LAYER_QUANTA 16

static const char *const pools_names[REPLAY_POOLS] = {"io", "makespan", "layers", "coded", "even", "full", "raw"};

const char *replay_pools_name(enum replay_pools pools)
{
    return pools_names[pools];
}

bool replay_policy_parse(const char *text, enum replay_pools planned, enum replay_pools single,
                         struct replay_policy *policy)
{
    const char *colon = strchr(text, ':');
    size_t bytes = colon ? (size_t)(colon - text) : strlen(text);
    *policy = (struct replay_policy){.pools = REPLAY_POOLS};
    if (bytes == 0 || bytes >= sizeof(policy->name))
        return false;
    memcpy(policy->name, text, bytes);
    policy->published = strcmp(policy->name, "published") == 0;
    policy->oracle = strcmp(policy->name, "oracle") == 0;
    policy->kind = policy->published ? EFS_POLICY_ZIPMOE : efs_policy_by_name(policy->name);
    if (policy->kind == EFS_POLICY_KINDS && !policy->oracle)
        return false;
    if (policy->oracle) {
        policy->pools = REPLAY_CODED;
        return !colon;
    }
    if (!colon)
        policy->pools = policy->kind == EFS_POLICY_ZIPMOE ? planned : single;
    for (unsigned p = 0; colon && p < REPLAY_POOLS; p++)
        if (strcmp(colon + 1, pools_names[p]) == 0)
            policy->pools = (enum replay_pools)p;
    return policy->pools != REPLAY_POOLS;
}

static uint64_t at_least(double number, uint64_t least, uint64_t most)
{
    return !(number > (double)least) ? least : number < (double)most ? (uint64_t)(number + 0.5) : most;
}

void replay_setup_fill(struct replay_setup *s)
{
    const struct efs_profile *p = &s->profile;
    s->bytes[EFS_POOL_F] = at_least(p->full_bytes, 1, UINT64_C(1) << 40);
    s->bytes[EFS_POOL_S] = at_least(p->sm_bytes, 1, UINT64_C(1) << 40);
    s->bytes[EFS_POOL_E] = at_least(p->e_bytes, 1, UINT64_C(1) << 40);
    s->bytes[EFS_POOL_C] = at_least(p->coded_bytes, 1, UINT64_C(1) << 40);
    s->tensors = (uint32_t)at_least(p->tensors, 1, EFS_TASK_MAX_TENSORS);
    s->shards = (uint32_t)at_least(p->shards, 1, EFS_TASK_MAX_SHARDS);
    if (s->workers == 0)
        s->workers = (uint32_t)at_least(p->workers, 1, EFS_TASK_MAX_WORKERS);
}

struct efs_cost replay_cost(const struct replay_setup *s)
{
    double tensors = s->tensors, chunks = tensors * s->shards, disk = s->profile.disk_bytes_per_second;
    return (struct efs_cost){.sm_read_ns = (double)s->bytes[EFS_POOL_S] / tensors / disk * 1e9,
                             .e_read_ns = (double)s->bytes[EFS_POOL_E] / chunks / disk * 1e9,
                             .decode_ns =
                                 (double)s->bytes[EFS_POOL_F] / chunks / s->profile.decode_bytes_per_second * 1e9,
                             .threads = s->workers,
                             .shards = s->shards,
                             .tensors = s->tensors,
                             .extended = true,
                             .request_ns = s->profile.read_latency_ns};
}

/* ---- the history -------------------------------------------------------------------------------------------- */

/* Scale a layer's list so that it sums to chosen with nothing above 1. */
static void scale(double *inclusion, uint32_t experts, uint32_t chosen)
{
    for (unsigned round = 0; round < 64; round++) {
        double open = 0, closed = 0;
        for (uint32_t i = 0; i < experts; i++)
            *(inclusion[i] < 1 ? &open : &closed) += inclusion[i];
        double factor = open > 0 ? (chosen - closed) / open : 1;
        if (fabs(factor - 1) < 1e-12)
            break;
        for (uint32_t i = 0; i < experts; i++)
            if (inclusion[i] < 1)
                inclusion[i] = inclusion[i] * factor < 1 ? inclusion[i] * factor : 1;
    }
}

/* The ranks, under the ranking that the policy will use, at which experts were that were asked for. */
static int watch(const struct replay_setup *s, const struct replay_workload *w, struct replay_history *h)
{
    struct efs_policy_config config = {.kind = EFS_POLICY_ZIPMOE,
                                       .layers = s->layers,
                                       .experts = s->experts,
                                       .chosen = w->chosen,
                                       .bytes = (const uint64_t(*)[EFS_POOLS]) & s->bytes,
                                       .same_bytes = true,
                                       .tuning = s->tuning};
    struct efs_grant *grants = calloc(REPLAY_REQUEST_MAX, sizeof(*grants));
    struct efs_policy *policy = NULL;
    int rc = grants ? efs_policy_new(&config, &policy) : -ENOMEM;
    for (uint64_t pass = 0; rc == 0 && pass < w->passes; pass++) {
        if (s->tell_sequence && w->starts[pass])
            efs_policy_begin(policy);
        for (uint32_t l = 0; rc == 0 && l < w->layers; l++) {
            const size_t *first = &w->first[pass * w->layers + l];
            for (size_t i = first[0]; i < first[1]; i++) {
                h->inclusion[(size_t)l * s->experts + efs_policy_rank(policy, l, w->ids[i])]++;
                h->counts[(size_t)l * s->experts + w->ids[i]]++;
            }
            rc = efs_policy_request(policy, l, &w->ids[first[0]], (unsigned)(first[1] - first[0]), grants);
            for (size_t i = first[0]; rc == 0 && i < first[1]; i++)
                efs_policy_release(policy, l, w->ids[i]);
        }
    }
    efs_policy_free(policy);
    free(grants);
    return rc;
}

int replay_history_learn(const struct replay_setup *s, const struct replay_workload *history, double chosen,
                         struct replay_history *h)
{
    size_t units = (size_t)s->layers * s->experts;
    uint32_t most = s->experts < EFS_PLAN_MAX_CHOSEN ? s->experts : EFS_PLAN_MAX_CHOSEN;
    *h = (struct replay_history){.inclusion = calloc(units, sizeof(*h->inclusion)),
                                 .counts = history ? calloc(units, sizeof(*h->counts)) : NULL,
                                 .passes = history ? history->passes : 0};
    h->chosen = (uint32_t)at_least(history ? history->chosen : chosen, 1, most);
    int rc = h->inclusion && (h->counts || !history) ? 0 : -ENOMEM;
    if (rc == 0 && history)
        rc = watch(s, history, h);
    for (size_t i = 0; rc == 0 && i < units; i++) /* half a use each: no rank is impossible */
        h->inclusion[i] = history ? (h->inclusion[i] + 0.5) / ((double)history->passes + 1)
                                  : 0.5 / (double)(i % s->experts + 1); /* the default skew: Zipf */
    for (uint32_t l = 0; rc == 0 && l < s->layers; l++)
        scale(h->inclusion + (size_t)l * s->experts, s->experts, h->chosen);
    if (rc < 0)
        replay_history_free(h);
    return rc;
}

void replay_history_free(struct replay_history *h)
{
    free(h->inclusion);
    free(h->counts);
    *h = (struct replay_history){0};
}

/* ---- plans -------------------------------------------------------------------------------------------------- */

static struct efs_plan_request request_of(const struct replay_setup *s, const struct replay_history *h,
                                          const double *inclusion, enum efs_plan_goal goal)
{
    struct efs_plan_request request = {.inclusion = inclusion,
                                       .experts = s->experts,
                                       .chosen = h->chosen,
                                       .pools = EFS_PLAN_ALL_POOLS,
                                       .step = s->step,
                                       .goal = goal,
                                       .fill = true,
                                       .cost = replay_cost(s)};
    if (s->bytes[EFS_POOL_E] < EFS_POOLS) /* experts that have no E-chunks */
        request.pools = EFS_PLAN_POOL(EFS_POOL_F) | EFS_PLAN_POOL(EFS_POOL_C);
    memcpy(request.expert_bytes, s->bytes, sizeof(request.expert_bytes));
    return request;
}

/* Pools that all layers share, from the mean of their lists. */
static int plan_shared(const struct replay_setup *s, const struct replay_history *h, uint64_t budget,
                       enum efs_plan_goal goal, struct replay_plan *plan)
{
    double *mean = calloc(s->experts, sizeof(*mean));
    struct efs_plan_request request = request_of(s, h, mean, goal);
    struct efs_plan_shared shared;
    if (!mean)
        return -ENOMEM;
    for (size_t i = 0; i < (size_t)s->layers * s->experts; i++)
        mean[i % s->experts] += h->inclusion[i] / s->layers;
    int rc = efs_plan_share(&request, s->layers, budget, &shared);
    free(mean);
    if (rc < 0)
        return rc;
    memcpy(plan->capacity, shared.pool_bytes, sizeof(plan->capacity));
    plan->io_ns = shared.io_ns * s->layers;
    plan->makespan_ns = shared.makespan_ns * s->layers;
    return 0;
}

/* Every layer by itself, and a budget for each by what it gains. */
static int plan_layers(const struct replay_setup *s, const struct replay_history *h, uint64_t budget,
                       struct replay_plan *plan)
{
    struct efs_plan_request *requests = calloc(s->layers, sizeof(*requests));
    struct efs_plan *plans = calloc(s->layers, sizeof(*plans));
    int rc = requests && plans ? 0 : -ENOMEM;
    for (uint32_t l = 0; rc == 0 && l < s->layers; l++) {
        requests[l] = request_of(s, h, h->inclusion + (size_t)l * s->experts, EFS_PLAN_IO);
        requests[l].step = LAYER_STEP;
    }
    if (rc == 0)
        rc = efs_plan_layers(requests, s->layers, budget, LAYER_QUANTA, plans, &plan->makespan_ns);
    for (uint32_t l = 0; rc == 0 && l < s->layers; l++) {
        memcpy(plan->layer_bytes[l], plans[l].used_bytes, sizeof(plan->layer_bytes[l]));
        plan->io_ns += plans[l].io_ns;
        for (unsigned p = 0; p < EFS_POOLS; p++)
            plan->capacity[p] += plans[l].used_bytes[p];
    }
    free(plans);
    free(requests);
    return rc;
}

int replay_plan_make(const struct replay_setup *s, const struct replay_policy *policy, const struct replay_history *h,
                     uint64_t budget, struct replay_plan *plan)
{
    enum replay_pools pools = policy->pools;
    /* the paper has pools for each layer */
    bool even = pools == REPLAY_EVEN || (policy->published && pools != REPLAY_LAYERS),
         by_layer = pools == REPLAY_LAYERS;
    int rc = 0;
    *plan = (struct replay_plan){{0}, NULL, 0, 0};
    if ((even || by_layer) && !(plan->layer_bytes = calloc(s->layers, sizeof(*plan->layer_bytes))))
        return -ENOMEM;
    if (by_layer)
        rc = plan_layers(s, h, budget, plan);
    else if (pools == REPLAY_IO || pools == REPLAY_MAKESPAN)
        rc = plan_shared(s, h, budget, pools == REPLAY_IO ? EFS_PLAN_IO : EFS_PLAN_MAKESPAN, plan);
    else
        plan->capacity[pools == REPLAY_FULL || pools == REPLAY_RAW ? EFS_POOL_F : EFS_POOL_C] = budget;
    for (uint32_t l = 0; even && l < s->layers; l++)
        for (unsigned p = 0; p < EFS_POOLS; p++)
            plan->layer_bytes[l][p] = plan->capacity[p] / s->layers;
    if (rc < 0)
        replay_plan_free(plan);
    return rc;
}

void replay_plan_free(struct replay_plan *plan)
{
    free(plan->layer_bytes);
    plan->layer_bytes = NULL;
}
