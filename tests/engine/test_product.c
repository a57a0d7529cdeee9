/* SPDX-License-Identifier: Apache-2.0 */
/*
 * efs_product(): rows of one matrix of an expert, compared with a product in double; bit-identical for every form,
 * codec, split of the rows and number of vectors, also for a matrix that is stored raw; writes only these rows; refused
 * arguments.
 */
#include <math.h>

#include "test.h"
#include "fixture_mount.h"
#include "expertfs-compute.h"
#include "expertfs-pack.h"

#define ROWS 321
#define COLS 200
#define COUNT EFS_VECTORS_MAX
#define FEW 5 /* rows of less than 4 KiB, which are stored raw */

static struct fixture model;
static float x[COUNT * COLS];

static int setup(void **state)
{
    *state = &model;
    static const struct fixture_tensor tensors[] = {
        {.name = "model.layers.0.mlp.experts.0.gate_proj.weight",
         .dtype = "BF16",
         .dims = 2,
         .shape = {ROWS, COLS},
         .bytes = 2 * ROWS * COLS},
        {.name = "model.layers.0.mlp.experts.0.up_proj.weight",
         .dtype = "BF16",
         .dims = 2,
         .shape = {FEW, COLS},
         .bytes = 2 * FEW * COLS},
        {.name = "model.layers.0.mlp.experts.0.bias", .dtype = "F32", .dims = 1, .shape = {8192}, .bytes = 32768}};
    uint64_t random = 1;
    fixture_begin(&model);
    fixture_safetensors(&model, "model.safetensors", tensors, 3, 7);
    for (size_t i = 0; i < COUNT * COLS; i++)
        x[i] = (float)(fixture_random(&random) % 2000) / 1000.0f - 1.0f;
    return 0;
}

static float bf16_at(const void *w, size_t i)
{
    uint32_t bits = (uint32_t)((const uint16_t *)w)[i] << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static float rounded(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&v, &bits, 4);
    return v;
}

/* The tensors of the only expert, valid until the request is released. */
static const struct efs_tensor *ask(struct efs_client *client, enum efs_form form, uint32_t *count,
                                    struct efs_client_request **request)
{
    const struct efs_tensor *tensors;
    *request = fixture_request_one(client, 0, 0, form);
    assert_int_equal(efs_client_tensors(*request, 0, &tensors, count), 0);
    return tensors;
}

static const struct efs_tensor *named(const struct efs_tensor *tensors, uint32_t count, const char *part)
{
    for (uint32_t i = 0; i < count; i++)
        if (strstr(tensors[i].name, part))
            return &tensors[i];
    fail_msg("no tensor %s", part);
    return NULL;
}

/* Computes all rows in pieces of `rows`, with `count` vectors at once. y is [COUNT][ROWS + 1]; its last column must not
 * change. */
static void multiply(const struct efs_tensor *w, bool transposed, enum efs_activation activation, uint32_t rows,
                     uint32_t count, float *y)
{
    void *vectors = aligned_alloc(64, efs_vectors_bytes(COLS, count));
    void *scratch = aligned_alloc(64, (efs_product_scratch_bytes(w, transposed) + 63) / 64 * 64);
    struct efs_error err = {""};
    for (size_t i = 0; i < COUNT * (ROWS + 1); i++)
        y[i] = 77;
    for (uint32_t t = 0; t < COUNT; t += count) {
        assert_int_equal(efs_vectors_prepare(activation, x + t * COLS, COLS, COLS, count, vectors), 0);
        for (uint32_t row = 0; row < ROWS; row += rows)
            if (efs_product(w, transposed, vectors, row, row + rows < ROWS ? row + rows : ROWS, y + t * (ROWS + 1),
                            ROWS + 1, scratch, &err) < 0)
                fail_msg("%s", err.text);
    }
    for (size_t t = 0; t < COUNT; t++)
        assert_true(y[t * (ROWS + 1) + ROWS] == 77);
    free(vectors);
    free(scratch);
}

static void check(const struct efs_tensor *full, enum efs_activation activation, const float *y)
{
    for (size_t t = 0; t < COUNT; t++)
        for (size_t row = 0; row < ROWS; row++) {
            double want = 0, size = 0;
            for (size_t c = 0; c < COLS; c++) {
                float v = x[t * COLS + c], term = bf16_at(full->data, row * COLS + c);
                double product = (double)term * (activation == EFS_ACTIVATION_BF16 ? rounded(v) : v);
                want += product;
                size += fabs(product);
            }
            assert_true(fabs(y[t * (ROWS + 1) + row] - want) <= 1e-5 * size);
        }
}

/* The same matrix as a checkpoint has it that stores [columns][rows]. */
static void check_transposed(const struct efs_tensor *plain, enum efs_activation activation, const float *first)
{
    static uint16_t numbers[COLS * ROWS];
    static float y[COUNT * (ROWS + 1)];
    struct efs_tensor t = *plain;
    for (size_t row = 0; row < ROWS; row++)
        for (size_t c = 0; c < COLS; c++)
            memcpy(&numbers[c * ROWS + row], (const uint16_t *)plain->data + row * COLS + c, 2);
    t.shape[0] = COLS;
    t.shape[1] = ROWS;
    t.data = numbers;
    multiply(&t, true, activation, 100, COUNT, y);
    assert_memory_equal(y, first, sizeof(y));
}

