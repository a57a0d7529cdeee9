/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data in memory is never read again: an S hit reads only the E components, an E hit only the SM components, C and F
 * hits and moves between states read nothing. A new budget holds when the call returns. The statistics match the memory
 * in use.
 */
#include <limits.h>
#include <pthread.h>
#include <unistd.h>

#include "test.h"
#include "fixture.h"
#include "budget.h"
#include "expertfs-private.h"
#include "store.h"
#include "sync_calls.h"

#define LAYERS 3
#define EXPERTS 8
#define ALL (LAYERS * EXPERTS)
#define MIB (1ull << 20)

static struct fixture model;
static uint8_t *want[ALL];
static size_t want_bytes[ALL];

static struct efs *open_with(struct efs_options options)
{
    options.workers = options.workers ? options.workers : 2;
    options.no_state = true;
    return fixture_open(&model, options);
}

static void check_bytes(struct efs *fs, uint32_t expert)
{
    size_t bytes;
    uint32_t file;
    uint8_t *data = fixture_expert(fs, expert, &file, &bytes);
    assert_int_equal(bytes, want_bytes[expert]);
    assert_memory_equal(data, want[expert], bytes);
    free(data);
}

static int setup(void **state)
{
    (void)state;
    setenv("EXPERTFS_PRESSURE", "/nonexistent", 1); /* demotions do not pause on busy processors */
    fixture_store(&model, LAYERS, EXPERTS, 512, 1024);
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 512 * MIB});
    uint32_t file;
    for (uint32_t e = 0; e < ALL; e++)
        want[e] = fixture_expert(fs, e, &file, &want_bytes[e]);
    efs_close(fs);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (uint32_t e = 0; e < ALL; e++)
        free(want[e]);
    fixture_end(&model);
    return 0;
}

static void set(struct efs *fs, const char *name, const char *value)
{
    struct efs_error err = {""};
    uint64_t back = 1;
    if (efs_set(fs, name, value, &back, &err) < 0)
        fail_msg("%s=%s: %s", name, value, err.text);
    assert_int_equal(back, 0);
}

/* Sets a budget of the fixed memory and `mib` MiB. It holds when the call returns. */
static void leave_mib(struct efs *fs, uint64_t mib)
{
    char text[32];
    struct efs_stats s = fixture_drain(fs);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)(s.fixed_bytes + mib * MIB));
    set(fs, "budget", text);
    efs_stats(fs, &s);
    assert_true(fixture_used_bytes(&s) <= s.budget_bytes);
}

static void lease_one(struct efs *fs, uint32_t expert)
{
    struct efs_lease *lease;
    assert_int_equal(lease_wait(fs, fixture_expert_info(fs, expert).file, &lease), 0);
    assert_memory_equal(lease_data(lease), want[expert], want_bytes[expert]);
    efs_lease_release(lease);
}

static void lease_all(struct efs *fs)
{
    for (uint32_t e = 0; e < ALL; e++)
        lease_one(fs, e);
}

static unsigned count_state(struct efs *fs, char state)
{
    unsigned n = 0;
    for (uint32_t e = 0; e < ALL; e++)
        n += fixture_expert_info(fs, e).state == state;
    return n;
}

static unsigned count_kept(struct efs *fs, char pool)
{
    unsigned n = 0;
    for (uint32_t e = 0; e < ALL; e++)
        n += fixture_expert_info(fs, e).kept == pool;
    return n;
}

/* Bytes of the pages that contain an expert's components. Here each tensor is one extent. */
static void half_bytes(uint32_t expert, uint64_t *e, uint64_t *sm)
{
    struct efs_store *store;
    struct efs_error err;
    *e = *sm = 0;
    assert_int_equal(efs_store_open(model.store, &store, &err), 0);
    const struct efs_disk_group *g = &store->groups[expert];
    for (uint32_t o = g->object_first; o < g->object_first + g->object_count; o++) {
        const struct efs_disk_shard *first = &store->shards[store->objects[o].shard_first];
        const struct efs_disk_shard *last = first + store->objects[o].shard_count - 1;
        *e += efs_page_span(first->e_offset, last->e_offset + last->e_bytes);
        *sm += efs_page_span(first->sm_offset, last->sm_offset + last->sm_bytes);
    }
    efs_store_close(store);
}

#define SHARED_PAGES 5u /* pages shared by six adjacent components */

