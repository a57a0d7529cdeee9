/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A demotion encodes an expert from its full form, while other threads lease the full form, copy from it, request it
 * again, need its memory, or close the store. A test stops the demotion at each of its gaps while the other thread
 * acts, and stops a copying thread while the demotion ends: the bytes must be right in each order, and all memory must
 * be released in the end.
 *
 * The linker (--wrap, see Makefile) inserts the gaps: before the first chunk of an extent is encoded, before the lock
 * is taken to publish the extent, and before the next time that the lock is taken, which after the last extent precedes
 * the release of the full form. The first one is on the thread of idle work, which may be stopped for any time. One
 * test stops the worker that has a shard for this thread, until the workers end.
 */
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include "test.h"
#include "cache.h"
#include "codec.h"
#include "cores.h"
#include "expertfs-private.h"
#include "extent.h"
#include "fixture.h"
#include "fetch.h"
#include "idle.h"
#include "sync_calls.h"

#ifdef __SANITIZE_THREAD__
#define SAMPLED true
#else
#define SAMPLED false
#endif
#define EXPERTS 4
#define MIB (1ull << 20)

static struct fixture model;
static uint8_t *raw[EXPERTS]; /* contents of the experts' files */
static uint32_t files[EXPERTS];
static size_t bytes[EXPERTS];

/* 11 MiB per expert; its coded form takes almost a segment. */
static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, 1, EXPERTS, 1920, 1024);
    struct efs *fs = fixture_open(&model, (struct efs_options){.no_state = true});
    for (uint32_t e = 0; e < EXPERTS; e++)
        raw[e] = fixture_expert(fs, e, &files[e], &bytes[e]);
    efs_close(fs);
    return 0;
}

static int teardown(void **state)
{
    for (uint32_t e = 0; e < EXPERTS; e++)
        free(raw[e]);
    return fixture_teardown(state);
}

/* ---- gaps ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned seen, at; /* seen: gaps that the demotion has reached; at: the one to stop at, from 1; 0: none */
    bool stands, go;
    bool copier_stands, copier_go;
    bool pusher; /* the worker that has a shard for the thread of idle work stops, too */
} gaps = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static _Thread_local unsigned
    publishing;                    /* 2: memory of an extent was allocated, 1: has taken the lock to publish it */
static _Atomic bool begun;         /* the encoding of an extent */
static _Atomic bool busy;          /* programs wait for a processor */
static _Atomic unsigned pauses;    /* of the thread of idle work */
static _Atomic unsigned encodings; /* by it */
static _Thread_local bool copies;  /* the next efs_unlock() of this thread, which has pinned the data to copy, stops */

static void stand(bool *stands, const bool *go)
{
    *stands = true;
    pthread_cond_broadcast(&gaps.changed);
    while (!*go)
        pthread_cond_wait(&gaps.changed, &gaps.lock);
    *stands = false;
}

static void gap(void)
{
    pthread_mutex_lock(&gaps.lock);
    if (++gaps.seen == gaps.at)
        stand(&gaps.stands, &gaps.go);
    pthread_mutex_unlock(&gaps.lock);
}

static void wait_for(const bool *stands)
{
    pthread_mutex_lock(&gaps.lock);
    while (!*stands)
        pthread_cond_wait(&gaps.changed, &gaps.lock);
    pthread_mutex_unlock(&gaps.lock);
}

static void let_go(bool *go)
{
    pthread_mutex_lock(&gaps.lock);
    *go = true;
    pthread_cond_broadcast(&gaps.changed);
    pthread_mutex_unlock(&gaps.lock);
}

errint_t __real_efs_shard_encode(enum efs_format format, enum efs_codec_choice choice, const void *from, size_t n,
                                 uint8_t *e, uint8_t *sm, struct efs_shard_coded *coded,
                                 struct efs_codec_scratch *scratch);
