/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints that are opened in place: a GGUF file, a split one, safetensors files, a directory. Their bytes at any
 * alignment; files that change under the open store; damage between two reads; broken headers.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"
#include "expertfs-pack.h"
#include "expertfs-private.h"
#include "fixture.h"
#include "plain.h"
#include "source_files.h"
#include "sync_calls.h"

#define GGML_Q8_0 8u
#define GGML_BF16 30u
#define EXPERTS 3u

static struct fixture model;
static char log_text[4096];
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void log_line(void *arg, enum efs_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    pthread_mutex_lock(&log_lock);
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof(log_text) - used, "%s\n", line);
    pthread_mutex_unlock(&log_lock);
}

static bool logged(const char *text)
{
    pthread_mutex_lock(&log_lock);
    bool found = strstr(log_text, text);
    pthread_mutex_unlock(&log_lock);
    return found;
}

static int setup(void **state)
{
    *state = &model;
    fixture_begin(&model);
    log_text[0] = '\0';
    return 0;
}

static void in_source(char *path, size_t bytes, const char *name)
{
    assert_true((size_t)snprintf(path, bytes, "%s/%s", model.source, name) < bytes);
}

/* A write in the same tick of the clock as the last one does not change the modification time. */
static void set_mtime(const char *path, time_t seconds)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = seconds}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void file_put(const char *name, const void *data, size_t bytes)
{
    char path[700];
    fixture_file(&model, name, data, bytes);
    in_source(path, sizeof(path), name);
    set_mtime(path, 1000000);
}

/* A layer with fused experts in Q8_0 rows of 32, and a dense tensor whose length is no multiple of 64: what follows it
 * starts 32 bytes off. */
static void gguf_bytes(struct sf_bytes *out, unsigned layer, unsigned rows, uint64_t seed)
{
    const uint64_t fused[] = {32, rows, EXPERTS}, dense[] = {16, 3};
    char name[64];
    *out = (struct sf_bytes){0};
    sf_gguf_header(out, 3, 4, 1);
    sf_string(out, "general.architecture");
    sf_number(out, 8, 4);
    sf_string(out, "qwen3moe");
    uint64_t part = 34ull * rows * EXPERTS, at = 0;
    snprintf(name, sizeof(name), "blk.%u.attn_norm.weight", layer);
    sf_gguf_tensor(out, name, 2, dense, GGML_BF16, at);
    at += 96;
    for (unsigned i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "blk.%u.ffn_%s_exps.weight", layer, i == 0 ? "gate" : i == 1 ? "up" : "down");
        sf_gguf_tensor(out, name, 3, fused, GGML_Q8_0, at);
        at = (at + part + 31) / 32 * 32;
    }
    sf_align(out, 32);
    size_t begin = out->count;
    sf_zero(out, (size_t)at);
    for (size_t i = begin; i < out->count; i++)
        out->data[i] = (uint8_t)fixture_random(&seed);
}

static void gguf_put(const char *name, unsigned layer, unsigned rows, uint64_t seed)
{
    struct sf_bytes file;
    gguf_bytes(&file, layer, rows, seed);
    file_put(name, file.data, file.count);
    free(file.data);
}

static void open_at(const char *name)
{
    in_source(model.store, sizeof(model.store), name);
}

