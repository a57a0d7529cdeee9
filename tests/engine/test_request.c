/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests and where experts are kept: a layer's experts named at once come full or coded, byte for byte; pools keep
 * what the policy says; demotions read nothing; budgets, plans and policies change under load; whatever is asked for,
 * what is held stays below the budget.
 */
#include <pthread.h>
#include <semaphore.h>

#include "test.h"
#include "codec.h"
#include "fixture.h"
#include "expertfs-pack.h"
#include "expertfs-private.h"
#include "waiting.h"

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

/* The expert's file, read from the start to its end. */
static uint8_t *whole_file(struct efs *fs, uint32_t expert, size_t *bytes)
{
    struct efs_expert_info e;
    struct efs_file_info f;
    assert_int_equal(efs_expert_info(fs, efs_id(expert), &e), 0);
    assert_int_equal(efs_file_info(fs, e.file, &f), 0);
    uint8_t *data = malloc(f.bytes);
    assert_int_equal(read_wait(fs, e.file, NULL, 0, data, f.bytes), f.bytes);
    *bytes = f.bytes;
    return data;
}

static void within_budget(struct efs *fs)
{
    struct efs_stats s;
    do
        efs_stats(fs, &s);
    while (s.inflight);
    assert_true(s.fixed_bytes + s.chunk_pool_bytes + s.full_pool_bytes <= s.budget_bytes);
}

/* Raw bytes of a coded tensor. */
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

static void check_item(struct efs *fs, struct efs_request *r, uint32_t index, uint32_t expert, enum efs_form form,
                       struct efs_codec_scratch *scratch)
{
    const struct efs_tensor *tensors;
    uint32_t count;
    size_t bytes;
    uint8_t *file = whole_file(fs, expert, &bytes);
    assert_int_equal(efs_request_tensors(r, index, &tensors, &count), 0);
    assert_int_equal(count, 3);
    size_t at = bytes;
    for (uint32_t i = 0; i < count; i++)
        at -= tensors[i].bytes; /* data stand at the file's end */
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

/* Experts of a layer come once each, whatever the form, also when they do not all fit at once. */
static void ask_layers(struct efs *fs, enum efs_form form, unsigned rounds)
{
    struct efs_codec_scratch *scratch;
    struct efs_error err = {""};
    assert_int_equal(efs_codec_scratch_new(1u << 20, &scratch), 0);
    for (unsigned n = 0; n < rounds; n++) {
        uint32_t layer = n % LAYERS, count = 1 + n % 5;
        struct efs_need needs[EXPERTS];
        for (uint32_t i = 0; i < count; i++)
            needs[i] = (struct efs_need){layer * EXPERTS + (n + i * (n % 2 ? 1 : 3)) % EXPERTS, 1 + i};
        struct efs_request *r;
        assert_int_equal(efs_request_submit(fs, needs, count, &(struct efs_request_how){.form = form}, &r, &err), 0);
        uint32_t index, told = 0;
        errint_t status;
        int rc;
        while ((rc = efs_request_wait_any(r, -1, &index, &status)) != 0) {
            assert_int_equal(rc, 1);
            assert_int_equal(status, 0);
            check_item(fs, r, index, needs[index].expert, form, scratch);
            told++;
            if (n % 3 == 0)
                efs_request_drop(r, index);
        }
        assert_int_equal(told, count);
        efs_request_release(r);
    }
    efs_codec_scratch_free(scratch);
    within_budget(fs);
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

TEST(test_coded)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 256 * MIB});
    ask_layers(fs, EFS_FORM_CODED, 40);
    efs_close(fs);
    fs = open_with((struct efs_options){.budget_bytes = 40 * MIB}); /* a segment or two: experts take turns */
    struct efs_need needs[EXPERTS];
    for (uint32_t i = 0; i < EXPERTS; i++)
        needs[i] = (struct efs_need){i, 1};
    struct efs_request *r;
    assert_int_equal(
        efs_request_submit(fs, needs, EXPERTS, &(struct efs_request_how){.form = EFS_FORM_CODED}, &r, NULL), 0);
    uint32_t index, told = 0;
    errint_t status;
    while (efs_request_wait_any(r, -1, &index, &status) == 1 && status == 0) {
        told++;
        efs_request_drop(r, index);
    }
    assert_int_equal(told, EXPERTS);
    efs_request_release(r);
    within_budget(fs);
    efs_close(fs);
}

TEST(test_refused)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 128 * MIB});
    struct efs_error err = {""};
    struct efs_request *r;
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

