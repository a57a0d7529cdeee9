/*
 * plancmp - replays a routing trace against the cache policies, decisions only, and prints what each would read.
 *
 *     plancmp HISTORY.route.zst EVAL.route.zst [NAME=VALUE ...]
 *
 * The history gives the inclusion list that the planner plans with and the long-run counts; the eval trace is what the
 * tables are about. Every policy starts with an empty cache. NAME=VALUE sets a number of the cost model or of the
 * zipmoe policy: expert_mib, rho (coded E over E), disk_gbs, request_us, decode_gbs and copy_gbs (BF16 of one
 * thread; copy_gbs=0: full experts are mapped, which costs nothing), threads, step,
 * streams (sequences that take turns), budgets (one: a fraction of the raw experts), and the fields of struct
 * efs_policy_tuning.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner.h"
#include "policy.h"
#include "rank.h"
#include "route.h"

enum { SHARDS = 8, TENSORS = 3 };

struct setup {
    double expert_mib, rho, disk_gbs, request_us, decode_gbs, copy_gbs, threads, step, budgets, seed, hint, streams,
        count_age;
    struct efs_policy_tuning tuning;
};

struct tally {
    uint64_t tokens, hits[EFS_POOLS + 1], requests;
    double read_bytes, io_ns, layer_ns, recoded_bytes;
};

static void die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fprintf(stderr, "plancmp: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

static void sizes(const struct setup *s, uint64_t bytes[EFS_POOLS])
{
    double full = s->expert_mib * 1048576;

    bytes[EFS_POOL_F] = (uint64_t)full;
    bytes[EFS_POOL_S] = (uint64_t)(full / 2);
    bytes[EFS_POOL_E] = (uint64_t)(full / 2 * s->rho);
    bytes[EFS_POOL_C] = bytes[EFS_POOL_S] + bytes[EFS_POOL_E];
}

static struct efs_cost cost_of(const struct setup *s)
{
    uint64_t bytes[EFS_POOLS];

    sizes(s, bytes);
    return (struct efs_cost){.sm_read_ns = (double)bytes[EFS_POOL_S] / TENSORS / s->disk_gbs,
                             .e_read_ns = (double)bytes[EFS_POOL_E] / (TENSORS * SHARDS) / s->disk_gbs,
                             .decode_ns = (double)bytes[EFS_POOL_F] / (TENSORS * SHARDS) / s->decode_gbs,
                             .threads = (unsigned)s->threads,
                             .shards = SHARDS,
                             .tensors = TENSORS,
                             .extended = true,
                             .copy_ns = s->copy_gbs > 0 ? (double)bytes[EFS_POOL_F] / s->copy_gbs : 0,
                             .request_ns = s->request_us * 1000};
}

/* ---- replay ------------------------------------------------------------------------------------------------- */

/* What one layer cost, from where its experts were found. full_units: the store holds plain experts. */
static void charge(struct tally *tally, const struct setup *s, const struct efs_grant *grants, unsigned count,
                   bool full_units)
{
    struct efs_cost cost = cost_of(s);
    uint64_t bytes[EFS_POOLS];
    struct efs_share sum = {0};
    bool reads = false;

    sizes(s, bytes);
    for (unsigned i = 0; i < count; i++) {
        enum efs_pool found = grants[i].found;
        struct efs_share share = efs_makespan_share(&cost, found);
        uint64_t read = found == EFS_POOL_S   ? bytes[EFS_POOL_E]
                        : found == EFS_POOL_E ? bytes[EFS_POOL_S]
                        : found == EFS_POOL_M ? bytes[EFS_POOL_C]
                                              : 0;

        if (full_units && found == EFS_POOL_M) {
            read = bytes[EFS_POOL_F];
            share = (struct efs_share){.io_ns = (double)read / s->disk_gbs + cost.request_ns};
        }
        tally->hits[found]++;
        tally->read_bytes += (double)read;
        sum.io_ns += share.io_ns;
        sum.cpu_ns += share.cpu_ns;
        reads = reads || read;
    }
    tally->requests += count;
    tally->io_ns += sum.io_ns;
    if (full_units)
        cost.decode_ns = 0;
    tally->layer_ns += efs_makespan_of(&cost, sum, reads);
}

