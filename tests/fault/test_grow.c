/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work with the engine's lock held uses memory that a job obtained without the lock: a reading of the memory that is
 * left does not count for memory freed while it ran, work that finds no memory is done later and not dropped, and the
 * I/O thread allocates nothing.
 */
#include "test.h"
#include "budget.h"
#include "expertfs-private.h"
#include "fixture.h"
#include "sys_fault.h"
#include "sync_calls.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#define LAYERS 2
#define EXPERTS 8
#define ALL (LAYERS * EXPERTS)
#define MIB (1ull << 20)

static struct fixture model;
static struct efs *served;

static int setup(void **state)
{
    *state = &model;
    fault_clear();
    fixture_store(&model, LAYERS, EXPERTS, 512, 1024); /* an expert: 3 MiB full, 2 MiB coded */
    return 0;
}

static void open_store(struct efs_options options)
{
    options.workers = 2;
    options.no_state = true;
    served = fixture_open(&model, options);
}

static void set(const char *name, const char *value)
{
    struct efs_error err = {""};
    uint64_t back;
    if (efs_set(served, name, value, &back, &err) < 0)
        fail_msg("%s=%s: %s", name, value, err.text);
}

static void set_budget(uint64_t bytes)
{
    char text[32];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
    set("budget", text);
}

static void lease_all(void)
{
    for (uint32_t e = 0; e < ALL; e++) {
        struct efs_expert_info info;
        struct efs_lease *lease;
        assert_int_equal(efs_expert_info(served, efs_id(e), &info), 0);
        assert_int_equal(lease_wait(served, info.file, &lease), 0);
        efs_lease_release(lease);
    }
}

static unsigned count_state(char state)
{
    unsigned n = 0;
    for (uint32_t e = 0; e < ALL; e++) {
        struct efs_expert_info info;
        assert_int_equal(efs_expert_info(served, efs_id(e), &info), 0);
        n += info.state == state;
    }
    return n;
}

/* ---- readings of the memory that is left ---- */

#define FREED 4096u
#define TOO_MUCH (UINT64_C(3) << 62) /* bytes that no machine has */

static errint_t check_memory(uint64_t bytes)
{
    efs_lock(served);
    errint_t rc = efs_grow_check_memory(served, bytes);
    efs_unlock(served);
    return rc;
}

/* With the last reading too low, and memory freed since: the first caller that needs memory has to wait for a job. */
static void expire_reading(void)
{
    efs_lock(served);
    served->budget->grow.limit_bytes = 0;
    served->budget->grow.returned_bytes--;
    efs_unlock(served);
}

static void free_memory(void)
{
    efs_lock(served);
    efs_account_charge(&served->account, EFS_ACCOUNT_RETURNING, FREED);
    efs_account_return(&served->account, EFS_ACCOUNT_RETURNING, FREED);
    efs_unlock(served);
}

TEST(test_freed_during_reading)
{
    open_store((struct efs_options){.budget_bytes = 128 * MIB});
    fixture_drain(served);
    efs_grow(served, false);
    assert_int_equal(check_memory(TOO_MUCH), -ENOMEM);
    fault_run_before(FAULT_PREAD, free_memory);
    efs_grow(served, false);
    assert_int_equal(check_memory(TOO_MUCH), -EAGAIN); /* not counted by that reading: a job reads again */
    fixture_drain(served);
    assert_int_equal(check_memory(TOO_MUCH), -ENOMEM);
    efs_close(served);
}

/* ---- demotion ---- */

TEST(test_demotion_waits_for_reading)
{
    open_store(
        (struct efs_options){.budget_bytes = 256 * MIB, .full_pool = true, .plan = "F=90,C=10", .policy = "lru"});
    lease_all();
    struct efs_stats before = fixture_drain(served);
    set("plan", "F=90"); /* no pool owns the chunks now ... */
    set_budget(before.fixed_bytes + before.full_pool_bytes + 10 * MIB);
    set_budget(before.fixed_bytes + 110 * MIB); /* ... and they are freed; the minimum of the chunk pool is small */
    before = fixture_drain(served);
    unsigned full = count_state('F');
    assert_true(full > ALL / 2);
    expire_reading();
    set("plan", "C=100");
    fixture_drain(served);
    for (uint32_t e = 0; e < ALL; e++) {
        struct efs_expert_info info;
        struct efs_file_info file;
        assert_int_equal(efs_expert_info(served, efs_id(e), &info), 0);
        assert_int_equal(efs_file_info(served, info.file, &file), 0);
        if (info.kept == 'C') /* it was kept full: no extent is missing */
            assert_true(info.resident_bytes >= file.bytes + info.coded_bytes);
    }
    assert_int_equal(count_state('F'), full);
    struct efs_stats after = fixture_drain(served);
    assert_true(after.recoded_bytes > before.recoded_bytes);
    assert_int_equal(after.disk_reads, before.disk_reads);
    efs_close(served);
}

/* ---- the I/O thread ---- */

/* Reads much with little memory: segments and full experts are allocated and freed while parts of them are being
 * read. */
