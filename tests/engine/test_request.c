/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: experts of a layer, requested at once, are returned full or coded, byte for byte; pins stay; repeated
 * requests do not accumulate; a wait without room fails; memory in use stays within the budget.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "test.h"
#include "codec.h"
#include "fixture.h"
#include "expertfs-pack.h"
#include "expertfs-private.h"
#include "sync_calls.h"

#define LAYERS 3
#define EXPERTS 8
#define MIB (1ull << 20)

static struct fixture model;

static int setup(void **state)
{
    *state = &model;
    fixture_store(&model, LAYERS, EXPERTS, 512, 1024);
    return 0;
}

static struct efs *open_with(struct efs_options options)
{
    options.workers = 2;
    options.no_state = true;
    return fixture_open(&model, options);
}

/* The expert's whole file; the caller frees it. */
static uint8_t *whole_file(struct efs *fs, uint32_t expert, size_t *bytes)
{
    uint32_t file;
    return fixture_expert(fs, expert, &file, bytes);
}

/* All experts of a layer. */
static void layer_needs(uint32_t layer, struct efs_need needs[EXPERTS])
{
    for (uint32_t i = 0; i < EXPERTS; i++)
        needs[i] = (struct efs_need){layer * EXPERTS + i, 1};
}

/* Decodes a tensor; the caller frees the result. */
static uint8_t *decoded(const struct efs_tensor *t, struct efs_codec_scratch *scratch)
{
    uint8_t *raw = malloc(t->bytes), *at = raw;
    enum efs_format format = efs_object_format(t->dtype, EFS_CHOOSE_AUTO);
    for (uint32_t i = 0; i < t->shard_count; i++) {
        const struct efs_coded_shard *s = &t->shards[i];
        struct efs_shard_view v = {format, s->codec, s->elements, s->e, s->sm, s->e_bytes, s->sm_bytes};
        assert_int_equal(efs_shard_decode(&v, 0, s->elements, at, false, scratch), 0);
        at += s->elements * efs_format_bytes(format);
    }
    assert_int_equal(at - raw, t->bytes);
    return raw;
}

static void check_item(struct efs *fs, struct efs_client_request *r, uint32_t index, uint32_t expert,
                       enum efs_form form, struct efs_codec_scratch *scratch)
{
    const struct efs_tensor *tensors;
    uint32_t count;
    size_t bytes;
    uint8_t *file = whole_file(fs, expert, &bytes);
    assert_int_equal(efs_client_tensors(r, index, &tensors, &count), 0);
    assert_int_equal(count, 3);
    size_t at = bytes;
    for (uint32_t i = 0; i < count; i++)
        at -= tensors[i].bytes; /* the data is at the end of the file */
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(tensors[i].dtype, EFS_DTYPE_BF16);
        assert_int_equal(tensors[i].dims, 2);
        assert_int_equal(tensors[i].shape[0] * tensors[i].shape[1] * 2, tensors[i].bytes);
        assert_non_null(strstr(tensors[i].name, "experts."));
        if (form == EFS_FORM_FULL) {
            assert_memory_equal(tensors[i].data, file + at, tensors[i].bytes);
        } else {
            uint8_t *raw = decoded(&tensors[i], scratch);
            assert_memory_equal(raw, file + at, tensors[i].bytes);
            free(raw);
        }
        at += tensors[i].bytes;
    }
    free(file);
}

/* Each expert is reported once, in any form, also if they do not all fit at once. */
static void ask_layers(struct efs *fs, enum efs_form form, unsigned rounds)
{
    struct efs_codec_scratch *scratch;
    assert_int_equal(efs_codec_scratch_new(1u << 20, &scratch), 0);
    for (unsigned n = 0; n < rounds; n++) {
        uint32_t layer = n % LAYERS, count = 1 + n % 5;
        struct efs_need needs[EXPERTS];
        for (uint32_t i = 0; i < count; i++)
            needs[i] = (struct efs_need){layer * EXPERTS + (n + i * (n % 2 ? 1 : 3)) % EXPERTS, 1 + i};
        struct efs_client_request *r = fixture_submit(fs, needs, count, form);
        uint32_t index, told = 0;
        errint_t status;
        int rc;
        while ((rc = efs_client_wait_any(r, -1, &index, &status)) != 0) {
            assert_int_equal(rc, 1);
            assert_int_equal(status, 0);
            check_item(fs, r, index, needs[index].expert, form, scratch);
            told++;
            if (n % 3 == 0)
                efs_client_drop(r, index);
        }
        assert_int_equal(told, count);
        efs_client_release(r);
    }
    efs_codec_scratch_free(scratch);
    fixture_within_budget(fs);
}

