/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Networks trained ahead (ProMoE) in a store that is told hidden states: saved, loaded, used for the layers after a
 * state, counted in the budget; refused when they are damaged, too large or of another model.
 */
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "test.h"
#include "fixture.h"
#include "expertfs-private.h"
#include "predict.h"
#include "prefetcher.h"

#define LAYERS 3u
#define EXPERTS 16u
#define CHOSEN 2u
#define WIDTH 2u
#define MIB (1ull << 20)
#define TRIES 5000

static struct fixture model;
static char folder[] = "/tmp/efs-test-networks-XXXXXX";

static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, LAYERS, EXPERTS, 512, 1024); /* about 2 MiB per coded expert */
    return !mkdtemp(folder) || setenv("EXPERTFS_STATE", folder, 1);
}

static int teardown(void **state)
{
    glob_t found;
    char pattern[64];
    snprintf(pattern, sizeof(pattern), "%s/*", folder);
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            unlink(found.gl_pathv[i]);
    globfree(&found);
    rmdir(folder);
    return fixture_teardown(state);
}

/* A state of (4, 1) in layer 0 is followed by experts 2, 3 of layer 1 and 4, 5 of layer 2; (-4, 1) by 12, 13 and 14,
 * 15. */
static uint16_t first_of(unsigned layer, bool negative)
{
    return (uint16_t)((negative ? 10 : 0) + 2 * layer);
}

static void read_sample(void *from, uint64_t token, unsigned layer, uint16_t *experts, float *state)
{
    (void)from;
    experts[0] = first_of(layer, token % 2);
    experts[1] = (uint16_t)(experts[0] + 1);
    state[0] = layer ? 1 : token % 2 ? -4 : 4;
    state[1] = 1;
}

static struct efs_predictor *train(struct efs_predict_config config)
{
    const struct efs_predict_samples samples = {.tokens = 400, .read = read_sample};
    struct efs_predictor *p;
    assert_int_equal(efs_predictor_new(&config, &p), 0);
    config.memory_bytes = efs_predict_bytes(p);
    efs_predictor_free(p);
    assert_int_equal(efs_predictor_new(&config, &p), 0);
    if (config.kind == EFS_PREDICT_PROMOE && config.state_width == WIDTH && config.layers == LAYERS &&
        config.experts == EXPERTS)
        assert_int_equal(efs_predict_train(p, &samples), 0);
    return p;
}

static const struct efs_predict_config shape = {.kind = EFS_PREDICT_PROMOE,
                                                .layers = LAYERS,
                                                .experts = EXPERTS,
                                                .chosen = CHOSEN,
                                                .distances = 2,
                                                .sequences = 1,
                                                .state_width = WIDTH};

static struct efs *open_store(uint64_t budget_bytes, const char *prefetch)
{
    return fixture_open(
        &model,
        (struct efs_options){
            .budget_bytes = budget_bytes, .workers = 2, .policy = "lru", .plan = "C=100", .prefetch = prefetch});
}

static void save(const struct efs_predict_config *config)
{
    struct efs *fs = open_store(256 * MIB, NULL);
    struct efs_store_info info;
    struct efs_predictor *p = train(*config);
    efs_store_info(efs_get_store(fs), &info);
    assert_int_equal(efs_networks_save(info.content_hash, p, NULL), 0);
    efs_predictor_free(p);
    efs_close(fs);
}

static double told(struct efs *fs, const char *name)
{
    char *text, key[64];
    size_t bytes;
    double value = -1;
    assert_int_equal(efs_describe(fs, "predict", &text, &bytes), 0);
    snprintf(key, sizeof(key), "\n%s: ", name);
    const char *at = strstr(text, key);
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(key), "%lf", &value), 1);
    free(text);
    return value;
}

static bool is_told(struct efs *fs, const char *name, double wanted)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    for (unsigned i = 0; i < TRIES && told(fs, name) < wanted; i++)
        nanosleep(&pause, NULL);
    return told(fs, name) == wanted;
}