/* What is brought is found by the lease that follows, and counts once. */
TEST(test_want)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 256 * MIB, .full_pool = true});
    struct efs_error err = {""};
    struct efs_stats s;
    static const struct efs_need named[] = {{2, 3}, {5, 1}};
    assert_int_equal(fixture_bring(fs, 1, named, 2, &err), 0);
    within_budget(fs);
    struct efs_expert_info e;
    assert_int_equal(efs_expert_info(fs, efs_id(EXPERTS + 5), &e), 0);
    assert_int_equal(e.state, 'F');
    struct efs_lease *lease;
    assert_int_equal(lease_wait(fs, e.file, &lease), 0);
    efs_lease_release(lease);
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
    fixture_store(&large, 1, 3, 1536, 1024); /* 3 MiB a tensor, of which an extent takes 1 */
    assert_int_equal(efs_codec_scratch_new(1u << 20, &scratch), 0);
    for (unsigned n = 0; n < 2; n++) {
        enum efs_form form = n == 0 ? EFS_FORM_FULL : EFS_FORM_CODED;
        struct efs *fs = fixture_open(
            &large, (struct efs_options){.workers = 2, .no_state = true, .full_pool = true, .budget_bytes = 128 * MIB});
        struct efs_request *r;
        struct efs_error err = {""};
        assert_int_equal(efs_request_submit(fs, needs, 2, &(struct efs_request_how){.form = form}, &r, &err), 0);
        assert_int_equal(efs_request_wait(r), 0);
        for (uint32_t i = 0; i < 2; i++)
            check_item(fs, r, i, needs[i].expert, form, scratch);
        efs_request_release(r);
        within_budget(fs);
        efs_close(fs);
    }
    efs_codec_scratch_free(scratch);
    fixture_end(&large);
}

/* F falls to C or S without a read, and the chunks that are made are the store's. */
TEST(test_demotion)
{
    struct efs *fs = open_with(
        (struct efs_options){.budget_bytes = 256 * MIB, .full_pool = true, .plan = "F=90,S=10", .policy = "lru"});
    struct efs_error err = {""};
    struct efs_stats before, after;
    for (uint32_t l = 0; l < LAYERS; l++) {
        struct efs_need needs[EXPERTS];
        for (uint32_t i = 0; i < EXPERTS; i++)
            needs[i] = (struct efs_need){l * EXPERTS + i, 1};
        struct efs_request *r;
        assert_int_equal(
            efs_request_submit(fs, needs, EXPERTS, &(struct efs_request_how){.form = EFS_FORM_FULL}, &r, &err), 0);
        assert_int_equal(efs_request_wait(r), 0);
        efs_request_release(r);
    }
    struct efs_pool_info f, lower;
    assert_int_equal(efs_pool_info(fs, 'F', &f), 0);
    assert_true(f.experts > 0);
    within_budget(fs);
    efs_stats(fs, &before);
    assert_int_equal(efs_set(fs, "plan", "S=60", NULL, &err), 0); /* all of F must go */
    within_budget(fs);
    efs_stats(fs, &after);
    assert_int_equal(after.disk_reads, before.disk_reads);
    assert_int_equal(efs_pool_info(fs, 'S', &lower), 0);
    assert_true(lower.experts > 0);
    assert_true(after.recoded_bytes > before.recoded_bytes);
    unsigned kept = 0, components = 0;
    for (uint32_t e = 0; e < LAYERS * EXPERTS; e++) {
        struct efs_expert_info info;
        assert_int_equal(efs_expert_info(fs, efs_id(e), &info), 0);
        kept += info.kept == 'S' && strchr("FCS", info.state);
    }
    assert_true(kept > 0);
    assert_int_equal(efs_set(fs, "budget", "90M", NULL, &err), 0); /* what is evictable goes, too */
    within_budget(fs);
    for (uint32_t e = 0; e < LAYERS * EXPERTS; e++) {
        struct efs_expert_info info;
        size_t bytes;
        assert_int_equal(efs_expert_info(fs, efs_id(e), &info), 0);
        components += info.state == 'S';
        free(whole_file(fs, e, &bytes)); /* checks what was made */
    }
    assert_true(components > 0);
    efs_stats(fs, &after);
    assert_int_equal(after.chunks_damaged, 0);
    efs_close(fs);
}

