/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetch of predicted experts: a prefetch does not count as a use, and evicts no expert that the policy protects;
 * once its layer was requested without it, it is evicted first. Also: the predictor learns from requests and from
 * clients' reports; the budget includes its memory.
 */
#include <glob.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "test.h"
#include "cache.h"
#include "extent.h"
#include "fetch.h"
#include "fixture.h"
#include "prefetcher.h"
#include "expertfs-private.h"

#define LAYERS 3u
#define EXPERTS 16u
#define ALL (LAYERS * EXPERTS)
#define MIB (1ull << 20)
#define TRIES PATIENCE_MS
#define CALM 20 /* samples without a change */

static struct fixture model;

static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, LAYERS, EXPERTS, 512, 1024); /* about 2 MiB per coded expert */
    return 0;
}

static void pause_shortly(void)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    nanosleep(&pause, NULL);
}

static struct efs *open_store(uint64_t budget_bytes, const char *prefetch)
{
    return fixture_open(&model, (struct efs_options){.budget_bytes = budget_bytes,
                                                     .workers = 2,
                                                     .no_state = true,
                                                     .policy = "lru",
                                                     .plan = "C=100",
                                                     .prefetch = prefetch});
}

static struct efs_stats stats_of(struct efs *fs)
{
    struct efs_stats s;
    efs_stats(fs, &s);
    return s;
}

/* Waits until CALM samples (1 ms each) show no new read and nothing in flight. */
static struct efs_stats when_calm(struct efs *fs)
{
    struct efs_stats s = stats_of(fs);
    uint64_t before = UINT64_MAX;
    for (unsigned tries = 0, calm = 0; tries < TRIES && calm < CALM; tries++) {
        s = stats_of(fs);
        calm = s.inflight == 0 && s.disk_reads == before ? calm + 1 : 0;
        before = s.disk_reads;
        pause_shortly();
    }
    assert_int_equal(s.inflight, 0);
    return s;
}

static struct efs_expert_info info_of(struct efs *fs, uint32_t expert)
{
    struct efs_expert_info info;
    assert_int_equal(efs_expert_info(fs, efs_id(expert), &info), 0);
    return info;
}

static void ask_for(struct efs *fs, uint32_t layer, const uint32_t *experts, uint32_t count)
{
    struct efs_need needs[EXPERTS];
    struct efs_error err = {""};
    struct efs_client_request *request;
    for (uint32_t i = 0; i < count; i++)
        needs[i] = (struct efs_need){layer * EXPERTS + experts[i], 1};
    assert_int_equal(
        efs_request_submit(fs, needs, count, &(struct efs_request_how){.form = EFS_FORM_CODED}, &request, &err), 0);
    assert_int_equal(efs_client_wait(request), 0);
    efs_client_release(request);
}

static struct efs_client *client_of(struct efs *fs)
{
    struct efs_client *client;
    assert_int_equal(efs_client_new(fs, &client, NULL), 0);
    return client;
}

static errint_t hint(struct efs_client *client, uint32_t layer, const uint32_t *experts, uint32_t count)
{
    const struct efs_routing routing = {.layer = layer, .count = count, .experts = experts};
    return efs_hint(client, &routing, NULL);
}

static errint_t observe(struct efs_client *client, uint32_t sequence, uint32_t layer, const uint32_t *experts,
                        uint32_t count)
{
    const struct efs_routing routing = {.sequence = sequence, .layer = layer, .count = count, .experts = experts};
    return efs_observe(client, &routing, NULL);
}

/* A value of efs_describe(fs, "predict"). column 0: of a `name: value` line; else column of a table row, from 1. */
static double told(struct efs *fs, const char *name, unsigned column)
{
    char *text, key[64];
    size_t bytes;
    double value = -1;
    assert_int_equal(efs_describe(fs, "predict", &text, &bytes), 0);
    snprintf(key, sizeof(key), "\n%s%s", name, column ? " " : ": ");
    const char *at = strstr(text, key);
    assert_non_null(at);
    at += strlen(key);
    for (unsigned i = 1; i < column; i++) {
        at += strspn(at, " ");
        at += strcspn(at, " \n");
    }
    assert_int_equal(sscanf(at, " %lf", &value), 1);
    free(text);
    return value;
}