/* The experts of the layer come into memory. */
static bool arrives(struct efs *fs, unsigned layer, bool negative)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    struct efs_expert_info info = {.state = 'M'};
    for (unsigned e = 0; e < CHOSEN; e++) {
        for (unsigned i = 0; i < TRIES && (i == 0 || info.state == 'M'); i++) {
            assert_int_equal(efs_expert_info(fs, efs_id(layer * EXPERTS + first_of(layer, negative) + e), &info), 0);
            nanosleep(&pause, NULL);
        }
        if (info.state == 'M')
            return false;
    }
    return true;
}

static errint_t observe(struct efs_client *client, unsigned layer, bool negative, const float *state, uint32_t width)
{
    const uint32_t experts[] = {first_of(layer, negative), first_of(layer, negative) + 1u};
    const struct efs_routing routing = {
        .layer = layer, .tokens = 1, .count = CHOSEN, .experts = experts, .state = state, .state_width = width};
    return efs_observe(client, &routing, NULL);
}

static const float states[2][WIDTH] = {{4, 1}, {-4, 1}};

/* A pass, from which the number of experts per token is estimated. */
static void observe_pass(struct efs *fs, struct efs_client *client)
{
    double before = told(fs, "observed");
    for (unsigned layer = 0; layer < LAYERS; layer++)
        assert_int_equal(observe(client, layer, false, NULL, 0), 0);
    assert_true(is_told(fs, "observed", before + LAYERS) && is_told(fs, "chosen", CHOSEN));
}

static struct efs_client *client_of(struct efs *fs)
{
    struct efs_client *client;
    assert_int_equal(efs_client_new(fs, &client, NULL), 0);
    return client;
}

static void request(struct efs *fs, uint32_t expert)
{
    const struct efs_need need = {.expert = expert, .tokens = 1};
    struct efs_error err = {""};
    struct efs_client_request *request;
    assert_int_equal(
        efs_request_submit(fs, &need, 1, &(struct efs_request_how){.form = EFS_FORM_CODED}, &request, &err), 0);
    assert_int_equal(efs_client_wait(request), 0);
    efs_client_release(request);
}

TEST(states_predict_the_next_layers)
{
    save(&shape);
    struct efs *fs = open_store(256 * MIB, NULL);
    const struct efs_governor_config tuning = {.mode = EFS_GOVERNOR_ALWAYS, .share = 0.2}; /* room for four experts */
    assert_int_equal(efs_prefetcher_tune(fs, &tuning, NULL), 0);
    struct efs_client *client = client_of(fs);
    observe_pass(fs, client);
    request(fs, 0); /* nothing is prefetched before the experts of a layer were requested */
    request(fs, EXPERTS);
    assert_true(told(fs, "by_networks") == 0);
    assert_int_equal(observe(client, 0, true, states[1], WIDTH), 0); /* never seen by the predictor that learns */
    assert_true(is_told(fs, "by_networks", 1));
    assert_true(arrives(fs, 1, true) && arrives(fs, 2, true));
    assert_int_equal(observe(client, 1, true, NULL, 0), 0); /* no state: the other predictor */
    assert_int_equal(observe(client, 2, true, states[0], WIDTH), 0);
    assert_true(is_told(fs, "by_networks", 2));
    efs_client_close(client);
    efs_close(fs);
}

TEST(states_without_networks)
{
    static const float wide[WIDTH + 1] = {4, 1, 1}, bad[][WIDTH] = {{NAN, 1}, {0, INFINITY}, {-2e6F, 0}};
    save(&shape);
    struct efs *fs = open_store(256 * MIB, "always");
    struct efs_client *client = client_of(fs);
    observe_pass(fs, client);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(observe(client, 0, false, bad[i], WIDTH), -EINVAL);
    assert_int_equal(observe(client, 0, false, wide, 0), -EINVAL);
    assert_int_equal(observe(client, 0, false, NULL, WIDTH), -EINVAL);
    assert_int_equal(observe(client, 0, false, wide, EFS_ROUTING_STATE + 1), -EINVAL);
    assert_int_equal(observe(client, 0, false, wide, WIDTH + 1), 0); /* of another width: without effect */
    const struct efs_routing prompt = {.layer = 1,
                                       .tokens = 2,
                                       .count = 1,
                                       .experts = (const uint32_t[]){1},
                                       .state = states[0],
                                       .state_width = WIDTH};
    assert_int_equal(efs_observe(client, &prompt, NULL), 0);
    assert_true(is_told(fs, "observed", LAYERS + 2));
    assert_int_equal(observe(client, 2, false, states[0], WIDTH), 0);
    assert_true(is_told(fs, "by_networks", 1));
    efs_client_close(client);
    efs_close(fs);
}

