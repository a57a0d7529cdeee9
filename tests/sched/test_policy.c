/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy.c - the cache policies: the classic ones against simple models, invariants of the cache state under
 * random requests, the zipmoe policy by cases.
 */
#include "test.h"
#include "cases.h"
#include "policy_internal.h"
#include "policy_reuse.h"

enum { F = EFS_POOL_F, C = EFS_POOL_C, S = EFS_POOL_S, E = EFS_POOL_E, M = EFS_POOL_M };

static const uint64_t sizes[1][EFS_POOLS] = {{1000, 667, 500, 167}};

static struct efs_policy_config config_of(enum efs_policy_kind kind, unsigned layers, unsigned experts)
{
    return (struct efs_policy_config){
        .kind = kind, .layers = layers, .experts = experts, .chosen = 2, .bytes = sizes, .same_bytes = true, .seed = 7};
}

static struct efs_policy *open_policy(const struct efs_policy_config *config)
{
    struct efs_policy *policy;

    assert_int_equal(efs_policy_new(config, &policy), 0);
    assert_non_null(policy);
    return policy;
}

/* Bytes above the capacity of pools that all layers share. */
static uint64_t over_bytes(const struct efs_policy *policy)
{
    uint64_t over = 0;

    for (unsigned pool = 0; pool < EFS_POOLS; pool++) {
        struct efs_policy_pool info;

        efs_policy_pool(policy, (enum efs_pool)pool, &info);
        over += info.used_bytes > info.capacity_bytes ? info.used_bytes - info.capacity_bytes : 0;
    }
    return over;
}

/* Runs a whole request: places, admits, unpins. Returns the number of moves. */
static size_t ask(struct efs_policy *policy, unsigned layer, const uint32_t *expert, unsigned count,
                  struct efs_placement *placements, const struct efs_move **moves)
{
    size_t move_count;

    assert_int_equal(efs_policy_request(policy, layer, expert, count, placements), 0);
    efs_policy_admit(policy, layer, placements, count, moves, &move_count);
    for (unsigned i = 0; i < count; i++)
        efs_policy_unpin(policy, layer, expert[i]);
    return move_count;
}

static struct efs_placement ask_one(struct efs_policy *policy, unsigned layer, uint32_t expert)
{
    const struct efs_move *moves;
    struct efs_placement placement;

    ask(policy, layer, &expert, 1, &placement, &moves);
    return placement;
}

/* ---- the classic policies ----------------------------------------------------------------------------------- */

/* A simple model: all units in an array; the search for a victim scans all of them. */
struct model {
    bool in[60];
    uint64_t used[60], entered[60], uses[60], clock;
    unsigned count;
};

static unsigned model_victim(const struct model *model, enum efs_policy_kind kind)
{
    unsigned best = 60;

    for (unsigned u = 0; u < 60; u++) {
        bool better;

        if (!model->in[u])
            continue;
        better = best == 60 || (kind == EFS_POLICY_LRU ? model->used[u] < model->used[best]
                                : kind == EFS_POLICY_FIFO
                                    ? model->entered[u] < model->entered[best]
                                    : model->uses[u] < model->uses[best] ||
                                          (model->uses[u] == model->uses[best] && model->used[u] < model->used[best]));
        if (better)
            best = u;
    }
    return best;
}

