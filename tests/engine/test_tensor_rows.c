/* SPDX-License-Identifier: Apache-2.0 */
/*
 * efs_tensor_rows(): all rows of a matrix in pieces of every length, in place and copied, from decoded experts, raw
 * shards and each codec, are the checkpoint's bytes; refused rows and shards that do not add up.
 */
#include "expertfs-pack.h"
#include "expertfs-private.h"
#include "fixture_mount.h"
#include "test.h"

#define ROWS 37
#define COLS 1500 /* rows are split between shards of 8192 elements */

static struct fixture model;

static int setup(void **state)
{
    *state = &model;
    static const struct fixture_tensor tensors[] = {{.name = "model.layers.0.mlp.experts.0.gate_proj.weight",
                                                     .dtype = "U8",
                                                     .dims = 2,
                                                     .shape = {ROWS, COLS},
                                                     .bytes = ROWS * COLS},
                                                    {.name = "model.layers.0.mlp.experts.0.up_proj.weight",
                                                     .dtype = "F32",
                                                     .dims = 2,
                                                     .shape = {ROWS, COLS},
                                                     .bytes = 4 * ROWS * COLS},
                                                    {.name = "model.layers.0.mlp.experts.0.down_proj.weight",
                                                     .dtype = "BF16",
                                                     .dims = 2,
                                                     .shape = {ROWS, COLS},
                                                     .bytes = 2 * ROWS * COLS}};
    fixture_begin(&model);
    fixture_safetensors(&model, "model.safetensors", tensors, 3, 7);
    return 0;
}

/* Compares all rows in pieces of at most `most`. Returns how many were not copied. */
static uint32_t compare(const struct efs_tensor *t, const uint8_t *want, uint32_t most)
{
    const size_t row_bytes = t->bytes / ROWS;
    uint8_t *scratch = malloc(most * row_bytes);
    uint32_t in_place = 0;
    struct efs_error err = {""};
    assert_non_null(scratch);
    for (uint32_t row = 0, count; row < ROWS; row += count) {
        const void *rows = NULL;
        const uint32_t left = ROWS - row < most ? ROWS - row : most;
        count = left;
        if (efs_tensor_rows(t, row, &count, scratch, &rows, &err) < 0)
            fail_msg("%s", err.text);
        assert_true(count > 0 && count <= left);
        assert_memory_equal(rows, want + row * row_bytes, count * row_bytes);
        in_place += rows == scratch ? 0 : count;
    }
    free(scratch);
    return in_place;
}

static void refused(struct efs_tensor t)
{
    uint8_t scratch[4 * COLS];
    const void *rows;
    struct efs_coded_shard shards[64];
    uint32_t count = 0;
    assert_int_equal(efs_tensor_rows(&t, 0, &count, scratch, &rows, NULL), -EINVAL);
    count = 2;
    assert_int_equal(efs_tensor_rows(&t, ROWS - 1, &count, scratch, &rows, NULL), -EINVAL);
    assert_true(t.shard_count > 1 && t.shard_count <= 64);
    memcpy(shards, t.shards, t.shard_count * sizeof(*shards));
    t.shards = shards;
    count = 1;
    shards[t.shard_count - 1].elements--;
    assert_int_equal(efs_tensor_rows(&t, 0, &count, scratch, &rows, NULL), -EUCLEAN);
    shards[t.shard_count - 1].elements++;
    t.dims = 1;
    assert_int_equal(efs_tensor_rows(&t, 0, &count, scratch, &rows, NULL), -EINVAL);
}

static void with_codec(enum efs_codec_choice codec)
{
    struct efs_pack_options options = {.codec = codec, .threads = 2, .shard_elements = 8192, .force = true};
    fixture_pack(&model, &options);
    struct efs *fs = fixture_open(
        &model, (struct efs_options){.budget_bytes = 128ull << 20, .workers = 1, .full_pool = true, .no_state = true});
    struct efs_client *client;
    struct efs_error err = {""};
    const struct efs_tensor *full, *coded;
    uint32_t count;
    assert_int_equal(efs_client_new(fs, &client, &err), 0);
    struct efs_client_request *fulls = fixture_request_one(client, 0, 0, EFS_FORM_FULL);
    struct efs_client_request *codeds = fixture_request_one(client, 0, 0, EFS_FORM_CODED);
    assert_int_equal(efs_client_tensors(fulls, 0, &full, &count), 0);
    assert_int_equal(efs_client_tensors(codeds, 0, &coded, &count), 0);
    assert_int_equal(count, 3);
    for (uint32_t i = 0; i < count; i++) {
        const bool raw = codec == EFS_CHOOSE_RAW;
        for (uint32_t most = 1; most <= ROWS; most += 4) {
            assert_int_equal(compare(&full[i], full[i].data, most), ROWS);
            uint32_t in_place = compare(&coded[i], full[i].data, most);
            assert_true(!raw || in_place > ROWS / 2);
        }
        refused(coded[i]);
    }
    efs_client_release(fulls);
    efs_client_release(codeds);
    efs_client_close(client);
    efs_close(fs);
}

TEST(test_raw)
{
    with_codec(EFS_CHOOSE_RAW);
}

TEST(test_cascade)
{
    with_codec(EFS_CHOOSE_CASCADE);
}

TEST(test_zstd)
{
    with_codec(EFS_CHOOSE_ZSTD);
}

TEST_MAIN(setup, fixture_teardown)
