/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_makespan.c - Algorithm 3 by cases worked by hand.
 */
#include "test.h"
#include "cases.h"
#include "makespan.h"

/* u = 100, v = 10, c = 20, L = 2, K = 4 shards a tensor, n = 3 tensors an expert; so per expert 3 SM-chunks, 300 ns,
 * and 12 E-chunks, 120 ns to read and 240 ns to decode. */
static const struct efs_cost cost = {
    .sm_read_ns = 100, .e_read_ns = 10, .decode_ns = 20, .threads = 2, .shards = 4, .tensors = 3};

static double makespan(const struct efs_cost *c, unsigned chosen, unsigned f, unsigned in_c, unsigned s, unsigned e)
{
    unsigned hits[EFS_POOLS] = {f, in_c, s, e};

    return cases_makespan(c, chosen, hits);
}

TEST(worked_by_hand)
{
    /* all missing, k = 4: n_SM = 12, n_E = 48: I/O 1200 + 480 = 1680; CPU (48*10 + 48*20)/2 = 720 */
    assert_double_equal(makespan(&cost, 4, 0, 0, 0, 0), 1680, 0);
    /* all full: nothing to do */
    assert_double_equal(makespan(&cost, 4, 4, 0, 0, 0), 0, 0);
    /* all compressed: no I/O; CPU 48*20/2 = 480 */
    assert_double_equal(makespan(&cost, 4, 0, 4, 0, 0), 480, 0);
    /* all S: n_E = 48: I/O 480; CPU (480 + 960)/2 = 720, which is more */
    assert_double_equal(makespan(&cost, 4, 0, 0, 4, 0), 720, 0);
    /* all E: n_SM = 12: I/O 1200; CPU 960/2 = 480 */
    assert_double_equal(makespan(&cost, 4, 0, 0, 0, 4), 1200, 0);
    /* one of each of F, C, S, E and one missing, k = 5: n_SM = 3*(5-3) = 6, n_E = 12*(5-3) = 24: I/O 600 + 240 = 840;
     * n_D = 12*4 = 48: CPU (240 + 960)/2 = 600 */
    assert_double_equal(makespan(&cost, 5, 1, 1, 1, 1), 840, 0);
    /* 2 S and 3 C, k = 5: I/O 24*10 = 240; n_D = 60: CPU (240 + 1200)/2 = 720 */
    assert_double_equal(makespan(&cost, 5, 0, 3, 2, 0), 720, 0);
}

TEST(threads_divide_the_cpu_part_only)
{
    struct efs_cost one = cost, eight = cost, none = cost;

    one.threads = 1;
    eight.threads = 8;
    none.threads = 0; /* counts as one */
    assert_double_equal(makespan(&one, 4, 0, 0, 4, 0), 1440, 0);
    assert_double_equal(makespan(&none, 4, 0, 0, 4, 0), 1440, 0);
    assert_double_equal(makespan(&eight, 4, 0, 0, 4, 0), 480, 0); /* CPU 180, I/O rules */
    assert_double_equal(makespan(&eight, 4, 0, 4, 0, 0), 120, 0);
}

TEST(extended_by_hand)
{
    struct efs_cost c = cost;

    c.extended = true;
    c.request_ns = 7;
    /* all missing, k = 4: 1680 + 4 requests 28 + the last decode 20 = 1728; CPU 960/2 = 480 */
    assert_double_equal(makespan(&c, 4, 0, 0, 0, 0), 1728, 0);
    /* all full: nothing to do */
    assert_double_equal(makespan(&c, 4, 4, 0, 0, 0), 0, 0);
    /* all compressed: as before, no reads and no last decode */
    assert_double_equal(makespan(&c, 4, 0, 4, 0, 0), 480, 0);
    /* all S: I/O 480 + 28 + 20 = 528, CPU 960/2 = 480: the reads are not charged to the workers any more */
    assert_double_equal(makespan(&c, 4, 0, 0, 4, 0), 528, 0);
    /* 2 F, 2 C, 1 E, k = 5: I/O 300 + 7 + 20 = 327; CPU 36*20/2 = 360 */
    assert_double_equal(makespan(&c, 5, 2, 2, 0, 1), 360, 0);
    /* the share of one S hit: I/O 120 + 7; without the extension 120, and CPU (120 + 240)/2 */
    assert_double_equal(efs_makespan_share(&c, EFS_POOL_S).io_ns, 127, 0);
    assert_double_equal(efs_makespan_share(&cost, EFS_POOL_S).io_ns, 120, 0);
    assert_double_equal(efs_makespan_share(&cost, EFS_POOL_S).cpu_ns, 180, 0);
}

TEST_MAIN(NULL, NULL)
