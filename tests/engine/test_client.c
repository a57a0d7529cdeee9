/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client runtime; the same tests run on a store in this process and on a mount. The mount is a directory whose
 * files another process hands out, so that FUSE is not needed; tests/e2e/test_client.py uses a real one. Malformed
 * experts are refused, and many threads share a client.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "test.h"
#include "client_fixture.h"

static void put(const char *name, const void *data, size_t bytes)
{
    fixture_mount_file(&mount, name, data, bytes);
}

static char *slurp(const char *name)
{
    char path[500];
    size_t bytes;
    snprintf(path, sizeof(path), "%s/%s", mount.directory, name);
    unsigned char *data = fixture_read(path, &bytes);
    char *text = calloc(1, bytes + 1);
    memcpy(text, data, bytes);
    free(data);
    return text;
}

static void refused(struct efs_client *client)
{
    const struct efs_need twice[] = {{1, 1}, {1, 1}}, none[] = {{1, 0}}, beyond[] = {{EXPERTS, 1}}, one[] = {{1, 1}},
                          good_and_beyond[] = {{0, 1}, {4000000000u, 1}};
    const struct {
        const struct efs_need *needs;
        const char *stack;
        uint32_t count, layer;
        errint_t rc;
    } bad[] = {{twice, "", 2, 0, -EINVAL},
               {none, "", 1, 0, -EINVAL},
               {one, "", 0, 0, -EINVAL},
               {beyond, "", 1, 0, -ENOENT},
               {one, "", 1, LAYERS, -ENOENT},
               {one, "", 1, UINT32_MAX, -ENOENT},
               {one, "decoder", 1, 0, -ENOENT},
               {one, "../x", 1, 0, -ENOENT},
               {one, "a/b", 1, 0, -ENOENT},
               {good_and_beyond, "", 2, 0, -ENOENT},
               {one, "a-name-that-is-much-longer-than-a-stack-s-may-be", 1, 0, -ENOENT}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct efs_error err = {""};
        struct efs_client_request *r = (struct efs_client_request *)mount.directory;
        assert_int_equal(
            efs_client_begin(client, bad[i].stack, bad[i].layer, bad[i].needs, bad[i].count, EFS_FORM_FULL, &r, &err),
            bad[i].rc);
        assert_null(r);
        assert_true(err.text[0]);
    }
}

TEST(test_store_and_mount)
{
    unsigned fds = fixture_open_fds();
    const char *const paths[] = {model.store, model.source, mount.directory};
    for (unsigned i = 0; i < 3; i++) {
        struct efs_client *client = open_client(paths[i]);
        assert_int_equal(efs_client_fs(client) != NULL, i < 2); /* a packed store, the same checkpoint in place */
        check_all_requests(client);
        refused(client);
        check_all_requests(client);
        efs_client_close(client);
        assert_int_equal(fixture_open_fds(), fds);
    }
    efs_client_close(NULL);
}

/* ---- the list of all experts ---- */

static char *layers_text(void)
{
    struct efs_client *client = open_client(model.store);
    char *text;
    size_t bytes;
    assert_int_equal(efs_describe(efs_client_fs(client), "layers", &text, &bytes), 0);
    efs_client_close(client);
    return text;
}

/* A list has the experts that a request brings. */
static void check_list(struct efs_client *client)
{
    struct efs_error err = {""};
    struct efs_listed_expert *list;
    uint32_t count, loaded;
    const struct efs_tensor *tensors;
    assert_int_equal(efs_client_experts(client, &list, &count, &err), 0);
    assert_int_equal(count, LAYERS * EXPERTS);
    for (uint32_t i = 0; i < count; i++) {
        const struct efs_need need = {list[i].expert, 1};
        assert_int_equal(list[i].layer, i / EXPERTS);
        assert_int_equal(list[i].expert, i % EXPERTS);
        assert_string_equal(list[i].stack, "");
        struct efs_client_request *r = fixture_request(client, list[i].layer, &need, 1, EFS_FORM_FULL);
        assert_int_equal(efs_client_wait(r), 0);
        assert_int_equal(efs_client_tensors(r, 0, &tensors, &loaded), 0);
        assert_int_equal(loaded, list[i].tensor_count);
        for (uint32_t t = 0; t < loaded; t++) {
            struct efs_tensor want = tensors[t], got = list[i].tensors[t];
            assert_string_equal(got.name, want.name);
            assert_int_equal(efs_tensor_role(got.name), strstr(got.name, "gate_proj") ? EFS_ROLE_GATE
                                                        : strstr(got.name, "up_proj") ? EFS_ROLE_UP
                                                                                      : EFS_ROLE_DOWN);
            got.name = want.name;
            want.data = NULL;
            want.shard_elements = want.shard_count = 0;
            assert_memory_equal(&got, &want, sizeof(want));
        }
        efs_client_release(r);
    }
    free(list);
}