/* Reads each expert in this state; the disk must read exactly the missing components. Returns the number of experts. */
static unsigned check_hits(struct efs *fs, char state)
{
    unsigned n = 0;
    for (uint32_t e = 0; e < ALL; e++) {
        struct efs_stats before = fixture_drain(fs);
        struct efs_expert_info info = fixture_expert_info(fs, e);
        if (info.state != state)
            continue;
        uint64_t e_bytes, sm_bytes;
        half_bytes(e, &e_bytes, &sm_bytes);
        uint64_t lacks = state == 'S' ? e_bytes : state == 'E' ? sm_bytes : state == 'M' ? info.coded_bytes : 0;
        assert_int_equal(info.coded_bytes, e_bytes + sm_bytes);
        assert_true(state == 'M' ? info.resident_bytes == 0 : info.resident_bytes >= info.coded_bytes - lacks);
        check_bytes(fs, e);
        struct efs_stats after = fixture_drain(fs);
        /* a page with the end of one component and the start of the next may be read once for both */
        assert_in_range(after.disk_bytes - before.disk_bytes, lacks - (lacks ? SHARED_PAGES * 4096 : 0), lacks);
        n++;
    }
    return n;
}

/* ---- hits ---- */

static void read_all(struct efs *fs)
{
    for (uint32_t e = 0; e < ALL; e++)
        check_bytes(fs, e);
}

/* All experts are loaded. When memory is short, the components that the plan does not protect are evicted. */
static void partial(const char *plan, char state)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 256 * MIB, .plan = plan, .policy = "lru"});
    read_all(fs);
    assert_int_equal(count_state(fs, 'C'), ALL); /* the state may be better than the protection */
    assert_int_equal(count_kept(fs, state), ALL);
    leave_mib(fs, state == 'S' ? 44 : 24); /* drops all in the segments that it releases */
    read_all(fs);
    assert_true(count_state(fs, state) > 0);
    assert_true(check_hits(fs, state) > 0);
    assert_int_equal(fixture_drain(fs).chunks_damaged, 0);
    efs_close(fs);
}

TEST(test_s_hit)
{
    partial("S=100", 'S');
}

TEST(test_e_hit)
{
    partial("E=100", 'E');
}

TEST(test_full_hits)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 512 * MIB, .full_pool = true, .plan = "F=60,C=40"});
    for (uint32_t e = 0; e < ALL; e++)
        check_bytes(fs, e);
    assert_int_equal(check_hits(fs, 'C'), ALL);
    lease_all(fs);
    assert_int_equal(check_hits(fs, 'F'), ALL);
    efs_close(fs);
}

/* ---- moves ---- */

/* Chunks that demotions encode equal the store's, byte for byte. */
static void from_f(const char *plan, char to, uint64_t mib)
{
    struct efs *fs = open_with(
        (struct efs_options){.budget_bytes = 512 * MIB, .full_pool = true, .plan = "F=90,C=10", .policy = "lru"});
    lease_all(fs);
    assert_int_equal(count_kept(fs, 'F'), ALL);
    set(fs, "plan", "F=90"); /* chunks lose their protection, */
    leave_mib(fs, 118);      /* and are evicted */
    assert_int_equal(count_state(fs, 'F'), ALL);
    set(fs, "budget", "512M");
    struct efs_stats before = fixture_drain(fs);
    set(fs, "plan", plan);
    struct efs_stats after = fixture_drain(fs);
    assert_int_equal(count_kept(fs, to), ALL);
    assert_true(after.recoded_bytes > before.recoded_bytes);
    leave_mib(fs, mib); /* evicts most of the full forms */
    assert_int_equal(count_state(fs, 'C') + count_state(fs, 'F') + count_state(fs, 'S'), ALL);
    assert_int_equal(fixture_drain(fs).disk_reads, before.disk_reads);
    assert_true(check_hits(fs, to) > ALL / 3);
    assert_int_equal(fixture_drain(fs).chunks_damaged, 0);
    efs_close(fs);
}

TEST(test_f_to_c)
{
    from_f("C=100", 'C', 96);
}

TEST(test_f_to_s)
{
    from_f("S=100", 'S', 64);
}