TEST(classic_policies_are_their_models)
{
    static const enum efs_policy_kind kinds[] = {EFS_POLICY_LRU, EFS_POLICY_LFU, EFS_POLICY_FIFO};
    struct cases cases = {41};

    for (unsigned k = 0; k < 3; k++)
        for (unsigned pool = F; pool <= C; pool++) {
            struct efs_policy_config config = config_of(kinds[k], 3, 20);
            struct model model = {.clock = 1};
            struct efs_policy *policy;
            const unsigned room = 17;

            config.capacity_bytes[pool] = room * sizes[0][pool] + 100; /* 100 bytes in which no unit fits */
            policy = open_policy(&config);
            for (unsigned round = 0; round < 4000; round++) {
                unsigned layer = cases_below(&cases, 3), unit;
                uint32_t expert = (uint32_t)(20 * pow(cases_uniform(&cases), 2));
                const struct efs_move *moves;
                struct efs_placement placement;
                size_t count = ask(policy, layer, &expert, 1, &placement, &moves);

                unit = layer * 20 + expert;
                assert_int_equal(placement.found, model.in[unit] ? pool : M);
                assert_int_equal(placement.target, pool);
                model.uses[unit]++;
                model.used[unit] = model.clock;
                if (!model.in[unit]) {
                    if (model.count == room) {
                        unsigned victim = model_victim(&model, kinds[k]);

                        assert_int_equal(count, 1);
                        assert_int_equal(moves[0].layer * 20 + moves[0].expert, victim);
                        assert_true(moves[0].from == pool && moves[0].to == M);
                        model.in[victim] = false;
                        model.count--;
                    } else {
                        assert_int_equal(count, 0);
                    }
                    model.in[unit] = true;
                    model.entered[unit] = model.clock;
                    model.count++;
                }
                model.clock++;
            }
            efs_policy_free(policy);
        }
}

/* Marking: a victim was not requested in this phase; a phase ends when every unit in the pool was. */
TEST(marking_evicts_unmarked)
{
    struct cases cases = {42};
    struct efs_policy_config config = config_of(EFS_POLICY_MARKING, 1, 20);
    bool marked[20] = {false}, in[20] = {false};
    unsigned victims[20] = {0}, phases = 0, used = 0;
    struct efs_policy *policy;

    config.capacity_bytes[C] = 8 * 667;
    policy = open_policy(&config);
    for (unsigned round = 0; round < 5000; round++) {
        uint32_t expert = cases_below(&cases, 20);
        const struct efs_move *moves;
        struct efs_placement placement;
        size_t count = ask(policy, 0, &expert, 1, &placement, &moves);

        if (count) {
            bool any = false;

            assert_int_equal(count, 1);
            for (unsigned e = 0; e < 20; e++)
                any = any || (in[e] && !marked[e] && e != expert);
            if (!any) {
                phases++;
                memset(marked, 0, sizeof(marked));
            }
            assert_true(in[moves[0].expert] && !marked[moves[0].expert]);
            in[moves[0].expert] = false;
            victims[moves[0].expert]++;
        }
        in[expert] = marked[expert] = true;
    }
    for (unsigned e = 0; e < 20; e++)
        used += victims[e] > 0;
    assert_int_equal(used, 20); /* random: every unit is evicted at some time */
    assert_true(phases > 10);
    efs_policy_free(policy);
}

/* ---- invariants ------------------------------------------------------------------------------------------------- */

enum { LAYERS = 3, EXPERTS = 24, UNITS = LAYERS * EXPERTS };

/* The memory contents of a daemon that only follows the policy's moves. */
struct mirror {
    uint8_t pool[UNITS];
    unsigned pins[UNITS];
    uint64_t used[LAYERS][EFS_POOLS], spare[LAYERS][EFS_POOLS], capacity[EFS_POOLS];
    uint64_t (*bytes)[EFS_POOLS];
    unsigned domains;
    bool recode;
};

static unsigned domain_of(const struct mirror *mirror, unsigned unit)
{
    return mirror->domains == 1 ? 0 : unit / EXPERTS;
}

static uint64_t capacity_of(const struct mirror *mirror, unsigned pool)
{
    return mirror->capacity[pool] / mirror->domains;
}

static void mirror_book(struct mirror *mirror, unsigned unit, unsigned to)
{
    unsigned domain = domain_of(mirror, unit), from = mirror->pool[unit];

    if (from != M)
        mirror->used[domain][from] -= mirror->bytes[unit][from];
    if (to != M)
        mirror->used[domain][to] += mirror->bytes[unit][to];
    mirror->pool[unit] = (uint8_t)to;
}