/* A matrix that is stored raw has the same product in both forms. */
static void check_few(const struct efs_tensor *plain, const struct efs_tensor *coded)
{
    uint8_t *vectors = aligned_alloc(64, (efs_vectors_bytes(COLS, 1) + 63) / 64 * 64);
    float y[2][FEW];
    struct efs_error err = {""};
    assert_int_equal(efs_vectors_prepare(EFS_ACTIVATION_BF16, x, COLS, COLS, 1, vectors), 0);
    for (int form = 0; form < 2; form++) {
        const struct efs_tensor *w = form ? coded : plain;
        void *scratch = aligned_alloc(64, (efs_product_scratch_bytes(w, false) + 63) / 64 * 64);
        if (efs_product(w, false, vectors, 0, FEW, y[form], FEW, scratch, &err) < 0)
            fail_msg("%s", err.text);
        free(scratch);
    }
    assert_memory_equal(y[0], y[1], sizeof(y[0]));
    free(vectors);
}

static void with_codec(enum efs_codec_choice codec)
{
    static float first[COUNT * (ROWS + 1)], y[COUNT * (ROWS + 1)];
    struct efs_pack_options options = {.codec = codec, .threads = 2, .shard_elements = 16384, .force = true};
    fixture_pack(&model, &options);
    struct efs *fs = fixture_open(
        &model, (struct efs_options){.budget_bytes = 128ull << 20, .workers = 1, .full_pool = true, .no_state = true});
    struct efs_client *client;
    struct efs_client_request *full, *coded;
    struct efs_error err = {""};
    uint32_t fulls, codeds;
    assert_int_equal(efs_client_new(fs, &client, &err), 0);
    const struct efs_tensor *of_full = ask(client, EFS_FORM_FULL, &fulls, &full);
    const struct efs_tensor *of_coded = ask(client, EFS_FORM_CODED, &codeds, &coded);
    const struct efs_tensor *plain = named(of_full, fulls, "gate_proj");
    const struct efs_tensor *halves = named(of_coded, codeds, "gate_proj");
    for (enum efs_activation a = EFS_ACTIVATION_F32; a <= EFS_ACTIVATION_BF16; a++) {
        static const uint32_t rows[] = {ROWS, 1, 100}, counts[] = {1, COUNT, 4};
        multiply(plain, false, a, ROWS, COUNT, first);
        check(plain, a, first);
        check_transposed(plain, a, first);
        for (size_t i = 0; i < 3; i++)
            for (size_t n = 0; n < 3; n++) {
                multiply(i % 2 ? plain : halves, false, a, rows[i], counts[n], y);
                assert_memory_equal(y, first, sizeof(y));
                multiply(halves, false, a, rows[i], counts[n], y);
                assert_memory_equal(y, first, sizeof(y));
            }
    }
    check_few(named(of_full, fulls, "up_proj"), named(of_coded, codeds, "up_proj"));
    efs_client_release(full);
    efs_client_release(coded);
    efs_client_close(client);
    efs_close(fs);
}

TEST(test_cascade)
{
    with_codec(EFS_CHOOSE_CASCADE);
}

TEST(test_zstd)
{
    with_codec(EFS_CHOOSE_ZSTD);
}

TEST(test_refused)
{
    static float y[ROWS];
    struct efs_pack_options options = {.threads = 2, .force = true};
    fixture_pack(&model, &options);
    struct efs *fs =
        fixture_open(&model, (struct efs_options){.budget_bytes = 128ull << 20, .workers = 1, .no_state = true});
    struct efs_client *client;
    struct efs_client_request *request;
    struct efs_error err = {""};
    uint32_t count;
    assert_int_equal(efs_client_new(fs, &client, &err), 0);
    const struct efs_tensor *tensors = ask(client, EFS_FORM_CODED, &count, &request);
    const struct efs_tensor *w = named(tensors, count, "gate_proj"), *bias = named(tensors, count, "bias");
    void *vectors = aligned_alloc(64, efs_vectors_bytes(COLS, 1));
    void *narrow = aligned_alloc(64, efs_vectors_bytes(COLS - 1, 1));
    void *scratch = aligned_alloc(64, (efs_product_scratch_bytes(w, false) + 63) / 64 * 64);
    assert_int_equal(efs_vectors_bytes(COLS, 0), 0);
    assert_int_equal(efs_vectors_bytes(COLS, EFS_VECTORS_MAX + 1), 0);
    assert_int_equal(efs_vectors_bytes(0, 1), 0);
    assert_int_equal(efs_product_scratch_bytes(bias, false), 0);
    assert_int_equal(efs_vectors_prepare((enum efs_activation)7, x, COLS, COLS, 1, vectors), -EINVAL);
    assert_int_equal(efs_vectors_prepare(EFS_ACTIVATION_BF16, x, COLS, COLS, 1, vectors), 0);
    assert_int_equal(efs_vectors_prepare(EFS_ACTIVATION_BF16, x, COLS, COLS - 1, 1, narrow), 0);
    assert_int_equal(efs_product(w, false, vectors, 0, ROWS + 1, y, ROWS, scratch, &err), -EINVAL);
    assert_non_null(strstr(err.text, "gate_proj"));
    assert_int_equal(efs_product(w, false, narrow, 0, ROWS, y, ROWS, scratch, &err), -EINVAL);
    assert_int_equal(efs_product(w, false, vectors, 0, ROWS, y, ROWS, NULL, &err), -EINVAL);
    assert_int_equal(efs_product(bias, false, vectors, 0, 1, y, ROWS, scratch, NULL), -EINVAL);
    assert_int_equal(efs_product(w, true, vectors, 0, ROWS, y, ROWS, scratch, &err), -EOPNOTSUPP); /* coded */
    assert_int_equal(efs_product(w, false, vectors, 0, ROWS, y, ROWS, scratch, &err), 0);
    assert_string_equal(err.text, "");
    free(vectors);
    free(narrow);
    free(scratch);
    efs_client_release(request);
    efs_client_close(client);
    efs_close(fs);
}

TEST_MAIN(setup, fixture_teardown)
