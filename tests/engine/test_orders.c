/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine on one thread: workers and the I/O thread are lists, from which a random generator picks the next job or
 * completion. Callers request experts, read, open, cancel and change the budget in an order that it picks, too.
 * In each order all of them end, no coded or full expert fails for lack of memory, and nothing stays pinned. A
 * seed that fails is printed; EFS_TEST_SEED runs one, EFS_TEST_SEEDS a number of them. Bytes are neither read nor
 * decoded.
 */
#include "test.h"
#include "stats.h"
#include "fetch.h"
#include "fixture.h"
#include "budget.h"
#include "one_thread.h"

#define LAYERS 2
#define EXPERTS 8
#define MIB (1ull << 20)
#define SEEDS (SANITIZED ? 1000 : 10000)
#define SEEDS_PER_STORE 200
#define CALLERS 6
#define ROUNDS 3

static struct fixture model;
static struct efs *fs;
static uint64_t seed;

static unsigned pick(unsigned count)
{
    return (unsigned)(fixture_random(&seed) % count);
}

static void complete_read(unsigned n)
{
    bool fails = pick(200) == 0 && one_thread->reads[n]->bytes;
    one_thread_complete(n, fails ? -EIO : 0);
    if (pick(2) || one_thread->read_count == 0) /* several may complete in one turn */
        one_thread->io.completed(one_thread->io.arg);
}

/* ---- callers ---- */

enum stage { CALLER_IDLE, CALLER_WAITS, CALLER_TAKES, CALLER_READS, CALLER_OPENS, CALLER_HOLDS, CALLER_DONE };

struct caller {
    enum stage stage;
    unsigned rounds;
    bool ended; /* of a read or an open */
    struct efs_client_request *request;
    struct efs_lease *lease;
    uint8_t bytes[65536];
};

static struct caller callers[CALLERS];

static void read_done(void *arg, errint_t error, size_t bytes)
{
    struct caller *c = arg;
    assert_true(error == -EIO || (error == 0 && bytes > 0));
    c->ended = true;
}

static void open_done(void *arg, errint_t error, struct efs_lease *lease)
{
    struct caller *c = arg;
    assert_true(error == 0 || error == -ENOMEM || error == -EIO);
    c->lease = lease;
    c->ended = true;
}

static void caller_request(struct caller *c)
{
    struct efs_need needs[EXPERTS];
    const struct efs_request_how how = {.form = (enum efs_form)pick(3)};
    uint32_t count = 1 + pick(EXPERTS), first = pick(EXPERTS), layer = pick(LAYERS);
    for (uint32_t i = 0; i < count; i++)
        needs[i] = (struct efs_need){layer * EXPERTS + (first + i) % EXPERTS, 1};
    c->stage = pick(2) ? CALLER_WAITS : CALLER_TAKES;
    one_thread->number = (uint64_t)(c - callers) + 1;
    assert_int_equal(efs_request_submit(fs, needs, count, &how, &c->request, NULL), 0);
}

static void caller_begin(struct caller *c)
{
    unsigned what = pick(10);
    if (what < 6) {
        caller_request(c);
        return;
    }
    struct efs_file_info info = fixture_file_info(fs, 0);
    c->ended = false;
    c->stage = what < 8 ? CALLER_READS : CALLER_OPENS;
    if (what < 8)
        efs_read(fs, 0, NULL, fixture_random(&seed) % info.bytes, c->bytes, 1 + pick(sizeof(c->bytes)), read_done, c);
    else
        efs_lease(fs, fixture_expert_info(fs, pick(LAYERS * EXPERTS)).file, open_done, c);
}

static void caller_end_round(struct caller *c)
{
    efs_client_release(c->request);
    c->request = NULL;
    c->stage = --c->rounds ? CALLER_IDLE : CALLER_DONE;
}

/* Whether the caller can go on. */
static bool caller_can_run(const struct caller *c)
{
    const struct efs_client_request *r = c->request;
    if (c->stage == CALLER_WAITS)
        return r->oversize || !r->loading;
    if (c->stage == CALLER_READS || c->stage == CALLER_OPENS)
        return c->ended;
    for (uint32_t i = 0; c->stage == CALLER_TAKES && r->loading; i++) {
        if (i == r->count)
            return false;
        const struct efs_client_item *item = &efs_request_of(r)->items[i].base;
        if (!item->reported && (item->state == EFS_ITEM_READY || item->state == EFS_ITEM_FAILED))
            return true;
    }
    return c->stage != CALLER_DONE;
}

