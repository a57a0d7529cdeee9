/* SPDX-License-Identifier: Apache-2.0 */
/* world.c - see world.h. */
#include "world.h"

#include "budget.h"
#include "fixture.h"
#include "snapshot.h"
#include "threads.h"
#include "wrapped.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define MIB (1ull << 20)
#define OWNER_IO 100u /* owners of steps that are suspended; callers: their numbers */
#define OWNER_WORKER 101u
#define OWNER_BUDGET 102u
#define ACTOR_ENGINE 1u /* jobs and completions */
#define ACTOR_CALLER 2u /* and the callers after the first */

struct world *world;

static const struct caller_plan *plan_of(unsigned caller)
{
    return &world->plan->callers[caller];
}

/* ---- open, close ---- */

static void set_budget(uint64_t bytes)
{
    efs_lock(world->fs);
    efs_budget_change(world->fs, bytes);
    efs_unlock(world->fs);
}

static size_t largest_memfile(const struct efs *fs)
{
    size_t bytes = 0;
    for (uint32_t e = 0; e < fs->store->expert_count; e++)
        bytes = efs_memfile_bytes(fs, e) > bytes ? efs_memfile_bytes(fs, e) : bytes;
    return bytes;
}

void world_open(const struct model_plan *plan)
{
    world = NULL;
    heap_begin();
    world = calloc(1, sizeof(*world));
    one_thread = &world->thread;
    world->plan = plan;
    const char *lost = getenv("EFS_TEST_LOST");
    world->lost = lost ? strtoull(lost, NULL, 0) : 0;
    while (world->caller_count < CALLERS_MAX && plan->callers[world->caller_count].kind != CALLER_NONE)
        world->caller_count++;
    struct efs *fs = fixture_open(plan->store, (struct efs_options){.workers = 1,
                                                                    .no_state = true,
                                                                    .full_pool = true,
                                                                    .lease_wait = true,
                                                                    .policy = "lru",
                                                                    .budget_bytes = 200 * MIB});
    world->fs = fs;
    bytes_set_memfile(largest_memfile(fs));
    bytes_begin();
    world->budget_bytes = efs_account_fixed(&fs->account) + plan->segments * fs->arena.segment_bytes +
                          plan->memfiles * largest_memfile(fs);
    set_budget(world->budget_bytes);
    while (one_thread->job_count > 0) /* that opening has left */
        one_thread_run(0);
    struct efs_grow *g = &fs->budget->grow;
    while (plan->unprepared && !plan->threads &&
           g->count > 0) /* not two readings at a time: they would wait for a lock */
        efs_arena_discard(&fs->arena, &g->ready[--g->count]);
    if (plan->threads)
        world->threads = threads_new(&(struct threads_options){.suspended_max = plan->threads, .lock = &fs->lock});
    snapshot_begin();
}

void world_close(void)
{
    snapshot_end();
    if (world->threads)
        threads_free(world->threads);
    efs_close(world->fs);
    free(world->granules);
    free(world);
    world = NULL;
    heap_enable(false);
}

/* ---- callbacks ---- */

static void read_done(void *arg, errint_t error, size_t bytes)
{
    struct caller *c = arg;
    assert_true((error == -EIO && world->failed) || (error == 0 && bytes > 0));
    if (error == 0)
        assert_true(bytes_are_of(c->bytes, plan_of((unsigned)(c - world->callers))->experts[0]));
    c->ended = true;
}

static void open_done(void *arg, errint_t error, struct efs_lease *lease)
{
    struct caller *c = arg;
    assert_true(error == 0 || error == -ENOMEM || (error == -EIO && world->failed));
    c->lease = lease;
    c->ended = true;
    if (lease && efs_lease_fd(lease) == 0)
        bytes_check_full(lease->expert);
}

static bool has_opener(void)
{
    for (unsigned n = 0; n < world->caller_count; n++)
        if (plan_of(n)->kind == CALLER_OPEN)
            return true;
    return false;
}

/* The argument of an expert of a session is the address of its `here`. */
static struct caller *session_of(const void *arg, unsigned *item)
{
    const bool *here = arg;
    unsigned n = 0;
    while ((uintptr_t)here - (uintptr_t)world->callers[n].here >= ITEMS_MAX * sizeof(bool))
        n++;
    *item = (unsigned)(here - world->callers[n].here);
    return &world->callers[n];
}

static bool session_has_cancelled(const void *arg)
{
    unsigned item;
    const struct caller *c = session_of(arg, &item);
    return c->cancelled[item];
}