TEST(test_list_experts)
{
    char *text = layers_text();
    assert_int_equal(strncmp(text, "stack layer first last dtype shape number name\n- 0 0 7 ", 55), 0);
    put(".expertfs/layers", text, strlen(text));
    free(text);
    const char *const paths[] = {model.store, model.source, mount.directory};
    for (unsigned i = 0; i < 3; i++) {
        struct efs_client *client = open_client(paths[i]);
        check_list(client);
        efs_client_close(client);
    }
}

/* A mount may send anything. */
TEST(test_list_refused)
{
#define HEAD "stack layer first last dtype shape number name\n"
    static const struct {
        const char *text;
        errint_t rc;
        uint32_t count;
    } lists[] = {{HEAD, 0, 0},
                 {HEAD "- 0 0 0 BF16 [2] - a\n", 0, 1},
                 {HEAD "s 1 8 11 F32 [] 1 e8.w\n", 0, 4},
                 {HEAD "- 0 0 0 - [7] - a\\nb\n- 1 0 1 ggml:Q4_0 [2,32] - a b\n", 0, 3},
                 {"", -EUCLEAN, 0},
                 {"stack", -EUCLEAN, 0},
                 {HEAD "- 0 0 0 BF16 [2] - a", -EUCLEAN, 0},
                 {HEAD "- 0 0 0 BF16 [2] - \n", -EUCLEAN, 0},
                 {HEAD "- 0 1 0 BF16 [2] - a\n", -EUCLEAN, 0},
                 {HEAD "- 4294967296 0 0 BF16 [2] - a\n", -EUCLEAN, 0},
                 {HEAD "- 0 0 99999999999999999999 BF16 [2] - a\n", -EUCLEAN, 0},
                 {HEAD "- 0 0 1048576 BF16 [2] - a\n", -EUCLEAN, 0},
                 {HEAD "- 0 0 0 XF16 [2] - a\n", -EUCLEAN, 0},
                 {HEAD "- 0 0 0 BF16 [2,] - a\n", 0, 1},
                 {HEAD "- 0 0 0 BF16 2 - a\n", -EUCLEAN, 0},
                 {HEAD "- 0 0 0 BF16 [-2] - a\n", -EUCLEAN, 0},
                 {HEAD "- 0 0 0 BF16 [9999999999,9999999999] - a\n", -EUCLEAN, 0},
                 {HEAD "- 0 0 0 BF16 [1,1,1,1,1,1,1,1,1] - a\n", -EUCLEAN, 0},
                 {HEAD "- 0 0 0 - [] - a\n", -EUCLEAN, 0},
                 {HEAD "- 0 0 0 BF16 [2] 0 a\n", -EUCLEAN, 0},
                 {HEAD "- 0 7 9 BF16 [2] 18446744073709551615 a7\n", -EUCLEAN, 0},
                 {HEAD "- 0 7 9 BF16 [2] 2 a7\n", -EUCLEAN, 0},
                 {HEAD "- 0 7 9 BF16 [2] 1\n", -EUCLEAN, 0}};
    struct efs_error err = {""};
    struct efs_listed_expert *list;
    struct efs_client *client = open_client(mount.directory);
    uint32_t count;
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        put(".expertfs/layers", lists[i].text, strlen(lists[i].text));
        assert_int_equal(efs_client_experts(client, &list, &count, &err), lists[i].rc);
        assert_int_equal(count, lists[i].count);
        if (i == 2) {
            assert_string_equal(list[0].tensors[0].name, "e8.w");
            assert_string_equal(list[3].tensors[0].name, "e11.w");
            assert_string_equal(list[3].stack, "s");
        }
        if (i == 3)
            assert_string_equal(list[0].tensors[0].name, "a\nb");
        free(list);
    }
    char path[400];
    snprintf(path, sizeof(path), "%s/.expertfs/layers", mount.directory);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(efs_client_experts(client, &list, &count, &err), -ENOENT);
    assert_null(list);
    efs_client_close(client);
}