TEST(test_full)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 256 * MIB, .full_pool = true});
    ask_layers(fs, EFS_FORM_FULL, 40);
    efs_close(fs);
    fs = open_with((struct efs_options){.budget_bytes = 72 * MIB, .full_pool = true, .lease_wait = true});
    ask_layers(fs, EFS_FORM_FULL, 40);
    efs_close(fs);
}

/* Takes all experts, and drops each before the next one. */
static void one_by_one(struct efs_client_request *r)
{
    uint32_t index, told = 0;
    errint_t status;
    while (efs_client_wait_any(r, -1, &index, &status) == 1 && status == 0) {
        told++;
        efs_client_drop(r, index);
    }
    assert_int_equal(told, EXPERTS);
}

TEST(test_coded)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 256 * MIB});
    ask_layers(fs, EFS_FORM_CODED, 40);
    efs_close(fs);
    fs = open_with((struct efs_options){.budget_bytes = 40 * MIB}); /* one or two segments: experts take turns */
    struct efs_need needs[EXPERTS];
    layer_needs(0, needs);
    struct efs_client_request *r = fixture_submit(fs, needs, EXPERTS, EFS_FORM_CODED);
    one_by_one(r);
    efs_client_release(r);
    fixture_within_budget(fs);
    efs_close(fs);
}

TEST(test_refused)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 128 * MIB});
    struct efs_error err = {""};
    struct efs_client_request *r;
    const struct efs_need twice[] = {{1, 1}, {1, 1}}, layers[] = {{1, 1}, {EXPERTS, 1}}, none[] = {{1, 0}},
                          beyond[] = {{LAYERS * EXPERTS, 1}}, one[] = {{1, 1}};
    const struct {
        const struct efs_need *needs;
        uint32_t count;
        enum efs_form form;
    } bad[] = {{twice, 2, EFS_FORM_CODED},  {layers, 2, EFS_FORM_CODED}, {none, 1, EFS_FORM_CODED},
               {beyond, 1, EFS_FORM_CODED}, {one, 0, EFS_FORM_CODED},    {one, 1, EFS_FORM_FULL}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        err.text[0] = '\0';
        assert_int_equal(efs_request_submit(fs, bad[i].needs, bad[i].count,
                                            &(struct efs_request_how){.form = bad[i].form}, &r, &err),
                         -EINVAL);
        assert_null(r);
        assert_true(err.text[0]);
    }
    struct efs_stats s;
    efs_stats(fs, &s);
    assert_int_equal(s.requests_m + s.requests_c + s.requests_f, 0);
    struct efs_need need = {.expert = 3};
    assert_int_equal(efs_experts_find(fs, "", 1, &need, 1, NULL), 0);
    assert_int_equal(need.expert, EXPERTS + 3);
    need.expert = 0;
    assert_int_equal(efs_experts_find(fs, "", LAYERS, &need, 1, NULL), -ENOENT);
    assert_int_equal(efs_experts_find(fs, "decoder", 0, &need, 1, NULL), -ENOENT);
    efs_close(fs);
}

/* A lease finds the expert that a prefetch request has loaded, and this counts as one use. */
TEST(test_want)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 256 * MIB, .full_pool = true});
    struct efs_error err = {""};
    struct efs_stats s;
    static const struct efs_need named[] = {{2, 3}, {5, 1}};
    assert_int_equal(fixture_prefetch(fs, 1, named, 2, &err), 0);
    fixture_within_budget(fs);
    const struct efs_expert_info e = fixture_expert_info(fs, EXPERTS + 5);
    assert_int_equal(e.state, 'F');
    fixture_lease_once(fs, e.file);
    efs_stats(fs, &s);
    assert_int_equal(s.requests_m, 2);
    assert_int_equal(s.requests_f, 0);
    assert_int_equal(s.leases_f, 1);
    char *text;
    size_t bytes;
    assert_int_equal(efs_describe(fs, "sched", &text, &bytes), 0);
    assert_non_null(strstr(text, "decode   L01/E005"));
    free(text);
    efs_close(fs);
}

TEST(test_many_extents)
{
    struct fixture large;
    struct efs_codec_scratch *scratch;
    struct efs_need needs[] = {{2, 1}, {0, 4}};
    fixture_store(&large, 1, 3, 1536, 1024); /* 3 MiB per tensor, 1 MiB per extent */
    assert_int_equal(efs_codec_scratch_new(1u << 20, &scratch), 0);
    for (unsigned n = 0; n < 2; n++) {
        enum efs_form form = n == 0 ? EFS_FORM_FULL : EFS_FORM_CODED;
        struct efs *fs = fixture_open(
            &large, (struct efs_options){.workers = 2, .no_state = true, .full_pool = true, .budget_bytes = 128 * MIB});
        struct efs_client_request *r = fixture_submit(fs, needs, 2, form);
        assert_int_equal(efs_client_wait(r), 0);
        for (uint32_t i = 0; i < 2; i++)
            check_item(fs, r, i, needs[i].expert, form, scratch);
        efs_client_release(r);
        fixture_within_budget(fs);
        efs_close(fs);
    }
    efs_codec_scratch_free(scratch);
    fixture_end(&large);
}