errint_t __wrap_efs_shard_encode(enum efs_format format, enum efs_codec_choice choice, const void *from, size_t n,
                                 uint8_t *e, uint8_t *sm, struct efs_shard_coded *coded,
                                 struct efs_codec_scratch *scratch);
uint64_t __wrap_efs_cores_pause(struct efs_cores *cores, uint64_t now_ns);
bool __real_efs_extent_alloc(struct efs *fs, uint32_t extent, unsigned components, enum efs_load_reason why);
bool __wrap_efs_extent_alloc(struct efs *fs, uint32_t extent, unsigned components, enum efs_load_reason why);
void __real_efs_idle_push(struct efs_idle *idle, struct efs_job *job);
void __wrap_efs_idle_push(struct efs_idle *idle, struct efs_job *job);
void __real_efs_workers_stop(struct efs_workers *workers);
void __wrap_efs_workers_stop(struct efs_workers *workers);
void __real_efs_lock(struct efs *fs);
void __wrap_efs_lock(struct efs *fs);
void __real_efs_unlock(struct efs *fs);
void __wrap_efs_unlock(struct efs *fs);

/* Demotions encode on the thread of idle work; the other caller of the encoder is the thread that measures it. */
static bool is_idle_thread(void)
{
    char name[16] = "";
    return pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 && strcmp(name, "efs-idle") == 0;
}

errint_t __wrap_efs_shard_encode(enum efs_format format, enum efs_codec_choice choice, const void *from, size_t n,
                                 uint8_t *e, uint8_t *sm, struct efs_shard_coded *coded,
                                 struct efs_codec_scratch *scratch)
{
    if (is_idle_thread()) {
        assert_int_equal(fixture_class, SCHED_IDLE);
        if (!begun)
            gap();
        begun = true;
        encodings++;
    }
    return __real_efs_shard_encode(format, choice, from, n, e, sm, coded, scratch);
}

/* In the library only demotions call it from another file. */
bool __wrap_efs_extent_alloc(struct efs *fs, uint32_t extent, unsigned components, enum efs_load_reason why)
{
    bool have = __real_efs_extent_alloc(fs, extent, components, why);
    publishing = have ? 2 : 0;
    begun = begun && !have;
    return have;
}

uint64_t __wrap_efs_cores_pause(struct efs_cores *cores, uint64_t now_ns)
{
    (void)cores;
    (void)now_ns;
    pauses += busy;
    return busy ? 1000000 : 0;
}

void __wrap_efs_idle_push(struct efs_idle *idle, struct efs_job *job)
{
    pthread_mutex_lock(&gaps.lock);
    if (gaps.pusher)
        stand(&gaps.stands, &gaps.go);
    pthread_mutex_unlock(&gaps.lock);
    __real_efs_idle_push(idle, job);
}

void __wrap_efs_workers_stop(struct efs_workers *workers)
{
    let_go(&gaps.go);
    __real_efs_workers_stop(workers);
}

void __wrap_efs_lock(struct efs *fs)
{
    assert_false(is_idle_thread());
    if (publishing) {
        gap();
        publishing--;
    }
    __real_efs_lock(fs);
}

void __wrap_efs_unlock(struct efs *fs)
{
    __real_efs_unlock(fs);
    if (!copies)
        return;
    copies = false;
    pthread_mutex_lock(&gaps.lock);
    stand(&gaps.copier_stands, &gaps.copier_go);
    pthread_mutex_unlock(&gaps.lock);
}

/* ---- concurrent threads ---- */

static void check_read(struct efs *fs, uint32_t expert)
{
    uint8_t *got = malloc(bytes[expert]);
    assert_int_equal(read_wait(fs, files[expert], NULL, 0, got, bytes[expert]), bytes[expert]);
    assert_memory_equal(got, raw[expert], bytes[expert]);
    free(got);
}