static void session_arrived(void *arg, errint_t error, struct efs_client_request *request, uint32_t index)
{
    unsigned item;
    struct caller *c = session_of(arg, &item);
    bool cancelled = c->cancelled[item];
    assert_true(error == 0 || (error == -EIO && world->failed) || (error == -ECANCELED && cancelled));
    if (error == 0 && !cancelled) {
        struct efs_window window;
        if (efs_request_form(request, index) == EFS_FORM_FULL) {
            errint_t rc = efs_request_window(request, index, &window);
            assert_true(rc == 0 || (rc == -EBUSY && has_opener())); /* held by an open, too */
            bytes_check_full(efs_request_of(request)->items[index].expert);
        }
        c->here[item] = true;
        return;
    }
    c->gone[item] = true;
    if (error == 0)
        efs_client_drop(request, index);
}

/* The request does not fit into memory at once; or it does now, which is reported by the same argument. */
static void session_oversize(void *arg, bool oversize, uint32_t own_drops)
{
    unsigned item;
    (void)own_drops;
    struct caller *c = session_of(arg, &item);
    assert_true(oversize || c->oversize == arg);
    c->oversize = oversize ? arg : NULL;
}

/* ---- callers ---- */

/* Finds the request that the caller has submitted: only a caller in process gets the pointer. */
static void find_request(struct caller *c, uint32_t count)
{
    for (const struct heap_block *b = heap_live(); b; b = b->next) {
        struct efs_request *request = (struct efs_request *)(uintptr_t)(b + 1);
        if (b->tag >> 32 == ACTOR_CALLER + (uint64_t)(c - world->callers) && b->bytes >= sizeof(*request) &&
            request->fs == world->fs && request->base.count == count &&
            (const void *)request->parts == (const void *)(request->items + count))
            c->request = &request->base;
    }
}

static void caller_request(unsigned n)
{
    const struct caller_plan *p = plan_of(n);
    struct caller *c = &world->callers[n];
    struct efs_need needs[ITEMS_MAX];
    void *args[ITEMS_MAX];
    bool session = p->kind == CALLER_SESSION;
    for (uint32_t i = 0; i < p->count; i++) {
        needs[i] = (struct efs_need){p->experts[i], 1};
        args[i] = &c->here[i];
    }
    const struct efs_request_how how = {.form = p->form,
                                        .arrived = session ? session_arrived : NULL,
                                        .args = session ? args : NULL,
                                        .oversize = session ? session_oversize : NULL};
    struct efs_client_request *request;
    if (p->kind == CALLER_WANT) {
        c->stage = STAGE_DONE;
        assert_int_equal(efs_experts_want(world->fs, needs, p->count, NULL), 0);
        return;
    }
    one_thread->number = p->thread ? CALLERS_MAX + p->thread : n + 1;
    assert_int_equal(efs_request_submit(world->fs, needs, p->count, &how, &request, NULL), 0);
    find_request(c, p->count);
}

static void caller_begin(unsigned n)
{
    const struct caller_plan *p = plan_of(n);
    struct caller *c = &world->callers[n];
    struct efs *fs = world->fs;
    uint32_t file = fixture_expert_info(fs, p->experts[0]).file;
    c->stage = STAGE_RUNNING;
    if (p->kind == CALLER_READ)
        efs_read(fs, file, NULL, fixture_file_info(fs, file).bytes - 2 * MIB, c->bytes, sizeof(c->bytes), read_done, c);
    else if (p->kind == CALLER_OPEN)
        efs_lease(fs, file, open_done, c);
    else
        caller_request(n);
}

static enum efs_item_state item_state(const struct caller *c, uint32_t i)
{
    if (c->here[i])
        return EFS_ITEM_READY;
    if (c->gone[i])
        return EFS_ITEM_DROPPED;
    return c->request ? efs_request_of(c->request)->items[i].base.state : EFS_ITEM_LOADING;
}

static bool any_is(const struct caller *c, uint32_t count, enum efs_item_state state)
{
    for (uint32_t i = 0; i < count; i++)
        if (item_state(c, i) == state)
            return true;
    return false;
}

static void caller_wait(unsigned n)
{
    struct efs_client_request *request = world->callers[n].request;
    one_thread->number = CALLERS_MAX + plan_of(n)->thread;
    pthread_mutex_lock(request->lock);
    efs_client_blocks(request);
    pthread_mutex_unlock(request->lock);
}