static void mirror_moves(struct mirror *mirror, const struct efs_move *moves, size_t count, bool *moved)
{
    for (size_t i = 0; i < count; i++) {
        unsigned unit = moves[i].layer * EXPERTS + moves[i].expert, domain = domain_of(mirror, unit);

        assert_int_equal(mirror->pool[unit], moves[i].from);
        assert_int_equal(mirror->pins[unit], 0);
        assert_false(moved[unit]);
        moved[unit] = true;
        assert_true(moves[i].to > moves[i].from);
        if (moves[i].from == F && moves[i].to != S && moves[i].to != M)
            assert_true(mirror->recode);
        if (moves[i].from == S)
            assert_int_equal(moves[i].to, M); /* E would have to be read */
        mirror_book(mirror, unit, moves[i].to);
        if (moves[i].to != M && mirror->used[domain][moves[i].to] > capacity_of(mirror, moves[i].to))
            assert_true(mirror->used[domain][moves[i].to] <=
                        capacity_of(mirror, moves[i].to) + mirror->spare[domain][moves[i].to]);
    }
}

static void check_books(const struct efs_policy *policy, const struct mirror *mirror)
{
    uint64_t used[EFS_POOLS] = {0}, experts[EFS_POOLS + 1] = {0};

    for (unsigned unit = 0; unit < UNITS; unit++) {
        assert_int_equal(efs_policy_state(policy, unit / EXPERTS, unit % EXPERTS), mirror->pool[unit]);
        experts[mirror->pool[unit]]++;
        if (mirror->pool[unit] != M)
            used[mirror->pool[unit]] += mirror->bytes[unit][mirror->pool[unit]];
    }
    for (unsigned p = 0; p <= EFS_POOLS; p++) {
        struct efs_policy_pool info;

        efs_policy_pool(policy, p, &info);
        assert_int_equal(info.experts, experts[p]);
        assert_int_equal(info.used_bytes, p < EFS_POOLS ? used[p] : 0);
    }
}

static bool over(const struct mirror *mirror)
{
    for (unsigned d = 0; d < mirror->domains; d++)
        for (unsigned p = 0; p < EFS_POOLS; p++)
            if (mirror->used[d][p] > capacity_of(mirror, p))
                return true;
    return false;
}

static void random_capacity(struct cases *cases, struct mirror *mirror)
{
    for (unsigned p = 0; p < EFS_POOLS; p++)
        mirror->capacity[p] = cases_below(cases, 4) ? cases_below(cases, mirror->domains == 1 ? 12000 : 15000) : 0;
}

static unsigned random_request(struct cases *cases, uint32_t *expert)
{
    unsigned count = cases_below(cases, 20) ? 1 + cases_below(cases, 4) : EXPERTS;

    for (unsigned i = 0; i < EXPERTS; i++)
        expert[i] = i;
    for (unsigned i = 0; i < count; i++) {
        unsigned j = i + (unsigned)((EXPERTS - i) * pow(cases_uniform(cases), 1.5));
        uint32_t swap = expert[i];

        expert[i] = expert[j];
        expert[j] = swap;
    }
    return count;
}

