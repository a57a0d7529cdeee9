/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simulate.c - one run: a workload through a policy and the simulator.
 *
 * The policy processes a request, evictions included, before the simulator gets the costs of its experts. Of an expert
 * the components that its pool lacks are read: both, one or none. Only the first read of a request has the disk's
 * latency; the next ones are queued behind it.
 */
#include "simulate.h"

#include "prefetch_sim.h"
#include "cache_sim.h"

#include "expertfs-clock-private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SLICE_PASSES 32 /* passes between two calls of the progress function */

struct player {
    const struct replay_setup *setup;
    const struct replay_workload *workload;
    struct replay_result *result;
    struct efs_policy *policy;           /* or */
    struct replay_cache *cache;          /* this */
    struct replay_predictions predicted; /* for fmoe */
    struct replay_prefetch *prefetch;    /* NULL: no prefetch */
    const struct replay_plan *plan;      /* of the budget without the part for prefetch */
    struct efs_trace_timeline timeline;
    bool raw;  /* the files are not coded */
    bool read; /* the current request has a read */
    struct efs_placement placements[REPLAY_REQUEST_MAX];
    uint32_t count;                              /* of placements that player_describe() has processed */
    struct efs_trace_tensor each[EFS_POOLS + 1]; /* costs of a tensor, by the pool of its expert */
    uint64_t policy_ns;
    uint64_t *pass_ns; /* [passes] */
    void *memory;      /* of graph and schedule */
    size_t memory_bytes;
};

/* ---- costs of an expert ------------------------------------------------------------------------------------- */

static uint64_t whole_ns(double ns)
{
    return ns < (double)EFS_TASK_MAX_NS ? (uint64_t)(ns + 0.5) : EFS_TASK_MAX_NS;
}

static void fill_costs(struct player *player)
{
    const struct replay_setup *s = player->setup;
    const struct efs_cost cost = replay_cost(s);
    uint64_t e = s->bytes[EFS_POOL_E] < EFS_POOLS ? 0 : s->bytes[EFS_POOL_E];
    for (unsigned pool = 0; pool <= EFS_POOLS; pool++)
        player->each[pool] = (struct efs_trace_tensor){.task = {.state = (enum efs_task_state)pool,
                                                                .shards = s->shards,
                                                                .e_read_ns = whole_ns(cost.e_read_ns),
                                                                .sm_read_ns = whole_ns(cost.sm_read_ns),
                                                                .decode_ns = whole_ns(cost.decode_ns)},
                                                       .e_bytes = e / s->tensors,
                                                       .sm_bytes = s->bytes[EFS_POOL_S] / s->tensors};
    for (unsigned pool = 0; pool <= EFS_POOLS && s->run_coded; pool++)
        player->each[pool].task.decode_ns = 0;
    if (player->raw) /* one read, and nothing to decode */
        player->each[EFS_POOL_M] =
            (struct efs_trace_tensor){.task = {.state = EFS_TASK_M,
                                               .shards = 1,
                                               .sm_read_ns = whole_ns((double)s->bytes[EFS_POOL_F] / s->tensors /
                                                                      s->profile.disk_bytes_per_second * 1e9)},
                                      .sm_bytes = s->bytes[EFS_POOL_F] / s->tensors};
}

/* The costs of a tensor of which a part was prefetched. */
static struct efs_trace_tensor tensor_ahead(const struct player *player, unsigned pool, uint32_t i, uint32_t tensor)
{
    static const uint8_t components[EFS_POOLS + 1] =
        {[EFS_POOL_C] = REPLAY_SM | REPLAY_E, [EFS_POOL_S] = REPLAY_SM, [EFS_POOL_E] = REPLAY_E},
                                                pools[] = {EFS_POOL_M, EFS_POOL_S, EFS_POOL_E, EFS_POOL_C};
    unsigned got;
    bool waits;
    double left = replay_prefetch_unread(player->prefetch, i, tensor, &got, &waits);
    struct efs_trace_tensor found = player->each[pool];
    if (left <= 0 && !waits)
        return player->each[pools[components[pool] | got]];
    if (got & REPLAY_SM) {
        found.task.sm_read_ns = (uint64_t)(left * (double)found.task.sm_read_ns);
        found.sm_bytes = (uint64_t)(left * (double)found.sm_bytes);
    }
    if (got & REPLAY_E) {
        found.task.e_read_ns = (uint64_t)(left * (double)found.task.e_read_ns);
        found.e_bytes = (uint64_t)(left * (double)found.e_bytes);
    }
    return found;
}

