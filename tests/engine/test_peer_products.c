/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of single matrices by a peer: they have the bits of efs_product() here, for BF16 and F16, one matrix and
 * two, one token and more than are multiplied at once; a peer that lies, ends, or has no such matrix computes nothing.
 */
#include "peer_fixture.h"

#define NAMES "model.layers.0.mlp.switch_mlp."
static struct checkpoint fused[2]; /* BF16, F16: gate, up and down, each with all experts */
static float inputs[TOKENS * INNER];

/* A call: the products of all experts with the tokens that chose them. */
struct work {
    const struct checkpoint *from;
    const char *matrix[2];
    uint32_t rows, cols, tokens;
    enum efs_activation activation;
};

static struct work gate_up(unsigned type, uint32_t tokens)
{
    return (struct work){.from = &fused[type],
                         .matrix = {NAMES "gate_proj.weight", NAMES "up_proj.weight"},
                         .rows = 2 * INNER,
                         .cols = HIDDEN,
                         .tokens = tokens,
                         .activation = type == F16 ? EFS_ACTIVATION_F16 : EFS_ACTIVATION_BF16};
}

static struct work down(unsigned type, uint32_t tokens)
{
    return (struct work){.from = &fused[type],
                         .matrix = {NAMES "down_proj.weight", NULL},
                         .rows = HIDDEN,
                         .cols = INNER,
                         .tokens = tokens,
                         .activation = type == F16 ? EFS_ACTIVATION_F16 : EFS_ACTIVATION_BF16};
}

/* One vector of an expert by efs_product() in this process. */
static void product(const struct work *w, struct efs_client_request *request, uint32_t index, uint32_t token, float *y)
{
    const struct efs_tensor *tensors;
    uint32_t count;
    void *vector = aligned_alloc(64, (efs_vectors_bytes(w->cols, 1) + 63) / 64 * 64);
    assert_int_equal(efs_client_tensors(request, index, &tensors, &count), 0);
    assert_int_equal(efs_vectors_prepare(w->activation, inputs + (size_t)token * INNER, INNER, w->cols, 1, vector), 0);
    for (unsigned m = 0; m < 2 && w->matrix[m]; m++)
        for (uint32_t i = 0; i < count; i++) {
            if (strcmp(tensors[i].name, w->matrix[m]) != 0)
                continue;
            void *scratch = aligned_alloc(64, (efs_product_scratch_bytes(&tensors[i], false) + 63) / 64 * 64);
            const uint32_t rows = (uint32_t)tensors[i].shape[0];
            assert_int_equal(efs_product(&tensors[i], false, vector, 0, rows, y, rows, scratch, NULL), 0);
            y += rows;
            free(scratch);
        }
    free(vector);
}

/* Begins a call with the routes of a mixture. */
static void begin(const struct caller *c, const struct work *w, const struct efs_mixture *m,
                  struct efs_peer_call **call)
{
    const struct efs_peer_products p = {.stack = "",
                                        .matrix = {w->matrix[0], w->matrix[1]},
                                        .rows = w->rows,
                                        .cols = w->cols,
                                        .more = w->matrix[1] != NULL,
                                        .again = w->matrix[1] == NULL,
                                        .activation = w->activation,
                                        .x = inputs,
                                        .x_stride = INNER,
                                        .tokens = w->tokens,
                                        .expert_count = m->expert_count,
                                        .experts = m->experts};
    assert_int_equal(efs_peer_products_begin(c->s.client, &p, call), 0);
}

