/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No space in the tmpfs of full experts and the chunk pool, as with strict overcommit (vm.overcommit_memory=2): reads,
 * leases and requests get the bytes or an error, no process is killed by SIGBUS, and with space again all works as
 * before.
 */
#include "test.h"
#include "expertfs-private.h"
#include "fixture.h"
#include "sys.h"
#include "sys_fault.h"
#include "sync_calls.h"

#define LAYERS 2
#define EXPERTS 8
#define ALL (LAYERS * EXPERTS)
#define MIB (1ull << 20)

static struct fixture model;
static uint8_t *raw[ALL];
static uint32_t files[ALL];
static size_t bytes[ALL];

static int setup(void **state)
{
    *state = &model;
    fault_clear();
    fixture_store(&model, LAYERS, EXPERTS, 512, 1024); /* an expert: 3 MiB full, 2 MiB coded */
    struct efs *fs = fixture_open(&model, (struct efs_options){.no_state = true});
    for (uint32_t e = 0; e < ALL; e++)
        raw[e] = fixture_expert(fs, e, &files[e], &bytes[e]);
    efs_close(fs);
    return 0;
}

static int teardown(void **state)
{
    for (uint32_t e = 0; e < ALL; e++)
        free(raw[e]);
    return fixture_teardown(state);
}

static struct efs *open_store(const char *plan)
{
    fault_tmpfs_free(UINT64_MAX);
    int tmpfs = efs_sys_huge_tmpfs();
    if (tmpfs < 0) {
        print_message("# SKIP no tmpfs of our own: %s\n", strerror(-tmpfs));
        skip();
    }
    efs_sys_close(tmpfs);
    return fixture_open(&model, (struct efs_options){.budget_bytes = 256 * MIB,
                                                     .workers = 2,
                                                     .full_pool = true,
                                                     .exports = true,
                                                     .no_state = true,
                                                     .policy = "lru",
                                                     .plan = plan});
}

static bool check_error(errint_t error)
{
    if (error != 0 && error != -ENOMEM && error != -EIO)
        fail_msg("error %d", error);
    return error == 0;
}

static unsigned read_all(struct efs *fs)
{
    unsigned good = 0;
    for (uint32_t e = 0; e < ALL; e++) {
        uint8_t *got = malloc(bytes[e]);
        ssize_t n = read_wait(fs, files[e], NULL, 0, got, bytes[e]);
        if (check_error(n < 0 ? (errint_t)n : 0)) {
            assert_int_equal(n, bytes[e]);
            assert_memory_equal(got, raw[e], bytes[e]);
            good++;
        }
        free(got);
    }
    return good;
}

/* Leases all experts at the same time. */
static unsigned lease_all(struct efs *fs)
{
    struct efs_lease *leases[ALL];
    unsigned good = 0;
    for (uint32_t e = 0; e < ALL; e++)
        if (check_error(lease_wait(fs, files[e], &leases[good])))
            assert_memory_equal(lease_data(leases[good++]), raw[e], bytes[e]);
    for (unsigned i = 0; i < good; i++)
        efs_lease_release(leases[i]);
    return good;
}

static unsigned ask_all(struct efs *fs, enum efs_form form)
{
    unsigned good = 0;
    for (uint32_t l = 0; l < LAYERS; l++) {
        struct efs_need needs[EXPERTS];
        struct efs_client_request *r;
        struct efs_error err = {""};
        uint32_t index;
        errint_t status;
        for (uint32_t e = 0; e < EXPERTS; e++)
            needs[e] = (struct efs_need){l * EXPERTS + e, 1};
        const struct efs_request_how how = {.form = form};
        assert_int_equal(efs_request_submit(fs, needs, EXPERTS, &how, &r, &err), 0);
        while (efs_client_wait_any(r, -1, &index, &status) == 1)
            if (check_error(status)) {
                good++;
                efs_client_drop(r, index);
            }
        efs_client_release(r);
    }
    return good;
}

static void quiet(struct efs *fs)
{
    struct efs_stats s = fixture_drain(fs);
    assert_int_equal(s.leased_experts + s.coded_experts + s.chunks_damaged, 0);
    assert_true(s.fixed_bytes + s.chunk_pool_bytes + s.full_pool_bytes <= s.budget_bytes);
}

static void all_is_right(struct efs *fs)
{
    assert_int_equal(read_all(fs), ALL);
    assert_int_equal(lease_all(fs), ALL);
    assert_int_equal(ask_all(fs, EFS_FORM_CODED), ALL);
    assert_int_equal(ask_all(fs, EFS_FORM_FULL), ALL);
    quiet(fs);
}

static const uint64_t rooms[] = {0, 4096, MIB, 2 * MIB + 4096, 5 * MIB, 9 * MIB, 17 * MIB};
#define ROOMS (sizeof(rooms) / sizeof(rooms[0]))

TEST(test_full_at_open)
{
    for (unsigned r = 0; r < ROOMS; r++) {
        struct efs *fs = open_store("F=60,C=40");
        fault_tmpfs_free(rooms[r]);
        unsigned full = lease_all(fs), read = read_all(fs), coded = ask_all(fs, EFS_FORM_CODED);
        quiet(fs);
        print_message("room for %llu KiB: %u leased, %u read, %u coded of %u\n", (unsigned long long)rooms[r] >> 10,
                      full, read, coded, ALL);
        fault_tmpfs_free(UINT64_MAX);
        all_is_right(fs);
        efs_close(fs);
    }
}

/* Demotion, which allocates pages as well, and a chunk pool that grows and shrinks. */
TEST(test_demoted)
{
    for (unsigned r = 0; r < ROOMS; r++) {
        struct efs *fs = open_store("F=90,C=10");
        assert_int_equal(lease_all(fs), ALL);
        fixture_set_and_plan(fs, "plan", "F=90");  /* no pool owns the chunks now ... */
        fixture_set_and_plan(fs, "budget", "80M"); /* ... and they are freed */
        fixture_set_and_plan(fs, "budget", "256M");
        fault_tmpfs_free(rooms[r]);
        fixture_set_and_plan(fs, "plan", "C=100");
        quiet(fs);
        read_all(fs);
        fixture_set_and_plan(fs, "budget", "60M");
        read_all(fs);
        quiet(fs);
        fault_tmpfs_free(UINT64_MAX);
        fixture_set_and_plan(fs, "budget", "256M");
        all_is_right(fs);
        efs_close(fs);
    }
}

TEST_MAIN(setup, teardown)