static void from_c(const char *plan, char to, uint64_t mib)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 256 * MIB, .plan = "C=100", .policy = "lru"});
    read_all(fs);
    assert_int_equal(count_kept(fs, 'C'), ALL);
    struct efs_stats before = fixture_drain(fs);
    set(fs, "plan", plan);
    assert_int_equal(count_kept(fs, to), ALL);
    leave_mib(fs, mib);
    struct efs_stats after = fixture_drain(fs);
    assert_int_equal(after.disk_reads, before.disk_reads);
    assert_int_equal(after.recoded_bytes, 0);
    read_all(fs);
    assert_true(check_hits(fs, to) > 0);
    efs_close(fs);
}

TEST(test_c_to_s)
{
    from_c("S=100", 'S', 44);
}

TEST(test_c_to_e)
{
    from_c("E=100", 'E', 24);
}

/* ---- only leases make experts full ---- */

TEST(test_reads_keep_no_full)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 512 * MIB, .full_pool = true, .plan = "F=60,C=40"});
    uint32_t files = efs_file_count(fs);
    uint8_t *buffer = malloc(MIB);
    for (unsigned round = 0; round < 3; round++)
        for (uint32_t file = 0; file < files; file++) {
            const struct efs_file_info f = fixture_file_info(fs, file);
            for (uint64_t at = 0; f.kind != EFS_FILE_EXPERT && at < f.bytes; at += MIB)
                assert_true(read_wait(fs, file, NULL, at, buffer, MIB) > 0);
        }
    free(buffer);
    struct efs_stats s = fixture_drain(fs);
    assert_int_equal(count_kept(fs, 'F') + count_state(fs, 'F'), 0);
    assert_int_equal(s.full_pool_bytes, 0);
    assert_int_equal(count_kept(fs, 'C'), ALL);
    efs_close(fs);
}

/* Experts requested in coded form do not become full, even if the plan allows it. */
TEST(test_coded_are_not_full)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 512 * MIB, .full_pool = true, .plan = "F=60,C=40"});
    for (uint32_t l = 0; l < LAYERS; l++) {
        struct efs_need needs[EXPERTS];
        for (uint32_t i = 0; i < EXPERTS; i++)
            needs[i] = (struct efs_need){l * EXPERTS + i, 1};
        struct efs_client_request *r = fixture_submit(fs, needs, EXPERTS, EFS_FORM_CODED);
        assert_int_equal(efs_client_wait(r), 0);
        efs_client_release(r);
    }
    fixture_drain(fs);
    assert_int_equal(count_kept(fs, 'F') + count_state(fs, 'F'), 0);
    assert_int_equal(count_kept(fs, 'C'), ALL);
    efs_close(fs);
}

/* ---- budgets ---- */

/* A much smaller budget holds when the call returns, even if all experts are full or demotions are in flight. */
TEST(test_shrink)
{
    struct efs *fs = open_with((struct efs_options){
        .budget_bytes = 2048 * MIB, .full_pool = true, .plan = "F=90,C=10", .policy = "lru", .workers = 1});
    for (unsigned round = 0; round < 4; round++) {
        lease_all(fs);
        if (round % 2)
            set(fs, "plan", "C=50,S=50"); /* starts demotions */
        leave_mib(fs, 40);
        for (uint32_t e = 0; e < ALL; e += 5)
            check_bytes(fs, e);
        struct efs_stats s = fixture_drain(fs);
        assert_true(fixture_used_bytes(&s) <= s.budget_bytes);
        set(fs, "budget", "2G");
        set(fs, "plan", "F=90,C=10");
    }
    efs_close(fs);
}

/* Memory that leases hold above the budget is reported to the byte, and released with them. */
TEST(test_leases_above_budget)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 512 * MIB, .full_pool = true});
    struct efs_lease *leases[ALL];
    for (uint32_t e = 0; e < ALL; e++)
        assert_int_equal(lease_wait(fs, fixture_expert_info(fs, e).file, &leases[e]), 0);
    struct efs_stats s = fixture_drain(fs);
    char text[32];
    uint64_t back = 0, budget = s.fixed_bytes + 40 * MIB;
    struct efs_error err = {""};
    snprintf(text, sizeof(text), "%llu", (unsigned long long)budget);
    assert_int_equal(efs_set(fs, "budget", text, &back, &err), 0);
    efs_stats(fs, &s);
    assert_int_equal(s.full_pool_bytes, s.leased_bytes);
    assert_int_equal(back, fixture_used_bytes(&s) - budget);
    for (uint32_t e = 0; e < ALL; e++) {
        assert_memory_equal(lease_data(leases[e]), want[e], want_bytes[e]);
        efs_lease_release(leases[e]);
    }
    s = fixture_drain(fs);
    assert_true(fixture_used_bytes(&s) <= budget);
    assert_int_equal(efs_set(fs, "budget", "1M", &back, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "minimum"));
    efs_stats(fs, &s);
    assert_int_equal(s.budget_bytes, budget);
    efs_close(fs);
}