static void caller_run(struct caller *c)
{
    uint32_t index;
    errint_t status, rc;
    switch (c->stage) {
    case CALLER_IDLE:
        caller_begin(c);
        break;
    case CALLER_WAITS:
        rc = efs_client_wait(c->request);
        assert_true(rc == 0 || rc == -EDEADLK || rc == -EIO);
        if (rc == -EDEADLK)
            c->stage = CALLER_TAKES;
        else
            caller_end_round(c);
        break;
    case CALLER_TAKES:
        if (efs_client_wait_any(c->request, 0, &index, &status) == 1) {
            assert_true(status == 0 || status == -EIO);
            efs_client_drop(c->request, index);
        } else {
            caller_end_round(c);
        }
        break;
    case CALLER_OPENS:
        c->stage = c->lease ? CALLER_HOLDS : --c->rounds ? CALLER_IDLE : CALLER_DONE;
        break;
    case CALLER_HOLDS:
        efs_lease_release(c->lease);
        c->lease = NULL;
        c->stage = --c->rounds ? CALLER_IDLE : CALLER_DONE;
        break;
    case CALLER_READS:
        c->stage = --c->rounds ? CALLER_IDLE : CALLER_DONE;
        break;
    case CALLER_DONE:
        break;
    }
}

static void change_budget(void)
{
    uint64_t least = efs_account_fixed(&fs->account) + fs->arena.segment_bytes + 8 * MIB;
    efs_lock(fs);
    efs_budget_change(fs, least + pick(40) * MIB);
    efs_unlock(fs);
}

/* One step. false: nothing is left to do. */
static bool step(void)
{
    unsigned able[CALLERS], count = 0;
    for (unsigned i = 0; i < CALLERS; i++)
        if (caller_can_run(&callers[i]))
            able[count++] = i;
    unsigned job_count = one_thread->job_count, pending = job_count + one_thread->read_count;
    if (count + pending == 0)
        return false;
    unsigned n = pick(count + pending + 1);
    struct caller *c = &callers[pick(CALLERS)];
    if (n < count)
        caller_run(&callers[able[n]]);
    else if (n < count + job_count)
        one_thread_run(n - count);
    else if (n < count + pending)
        complete_read(n - count - job_count);
    else if (pick(4) == 0)
        change_budget();
    else if (c->request) /* cancelled */
        caller_end_round(c);
    return true;
}

/* ---- test ---- */

static int setup(void **state)
{
    static struct one_thread thread;
    *state = &model;
    one_thread = &thread;
    fixture_store(&model, LAYERS, EXPERTS, 512, 1024);
    return 0;
}

static void run_seed(uint64_t number)
{
    seed = number + 1;
    for (unsigned i = 0; i < CALLERS; i++) {
        callers[i].stage = CALLER_IDLE;
        callers[i].rounds = ROUNDS;
    }
    while (step())
        ;
    bool good = fs->items_waiting == 0 && fs->coded_pinned == 0 && fs->extents->refs == 0 && !efs_extents_wait(fs) &&
                fs->account.bytes[EFS_ACCOUNT_FULL_PINNED] == 0 && fs->in_flight == 1;
    for (unsigned i = 0; i < CALLERS; i++)
        good = good && callers[i].stage == CALLER_DONE;
    if (!good)
        fail_msg("EFS_TEST_SEED=%llu: %u experts wait, %u are pinned, %u references, %u in flight",
                 (unsigned long long)number, fs->items_waiting, fs->coded_pinned, fs->extents->refs, fs->in_flight);
}

TEST(test_orders)
{
    const char *one = getenv("EFS_TEST_SEED"), *many = getenv("EFS_TEST_SEEDS");
    uint64_t first = one ? strtoull(one, NULL, 10) : 0, count = one ? 1 : many ? strtoull(many, NULL, 10) : SEEDS;
    uint64_t waits = 0, uncached = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (!fs)
            fs = fixture_open(
                &model,
                (struct efs_options){
                    .workers = 2, .no_state = true, .full_pool = true, .lease_wait = true, .budget_bytes = 60 * MIB});
        run_seed(first + i);
        if (i % SEEDS_PER_STORE == SEEDS_PER_STORE - 1 || i + 1 == count) {
            waits += fs->stats->lease_waits + fs->stats->coded_waits;
            uncached += fs->stats->reads_past;
            efs_close(fs);
            fs = NULL;
        }
    }
    print_message("%llu seeds: %llu experts waited for memory, %llu reads were uncached\n", (unsigned long long)count,
                  (unsigned long long)waits, (unsigned long long)uncached);
    assert_true(one || waits > count);
}

TEST_MAIN(setup, fixture_teardown)
