/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Explores the real engine exhaustively: for small configurations, every order in which callers request, read, open,
 * drop and cancel experts, reads complete or fail, jobs run, and the budget falls and rises (world.h). Depth first; a
 * state that was seen (state.c) is not explored again. In every state the invariants hold, a state without a next step
 * is final, and there nothing is held.
 *
 * Steps are atomic in the first test; in the second one, a step is suspended where it takes the engine's lock, and
 * other steps run before it goes on.
 *
 * In a state where something waits, trying it again advances nothing: else a wake-up was lost, even if a later one
 * would make up for it. EFS_TEST_LOST has bits of changes that are not reported (world.h).
 * EFS_TEST_STATES is the limit of states for each configuration. EFS_TEST_PLAN runs one by its name, also one of the
 * long tier. A failure prints the steps that lead to it.
 */
#include "test.h"
#include "fixture.h"
#include "snapshot.h"
#include "world.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#define STATES (SANITIZED ? 20000 : 1000000) /* limit for each configuration */
#define DEPTH_MAX 512u
#define SAMPLE_EVERY 64u /* see sample() */

struct frame {
    struct snapshot snapshot;
    uint64_t hash;
    struct step steps[STEPS_MAX];
    unsigned count, next;
};

static struct frame frames[DEPTH_MAX];
static unsigned depth;
static const struct model_plan *exploring; /* NULL: none */

/* Hashes of the states that were seen: a table with open addressing. 0: free. */
static uint64_t *seen;
static size_t seen_size;

struct counts {
    uint64_t states, steps, sampled, cycles;
    unsigned deepest;
    bool complete, deadlock;
    struct situations situations;
};

static struct counts counts;

/* A step that hash_next() runs, and the state before it; NULL: none. */
static const struct step *tried;
static struct snapshot tried_from;

static void print_path(void)
{
    char text[128];
    if (exploring)
        fprintf(stderr, "EFS_TEST_PLAN=%s fails after %llu states:\n", exploring->name,
                (unsigned long long)counts.states);
    for (unsigned i = 0; exploring && i < depth; i++) {
        snapshot_restore(&frames[i].snapshot);
        world_describe(frames[i].steps[frames[i].next - 1], text, sizeof(text));
        fprintf(stderr, "step %u: %s\n", i + 1, text);
    }
    if (exploring && tried) {
        snapshot_restore(&tried_from);
        world_describe(*tried, text, sizeof(text));
        fprintf(stderr, "step %u: %s\n", depth + 1, text);
    }
    exploring = NULL;
}

static void on_abort(int signal_number)
{
    (void)signal_number;
    print_path();
    _exit(1);
}

static void *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

/* ---- states ---- */

static uint64_t *seen_slot(uint64_t hash)
{
    size_t i = (size_t)hash & (seen_size - 1);
    while (seen[i] && seen[i] != hash)
        i = (i + 1) & (seen_size - 1);
    return &seen[i];
}

static uint64_t hash_now(void)
{
    uint64_t hash = state_hash();
    return hash ? hash : 1;
}

/* Whether the state is new; adds it. */
static bool see(uint64_t hash)
{
    uint64_t *slot = seen_slot(hash);
    if (!*slot) {
        *slot = hash;
        return true;
    }
    for (unsigned i = 0; i < depth; i++)
        counts.cycles += frames[i].hash == hash;
    return false;
}

/* Checks the state and prepares its steps. */
static void enter(uint64_t hash)
{
    assert_true(depth < DEPTH_MAX);
    struct frame *frame = &frames[depth];
    frame->hash = hash;
    frame->count = world_steps(frame->steps);
    frame->next = 0;
    bool final = world_is_final();
    state_check(final && frame->count == 0);
    state_count(&counts.situations);
    counts.deadlock = frame->count == 0 && !final;
    if (counts.deadlock && !exploring->piecewise)
        fail_msg("deadlock: no step is possible, and a caller waits");
    snapshot_save(&frame->snapshot);
    if (world_waits() && !exploring->piecewise) {
        if (world_retry_advances())
            fail_msg("a wake-up is missing");
        snapshot_restore(&frame->snapshot);
    }
    counts.states++;
    counts.deepest = depth > counts.deepest ? depth : counts.deepest;
    depth++;
}