/* ---- coded requests that compete ---- */

struct pair {
    struct efs *fs;
    unsigned seed;
};

static void *wait_for_pairs(void *arg)
{
    struct pair *p = arg;
    for (unsigned n = 0; n < 60; n++) {
        if (p->seed % 3 == 2) { /* a reader */
            check_bytes(p->fs, (p->seed + 7 * n) % ALL);
            continue;
        }
        uint32_t layer = (p->seed + n) % LAYERS * EXPERTS, first = (p->seed * 5 + n) % EXPERTS;
        struct efs_need needs[] = {{layer + first, 1}, {layer + (first + 1) % EXPERTS, 1}};
        struct efs_client_request *r = fixture_submit(p->fs, needs, 2, EFS_FORM_CODED);
        if (efs_client_wait(r) < 0)
            return p;
        efs_client_release(r);
    }
    return NULL;
}

/* Each thread holds the experts that came first while it waits for the rest, next to readers. Meanwhile budgets,
 * policies, goals and plans change; some plans leave hardly any memory for chunks. */
TEST(test_pairs)
{
    static const char *const changes[][2] = {{"plan", "C=60,F=40"},
                                             {"plan", "F=100"},
                                             {"policy", "lfu"},
                                             {"budget", "200M"},
                                             {"plan", "F=50,C=20,S=20,E=10"},
                                             {"policy", "marking"},
                                             {"budget", "120M"},
                                             {"plan", "F=10,S=40,E=40"},
                                             {"pools", "CSE"},
                                             {"plan", "auto"},
                                             {"pools", "FCSE"},
                                             {"policy", "zipmoe"},
                                             {"plan", "E=100"},
                                             {"goal", "makespan"}};
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 120 * MIB, .full_pool = true, .plan = "F=100"});
    lease_all(fs);
    struct pair pairs[6];
    pthread_t threads[6];
    for (unsigned i = 0; i < 6; i++) {
        pairs[i] = (struct pair){fs, i};
        assert_int_equal(pthread_create(&threads[i], NULL, wait_for_pairs, &pairs[i]), 0);
    }
    for (unsigned n = 0; n < 2 * sizeof(changes) / sizeof(changes[0]); n++) {
        const char *const *change = changes[n % (sizeof(changes) / sizeof(changes[0]))];
        struct efs_error err = {""};
        if (efs_set(fs, change[0], change[1], NULL, &err) < 0)
            fail_msg("%s", err.text);
        lease_all(fs);
    }
    for (unsigned i = 0; i < 6; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    struct efs_stats s = fixture_drain(fs);
    assert_true(fixture_used_bytes(&s) <= s.budget_bytes);
    assert_int_equal(s.leased_experts, 0);
    assert_int_equal(s.chunks_damaged, 0);
    efs_close(fs);
}

/* An expert leased when the plan shrank loses its protection in F at the release, without another request. */
TEST(test_plan_shrinks_under_leases)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 512 * MIB, .full_pool = true});
    struct efs_lease *lease;
    fixture_set_and_plan(fs, "plan", "F=100");
    lease_all(fs);
    assert_int_equal(count_kept(fs, 'F'), ALL);
    assert_int_equal(lease_wait(fs, fixture_expert_info(fs, 5).file, &lease), 0);
    fixture_set_and_plan(fs, "plan", "C=100");
    assert_int_equal(fixture_expert_info(fs, 5).kept, 'F');
    assert_int_equal(count_kept(fs, 'F'), 1);
    efs_lease_release(lease);
    assert_int_equal(count_kept(fs, 'F'), 0);
    assert_int_equal(fixture_expert_info(fs, 5).kept, 'C');
    efs_close(fs);
}