/* Adds the disk's latency to the first read of a request. */
static void add_latency(struct player *player, struct efs_task_tensor *task)
{
    uint64_t latency = whole_ns(player->setup->profile.read_latency_ns);
    bool sm = task->state == EFS_TASK_M && task->sm_read_ns > 0;
    sm = sm || (task->state == EFS_TASK_E && task->sm_read_ns > 0);
    bool e = (task->state == EFS_TASK_M || task->state == EFS_TASK_S) && task->e_read_ns > 0;
    if (player->read || (!sm && !e))
        return;
    player->read = true;
    if (sm)
        task->sm_read_ns += latency;
    else
        task->e_read_ns += latency / task->shards;
}

static uint32_t player_describe(void *arg, uint32_t layer, uint32_t expert, struct efs_trace_tensor *tensors)
{
    struct player *player = arg;
    uint32_t count = player->setup->tensors, i = player->count++;
    unsigned pool = player->placements[i].found;
    (void)layer;
    (void)expert; /* called in the order of the request */
    for (uint32_t t = 0; t < count; t++) {
        tensors[t] = player->prefetch && pool >= EFS_POOL_S ? tensor_ahead(player, pool, i, t) : player->each[pool];
        add_latency(player, &tensors[t].task);
    }
    return count;
}

/* ---- decisions ---------------------------------------------------------------------------------------------- */

static int player_begin(void *arg, uint32_t layer, const uint32_t *experts, uint32_t count)
{
    struct player *player = arg;
    const struct efs_move *moves;
    size_t move_count;
    player->count = 0;
    player->read = false;
    if (player->cache) {
        replay_cache_request(player->cache, player->placements);
        return 0;
    }
    uint64_t began = efs_now_ns();
    int rc = efs_policy_request(player->policy, layer, experts, count, player->placements);
    if (rc == 0 && player->prefetch)
        rc = replay_prefetch_requested(player->prefetch, layer, player->placements, count);
    if (rc < 0)
        return rc;
    efs_policy_admit(player->policy, layer, player->placements, count, &moves, &move_count);
    player->policy_ns += efs_now_ns() - began;
    for (size_t i = 0; i < move_count; i++)
        if (moves[i].from == EFS_POOL_F && (moves[i].to == EFS_POOL_C || moves[i].to == EFS_POOL_E))
            player->result->recoded_bytes += (double)player->setup->bytes[EFS_POOL_F];
    return player->prefetch ? replay_prefetch_offer(player->prefetch, layer, player->policy) : 0;
}

static void player_used(void *arg, uint32_t layer, const uint32_t *experts, uint32_t count)
{
    struct player *player = arg;
    for (uint32_t i = 0; i < count && player->policy; i++)
        efs_policy_unpin(player->policy, layer, experts[i]);
    player->result->requests++;
}

static void player_pass_done(void *arg, const struct efs_trace_totals *totals)
{
    struct player *player = arg;
    player->pass_ns[player->result->passes] = totals->time_ns;
    player->result->tokens += player->workload->width[player->result->passes++];
    if (player->prefetch)
        replay_prefetch_begin_pass(player->prefetch, player->result->passes, player->result->tokens);
}

/* ---- the run ------------------------------------------------------------------------------------------------ */

static int open_cache(struct player *player, const struct replay_policy *choice, const struct replay_history *h,
                      const struct replay_plan *plan)
{
    const struct replay_setup *s = player->setup;
    const struct predict_choice fmoe = {.config = {.kind = EFS_PREDICT_FMOE}};
    bool predicts = choice->cache == REPLAY_CACHE_FMOE;
    int rc = predicts ? replay_predictions_make(&fmoe, h->workload, player->workload, EFS_PREDICT_MAX_DISTANCE,
                                                &player->predicted)
                      : 0;
    if (rc < 0)
        return rc;
    unsigned pool = choice->pools == REPLAY_RAW ? EFS_POOL_F : EFS_POOL_C;
    player->cache = replay_cache_new(choice->cache, player->workload, predicts ? &player->predicted : NULL,
                                     plan->capacity[pool] / s->bytes[pool], s->swaps, s->bytes[pool]);
    return player->cache ? 0 : -ENOMEM;
}

