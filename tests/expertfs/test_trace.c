/* Requests of a mount as a routing trace: passes, batches, what is left out; the engine's own reader reads it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "control_trace.h"
#include "route.h"

/* The trace of a text, read back. false: nothing was written. */
static bool trace_of(const char *text, uint32_t layers, uint32_t experts, struct efs_route *route)
{
    char *bytes = NULL;
    size_t count = 0;
    FILE *out = open_memstream(&bytes, &count);
    assert_non_null(out);
    assert_int_equal(efsd_trace_write(text, strlen(text), layers, experts, "a model", out), 0);
    assert_int_equal(fclose(out), 0);
    *route = (struct efs_route){0};
    if (count) {
        struct efs_error err = {.text = ""};
        assert_int_equal(efs_route_parse("trace", bytes, count, route, &err), 0);
        assert_int_equal(route->layers, layers);
        assert_int_equal(route->experts, experts);
        assert_string_equal(route->name, "a model");
    }
    free(bytes);
    return count > 0;
}

static unsigned id(const struct efs_route *r, uint64_t token, uint32_t layer, uint32_t i)
{
    return r->ids[(token * r->layers + layer) * r->chosen + i];
}

static void single_tokens(void **state)
{
    (void)state;
    struct efs_route r;
    assert_true(trace_of("10 0 3: 1*1 2*1\n20 1 4: 3*1 0*1\n30 0 3: 2*1 4*1\n40 1 4: 5*1 6*1\n", 2, 8, &r));
    assert_int_equal(r.tokens, 2);
    assert_int_equal(r.chosen, 2);
    static const unsigned want[2][2][2] = {{{1, 2}, {3, 0}}, {{2, 4}, {5, 6}}};
    for (unsigned t = 0; t < 2; t++) {
        assert_int_equal(r.sequence[t], 0);
        for (unsigned l = 0; l < 2; l++) {
            assert_true(id(&r, t, l, 0) == want[t][l][0] && id(&r, t, l, 1) == want[t][l][1]);
        }
    }
    efs_route_free(&r);
}

static void opens_one_by_one_are_one_layer(void **state)
{
    (void)state;
    struct efs_route r;
    assert_true(trace_of("1 0 0: 1*1\n2 0 0: 2*1\n3 1 1: 3*1\n4 1 1: 0*1\n", 2, 8, &r));
    assert_int_equal(r.tokens, 1);
    assert_int_equal(r.chosen, 2);
    assert_true(id(&r, 0, 0, 0) == 1 && id(&r, 0, 0, 1) == 2 && id(&r, 0, 1, 0) == 3 && id(&r, 0, 1, 1) == 0);
    efs_route_free(&r);
    /* a model of one layer: the same expert once more begins a pass */
    assert_true(trace_of("1 0 0: 1*1\n2 0 0: 2*1\n3 0 0: 1*1\n4 0 0: 3*1\n", 1, 8, &r));
    assert_int_equal(r.tokens, 2);
    assert_true(id(&r, 1, 0, 0) == 1 && id(&r, 1, 0, 1) == 3);
    efs_route_free(&r);
}

static void fewer_experts_are_filled_up(void **state)
{
    (void)state;
    struct efs_route r;
    assert_true(trace_of("1 0 0: 1*1 2*1 3*1\n2 1 1: 7*1\n", 2, 8, &r));
    assert_int_equal(r.chosen, 3);
    assert_true(id(&r, 0, 1, 0) == 7 && id(&r, 0, 1, 1) == 7 && id(&r, 0, 1, 2) == 7);
    efs_route_free(&r);
}