/* An expert that only its pin protects in F loses that protection with the pin, without another request. */
TEST(test_unpinned)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 512 * MIB, .full_pool = true});
    fixture_set_and_plan(fs, "plan", "F=50:C=50");
    lease_all(fs);
    assert_int_equal(efs_pin(fs, efs_id(5), false, 'F', NULL), 0);
    lease_all(fs);
    assert_int_equal(fixture_expert_info(fs, 5).kept, 'F');
    fixture_set_and_plan(fs, "plan", "C=100");
    assert_int_equal(count_kept(fs, 'F'), 1);
    assert_int_equal(efs_pin(fs, efs_id(5), false, '-', NULL), 0);
    assert_int_equal(count_kept(fs, 'F'), 0);
    assert_int_equal(fixture_expert_info(fs, 5).kept, 'C');
    efs_close(fs);
}

/* ---- memory shortage ---- */

/* A mock machine of 4 GiB. The test sets the available memory beyond 64 MiB, which stay free. */
static struct {
    FILE *meminfo;
    int real;
} machine;

/* samples: since the budget was last changed. The file system reads the machine beside, but not during the change. */
static void machine_changes(struct efs *fs, uint64_t mib, int samples)
{
    pthread_mutex_lock(&fs->budget->grow.lock);
    assert_int_equal(ftruncate(fileno(machine.meminfo), 0), 0);
    rewind(machine.meminfo);
    assert_true(fprintf(machine.meminfo, "MemTotal: 4194304 kB\nMemAvailable: %llu kB\n",
                        (unsigned long long)(64 + mib) * 1024) > 0);
    assert_int_equal(fflush(machine.meminfo), 0);
    fs->budget->memory_left.machine = fileno(machine.meminfo);
    efs_lock(fs);
    fs->budget->controller.samples = samples;
    efs_unlock(fs);
    pthread_mutex_unlock(&fs->budget->grow.lock);
    efs_grow(fs, false);
    efs_budget_wait(fs);
    efs_lock(fs); /* the budget rises only when a test requires it, even on a slow machine */
    fs->budget->controller.samples = INT_MIN / 2;
    efs_unlock(fs);
}

static void machine_leaves_mib(struct efs *fs, uint64_t mib)
{
    machine_changes(fs, mib, INT_MIN / 2);
}

/* As if the delay since the last change were over. */
static void later_machine_leaves_mib(struct efs *fs, uint64_t mib)
{
    machine_changes(fs, mib, INT_MAX / 2);
}

static int machine_end(void **state)
{
    (void)state;
    fclose(machine.meminfo);
    return 0;
}

static struct efs *open_on_machine(struct efs_options options)
{
    struct efs *fs = open_with(options);
    machine.meminfo = tmpfile();
    assert_non_null(machine.meminfo);
    machine.real = fs->budget->memory_left.machine;
    return fs;
}

static void close_on_machine(struct efs *fs)
{
    pthread_mutex_lock(&fs->budget->grow.lock);
    fs->budget->memory_left.machine = machine.real;
    pthread_mutex_unlock(&fs->budget->grow.lock);
    efs_close(fs);
}

/* The pools are sized by the available memory: no allocation of the plan fails, and no protected expert is lost. */
TEST_WITH(test_available_below_budget, NULL, machine_end)
{
    struct efs *fs = open_on_machine((struct efs_options){.budget_bytes = 256 * MIB, .plan = "C=100"});
    struct efs_stats s = fixture_drain(fs);
    assert_int_equal(s.effective_budget_bytes, s.budget_bytes);
    assert_int_equal(fs->arena.segment_bytes, 8 * MIB);
    machine_leaves_mib(fs, 44);
    s = fixture_drain(fs);
    assert_int_equal(s.effective_budget_bytes, s.fixed_bytes + 32 * MIB); /* whole segments, less one for promises */
    efs_lock(fs);
    assert_int_equal(fs->account.planned_segments, 4);
    efs_unlock(fs);
    uint64_t short_before = s.memory_short;
    for (uint32_t turn = 0; turn < 2 * ALL; turn++)
        check_bytes(fs, turn % ALL);
    s = fixture_drain(fs);
    assert_int_equal(s.chunk_pool_bytes, 32 * MIB);
    assert_int_equal(s.kept_lost, 0);
    assert_int_equal(s.memory_short, short_before);
    assert_int_equal(s.budget_bytes, 256 * MIB);
    close_on_machine(fs);
}

static void segments_are(struct efs *fs, uint64_t count)
{
    struct efs_stats s = fixture_drain(fs);
    assert_int_equal(s.effective_budget_bytes, s.fixed_bytes + count * fs->arena.segment_bytes);
}