static void *copy(void *arg)
{
    uint8_t *got = malloc(bytes[0]);
    copies = true;
    ssize_t n = read_wait(arg, files[0], NULL, 0, got, bytes[0]);
    bool good = n == (ssize_t)bytes[0] && memcmp(got, raw[0], bytes[0]) == 0;
    free(got);
    return good ? arg : NULL;
}

static void *close_store(void *arg)
{
    efs_close(arg);
    return arg;
}

static void join(pthread_t thread, const void *result)
{
    void *got;
    pthread_join(thread, &got);
    assert_ptr_equal(got, result);
}

/* Request another expert, which needs the memory of the first one's full form. */
static struct efs_client_request *begin_other(struct efs *fs)
{
    const struct efs_need need = {1, 1};
    struct efs_client_request *r;
    struct efs_error err = {""};
    assert_int_equal(efs_request_submit(fs, &need, 1, &(struct efs_request_how){.form = EFS_FORM_FULL}, &r, &err), 0);
    return r;
}

static bool is_demoting(struct efs *fs)
{
    efs_lock(fs);
    bool is = fs->cache->expert[0].demoting;
    efs_unlock(fs);
    return is;
}

static void demotion_goes_on(struct efs *fs)
{
    let_go(&gaps.go);
    while (is_demoting(fs))
        nanosleep(&(struct timespec){0, 100000}, NULL);
}

/* ---- rounds ---- */

static unsigned full_most = 1; /* full experts for which there is memory */

static struct efs *open_store(void)
{
    static struct efs_options options = {.workers = 2, .no_state = true, .full_pool = true, .lease_wait = true};
    static uint64_t fixed;
    for (;;) { /* fixed_bytes depends on the budget, which must have room for exactly these experts */
        struct efs *fs = fixture_open(&model, options);
        struct efs_stats s;
        efs_stats(fs, &s);
        if (s.fixed_bytes == fixed && options.budget_bytes == fixed + 12 * MIB + full_most * bytes[0])
            return fs;
        efs_close(fs);
        fixed = s.fixed_bytes;
        options.budget_bytes = fixed + 12 * MIB + full_most * bytes[0];
    }
}

struct round {
    struct efs *fs;
    void *mapped;                    /* mapping of the first expert's file; NULL: the expert was exported as a window */
    struct efs_client_request *held; /* full_most 2: the second expert */
};

/* Releases the last lease of the first expert. Its demotion starts and stops at the gap. */
static struct round begin_round(unsigned at, bool window)
{
    struct round r = {.fs = open_store()};
    struct efs_lease *lease;
    struct efs_window given;
    fixture_set_and_plan(r.fs, "plan", "F=100");
    for (unsigned turn = 0; turn < 2; turn++) {
        assert_int_equal(lease_wait(r.fs, files[0], &lease), 0);
        if (turn == 0)
            efs_lease_release(lease);
    }
    if (!window || efs_lease_window(lease, false, &given) < 0) { /* no window without tmpfs */
        int fd = efs_lease_fd(lease);
        assert_true(fd >= 0);
        r.mapped = mmap(NULL, bytes[0], PROT_READ, MAP_SHARED, fd, 0);
        assert_ptr_not_equal(r.mapped, MAP_FAILED);
    }
    for (uint32_t e = 1; e < EXPERTS; e++) /* evicts the first expert's chunks */
        check_read(r.fs, e);
    gaps.at = at;
    gaps.seen = 0;
    gaps.go = gaps.copier_go = begun = false;
    if (full_most == 2) {
        r.held = begin_other(r.fs);
        assert_int_equal(efs_client_wait(r.held), 0);
    }
    fixture_set_and_plan(r.fs, "plan", "C=100");
    efs_lease_release(lease);
    if (at)
        wait_for(&gaps.stands);
    return r;
}

