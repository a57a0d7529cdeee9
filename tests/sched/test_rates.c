/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rates.c - rates follow the samples: a linear fit of bursts, how reads end, decodes by kind; no sample moves a
 * rate out of its bounds.
 */
#include "test.h"
#include "cases.h"
#include "rates.h"

#define MIB (UINT64_C(1) << 20)

static const struct efs_rates_start start = {2e9, 1e5, 10e9};

/* A burst of 1 MiB reads on a disk with this latency and ns per byte, one wave per 16 MiB; together: see rates.h. */
static struct efs_rates_burst burst_of(uint64_t bytes, double latency_ns, double ns_per_byte, double together)
{
    uint64_t waves = (bytes + 16 * MIB - 1) / (16 * MIB);
    double ns = latency_ns * (double)waves + ns_per_byte * (double)bytes;
    double serial = latency_ns + ns_per_byte * (double)MIB;

    return (struct efs_rates_burst){.bytes = bytes,
                                    .ns = (uint64_t)ns,
                                    .first_bytes = MIB,
                                    .first_ns = (uint64_t)(serial + together * (ns - serial)),
                                    .reads = bytes / MIB,
                                    .waves = waves};
}

TEST(starts_from_profile)
{
    struct efs_rates r;
    struct efs_rates_now now;

    efs_rates_init(&r, &start);
    efs_rates_now(&r, &now);
    assert_double_equal(now.disk_bytes_per_second, 2e9, 1);
    assert_double_equal(now.read_latency_ns, 1e5, 1e-3);
    assert_double_equal(now.decode_bytes_per_second, 10e9, 1);
    assert_double_equal(now.decode_each[EFS_DECODE_READ], 10e9, 1);
    assert_double_equal(now.decode_each[EFS_DECODE_CACHED], 10e9, 1);
    assert_double_equal(now.together, 0, 0);
}

/* A profile with impossible numbers is ignored: the built-in defaults remain. */
TEST(invalid_profile_is_ignored)
{
    const struct efs_rates_start bad[] = {{0}, {0, 1e5, 1e9}, {1e9, -1, 1e9}, {1e9, 1e5, NAN}, {INFINITY, 1e5, 1e9}};
    struct efs_rates r;
    struct efs_rates_now now;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        efs_rates_init(&r, &bad[i]);
        efs_rates_now(&r, &now);
        assert_double_equal(now.disk_bytes_per_second, 1.5e9, 1);
        efs_rates_set_start(&r, &start);
        efs_rates_set_start(&r, &bad[i]);
        efs_rates_now(&r, &now);
        assert_double_equal(now.disk_bytes_per_second, 2e9, 1);
    }
}

/* A disk of 1 GB/s and 400 us, sampled by bursts of different sizes, some of several waves: estimated to 3 and 15 %. */
TEST(finds_bandwidth_and_latency)
{
    struct efs_rates r;
    struct efs_rates_now now;

    efs_rates_init(&r, &start);
    for (unsigned i = 0; i < 4000; i++) {
        struct efs_rates_burst b = burst_of((1 + i % 40) * MIB, 4e5, 1, 0);
        efs_rates_burst(&r, &b);
    }
    efs_rates_now(&r, &now);
    assert_double_equal(now.disk_bytes_per_second, 1e9, 3e7);
    assert_double_equal(now.read_latency_ns, 4e5, 6e4);
    assert_double_equal(now.together, 0, 2e-2);
    assert_int_equal(r.bursts, 4000);
}

/* Bursts of one size do not determine the latency: the sum is correct, and the latency's share is that of the
 * profile. */
TEST(one_size_keeps_the_latency)
{
    struct efs_rates r;
    struct efs_rates_now now;

    efs_rates_init(&r, &start);
    for (unsigned i = 0; i < 4000; i++) {
        struct efs_rates_burst b = burst_of(6 * MIB, 4e5, 1, 1);
        efs_rates_burst(&r, &b);
    }
    efs_rates_now(&r, &now);
    double ns = now.read_latency_ns + 6 * (double)MIB / now.disk_bytes_per_second * 1e9;
    assert_double_equal(ns, 4e5 + 6 * (double)MIB, 2e-2 * ns);
    assert_true(now.read_latency_ns >= 1e5 / EFS_RATES_BOUND && now.read_latency_ns <= 1e5 * EFS_RATES_BOUND);
}