/* A pin stays during other requests. */
TEST(test_pins)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 96 * MIB, .full_pool = true, .plan = "C=40,F=20"});
    struct efs_error err = {""};
    assert_int_equal(efs_pin(fs, efs_id(3), false, 'C', &err), 0);
    assert_int_equal(efs_pin(fs, efs_id(3), false, 'X', &err), -EINVAL);
    assert_int_equal(efs_pin(fs, efs_id(LAYERS * EXPERTS), false, 'C', &err), -ENOENT);
    ask_layers(fs, EFS_FORM_FULL, 60);
    const struct efs_expert_info info = fixture_expert_info(fs, 3);
    assert_int_equal(info.pin, 'C');
    assert_true(info.kept == 'C' || info.kept == 'F');
    efs_close(fs);
}

/* Requests without a waiter, repeated for experts that have no room, queue each expert once per form. */
TEST(test_named_again)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 64 * MIB, .full_pool = true, .lease_wait = true});
    struct efs_client_request *held[LAYERS];
    struct efs_need needs[LAYERS][EXPERTS], named[EXPERTS];
    struct efs_error err = {""};
    struct efs_stats before, after;
    layer_needs(0, named);
    for (uint32_t l = 0; l < LAYERS; l++) {
        layer_needs(l, needs[l]);
        held[l] = fixture_submit(fs, needs[l], EXPERTS, EFS_FORM_CODED);
    }
    assert_int_equal(efs_client_wait(held[0]), 0);
    efs_stats(fs, &before);
    assert_true(before.coded_waits > 0);
    for (unsigned n = 0; n < 1000; n++)
        assert_int_equal(fixture_prefetch(fs, LAYERS - 1, named, EXPERTS, &err), 0);
    efs_stats(fs, &after);
    assert_true(after.inflight <= before.inflight + 100); /* the experts and their reads, not 8,000 */
    for (uint32_t l = 0; l < LAYERS; l++)
        efs_client_release(held[l]);
    fixture_within_budget(fs);
    ask_layers(fs, EFS_FORM_CODED, 6);
    ask_layers(fs, EFS_FORM_FULL, 6);
    fixture_within_budget(fs);
    efs_stats(fs, &after);
    assert_int_equal(after.coded_experts, 0);
    assert_int_equal(after.leased_experts, 0);
    efs_close(fs);
}

#define WIDE_EXPERTS 96u /* more than are dropped in one critical section */

/* Items of a request that wait for memory are cancelled before those that hold memory are released: nothing is read
 * after the release. */
TEST(test_release_waiting)
{
    struct fixture wide;
    struct efs_need needs[WIDE_EXPERTS];
    uint32_t index;
    errint_t status;
    fixture_store(&wide, 1, WIDE_EXPERTS, 256, 256);
    struct efs *fs =
        fixture_open(&wide, (struct efs_options){.workers = 2, .no_state = true, .budget_bytes = 32 * MIB});
    for (uint32_t i = 0; i < WIDE_EXPERTS; i++)
        needs[i] = (struct efs_need){i, 1};
    struct efs_client_request *request = fixture_submit(fs, needs, WIDE_EXPERTS, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(request), -EDEADLK);
    struct efs_stats before, after;
    uint32_t came = 0;
    do {
        assert_int_equal(efs_client_wait_any(request, -1, &index, &status), 1);
        assert_int_equal(status, 0);
        efs_stats(fs, &before);
    } while (++came < before.coded_experts);
    assert_in_range(came, 1, WIDE_EXPERTS - 1);
    efs_client_release(request);
    after = fixture_drain(fs);
    assert_int_equal(after.coded_m + after.coded_c, before.coded_m + before.coded_c);
    assert_int_equal(after.coded_errors - before.coded_errors, WIDE_EXPERTS - before.coded_experts);
    assert_int_equal(after.coded_experts, 0);
    efs_close(fs);
    fixture_end(&wide);
}

struct handed {
    sem_t *came;
    struct efs_client_request *request;
    uint32_t index;
};

static void has_arrived(void *arg, errint_t error, struct efs_client_request *request, uint32_t index)
{
    struct handed *h = arg;
    assert_int_equal(error, 0);
    h->request = request;
    h->index = index;
    sem_post(h->came);
}

struct asked {
    sem_t *came;
    struct efs_client_request *_Atomic request; /* set last */
    uint32_t index;
    errint_t error;
    bool dropped;
};