/* Runs a call; computed: whether the peer is to compute all of it, or nothing. */
static void run_work(const struct caller *c, const struct work *w, bool computed)
{
    struct efs_peer_call *call;
    struct efs_client_request *request;
    struct efs_need needs[EXPERTS];
    float want[2 * INNER];
    const struct efs_mixture m = mixture_of(EFS_FORM_ANY, EFS_ACTIVATION_F32, w->tokens, NULL); /* for its routes */
    begin(c, w, &m, &call);
    assert_non_null(call);
    for (uint32_t e = 0; e < EXPERTS; e++)
        assert_true(efs_peer_products_sent(call, e));
    efs_peer_products_wait(call);
    for (uint32_t e = 0; e < EXPERTS; e++)
        needs[e] = (struct efs_need){.expert = e, .tokens = 1};
    struct efs *plain = open_store(w->from, 128 * MIB);
    struct efs_client *client;
    assert_int_equal(efs_client_new(plain, &client, NULL), 0);
    assert_int_equal(efs_client_begin(client, "", 0, needs, EXPERTS, EFS_FORM_CODED, &request, NULL), 0);
    assert_int_equal(efs_client_wait(request), 0);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const float *vectors = efs_peer_products_vectors(call, e);
        assert_int_equal(vectors != NULL, computed);
        for (uint32_t t = 0; computed && t < m.experts[e].count; t++) {
            product(w, request, e, m.experts[e].token[t], want);
            assert_memory_equal(vectors + (size_t)t * w->rows, want, w->rows * sizeof(float));
        }
    }
    efs_client_release(request);
    efs_client_close(client);
    efs_close(plain);
    efs_peer_products_end(call, true);
}

TEST(test_same_bits)
{
    static const uint32_t counts[] = {1, 2, 9, TOKENS};
    for (unsigned type = BF16; type <= F16; type++) {
        struct host h = serve_peers_of(&fused[type], key_path);
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
            struct caller c = call_of(&fused[type], efs_peer_server_port(h.server), key_path);
            const struct work first = gate_up(type, counts[i]), second = down(type, counts[i]);
            wait_ready(&c);
            prefer_peer(&c, 100);
            run_work(&c, &first, true);
            prefer_peer(&c, 100);
            run_work(&c, &second, true);
            assert_int_equal(stats_of(&c).failed + stats_of(&c).local, 0);
            serve_end(&c.s);
        }
        assert_int_equal(served_by(&h).requests, 2 * sizeof(counts) / sizeof(counts[0]));
        assert_int_equal(served_by(&h).bad + served_by(&h).failed, 0);
        host_end(&h);
    }
}

/* Gate and up, then down of the same experts: one choice, which is computed here where no peer has. */
static void run_both(const struct caller *c)
{
    for (unsigned again = 0; again < 2; again++) {
        const struct work w = again ? down(BF16, 3) : gate_up(BF16, 3);
        const struct efs_mixture m = mixture_of(EFS_FORM_ANY, EFS_ACTIVATION_F32, w.tokens, NULL);
        struct efs_need needs[EXPERTS];
        struct efs_client_request *request;
        struct efs_peer_call *call;
        uint32_t count = 0;
        begin(c, &w, &m, &call);
        efs_peer_products_wait(call);
        for (uint32_t e = 0; e < EXPERTS; e++)
            if (!efs_peer_products_vectors(call, e))
                needs[count++] = (struct efs_need){.expert = e, .tokens = 1};
        if (count) {
            const enum efs_form form = EFS_FORM_CODED | (call ? EFS_FORM_COUNTED : 0);
            assert_int_equal(efs_client_begin(c->s.client, "", 0, needs, count, form, &request, NULL), 0);
            assert_int_equal(efs_client_wait(request), 0);
            efs_client_release(request);
        }
        efs_peer_products_end(call, true);
    }
}

TEST(test_counts)
{
    counts_of_caller(&fused[BF16], run_both);
}