static char *trace_of(struct efs *fs, size_t *bytes)
{
    char *data;
    assert_int_equal(efs_describe(fs, "trace", &data, bytes), 0);
    return data;
}

/* ---- a prefetch is not a use ---- */

struct counted {
    struct efs_expert_info info[ALL];
    struct efs_stats stats;
};

static struct counted count_all(struct efs *fs)
{
    struct counted c = {.stats = stats_of(fs)};
    for (uint32_t e = 0; e < ALL; e++)
        c.info[e] = info_of(fs, e);
    return c;
}

static void check_uncounted(struct efs *fs, const struct counted *before)
{
    struct efs_stats s = stats_of(fs);
    for (uint32_t e = 0; e < ALL; e++) {
        struct efs_expert_info i = info_of(fs, e);
        assert_int_equal(i.count, before->info[e].count);
        assert_int_equal(i.rank, before->info[e].rank);
        assert_int_equal(i.touches, before->info[e].touches);
        assert_int_equal(i.kept, before->info[e].kept);
    }
    assert_int_equal(s.requests_m + s.requests_c + s.requests_p,
                     before->stats.requests_m + before->stats.requests_c + before->stats.requests_p);
}

TEST(a_prefetch_is_not_a_use)
{
    static const uint32_t some[] = {1, 2, 3}, guessed[] = {7, 8};
    struct efs *fs = open_store(256 * MIB, "on");
    struct efs_client *client = client_of(fs);
    size_t bytes, bytes_after;
    ask_for(fs, 0, some, 3);
    ask_for(fs, 0, some, 2);
    ask_for(fs, 2, some, 2); /* two of three layers: a pass of the trace */
    when_calm(fs);
    struct counted before = count_all(fs);
    char *trace = trace_of(fs, &bytes);
    assert_true(bytes > 0);
    assert_int_equal(hint(client, 1, guessed, 2), 0);
    WAIT_FOR(info_of(fs, EXPERTS + 7).state == 'C' && info_of(fs, EXPERTS + 8).state == 'C');
    struct efs_stats s = when_calm(fs);
    assert_true(s.disk_reads > before.stats.disk_reads);
    check_uncounted(fs, &before);
    char *after = trace_of(fs, &bytes_after);
    assert_int_equal(bytes_after, bytes);
    assert_memory_equal(after, trace, bytes);
    free(after);
    free(trace);
    ask_for(fs, 1, guessed, 1); /* a hit, which counts as a use */
    assert_int_equal(stats_of(fs).requests_c, before.stats.requests_c + 1);
    assert_int_equal(info_of(fs, EXPERTS + 7).count, 1);
    assert_true(told(fs, "hints", 7) == 1); /* covered */
    efs_client_close(client);
    efs_close(fs);
}

/* fixed_bytes of such a store before any read. */
static uint64_t fixed_bytes(void)
{
    struct efs *fs = open_store(256 * MIB, "on");
    uint64_t bytes = stats_of(fs).fixed_bytes;
    efs_close(fs);
    return bytes;
}