static void asked_arrived(void *arg, errint_t error, struct efs_client_request *request, uint32_t index)
{
    struct asked *a = arg;
    a->error = error;
    a->index = index;
    a->request = request;
    sem_post(a->came);
}

static void ask_as(struct efs *fs, struct efs_holder *holder, uint32_t layer, uint32_t count,
                   struct asked asked[EXPERTS], sem_t *came)
{
    struct efs_need needs[EXPERTS];
    struct efs_client_request *none;
    struct efs_error err = {""};
    void *args[EXPERTS];
    layer_needs(layer, needs);
    for (uint32_t i = 0; i < count; i++) {
        asked[i] = (struct asked){.came = came};
        args[i] = &asked[i];
    }
    const struct efs_request_how how = {
        .form = EFS_FORM_CODED, .arrived = asked_arrived, .args = args, .holder = holder};
    assert_int_equal(efs_request_submit(fs, needs, count, &how, &none, &err), 0);
}

static bool is_any(const void *arg)
{
    return arg != NULL;
}

/* A request that waits for memory of another program can be refused: its experts get -EDEADLK, and are not read. One
 * that was admitted in part cannot: it waits for its own caller. */
TEST(test_refused_while_held)
{
    enum { WAITING = 4 };
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 40 * MIB});
    struct efs_holder *holder[] = {efs_holder_new(), efs_holder_new()};
    struct asked large[EXPERTS], other[EXPERTS];
    sem_t came, refused;
    sem_init(&came, 0, 0);
    sem_init(&refused, 0, 0);
    ask_as(fs, holder[0], 0, EXPERTS, large, &came); /* too large: admitted expert by expert */
    sem_wait(&came);
    ask_as(fs, holder[1], 1, WAITING, other, &refused);
    assert_int_equal(efs_requests_refuse(fs, is_any), WAITING);
    for (uint32_t i = 0; i < WAITING; i++)
        sem_wait(&refused);
    for (uint32_t i = 0; i < WAITING; i++)
        assert_int_equal(other[i].error, -EDEADLK);
    assert_int_equal(efs_requests_refuse(fs, is_any), 0);
    for (uint32_t dropped = 0; dropped < EXPERTS; dropped++) { /* one has come that was not dropped yet */
        uint32_t i = 0;
        while (!large[i].request || large[i].dropped)
            i++;
        large[i].dropped = true;
        assert_int_equal(large[i].error, 0);
        efs_client_drop(large[i].request, large[i].index);
        if (dropped + 1 < EXPERTS)
            sem_wait(&came);
    }
    const struct efs_stats stats = fixture_drain(fs);
    assert_int_equal(stats.coded_m + stats.coded_c, EXPERTS);
    assert_int_equal(stats.coded_errors, WAITING);
    assert_int_equal(stats.coded_experts, 0);
    efs_close(fs);
    for (uint32_t n = 0; n < 2; n++)
        efs_holder_unref(holder[n]);
    sem_destroy(&came);
    sem_destroy(&refused);
}

static void *wait_for_all(void *request)
{
    return (void *)(intptr_t)efs_client_wait(request);
}

/* A wait for all experts of a request fails with -EDEADLK if they have no room at once; the caller can take and drop
 * them one by one. A wait for room that another request holds goes on. */
TEST(test_deadlock)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 40 * MIB, .full_pool = true, .lease_wait = true});
    for (enum efs_form form = EFS_FORM_FULL; form <= EFS_FORM_CODED; form++) {
        struct efs_need needs[LAYERS][EXPERTS];
        uint32_t index;
        errint_t status;
        pthread_t thread;
        void *rc;
        for (uint32_t l = 0; l < LAYERS; l++)
            layer_needs(l, needs[l]);
        struct efs_client_request *r = fixture_submit(fs, needs[0], EXPERTS, form);
        assert_int_equal(efs_client_wait(r), -EDEADLK);
        assert_int_equal(efs_client_wait(r), -EDEADLK);
        one_by_one(r);
        assert_int_equal(efs_client_wait(r), 0);
        efs_client_release(r);
        r = fixture_submit(fs, needs[0], EXPERTS, form);
        assert_int_equal(efs_client_wait(r), -EDEADLK);
        for (uint32_t i = 2; i < EXPERTS; i++)
            efs_client_drop(r, i);
        assert_int_equal(efs_client_wait(r), 0); /* the rest fits */
        efs_client_release(r);
        r = fixture_submit(fs, needs[1], EXPERTS, form);
        assert_int_equal(efs_client_wait(r), -EDEADLK);
        while (efs_client_wait_any(r, 500, &index, &status) == 1) /* until it holds all that fit */
            assert_int_equal(status, 0);
        struct efs_client_request *other = fixture_submit(fs, needs[2], 1, form);
        assert_int_equal(pthread_create(&thread, NULL, wait_for_all, other), 0);
        assert_int_equal(efs_client_wait_any(other, 500, &index, &status), -ETIMEDOUT);
        efs_client_release(r);
        pthread_join(thread, &rc);
        assert_int_equal((intptr_t)rc, 0);
        efs_client_release(other);
    }
    fixture_within_budget(fs);
    efs_close(fs);
}