/* The thread of this caller waits for nothing now. */
static void thread_wakes(unsigned n)
{
    for (unsigned m = 0; plan_of(n)->thread && m < world->caller_count; m++)
        if (plan_of(m)->thread == plan_of(n)->thread && world->callers[m].request)
            world->callers[m].request->blocked = EFS_BLOCKED_NONE;
}

static void caller_drop(unsigned n, uint32_t item)
{
    struct caller *c = &world->callers[n];
    thread_wakes(n);
    if (plan_of(n)->kind == CALLER_SESSION) {
        c->here[item] = false;
        c->gone[item] = true;
    }
    efs_client_drop(c->request, item);
}

static void caller_release(unsigned n)
{
    struct caller *c = &world->callers[n];
    struct efs_lease *lease = c->lease;
    struct efs_client_request *request = c->request;
    thread_wakes(n);
    c->stage = STAGE_DONE;
    c->lease = NULL;
    c->request = NULL;
    if (lease)
        efs_lease_release(lease);
    if (plan_of(n)->kind == CALLER_REQUEST)
        efs_client_release(request);
}

/* item: ITEMS_MAX: all of them. */
static void caller_cancel(unsigned n, uint32_t item)
{
    struct caller *c = &world->callers[n];
    world->cancelled = true;
    if (plan_of(n)->kind == CALLER_REQUEST && item == ITEMS_MAX) {
        caller_release(n);
        return;
    }
    if (plan_of(n)->kind == CALLER_REQUEST) {
        efs_client_drop(c->request, item);
        return;
    }
    for (uint32_t i = 0; i < plan_of(n)->count; i++)
        c->cancelled[i] |= item == i || item == ITEMS_MAX;
    efs_requests_cancel(world->fs, session_has_cancelled);
    for (uint32_t i = 0; i < plan_of(n)->count; i++)
        if (c->here[i] && c->cancelled[i])
            caller_drop(n, i);
}

static bool is_suspended(uint32_t owner)
{
    return world->threads && threads_has(world->threads, owner);
}

/* Ends callers that have nothing left to do, and forgets requests that the engine has freed. */
static void callers_settle(void)
{
    for (unsigned n = 0; n < world->caller_count; n++) {
        struct caller *c = &world->callers[n];
        const struct caller_plan *p = plan_of(n);
        if (is_suspended(n))
            continue;
        const struct heap_block *block = c->request ? heap_block_at(c->request) : NULL;
        if (c->request && (!block || block->tag >> 32 != ACTOR_CALLER + n))
            c->request = NULL;
        bool ends = (p->kind == CALLER_READ || p->kind == CALLER_OPEN)
                        ? c->ended && !c->lease
                        : p->kind == CALLER_SESSION && !c->request && !any_is(c, p->count, EFS_ITEM_LOADING) &&
                              !any_is(c, p->count, EFS_ITEM_READY);
        if (c->stage == STAGE_RUNNING && ends)
            c->stage = STAGE_DONE;
    }
}

/* ---- steps ---- */

static unsigned add(struct step steps[STEPS_MAX], unsigned count, enum step_kind kind, unsigned at, unsigned item)
{
    assert_true(count < STEPS_MAX);
    steps[count] = (struct step){(uint8_t)kind, (uint16_t)at, (uint8_t)item};
    return count + 1;
}

/* Whether the thread of this caller is in a call of another one of its callers, or waits for that one's request without
 * an end. */
static bool thread_waits(unsigned n)
{
    const unsigned thread = plan_of(n)->thread;
    for (unsigned m = 0; thread && m < world->caller_count; m++) {
        const struct caller *c = &world->callers[m];
        if (m == n || plan_of(m)->thread != thread)
            continue;
        if (is_suspended(m) || (c->stage == STAGE_RUNNING && any_is(c, plan_of(m)->count, EFS_ITEM_LOADING) &&
                                !(c->request && c->request->stuck)))
            return true;
    }
    return false;
}