static void end_round(struct round *r)
{
    if (r->mapped) { /* a client's mapping of a file stays valid */
        assert_memory_equal(r->mapped, raw[0], bytes[0]);
        munmap(r->mapped, bytes[0]);
    }
    if (!r->fs)
        return;
    for (uint32_t e = 0; e < EXPERTS; e++)
        check_read(r->fs, e);
    struct efs_stats s = fixture_drain(r->fs);
    assert_int_equal(s.leased_experts + s.coded_experts + s.chunks_damaged + s.read_errors, 0);
    assert_true(s.fixed_bytes + s.chunk_pool_bytes + s.full_pool_bytes <= s.budget_bytes);
    efs_close(r->fs);
}

static void end_other(struct efs_client_request *other)
{
    assert_int_equal(efs_client_wait(other), 0);
    efs_client_release(other);
}

static void memory_is_wanted(struct round *r)
{
    struct efs_client_request *other = begin_other(r->fs);
    let_go(&gaps.go);
    end_other(other);
}

static struct efs_lease *lease_again(struct round *r)
{
    struct efs_lease *lease;
    assert_int_equal(lease_wait(r->fs, files[0], &lease), 0);
    assert_memory_equal(lease_data(lease), raw[0], bytes[0]);
    return lease;
}

static void lease_ends_first(struct round *r)
{
    struct efs_lease *lease = lease_again(r);
    struct efs_client_request *other = begin_other(r->fs);
    efs_lease_release(lease);
    let_go(&gaps.go);
    end_other(other);
}

static void lease_ends_last(struct round *r)
{
    struct efs_lease *lease = lease_again(r);
    struct efs_client_request *other = begin_other(r->fs);
    demotion_goes_on(r->fs);
    assert_memory_equal(lease_data(lease), raw[0], bytes[0]);
    efs_lease_release(lease);
    end_other(other);
}

static void copier_ends_first(struct round *r)
{
    pthread_t copier;
    assert_int_equal(pthread_create(&copier, NULL, copy, r->fs), 0);
    wait_for(&gaps.copier_stands);
    struct efs_client_request *other = begin_other(r->fs);
    let_go(&gaps.copier_go);
    join(copier, r->fs);
    let_go(&gaps.go);
    end_other(other);
}

static void copier_ends_last(struct round *r)
{
    pthread_t copier;
    assert_int_equal(pthread_create(&copier, NULL, copy, r->fs), 0);
    wait_for(&gaps.copier_stands);
    demotion_goes_on(r->fs);
    struct efs_client_request *other = begin_other(r->fs);
    let_go(&gaps.copier_go);
    join(copier, r->fs);
    end_other(other);
}

static void store_closes(struct round *r)
{
    pthread_t closer;
    struct efs *fs = r->fs;
    assert_int_equal(pthread_create(&closer, NULL, close_store, fs), 0);
    let_go(&gaps.go);
    join(closer, fs);
    r->fs = NULL;
}

/* No request needs the memory: the demotion encodes the whole expert, and the engine reads nothing from disk. */
static unsigned count_gaps(void)
{
    struct efs_stats before, after;
    struct round r = begin_round(0, false);
    efs_stats(r.fs, &before);
    while (is_demoting(r.fs))
        nanosleep(&(struct timespec){0, 100000}, NULL);
    do
        efs_stats(r.fs, &after);
    while (after.inflight);
    struct efs_expert_info info;
    assert_int_equal(efs_expert_info(r.fs, efs_id(0), &info), 0);
    assert_true(after.recoded_bytes >= info.coded_bytes);
    assert_int_equal(after.disk_reads, before.disk_reads);
    end_round(&r);
    return gaps.seen;
}

/* The gaps of the first, the second and the last extent, alternating between file and window. Under TSan, which takes
 * 20 times as long, each test takes one gap of each extent and each kind, and every gap is part of two tests.
 * EXPERTFS_LONG runs all. */