struct begun {
    struct efs *fs;
    const struct efs_need *needs;
    uint32_t count;
    struct efs_client_request *request;
};

static void *begin(void *arg)
{
    struct begun *b = arg;
    b->request = fixture_submit(b->fs, b->needs, b->count, EFS_FORM_CODED);
    return NULL;
}

/* A request of another program: a thread that has ended. */
static struct efs_client_request *begun_elsewhere(struct efs *fs, const struct efs_need *needs, uint32_t count)
{
    struct begun b = {.fs = fs, .needs = needs, .count = count};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, begin, &b), 0);
    pthread_join(thread, NULL);
    return b.request;
}

/* A request of another program for coded experts of a layer, of which all that fit have come: *came of them. */
static struct efs_client_request *take_what_fits(struct efs *fs, uint32_t layer, uint32_t count, uint32_t *came)
{
    struct efs_need needs[EXPERTS];
    uint32_t index;
    errint_t status;
    layer_needs(layer, needs);
    struct efs_client_request *r = begun_elsewhere(fs, needs, count);
    for (*came = 0; *came < count && efs_client_wait_any(r, 500, &index, &status) == 1; ++*came)
        assert_int_equal(status, 0);
    return r;
}

/* Opens a store with room for *fit coded experts, which are fewer than a layer has. */
static struct efs *open_small(uint32_t *fit)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 40 * MIB});
    efs_client_release(take_what_fits(fs, 0, EXPERTS, fit));
    assert_in_range(*fit, 3, EXPERTS - 2);
    return fs;
}

/* An oversize request whose caller keeps an expert gets the next one before requests that came after it. */
TEST(test_not_overtaken)
{
    uint32_t fit, came, index;
    errint_t status;
    struct efs *fs = open_small(&fit);
    struct efs_client_request *first = take_what_fits(fs, 0, fit - 1, &came);
    struct efs_client_request *oversize = take_what_fits(fs, 1, EXPERTS, &came);
    assert_int_equal(came, 1);
    struct efs_client_request *later = take_what_fits(fs, 2, 1, &came);
    assert_int_equal(came, 0);
    efs_client_drop(first, 0);
    assert_int_equal(efs_client_wait_any(oversize, 10000, &index, &status), 1);
    assert_int_equal(status, 0);
    assert_int_equal(efs_client_wait_any(later, 0, &index, &status), -ETIMEDOUT);
    efs_client_drop(oversize, 0); /* its next one now comes after requests that wait already */
    assert_int_equal(efs_client_wait(later), 0);
    efs_client_release(first);
    efs_client_release(oversize);
    efs_client_release(later);
    fixture_within_budget(fs);
    efs_close(fs);
}

/* Only its own caller can free memory for the next expert of a request that holds all that fit: other requests do not
 * wait for it. */
TEST(test_holds_up_nobody)
{
    uint32_t fit, came, index;
    errint_t status;
    struct efs *fs = open_small(&fit);
    struct efs_client_request *oversize = take_what_fits(fs, 0, EXPERTS, &came);
    assert_int_equal(came, fit);
    struct efs_client_request *later = take_what_fits(fs, 1, 1, &came);
    assert_int_equal(came, 0);
    efs_client_drop(oversize, 0);
    assert_int_equal(efs_client_wait(later), 0);
    struct efs_client_request *last = take_what_fits(fs, 2, 1, &came);
    assert_int_equal(came, 0);
    efs_client_release(later);
    assert_int_equal(efs_client_wait_any(oversize, 10000, &index, &status), 1); /* was in the queue before the last */
    assert_int_equal(efs_client_wait_any(last, 0, &index, &status), -ETIMEDOUT);
    efs_client_release(oversize);
    assert_int_equal(efs_client_wait(last), 0);
    efs_client_release(last);
    fixture_within_budget(fs);
    efs_close(fs);
}

static void drop_all(struct asked *asked, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(asked[i].error, 0);
        efs_client_drop(asked[i].request, asked[i].index);
    }
}

/* Programs that pin the same experts in turns, so that they stay pinned, pass the first request that waits for that
 * memory a bounded number of times. */