static void drive(struct cases *cases, enum efs_policy_kind kind, bool published, bool same, bool by_layer, bool recode)
{
    struct efs_policy_config config = config_of(kind, LAYERS, EXPERTS);
    struct mirror mirror = {.domains = by_layer ? LAYERS : 1, .recode = recode};
    uint64_t all[UNITS][EFS_POOLS];
    struct efs_policy *policy;
    uint64_t found = 0, asked = 0;

    for (unsigned u = 0; u < UNITS; u++)
        for (unsigned p = 0; p < EFS_POOLS; p++)
            all[u][p] = same ? sizes[0][p] : sizes[0][p] * (1 + u % 3) / 2;
    mirror.bytes = all;
    memset(mirror.pool, M, sizeof(mirror.pool));
    random_capacity(cases, &mirror);
    config.bytes = (const uint64_t(*)[EFS_POOLS])all;
    config.same_bytes = false;
    config.recode = recode;
    config.tuning.published = published;
    config.tuning.count_age = published ? 50 : 0;
    memcpy(config.capacity_bytes, mirror.capacity, sizeof(config.capacity_bytes));
    config.by_layer = by_layer;
    policy = open_policy(&config);
    for (unsigned round = 0; round < 1500; round++) {
        unsigned layer = round % LAYERS, count;
        bool moved[UNITS] = {false};
        uint32_t expert[EXPERTS];
        struct efs_placement placements[EXPERTS];
        const struct efs_move *moves;
        size_t move_count;

        if (cases_below(cases, 100) == 0) { /* a new budget */
            random_capacity(cases, &mirror);
            efs_policy_resize(policy, mirror.capacity, &moves, &move_count);
            memset(mirror.spare, 0xff, sizeof(mirror.spare)); /* pools shrink: over until moved */
            for (unsigned d = 0; d < LAYERS; d++)
                for (unsigned p = 0; p < EFS_POOLS; p++)
                    mirror.spare[d][p] = UINT64_MAX / 2;
            mirror_moves(&mirror, moves, move_count, moved);
            check_books(policy, &mirror);
            assert_true(!over(&mirror));
            memset(moved, 0, sizeof(moved));
        }
        count = random_request(cases, expert);
        assert_int_equal(efs_policy_request(policy, layer, expert, count, placements), 0);
        memset(mirror.spare, 0, sizeof(mirror.spare));
        for (unsigned i = 0; i < count; i++) {
            unsigned unit = layer * EXPERTS + expert[i];

            assert_int_equal(placements[i].expert, expert[i]);
            assert_int_equal(placements[i].found, mirror.pool[unit]);
            mirror.pins[unit]++;
            asked++;
            found += placements[i].found != M;
        }
        efs_policy_admit(policy, layer, placements, count, &moves, &move_count);
        for (unsigned i = 0; i < count; i++)
            if (placements[i].target < placements[i].found && placements[i].found != M)
                mirror.spare[domain_of(&mirror, layer * EXPERTS)][placements[i].found] +=
                    all[layer * EXPERTS + expert[i]][placements[i].found];
        mirror_moves(&mirror, moves, move_count, moved);
        for (unsigned i = 0; i < count; i++) {
            assert_true(placements[i].target <= placements[i].found || (published && placements[i].target == M));
            mirror_book(&mirror, layer * EXPERTS + expert[i], placements[i].target);
        }
        assert_true(!over(&mirror));
        for (unsigned i = 0; i < count; i++) {
            mirror.pins[layer * EXPERTS + expert[i]]--;
            efs_policy_unpin(policy, layer, expert[i]);
        }
        check_books(policy, &mirror);
    }
    assert_true(found > asked / 8 && found < asked); /* hits and misses both occurred often */
    efs_policy_free(policy);
}

TEST(counters_are_consistent)
{
    struct cases cases = {43};

    for (unsigned kind = 0; kind < EFS_POLICY_KINDS; kind++)
        for (unsigned variant = 0; variant < 16; variant++)
            drive(&cases, kind, kind == EFS_POLICY_ZIPMOE && variant & 1, variant & 2, variant & 4, variant & 8);
}

TEST(same_requests_same_decisions)
{
    for (unsigned kind = 0; kind < EFS_POLICY_KINDS; kind++) {
        struct efs_policy_config config = config_of(kind, LAYERS, EXPERTS);
        struct efs_policy *policy[2];
        struct cases cases = {44};

        config.capacity_bytes[F] = 3000;
        config.capacity_bytes[C] = 9000;
        config.capacity_bytes[S] = 2000;
        config.capacity_bytes[E] = 1000;
        config.recode = true;
        policy[0] = open_policy(&config);
        policy[1] = open_policy(&config);
        for (unsigned round = 0; round < 600; round++) {
            uint32_t expert[EXPERTS];
            unsigned count = random_request(&cases, expert);
            struct efs_placement placements[2][EXPERTS];
            const struct efs_move *moves[2];
            size_t moved[2];

            for (unsigned i = 0; i < 2; i++)
                moved[i] = ask(policy[i], round % LAYERS, expert, count, placements[i], &moves[i]);
            assert_int_equal(moved[0], moved[1]);
            for (unsigned i = 0; i < count; i++)
                assert_true(placements[0][i].found == placements[1][i].found &&
                            placements[0][i].target == placements[1][i].target);
            for (size_t i = 0; i < moved[0]; i++)
                assert_memory_equal(&moves[0][i], &moves[1][i], sizeof(moves[0][i]));
        }
        efs_policy_free(policy[0]);
        efs_policy_free(policy[1]);
    }
}

