/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory files within the budget, by the kernel's count: the pages that the process maps of shared memory, and those of
 * the files in the private tmpfs. The engine's own account of them takes no part, so a file that is not charged, or is
 * released and not freed, is found.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"
#include "fixture.h"
#include "full.h"
#include "sync_calls.h"

#define LAYERS 3
#define EXPERTS 8
#define ALL (LAYERS * EXPERTS)
#define MIB (1ull << 20)

static struct fixture model;

static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, LAYERS, EXPERTS, 512, 1024);
    return 0;
}

/* ---- what the kernel counts ---- */

static uint64_t mapped_bytes(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    assert_non_null(status);
    while (fgets(line, sizeof(line), status) && sscanf(line, "RssShmem: %llu kB", &kib) != 1)
        ;
    fclose(status);
    return kib << 10;
}

static uint64_t named_bytes(struct efs *fs)
{
    uint64_t bytes = 0;
    const int tmpfs = efs_full_memfiles(fs)->tmpfs;
    DIR *names = tmpfs < 0 ? NULL : fdopendir(openat(tmpfs, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (const struct dirent *entry; names && (entry = readdir(names));) {
        struct stat st;
        if (fstatat(tmpfs, entry->d_name, &st, 0) == 0 && S_ISREG(st.st_mode))
            bytes += (uint64_t)st.st_blocks * 512;
    }
    if (names)
        closedir(names);
    return bytes;
}

static uint64_t memory_files_bytes(struct efs *fs)
{
    uint64_t mapped = mapped_bytes(), named = named_bytes(fs);
    return mapped > named ? mapped : named;
}

/* The chunk pool is anonymous here: all shared memory of the process is memory files. */
static void check_within_budget(struct efs *fs, const char *when)
{
    struct efs_stats stats;
    efs_stats(fs, &stats);
    uint64_t files = memory_files_bytes(fs), other = stats.fixed_bytes + stats.chunk_pool_bytes;
    if (files + other > stats.budget_bytes)
        fail_msg("%s: %llu bytes of memory files and %llu of other memory exceed the budget of %llu", when,
                 (unsigned long long)files, (unsigned long long)other, (unsigned long long)stats.budget_bytes);
    if (files > stats.full_pool_bytes)
        fail_msg("%s: %llu bytes of memory files, of which %llu are accounted", when, (unsigned long long)files,
                 (unsigned long long)stats.full_pool_bytes);
}

/* ---- tests ---- */

static struct efs *open_with(uint64_t budget_bytes)
{
    return fixture_open(
        &model, (struct efs_options){.workers = 2, .no_state = true, .full_pool = true, .budget_bytes = budget_bytes});
}

/* Leases experts from `first` on until no memory is left for another one. opened: their memory files are EXPORTED,
 * which are freed, and not reused for other experts. */
static uint32_t lease_many(struct efs *fs, uint32_t first, bool opened, struct efs_lease **leases)
{
    for (uint32_t n = 0; n < ALL; n++) {
        errint_t rc = lease_wait(fs, fixture_expert_info(fs, (first + n) % ALL).file, &leases[n]);
        check_within_budget(fs, "leased");
        if (rc < 0) {
            assert_int_equal(rc, -ENOMEM);
            return n;
        }
        assert_true(!opened || efs_lease_fd(leases[n]) >= 0);
        check_within_budget(fs, "opened");
    }
    return ALL;
}

static void release_all(struct efs_lease **leases, uint32_t count)
{
    while (count-- > 0)
        efs_lease_release(leases[count]);
}

TEST(leases)
{
    struct efs *fs = open_with(56 * MIB);
    struct efs_lease *leases[ALL];
    for (unsigned turn = 0; turn < 6;
         turn++) { /* of other experts: in new memory files, and in those of the last turn */
        uint32_t count = lease_many(fs, turn * 5, turn % 3 > 0, leases);
        assert_in_range(count, 4, ALL - 1);
        release_all(leases, count);
        fixture_drain(fs);
        check_within_budget(fs, "released");
    }
    efs_close(fs);
    assert_int_equal(mapped_bytes(), 0);
}

/* Requests of whole layers for other processes would become windows; for this one they stay private. */
TEST(requests)
{
    struct efs *fs = open_with(64 * MIB);
    for (uint32_t turn = 0; turn < 3 * LAYERS; turn++) {
        struct efs_need needs[EXPERTS];
        uint32_t index;
        errint_t status;
        for (uint32_t n = 0; n < EXPERTS; n++)
            needs[n] = (struct efs_need){turn % LAYERS * EXPERTS + n, 1};
        struct efs_client_request *request = fixture_submit(fs, needs, EXPERTS, EFS_FORM_FULL);
        while (efs_client_wait_any(request, -1, &index, &status) == 1)
            check_within_budget(fs, "requested");
        efs_client_release(request);
    }
    fixture_drain(fs);
    check_within_budget(fs, "dropped");
    efs_close(fs);
    assert_int_equal(mapped_bytes(), 0);
}

TEST(lowered)
{
    struct efs *fs = open_with(96 * MIB);
    struct efs_lease *leases[ALL];
    struct efs_error err = {""};
    for (unsigned turn = 0; turn < 3; turn++) {
        uint64_t over;
        uint32_t count = lease_many(fs, turn, turn > 0, leases);
        release_all(leases, count);
        assert_int_equal(efs_set(fs, "budget", "48M", &over, &err), 0);
        assert_int_equal(over, 0);
        check_within_budget(fs, "lowered");
        assert_int_equal(efs_set(fs, "budget", "96M", &over, &err), 0);
    }
    efs_close(fs);
}

TEST_MAIN(setup, fixture_teardown)