TEST(finds_how_reads_end)
{
    const double all[] = {0, 0.3, 1};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct efs_rates r;
        struct efs_rates_now now;
        efs_rates_init(&r, &start);
        for (unsigned n = 0; n < 200; n++) {
            struct efs_rates_burst b = burst_of((2 + n % 14) * MIB, 1e5, 0.5, all[i]);
            efs_rates_burst(&r, &b);
        }
        efs_rates_now(&r, &now);
        assert_double_equal(now.together, all[i], 0.02);
    }
}

/* Samples of the previous speed decay: the estimate is within 8 % after 4000 bursts and 64 GiB. */
TEST(old_samples_decay)
{
    struct efs_rates r;
    struct efs_rates_now now;

    efs_rates_init(&r, &start);
    for (unsigned half = 0; half < 2; half++)
        for (unsigned i = 0; i < 4000; i++) {
            struct efs_rates_burst b = burst_of((1 + i % 16) * MIB, 2e5, half ? 0.5 : 2, 0);
            efs_rates_burst(&r, &b);
            efs_rates_decode(&r, EFS_DECODE_CACHED, 16 * MIB, half ? 2000000 : 8000000);
        }
    efs_rates_now(&r, &now);
    assert_double_equal(now.disk_bytes_per_second, 2e9, 15e7);
    assert_double_equal(now.decode_each[EFS_DECODE_CACHED], 16 * (double)MIB / 2e-3, 5e8);
    assert_double_equal(now.decode_each[EFS_DECODE_READ], 10e9, 1); /* no samples of this kind */
}

TEST(decode_kinds_are_separate)
{
    struct efs_rates r;
    struct efs_rates_now now;

    efs_rates_init(&r, &start);
    for (unsigned i = 0; i < 40000; i++) {
        efs_rates_decode(&r, EFS_DECODE_READ, MIB, (uint64_t)(MIB / 5e9 * 1e9));
        efs_rates_decode(&r, EFS_DECODE_CACHED, MIB, (uint64_t)(MIB / 20e9 * 1e9));
    }
    efs_rates_now(&r, &now);
    assert_double_equal(now.decode_each[EFS_DECODE_READ], 5e9, 5e8);
    assert_double_equal(now.decode_each[EFS_DECODE_CACHED], 20e9, 2e9);
    assert_double_equal(now.decode_bytes_per_second, 8e9, 4e8); /* half of the bytes each */
}

/* A burst or a decode that takes a minute counts as at most 8 times the usual time. */
TEST(outliers_are_capped)
{
    struct efs_rates r;
    struct efs_rates_now before, after;
    struct efs_rates_burst b = burst_of(6 * MIB, 1e5, 0.5, 1);

    efs_rates_init(&r, &start);
    for (unsigned i = 0; i < 300; i++) {
        struct efs_rates_burst usual = burst_of((1 + i % 16) * MIB, 1e5, 0.5, 1);
        efs_rates_burst(&r, &usual);
        efs_rates_decode(&r, EFS_DECODE_CACHED, 9 * MIB, 900000);
    }
    efs_rates_now(&r, &before);
    b.ns = UINT64_C(60000000000);
    b.first_ns = b.ns;
    efs_rates_burst(&r, &b);
    efs_rates_decode(&r, EFS_DECODE_CACHED, 9 * MIB, UINT64_C(60000000000));
    efs_rates_now(&r, &after);
    assert_double_equal(after.disk_bytes_per_second, before.disk_bytes_per_second, 0.1 * before.disk_bytes_per_second);
    assert_double_equal(after.decode_bytes_per_second, before.decode_bytes_per_second,
                        0.1 * before.decode_bytes_per_second);
    double full = 8 * (double)MIB;
    double ns = before.read_latency_ns + full / before.disk_bytes_per_second * 1e9;
    assert_true(after.read_latency_ns + full / after.disk_bytes_per_second * 1e9 < 1.1 * ns);
}