/* Prefetches evict no protected expert and stay within their share. */
TEST(nothing_kept_goes)
{
    uint32_t all[EXPERTS], kept = 0;
    for (uint32_t e = 0; e < EXPERTS; e++)
        all[e] = e;
    uint64_t fixed = fixed_bytes();
    struct efs *fs = open_store(fixed + 67 * MIB, "on");
    struct efs_client *client = client_of(fs);
    for (uint32_t layer = 0; layer < 2; layer++)
        for (uint32_t e = 0; e < EXPERTS; e++) {
            ask_for(fs, layer, &e, 1);
            for (unsigned i = 0; i < 5; i++) /* idle time of the disk, for prefetches */
                pause_shortly();
        }
    when_calm(fs);
    struct counted before = count_all(fs);
    for (uint32_t e = 0; e < ALL; e++)
        kept += before.info[e].kept == 'C' && before.info[e].state == 'C';
    assert_true(kept > 8);
    assert_int_equal(hint(client, 2, all, EXPERTS), 0);
    WAIT_FOR(stats_of(fs).guessed_extents > 0 && told(fs, "held_bytes", 0) > 0);
    struct efs_stats s = when_calm(fs);
    for (uint32_t e = 0; e < ALL; e++)
        if (before.info[e].kept == 'C' && before.info[e].state == 'C')
            assert_int_equal(info_of(fs, e).state, 'C');
    assert_true(told(fs, "held_bytes", 0) > 0);
    assert_true(told(fs, "held_bytes", 0) <= told(fs, "share_bytes", 0));
    assert_true(s.fixed_bytes + s.chunk_pool_bytes <= fixed + 67 * MIB);
    efs_client_close(client);
    efs_close(fs);
}

/* Requests for earlier layers evict unprotected experts, but not a prefetched one whose layer is still to come. */
TEST(it_waits_for_its_layer)
{
    static const uint32_t guessed[] = {15};
    uint32_t some[10];
    for (uint32_t e = 0; e < 10; e++)
        some[e] = e;
    uint64_t fixed = fixed_bytes();
    struct efs *fs = open_store(fixed + 39 * MIB, "on");
    struct efs_client *client = client_of(fs);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        ask_for(fs, layer, some, 10);
    assert_int_equal(hint(client, 2, guessed, 1), 0);
    WAIT_FOR(info_of(fs, 2 * EXPERTS + 15).state == 'C');
    struct efs_stats before = when_calm(fs);
    ask_for(fs, 0, some, 10);
    ask_for(fs, 1, some, 10);
    struct efs_stats after = when_calm(fs);
    assert_true(after.disk_bytes - before.disk_bytes > 32 * MIB);
    assert_int_equal(info_of(fs, 2 * EXPERTS + 15).state, 'C');
    ask_for(fs, 2, guessed, 1);
    assert_true(told(fs, "hints", 7) == 1); /* covered */
    efs_client_close(client);
    efs_close(fs);
}

/* Its layer is requested without it: the prefetched expert is no longer held and is evicted first. */
TEST(what_came_in_vain_goes_first)
{
    static const uint32_t guessed[] = {9}, other[] = {1};
    struct efs *fs = open_store(256 * MIB, "on");
    struct efs_client *client = client_of(fs);
    ask_for(fs, 0, other, 1);
    assert_int_equal(hint(client, 1, guessed, 1), 0);
    WAIT_FOR(told(fs, "held_bytes", 0) > 0);
    when_calm(fs);
    ask_for(fs, 1, other, 1);
    assert_true(told(fs, "held_bytes", 0) == 0);
    assert_true(told(fs, "hints", 10) == 1); /* wasted */
    assert_true(told(fs, "hints", 11) > 0);
    efs_client_close(client);
    efs_close(fs);
}

static bool is_prefetched(struct efs *fs, uint32_t expert)
{
    bool prefetched = false;
    efs_lock(fs);
    for (uint32_t x = efs_expert_extent_first(fs, expert); x < efs_expert_extent_end(fs, expert); x++)
        prefetched |= efs_extent(fs, x)->rank == EFS_RANK_PREFETCHED;
    efs_unlock(fs);
    return prefetched;
}

/* A client reports that a layer has chosen a prefetched expert, but does not request it: the expert stays prefetched
 * (evicted last) for one more pass, and no longer; also when the sequence ends. */