static void each_gap(void (*what)(struct round *))
{
    static unsigned count, tests;
    if (count == 0)
        count = count_gaps();
    assert_true(count > 9 && count % 3 == 0);
    tests++;
    for (unsigned n = 0; n < 9; n++) {
        unsigned at = 1 + (n < 6 ? n : count - 9 + n);
        if (SAMPLED && !getenv("EXPERTFS_LONG") && (n / 3 + n + tests) % 3 != 0)
            continue;
        struct round r = begin_round(at, at % 2);
        what(&r);
        end_round(&r);
    }
}

/* The thread that encodes stands still, as on a machine whose programs use all processors: a request that needs the
 * memory, a reader of what is being made, and the end of the store do not wait for it. */
TEST(test_nothing_waits_for_the_encoder)
{
    struct efs_stats before, after;
    for (unsigned window = 0; window < 2; window++) {
        struct round r = begin_round(1, window);
        end_other(begin_other(r.fs));
        assert_false(is_demoting(r.fs));
        efs_stats(r.fs, &before);
        check_read(r.fs, 0);
        efs_stats(r.fs, &after);
        assert_int_equal(after.recoded_bytes, 0);
        assert_true(after.disk_bytes > before.disk_bytes);
        let_go(&gaps.go);
        end_round(&r);
    }
}

/* The same for coded experts, for which the chunk pool has to grow, while the program holds another full one. */
TEST(test_nothing_held_waits_for_the_encoder)
{
    full_most = 2;
    struct round r = begin_round(1, false);
    assert_true(is_demoting(r.fs));
    const struct efs_need needs[] = {{2, 1}, {3, 1}};
    struct efs_client_request *more;
    struct efs_error err = {""};
    assert_int_equal(efs_request_submit(r.fs, needs, 2, &(struct efs_request_how){.form = EFS_FORM_CODED}, &more, &err),
                     0);
    assert_int_equal(efs_client_wait(more), 0);
    assert_false(is_demoting(r.fs));
    efs_client_release(more);
    end_other(r.held);
    let_go(&gaps.go);
    end_round(&r);
    full_most = 1;
}

/* The store closes after a worker has decided to pass on a shard, and before it does. */
TEST(test_closes_before_a_shard_is_passed_on)
{
    gaps.pusher = true;
    struct round r = begin_round(0, false);
    wait_for(&gaps.stands);
    efs_close(r.fs); /* lets the worker go when it stops the workers */
    gaps.pusher = false;
    r.fs = NULL;
    end_round(&r);
}

/* While programs wait for a processor nothing is encoded, and what needs the memory gets it; afterwards the demotion
 * continues. */
TEST(test_busy)
{
    struct efs_stats s;
    busy = true;
    encodings = pauses = 0;
    struct round r = begin_round(0, false);
    while (pauses < 3)
        nanosleep(&(struct timespec){0, 100000}, NULL);
    assert_true(is_demoting(r.fs));
    end_other(begin_other(r.fs));
    assert_false(is_demoting(r.fs));
    efs_stats(r.fs, &s);
    assert_int_equal(encodings + s.recoded_bytes, 0);
    busy = false;
    end_round(&r);
    busy = true;
    r = begin_round(0, false);
    pauses = 0;
    while (pauses < 3)
        nanosleep(&(struct timespec){0, 100000}, NULL);
    busy = false;
    while (is_demoting(r.fs))
        nanosleep(&(struct timespec){0, 100000}, NULL);
    efs_stats(r.fs, &s);
    assert_true(s.recoded_bytes > 0);
    end_round(&r);
}

#define AT_EACH_GAP(what)                                                                                              \
    TEST(test_##what)                                                                                                  \
    {                                                                                                                  \
        each_gap(what);                                                                                                \
    }
AT_EACH_GAP(memory_is_wanted)
AT_EACH_GAP(lease_ends_first)
AT_EACH_GAP(lease_ends_last)
AT_EACH_GAP(copier_ends_first)
AT_EACH_GAP(copier_ends_last)
AT_EACH_GAP(store_closes)

TEST_MAIN(setup, teardown)