/* ---- pins, user pins, corrections ------------------------------------------------------------------------------- */

TEST(pinned_experts_stay)
{
    for (unsigned kind = 0; kind < EFS_POLICY_KINDS; kind++) {
        struct efs_policy_config config = config_of(kind, 1, 8);
        const struct efs_move *moves;
        uint64_t none[EFS_POOLS] = {0};
        struct efs_policy *policy;
        size_t count;

        config.capacity_bytes[C] = 2 * 667;
        policy = open_policy(&config);
        assert_int_equal(ask_one(policy, 0, 0).target, C);
        assert_int_equal(ask_one(policy, 0, 1).target, C);
        efs_policy_pin(policy, 0, 0);
        efs_policy_pin(policy, 0, 0);
        efs_policy_pin(policy, 0, 1);
        for (unsigned i = 0; i < 9; i++) /* pinned units stay, so no request finds room */
            assert_int_equal(ask_one(policy, 0, 2).target, M);
        efs_policy_unpin(policy, 0, 1);
        assert_int_equal(ask_one(policy, 0, 2).target, C);
        assert_int_equal(efs_policy_state(policy, 0, 1), M);
        efs_policy_unpin(policy, 0, 0);
        efs_policy_resize(policy, none, &moves, &count); /* the pin keeps one unit */
        assert_int_equal(count, 1);
        assert_int_equal(moves[0].expert, 2);
        assert_int_equal(over_bytes(policy), 667);
        efs_policy_unpin(policy, 0, 0);
        efs_policy_fit(policy, &moves, &count);
        assert_int_equal(count, 1);
        assert_int_equal(over_bytes(policy), 0);
        efs_policy_free(policy);
    }
}

TEST(user_pins_have_priority)
{
    for (unsigned kind = 0; kind < EFS_POLICY_KINDS; kind++) {
        struct efs_policy_config config = config_of(kind, 1, 8);
        struct efs_policy *policy;

        config.capacity_bytes[F] = 1000;
        config.capacity_bytes[C] = 667;
        config.recode = true;
        policy = open_policy(&config);
        efs_policy_user_pin(policy, 0, 5, EFS_POOL_C);
        efs_policy_user_pin(policy, 0, 6, EFS_POOL_F);
        assert_int_equal(efs_policy_user_pinned(policy, 0, 5), C);
        for (uint32_t i = 0; i < 20; i++)
            ask_one(policy, 0, i % 3);                     /* fill both pools, and count those three experts */
        assert_int_equal(ask_one(policy, 0, 5).target, C); /* to C, not to F, at its first use */
        assert_int_equal(ask_one(policy, 0, 6).target, F);
        for (uint32_t i = 0; i < 60; i++)
            ask_one(policy, 0, i % 5);
        assert_int_equal(efs_policy_state(policy, 0, 5), C);
        assert_int_equal(efs_policy_state(policy, 0, 6), F);
        efs_policy_user_pin(policy, 0, 5, EFS_POOL_M);
        for (uint32_t i = 0; i < 600; i++)
            ask_one(policy, 0, i % 3);
        assert_int_equal(efs_policy_state(policy, 0, 5), M);
        efs_policy_free(policy);
    }
}

TEST(pinned_experts_are_kept_without_a_request)
{
    for (unsigned kind = 0; kind < EFS_POLICY_KINDS; kind++) {
        struct efs_policy_config config = config_of(kind, 1, 8);
        const struct efs_move *moves;
        struct efs_policy *policy;
        size_t count;
        unsigned in_c = 0;

        config.capacity_bytes[C] = 2 * 667;
        policy = open_policy(&config);
        for (uint32_t i = 0; i < 20; i++)
            ask_one(policy, 0, i % 2); /* these two have the pool */
        efs_policy_user_pin(policy, 0, 5, EFS_POOL_C);
        efs_policy_user_pin(policy, 0, 6, EFS_POOL_C);
        efs_policy_user_pin(policy, 0, 7, EFS_POOL_C);
        assert_int_equal(efs_policy_keep(policy, 0, 5, &moves, &count), C);
        assert_int_equal(efs_policy_keep(policy, 0, 6, &moves, &count), C);
        assert_int_equal(efs_policy_keep(policy, 0, 7, &moves, &count), M); /* the pool is full of pinned ones */
        assert_int_equal(count, 0);
        for (unsigned e = 0; e < 8; e++)
            in_c += efs_policy_state(policy, 0, e) == EFS_POOL_C;
        assert_int_equal(in_c, 2);
        assert_int_equal(efs_policy_count(policy, 0, 5), 0);
        efs_policy_free(policy);
    }
}