static struct tally replay(const struct route *route, struct efs_policy *policy, const struct setup *s, bool full_units)
{
    struct efs_grant *grants = calloc(route->chosen, sizeof(*grants));
    struct tally tally = {0};
    const struct efs_move *moves;
    size_t move_count;
    uint64_t bytes[EFS_POOLS];

    sizes(s, bytes);
    if (!grants)
        die("no memory");
    for (uint64_t t = 0; t < route->tokens; t++) {
        if (s->hint > 0 && t && route->sequence[t] != route->sequence[t - 1])
            efs_policy_begin(policy);
        for (uint32_t l = 0; l < route->layers; l++) {
            if (efs_policy_request(policy, l, route_ids(route, t, l), route->chosen, grants))
                die("token %llu layer %u: the policy refused the request", (unsigned long long)t, l);
            charge(&tally, s, grants, route->chosen, full_units);
            efs_policy_settle(policy, l, grants, route->chosen, &moves, &move_count);
            for (size_t i = 0; i < move_count; i++)
                if (moves[i].from == EFS_POOL_F && (moves[i].to == EFS_POOL_C || moves[i].to == EFS_POOL_E))
                    tally.recoded_bytes += (double)bytes[EFS_POOL_F];
            for (uint32_t i = 0; i < route->chosen; i++)
                efs_policy_release(policy, l, grants[i].expert);
        }
        tally.tokens++;
    }
    if (efs_policy_over_bytes(policy))
        die("the policy holds %llu bytes too many", (unsigned long long)efs_policy_over_bytes(policy));
    free(grants);
    return tally;
}

/* Belady with bypass on units of C over all layers: what no policy on whole units can beat. */
static struct tally oracle(const struct route *route, const struct setup *s, double budget_bytes)
{
    uint32_t units = route->layers * route->experts, per_token = route->layers * route->chosen;
    uint64_t bytes[EFS_POOLS], *next = calloc(route->tokens * per_token, sizeof(*next));
    uint64_t *use = calloc(units, sizeof(*use));
    bool *in = calloc(units, sizeof(*in));
    struct efs_grant *grants = calloc(route->chosen, sizeof(*grants));
    struct tally tally = {.tokens = route->tokens};
    uint64_t room;

    sizes(s, bytes);
    if (!next || !use || !in || !grants)
        die("no memory");
    room = (uint64_t)(budget_bytes / (double)bytes[EFS_POOL_C]);
    for (uint32_t u = 0; u < units; u++)
        use[u] = UINT64_MAX;
    for (uint64_t i = route->tokens * per_token; i-- > 0;) {
        uint32_t unit = (uint32_t)(i / route->chosen % route->layers) * route->experts + route->ids[i];

        next[i] = use[unit];
        use[unit] = i;
    }
    for (uint64_t i = 0; i < route->tokens * per_token; i += route->chosen) {
        uint32_t layer = (uint32_t)(i / route->chosen % route->layers);

        for (uint32_t k = 0; k < route->chosen; k++) {
            uint32_t unit = layer * route->experts + route->ids[i + k], worst = unit;

            grants[k] = (struct efs_grant){.expert = route->ids[i + k], .found = in[unit] ? EFS_POOL_C : EFS_POOL_M};
            use[unit] = next[i + k];
            if (in[unit])
                continue;
            if (room) {
                room--;
                in[unit] = true;
                continue;
            }
            for (uint32_t u = 0; u < units; u++)
                if (in[u] && use[u] > use[worst])
                    worst = u;
            if (worst != unit) {
                in[worst] = false;
                in[unit] = true;
            }
        }
        charge(&tally, s, grants, route->chosen, false);
    }
    free(next);
    free(use);
    free(in);
    free(grants);
    return tally;
}

/* ---- planning ----------------------------------------------------------------------------------------------- */