static int open_policy(struct player *player, const struct replay_policy *choice, const struct replay_history *h,
                       const struct replay_plan *plan)
{
    const struct replay_setup *s = player->setup;
    struct efs_policy_config config = {.kind = choice->kind,
                                       .layers = s->layers,
                                       .experts = s->experts,
                                       .chosen = player->workload->chosen,
                                       .bytes = (const uint64_t(*)[EFS_POOLS]) & s->bytes,
                                       .same_bytes = true,
                                       .by_layer = choice->pools == REPLAY_EVEN || choice->published,
                                       .recode = true,
                                       .seed = 1,
                                       .tuning = {.count_age = REPLAY_COUNT_AGE}};
    memcpy(config.capacity_bytes, plan->capacity, sizeof(config.capacity_bytes));
    config.tuning.published = choice->published;
    if (choice->cache != REPLAY_CACHE_NONE)
        return open_cache(player, choice, h, plan);
    int rc = efs_policy_new(&config, &player->policy);
    for (uint32_t l = 0; rc == 0 && choice->kind == EFS_POLICY_ZIPMOE && h->workload && l < s->layers; l++)
        efs_policy_seed(player->policy, l, h->seen.counts + (size_t)l * s->experts, h->workload->passes);
    return rc;
}

/* Background reads of the cache, which the simulator runs like prefetches. */
static uint64_t cache_next_read(void *arg, uint64_t now_ns)
{
    const struct player *player = arg;
    const struct replay_setup *s = player->setup;
    bool begins = false;
    uint64_t bytes = replay_cache_next_read(player->cache, REPLAY_PIECE_BYTES, &begins);
    (void)now_ns;
    return bytes ? 1 + (begins ? whole_ns(s->profile.read_latency_ns) : 0) +
                       whole_ns((double)bytes / s->profile.disk_bytes_per_second * 1e9)
                 : 0;
}

static void cache_read_done(void *arg)
{
    const struct player *player = arg;
    replay_cache_read_done(player->cache);
}

/* Converts passes [begin, end) to requests of the simulator. Returns their number. */
static size_t fill_requests(const struct replay_workload *w, uint64_t begin, uint64_t end,
                            struct efs_trace_request *requests)
{
    size_t n = 0;
    for (uint64_t pass = begin; pass < end; pass++)
        for (uint32_t l = 0; l < w->layers; l++) {
            const size_t *first = &w->first[pass * w->layers + l];
            requests[n++] = (struct efs_trace_request){.token = pass,
                                                       .layer = l,
                                                       .count = (uint32_t)(first[1] - first[0]),
                                                       .experts = w->ids + first[0],
                                                       .tokens = w->of_them + first[0]};
        }
    return n;
}

static int player_run(struct player *player, const struct efs_trace_config *config, struct efs_trace_request *requests,
                      replay_progress_fn *progress, void *arg)
{
    const struct replay_workload *w = player->workload;
    bool stop = false;
    int rc = 0;
    for (uint64_t pass = 0, end; rc == 0 && !stop && pass < w->passes; pass = end) {
        struct efs_trace_totals totals;
        end = pass + SLICE_PASSES < w->passes ? pass + SLICE_PASSES : w->passes;
        size_t count = fill_requests(w, pass, end, requests);
        rc = efs_trace_simulate(config, requests, count, player->memory, player->memory_bytes, player_pass_done, player,
                                &totals);
        efs_trace_totals_add(&player->result->all, &totals);
        stop = progress(arg, player->result->tokens);
    }
    return rc;
}