TEST(test_passed_a_bounded_number_of_times)
{
    enum { ROUNDS = 200, PASSES_MOST = 64 };
    uint32_t fit, passes = 0;
    struct efs *fs = open_small(&fit);
    struct efs_holder *holder[] = {efs_holder_new(), efs_holder_new(), efs_holder_new()};
    struct asked asked[2][EXPERTS], first[EXPERTS];
    sem_t came[2], first_came;
    for (uint32_t n = 0; n < 2; n++)
        sem_init(&came[n], 0, 0);
    sem_init(&first_came, 0, 0);
    ask_as(fs, holder[0], 0, --fit, asked[0], &came[0]);
    for (uint32_t i = 0; i < fit; i++)
        sem_wait(&came[0]);
    ask_as(fs, holder[2], 1, fit, first, &first_came);
    for (; passes < ROUNDS; passes++) {
        uint32_t before = passes % 2, now = 1 - before;
        ask_as(fs, holder[now], 0, fit, asked[now], &came[now]);
        bool passed = asked[now][fit - 1].request; /* experts in memory are answered in the call */
        drop_all(asked[before], fit);
        if (!passed)
            break;
        for (uint32_t i = 0; i < fit; i++)
            sem_wait(&came[now]);
    }
    assert_in_range(passes, 1, PASSES_MOST);
    for (uint32_t i = 0; i < fit; i++)
        sem_wait(&first_came);
    drop_all(first, fit);
    const uint32_t last = 1 - passes % 2; /* its turn */
    for (uint32_t i = 0; i < fit; i++)
        sem_wait(&came[last]);
    drop_all(asked[last], fit);
    fixture_within_budget(fs);
    efs_close(fs);
    for (uint32_t n = 0; n < 3; n++)
        efs_holder_unref(holder[n]);
    for (uint32_t n = 0; n < 2; n++)
        sem_destroy(&came[n]);
    sem_destroy(&first_came);
}

/* The same for opens of files, which take memory: then they get no lease. */
TEST(test_opens_pass_a_bounded_number_of_times)
{
    enum { PASSES_MOST = 64 };
    struct fixture wide;
    struct efs_need needs[WIDE_EXPERTS];
    struct efs_stats stats;
    uint32_t index, fit = 0, leased = 0;
    errint_t status, rc;
    fixture_store(&wide, 1, WIDE_EXPERTS, 256, 256);
    struct efs *fs = fixture_open(
        &wide, (struct efs_options){
                   .workers = 2, .no_state = true, .full_pool = true, .budget_bytes = 64 * MIB, .plan = "C=20"});
    for (uint32_t i = 0; i < WIDE_EXPERTS; i++)
        needs[i] = (struct efs_need){i, 1};
    struct efs_client_request *all = fixture_submit(fs, needs, WIDE_EXPERTS, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(all), -EDEADLK);
    do {
        assert_int_equal(efs_client_wait_any(all, -1, &index, &status), 1);
        efs_stats(fs, &stats);
    } while (++fit < stats.coded_experts);
    efs_client_release(all);
    fixture_drain(fs);
    struct efs_client_request *held = fixture_submit(fs, needs, fit / 2, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(held), 0);
    struct efs_client_request *first = begun_elsewhere(fs, needs + fit / 2, fit);
    for (uint32_t i = 0; i < WIDE_EXPERTS; i++) {
        struct efs_lease *lease;
        rc = lease_wait(fs, fixture_expert_info(fs, i).file, &lease);
        assert_int_equal(rc, leased < PASSES_MOST ? 0 : -ENOMEM);
        leased += rc == 0;
        if (rc == 0)
            efs_lease_release(lease);
    }
    assert_int_equal(leased, PASSES_MOST);
    efs_client_release(held);
    assert_int_equal(efs_client_wait(first), 0);
    efs_client_release(first);
    fixture_lease_once(fs, fixture_expert_info(fs, WIDE_EXPERTS - 1).file);
    fixture_within_budget(fs);
    efs_close(fs);
    fixture_end(&wide);
}

/* A wait for memory that other requests of the thread hold ends with -EDEADLK; one of another thread for the same
 * request goes on. Experts that both requests have count once. */