/* Their memory is charged while prefetch is on. Switching it, with states in between, ends the use of old networks. */
TEST(networks_are_in_the_budget)
{
    struct efs_stats off, on, without;
    struct efs_error err = {""};
    save(&shape);
    struct efs *fs = open_store(256 * MIB, NULL);
    struct efs_client *client = client_of(fs);
    efs_stats(fs, &off);
    assert_int_equal(efs_set(fs, "prefetch", "always", NULL, &err), 0);
    efs_stats(fs, &on);
    for (unsigned turn = 0; turn < 50; turn++) {
        for (unsigned i = 0; i < turn % 7; i++)
            assert_int_equal(observe(client, i % LAYERS, turn % 2, states[turn % 2], WIDTH), 0);
        assert_int_equal(efs_set(fs, "prefetch", turn % 2 ? "always" : "off", NULL, &err), 0);
    }
    observe_pass(fs, client);
    double before = told(fs, "by_networks");
    for (unsigned i = 0; i < TRIES && told(fs, "by_networks") == before; i++) { /* the ring may be full */
        const struct timespec pause = {.tv_nsec = 1000000};
        assert_int_equal(observe(client, i % LAYERS, false, states[0], WIDTH), 0);
        nanosleep(&pause, NULL);
    }
    assert_true(told(fs, "by_networks") > before);
    efs_client_close(client);
    efs_close(fs);
    fs = fixture_open(&model, (struct efs_options){.budget_bytes = 256 * MIB,
                                                   .workers = 2,
                                                   .no_state = true,
                                                   .policy = "lru",
                                                   .plan = "C=100",
                                                   .prefetch = "always"});
    efs_stats(fs, &without);
    efs_close(fs);
    assert_true(on.fixed_bytes > off.fixed_bytes);
    struct efs_predictor *p = train(shape);
    uint64_t copies = (without.fixed_bytes - off.fixed_bytes); /* no_state: one copy of the predictor less */
    assert_true(on.fixed_bytes - off.fixed_bytes >= copies + efs_predict_bytes(p));
    efs_predictor_free(p);
}

static const char *saved_path(void)
{
    static char path[128];
    char pattern[64];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s/networks-*.bin", folder);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    snprintf(path, sizeof(path), "%s", found.gl_pathv[0]);
    globfree(&found);
    return path;
}

static void check_unused(uint64_t budget_bytes)
{
    struct efs *fs = open_store(budget_bytes, "always");
    struct efs_client *client = client_of(fs);
    observe_pass(fs, client);
    assert_int_equal(observe(client, 0, true, states[1], WIDTH), 0);
    assert_true(is_told(fs, "observed", LAYERS + 1));
    observe_pass(fs, client); /* the one before was handled */
    assert_true(told(fs, "by_networks") == 0);
    efs_client_close(client);
    efs_close(fs);
}

TEST(refused_networks)
{
    static const long damage[] = {3, 9, 18, 26, 30, 64, 80, 2000};
    struct efs_predict_config other[] = {shape, shape, shape, shape, shape};
    save(&shape);
    for (unsigned i = 0; i < sizeof(damage) / sizeof(damage[0]); i++) {
        fixture_flip(saved_path(), damage[i]);
        check_unused(256 * MIB);
        fixture_flip(saved_path(), damage[i]);
    }
    assert_int_equal(truncate(saved_path(), 40), 0);
    check_unused(256 * MIB);
    assert_int_equal(truncate(saved_path(), 0), 0);
    check_unused(256 * MIB);
    other[0].layers = LAYERS + 1;
    other[1].experts = EXPERTS - 1;
    other[2].sequences = 2;
    other[3].kind = EFS_PREDICT_MIXED;
    other[4].state_width = 4000; /* 3 layers, 2 distances: 6 MiB, above 1/64 of the budget */
    for (unsigned i = 0; i < 5; i++) {
        save(&other[i]);
        check_unused(256 * MIB);
    }
}

TEST_MAIN(setup, teardown)
