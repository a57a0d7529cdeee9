/* SPDX-License-Identifier: Apache-2.0 */
/* test_view_index.c - the experts' index of names that take more room printed than they have bytes. */

#include "test.h"
#include "expertfs-private.h"
#include "fixture.h"
#include "source_files.h"
#include "view.h"
#include "waiting.h"

#define ESCAPES 200u /* six bytes each: the first guess of the index's size is too small */

static void index_is(const char *name)
{
    const struct fixture_tensor tensor = {name, "BF16", 2, {64, 64}, 8192};
    struct fixture f;
    struct efs_store *store;
    struct efs_error err = {""};
    struct efs_view view;
    char want[2048];
    fixture_begin(&f);
    fixture_safetensors(&f, "model.safetensors", &tensor, 1, 3);
    fixture_pack(&f, NULL);
    assert_int_equal(efs_store_open(f.store, &store, &err), 0);
    assert_int_equal(efs_view_build(&view, store, &err), 0);
    int n = snprintf(want, sizeof(want),
                     "{\n  \"metadata\": {\"total_size\": 8192},\n  \"weight_map\": {\n    \"%s\": "
                     "\"dense.safetensors\"\n  }\n}\n",
                     name);
    assert_int_equal(view.index_bytes, n);
    assert_memory_equal(view.index_text, want, (size_t)n);
    efs_view_destroy(&view);
    efs_store_close(store);
    fixture_end(&f);
}

TEST(test_plain)
{
    index_is("model.norm.weight");
}

TEST(test_escapes)
{
    char name[6 * ESCAPES + 1] = "";
    for (unsigned i = 0; i < ESCAPES; i++)
        memcpy(name + 6 * (size_t)i, "\\u0001", 7);
    index_is(name);
}

/* A file of the store, as text that ends behind its bytes. */
static char *file_named(struct efs *fs, const char *path, struct efs_file_info *info)
{
    for (uint32_t i = 0; efs_file_info(fs, i, info, sizeof(*info)) == 0; i++) {
        if (strcmp(info->path, path) != 0)
            continue;
        char *data = calloc(1, info->bytes + 1);
        assert_non_null(data);
        assert_int_equal(read_wait(fs, i, NULL, 0, data, info->bytes), info->bytes);
        return data;
    }
    fail_msg("there is no %s", path);
    return NULL;
}

/* Types and shapes that are not known stand in the view as in their file, with their bytes. */
TEST(test_unknown_types)
{
    static const char header[] = "{\"a\":{\"dtype\":\"F8_E3M4\",\"shape\":[2,3],\"data_offsets\":[0,6]},"
                                 "\"b\":{\"dtype\":\"I4\",\"shape\":[4],\"data_offsets\":[6,8]},"
                                 "\"c\":{\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[8,12]},"
                                 "\"model.layers.0.mlp.experts.0.up_proj.weight\":{\"dtype\":\"F8_E3M4\",\"shape\":[3],"
                                 "\"data_offsets\":[12,15]},"
                                 "\"d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[15,16]},"
                                 "\"e\":{\"dtype\":\"of \\\"ours\\\"\",\"shape\":[],\"data_offsets\":[16,18]}}";
    static const char *const dense[] = {
        "\"a\":{\"dtype\":\"F8_E3M4\",\"shape\":[2,3],\"data_offsets\":[0,6]}",
        "\"b\":{\"dtype\":\"I4\",\"shape\":[4],\"data_offsets\":[6,8]}",
        "\"c\":{\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[8,12]}",
        "\"d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[12,13]}",
        "\"e\":{\"dtype\":\"of \\\"ours\\\"\",\"shape\":[],\"data_offsets\":[13,15]}"};
    struct fixture f;
    struct efs_file_info info;
    const struct efs_tensor *tensors;
    struct efs_request *request;
    struct efs_error err = {""};
    uint64_t length = sizeof(header) - 1;
    uint32_t count;
    char file[8 + sizeof(header) - 1 + 18], *text;
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    memcpy(file + 8 + length, "aaaaaabbccccEEEdee", 18);
    fixture_begin(&f);
    fixture_file(&f, "model.safetensors", file, sizeof(file));
    fixture_pack(&f, NULL);
    struct efs *fs =
        fixture_open(&f, (struct efs_options){.budget_bytes = 64u << 20, .full_pool = true, .no_state = true});
    fixture_check_files(&f, fs);
    text = file_named(fs, "experts/dense.safetensors", &info);
    for (size_t i = 0; i < sizeof(dense) / sizeof(dense[0]); i++)
        if (!strstr(text + 8, dense[i]))
            fail_msg("%s: not in %s", dense[i], text + 8);
    assert_memory_equal(text + info.bytes - 15, "aaaaaabbccccdee", 15);
    free(text);
    text = file_named(fs, "experts/L00/E000.safetensors", &info);
    assert_non_null(strstr(text + 8, "\"dtype\":\"F8_E3M4\",\"shape\":[3],\"data_offsets\":[0,3]"));
    assert_memory_equal(text + info.bytes - 3, "EEE", 3);
    free(text);
    text = file_named(fs, "experts/model.safetensors.index.json", &info);
    assert_non_null(strstr(text, "\"c\": \"dense.safetensors\""));
    free(text);
    assert_int_equal(efs_request_submit(fs, &(struct efs_need){0, 1}, 1,
                                        &(struct efs_request_how){.form = EFS_FORM_FULL}, &request, &err),
                     0);
    assert_int_equal(efs_request_wait(request), 0);
    assert_int_equal(efs_request_tensors(request, 0, &tensors, &count), 0);
    assert_int_equal(count, 1);
    assert_int_equal(tensors[0].dtype, EFS_DTYPE_NONE);
    assert_int_equal(tensors[0].dims, 0);
    assert_memory_equal(tensors[0].data, "EEE", 3);
    efs_request_release(request);
    efs_close(fs);
    fixture_end(&f);
}

/* A type that ggml withdrew (Q4_2, 4): bytes, and the number and the shape of the GGUF file in a note. */
TEST(test_withdrawn_type)
{
    static const uint64_t shape[] = {32};
    struct sf_bytes file = {0};
    struct fixture f;
    struct efs_file_info info;
    sf_gguf_header(&file, 3, 2, 0);
    sf_gguf_tensor(&file, "old.weight", 1, shape, 4, 0);
    sf_gguf_tensor(&file, "new.weight", 1, shape, 0, 32);
    sf_align(&file, 32);
    sf_zero(&file, 32 + 128);
    fixture_begin(&f);
    fixture_file(&f, "model.gguf", file.data, file.count);
    fixture_pack(&f, NULL);
    struct efs *fs = fixture_open(&f, (struct efs_options){.budget_bytes = 64u << 20, .no_state = true});
    fixture_check_files(&f, fs);
    char *text = file_named(fs, "experts/dense.safetensors", &info);
    assert_non_null(strstr(text + 8, "\"expertfs.tensor.old.weight\":\"ggml:4 [32]\""));
    assert_non_null(strstr(text + 8, "\"old.weight\":{\"dtype\":\"U8\",\"shape\":[32],\"data_offsets\":[0,32]}"));
    free(text);
    free(file.data);
    efs_close(fs);
    fixture_end(&f);
}

TEST_MAIN(NULL, NULL)
