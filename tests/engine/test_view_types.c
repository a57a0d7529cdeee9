/* SPDX-License-Identifier: Apache-2.0 */
/* test_view_types.c - experts' files with tensors of unknown types. */

#include "test.h"
#include "expertfs-private.h"
#include "fixture.h"

/* Unknown types and shapes are in the header of an expert's file as in that of the checkpoint, with their bytes. */
TEST(test_unknown_types)
{
    static const char header[] = "{\"a\":{\"dtype\":\"F8_E3M4\",\"shape\":[2,3],\"data_offsets\":[0,6]},"
                                 "\"b\":{\"dtype\":\"I4\",\"shape\":[4],\"data_offsets\":[6,8]},"
                                 "\"c\":{\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[8,12]},"
                                 "\"model.layers.0.mlp.experts.0.up_proj.weight\":{\"dtype\":\"F8_E3M4\",\"shape\":[3],"
                                 "\"data_offsets\":[12,15]},"
                                 "\"d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[15,16]},"
                                 "\"e\":{\"dtype\":\"of \\\"ours\\\"\",\"shape\":[],\"data_offsets\":[16,18]}}";
    struct fixture f;
    const struct efs_tensor *tensors;
    uint64_t length = sizeof(header) - 1;
    uint32_t count, number;
    size_t bytes;
    char file[8 + sizeof(header) - 1 + 18];
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    memcpy(file + 8 + length, "aaaaaabbccccEEEdee", 18);
    fixture_begin(&f);
    fixture_file(&f, "model.safetensors", file, sizeof(file));
    fixture_pack(&f, NULL);
    struct efs *fs =
        fixture_open(&f, (struct efs_options){.budget_bytes = 64u << 20, .full_pool = true, .no_state = true});
    fixture_check_files(&f, fs);
    static const char described[] = "\"dtype\":\"F8_E3M4\",\"shape\":[3],\"data_offsets\":[0,3]";
    unsigned char *data = fixture_expert(fs, 0, &number, &bytes);
    assert_non_null(memmem(data, bytes, described, strlen(described)));
    assert_memory_equal(data + bytes - 3, "EEE", 3);
    free(data);
    struct efs_client_request *request = fixture_submit(fs, &(struct efs_need){0, 1}, 1, EFS_FORM_FULL);
    assert_int_equal(efs_client_wait(request), 0);
    assert_int_equal(efs_client_tensors(request, 0, &tensors, &count), 0);
    assert_int_equal(count, 1);
    assert_int_equal(tensors[0].dtype, EFS_DTYPE_NONE);
    assert_int_equal(tensors[0].dims, 0);
    assert_memory_equal(tensors[0].data, "EEE", 3);
    efs_client_release(request);
    efs_close(fs);
    fixture_end(&f);
}

TEST_MAIN(NULL, NULL)