TEST(what_nobody_comes_for_goes)
{
    static const uint32_t guessed[] = {9}, other[] = {1};
    for (unsigned over = 0; over < 2; over++) {
        struct efs *fs = open_store(256 * MIB, "on");
        struct efs_client *client = client_of(fs);
        assert_int_equal(observe(client, 0, 0, other, 1), 0);
        assert_int_equal(observe(client, 5, 0, other, 1), 0);
        assert_int_equal(hint(client, 1, guessed, 1), 0);
        WAIT_FOR(is_prefetched(fs, EXPERTS + 9));
        when_calm(fs);
        assert_int_equal(observe(client, 0, 1, guessed, 1), 0);
        assert_int_equal(observe(client, 5, 1, other, 1), 0);
        assert_int_equal(observe(client, 0, 2, other, 1), 0);
        assert_int_equal(observe(client, 0, 0, other, 1), 0);
        assert_true(is_prefetched(fs, EXPERTS + 9)); /* for a late request */
        assert_true(told(fs, "hints", 10) == 0);     /* wasted */
        if (over)
            assert_int_equal(observe(client, 0, 1, NULL, 0), 0);
        else
            assert_int_equal(observe(client, 0, 1, guessed, 1), 0);
        assert_false(is_prefetched(fs, EXPERTS + 9));
        assert_true(told(fs, "hints", 10) == 1);
        efs_client_close(client);
        efs_close(fs);
    }
}

/* ---- prediction ---- */

/* Passes repeat with period 4, so a layer's experts predict those of the next one. Consecutive passes choose different
 * experts. */
TEST(requests_teach)
{
    struct efs *fs = open_store(256 * MIB, "on");
    for (uint32_t pass = 0; pass < 60; pass++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            uint32_t a = pass % 4 * 4 + layer, b = (a + 5) % EXPERTS;
            ask_for(fs, layer, (uint32_t[]){a, b}, 2);
            pause_shortly();
        }
    WAIT_FOR(told(fs, "observed", 0) == 60 * LAYERS);
    when_calm(fs);
    assert_true(told(fs, "chosen", 0) == 2);
    assert_true(told(fs, "1", 1) > 0);   /* layers */
    assert_true(told(fs, "1", 3) > 0.5); /* recall at 2K */
    assert_true(told(fs, "predictor_bytes", 0) > 0);
    assert_true(told(fs, "predictor_bytes", 0) <= told(fs, "memory_bytes", 0));
    efs_close(fs);
}

/* Two alternating sequences, which the client identifies. When the last one ends, requests form a sequence again. */
TEST(clients_tell)
{
    struct efs *fs = open_store(256 * MIB, "on");
    struct efs_client *client = client_of(fs);
    static const uint32_t one[] = {1, 2}, other[] = {3, 4};
    for (uint32_t pass = 0; pass < 10; pass++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            assert_int_equal(observe(client, 5, layer, one, 2), 0);
            assert_int_equal(observe(client, 6, layer, other, 2), 0);
            ask_for(fs, layer, (uint32_t[]){1, 2, 3, 4}, 4);
        }
    assert_true(told(fs, "sequences", 0) == 2);
    assert_true(told(fs, "observed", 0) == 20 * LAYERS);
    assert_int_equal(observe(client, 5, 0, NULL, 0), 0);
    assert_int_equal(observe(client, 6, 0, NULL, 0), 0);
    assert_true(told(fs, "sequences", 0) == 0);
    ask_for(fs, 0, one, 2);
    assert_true(told(fs, "sequences", 0) == 1);
    assert_int_equal(observe(client, 7, 0, one, 2), 0);
    efs_client_close(client);
    assert_true(told(fs, "sequences", 0) == 1); /* that of the requests */
    efs_close(fs);
}

