/* SPDX-License-Identifier: Apache-2.0 */
/* test_servers.c - the simulator of servers: times by hand, order of arrival, reviews, repeatable results. */
#include "test.h"
#include "cases.h"
#include "servers.h"

/* Two servers, one layer of four experts, two chosen; round numbers. */
static struct efs_servers_config config(void)
{
    return (struct efs_servers_config){.servers = 2,
                                       .layers = 1,
                                       .experts = 4,
                                       .chosen = 2,
                                       .layer_s = 1,
                                       .expert_s = 2,
                                       .expert_token_s = 0.5,
                                       .latency_s = 10,
                                       .bytes_per_second = 100,
                                       .token_bytes = 100,
                                       .load_s = 7};
}

static const uint8_t halves[] = {1, 1, 0, 0, 0, 0, 1, 1};
static const uint16_t here[] = {0, 1, 1, 0}, there[] = {2, 3, 3, 2}, both[] = {0, 2};

TEST(local_experts_are_serialized)
{
    struct efs_servers_config c = config();
    const struct efs_servers_request q = {.arrival_s = 5, .server = 0, .prompt = 1, .tokens = 1, .ids = here};
    struct efs_servers_result r;
    assert_int_equal(efs_servers_run(&c, halves, &q, 1, &r), 0);
    assert_int_equal(r.requests, 1);
    assert_double_equal(r.latency_s, 1 + 2.5 + 2.5, 1e-9);
    assert_int_equal(r.local, 2);
    assert_int_equal(r.calls, 2);
    efs_servers_free(&r);
}

TEST(remote_calls_wait_for_link_and_server)
{
    struct efs_servers_config c = config();
    const struct efs_servers_request q = {.arrival_s = 0, .server = 0, .prompt = 1, .tokens = 1, .ids = there},
                                     mixed = {.arrival_s = 0, .server = 0, .prompt = 1, .tokens = 1, .ids = both};
    struct efs_servers_result r;
    /* The two messages are sent one after the other, 1 s each: they arrive at 12 and 13; the experts run until 14.5 and
     * 17; the replies are back at 25.5 and 28, including 1 s of transfer. */
    assert_int_equal(efs_servers_run(&c, halves, &q, 1, &r), 0);
    assert_double_equal(r.latency_s, 28, 1e-9);
    assert_int_equal(r.local, 0);
    assert_double_equal(r.remote_s, (25.5 - 1 - 2.5) + (28 - 1 - 2.5), 1e-9);
    efs_servers_free(&r);
    /* the other expert runs locally until 3.5 meanwhile: the slower one counts */
    assert_int_equal(efs_servers_run(&c, halves, &mixed, 1, &r), 0);
    assert_double_equal(r.latency_s, 25.5, 1e-9);
    efs_servers_free(&r);
}

TEST(a_prompt_is_one_pass)
{
    struct efs_servers_config c = config();
    const struct efs_servers_request q = {.arrival_s = 0, .server = 0, .prompt = 2, .tokens = 2, .ids = here},
                                     apart = {.arrival_s = 0, .server = 0, .prompt = 1, .tokens = 2, .ids = here};
    struct efs_servers_result r;
    c.layer_token_s = 0.25;
    assert_int_equal(efs_servers_run(&c, halves, &q, 1, &r), 0);
    assert_double_equal(r.latency_s, 1.5 + 3 + 3, 1e-9);
    assert_int_equal(r.calls, 2);
    efs_servers_free(&r);
    assert_int_equal(efs_servers_run(&c, halves, &apart, 1, &r), 0);
    assert_double_equal(r.latency_s, 2 * (1.25 + 2.5 + 2.5), 1e-9);
    efs_servers_free(&r);
}

TEST(requests_wait_for_their_server)
{
    struct efs_servers_config c = config();
    const struct efs_servers_request q[] = {{.arrival_s = 0, .server = 0, .prompt = 1, .tokens = 1, .ids = here},
                                            {.arrival_s = 1, .server = 0, .prompt = 1, .tokens = 1, .ids = here},
                                            {.arrival_s = 1, .server = 1, .prompt = 1, .tokens = 1, .ids = there}};
    struct efs_servers_result r;
    assert_int_equal(efs_servers_run(&c, halves, q, 3, &r), 0);
    assert_double_equal(r.latency_s, 6 + 11 + 6, 1e-9);
    assert_int_equal(r.server_requests[0], 2);
    assert_double_equal(r.server_latency_s[0], 17, 1e-9);
    efs_servers_free(&r);
    /* LOAD: 7 s for each expert. REDIRECT: server 1 has an empty queue and gets the second request. */
    c.missing = EFS_SERVERS_LOAD;
    const struct efs_servers_request far = {.arrival_s = 0, .server = 0, .prompt = 1, .tokens = 1, .ids = there};
    assert_int_equal(efs_servers_run(&c, halves, &far, 1, &r), 0);
    assert_double_equal(r.latency_s, 1 + 9.5 + 9.5, 1e-9);
    efs_servers_free(&r);
    c.missing = EFS_SERVERS_REDIRECT;
    assert_int_equal(efs_servers_run(&c, halves, q, 2, &r), 0);
    assert_double_equal(r.latency_s, 6 + 20, 1e-9);
    efs_servers_free(&r);
}