/* ---- samples ---- */

/* The first time that a state was reached, for one of SAMPLE_EVERY: a table with open addressing. hash 0: free. */
struct sample {
    uint64_t hash, next;
};

static struct sample *samples;
static size_t samples_size;

/* Of the states that follow the current one, in any order. */
static uint64_t hash_next(void)
{
    struct step steps[STEPS_MAX];
    uint64_t sum = 0;
    snapshot_save(&tried_from);
    unsigned count = world_steps(steps);
    for (unsigned i = 0; i < count; i++) {
        tried = &steps[i];
        world_run(steps[i]);
        sum += hash_now();
        snapshot_restore(&tried_from);
    }
    tried = NULL;
    return sum;
}

/* Fails unless the state determines what follows: reached again, by other steps, it leads to the states that it led to
 * the first time. */
static void sample(uint64_t hash)
{
    if (hash % SAMPLE_EVERY != 0)
        return;
    size_t i = (size_t)(hash / SAMPLE_EVERY) & (samples_size - 1);
    while (samples[i].hash && samples[i].hash != hash)
        i = (i + 1) & (samples_size - 1);
    uint64_t next = hash_next();
    counts.sampled += samples[i].hash != 0;
    if (samples[i].hash && samples[i].next != next)
        fail_msg("a state leads to other states than the first time: state_hash() lacks something");
    samples[i] = (struct sample){hash, next};
}

/* ---- exploration ---- */

static void explore(const struct model_plan *plan, uint64_t limit)
{
    counts = (struct counts){0};
    seen_size = 1 << 10;
    while (seen_size < 2 * limit)
        seen_size *= 2;
    seen = map(seen_size * sizeof(*seen));
    samples_size = seen_size / 8; /* more than SAMPLE_EVERY needs */
    samples = map(samples_size * sizeof(*samples));
    world_open(plan);
    depth = 0;
    tried = NULL;
    exploring = plan;
    see(hash_now());
    enter(hash_now());
    while (depth > 0 && counts.states < limit && !counts.deadlock) {
        struct frame *frame = &frames[depth - 1];
        if (frame->next == frame->count) {
            depth--;
            continue;
        }
        if (frame->next > 0) /* else it is the current state */
            snapshot_restore(&frame->snapshot);
        world_run(frame->steps[frame->next++]);
        counts.steps++;
        uint64_t hash = hash_now();
        bool is_new = see(hash);
        sample(hash);
        if (is_new)
            enter(hash);
    }
    counts.complete = depth == 0;
    exploring = NULL;
    snapshot_restore(&frames[0].snapshot);
    world_close();
    munmap(seen, seen_size * sizeof(*seen));
    munmap(samples, samples_size * sizeof(*samples));
}

/* ---- configurations ---- */

#define REQUEST(form_, ...)                                                                                            \
    .kind = CALLER_REQUEST, .form = EFS_FORM_##form_, .experts = {__VA_ARGS__},                                        \
    .count = sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)
#define SESSION(form_, ...)                                                                                            \
    .kind = CALLER_SESSION, .form = EFS_FORM_##form_, .experts = {__VA_ARGS__},                                        \
    .count = sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)
#define READER(expert) .kind = CALLER_READ, .experts = {expert}, .count = 1
#define OPENER(expert) .kind = CALLER_OPEN, .experts = {expert}, .count = 1

/* Checkpoints of experts of one extent each, by their sizes: 3 or 2 of them fill a segment, or they differ. */
static struct fixture small, large, mixed;