TEST(test_open_errors)
{
    struct efs_error err = {""};
    struct efs_client *client = (struct efs_client *)mount.directory;
    char path[400];
    const struct {
        const char *below;
        errint_t rc;
    } bad[] = {{"", -ENODEV}, {"/nothing", -ENOENT}, {"/src/config.json", -EUCLEAN}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(path, sizeof(path), "%s%s", model.directory, bad[i].below);
        err.text[0] = '\0';
        assert_int_equal(efs_client_open(path, NULL, &client, &err), bad[i].rc);
        assert_null(client);
        assert_true(err.text[0]);
    }
    char *version = slurp(".expertfs/version");
    put(".expertfs/version", "another", 7);
    assert_int_equal(efs_client_open(mount.directory, NULL, &client, &err), -ENODEV);
    put(".expertfs/version", version, strlen(version));
    free(version);
    char *handout = slurp(".expertfs/handout");
    const char *const texts[] = {"address: -\n",
                                 "address: nowhere\n",
                                 "address: /no/end/of/line",
                                 "",
                                 "what: x\n",
                                 "address: /nowhere/at/all/handout\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        put(".expertfs/handout", texts[i], strlen(texts[i]));
        assert_int_equal(efs_client_open(mount.directory, NULL, &client, &err), -ENOENT);
        assert_non_null(strstr(err.text, "socket"));
    }
    put(".expertfs/handout", "address: /dev/null\n", 19);
    assert_int_equal(efs_client_open(mount.directory, NULL, &client, &err), -ECONNREFUSED);
    put(".expertfs/handout", handout, strlen(handout));
    free(handout);
    assert_int_equal(efs_client_open(mount.directory, NULL, &client, &err), 0);
    efs_client_close(client);
}

/* The first version whose mounts name none is 15. */
TEST(test_open_mount_of_another_protocol)
{
    struct efs_error err;
    struct efs_client *client;
    char text[64], ours[64], *version = slurp(".expertfs/version");
    snprintf(ours, sizeof(ours), "this program speaks version %u", EFS_EXPORT_VERSION);
    const struct {
        unsigned is; /* 0: no line */
        const char *says, *hint;
    } other[] = {{0, "speaks version 15 or less", "\nhint: the mount is of an older expertfs"},
                 {EFS_EXPORT_VERSION - 1, NULL, "\nhint: the mount is of an older expertfs"},
                 {EFS_EXPORT_VERSION + 1, NULL, "\nhint: the program is of an older expertfs"}};
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        snprintf(text, sizeof(text), other[i].is ? "version: 0\nsocket_protocol: %u\n" : "version: 0\n", other[i].is);
        put(".expertfs/version", text, strlen(text));
        assert_int_equal(efs_client_open(mount.directory, NULL, &client, &err), -EPROTONOSUPPORT);
        snprintf(text, sizeof(text), "speaks version %u", other[i].is);
        assert_non_null(strstr(err.text, other[i].says ? other[i].says : text));
        assert_non_null(strstr(err.text, ours));
        assert_non_null(strstr(err.text, other[i].hint));
    }
    put(".expertfs/version", version, strlen(version));
    free(version);
}