TEST(test_waits_for_itself)
{
    uint32_t fit, index;
    errint_t status;
    pthread_t thread;
    void *rc;
    struct efs *fs = open_small(&fit);
    struct efs_need needs[2][EXPERTS];
    layer_needs(0, needs[0]);
    layer_needs(1, needs[1]);
    struct efs_client_request *held = fixture_submit(fs, needs[0], fit - 1, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(held), 0);
    struct efs_client_request *more = fixture_submit(fs, needs[0], fit, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(more), 0);
    efs_client_release(more);
    struct efs_client_request *next = fixture_submit(fs, needs[1], fit - 1, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(next), -EDEADLK);
    assert_int_equal(efs_client_wait_any(next, -1, &index, &status), -EDEADLK);
    assert_int_equal(efs_client_wait_any(next, 100, &index, &status), -ETIMEDOUT);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_all, next), 0);
    assert_int_equal(efs_client_wait_any(next, 100, &index, &status), -ETIMEDOUT);
    efs_client_release(held);
    pthread_join(thread, &rc);
    assert_int_equal((intptr_t)rc, 0);
    assert_int_equal(efs_client_wait(next), 0);

    struct efs_client_request *first = begun_elsewhere(fs, needs[0], fit); /* waits for next */
    struct efs_client_request *last = fixture_submit(fs, (struct efs_need[]){{2 * EXPERTS, 1}}, 1, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(last), -EDEADLK); /* has room next to it, but stands behind the first */
    efs_client_release(next);
    assert_int_equal(efs_client_wait(first), 0);
    efs_client_release(first);
    assert_int_equal(efs_client_wait(last), 0);
    efs_client_release(last);
    fixture_within_budget(fs);
    efs_close(fs);
}

static void *wait_for_next(void *request)
{
    uint32_t index;
    errint_t status = 0;
    const int rc = efs_client_wait_any(request, -1, &index, &status);
    return (void *)(intptr_t)(rc == 1 ? status : -EINVAL);
}

/* A thread that keeps all experts of a request that do not fit at once would wait for its own drops: without a limit
 * that ends with -EDEADLK, also where it holds others by another request; a wait of another thread goes on. */
TEST(test_waits_for_its_own_request)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 40 * MIB, .full_pool = true, .lease_wait = true});
    for (enum efs_form form = EFS_FORM_FULL; form <= EFS_FORM_CODED; form++) {
        struct efs_need needs[2][EXPERTS];
        uint32_t index, came = 0;
        errint_t status;
        pthread_t thread;
        void *rc;
        int got;
        layer_needs(0, needs[0]);
        layer_needs(1, needs[1]);
        struct efs_client_request *r = fixture_submit(fs, needs[0], EXPERTS, form);
        while ((got = efs_client_wait_any(r, -1, &index, &status)) == 1 && status == 0)
            came++;
        assert_int_equal(got, -EDEADLK);
        assert_in_range(came, 2, EXPERTS - 1);
        assert_int_equal(efs_client_wait_any(r, 100, &index, &status), -ETIMEDOUT);
        assert_int_equal(pthread_create(&thread, NULL, wait_for_next, r), 0);
        assert_int_equal(efs_client_wait_any(r, 100, &index, &status), -ETIMEDOUT);
        efs_client_drop(r, 0);
        pthread_join(thread, &rc);
        assert_int_equal((intptr_t)rc, 0);
        assert_int_equal(efs_client_wait_any(r, -1, &index, &status), came + 1 < EXPERTS ? -EDEADLK : 0);
        efs_client_release(r);
        struct efs_client_request *held = fixture_submit(fs, needs[1], came - 1, form);
        assert_int_equal(efs_client_wait(held), 0);
        r = fixture_submit(fs, needs[0], EXPERTS, form);
        assert_int_equal(efs_client_wait_any(r, -1, &index, &status), 1);
        assert_int_equal(efs_client_wait_any(r, -1, &index, &status), -EDEADLK);
        efs_client_release(held);
        assert_int_equal(efs_client_wait_any(r, -1, &index, &status), 1);
        efs_client_release(r);
    }
    fixture_within_budget(fs);
    efs_close(fs);
}

/* A thread that holds experts and waits for more of another program's memory stands behind requests that hold nothing,
 * also those that came later. */
TEST(test_stands_behind)
{
    uint32_t fit, index;
    errint_t status;
    struct efs *fs = open_small(&fit);
    struct efs_need needs[LAYERS][EXPERTS];
    for (uint32_t l = 0; l < LAYERS; l++)
        layer_needs(l, needs[l]);
    struct efs_client_request *other = begun_elsewhere(fs, needs[1], 1);
    struct efs_client_request *held = fixture_submit(fs, needs[0], fit - 1, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(other), 0);
    assert_int_equal(efs_client_wait(held), 0);
    struct efs_client_request *next =
        fixture_submit(fs, needs[2], fit, EFS_FORM_CODED);               /* never next to what is held */
    struct efs_client_request *later = begun_elsewhere(fs, needs[1], 2); /* one of them is pinned */
    assert_int_equal(efs_client_wait_any(later, 0, &index, &status), -ETIMEDOUT);
    efs_client_drop(held, 0);
    assert_int_equal(efs_client_wait(later), 0);
    assert_int_equal(efs_client_wait_any(next, 0, &index, &status), -ETIMEDOUT);
    efs_client_release(later);
    efs_client_release(other);
    efs_client_release(held);
    assert_int_equal(efs_client_wait(next), 0);
    efs_client_release(next);
    fixture_within_budget(fs);
    efs_close(fs);
}