static const struct model_plan plans[] = {
    {.name = "slices",
     .store = &small,
     .segments = 1,
     .fails = true,
     .callers = {{REQUEST(CODED, 0, 1), .one_by_one = true, .may_cancel = true},
                 {SESSION(CODED, 1, 2), .may_cancel = true},
                 {READER(3)}}},
    {.name = "shrink",
     .store = &large,
     .segments = 2,
     .shrink_segments = 1,
     .callers = {{REQUEST(CODED, 0, 1)}, {SESSION(CODED, 2)}, {READER(3)}}},
    {.name = "full",
     .store = &small,
     .segments = 1,
     .memfiles = 2,
     .fails = true,
     .callers = {{REQUEST(FULL, 0, 1), .may_cancel = true}, {SESSION(FULL, 1, 2), .may_cancel = true}, {READER(0)}}},
    {.name = "open",
     .store = &large,
     .segments = 1,
     .memfiles = 2,
     .fails = true,
     .callers = {{REQUEST(FULL, 0, 1), .may_cancel = true}, {SESSION(FULL, 1)}, {OPENER(1)}}},
    {.name = "mapped",
     .store = &large,
     .segments = 1,
     .memfiles = 2,
     .maps = true,
     .callers = {{REQUEST(FULL, 0, 1), .may_cancel = true}, {OPENER(1)}, {OPENER(1)}, {READER(2)}}},
    {.name = "forms",
     .store = &mixed,
     .segments = 2,
     .memfiles = 1,
     .callers = {{REQUEST(CODED, 1, 0), .may_cancel = true}, {SESSION(FULL, 1, 3), .may_cancel = true}, {READER(2)}}},
    {.name = "want",
     .store = &large,
     .segments = 2,
     .memfiles = 1,
     .callers = {{REQUEST(ANY, 0, 1)}, {SESSION(CODED, 1, 2)}, {.kind = CALLER_WANT, .count = 2, .experts = {2, 3}}}},
    {.name = "whole",
     .store = &large,
     .segments = 2,
     .fails = true,
     .callers = {{REQUEST(CODED, 0, 1), .may_cancel = true}, {SESSION(CODED, 1, 2), .may_cancel = true}, {READER(3)}}},
    {.name = "sizes",
     .store = &mixed,
     .segments = 2,
     .shrink_segments = 1,
     .fails = true,
     .callers = {{REQUEST(CODED, 0, 1), .may_cancel = true}, {SESSION(CODED, 1, 2, 3), .may_cancel = true}}},
    {.name = "pair",
     .store = &large,
     .segments = 1,
     .unprepared = true,
     .callers = {{REQUEST(CODED, 0, 1), .one_by_one = true}, {SESSION(CODED, 2), .may_cancel = true}}},
    {.name = "pair-full",
     .store = &large,
     .segments = 1,
     .memfiles = 1,
     .callers = {{REQUEST(FULL, 0)}, {SESSION(FULL, 1), .may_cancel = true}, {READER(2)}}},
    {.name = "thread",
     .store = &large,
     .segments = 1,
     .callers = {{REQUEST(CODED, 0), .thread = 1},
                 {REQUEST(CODED, 1), .thread = 1},
                 {SESSION(CODED, 2), .may_cancel = true}}},
    {.name = "thread-full",
     .store = &small,
     .segments = 1,
     .memfiles = 1,
     .callers = {{REQUEST(FULL, 0), .thread = 1}, {REQUEST(FULL, 1), .thread = 1}, {SESSION(CODED, 2)}, {READER(3)}}},
    {.name = "keeps",
     .store = &large,
     .segments = 1,
     .unprepared = true,
     .callers = {{REQUEST(CODED, 0, 1), .keeps = true}, {SESSION(CODED, 2), .may_cancel = true}}},
    {.name = "keeps-full",
     .store = &small,
     .segments = 1,
     .memfiles = 1,
     .callers = {{REQUEST(FULL, 0, 1), .keeps = true}, {SESSION(CODED, 2)}, {READER(3)}}},
    {.name = "threads",
     .store = &large,
     .segments = 2,
     .callers = {{REQUEST(CODED, 0), .thread = 1, .waits = true},
                 {REQUEST(CODED, 1), .thread = 2, .waits = true},
                 {REQUEST(CODED, 2), .thread = 1, .waits = true},
                 {REQUEST(CODED, 3), .thread = 2, .waits = true}}},
    {.name = "threads-full",
     .store = &small,
     .segments = 1,
     .memfiles = 2,
     .callers = {{REQUEST(FULL, 0), .thread = 1, .waits = true},
                 {REQUEST(FULL, 1), .thread = 2, .waits = true},
                 {REQUEST(FULL, 2), .thread = 1, .waits = true},
                 {REQUEST(FULL, 3), .thread = 2, .waits = true}}},
    {.name = "threads-keep",
     .store = &large,
     .segments = 2,
     .callers = {{REQUEST(CODED, 0), .thread = 1, .waits = true},
                 {REQUEST(CODED, 1, 2, 3), .thread = 2, .waits = true, .keeps = true},
                 {REQUEST(CODED, 3), .thread = 1, .waits = true}}},
    {.name = "long-slices",
     .store = &small,
     .segments = 1,
     .fails = true,
     .is_long = true,
     .callers = {{REQUEST(CODED, 0, 1), .one_by_one = true, .may_cancel = true},
                 {SESSION(CODED, 1, 2), .may_cancel = true},
                 {REQUEST(CODED, 2, 3, 0)},
                 {READER(3)}}},
    {.name = "long-shrink",
     .store = &large,
     .segments = 2,
     .shrink_segments = 1,
     .fails = true,
     .is_long = true,
     .callers = {{REQUEST(CODED, 0, 1), .may_cancel = true},
                 {SESSION(CODED, 1, 2), .may_cancel = true},
                 {SESSION(CODED, 3), .after = 1},
                 {READER(3)}}},
    {.name = "long-full",
     .store = &small,
     .segments = 1,
     .memfiles = 2,
     .fails = true,
     .is_long = true,
     .callers = {{REQUEST(FULL, 0, 1), .may_cancel = true},
                 {SESSION(FULL, 1, 2), .may_cancel = true},
                 {REQUEST(FULL, 3)},
                 {READER(0)}}},
    {.name = "long-forms",
     .store = &mixed,
     .segments = 2,
     .memfiles = 1,
     .shrink_segments = 1,
     .is_long = true,
     .callers = {{REQUEST(CODED, 0, 1, 2), .may_cancel = true},
                 {SESSION(FULL, 1), .may_cancel = true},
                 {OPENER(3)},
                 {READER(2)}}},
};