struct reviewed {
    unsigned times;
    double calls, passes;
};

static bool review(void *arg, double now_s, const double *calls, const double *passes, uint8_t *held, double *ready_s)
{
    struct reviewed *seen = arg;
    seen->times++;
    seen->calls += calls[2] + calls[3];
    seen->passes += passes[0];
    held[2] = held[3] = 1;
    *ready_s = now_s + 5;
    return seen->times == 1;
}

TEST(a_review_changes_the_placement)
{
    struct efs_servers_config c = config();
    struct efs_servers_request q[10];
    struct efs_servers_result r;
    struct reviewed seen = {0};
    for (unsigned i = 0; i < 10; i++)
        q[i] = (struct efs_servers_request){.arrival_s = 40 * i, .server = 0, .prompt = 1, .tokens = 1, .ids = there};
    c.review_s = 100;
    c.review = review;
    c.arg = &seen;
    assert_int_equal(efs_servers_run(&c, halves, q, 10, &r), 0);
    assert_int_equal(seen.times, 3);
    assert_int_equal(r.changes, 1);
    assert_int_equal(r.local, 2 * 7); /* reviewed when the third ends, at 108; local from 113 on */
    /* the first review resets the counts */
    assert_double_equal(seen.calls, 6 + 4 + 10, 1e-9);
    efs_servers_free(&r);
}

TEST(invalid_arguments)
{
    struct efs_servers_config c = config();
    const struct efs_servers_request q[] = {{.arrival_s = 3, .server = 0, .prompt = 1, .tokens = 1, .ids = here},
                                            {.arrival_s = 2, .server = 0, .prompt = 1, .tokens = 1, .ids = here}};
    const struct efs_servers_request bad = {.arrival_s = 0, .server = 2, .prompt = 1, .tokens = 1, .ids = here};
    const uint8_t uncovered[] = {1, 1, 0, 0, 0, 0, 0, 1};
    struct efs_servers_result r;
    assert_int_equal(efs_servers_run(&c, halves, q, 2, &r), -EINVAL);
    efs_servers_free(&r);
    assert_int_equal(efs_servers_run(&c, halves, &bad, 1, &r), -EINVAL);
    efs_servers_free(&r);
    assert_int_equal(efs_servers_run(&c, uncovered, q, 1, &r), -EINVAL);
    efs_servers_free(&r);
    c.bytes_per_second = 0;
    assert_int_equal(efs_servers_run(&c, halves, q, 1, &r), -EINVAL);
    efs_servers_free(&r);
}

TEST(same_input_same_output)
{
    enum { SERVERS = 8, LAYERS = 3, EXPERTS = 16, TOKENS = 50, COUNT = 300 };
    struct efs_servers_config c = config();
    static uint16_t ids[TOKENS * LAYERS * 2];
    static struct efs_servers_request q[COUNT];
    static uint8_t held[SERVERS * LAYERS * EXPERTS];
    struct efs_servers_result first, second;
    struct cases cases = {4};
    c.servers = SERVERS;
    c.layers = LAYERS;
    c.experts = EXPERTS;
    for (size_t i = 0; i < TOKENS * LAYERS * 2; i += 2) {
        ids[i] = (uint16_t)cases_below(&cases, EXPERTS / 2);
        ids[i + 1] = (uint16_t)(EXPERTS / 2 + cases_below(&cases, EXPERTS / 2));
    }
    for (size_t i = 0; i < sizeof(held); i++)
        held[i] = i % 4 == i / (LAYERS * EXPERTS) % 4;
    double now_s = 0, sum = 0;
    for (size_t i = 0; i < COUNT; i++) {
        uint32_t token = cases_below(&cases, TOKENS - 10);
        now_s += cases_uniform(&cases);
        q[i] = (struct efs_servers_request){.arrival_s = now_s,
                                            .server = cases_below(&cases, SERVERS),
                                            .prompt = 1 + cases_below(&cases, 5),
                                            .tokens = 5 + cases_below(&cases, 5),
                                            .ids = ids + (size_t)token * LAYERS * 2};
    }
    assert_int_equal(efs_servers_run(&c, held, q, COUNT, &first), 0);
    assert_int_equal(efs_servers_run(&c, held, q, COUNT, &second), 0);
    assert_int_equal(first.requests, COUNT);
    assert_memory_equal(first.latencies, second.latencies, COUNT * sizeof(double));
    for (size_t i = 0; i < COUNT; i++)
        sum += first.latencies[i];
    assert_double_equal(sum, first.latency_s, 1e-6 * sum);
    efs_servers_free(&first);
    efs_servers_free(&second);
}

static bool stop_now(void *arg)
{
    ++*(unsigned *)arg;
    return true;
}

TEST(stops_on_request)
{
    struct efs_servers_config c = config();
    const struct efs_servers_request q = {.arrival_s = 5, .server = 0, .prompt = 1, .tokens = 1, .ids = here};
    struct efs_servers_result r;
    unsigned asked = 0;
    c.stop = stop_now;
    c.arg = &asked;
    assert_int_equal(efs_servers_run(&c, halves, &q, 1, &r), -ECANCELED);
    assert_int_equal(asked, 1);
    efs_servers_free(&r);
}

TEST_MAIN(NULL, NULL)