/* After drops the rest of a request fits: a wait for all of it waits for memory, and does not fail with -EDEADLK. */
TEST(test_fits_after_drops)
{
    uint32_t fit, came;
    pthread_t thread;
    void *rc;
    uint32_t index;
    errint_t status;
    struct efs *fs = open_small(&fit);
    struct efs_client_request *first = take_what_fits(fs, 0, fit - 1, &came);
    struct efs_client_request *r = take_what_fits(fs, 1, EXPERTS, &came);
    assert_int_equal(came, 1);
    assert_int_equal(efs_client_wait(r), -EDEADLK);
    for (uint32_t i = 0; i + 2 < EXPERTS; i++)
        efs_client_drop(r, i);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_all, r), 0);
    assert_int_equal(efs_client_wait_any(r, 500, &index, &status), -ETIMEDOUT);
    efs_client_release(first);
    pthread_join(thread, &rc);
    assert_int_equal((intptr_t)rc, 0);
    efs_client_release(r);
    fixture_within_budget(fs);
    efs_close(fs);
}

struct requester {
    struct efs *fs;
    uint64_t seed;
    uint32_t count; /* experts of a request */
    enum efs_form form;
    _Atomic uint32_t *done;
};

/* Requests experts again and again, and waits for all of them. */
static void *request_and_wait(void *arg)
{
    struct requester *of = arg;
    for (unsigned round = 0; round < 50; round++) {
        struct efs_need needs[EXPERTS];
        struct efs_client_request *r;
        const struct efs_request_how how = {.form = of->form};
        uint32_t layer = (uint32_t)(fixture_random(&of->seed) % LAYERS);
        uint32_t first = (uint32_t)(fixture_random(&of->seed) % EXPERTS);
        for (uint32_t i = 0; i < of->count; i++)
            needs[i] = (struct efs_need){layer * EXPERTS + (first + i) % EXPERTS, 1};
        if (efs_request_submit(of->fs, needs, of->count, &how, &r, NULL) < 0 || efs_client_wait(r) < 0)
            abort();
        efs_client_release(r);
        atomic_fetch_add(of->done, 1);
    }
    return NULL;
}

/* Threads whose requests fit into memory one at a time, but not all at once, wait for each other and for nothing else:
 * a request that got a part of its memory and waited for the rest would wait forever. */
TEST(test_requesters)
{
    static const uint32_t counts[] = {[EFS_FORM_FULL] = 6, [EFS_FORM_CODED] = 4, [EFS_FORM_ANY] = 4};
    for (enum efs_form form = EFS_FORM_FULL; form <= EFS_FORM_ANY; form++) {
        struct efs *fs =
            open_with((struct efs_options){.budget_bytes = 60 * MIB, .full_pool = true, .lease_wait = true});
        struct requester of[8];
        pthread_t threads[8];
        _Atomic uint32_t done = 0;
        for (unsigned i = 0; i < 8; i++) {
            of[i] = (struct requester){.fs = fs, .seed = i + 1, .count = counts[form], .form = form, .done = &done};
            assert_int_equal(pthread_create(&threads[i], NULL, request_and_wait, &of[i]), 0);
        }
        for (unsigned i = 0; i < 8; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(done, 400);
        fixture_within_budget(fs);
        efs_close(fs);
    }
}

/* Experts that callers hold stay valid when the store is closed. All memory is freed in the end (sanitizers check). */
TEST(test_pins_at_close)
{
    const struct efs_need needs[] = {{0, 1}, {1, 1}, {2, 1}};
    for (enum efs_form form = EFS_FORM_FULL; form <= EFS_FORM_ANY; form++) {
        struct efs *fs = open_with((struct efs_options){.budget_bytes = 128 * MIB, .full_pool = true});
        struct handed handed[3];
        void *args[3];
        struct efs_error err = {""};
        struct efs_client_request *none;
        sem_t came;
        sem_init(&came, 0, 0);
        for (unsigned i = 0; i < 3; i++) {
            handed[i] = (struct handed){.came = &came};
            args[i] = &handed[i];
        }
        const struct efs_request_how how = {.form = form, .arrived = has_arrived, .args = args};
        assert_int_equal(efs_request_submit(fs, needs, 3, &how, &none, &err), 0);
        for (unsigned i = 0; i < 3; i++)
            sem_wait(&came);
        efs_client_drop(handed[1].request, handed[1].index);
        efs_close(fs);
        efs_request_detach(handed[0].request, handed[0].index);
        efs_request_detach(handed[2].request, handed[2].index);
        sem_destroy(&came);
    }
}

TEST_MAIN(setup, fixture_teardown)