TEST(corrections_by_the_caller)
{
    struct efs_policy_config config = config_of(EFS_POLICY_LRU, 2, 8);
    struct efs_placement first[1], second[1];
    const struct efs_move *moves;
    struct efs_policy *policy;
    uint32_t three = 3;
    size_t count;

    config.capacity_bytes[C] = 2000;
    policy = open_policy(&config);
    /* two concurrent requests: the second one finds the unit in the pool to which the first one admits it */
    assert_int_equal(efs_policy_request(policy, 1, &three, 1, first), 0);
    assert_int_equal(efs_policy_request(policy, 1, &three, 1, second), 0);
    assert_int_equal(second->found, M);
    efs_policy_admit(policy, 1, first, 1, &moves, &count);
    efs_policy_admit(policy, 1, second, 1, &moves, &count);
    assert_int_equal(second->found, C);
    assert_int_equal(second->target, C);
    efs_policy_set(policy, 1, 3, EFS_POOL_M); /* the read failed */
    efs_policy_unpin(policy, 1, 3);
    efs_policy_unpin(policy, 1, 3);
    assert_int_equal(efs_policy_state(policy, 1, 3), M);
    assert_int_equal(over_bytes(policy), 0);
    for (unsigned e = 0; e < 4; e++)
        efs_policy_set(policy, 0, e, EFS_POOL_C); /* already in memory at the start: one more than fits */
    assert_int_equal(over_bytes(policy), 4 * 667 - 2000);
    ask_one(policy, 1, 3);
    assert_int_equal(over_bytes(policy), 0);
    efs_policy_free(policy);
}

/* ---- zipmoe ------------------------------------------------------------------------------------------------- */

TEST(published_dispatch_by_hand)
{
    struct efs_policy_config config = config_of(EFS_POLICY_ZIPMOE, 1, 6);
    uint32_t counts[6] = {50, 40, 30, 20, 10, 0}, turned[6] = {0, 40, 30, 60, 50, 1};
    const struct efs_move *moves;
    struct efs_placement placements[1];
    struct efs_policy *policy;
    uint32_t five = 5;

    config.tuning.published = true;
    config.recode = true;
    for (unsigned p = 0; p < EFS_POOLS; p++)
        config.capacity_bytes[p] = sizes[0][p]; /* one expert each: tau = 1, 2, 3, 4 */
    policy = open_policy(&config);
    efs_policy_seed(policy, 0, counts, 100);
    assert_int_equal(ask_one(policy, 0, 0).target, F); /* rank r goes to pool r */
    assert_int_equal(ask_one(policy, 0, 1).target, C);
    assert_int_equal(ask_one(policy, 0, 2).target, S);
    assert_int_equal(ask_one(policy, 0, 3).target, E);
    assert_int_equal(ask_one(policy, 0, 4).target, M); /* beyond all thresholds */
    assert_int_equal(ask_one(policy, 0, 2).found, S);
    for (unsigned i = 0; i < 60; i++) /* the last becomes the first, and the other experts move down */
        ask(policy, 0, &five, 1, placements, &moves);
    assert_int_equal(efs_policy_state(policy, 0, 5), F);
    assert_int_equal(efs_policy_rank(policy, 0, 5), 0);
    assert_int_equal(efs_policy_state(policy, 0, 0), C);
    assert_int_equal(efs_policy_state(policy, 0, 1), S);
    assert_int_equal(efs_policy_state(policy, 0, 2), M); /* S to E would need the disk */
    efs_policy_seed(policy, 0, turned, 100);             /* now the last two ranks are beyond the thresholds */
    assert_int_equal(ask_one(policy, 0, 5).target, M);   /* dropped after use */
    assert_int_equal(efs_policy_state(policy, 0, 5), M);
    assert_int_equal(efs_policy_state(policy, 0, 0), C); /* not requested since, so it may stay */
    struct efs_policy_pool info;
    efs_policy_pool(policy, EFS_POOL_F, &info);
    assert_int_equal(info.dropped, 1);
    efs_policy_free(policy);
}