static unsigned caller_steps(unsigned n, struct step steps[STEPS_MAX], unsigned count)
{
    const struct caller_plan *p = plan_of(n);
    const struct caller *c = &world->callers[n];
    if (is_suspended(n) || thread_waits(n))
        return count;
    if (c->stage == STAGE_NEW && (!p->after || world->callers[p->after - 1].stage == STAGE_DONE))
        return add(steps, count, STEP_BEGIN, n, 0);
    if (c->stage != STAGE_RUNNING)
        return count;
    if (p->waits && c->request && c->request->loading && !c->request->blocked && !c->request->stuck)
        count = add(steps, count, STEP_WAIT, n, 0);
    if (p->kind == CALLER_OPEN && c->lease)
        return add(steps, count, STEP_RELEASE, n, 0);
    if (p->kind == CALLER_READ || p->kind == CALLER_OPEN)
        return count;
    bool loading = any_is(c, p->count, EFS_ITEM_LOADING), ready = any_is(c, p->count, EFS_ITEM_READY);
    bool drops = p->one_by_one || (p->kind == CALLER_SESSION && !loading);
    if (c->oversize || (p->kind == CALLER_REQUEST && c->request->oversize && !world->plan->piecewise))
        drops = !p->keeps || c->request->own_drops == c->request->loading || c->request->stuck;
    for (uint32_t i = 0; i < p->count && drops; i++)
        if (item_state(c, i) == EFS_ITEM_READY)
            count = add(steps, count, STEP_DROP, n, i);
    if (p->kind == CALLER_REQUEST && !loading && (!p->one_by_one || !ready))
        count = add(steps, count, STEP_RELEASE, n, 0);
    if (!p->may_cancel || !loading || world->cancelled)
        return count;
    for (uint32_t i = 0; i < p->count && p->count > 1; i++)
        if (item_state(c, i) == EFS_ITEM_LOADING)
            count = add(steps, count, STEP_CANCEL, n, i);
    return add(steps, count, STEP_CANCEL, n, ITEMS_MAX);
}

/* The second read of a load or a bounce slot, which follows the first one in memory: completed with it, because the
 * first completion changes nothing. */
static unsigned read_sibling(unsigned n)
{
    for (unsigned i = 0; i < one_thread->read_count; i++)
        if (one_thread->reads[i] == one_thread->reads[n] + 1)
            return i;
    return UINT32_MAX;
}

static bool read_is_second(unsigned n)
{
    for (unsigned i = 0; i < one_thread->read_count; i++)
        if (one_thread->reads[i] + 1 == one_thread->reads[n])
            return true;
    return false;
}

unsigned world_steps(struct step steps[STEPS_MAX])
{
    unsigned count = 0;
    for (unsigned i = 0; i < one_thread->job_count; i++)
        count = add(steps, count, STEP_JOB, i, 0);
    for (unsigned i = 0; i < one_thread->read_count && !is_suspended(OWNER_IO); i++) {
        if (read_is_second(i))
            continue;
        count = add(steps, count, STEP_READ, i, 0);
        if (world->plan->fails && !world->failed && one_thread->reads[i]->bytes)
            count = add(steps, count, STEP_READ_FAILS, i, 0);
    }
    for (unsigned n = 0; n < world->caller_count; n++)
        count = caller_steps(n, steps, count);
    if (world->plan->shrink_segments && world->shrunk < 2 && !is_suspended(OWNER_BUDGET))
        count = add(steps, count, STEP_BUDGET, 0, 0);
    if (((world->plan->maps && !world->unmapped) || world->fs->full->mapped_count) && !is_suspended(OWNER_BUDGET))
        count = add(steps, count, STEP_LOOK, 0, 0);
    for (unsigned i = 0; i <= THREADS_MAX && world->threads; i++)
        if (threads_is_suspended(world->threads, i))
            count = add(steps, count, STEP_RESUME, i, 0);
    return count;
}

static void run_read(unsigned n, errint_t error)
{
    unsigned second = read_sibling(n);
    if (second != UINT32_MAX)
        one_thread_complete(second, error);
    one_thread_complete(second < n ? n - 1 : n, error);
    world->failed |= error < 0;
    one_thread->io.completed(one_thread->io.arg);
}

static void run_budget(void)
{
    uint64_t less = world->plan->shrink_segments * world->fs->arena.segment_bytes;
    world->shrunk++;
    set_budget(world->budget_bytes - (world->shrunk == 1 ? less : 0));
}

static void run_step(struct step step)
{
    heap_tag(step.kind >= STEP_BEGIN && step.kind <= STEP_WAIT ? ACTOR_CALLER + step.at : ACTOR_ENGINE);
    switch ((enum step_kind)step.kind) {
    case STEP_JOB:
        one_thread_run(step.at);
        break;
    case STEP_READ:
    case STEP_READ_FAILS:
        run_read(step.at, step.kind == STEP_READ ? 0 : -EIO);
        break;
    case STEP_BEGIN:
        caller_begin(step.at);
        break;
    case STEP_DROP:
        caller_drop(step.at, step.item);
        break;
    case STEP_RELEASE:
        caller_release(step.at);
        break;
    case STEP_CANCEL:
        caller_cancel(step.at, step.item);
        break;
    case STEP_WAIT:
        caller_wait(step.at);
        break;
    case STEP_BUDGET:
        run_budget();
        break;
    case STEP_LOOK:
        world->unmapped = true;
        efs_full_sample(world->fs, UINT32_MAX);
        break;
    case STEP_RESUME:
        break;
    }
}