/* The effective budget rises in steps, after a delay; it does not follow short fluctuations. */
TEST_WITH(test_effective_budget_is_damped, NULL, machine_end)
{
    struct efs *fs = open_on_machine((struct efs_options){.budget_bytes = 256 * MIB, .plan = "C=100"});
    machine_leaves_mib(fs, 64);
    segments_are(fs, 7);
    for (unsigned turn = 0; turn < 8; turn++) {
        later_machine_leaves_mib(fs, turn % 2 ? 64 : 79); /* less than a step higher */
        segments_are(fs, 7);
    }
    machine_leaves_mib(fs, 200); /* too early */
    segments_are(fs, 7);
    machine_leaves_mib(fs, 64);
    later_machine_leaves_mib(fs, 200); /* it was lower in the meantime */
    segments_are(fs, 7);
    later_machine_leaves_mib(fs, 200);
    segments_are(fs, 23); /* half a step below */
    later_machine_leaves_mib(fs, 4000);
    struct efs_stats s = fixture_drain(fs);
    assert_int_equal(s.effective_budget_bytes, s.budget_bytes);
    machine_leaves_mib(fs, 64);
    segments_are(fs, 7);
    machine_leaves_mib(fs, 4000);
    set(fs, "budget", "128M"); /* a new budget applies at once */
    s = fixture_drain(fs);
    assert_int_equal(s.effective_budget_bytes, 128 * MIB);
    close_on_machine(fs);
}

/* Memory that other processes take is released, down to the minimum for serving. The bytes stay right. */
TEST_WITH(test_memory_pressure, NULL, machine_end)
{
    struct efs *fs =
        open_on_machine((struct efs_options){.budget_bytes = 128 * MIB, .full_pool = true, .plan = "F=60,C=40"});
    struct efs_lease *lease;
    lease_all(fs);
    for (uint32_t e = 0; e < ALL; e++)
        check_bytes(fs, e);
    assert_int_equal(lease_wait(fs, fixture_expert_info(fs, 3).file, &lease), 0);
    struct efs_stats s = fixture_drain(fs);
    uint64_t before = fixture_used_bytes(&s);
    machine_leaves_mib(fs, 0); /* memory in use, less what is promised */
    s = fixture_drain(fs);
    assert_true(s.effective_budget_bytes < before);
    assert_true(s.memory_short > 0);
    for (unsigned turn = 0; turn < 20; turn++) /* always 40 MiB below the margin */
        machine_leaves_mib(fs, (uint64_t)-40);
    s = fixture_drain(fs);
    assert_int_equal(s.effective_budget_bytes, s.fixed_bytes + fs->arena.segment_bytes);
    assert_memory_equal(lease_data(lease), want[3], want_bytes[3]);
    efs_lease_release(lease);
    for (uint32_t e = 0; e < ALL; e++)
        check_bytes(fs, e);
    machine_leaves_mib(fs, 4000);
    later_machine_leaves_mib(fs, 4000);
    s = fixture_drain(fs);
    assert_int_equal(s.effective_budget_bytes, s.budget_bytes);
    lease_all(fs);
    close_on_machine(fs);
}

/* The budget has room, but the system has no memory: unprotected full experts are evicted for those that the plan
 * protects. */
TEST_WITH(test_allocation_failures, NULL, machine_end)
{
    struct efs *fs =
        open_on_machine((struct efs_options){.budget_bytes = 72 * MIB, .full_pool = true, .plan = "C=100"});
    for (uint32_t e = 0; e < 3; e++)
        lease_one(fs, e);
    struct efs_stats s = fixture_drain(fs);
    uint64_t full = s.full_pool_bytes;
    assert_true(full >= 3 * want_bytes[0]);
    machine_leaves_mib(fs, 8);
    for (uint32_t e = 3; e < ALL; e++)
        check_bytes(fs, e);
    s = fixture_drain(fs);
    uint64_t planned = fs->account.planned_segments * fs->arena.segment_bytes;
    assert_true(s.effective_budget_bytes < s.budget_bytes);
    assert_true(s.full_pool_bytes < full);
    assert_int_equal(s.chunk_pool_bytes, planned);
    assert_true(fixture_used_bytes(&s) <= s.effective_budget_bytes);
    close_on_machine(fs);
}

TEST_MAIN(setup, teardown)