TEST(scan_resistance)
{
    struct efs_policy_config config = config_of(EFS_POLICY_ZIPMOE, 1, 808);
    unsigned hits[2] = {0};

    config.capacity_bytes[C] = 10 * 667;
    config.tuning.steady = true;
    for (unsigned kind = 0; kind < 2; kind++) {
        struct efs_policy *policy;

        config.kind = kind ? EFS_POLICY_LRU : EFS_POLICY_ZIPMOE;
        policy = open_policy(&config);
        for (uint32_t round = 0; round < 2000; round++) {
            uint32_t asked[9];
            struct efs_placement placements[9];
            const struct efs_move *moves;

            asked[0] = round % 8; /* eight experts that recur, and eight of a long scan each time */
            for (uint32_t i = 0; i < 8; i++)
                asked[1 + i] = 8 + (8 * round + i) % 800;
            ask(policy, 0, asked, 9, placements, &moves);
            hits[kind] += placements[0].found != M;
        }
        efs_policy_free(policy);
    }
    assert_int_equal(hits[1], 0); /* LRU misses them every time */
    assert_true(hits[0] > 1900);
}

/* Two sequences with different hot sets: after the change the policy adapts to the new set without being notified. */
TEST(adapts_to_new_hot_set)
{
    unsigned misses[2] = {0};

    for (unsigned see = 0; see < 2; see++) {
        struct efs_policy_config config = config_of(EFS_POLICY_ZIPMOE, 4, 64);
        struct cases cases = {45};
        struct efs_policy *policy;

        config.chosen = 4;
        config.capacity_bytes[C] = 4 * 10 * 667;
        config.tuning.steady = !see;
        policy = open_policy(&config);
        for (unsigned token = 0; token < 900; token++)
            for (unsigned layer = 0; layer < 4; layer++) {
                unsigned first = token / 300 * 16 % 64;
                uint32_t asked[4];
                struct efs_placement placements[4];
                const struct efs_move *moves;

                for (unsigned i = 0; i < 4; i++) /* four of a hot set of twelve */
                    asked[i] = first + 3 * i + (uint32_t)(3 * pow(cases_uniform(&cases), 2));
                ask(policy, layer, asked, 4, placements, &moves);
                for (unsigned i = 0; i < 4; i++)
                    misses[see] += token >= 300 && placements[i].found == M;
            }
        efs_policy_free(policy);
    }
    assert_true(misses[1] < misses[0]);
}

static double reuse(struct efs_reuse *value, unsigned expert)
{
    struct efs_reuse_view view = efs_reuse_view_layer(value, 0);

    return efs_reuse_passes(efs_reuse_score(&view, expert));
}

/* The value of an expert: uses raise it, passes without a use lower it; counts of earlier runs are the long-term
 * rate. */
TEST(value_of_an_expert)
{
    struct efs_reuse *value = efs_reuse_new(1, 16, 2, true);
    uint32_t asked[2] = {3, 4}, other[2] = {5, 6}, counts[16] = {[9] = 900};
    double often, once;

    assert_non_null(value);
    efs_reuse_request(value, 0, asked, 1);
    once = reuse(value, 3);
    assert_true(once < reuse(value, 4));
    for (unsigned i = 0; i < 100; i++)
        efs_reuse_request(value, 0, asked, 2);
    often = reuse(value, 3);
    assert_true(often < once && often < 1); /* requested in every pass */
    assert_true(reuse(value, 7) > 20);      /* never */
    for (unsigned i = 0; i < 100; i++) {
        double before = reuse(value, 3);

        efs_reuse_request(value, 0, other, 2);
        assert_true(reuse(value, 3) > before);
    }
    assert_true(reuse(value, 5) < reuse(value, 3));
    efs_reuse_seed(value, 0, counts, 1000);
    assert_true(reuse(value, 9) < reuse(value, 7));
    efs_reuse_free(value);
    efs_reuse_free(NULL);
    assert_null(efs_reuse_new(0, 16, 2, false));
}