static void print_counts(const struct model_plan *plan)
{
    const struct counts *c = &counts;
    print_message("%-12s %8llu states, %9llu steps, %5llu compared, %2u deep, %2u pages, %llu cycles%s;", plan->name,
                  (unsigned long long)c->states, (unsigned long long)c->steps, (unsigned long long)c->sampled,
                  c->deepest, snapshot_pages(), (unsigned long long)c->cycles,
                  c->deadlock   ? ", deadlock"
                  : c->complete ? ""
                                : ", not complete");
#define PRINT(situation)                                                                                               \
    if (c->situations.situation)                                                                                       \
        print_message(" %s %llu", #situation, (unsigned long long)c->situations.situation);
    SITUATIONS(PRINT)
#undef PRINT
    print_message("\n");
}

/* After a failure. */
static int explained(void **state)
{
    (void)state;
    print_path();
    return 0;
}

static void explore_all(unsigned threads, uint64_t limit)
{
    const char *states = getenv("EFS_TEST_STATES"), *only = getenv("EFS_TEST_PLAN");
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
        struct model_plan plan = plans[i];
        if (only ? strcmp(only, plan.name) != 0 : plan.is_long)
            continue;
        plan.threads = threads;
        explore(&plan, states ? strtoull(states, NULL, 10) : limit);
        print_counts(&plan);
        sum += counts.states;
    }
    print_message("%llu states\n", (unsigned long long)sum);
}