TEST(what_is_wrong_is_refused)
{
    static const uint32_t twice[] = {1, 1}, none[] = {EXPERTS}, good[] = {1};
    static const float high[] = {1.5F}, negative[] = {-1};
    struct efs *fs = open_store(256 * MIB, "on");
    struct efs_client *client = client_of(fs);
    struct efs_error err = {""};
    struct efs_routing r = {.layer = 0, .count = 1, .experts = good};
    r.weights = high;
    assert_int_equal(efs_hint(client, &r, &err), -EINVAL);
    assert_int_equal(efs_observe(client, &r, &err), 0);
    r.weights = negative;
    assert_int_equal(efs_observe(client, &r, &err), -EINVAL);
    r = (struct efs_routing){.count = 2, .experts = twice};
    assert_int_equal(efs_hint(client, &r, &err), -EINVAL);
    r = (struct efs_routing){.count = 1, .experts = none};
    assert_int_equal(efs_hint(client, &r, &err), -ENOENT);
    r = (struct efs_routing){.layer = LAYERS, .count = 1, .experts = good};
    assert_int_equal(efs_observe(client, &r, &err), -ENOENT);
    r = (struct efs_routing){.count = EFS_ROUTING_EXPERTS + 1, .experts = good};
    assert_int_equal(efs_hint(client, &r, &err), -EINVAL);
    assert_int_equal(efs_set(fs, "prefetch", "auto", NULL, &err), -EINVAL);
    assert_string_equal(err.text, "prefetch=auto: allowed are off, on");
    efs_client_close(client);
    efs_close(fs);
}

/* ---- state across mounts ---- */

#define PASSES 40u

static void teach(struct efs *fs, uint32_t passes)
{
    for (uint32_t pass = 0; pass < passes; pass++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            uint32_t a = pass % 4 * 4 + layer, b = (a + 5) % EXPERTS;
            ask_for(fs, layer, (uint32_t[]){a, b}, 2);
            pause_shortly();
        }
    when_calm(fs);
}

static struct efs *open_with_state(uint64_t budget_bytes)
{
    return fixture_open(
        &model, (struct efs_options){
                    .budget_bytes = budget_bytes, .workers = 2, .policy = "lru", .plan = "C=100", .prefetch = "on"});
}

/* Recall at 2K of the next layer in the first 4 passes after a store is opened. */
static double first_recall_within(uint64_t budget_bytes)
{
    struct efs *fs = open_with_state(budget_bytes);
    teach(fs, 4);
    double recall = told(fs, "1", 3);
    efs_close(fs);
    return recall;
}

static double first_recall(void)
{
    return first_recall_within(256 * MIB);
}

static void find_saved(const char *state, char *path, size_t room)
{
    glob_t found;
    char pattern[128];
    snprintf(pattern, sizeof(pattern), "%s/guesses-*.bin", state);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    snprintf(path, room, "%s", found.gl_pathv[0]);
    globfree(&found);
}

/* The predictor's state is loaded at the next open. A damaged or truncated file, or one of another store, is not used,
 * nor one for a predictor of another size. */
TEST(learned_stays)
{
    char folder[] = "/tmp/efs-test-guess-XXXXXX", path[256];
    static const long damage[] = {3, 9, 30, 200, -1}; /* magic, store hash, header, numbers; -1: cut */
    assert_non_null(mkdtemp(folder));
    setenv("EXPERTFS_STATE", folder, 1);
    double nothing = first_recall(); /* too little to be saved */
    struct efs *fs = open_with_state(256 * MIB);
    teach(fs, PASSES);
    efs_close(fs);
    find_saved(folder, path, sizeof(path));
    double learned = first_recall();
    assert_true(first_recall_within(64 * MIB) < learned); /* another size of the predictor */
    for (unsigned i = 0; i < sizeof(damage) / sizeof(damage[0]); i++) {
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        if (damage[i] >= 0)
            fixture_damage(path, (uint64_t)damage[i]);
        else
            assert_int_equal(truncate(path, st.st_size - 1), 0);
        assert_true(first_recall() < learned);
        if (damage[i] >= 0)
            fixture_damage(path, (uint64_t)damage[i]);
    }
    assert_true(learned > 0.9);
    assert_true(nothing < learned);
    fs = fixture_open(&model, (struct efs_options){.budget_bytes = 256 * MIB, .no_state = true, .prefetch = "on"});
    teach(fs, PASSES); /* no_state: neither loaded nor saved */
    efs_close(fs);
    assert_true(first_recall() < learned);
    static const char *const names[] = {"profile", "counts", "guesses"};
    for (unsigned i = 0; i < 3; i++) {
        glob_t found;
        snprintf(path, sizeof(path), "%s/%s-*", folder, names[i]);
        if (glob(path, 0, NULL, &found) == 0)
            unlink(found.gl_pathv[0]);
        globfree(&found);
    }
    unsetenv("EXPERTFS_STATE");
    assert_int_equal(rmdir(folder), 0);
}