/* A store in this process and a mount serve coded experts. */
TEST(test_coded)
{
    const char *const paths[] = {model.store, mount.directory};
    for (unsigned i = 0; i < 2; i++) {
        struct efs_client *client = open_client(paths[i]);
        const struct efs_tensor *tensors;
        uint32_t count;
        for (unsigned round = 0; round < 2; round++) { /* with the layout, and by the known one */
            struct efs_client_request *r = fixture_request_one(client, 0, 1, EFS_FORM_CODED);
            assert_int_equal(efs_client_tensors(r, 0, &tensors, &count), 0);
            assert_int_equal(count, 3);
            assert_null(tensors[0].data);
            assert_non_null(tensors[0].shards);
            efs_client_release(r);
        }
        efs_client_close(client);
    }
}

/* ---- malformed files ---- */

static void with_header(const char *json, size_t data_bytes)
{
    uint64_t n = strlen(json);
    uint8_t *file = calloc(1, 8 + n + data_bytes);
    memcpy(file, &n, 8);
    memcpy(file + 8, json, n);
    put("experts/L07/E000.safetensors", file, 8 + n + data_bytes);
    free(file);
}

static errint_t ask_for(struct efs_client *client, struct efs_client_request **r)
{
    uint32_t index = 9;
    errint_t rc = 1;
    *r = fixture_request(client, 7, &(struct efs_need){0, 1}, 1, EFS_FORM_FULL);
    assert_int_equal(efs_client_wait_any(*r, -1, &index, &rc), 1);
    assert_int_equal(index, 0);
    const struct efs_tensor *tensors;
    uint32_t count;
    assert_int_equal(efs_client_tensors(*r, 0, &tensors, &count), rc);
    assert_int_equal(efs_client_wait(*r), rc);
    return rc;
}

static void foreign(struct efs_client *client)
{
    struct efs_client_request *r;
    assert_int_equal(ask_for(client, &r), -EUCLEAN);
    efs_client_release(r);
}

TEST(test_malformed_headers)
{
    static const char *const bad[] = {
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,9]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}",
        "{\"a\":{\"dtype\":\"BF16\",\"shape\":[8],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551615],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[-8],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,8],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,0]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[6],\"data_offsets\":[2,8]}}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
        "\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
        "{\"a\":[]}",
        "[]",
        "{",
        "{}",
    };
    struct efs_client *client = open_client(mount.directory);
    struct efs_client_request *r;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        with_header(bad[i], 8);
        foreign(client);
    }
    const uint64_t lengths[] = {0, 1u << 30, UINT64_MAX, UINT64_MAX - 7, 9};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint64_t file[2] = {lengths[i], 0};
        put("experts/L07/E000.safetensors", file, sizeof(file));
        foreign(client);
    }
    with_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8); /* a valid file */
    assert_int_equal(ask_for(client, &r), 0);
    efs_client_release(r);
    efs_client_close(client);
}

/* An expert is missing: only that one fails, and wait_any() still reports every expert. */
TEST(test_missing_file)
{
    const struct efs_need needs[] = {{0, 1}, {1, 1}};
    uint32_t index, gone = 0;
    errint_t status;
    char path[500], aside[520];
    snprintf(path, sizeof(path), "%s/experts/L01/E001.safetensors", mount.directory);
    snprintf(aside, sizeof(aside), "%s.aside", path);
    struct efs_client *client = open_client(mount.directory);
    efs_client_release(
        fixture_request_one(client, 1, 1, EFS_FORM_FULL)); /* the client keeps what it knows of the expert */
    assert_int_equal(rename(path, aside), 0);
    struct efs_client_request *r = fixture_request(client, 1, needs, 2, EFS_FORM_FULL);
    bool good = true;
    for (unsigned i = 0; good && i < 2; i++) {
        good = efs_client_wait_any(r, -1, &index, &status) == 1 && status == (index == 1 ? -ENOENT : 0);
        gone += index == 1;
    }
    good = good && efs_client_wait_any(r, -1, &index, &status) == 0 && efs_client_wait(r) == -ENOENT;
    efs_client_release(r);
    efs_client_close(client);
    assert_int_equal(rename(aside, path), 0);
    assert_true(good);
    assert_int_equal(gone, 1);
}

/* A client of a store that the caller has opened: the store stays open when the client closes, and the caller can use
 * it. */