/* Pins stay, whatever else is asked for. */
TEST(test_pins)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 96 * MIB, .full_pool = true, .plan = "C=40,F=20"});
    struct efs_error err = {""};
    assert_int_equal(efs_pin(fs, efs_id(3), false, 'C', &err), 0);
    assert_int_equal(efs_pin(fs, efs_id(3), false, 'X', &err), -EINVAL);
    assert_int_equal(efs_pin(fs, efs_id(LAYERS * EXPERTS), false, 'C', &err), -ENOENT);
    ask_layers(fs, EFS_FORM_FULL, 60);
    struct efs_expert_info info;
    assert_int_equal(efs_expert_info(fs, efs_id(3), &info), 0);
    assert_int_equal(info.pin, 'C');
    assert_true(info.kept == 'C' || info.kept == 'F');
    efs_close(fs);
}

static void never_arrives(void *arg, errint_t error, struct efs_request *request, uint32_t index)
{
    (void)arg, (void)error, (void)request, (void)index;
    fail_msg("nobody comes for it, and it was told");
}

/* Who names experts on and on for which there is no room, and comes for none, has each of them in line once a form. */
TEST(test_named_again)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 64 * MIB, .full_pool = true, .lease_wait = true});
    const struct efs_request_how coded = {.form = EFS_FORM_CODED};
    void *const nobody[EXPERTS] = {NULL};
    struct efs_request *held[LAYERS], *none;
    struct efs_need needs[LAYERS][EXPERTS], named[EXPERTS];
    struct efs_error err = {""};
    struct efs_stats before, after;
    for (uint32_t e = 0; e < LAYERS * EXPERTS; e++)
        needs[e / EXPERTS][e % EXPERTS] = (struct efs_need){e, 1};
    for (uint32_t i = 0; i < EXPERTS; i++)
        named[i] = (struct efs_need){i, 1};
    for (uint32_t l = 0; l < LAYERS; l++)
        assert_int_equal(efs_request_submit(fs, needs[l], EXPERTS, &coded, &held[l], &err), 0);
    assert_int_equal(efs_request_wait(held[0]), 0);
    efs_stats(fs, &before);
    assert_true(before.coded_waits > 0);
    for (unsigned n = 0; n < 1000; n++) {
        enum efs_form form = n % 2 ? EFS_FORM_FULL : EFS_FORM_CODED;
        const struct efs_request_how told = {.form = form, .arrived = never_arrives, .args = nobody};
        assert_int_equal(fixture_bring(fs, LAYERS - 1, named, EXPERTS, &err), 0);
        assert_int_equal(efs_request_submit(fs, needs[LAYERS - 1], EXPERTS, &told, &none, &err), 0);
    }
    efs_stats(fs, &after);
    assert_true(after.inflight <= before.inflight + 100); /* they, and reads for them; not 16,000 */
    for (uint32_t l = 0; l < LAYERS; l++)
        efs_request_release(held[l]);
    within_budget(fs);
    ask_layers(fs, EFS_FORM_CODED, 6);
    ask_layers(fs, EFS_FORM_FULL, 6);
    within_budget(fs);
    efs_stats(fs, &after);
    assert_int_equal(after.coded_experts, 0);
    assert_int_equal(after.leased_experts, 0);
    efs_close(fs);
}

struct handed {
    sem_t *came;
    struct efs_request *request;
    uint32_t index;
};

static void has_arrived(void *arg, errint_t error, struct efs_request *request, uint32_t index)
{
    struct handed *h = arg;
    assert_int_equal(error, 0);
    h->request = request;
    h->index = index;
    sem_post(h->came);
}

static void *wait_for_all(void *request)
{
    return (void *)(intptr_t)efs_request_wait(request);
}

/* Who waits for all of what has no room at once is told, and may go on one by one. Who waits for others' room waits. */
TEST(test_stuck)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 40 * MIB, .full_pool = true, .lease_wait = true});
    for (enum efs_form form = EFS_FORM_FULL; form <= EFS_FORM_CODED; form++) {
        const struct efs_request_how how = {.form = form};
        struct efs_need needs[LAYERS][EXPERTS];
        struct efs_request *r, *other;
        struct efs_error err = {""};
        uint32_t index, told = 0;
        errint_t status;
        pthread_t thread;
        void *rc;
        for (uint32_t e = 0; e < LAYERS * EXPERTS; e++)
            needs[e / EXPERTS][e % EXPERTS] = (struct efs_need){e, 1};
        assert_int_equal(efs_request_submit(fs, needs[0], EXPERTS, &how, &r, &err), 0);
        assert_int_equal(efs_request_wait(r), -EDEADLK);
        assert_int_equal(efs_request_wait(r), -EDEADLK);
        while (efs_request_wait_any(r, -1, &index, &status) == 1 && status == 0) {
            told++;
            efs_request_drop(r, index);
        }
        assert_int_equal(told, EXPERTS);
        assert_int_equal(efs_request_wait(r), 0);
        efs_request_release(r);
        assert_int_equal(efs_request_submit(fs, needs[1], EXPERTS, &how, &r, &err), 0);
        assert_int_equal(efs_request_wait(r), -EDEADLK);
        assert_int_equal(efs_request_submit(fs, needs[2], 1, &how, &other, &err), 0);
        assert_int_equal(pthread_create(&thread, NULL, wait_for_all, other), 0);
        assert_int_equal(efs_request_wait_any(other, 500, &index, &status), -ETIMEDOUT);
        efs_request_release(r);
        pthread_join(thread, &rc);
        assert_int_equal((intptr_t)rc, 0);
        efs_request_release(other);
    }
    within_budget(fs);
    efs_close(fs);
}

