/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every byte of every format and codec in GPU memory, and experts larger than the slots; with an old driver.
 */

#include "test.h"
#include "gpu_fixture.h"

#define MIB (1ull << 20)

/* Fails unless the experts of layer 0 have the same tensors in device memory as in full form. */
static void same_as_full(const char *store, uint32_t experts, uint64_t budget_bytes, uint64_t *decodes)
{
    struct efs_client *client = gpu_client(store, budget_bytes);
    for (uint32_t e = 0; e < experts; e++) {
        struct efs_client_request *full, *device;
        const struct efs_tensor *a, *b;
        uint32_t a_count, b_count;
        full = fixture_request_one(client, 0, e, EFS_FORM_FULL);
        assert_int_equal(efs_client_tensors(full, 0, &a, &a_count), 0);
        device = gpu_request_wait(client, 0, e, 1);
        assert_int_equal(efs_client_tensors(device, 0, &b, &b_count), 0);
        assert_int_equal(a_count, b_count);
        for (uint32_t i = 0; i < a_count; i++) {
            assert_string_equal(a[i].name, b[i].name);
            assert_int_equal(a[i].dtype, b[i].dtype);
            assert_int_equal(a[i].dims, b[i].dims);
            assert_memory_equal(a[i].shape, b[i].shape, sizeof(a[i].shape));
            assert_int_equal(a[i].bytes, b[i].bytes);
            assert_memory_equal(a[i].data, b[i].data, a[i].bytes);
        }
        efs_client_release(full);
        efs_client_release(device);
    }
    *decodes = gpu_stats(client).g_decodes;
    efs_client_close(client);
}

TEST_WITH(every_format, NULL, gpu_test_teardown)
{
    static const struct {
        const char *dtype;
        unsigned bytes;
    } formats[] = {{"BF16", 2}, {"F16", 2}, {"F32", 4}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U8", 1}, {"I64", 8}};
    static const enum efs_codec_choice codecs[] = {EFS_CHOOSE_AUTO, EFS_CHOOSE_CASCADE, EFS_CHOOSE_RAW,
                                                   EFS_CHOOSE_ZSTD};
    for (size_t f = 0; f < sizeof(formats) / sizeof(formats[0]); f++) {
        struct fixture one;
        struct fixture_tensor tensors[3];
        static const char *const names[] = {"model.layers.0.mlp.experts.0.gate_proj.weight",
                                            "model.layers.0.mlp.experts.0.up_proj.weight",
                                            "model.layers.0.mlp.experts.0.down_proj.weight"};
        const uint64_t rows[] = {120, 1, 77};
        for (unsigned i = 0; i < 3; i++)
            tensors[i] = (struct fixture_tensor){
                names[i], formats[f].dtype, 2, {rows[i], 333}, rows[i] * 333 * formats[f].bytes};
        fixture_begin(&one);
        fixture_safetensors(&one, "model.safetensors", tensors, 3, (unsigned)f + 3);
        for (size_t c = 0; c < sizeof(codecs) / sizeof(codecs[0]); c++) {
            const struct efs_pack_options options = {
                .threads = 2, .shard_elements = 8192, .force = true, .codec = codecs[c]};
            uint64_t decodes;
            fixture_pack(&one, &options);
            same_as_full(one.store, 1, GPU_MIN_BUDGET, &decodes);
            assert_true(codecs[c] != EFS_CHOOSE_CASCADE || f > 4 || decodes > 0);
            assert_true(codecs[c] < EFS_CHOOSE_ZSTD || decodes == 0);
        }
        fixture_end(&one);
    }
}

/* Experts larger than all slots; and larger than the pool. */
TEST_WITH(large_experts, NULL, gpu_test_teardown)
{
    struct fixture large;
    struct efs_client_request *request;
    uint64_t decodes;
    fixture_store(&large, 1, 2, 1536, 2048);
    same_as_full(large.store, 2, GPU_SLOTS + 20 * MIB, &decodes);
    assert_true(decodes >= 4);
    struct efs_client *client = gpu_client(large.store, GPU_MIN_BUDGET);
    assert_int_equal(gpu_request(client, 0, 0, 1, &request), 0);
    assert_int_equal(efs_client_wait(request), -ENOMEM);
    efs_client_release(request);
    efs_client_close(client);
    fixture_end(&large);
}

/* No kernel decodes zstd, and the client has no full pool. */
TEST_WITH(foreign_codec, NULL, gpu_test_teardown)
{
    struct fixture zstd;
    struct efs_client_request *request;
    const struct efs_pack_options options = {
        .threads = 2, .shard_elements = 8192, .force = true, .codec = EFS_CHOOSE_ZSTD};
    fixture_begin(&zstd);
    fixture_moe(&zstd, 1, 2, 64, 256);
    fixture_pack(&zstd, &options);
    struct efs_client *client = gpu_client_no_device(zstd.store, false);
    assert_int_equal(gpu_add_device(client, GPU_MIN_BUDGET, NULL), 0);
    assert_int_equal(gpu_request(client, 0, 0, 2, &request), 0);
    assert_int_equal(efs_client_wait(request), -EOPNOTSUPP);
    efs_client_release(request);
    efs_client_close(client);
    fixture_end(&zstd);
}

TEST_MAIN(gpu_setup_old, gpu_teardown)