TEST(test_completions_do_not_allocate)
{
    open_store((struct efs_options){
        .budget_bytes = 96 * MIB, .full_pool = true, .lease_wait = true, .warm = "always", .policy = "lru"});
    lease_all();
    struct efs_stats s = fixture_drain(served);
    fault_disk_calls(); /* not those of its start, before the first read */
    for (unsigned round = 0; round < 3; round++) {
        set_budget(s.fixed_bytes + (round % 2 ? 20 : 40) * MIB);
        lease_all();
        fixture_check_files(&model, served);
    }
    s = fixture_drain(served);
    assert_true(s.disk_reads > 100);
    efs_close(served);
    assert_int_equal(fault_disk_calls(), 0);
}

/* The same for reads that fail: the log callback may block, so the I/O thread must not call it. */
static _Atomic unsigned told, told_by_disk;

static void hear(void *arg, enum efs_log_level level, const char *line)
{
    char name[16] = "";
    (void)arg, (void)level, (void)line;
    told++;
    if (pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 && strcmp(name, "efs-disk") == 0)
        told_by_disk++;
}

TEST(test_errors_are_logged_by_workers)
{
    static uint8_t bytes[1 << 16];
    open_store((struct efs_options){.budget_bytes = 96 * MIB, .log = hear});
    struct efs_expert_info info;
    assert_int_equal(efs_expert_info(served, efs_id(0), &info), 0);
    fixture_drain(served);
    told = 0;
    fault_plan(FAULT_URING_RESULT, 1, EIO, true);
    assert_int_equal(read_wait(served, info.file, NULL, MIB, bytes, sizeof(bytes)), -EIO);
    fixture_drain(served);
    fault_clear();
    assert_true(told > 0);
    assert_int_equal(told_by_disk, 0);
    assert_int_equal(read_wait(served, info.file, NULL, MIB, bytes, sizeof(bytes)), sizeof(bytes));
    efs_close(served);
}

/* ---- the account ---- */

static uint64_t account_of(const uint64_t *field)
{
    efs_lock(served);
    uint64_t bytes = *field;
    efs_unlock(served);
    return bytes;
}

static errint_t lease(uint32_t expert, struct efs_lease **out)
{
    struct efs_expert_info info;
    assert_int_equal(efs_expert_info(served, efs_id(expert), &info), 0);
    return lease_wait(served, info.file, out);
}

/* A memory file that cannot be created has allocated nothing. */
TEST(test_failed_memory_file)
{
    open_store((struct efs_options){.budget_bytes = 128 * MIB, .full_pool = true, .policy = "lru"});
    fixture_drain(served);
    const uint64_t *segments = &served->account.bytes[EFS_ACCOUNT_SEGMENTS]; /* get the expert's chunks meanwhile */
    uint64_t allocated = account_of(&served->account.allocated_bytes) - account_of(segments);
    uint64_t used = account_of(&served->account.used_bytes) - account_of(segments);
    struct efs_lease *none;
    fault_plan(FAULT_MMAP, 1, ENOMEM, true);
    assert_int_equal(lease(0, &none), -ENOMEM);
    assert_true(fault_triggered());
    fault_clear();
    fixture_drain(served);
    assert_int_equal(account_of(&served->account.allocated_bytes) - account_of(segments), allocated);
    assert_int_equal(account_of(&served->account.used_bytes) - account_of(segments), used);
    assert_int_equal(account_of(&served->account.bytes[EFS_ACCOUNT_UNTOUCHED]), 0);
    efs_close(served);
}

/* Memory files of option prealloc are counted as allocated, as are segments. */
TEST(test_prealloc_is_allocated)
{
    open_store((struct efs_options){
        .budget_bytes = 96 * MIB, .full_pool = true, .prealloc = true, .plan = "F=50,C=50", .policy = "lru"});
    struct efs_stats s = fixture_drain(served);
    assert_true(s.full_pool_bytes > 0 && s.chunk_pool_bytes > 0);
    assert_true(account_of(&served->account.allocated_bytes) >= s.full_pool_bytes + s.chunk_pool_bytes);
    efs_close(served);
}

/* The budget is reduced while an expert is being filled, which then fails: its memory file is freed at once. */
static _Atomic bool reads_blocked;

static void block_reads(void)
{
    while (reads_blocked)
        usleep(100);
}

static void *lease_fails(void *arg)
{
    struct efs_lease *none;
    (void)arg;
    assert_int_equal(lease(0, &none), -EIO);
    return NULL;
}

TEST(test_failed_fill_over_budget)
{
    pthread_t thread;
    open_store((struct efs_options){.budget_bytes = 128 * MIB, .full_pool = true, .policy = "lru"});
    fixture_drain(served);
    reads_blocked = true;
    fault_plan(FAULT_URING_RESULT, 1, EIO, true);
    fault_run_before(FAULT_URING_WAIT, block_reads);
    assert_int_equal(pthread_create(&thread, NULL, lease_fails, NULL), 0);
    while (account_of(&served->account.bytes[EFS_ACCOUNT_FULL_PINNED]) == 0 || served->arena.segment_count == 0)
        usleep(100);
    efs_lock(served);
    efs_budget_change(served, 1); /* to the minimum */
    assert_true(served->account.used_bytes > served->account.budget_bytes);
    efs_unlock(served);
    reads_blocked = false;
    pthread_join(thread, NULL);
    fault_clear();
    fixture_drain(served);
    efs_lock(served);
    assert_true(served->account.used_bytes <= served->account.budget_bytes);
    efs_unlock(served);
    efs_close(served);
}

TEST_MAIN(setup, fixture_teardown)
