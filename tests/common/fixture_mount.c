/* SPDX-License-Identifier: Apache-2.0 */
/* fixture_mount.c - see fixture_mount.h. */
#include "fixture_mount.h"

#include "expert_server.h"
#include "expertfs-protocol.h"
#include "sync_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

void fixture_mount_file(const struct fixture_mount *mount, const char *name, const void *data, size_t bytes)
{
    fixture_file_below(mount->directory, name, data, bytes);
}

void fixture_mount_begin(struct fixture_mount *mount, const struct fixture *model)
{
    const struct efs_options options = {.budget_bytes = 128 << 20, .workers = 2, .no_state = true};
    struct efs_expert_info info;
    char version[64];
    snprintf(mount->directory, sizeof(mount->directory), "%s/mnt", model->directory);
    assert_int_equal(mkdir(mount->directory, 0777), 0);
    const int bytes = snprintf(version, sizeof(version), "version: 0\nsocket_protocol: %u\n", EFS_EXPORT_VERSION);
    fixture_mount_file(mount, ".expertfs/version", version, (size_t)bytes);
    struct efs *fs = fixture_open(model, options);
    mount->experts = 0;
    while (efs_expert_info(fs, efs_id(mount->experts), &info) == 0)
        mount->experts++;
    mount->files = calloc(mount->experts, sizeof(*mount->files));
    mount->file_bytes = calloc(mount->experts, sizeof(*mount->file_bytes));
    assert_non_null(mount->files);
    assert_non_null(mount->file_bytes);
    for (uint32_t e = 0; e < mount->experts; e++) {
        struct efs_file_info file;
        uint32_t number;
        mount->files[e] = fixture_expert(fs, e, &number, &mount->file_bytes[e]);
        assert_int_equal(efs_file_info(fs, number, &file), 0);
        fixture_mount_file(mount, file.path, mount->files[e], file.bytes);
    }
    efs_close(fs);
    mount->server = expert_server_start(mount->directory);
}

void fixture_mount_end(struct fixture_mount *mount)
{
    expert_server_stop(mount->server);
    for (uint32_t e = 0; e < mount->experts; e++)
        free(mount->files[e]);
    free(mount->files);
    free(mount->file_bytes);
    mount->experts = 0;
}

void fixture_mount_begin_moe(struct fixture_mount *mount, struct fixture *model, unsigned layers, unsigned experts)
{
    fixture_store(model, layers, experts, 64, 256);
    fixture_mount_begin(mount, model);
}

void fixture_mount_end_moe(struct fixture_mount *mount, struct fixture *model)
{
    fixture_mount_end(mount);
    fixture_end(model);
}

struct efs_client *fixture_client(const char *path, const struct efs_client_options *options)
{
    struct efs_error err = {""};
    struct efs_client *client;
    if (efs_client_open(path, options, &client, &err) < 0)
        fail_msg("%s", err.text);
    return client;
}

struct efs_client_request *fixture_request(struct efs_client *client, uint32_t layer, const struct efs_need *needs,
                                           uint32_t count, enum efs_form form)
{
    struct efs_error err = {""};
    struct efs_client_request *request;
    if (efs_client_begin(client, "", layer, needs, count, form, &request, &err) < 0)
        fail_msg("%s", err.text);
    return request;
}

struct efs_client_request *fixture_request_one(struct efs_client *client, uint32_t layer, uint32_t expert,
                                               enum efs_form form)
{
    struct efs_client_request *request = fixture_request(client, layer, &(struct efs_need){expert, 1}, 1, form);
    assert_int_equal(efs_client_wait(request), 0);
    return request;
}

void fixture_mount_check(const struct fixture_mount *mount, uint32_t expert, const struct efs_tensor *tensors,
                         uint32_t count)
{
    size_t at = mount->file_bytes[expert];
    assert_int_equal(count, 3);
    for (uint32_t i = 0; i < count; i++)
        at -= tensors[i].bytes;
    for (uint32_t i = 0; i < count; at += tensors[i++].bytes) {
        assert_int_equal(tensors[i].dtype, EFS_DTYPE_BF16);
        assert_int_equal(tensors[i].dims, 2);
        assert_int_equal(tensors[i].shape[0] * tensors[i].shape[1] * 2, tensors[i].bytes);
        assert_null(tensors[i].shards);
        assert_memory_equal(tensors[i].data, mount->files[expert] + at, tensors[i].bytes);
    }
}
