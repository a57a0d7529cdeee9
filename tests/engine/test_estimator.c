/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator.c - a profile measured on a busy machine or on another one: the engine's reads correct it within 200
 * bursts, upwards and downwards, however wrong it is.
 */
#include "test.h"
#include "estimator.h"
#include "expertfs-profile-private.h"

#define MIB (UINT64_C(1) << 20)

static struct efs_estimator *estimator_of(double disk_bytes_per_second, double read_latency_ns)
{
    const struct efs_profile profile = {.disk_bytes_per_second = disk_bytes_per_second,
                                        .read_latency_ns = read_latency_ns,
                                        .decode_bytes_per_second = 4e9};
    struct efs_estimator *e;

    assert_int_equal(efs_estimator_new(&e), 0);
    efs_estimator_profile(e, &profile);
    return e;
}

/* Bursts of 1 to 8 MiB from a disk with this bandwidth and 0.1 ms latency, all `slower` times slower. */
static void serve(struct efs_estimator *e, unsigned bursts, double disk_bytes_per_second, double slower)
{
    for (unsigned i = 0; i < bursts; i++) {
        double bytes = (double)((1 + i % 8) * MIB);
        const struct efs_rates_burst b = {.bytes = (uint64_t)bytes,
                                          .ns = (uint64_t)((1e5 + bytes / disk_bytes_per_second * 1e9) * slower),
                                          .first_bytes = MIB,
                                          .first_ns = (uint64_t)(slower * 1e6),
                                          .reads = 1 + i % 8,
                                          .waves = 1};
        efs_estimator_burst(e, &b);
    }
}

/* Within 20 %. */
static void assert_near(double value, double wanted)
{
    if (value < 0.8 * wanted || value > 1.2 * wanted)
        fail_msg("%g, wanted %g", value, wanted);
}

static void assert_disk(struct efs_estimator *e, double bytes_per_second)
{
    struct efs_rates_now now;

    efs_estimator_now(e, &now, NULL, NULL);
    assert_near(now.disk_bytes_per_second, bytes_per_second);
}

/* Seen in the field: a profile of 0.025 GB/s for a disk of 0.8 GB/s, measured under load. A read faster than the
 * profile proves that the disk is faster. */
TEST(profile_measured_under_load)
{
    const double latencies_ns[] = {1e5, 4e6};

    for (size_t i = 0; i < sizeof(latencies_ns) / sizeof(*latencies_ns); i++) {
        struct efs_estimator *e = estimator_of(0.025e9, latencies_ns[i]);
        struct efs_rates_now now;

        serve(e, 40, 0.8e9, 1);
        assert_disk(e, 0.8e9);
        efs_estimator_now(e, &now, NULL, NULL);
        assert_true(now.read_latency_ns > 3e4 && now.read_latency_ns < 3e5);
        efs_estimator_free(e);
    }
}

/* A period of load: the rates follow, and recover afterwards. */
TEST(recovery_after_load)
{
    struct efs_estimator *e = estimator_of(0.8e9, 1e5);

    serve(e, 5000, 0.8e9, 30);
    assert_disk(e, 0.8e9 / 30);
    serve(e, 160, 0.8e9, 1);
    assert_disk(e, 0.8e9);
    efs_estimator_free(e);
}

/* A store that was moved from a disk of 3 GB/s to one of 20 MB/s, and then to one of 6 GB/s. */
TEST(store_moved_to_another_disk)
{
    struct efs_estimator *e = estimator_of(3e9, 1e5);

    serve(e, 200, 0.02e9, 1);
    assert_disk(e, 0.02e9);
    serve(e, 200, 6e9, 1);
    assert_disk(e, 6e9);
    efs_estimator_free(e);
}

TEST(decode_rate_is_corrected)
{
    struct efs_estimator *e = estimator_of(0.8e9, 1e5);
    struct efs_profile profile = {
        .disk_bytes_per_second = 0.8e9, .read_latency_ns = 1e5, .decode_bytes_per_second = 0.2e9};
    struct efs_rates_now now;

    efs_estimator_profile(e, &profile);
    for (unsigned i = 0; i < 40; i++)
        efs_estimator_decode(e, EFS_DECODE_CACHED, 2 * MIB, 2 * MIB / 4);
    efs_estimator_now(e, &now, NULL, NULL);
    assert_near(now.decode_bytes_per_second, 4e9);
    efs_estimator_free(e);
}

TEST_MAIN(NULL, NULL)