TEST(test_callers_store)
{
    unsigned fds = fixture_open_fds();
    struct efs *fs = fixture_open(
        &model, (struct efs_options){
                    .budget_bytes = 256 * MIB, .workers = 2, .full_pool = true, .lease_wait = true, .no_state = true});
    struct efs_client *client = NULL;
    assert_int_equal(efs_client_new(fs, &client, NULL), 0);
    assert_ptr_equal(efs_client_fs(client), fs);
    check_all_requests(client);
    refused(client);
    efs_client_close(client);
    assert_int_equal(efs_expert_count(fs), LAYERS * EXPERTS);
    assert_int_equal(efs_client_new(fs, &client, NULL), 0);
    check_all_requests(client);
    efs_client_close(client);
    efs_close(fs);
    assert_int_equal(fixture_open_fds(), fds);
}

static bool readable(int fd, int timeout_ms)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, timeout_ms) == 1;
}

/* An event loop that calls wait_any() only when poll() reports the descriptor as readable, for a store and a mount: no
 * call blocks. */
TEST(test_event_loop)
{
    unsigned fds = fixture_open_fds();
    const char *const paths[] = {model.store, mount.directory};
    for (unsigned i = 0; i < 2; i++) {
        struct efs_client *client = open_client(paths[i]);
        for (uint32_t round = 0; round < 6; round++) {
            const struct efs_need needs[] = {
                {round % EXPERTS, 1}, {(round + 2) % EXPERTS, 1}, {(round + 5) % EXPERTS, 1}};
            struct efs_client_request *r = fixture_request(client, round % LAYERS, needs, 3, EFS_FORM_FULL);
            uint32_t index = 9;
            errint_t status = -1;
            int fd = efs_client_event(r);
            assert_true(fd >= 0);
            assert_int_equal(efs_client_event(r), fd);
            for (unsigned told = 0; told < 3; told++) {
                assert_true(readable(fd, 60000));
                assert_int_equal(efs_client_wait_any(r, 0, &index, &status), 1);
                assert_int_equal(status, 0);
                check_tensors(r, index, round % LAYERS, needs[index].expert);
                if (round % 2)
                    efs_client_drop(r, index);
            }
            assert_true(readable(fd, 0)); /* no expert is pending */
            assert_int_equal(efs_client_wait_any(r, 0, &index, &status), 0);
            efs_client_release(r);
            if (round == 5) { /* dropped experts are not reported, so the wait ends */
                r = fixture_request(client, 0, needs, 3, EFS_FORM_FULL);
                fd = efs_client_event(r);
                for (uint32_t n = 0; n < 3; n++)
                    efs_client_drop(r, n);
                assert_true(readable(fd, 0));
                assert_int_equal(efs_client_wait_any(r, 0, &index, &status), 0);
                efs_client_release(r);
            }
        }
        efs_client_close(client);
        assert_int_equal(fixture_open_fds(), fds);
    }
}

