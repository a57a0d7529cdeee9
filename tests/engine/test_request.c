/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: experts of a layer, requested at once, are returned full or coded, byte for byte; pins stay; repeated
 * requests do not accumulate; memory in use stays within the budget. test_request_waits.c has requests without memory.
 */
#include "test.h"
#include "codec.h"
#include "fixture.h"
#include "expertfs-private.h"

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
    uint32_t number;
    uint8_t *file = fixture_expert(fs, expert, &number, &bytes);
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

TEST(test_coded)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 256 * MIB});
    ask_layers(fs, EFS_FORM_CODED, 40);
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

/* A lease finds the expert that was wanted in memory, and this counts as one use. */
TEST(test_want)
{
    struct efs *fs = open_with((struct efs_options){.budget_bytes = 256 * MIB, .full_pool = true});
    struct efs_error err = {""};
    struct efs_stats s;
    static const struct efs_need named[] = {{2, 3}, {5, 1}};
    assert_int_equal(fixture_prefetch(fs, 1, named, 2, &err), 0);
    fixture_drain(fs);
    fixture_within_budget(fs);
    const struct efs_expert_info e = fixture_expert_info(fs, EXPERTS + 5);
    assert_int_equal(e.state, 'C');
    fixture_lease_once(fs, e.file);
    efs_stats(fs, &s);
    assert_int_equal(s.requests_m, 2);
    assert_int_equal(s.requests_f + s.requests_c, 0);
    assert_int_equal(s.leases_c, 1);
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
    struct efs_need needs[LAYERS * EXPERTS];
    struct efs_error err = {""};
    struct efs_stats before, after;
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++)
        needs[i] = (struct efs_need){i, 1};
    for (uint32_t l = 0; l < LAYERS; l++)
        held[l] = fixture_submit(fs, needs + l * EXPERTS, EXPERTS, EFS_FORM_CODED);
    assert_int_equal(efs_client_wait(held[0]), 0);
    efs_stats(fs, &before);
    assert_true(before.coded_waits > 0);
    for (unsigned n = 0; n < 1000; n++)
        assert_int_equal(fixture_prefetch(fs, LAYERS - 1, needs, EXPERTS, &err), 0);
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

TEST_MAIN(setup, fixture_teardown)