static uint32_t owner_of(struct step step)
{
    return step.kind == STEP_JOB                                    ? OWNER_WORKER
           : step.kind == STEP_READ || step.kind == STEP_READ_FAILS ? OWNER_IO
           : step.kind == STEP_BUDGET || step.kind == STEP_LOOK     ? OWNER_BUDGET
                                                                    : step.at;
}

static void run_packed(uint64_t packed)
{
    run_step((struct step){(uint8_t)packed, (uint16_t)(packed >> 8), (uint8_t)(packed >> 24)});
}

void world_run(struct step step)
{
    uint64_t packed = step.kind | (uint64_t)step.at << 8 | (uint64_t)step.item << 24;
    if (step.kind == STEP_RESUME)
        threads_resume(world->threads, step.at);
    else if (world->threads)
        threads_run(world->threads, owner_of(step), state_step_name(step), run_packed, packed);
    else
        run_step(step);
    callers_settle();
}

/* The rule that efs_items_reserve() replaces, to show that the explorer finds its deadlocks. */
WRAPPED(errint_t, efs_items_reserve, (struct efs * fs, struct efs_request_item *items, uint32_t count))
{
    errint_t rc = 0;
    if (!world->plan->piecewise)
        return __real_efs_items_reserve(fs, items, count);
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        rc = items[i].waiting ? __real_efs_items_reserve(fs, &items[i], 1) : 0;
        if (rc == 0)
            efs_items_commit(fs, &items[i], 1);
    }
    return rc;
}

bool world_is_final(void)
{
    bool final = one_thread->job_count == 0 && one_thread->read_count == 0;
    for (unsigned n = 0; n < world->caller_count; n++)
        final = final && world->callers[n].stage == STAGE_DONE;
    for (unsigned i = 0; i <= THREADS_MAX && world->threads; i++)
        final = final && !threads_is_suspended(world->threads, i);
    return final;
}

/* Changes that are not reported, to show that the explorer finds each lost wake-up: see LOST_... in world.h. */
WRAPPED(void, efs_changed, (struct efs * fs, enum efs_change what))
{
    if (!world || !(world->lost & LOST_CHANGE(what)))
        __real_efs_changed(fs, what);
}

WRAPPED(unsigned, efs_account_take_changed, (struct efs_account * account))
{
    unsigned changed = __real_efs_account_take_changed(account);
    return world ? changed & ~(unsigned)(world->lost >> LOST_ACCOUNT_SHIFT) : changed;
}

WRAPPED(void, efs_arena_free, (struct efs_arena * arena, struct efs_block *block))
{
    __real_efs_arena_free(arena, block);
    arena->emptied = arena->emptied && !(world && world->lost & LOST_ARENA);
}

WRAPPED(void, efs_arena_retire, (struct efs_arena * arena, uint32_t segment))
{
    __real_efs_arena_retire(arena, segment);
    arena->emptied = arena->emptied && !(world && world->lost & LOST_ARENA);
}

bool world_waits(void)
{
    const struct efs *fs = world->fs;
    return (fs->items_waiting || efs_extents_wait(fs)) && !fs->account.bytes[EFS_ACCOUNT_RETURNING];
}

/* What waits, and how: an oversize request is reported to its caller. */
static unsigned waiting(const struct efs *fs)
{
    unsigned sum = fs->items_waiting * 2 + efs_extents_wait(fs);
    for (const struct efs_request *r = fs->leases->queue.head; r; r = r->next)
        sum += r->base.oversize ? 1024 : 0;
    return sum;
}

/* Requests whose thread is to be woken, as it waits for its own drops. */
static unsigned waiting_for_drops(const struct efs *fs)
{
    unsigned sum = 0;
    for (const struct efs_request *r = fs->leases->queue.head; r; r = r->next)
        sum += r->base.stuck || r->base.own_drops;
    return sum;
}

bool world_retry_advances(void)
{
    struct efs *fs = world->fs;
    unsigned before = waiting(fs), drops = waiting_for_drops(fs);
    efs_lock(fs);
    __real_efs_changed(fs, EFS_CHANGED_GROWN);
    fs->arena.emptied = true;
    efs_unlock(fs);
    return waiting(fs) != before || waiting_for_drops(fs) > drops;
}