/* For arbitrary samples the estimates stay within their bounds. */
TEST(bounds_hold)
{
    struct cases random = {7};
    struct efs_rates r;
    struct efs_rates_now now;

    efs_rates_init(&r, &start);
    for (unsigned i = 0; i < 100000; i++) {
        unsigned shift = cases_below(&random, 64);
        struct efs_rates_burst b = {.bytes = cases_next(&random) >> cases_below(&random, 64),
                                    .ns = cases_next(&random) >> shift,
                                    .first_bytes = cases_next(&random) >> cases_below(&random, 64),
                                    .first_ns = cases_next(&random) >> cases_below(&random, 64),
                                    .reads = cases_below(&random, 40),
                                    .waves = cases_below(&random, 4)};
        efs_rates_burst(&r, &b);
        efs_rates_decode(&r, (enum efs_rates_decode)(i % EFS_DECODES), cases_next(&random) >> cases_below(&random, 64),
                         cases_next(&random) >> shift);
        efs_rates_now(&r, &now);
        assert_true(now.disk_bytes_per_second >= 0.99 * 2e9 / EFS_RATES_BOUND &&
                    now.disk_bytes_per_second <= 1.01 * 2e9 * EFS_RATES_BOUND);
        assert_true(now.read_latency_ns >= 0.99 * 1e5 / EFS_RATES_BOUND &&
                    now.read_latency_ns <= 1.01 * 1e5 * EFS_RATES_BOUND);
        assert_true(now.together >= 0 && now.together <= 1);
        for (unsigned k = 0; k < EFS_DECODES; k++)
            assert_true(now.decode_each[k] >= 0.99 * 10e9 / EFS_RATES_BOUND &&
                        now.decode_each[k] <= 1.01 * 10e9 * EFS_RATES_BOUND);
    }
}

/* A profile measured on a busy machine: the disk is 17 times and decoding 4 times as fast now. Few samples raise no
 * doubt, nor do samples that agree with the profile. */
TEST(samples_contradict_the_profile)
{
    const struct efs_rates_start slow = {147e6, 1e5, 1e9};
    struct efs_rates r;
    struct efs_rates_doubt doubt;

    efs_rates_init(&r, &slow);
    for (unsigned i = 0; i < 31; i++) {
        struct efs_rates_burst b = burst_of((1 + i % 8) * MIB, 1e5, 0.4, 0);
        efs_rates_burst(&r, &b);
        efs_rates_decode(&r, (enum efs_rates_decode)(i % 2), 2 * MIB, (uint64_t)(2.0 * (double)MIB / 4));
    }
    efs_rates_doubt(&r, &doubt);
    assert_true(doubt.disk == 1 && doubt.decode == 1);
    for (unsigned i = 0; i < 40; i++) {
        struct efs_rates_burst b = burst_of((1 + i % 8) * MIB, 1e5, 0.4, 0);
        efs_rates_burst(&r, &b);
        efs_rates_decode(&r, (enum efs_rates_decode)(i % 2), 2 * MIB, (uint64_t)(2.0 * (double)MIB / 4));
    }
    efs_rates_doubt(&r, &doubt);
    assert_true(efs_rates_doubtful(doubt.disk) && doubt.disk < 0.2);
    assert_true(efs_rates_doubtful(doubt.decode) && doubt.decode < 0.26 && doubt.decode > 0.24);
    efs_rates_set_start(&r, &(struct efs_rates_start){2.5e9, 1e5, 4e9});
    efs_rates_doubt(&r, &doubt);
    assert_false(efs_rates_doubtful(doubt.disk));
    assert_false(efs_rates_doubtful(doubt.decode));
    efs_rates_set_start(&r, &(struct efs_rates_start){40e9, 1e4, 4e9});
    efs_rates_doubt(&r, &doubt);
    assert_true(efs_rates_doubtful(doubt.disk) && doubt.disk > 1);
    efs_rates_init(&r, &slow);
    for (unsigned times = 0; times < 3; times++) { /* corrected in steps, because samples are clipped */
        for (unsigned i = 0; i < 40; i++) {
            struct efs_rates_burst b = burst_of((1 + i % 8) * MIB, 1e5, 0.4, 0);
            efs_rates_burst(&r, &b);
            efs_rates_decode(&r, (enum efs_rates_decode)(i % 2), 2 * MIB, (uint64_t)(2.0 * (double)MIB / 4));
        }
        efs_rates_doubt(&r, &doubt);
        efs_rates_recalibrate(&r, &doubt);
        efs_rates_doubt(&r, &doubt);
        assert_true(doubt.disk == 1 && doubt.decode == 1);
    }
    assert_true(r.start.disk_bytes_per_second > 1.5e9 && r.start.decode_bytes_per_second > 3.9e9);
}

TEST_MAIN(NULL, NULL)