/* The inclusion list of each layer of the history under the ranking that the policy will use, and its counts. */
static void learn(const struct route *history, const struct setup *s, double *inclusion, uint32_t *counts)
{
    uint64_t bytes[1][EFS_POOLS];
    struct efs_policy_config config = {.kind = EFS_POLICY_ZIPMOE,
                                       .layers = history->layers,
                                       .experts = history->experts,
                                       .chosen = history->chosen,
                                       .bytes = (const uint64_t(*)[EFS_POOLS])bytes,
                                       .same_bytes = true,
                                       .tuning = s->tuning};
    struct efs_grant *grants = calloc(history->chosen, sizeof(*grants));
    struct efs_policy *policy;

    sizes(s, bytes[0]);
    if (!grants || efs_policy_new(&config, &policy))
        die("no memory");
    for (uint64_t t = 0; t < history->tokens; t++) {
        if (s->hint > 0 && t && history->sequence[t] != history->sequence[t - 1])
            efs_policy_begin(policy);
        for (uint32_t l = 0; l < history->layers; l++) {
            const uint32_t *ids = route_ids(history, t, l);

            for (uint32_t i = 0; i < history->chosen; i++) {
                inclusion[l * history->experts + efs_policy_rank(policy, l, ids[i])]++;
                counts[l * history->experts + ids[i]]++;
            }
            if (efs_policy_request(policy, l, ids, history->chosen, grants))
                die("the history asks for an expert twice");
            for (uint32_t i = 0; i < history->chosen; i++)
                efs_policy_release(policy, l, ids[i]);
        }
    }
    for (uint32_t i = 0; i < history->layers * history->experts; i++) /* half a use each: no rank is impossible */
        inclusion[i] = (inclusion[i] + 0.5) / ((double)history->tokens + 0.5 * history->experts / history->chosen);
    efs_policy_free(policy);
    free(grants);
}

static struct efs_plan_request request_of(const struct setup *s, const struct route *history, const double *inclusion,
                                          enum efs_plan_goal goal)
{
    struct efs_plan_request request = {.inclusion = inclusion,
                                       .experts = history->experts,
                                       .chosen = history->chosen,
                                       .pools = EFS_PLAN_ALL_POOLS,
                                       .step = s->step,
                                       .goal = goal,
                                       .fill = true,
                                       .cost = cost_of(s)};

    sizes(s, request.expert_bytes);
    return request;
}

/* One plan for pools that all layers share, from the mean of their inclusion lists. */
static void plan_shared(const struct setup *s, const struct route *history, const double *inclusion, double budget,
                        enum efs_plan_goal goal, struct efs_plan_shared *plan)
{
    double *mean = calloc(history->experts, sizeof(*mean));
    struct efs_plan_request request = request_of(s, history, mean, goal);
    int rc;

    if (!mean)
        die("no memory");
    for (uint32_t i = 0; i < history->layers * history->experts; i++)
        mean[i % history->experts] += inclusion[i] / history->layers;
    rc = efs_plan_share(&request, history->layers, (uint64_t)budget, plan);
    if (rc)
        die("planning failed: %s", strerror(-rc));
    printf("  plan for %s: experts of a layer F %.1f C %.1f S %.1f E %.1f; a token is expected to take %.2f ms I/O, "
           "%.2f ms in all\n",
           goal == EFS_PLAN_IO ? "I/O" : "makespan", plan->experts[0], plan->experts[1], plan->experts[2],
           plan->experts[3], plan->io_ns * history->layers / 1e6, plan->makespan_ns * history->layers / 1e6);
    free(mean);
}

/* A plan for each layer by itself, and a budget for each by what it gains. */
static uint64_t (*plan_by_layer(const struct setup *s, const struct route *history, const double *inclusion,
                                double budget, enum efs_plan_goal goal))[EFS_POOLS]
{
    struct efs_plan_request *request = calloc(history->layers, sizeof(*request));
    struct efs_plan *plan = calloc(history->layers, sizeof(*plan));
    uint64_t(*bytes)[EFS_POOLS] = calloc(history->layers, sizeof(*bytes));
    double total_ns, io_ns = 0, least = 0, most = 0;
    int rc;

    if (!request || !plan || !bytes)
        die("no memory");
    for (uint32_t l = 0; l < history->layers; l++) {
        request[l] = request_of(s, history, inclusion + (size_t)l * history->experts, goal);
        request[l].step = 0.1;
    }
    rc = efs_plan_layers(request, history->layers, (uint64_t)budget, 16, plan, &total_ns);
    if (rc)
        die("planning by layer failed: %s", strerror(-rc));
    for (uint32_t l = 0; l < history->layers; l++) {
        double here = (double)plan[l].budget_bytes;

        memcpy(bytes[l], plan[l].used_bytes, sizeof(bytes[l]));
        io_ns += plan[l].io_ns;
        least = l == 0 || here < least ? here : least;
        most = here > most ? here : most;
    }
    printf("  plan by layer for %s: from %.2f to %.2f of the mean; a token is expected to take %.2f ms I/O\n",
           goal == EFS_PLAN_IO ? "I/O" : "makespan", least * history->layers / budget, most * history->layers / budget,
           io_ns / 1e6);
    free(request);
    free(plan);
    return bytes;
}