/* What others hold stays theirs when the store is closed; nothing is left of it then (the sanitizers' run). */
TEST(test_held_to_the_end)
{
    const struct efs_need needs[] = {{0, 1}, {1, 1}, {2, 1}};
    for (enum efs_form form = EFS_FORM_FULL; form <= EFS_FORM_ANY; form++) {
        struct efs *fs = open_with((struct efs_options){.budget_bytes = 128 * MIB, .full_pool = true});
        struct handed handed[3];
        void *args[3];
        struct efs_error err = {""};
        struct efs_request *none;
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
        efs_request_drop(handed[1].request, handed[1].index);
        efs_close(fs);
        efs_request_forget(handed[0].request, handed[0].index);
        efs_request_forget(handed[2].request, handed[2].index);
        sem_destroy(&came);
    }
}

/* ---- everything at once ---- */

struct soak {
    struct efs *fs;
    _Atomic bool stop;
    unsigned seed;
};

static void *soak_reader(void *arg)
{
    struct soak *s = arg;
    unsigned seed = s->seed;
    while (!s->stop) {
        uint32_t layer = (uint32_t)rand_r(&seed) % LAYERS, first = (uint32_t)rand_r(&seed) % EXPERTS;
        struct efs_need needs[2] = {{layer * EXPERTS + first, 1}, {layer * EXPERTS + (first + 1) % EXPERTS, 2}};
        enum efs_form form = rand_r(&seed) % 2 ? EFS_FORM_FULL : EFS_FORM_CODED;
        struct efs_request *r;
        if (efs_request_submit(s->fs, needs, 2, &(struct efs_request_how){.form = form}, &r, NULL) < 0)
            continue;
        if (rand_r(&seed) % 4)
            efs_request_wait(r);
        efs_request_release(r);
        size_t bytes;
        free(whole_file(s->fs, needs[0].expert, &bytes));
    }
    return NULL;
}

TEST(test_soak)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 200 * MIB, .full_pool = true});
    struct soak soaks[6];
    pthread_t threads[6];
    for (unsigned i = 0; i < 6; i++) {
        soaks[i] = (struct soak){.fs = fs, .seed = i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, soak_reader, &soaks[i]), 0);
    }
    static const char *const changes[][2] = {{"budget", "120M"},    {"plan", "F=50,C=20,S=20,E=10"},
                                             {"policy", "lfu"},     {"budget", "200M"},
                                             {"pools", "CSE"},      {"plan", "auto"},
                                             {"policy", "marking"}, {"plan", "F=10,S=40,E=40"},
                                             {"policy", "zipmoe"},  {"pools", "FCSE"},
                                             {"plan", "E=100"},     {"goal", "makespan"},
                                             {"plan", "auto"}};
    for (unsigned round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
            struct efs_error err = {""};
            struct efs_stats s;
            if (efs_set(fs, changes[i][0], changes[i][1], NULL, &err) < 0)
                fail_msg("%s", err.text);
            for (unsigned n = 0; n < 5; n++) {
                efs_stats(fs, &s);
                size_t bytes;
                free(whole_file(fs, n % (LAYERS * EXPERTS), &bytes));
            }
        }
    for (unsigned i = 0; i < 6; i++)
        soaks[i].stop = true;
    for (unsigned i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    within_budget(fs);
    struct efs_stats s;
    efs_stats(fs, &s);
    assert_int_equal(s.leased_experts, 0);
    assert_int_equal(s.chunks_damaged, 0);
    efs_close(fs);
}

TEST_MAIN(setup, fixture_teardown)