/* Nothing is sent before reading is measured, which the end of such a call does; nor without peers. */
TEST(test_nothing_sent)
{
    struct host h = serve_peers_of(&fused[BF16], key_path);
    struct caller c = call_of(&fused[BF16], efs_peer_server_port(h.server), key_path);
    const struct work w = down(BF16, 1);
    const uint32_t token = 0;
    const struct efs_route_to route = {.expert = 1, .count = 1, .token = &token};
    struct efs_peer_products p = {.stack = "",
                                  .matrix = {w.matrix[0]},
                                  .rows = w.rows,
                                  .cols = w.cols,
                                  .activation = w.activation,
                                  .x = inputs,
                                  .x_stride = INNER,
                                  .tokens = 1,
                                  .expert_count = 1,
                                  .experts = &route};
    struct efs_peer_call *call;
    wait_ready(&c);
    assert_int_equal(efs_peer_products_begin(c.s.client, &p, &call), 0);
    assert_false(efs_peer_products_sent(call, 0));
    efs_peer_products_wait(call);
    assert_null(efs_peer_products_vectors(call, 0));
    efs_peer_products_end(call, false); /* failed: nothing is measured */
    assert_true(c.peers->read_s == 0 && stats_of(&c).local == 0);
    assert_int_equal(efs_peer_products_begin(c.s.client, &p, &call), 0);
    efs_peer_products_end(call, true);
    assert_true(c.peers->read_s > 0 && stats_of(&c).local == 1);
    char name[EFS_WIRE_NAME_BYTES + 1];
    memset(name, 'a', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    p.matrix[0] = name;
    assert_int_equal(efs_peer_products_begin(c.s.client, &p, &call), -EINVAL);
    assert_null(call);
    assert_int_equal(efs_peer_products_begin(h.s.client, &p, &call), 0); /* no peers */
    assert_null(call);
    assert_false(efs_peer_products_sent(call, 0));
    efs_peer_products_wait(call);
    assert_null(efs_peer_products_vectors(call, 0));
    efs_peer_products_end(call, true);
    serve_end(&c.s);
    host_end(&h);
}

/* What does not fit the server's matrices is an error, which is an answer. */
TEST(test_other_matrices)
{
    struct host h = serve_peers_of(&fused[BF16], key_path);
    struct work wrong[7];
    for (unsigned i = 0; i < 7; i++)
        wrong[i] = gate_up(BF16, 2);
    wrong[0].matrix[0] = NAMES "other.weight";
    wrong[1].matrix[1] = NAMES "down_proj.weight"; /* of other columns */
    wrong[2].rows--;
    wrong[3].cols--;
    wrong[4].matrix[1] = NULL;
    wrong[5].activation = EFS_ACTIVATION_F16;
    wrong[6].matrix[1] = wrong[6].matrix[0]; /* twice: allowed */
    for (unsigned i = 0; i < 7; i++) {
        struct caller c = call_of(&fused[BF16], efs_peer_server_port(h.server), key_path);
        wait_ready(&c);
        prefer_peer(&c, 100);
        run_work(&c, &wrong[i], i == 6);
        assert_int_equal(stats_of(&c).failed, i != 6);
        assert_int_equal(stats_of(&c).ready, 1);
        serve_end(&c.s);
    }
    assert_int_equal(served_by(&h).failed, 6);
    assert_int_equal(served_by(&h).bad, 0);
    host_end(&h);
}

TEST(test_server_ends)
{
    struct host h = serve_peers_of(&fused[BF16], key_path);
    struct caller c = call_of(&fused[BF16], efs_peer_server_port(h.server), key_path);
    const struct work w = gate_up(BF16, 3);
    wait_ready(&c);
    prefer_peer(&c, 100);
    host_end(&h);
    run_work(&c, &w, false);
    assert_int_equal(stats_of(&c).failed, 1);
    assert_int_equal(stats_of(&c).ready, 0);
    serve_end(&c.s);
}

static void computes_nothing(const struct caller *c)
{
    const struct work w = gate_up(F16, 3);
    run_work(c, &w, false);
}

TEST(test_lies) /* in F16: a liar has no order of sums of BF16 */
{
    lies(&fused[F16], computes_nothing);
}

static int setup_fused(void **state)
{
    int rc = setup_peer(state);
    uint64_t random = 5;
    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++)
        inputs[i] = (float)(fixture_random(&random) % 20000) / 10000.0f - 1.0f;
    for (int type = BF16; type <= F16; type++) {
        fused[type].random = 11;
        add(&fused[type], type, EXPERTS, INNER, HIDDEN, NAMES "gate_proj.weight");
        add(&fused[type], type, EXPERTS, INNER, HIDDEN, NAMES "up_proj.weight");
        add(&fused[type], type, EXPERTS, HIDDEN, INNER, NAMES "down_proj.weight");
        write_source(&fused[type]);
    }
    return rc;
}

static int teardown_fused(void **state)
{
    checkpoint_end(&fused[BF16]);
    checkpoint_end(&fused[F16]);
    return teardown(state);
}

TEST_MAIN(setup_fused, teardown_fused)