/* Deal the sequences of a trace out to streams and let these take turns, token by token, as a server would. */
static void interleave(struct route *route, unsigned streams)
{
    uint64_t *cursor = calloc(streams, sizeof(*cursor)), *end = calloc(streams, sizeof(*end)), next = 0, made = 0;
    size_t per_token = (size_t)route->layers * route->chosen;
    uint32_t *ids = calloc(route->tokens * per_token, sizeof(*ids));
    uint32_t *sequence = calloc(route->tokens, sizeof(*sequence));

    if (!cursor || !end || !ids || !sequence)
        die("no memory");
    while (made < route->tokens) {
        for (unsigned s = 0; s < streams; s++) {
            if (cursor[s] == end[s] && next < route->tokens) {
                cursor[s] = next++;
                while (next < route->tokens && route->sequence[next] == route->sequence[cursor[s]])
                    next++;
                end[s] = next;
            }
            if (cursor[s] == end[s])
                continue;
            memcpy(ids + made * per_token, route->ids + cursor[s] * per_token, per_token * sizeof(*ids));
            sequence[made++] = route->sequence[cursor[s]++];
        }
    }
    free(route->ids);
    free(route->sequence);
    free(cursor);
    free(end);
    route->ids = ids;
    route->sequence = sequence;
}

/* ---- tables ------------------------------------------------------------------------------------------------- */

static void print_row(const char *name, const struct tally *tally, const struct tally *worst)
{
    double n = (double)tally->tokens;

    printf("  %-26s %10.2f %8.2fx %10.3f %10.3f  %5.1f %5.1f %5.1f %5.1f %5.1f %8.3f\n", name,
           tally->read_bytes / n / 1e6, worst->read_bytes / tally->read_bytes, tally->io_ns / n / 1e6,
           tally->layer_ns / n / 1e6, 100.0 * (double)tally->hits[0] / (double)tally->requests,
           100.0 * (double)tally->hits[1] / (double)tally->requests,
           100.0 * (double)tally->hits[2] / (double)tally->requests,
           100.0 * (double)tally->hits[3] / (double)tally->requests,
           100.0 * (double)tally->hits[4] / (double)tally->requests, tally->recoded_bytes / n / 1e6);
}

static struct tally run(const struct route *eval, const struct setup *s, enum efs_policy_kind kind,
                        const uint64_t capacity[EFS_POOLS], uint64_t (*layer_bytes)[EFS_POOLS],
                        const struct efs_policy_tuning *tuning, const uint32_t *counts, uint64_t passes)
{
    uint64_t bytes[1][EFS_POOLS];
    struct efs_policy_config config = {.kind = kind,
                                       .layers = eval->layers,
                                       .experts = eval->experts,
                                       .chosen = eval->chosen,
                                       .bytes = (const uint64_t(*)[EFS_POOLS])bytes,
                                       .same_bytes = true,
                                       .recode = true,
                                       .seed = 1,
                                       .tuning = *tuning};
    struct efs_policy *policy;
    struct tally tally;

    sizes(s, bytes[0]);
    memcpy(config.capacity_bytes, capacity, sizeof(config.capacity_bytes));
    config.layer_bytes = (const uint64_t(*)[EFS_POOLS])layer_bytes;
    if (efs_policy_new(&config, &policy))
        die("no policy");
    for (uint32_t l = 0; counts && l < eval->layers; l++)
        efs_policy_seed(policy, l, counts + (size_t)l * eval->experts, passes);
    tally = replay(eval, policy, s, capacity[EFS_POOL_F] && !capacity[EFS_POOL_C] && kind != EFS_POLICY_ZIPMOE);
    efs_policy_free(policy);
    return tally;
}