TEST(ranks_are_an_order)
{
    for (unsigned variant = 0; variant < 3; variant++) {
        struct efs_policy_config config = config_of(variant ? EFS_POLICY_ZIPMOE : EFS_POLICY_LRU, 2, EXPERTS);
        struct cases cases = {46};
        struct efs_policy *policy;

        config.tuning.published = variant == 2;
        policy = open_policy(&config);
        for (unsigned round = 0; round < 300; round++) {
            uint32_t expert[EXPERTS];
            struct efs_placement placements[EXPERTS];
            const struct efs_move *moves;
            unsigned count = random_request(&cases, expert);

            ask(policy, round % 2, expert, count, placements, &moves);
        }
        for (unsigned layer = 0; layer < 2; layer++) {
            bool taken[EXPERTS] = {false};
            uint32_t all[EXPERTS], ranks[EXPERTS];

            for (unsigned e = 0; e < EXPERTS; e++)
                all[e] = EXPERTS - 1 - e;
            efs_policy_ranks(policy, layer, all, EXPERTS, ranks);
            for (unsigned e = 0; e < EXPERTS; e++) {
                unsigned rank = efs_policy_rank(policy, layer, e);

                assert_int_equal(ranks[EXPERTS - 1 - e], rank);
                assert_true(rank < EXPERTS && !taken[rank]);
                taken[rank] = true;
            }
        }
        assert_true(efs_policy_count(policy, 0, 0) > 0);
        efs_policy_free(policy);
    }
}

TEST(invalid_arguments)
{
    struct efs_policy_config good = config_of(EFS_POLICY_ZIPMOE, 2, 4), config;
    uint64_t some[8][EFS_POOLS] = {{1000, 667, 500, 167}, {1000, 667, 500, 167}};
    uint32_t twice[3] = {1, 2, 1}, beyond[1] = {4}, fine[2] = {0, 1};
    struct efs_placement placements[8];
    struct efs_policy *policy;

#define REFUSED(...)                                                                                                   \
    config = good;                                                                                                     \
    __VA_ARGS__;                                                                                                       \
    assert_int_equal(efs_policy_new(&config, &policy), -EINVAL);                                                       \
    assert_null(policy)
    REFUSED(config.kind = EFS_POLICY_KINDS);
    REFUSED(config.layers = 0);
    REFUSED(config.experts = 5000);
    REFUSED(config.bytes = NULL);
    REFUSED(config.chosen = INFINITY);
    uint64_t zero[1][EFS_POOLS] = {{1000, 0, 500, 167}};
    REFUSED(config.bytes = (const uint64_t(*)[EFS_POOLS])zero);

    config = good;
    config.bytes = (const uint64_t(*)[EFS_POOLS])some;
    config.same_bytes = false; /* layer 0 has two experts, layer 1 none */
    policy = open_policy(&config);
    assert_int_equal(efs_policy_request(policy, 0, fine, 2, placements), 0);
    assert_int_equal(efs_policy_request(policy, 0, twice, 3, placements), -EINVAL);
    assert_int_equal(efs_policy_request(policy, 0, beyond, 1, placements), -EINVAL);
    assert_int_equal(efs_policy_request(policy, 1, fine, 2, placements), -EINVAL);
    assert_int_equal(efs_policy_request(policy, 2, fine, 2, placements), -EINVAL);
    assert_int_equal(policy->pins[2], 0); /* a refused request pins nothing */
    efs_policy_free(policy);
    efs_policy_free(NULL);

    for (unsigned kind = 0; kind < EFS_POLICY_KINDS; kind++)
        assert_int_equal(efs_policy_by_name(efs_policy_name(kind)), kind);
    assert_int_equal(efs_policy_by_name("mru"), EFS_POLICY_KINDS);
    assert_null(efs_policy_name(EFS_POLICY_KINDS));
}

TEST_MAIN(NULL, NULL)