/* Reads of any offset and length of all files of the checkpoint. */
static void check_random_reads(struct efs *fs)
{
    uint64_t random = 5;
    for (uint32_t f = 0; f < efs_file_count(fs); f++) {
        const struct efs_file_info info = fixture_file_info(fs, f);
        char path[2000];
        size_t size;
        if (info.kind != EFS_FILE_CHECKPOINT || info.bytes == 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", model.source, info.path);
        unsigned char *want = fixture_read(path, &size), *got = malloc(size);
        assert_non_null(got);
        for (unsigned n = 0; n < 50; n++) {
            uint64_t at = fixture_random(&random) % size;
            size_t bytes = (size_t)(1 + fixture_random(&random) % (n % 2 ? 100 : size)), left = size - (size_t)at;
            bytes = bytes < left ? bytes : left;
            assert_int_equal(read_wait(fs, f, NULL, at, got, bytes), bytes);
            assert_memory_equal(got, want + at, bytes);
        }
        free(want);
        free(got);
    }
}

/* An expert's file has a header and the slices of its tensors at page borders. */
static void check_experts(struct efs *fs, unsigned count)
{
    assert_int_equal(efs_expert_count(fs), count);
    for (uint32_t e = 0; e < count; e++) {
        uint32_t file;
        size_t bytes;
        free(fixture_expert(fs, e, &file, &bytes));
    }
}

static void check_open(const char *name, unsigned files, unsigned experts)
{
    const bool kinds[] = {false, true};
    open_at(name);
    for (unsigned i = 0; i < 2; i++) {
        struct efs *fs = fixture_open(
            &model, (struct efs_options){.no_state = true,
                                         .store_direct = kinds[i] ? EFS_STORE_DIRECT_OFF : EFS_STORE_DIRECT_AUTO,
                                         .log = log_line,
                                         .workers = 2});
        assert_int_equal(fixture_check_files(&model, fs), files);
        check_random_reads(fs);
        check_experts(fs, experts);
        efs_close(fs);
    }
    struct efs_store *store;
    struct efs_error err = {""};
    uint64_t damaged = 0;
    assert_int_equal(efs_store_open(model.store, &store, &err), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(efs_store_verify(store, true, 2, NULL, NULL, NULL, &damaged, &err), 0);
    efs_store_close(store);
    assert_string_equal(log_text, "");
}

TEST_WITH(gguf, setup, fixture_teardown)
{
    gguf_put("model.gguf", 0, 1000, 1);
    check_open("model.gguf", 1, EXPERTS);
    check_open("", 1, EXPERTS);
}

/* Larger than a shard and an extent, and larger than the limit below which files are read through the page cache. */
TEST_WITH(large_gguf, setup, fixture_teardown)
{
    gguf_put("sha256-0123", 0, 50001, 1); /* known by its magic */
    check_open("sha256-0123", 1, EXPERTS);
}

/* One part opens the model; files that only resemble a part are left out. */
TEST_WITH(split_gguf, setup, fixture_teardown)
{
    gguf_put("m-00001-of-00003.gguf", 0, 300, 1);
    gguf_put("m-00002-of-00003.gguf", 1, 31, 2);
    gguf_put("m-00003-of-00003.gguf", 2, 700, 3);
    gguf_put("m-00001-of-00002.gguf", 5, 3, 4);
    gguf_put("mm-00002-of-00003.gguf", 5, 3, 5);
    check_open("m-00002-of-00003.gguf", 3, 3 * EXPERTS);
}

TEST_WITH(safetensors, setup, fixture_teardown)
{
    fixture_spread(&model);
    check_open("", 5, 2);
    check_open("model-1.safetensors", 1, 2);
}

/* Tensors begin at any byte. */
TEST_WITH(odd_safetensors, setup, fixture_teardown)
{
    struct sf_bytes file = {0};
    char header[200];
    uint64_t seed = 3;
    int n = snprintf(header, sizeof(header),
                     "{\"a\":{\"dtype\":\"U8\",\"shape\":[1700001],\"data_offsets\":[0,1700001]},\"b\":{\"dtype\":"
                     "\"BF16\",\"shape\":[3,5],\"data_offsets\":[1700001,1700031]}}");
    sf_safetensors(&file, header, (size_t)n, 1700031);
    for (size_t i = 8 + (size_t)n; i < file.count; i++)
        file.data[i] = (uint8_t)fixture_random(&seed);
    file_put("a.safetensors", file.data, file.count);
    free(file.data);
    check_open("a.safetensors", 1, 0);
}

/* ---- changes ---- */

enum change { APPEND, TRUNCATE, OVERWRITE, REPLACE, REMOVE, TOUCH, CHMOD, LINK, CHANGES };

static void apply(enum change change, const char *path)
{
    char other[800];
    snprintf(other, sizeof(other), "%s.other", path);
    switch (change) {
    case APPEND:
        assert_int_equal(truncate(path, 200000), 0);
        break;
    case TRUNCATE:
        assert_int_equal(truncate(path, 5000), 0);
        break;
    case OVERWRITE:
        fixture_damage(path, 6000);
        break;
    case REPLACE:
        gguf_put("model.gguf.other", 0, 1000, 1); /* the same bytes and modification time */
        assert_int_equal(rename(other, path), 0);
        break;
    case REMOVE:
        assert_int_equal(unlink(path), 0);
        break;
    case TOUCH:
        set_mtime(path, 2000000);
        break;
    case CHMOD:
        assert_int_equal(chmod(path, 0600), 0);
        break;
    default:
        assert_int_equal(link(path, other), 0);
    }
}

/* A file that is no longer the one that was opened gives an error, once with the reason, and never its new bytes. */
TEST_WITH(changed_file, setup, fixture_teardown)
{
    static const char *const reasons[CHANGES] = {"its size changed from 306",
                                                 "its size changed from 306",
                                                 "it was written to",
                                                 "it was replaced by another file",
                                                 "it was removed",
                                                 "it was written to"};
    char path[700];
    in_source(path, sizeof(path), "model.gguf");
    for (unsigned change = 0; change < CHANGES; change++) {
        unsigned char bytes[4096];
        gguf_put("model.gguf", 0, 1000, 1);
        open_at("model.gguf");
        log_text[0] = '\0';
        struct efs *fs = fixture_open(&model, (struct efs_options){.no_state = true, .log = log_line});
        uint32_t file = fixture_file_named(fs, "model.gguf");
        apply(change, path);
        for (unsigned i = 0; i < 2; i++)
            assert_int_equal(read_wait(fs, file, NULL, 6000 + 40000 * i, bytes, sizeof(bytes)),
                             reasons[change] ? -EIO : (ssize_t)sizeof(bytes));
        if (reasons[change]) {
            assert_true(logged(reasons[change]));
            assert_null(strstr(strstr(log_text, "since it was opened") + 1, "since it was opened"));
        }
        efs_close(fs);
        remove(path);
    }
}

/* Damage that leaves size and time as they were is found when bytes that were read before are read again. */
TEST_WITH(damage_between_reads, setup, fixture_teardown)
{
    struct efs_store *store;
    struct efs_error err = {""};
    uint64_t damaged = 0;
    char path[700];
    gguf_put("model.gguf", 0, 1000, 1);
    open_at("model.gguf");
    in_source(path, sizeof(path), "model.gguf");
    assert_int_equal(efs_store_open(model.store, &store, &err), 0);
    assert_int_equal(efs_store_verify(store, false, 1, NULL, NULL, NULL, &damaged, &err), 0);
    fixture_damage(path, 50000);
    set_mtime(path, 1000000);
    assert_int_equal(efs_store_verify(store, false, 1, NULL, NULL, NULL, &damaged, &err), -EIO);
    assert_int_equal(damaged, 1);
    efs_store_close(store);
}

/* ---- what is refused, and what the index says ---- */

static void check_refused(const char *name, errint_t rc, const char *reason)
{
    struct efs_store *store;
    struct efs_error err = {""};
    open_at(name);
    assert_int_equal(efs_store_open(model.store, &store, &err), rc);
    if (!strstr(err.text, reason))
        fail_msg("%s", err.text);
}

TEST_WITH(refused, setup, fixture_teardown)
{
    struct sf_bytes file;
    check_refused("", -EISDIR, "not a regular file but a directory");
    file_put("notes.txt", "text", 4);
    fixture_file(&model, "below/model.gguf", "GGUF", 4);
    check_refused("", -EISDIR, "not a regular file but a directory");
    check_refused("notes.txt", -EUCLEAN, "not an expertfs store");
    gguf_bytes(&file, 0, 100, 1);
    file_put("cut.gguf", file.data, file.count / 2);
    check_refused("cut.gguf", -ENODATA, "cut.gguf");
    file_put("x-00001-of-00002.gguf", file.data, file.count);
    check_refused("x-00001-of-00002.gguf", -ENODATA, "is one part of 2");
    file_put("p-00001-of-00003.gguf", file.data, file.count);
    file_put("p-00003-of-00003.gguf", file.data, file.count);
    check_refused("p-00001-of-00003.gguf", -ENODATA, "p-00002-of-00003.gguf is missing");
    free(file.data);
    file_put("lfs.gguf", "version https://git-lfs.github.com/spec/v1\n", 43);
    check_refused("lfs.gguf", -ENODATA, "Git LFS pointer");
}

/* Checkpoints of equal layout have different hashes, because what was learned of one is no use to the other. */
TEST_WITH(identity, setup, fixture_teardown)
{
    uint64_t hashes[3];
    for (unsigned i = 0; i < 3; i++) {
        struct efs_store *store;
        struct efs_store_info info;
        struct efs_error err = {""};
        char path[700];
        if (i != 1)
            gguf_put("model.gguf", 0, 100, i);
        open_at("model.gguf");
        in_source(path, sizeof(path), "model.gguf");
        set_mtime(path, i == 2 ? 3000000 : 1000000);
        assert_int_equal(efs_store_open(model.store, &store, &err), 0);
        efs_store_info(store, &info);
        hashes[i] = info.content_hash;
        assert_true(info.in_place);
        assert_int_equal(info.expert_coded_bytes, info.expert_raw_bytes);
        efs_store_close(store);
    }
    assert_true(hashes[0] == hashes[1]);
    assert_true(hashes[0] != hashes[2]);
}

/* The store of a mount is the one that was packed, also if its path looks like a checkpoint's. */
TEST_WITH(packed_store, setup, fixture_teardown)
{
    struct efs_store *store;
    struct efs_store_info info;
    struct efs_error err = {""};
    fixture_moe(&model, 1, 2, 64, 64);
    snprintf(model.store, sizeof(model.store), "%s/model.gguf", model.directory);
    fixture_pack(&model, NULL);
    assert_int_equal(efs_store_open(model.store, &store, &err), 0);
    efs_store_info(store, &info);
    assert_false(info.in_place);
    efs_store_close(store);
}

/* Any bytes in place of some of a header's: refused with a reason, or the file's bytes are served. */
TEST_WITH(broken_headers, setup, fixture_teardown)
{
    struct sf_bytes file;
    uint64_t random = 11;
    unsigned opened = 0;
    gguf_bytes(&file, 0, 20, 1);
    open_at("model.gguf");
    uint8_t *changed = malloc(file.count), *got = malloc(file.count);
    assert_true(changed && got);
    for (unsigned n = 0; n < (SANITIZED ? 500 : 3000); n++) {
        struct efs_store *store;
        struct efs_error err = {""};
        memcpy(changed, file.data, file.count);
        for (unsigned i = 0; i <= n % 4; i++)
            changed[fixture_random(&random) % 500] = (uint8_t)fixture_random(&random);
        size_t bytes = n % 5 ? file.count : (size_t)(fixture_random(&random) % file.count);
        file_put("model.gguf", changed, bytes);
        if (efs_store_open(model.store, &store, &err) < 0) {
            assert_true(err.text[0]);
            continue;
        }
        opened++;
        assert_int_equal(efs_plain_read(store->plain, sizeof(struct efs_disk_superblock), got, bytes), 0);
        assert_memory_equal(got, changed, bytes);
        efs_store_close(store);
    }
    assert_true(opened > 10);
    free(changed);
    free(got);
    free(file.data);
}

TEST_MAIN(NULL, NULL)