static void one_budget(const struct route *history, const struct route *eval, const struct setup *s,
                       const double *inclusion, const uint32_t *counts, double fraction)
{
    uint64_t bytes[EFS_POOLS], plain[EFS_POOLS] = {0}, coded[EFS_POOLS] = {0};
    struct efs_policy_tuning published = {.published = true, .count_age = (unsigned)s->count_age};
    const uint32_t *seed = s->seed > 0 ? counts : NULL;
    uint64_t(*even)[EFS_POOLS] = calloc(eval->layers, sizeof(*even)), (*by_layer)[EFS_POOLS];
    struct efs_plan_shared plan[2];
    struct tally tally, lru_full;
    double budget;
    char name[64];

    if (!even)
        die("no memory");
    sizes(s, bytes);
    budget = fraction * (double)bytes[EFS_POOL_F] * eval->layers * eval->experts;
    printf("\n%.0f %% of the raw experts\n", 100 * fraction);
    plan_shared(s, history, inclusion, budget, EFS_PLAN_IO, &plan[0]);
    plan_shared(s, history, inclusion, budget, EFS_PLAN_MAKESPAN, &plan[1]);
    by_layer = plan_by_layer(s, history, inclusion, budget, EFS_PLAN_IO);
    printf("  %-26s %10s %9s %10s %10s  %5s %5s %5s %5s %5s %8s\n", "policy", "MB/token", "vs lru F", "I/O ms",
           "layers ms", "F%", "C%", "S%", "E%", "M%", "recoded");
    plain[EFS_POOL_F] = coded[EFS_POOL_C] = (uint64_t)budget;
    lru_full = run(eval, s, EFS_POLICY_LRU, plain, NULL, &s->tuning, NULL, 0);
#define ROW(name, kind, capacity, layers, tuning, counts)                                                              \
    tally = run(eval, s, kind, capacity, layers, tuning, counts, history->tokens);                                     \
    print_row(name, &tally, &lru_full)
    ROW("zipmoe, planned for I/O", EFS_POLICY_ZIPMOE, plan[0].pool_bytes, NULL, &s->tuning, seed);
    ROW("zipmoe, for makespan", EFS_POLICY_ZIPMOE, plan[1].pool_bytes, NULL, &s->tuning, seed);
    ROW("zipmoe, plan by layer", EFS_POLICY_ZIPMOE, coded, by_layer, &s->tuning, seed);
    ROW("zipmoe, C only", EFS_POLICY_ZIPMOE, coded, NULL, &s->tuning, seed);
    for (unsigned i = 0; i < 2; i++) {
        for (uint32_t l = 0; l < eval->layers; l++)
            for (unsigned p = 0; p < EFS_POOLS; p++)
                even[l][p] = plan[i].pool_bytes[p] / eval->layers;
        ROW(i ? "published, for makespan" : "published, for I/O", EFS_POLICY_ZIPMOE, plan[i].pool_bytes, even,
            &published, seed);
    }
    ROW("published, plan by layer", EFS_POLICY_ZIPMOE, coded, by_layer, &published, seed);
    ROW("lru, makespan plan", EFS_POLICY_LRU, plan[1].pool_bytes, NULL, &s->tuning, NULL);
    for (uint32_t l = 0; l < eval->layers; l++) {
        memset(even[l], 0, sizeof(even[l]));
        even[l][EFS_POOL_C] = coded[EFS_POOL_C] / eval->layers;
    }
    for (enum efs_policy_kind kind = EFS_POLICY_LRU; kind < EFS_POLICY_KINDS; kind++) {
        snprintf(name, sizeof(name), "%s on C", efs_policy_name(kind));
        ROW(name, kind, coded, NULL, &s->tuning, NULL);
        snprintf(name, sizeof(name), "%s on C, by layer", efs_policy_name(kind));
        ROW(name, kind, coded, even, &s->tuning, NULL);
        snprintf(name, sizeof(name), "%s on F", efs_policy_name(kind));
        ROW(name, kind, plain, NULL, &s->tuning, NULL);
    }
#undef ROW
    tally = oracle(eval, s, budget);
    print_row("oracle on C", &tally, &lru_full);
    free(even);
    free(by_layer);
}