/* Types that safetensors does not have are in __metadata__; a note that does not match the tensor is ignored. */
TEST(test_dtype_metadata)
{
    static const struct {
        const char *note;
        enum efs_dtype dtype;
        uint32_t dims;
        uint64_t shape[2];
    } cases[] = {
        {"ggml:Q4_0 [2, 4, 32]", EFS_DTYPE_U8, 1, {72, 0}}, /* 144 bytes, but the tensor has 72 */
        {"ggml:Q4_0 [4, 32]", EFS_DTYPE_GGML + 2, 2, {4, 32}},
        {"ggml:Q4_0 [9, 4, 32], slice 3", EFS_DTYPE_GGML + 2, 2, {4, 32}},
        {"ggml:Q4_0 [4, 31]", EFS_DTYPE_U8, 1, {72, 0}},
        {"ggml:Q4_0 [4, 32", EFS_DTYPE_U8, 1, {72, 0}},
        {"ggml:Q4_0 []", EFS_DTYPE_U8, 1, {72, 0}},
        {"ggml:Q4_0 [72], slice 1", EFS_DTYPE_U8, 1, {72, 0}},
        {"ggml:Q4_0 [1,1,1,1,1,1,1,1,1,1,4,32]", EFS_DTYPE_U8, 1, {72, 0}},
        {"ggml:Q4_0 [99999999999999999999, 32]", EFS_DTYPE_U8, 1, {72, 0}},
        {"ggml:NONE [4, 32]", EFS_DTYPE_U8, 1, {72, 0}},
        {"BF16 [36]", EFS_DTYPE_U8, 1, {72, 0}},
        {"", EFS_DTYPE_U8, 1, {72, 0}},
    };
    struct efs_client *client = open_client(mount.directory);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct efs_client_request *r;
        const struct efs_tensor *t;
        uint32_t count;
        char json[400];
        snprintf(json, sizeof(json),
                 "{\"__metadata__\":{\"expertfs.tensor.a\":\"%s\",\"expertfs.tensor.c\":\"ggml:Q4_0 [4, 32]\"},"
                 "\"a\":{\"dtype\":\"U8\",\"shape\":[72],\"data_offsets\":[0,72]}}",
                 cases[i].note);
        with_header(json, 72);
        assert_int_equal(ask_for(client, &r), 0);
        assert_int_equal(efs_client_tensors(r, 0, &t, &count), 0);
        assert_int_equal(count, 1);
        assert_string_equal(t->name, "a");
        assert_int_equal(t->dtype, cases[i].dtype);
        assert_int_equal(t->dims, cases[i].dims);
        for (uint32_t d = 0; d < t->dims; d++)
            assert_int_equal(t->shape[d], cases[i].shape[d]);
        efs_client_release(r);
    }
    efs_client_close(client);
}

TEST(test_threads)
{
    const char *const paths[] = {model.store, mount.directory};
    for (unsigned i = 0; i < 2; i++) {
        pthread_t threads[6];
        shared = open_client(paths[i]);
        for (uintptr_t t = 0; t < 6; t++)
            assert_int_equal(pthread_create(&threads[t], NULL, request_thread, (void *)(t + 1)), 0);
        for (unsigned t = 0; t < 6; t++)
            pthread_join(threads[t], NULL);
        efs_client_close(shared);
    }
}

/* ---- resource limits ---- */

#define ALL (LAYERS * EXPERTS)

static void limit_to(int what, rlim_t most)
{
    struct rlimit limit;
    getrlimit(what, &limit);
    limit.rlim_cur = most;
    setrlimit(what, &limit);
}

static bool program_can_open(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* In a forked process: hold all experts at once, release them, then request each again. 0, or the line of the failed
 * check. */
static int hold_all(const char *path)
{
    struct efs_client *client = open_client(path);
    struct efs_client_request *held[ALL];
    for (uint32_t e = 0; e < 2 * ALL; e++) {
        const struct efs_need need = {e % EXPERTS, 1};
        struct efs_client_request *r;
        if (efs_client_begin(client, "", e / EXPERTS % LAYERS, &need, 1, EFS_FORM_FULL, &r, NULL) < 0)
            return __LINE__;
        errint_t rc = efs_client_wait(r);
        if (rc != 0)
            return __LINE__;
        if (!program_can_open())
            return __LINE__;
        if (e < ALL)
            held[e] = r;
        else
            efs_client_release(r);
        for (uint32_t n = 0; e == ALL - 1 && n < ALL; n++)
            efs_client_release(held[n]);
    }
    efs_client_close(client);
    return 0;
}

static void hold_all_within(int what, rlim_t most, const char *path)
{
    pid_t child = fork();
    if (child == 0) {
        alarm(PATIENCE_SECONDS);
        close_range(3, ~0u, 0);
        limit_to(what, most);
        int line = hold_all(path);
        if (line)
            print_error("in the child: line %d\n", line);
        _exit(line != 0);
    }
    child_ended_well(child);
}

/* Experts take no descriptors. */
TEST(test_few_descriptors)
{
    hold_all_within(RLIMIT_NOFILE, 24, model.store);
    hold_all_within(RLIMIT_NOFILE, 16, mount.directory);
}

/* Memory files must not exceed RLIMIT_FSIZE, or SIGXFSZ ends the program. */
TEST(test_short_files)
{
    hold_all_within(RLIMIT_FSIZE, 4096, model.store);
}

TEST_MAIN(setup, teardown)