/* ---- memory and shutdown ---- */

TEST(memory_is_in_the_budget)
{
    struct efs *fs = open_store(256 * MIB, NULL);
    struct efs_error err = {""};
    char value[128];
    uint64_t before = stats_of(fs).fixed_bytes;
    assert_int_equal(efs_get(fs, "prefetch", value, sizeof(value)), 0);
    assert_string_equal(value, "off");
    assert_int_equal(efs_set(fs, "prefetch", "on", NULL, &err), 0);
    assert_int_equal(efs_get(fs, "prefetch", value, sizeof(value)), 0);
    assert_string_equal(value, "on");
    assert_true(stats_of(fs).fixed_bytes > before + MIB);
    assert_true(told(fs, "share_bytes", 0) > 0);
    assert_int_equal(efs_set(fs, "prefetch", "off", NULL, &err), 0);
    assert_int_equal(stats_of(fs).fixed_bytes, before);
    assert_true(told(fs, "share_bytes", 0) == 0);
    efs_close(fs);
    fs = open_store(before + 9 * MIB, NULL);
    assert_int_equal(efs_set(fs, "prefetch", "on", NULL, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "budget="));
    assert_int_equal(efs_get(fs, "prefetch", value, sizeof(value)), 0);
    assert_string_equal(value, "off");
    efs_close(fs);
}

/* Prefetch is switched and the store closed with prefetches in flight. */
TEST(switched_at_any_time)
{
    static const char *const modes[] = {"off", "on"};
    uint32_t all[EXPERTS];
    for (uint32_t e = 0; e < EXPERTS; e++)
        all[e] = e;
    for (unsigned round = 0; round < 12; round++) {
        struct efs *fs = open_store(128 * MIB, "on");
        struct efs_client *client = client_of(fs);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            assert_int_equal(hint(client, (layer + 1) % LAYERS, all, EXPERTS), 0);
            ask_for(fs, layer, all + round % 8, 2);
            assert_int_equal(efs_set(fs, "prefetch", modes[(round + layer) % 2], NULL, NULL), 0);
        }
        efs_client_close(client);
        efs_close(fs);
    }
}

/* A prefetch is cancelled before its read starts, then the expert is requested: it stays protected and is read. */
TEST(asked_for_what_was_cancelled)
{
    static const uint32_t e = EXPERTS + 3;
    struct efs *fs = open_store(256 * MIB, "on");
    assert_int_equal(efs_set(fs, "prefetch", "off", NULL, NULL), 0); /* only the test prefetches */
    efs_lock(fs);
    assert_true(efs_extents_prefetch(fs, e, NULL) > 0);
    efs_extents_prefetch_cancel(fs, e);
    efs_use_experts(fs, &(struct efs_need){e, 1}, 1, EFS_USE_NAMED);
    assert_int_equal(efs_cache_target(fs, e), EFS_POOL_C);
    efs_unlock(fs); /* only now the I/O thread sees the cancellation */
    struct efs_stats s = when_calm(fs);
    assert_int_equal(info_of(fs, e).state, 'M');
    assert_int_equal(info_of(fs, e).kept, 'C');
    ask_for(fs, 1, (const uint32_t[]){3}, 1);
    assert_int_equal(info_of(fs, e).state, 'C');
    assert_int_equal(info_of(fs, e).kept, 'C');
    assert_true(stats_of(fs).disk_reads > s.disk_reads);
    efs_lock(fs);
    efs_cache_release(fs, e);
    efs_unlock(fs);
    efs_close(fs);
}

TEST_MAIN(setup, fixture_teardown)