static void set(struct setup *s, const char *argument)
{
    const struct {
        const char *name;
        double *number;
    } known[] = {{"expert_mib", &s->expert_mib},
                 {"rho", &s->rho},
                 {"disk_gbs", &s->disk_gbs},
                 {"request_us", &s->request_us},
                 {"decode_gbs", &s->decode_gbs},
                 {"copy_gbs", &s->copy_gbs},
                 {"threads", &s->threads},
                 {"step", &s->step},
                 {"budgets", &s->budgets},
                 {"seed", &s->seed},
                 {"hint", &s->hint},
                 {"streams", &s->streams},
                 {"count_age", &s->count_age},
                 {"rate_weight", &s->tuning.rate_weight},
                 {"age_weight", &s->tuning.age_weight},
                 {"smooth", &s->tuning.smooth},
                 {"half_life", &s->tuning.half_life},
                 {"change_bits", &s->tuning.change_bits},
                 {"promote_margin", &s->tuning.promote_margin}};
    const char *equals = strchr(argument, '=');
    char *end;

    for (size_t i = 0; equals && i < sizeof(known) / sizeof(known[0]); i++)
        if (strlen(known[i].name) == (size_t)(equals - argument) &&
            !strncmp(argument, known[i].name, (size_t)(equals - argument))) {
            *known[i].number = strtod(equals + 1, &end);
            if (end != equals + 1 && !*end)
                return;
        }
    die("%s: not NAME=NUMBER with a name that is known", argument);
}

int main(int argc, char **argv)
{
    struct setup s = {.expert_mib = 47.46,
                      .rho = 0.334,
                      .disk_gbs = 1.4,
                      .request_us = 100,
                      .decode_gbs = 8,
                      .copy_gbs = 10,
                      .threads = 4,
                      .step = 0.05,
                      .count_age = 64,
                      .seed = 1};
    const double budgets[] = {0.10, 0.25, 0.50, 0.75};
    struct route history, eval;
    double *inclusion;
    uint32_t *counts;
    char error[256];

    if (argc < 3)
        die("use: plancmp HISTORY.route.zst EVAL.route.zst [NAME=NUMBER ...]");
    for (int i = 3; i < argc; i++)
        set(&s, argv[i]);
    if (route_read(argv[1], &history, error, sizeof(error)))
        die("%s: %s", argv[1], error);
    if (route_read(argv[2], &eval, error, sizeof(error)))
        die("%s: %s", argv[2], error);
    if (history.layers != eval.layers || history.experts != eval.experts || history.chosen != eval.chosen)
        die("the two traces are of models that differ");
    if (s.streams > 1) {
        interleave(&history, (unsigned)s.streams);
        interleave(&eval, (unsigned)s.streams);
    }
    inclusion = calloc((size_t)history.layers * history.experts, sizeof(*inclusion));
    counts = calloc((size_t)history.layers * history.experts, sizeof(*counts));
    if (!inclusion || !counts)
        die("no memory");
    learn(&history, &s, inclusion, counts);
    printf("%s: %llu tokens; history %llu tokens; disk %.2f GB/s, decode %.1f, copy %.1f, %.0f threads\n", eval.name,
           (unsigned long long)eval.tokens, (unsigned long long)history.tokens, s.disk_gbs, s.decode_gbs, s.copy_gbs,
           s.threads);
    if (s.budgets > 0)
        one_budget(&history, &eval, &s, inclusion, counts, s.budgets);
    for (size_t i = 0; s.budgets <= 0 && i < sizeof(budgets) / sizeof(budgets[0]); i++)
        one_budget(&history, &eval, &s, inclusion, counts, budgets[i]);
    free(inclusion);
    free(counts);
    route_free(&history);
    route_free(&eval);
    return 0;
}