/* Computes the lower bound of the time over all orders of the same operations. */
static void compute_limit(const struct player *player, struct replay_result *r)
{
    const uint64_t *busy = r->all.busy_ns;
    double computing = (double)busy[EFS_ON_EXECUTOR] + (double)(player->setup->layer_ns * r->requests);
    double decoding = (double)busy[EFS_ON_WORKER] / player->setup->workers;
    double reading = (double)(busy[EFS_ON_IO] + r->all.ahead_ns);
    r->limit_ns = computing > decoding ? computing : decoding;
    r->limit_ns = reading > r->limit_ns ? reading : r->limit_ns;
}

static int simulate(const struct replay_setup *setup, const struct replay_workload *workload,
                    const struct replay_policy *policy, const struct replay_history *history,
                    const struct replay_plan *plan, const struct replay_predictions *predicted, uint64_t budget_bytes,
                    replay_progress_fn *progress, void *arg, struct replay_result *result)
{
    struct player *player = calloc(1, sizeof(*player));
    if (!player)
        return -ENOMEM;
    *result = (struct replay_result){0};
    player->setup = setup;
    player->workload = workload;
    player->result = result;
    player->raw = policy->pools == REPLAY_RAW;
    fill_costs(player);
    player->plan = plan;
    if (predicted)
        player->prefetch = replay_prefetch_new(setup, workload, predicted, budget_bytes, &player->timeline);
    const struct efs_trace_prefetch reads = {player->prefetch, replay_prefetch_next, replay_prefetch_done},
                                    brings = {player, cache_next_read, cache_read_done};
    const struct efs_trace_config config = {.policy = {player, player_begin, player_describe, player_used},
                                            .ahead = player->prefetch ? reads
                                                     : policy->cache != REPLAY_CACHE_NONE
                                                         ? brings
                                                         : (struct efs_trace_prefetch){0},
                                            .timeline = &player->timeline,
                                            .workers = setup->workers,
                                            .recovery = EFS_RECOVER_WORKER,
                                            .fused = true,
                                            .kind = setup->schedule,
                                            .run_token_ns = setup->run_token_ns,
                                            .layer_ns = setup->layer_ns,
                                            .max_shards = setup->shards};
    size_t requests_max = (size_t)SLICE_PASSES * workload->layers;
    struct efs_trace_request *requests = calloc(requests_max, sizeof(*requests));
    player->memory_bytes = efs_trace_bytes(&config);
    player->memory = malloc(player->memory_bytes + 1);
    player->pass_ns = calloc(workload->passes + 1, sizeof(*player->pass_ns));
    int rc = requests && player->memory && player->pass_ns && (player->prefetch || !predicted) ? 0 : -ENOMEM;
    if (rc == 0)
        rc = open_policy(player, policy, history, plan);
    if (rc == 0)
        rc = player_run(player, &config, requests, progress, arg);
    if (rc == 0)
        rc = replay_compute_times(workload, player->pass_ns, result);
    result->policy_ns = result->requests ? (double)player->policy_ns / (double)result->requests : 0;
    if (player->cache) /* totals have only the reads of requests */
        result->all.read_bytes += replay_cache_background_bytes(player->cache);
    compute_limit(player, result);
    if (player->prefetch)
        replay_prefetch_result(player->prefetch, result);
    replay_prefetch_free(player->prefetch);
    efs_policy_free(player->policy);
    replay_cache_free(player->cache);
    replay_predictions_free(&player->predicted);
    free(player->pass_ns);
    free(player->memory);
    free(requests);
    free(player);
    return rc;
}

int replay_simulate(const struct replay_setup *setup, const struct replay_workload *workload,
                    const struct replay_policy *policy, const struct replay_history *history,
                    const struct replay_plan *plan, const struct replay_predictions *predicted, uint64_t budget_bytes,
                    replay_progress_fn *progress, void *arg, struct replay_result *result)
{
    bool whole_layers = policy->cache >= REPLAY_CACHE_ACCELERATE;
    struct replay_workload wide = {0};
    int rc = whole_layers ? replay_workload_widen(workload, &wide) : 0;
    if (rc == 0)
        rc = simulate(setup, whole_layers ? &wide : workload, policy, history, plan, predicted, budget_bytes, progress,
                      arg, result);
    replay_workload_free(&wide);
    return rc;
}