TEST_WITH(all_orders, NULL, explained)
{
    explore_all(0, STATES);
}

/* A second thread may run before each taking of the lock. */
TEST_WITH(all_orders_of_two_threads, NULL, explained)
{
    if (!SANITIZED) /* sanitizers do not know the stacks of threads.h */
        explore_all(1, STATES / 5);
}

TEST_WITH(the_piecewise_rule_deadlocks, NULL, explained)
{
    const struct model_plan plan = {
        .name = "piecewise",
        .store = &large,
        .segments = 2,
        .piecewise = true,
        .callers = {{REQUEST(CODED, 0, 1)}, {REQUEST(CODED, 2, 3)}, {REQUEST(CODED, 1, 2)}}};
    explore(&plan, STATES);
    print_counts(&plan);
    assert_true(counts.deadlock);
}

/* Each mutator that reports nothing leaves a waiter that nothing retries. */
TEST(a_lost_change_is_found)
{
#define KIND(kind) LOST_ACCOUNT(EFS_ACCOUNT_##kind)
    static const struct lost {
        const char *what;
        uint64_t bits;
    } lost[] = {{"end of a load or reference", LOST_CHANGE(EFS_CHANGED_FLIGHT)},
                {"segments prepared", LOST_CHANGE(EFS_CHANGED_GROWN)},
                {"request holds less", LOST_CHANGE(EFS_CHANGED_HELD)},
                {"expert leaves the queue", LOST_CHANGE(EFS_CHANGED_QUEUE)},
                {"coded pins", KIND(CODED_PINNED)},
                {"pins of full experts", KIND(FULL_PINNED) | KIND(FULL_COPIED)},
                {"memory returned", KIND(RETURNING) | KIND(SEGMENTS) | KIND(RETIRING)},
                {"limits", KIND(LIMITS)},
                {"empty segment", LOST_ARENA}};
#undef KIND
    for (size_t i = 0; i < sizeof(lost) / sizeof(lost[0]); i++) {
        char command[160];
        snprintf(command, sizeof(command),
                 "EFS_TEST_LOST=%llu EFS_TEST_STATES=5000 CMOCKA_TEST_FILTER=all_orders exec /proc/%d/exe 2>&1",
                 (unsigned long long)lost[i].bits, (int)getpid());
        FILE *child = popen(command, "r");
        char line[512];
        bool found = false;
        assert_non_null(child);
        while (fgets(line, sizeof(line), child))
            found |= strstr(line, "fails after") != NULL;
        pclose(child);
        if (!found)
            fail_msg("the explorer does not find what is not reported: %s", lost[i].what);
    }
}

static void make_store(struct fixture *f, const unsigned rows[EXPERTS])
{
    char names[EXPERTS][64];
    struct fixture_tensor tensors[EXPERTS];
    const struct efs_pack_options options = {.threads = 2, .shard_elements = 4u << 20, .force = true};
    for (unsigned e = 0; e < EXPERTS; e++) {
        snprintf(names[e], sizeof(names[e]), "model.layers.0.mlp.experts.%u.up_proj.weight", e);
        tensors[e] = (struct fixture_tensor){names[e], "BF16", 2, {rows[e], 1024}, 2048ull * rows[e]};
    }
    fixture_begin(f);
    fixture_safetensors(f, "model.safetensors", tensors, EXPERTS, 7);
    fixture_file(f, "config.json", "{\"model_type\": \"qwen3_moe\"}\n", 28);
    fixture_pack(f, &options);
}

static int setup(void **state)
{
    (void)state;
    make_store(&small, (const unsigned[]){1792, 1792, 1792, 1792});
    make_store(&large, (const unsigned[]){2560, 2560, 2560, 2560});
    make_store(&mixed, (const unsigned[]){2560, 1792, 2560, 1024});
    signal(SIGABRT, on_abort);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_end(&small);
    fixture_end(&large);
    fixture_end(&mixed);
    return 0;
}

TEST_MAIN(setup, teardown)