/* Each expert is asked for by as many tokens as it was, and by none twice. */
static void batches_are_dealt(void **state)
{
    (void)state;
    struct efs_route r;
    static const unsigned wanted[8] = {4, 1, 0, 3, 2, 0, 1, 1};
    assert_true(trace_of("1 0 0: 0*4 1*1 3*3 4*2 6*1 7*1\n2 0 0: 5*1 2*1 1*1\n", 1, 8, &r));
    assert_int_equal(r.tokens, 5); /* the second line has 1 again: a pass of its own */
    assert_true(r.chosen == 3 && id(&r, 1, 0, 0) == 5 && id(&r, 1, 0, 2) == 1);
    efs_route_free(&r);
    assert_true(trace_of("1 0 0: 0*4 1*1 3*3 4*2 6*1 7*1\n2 1 1: 5*4 2*4 1*4\n3 0 0: 1*1 2*1 3*1\n4 1 1: 4*1 5*1 6*1\n",
                         2, 8, &r));
    assert_int_equal(r.tokens, 5);
    assert_int_equal(r.chosen, 3);
    unsigned got[8] = {0}, first_sequence = 0;
    for (uint64_t t = 0; t < r.tokens; t++) {
        assert_true(t == 0 || r.sequence[t] >= r.sequence[t - 1]);
        first_sequence += r.sequence[t] == 0;
        if (t == 1) { /* the second pass, for one token, of the first sequence */
            assert_true(id(&r, t, 0, 0) == 1 && id(&r, t, 1, 2) == 6);
            continue;
        }
        for (unsigned i = 0; i < 3; i++) {
            got[id(&r, t, 0, i)]++;
            for (unsigned j = 0; j < i; j++) {
                assert_true(id(&r, t, 0, i) != id(&r, t, 0, j));
            }
        }
        assert_true(id(&r, t, 1, 0) == 5 && id(&r, t, 1, 1) == 2 && id(&r, t, 1, 2) == 1);
    }
    assert_int_equal(first_sequence, 2);
    assert_memory_equal(got, wanted, sizeof(wanted));
    efs_route_free(&r);
}

static void incomplete_passes_are_left_out(void **state)
{
    (void)state;
    struct efs_route r;
    assert_false(trace_of("", 2, 8, &r));
    assert_false(trace_of("1 1 1: 3*1\n", 2, 8, &r));
    assert_false(trace_of("1 1 1: 3*1\n2 0 0: 1*1\n", 2, 8, &r));
    assert_false(trace_of("1 0 0: 1*1\n2 2 2: 1*1\n3 0 0: 1*1\n", 3, 8, &r));
    assert_true(trace_of("1 1 1: 3*1\n2 0 0: 1*1\n3 1 1: 4*1\n4 0 0: 5*1\n", 2, 8, &r));
    assert_int_equal(r.tokens, 1);
    assert_true(id(&r, 0, 0, 0) == 1 && id(&r, 0, 1, 0) == 4);
    efs_route_free(&r);
}

static void bounds(void **state)
{
    (void)state;
    struct efs_route r;
    assert_true(trace_of("1 0 0: 0*4294967295 1*1\n", 1, 2, &r));
    assert_int_equal(r.tokens, EFSD_TRACE_TOKENS);
    efs_route_free(&r);
    char text[4096];
    size_t used = (size_t)sprintf(text, "1 0 0:");
    for (unsigned i = 0; i < 300; i++) { /* more than a token can choose */
        used += (size_t)sprintf(text + used, " %u*1", i);
    }
    assert_true(trace_of(text, 1, 300, &r));
    assert_true(r.chosen == 64 && r.tokens == 1 && id(&r, 0, 0, 63) == 63);
    efs_route_free(&r);
    static const char *const bad[] = {"x",           "1",          "1 0",         "1 0 0",
                                      "1 2 0: 1*1",  "1 0 0: 8*1", "1 0 0: 1",    "1 0 0:1*1",
                                      "1 0 0: 1*1 ", "1 0 0: 1*x", "-1 0 0: 1*1", "1 0 0: 99999999999999999999*1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        FILE *out = fopen("/dev/null", "w");
        if (efsd_trace_write(bad[i], strlen(bad[i]), 2, 8, "", out) != -EPROTO) {
            fail_msg("\"%s\" was taken", bad[i]);
        }
        fclose(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_tokens),
        cmocka_unit_test(opens_one_by_one_are_one_layer),
        cmocka_unit_test(batches_are_dealt),
        cmocka_unit_test(fewer_experts_are_filled_up),
        cmocka_unit_test(bounds),
        cmocka_unit_test(incomplete_passes_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
