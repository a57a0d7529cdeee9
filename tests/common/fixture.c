/* SPDX-License-Identifier: Apache-2.0 */
/* fixture.c - see fixture.h. */
#include "fixture.h"
#include "expertfs-compute.h"
#include "patience.h"
#include "random.h"
#include "sync_calls.h"
#include "tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define PLAN_TRIES (500 * PATIENCE_SECONDS)

uint64_t fixture_random(uint64_t *state)
{
    return efs_random(state);
}

void fixture_begin(struct fixture *f)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(f->directory, sizeof(f->directory), "%s/efs-test-XXXXXX", tmp && *tmp ? tmp : "/var/tmp");
    assert_non_null(mkdtemp(f->directory));
    snprintf(f->source, sizeof(f->source), "%s/src", f->directory);
    snprintf(f->store, sizeof(f->store), "%s/model.efs", f->directory);
    assert_int_equal(mkdir(f->source, 0755), 0);
}

void fixture_end(struct fixture *f)
{
    tree_remove(f->directory);
}

int fixture_teardown(void **state)
{
    fixture_end(*state);
    return 0;
}

void fixture_file_below(const char *directory, const char *path, const void *data, size_t bytes)
{
    char full[1400];
    assert_true((size_t)snprintf(full, sizeof(full), "%s/%s", directory, path) < sizeof(full));
    for (char *p = full + strlen(directory) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        assert_true(mkdir(full, 0755) == 0 || errno == EEXIST);
    }
    FILE *file = fopen(full, "wb");
    assert_non_null(file);
    if (bytes)
        assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

void fixture_file(const struct fixture *f, const char *path, const void *data, size_t bytes)
{
    fixture_file_below(f->source, path, data, bytes);
}

/* BF16 pairs whose exponents fall off geometrically around 2^-6, as those of weights do; plain bytes for other dtypes.
 */
static void fill(unsigned char *data, size_t bytes, uint64_t *state)
{
    for (size_t i = 0; i < bytes; i++) {
        uint64_t r = fixture_random(state);
        if (i % 2 == 0) {
            data[i] = (unsigned char)r;
        } else {
            unsigned exponent = 121u - (unsigned)__builtin_ctzll(r | 1u << 20);
            data[i] = (unsigned char)((r >> 40 & 1) << 7 | exponent >> 1);
        }
    }
}

void fixture_safetensors(const struct fixture *f, const char *path, const struct fixture_tensor *tensors,
                         unsigned count, unsigned seed)
{
    size_t capacity = 4096 + 512u * count, used = 0;
    uint64_t total = 0, state = seed;
    char *header = malloc(capacity);
    assert_non_null(header);
    used = (size_t)snprintf(header, capacity, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (unsigned i = 0; i < count; i++) {
        used += (size_t)snprintf(header + used, capacity - used, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                                 tensors[i].name, tensors[i].dtype);
        for (int d = 0; d < tensors[i].dims; d++)
            used += (size_t)snprintf(header + used, capacity - used, "%s%" PRIu64, d ? "," : "", tensors[i].shape[d]);
        used += (size_t)snprintf(header + used, capacity - used, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", total,
                                 total + tensors[i].bytes);
        total += tensors[i].bytes;
        assert_true(used < capacity);
    }
    header[used++] = '}';
    unsigned char *all = malloc(8 + used + total);
    assert_non_null(all);
    uint64_t length = used;
    memcpy(all, &length, 8);
    memcpy(all + 8, header, used);
    fill(all + 8 + used, total, &state);
    fixture_file(f, path, all, 8 + used + total);
    free(all);
    free(header);
}

void fixture_moe(const struct fixture *f, unsigned layers, unsigned experts, unsigned rows, unsigned columns)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    unsigned count = 0, most = layers * (experts * 3 + 1) + 1;
    struct fixture_tensor *t = calloc(most, sizeof(*t));
    char(*names)[128] = calloc(most, sizeof(*names));
    assert_non_null(t);
    assert_non_null(names);
    snprintf(names[count], sizeof(*names), "model.embed_tokens.weight");
    t[count] = (struct fixture_tensor){names[count], "BF16", 2, {50, columns}, 100ull * columns};
    count++;
    for (unsigned l = 0; l < layers; l++) {
        snprintf(names[count], sizeof(*names), "model.layers.%u.input_layernorm.weight", l);
        t[count] = (struct fixture_tensor){names[count], "BF16", 1, {columns + l}, 2ull * (columns + l)};
        count++;
        for (unsigned e = 0; e < experts; e++)
            for (unsigned p = 0; p < 3; p++) {
                snprintf(names[count], sizeof(*names), "model.layers.%u.mlp.experts.%u.%s.weight", l, e, parts[p]);
                t[count] = (struct fixture_tensor){names[count], "BF16", 2, {rows, columns}, 2ull * rows * columns};
                if (p == 2)
                    t[count].shape[0] = columns, t[count].shape[1] = rows;
                count++;
            }
    }
    fixture_safetensors(f, "model.safetensors", t, count, 7);
    fixture_file(f, "config.json", "{\"model_type\": \"qwen3_moe\"}\n", 28);
    fixture_file(f, "sub/empty.txt", "", 0);
    free(names);
    free(t);
}

void fixture_spread(const struct fixture *f)
{
    static const struct fixture_tensor first[] = {
        {"model.embed_tokens.weight", "BF16", 2, {300, 128}, 76800},
        {"model.layers.0.mlp.experts.0.gate_proj.weight", "BF16", 2, {160, 128}, 40960},
        {"model.layers.0.mlp.experts.0.up_proj.weight", "BF16", 2, {160, 128}, 40960},
        {"model.layers.0.mlp.experts.1.gate_proj.weight", "BF16", 2, {160, 128}, 40960},
    };
    static const struct fixture_tensor second[] = {
        {"model.layers.0.mlp.experts.1.up_proj.weight", "BF16", 2, {160, 128}, 40960},
        {"model.layers.0.mlp.experts.0.down_proj.weight", "BF16", 2, {128, 160}, 40960},
        {"model.layers.0.mlp.experts.1.down_proj.weight", "BF16", 2, {128, 160}, 40960},
        {"model.norm.weight", "F32", 1, {129}, 516},
    };
    unsigned char odd[5001];
    memset(odd, 7, sizeof(odd));
    fixture_safetensors(f, "model-1.safetensors", first, 4, 1);
    fixture_safetensors(f, "model-2.safetensors", second, 4, 2);
    fixture_file(f, "config.json", "{\"model_type\": \"qwen3_moe\"}\n", 28);
    fixture_file(f, "sub/deeper/odd.bin", odd, sizeof(odd));
    fixture_file(f, "sub/empty.txt", "", 0);
}

void fixture_pack(const struct fixture *f, const struct efs_pack_options *options)
{
    struct efs_error err = {""};
    struct efs_pack_options none = {.threads = 2, .shard_elements = 8192, .force = true};
    struct efs_pack_report *report = calloc(1, sizeof(*report));
    assert_non_null(report);
    errint_t rc = efs_pack(f->source, f->store, options ? options : &none, report, &err);
    if (rc < 0)
        print_error("%s\n", err.text);
    assert_int_equal(rc, 0);
    free(report);
}

void fixture_store(struct fixture *fixture, unsigned layers, unsigned experts, unsigned rows, unsigned columns)
{
    fixture_begin(fixture);
    fixture_moe(fixture, layers, experts, rows, columns);
    fixture_pack(fixture, NULL);
}

struct efs *fixture_open(const struct fixture *f, struct efs_options options)
{
    struct efs_error err = {""};
    struct efs *fs;
    if (efs_open(f->store, &options, &fs, &err) < 0)
        fail_msg("%s", err.text);
    return fs;
}

unsigned char *fixture_read(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    return data;
}

unsigned char *fixture_weights(const struct fixture *f, size_t *bytes)
{
    char path[400];
    snprintf(path, sizeof(path), "%s/model.safetensors", f->source);
    return fixture_read(path, bytes);
}

void fixture_damage(const char *path, uint64_t offset)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

unsigned fixture_entry_count(const char *directory)
{
    DIR *d = opendir(directory);
    unsigned n = 0;
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

unsigned fixture_open_fds(void)
{
    return fixture_entry_count("/proc/self/fd");
}

unsigned fixture_check_files(const struct fixture *fixture, struct efs *fs)
{
    unsigned count = 0;
    for (uint32_t i = 0; i < efs_file_count(fs); i++) {
        const struct efs_file_info info = fixture_file_info(fs, i);
        char path[2000];
        size_t bytes;
        if (info.kind != EFS_FILE_CHECKPOINT)
            continue;
        snprintf(path, sizeof(path), "%s/%s", fixture->source, info.path);
        unsigned char *want = fixture_read(path, &bytes), *got = malloc(bytes + 100);
        assert_non_null(got);
        assert_int_equal(bytes, info.bytes);
        assert_int_equal(read_wait(fs, i, NULL, 0, got, bytes + 100), bytes);
        assert_memory_equal(got, want, bytes);
        free(want);
        free(got);
        count++;
    }
    return count;
}

struct efs_expert_info fixture_expert_info(struct efs *fs, uint32_t expert)
{
    struct efs_expert_info info;
    assert_int_equal(efs_expert_info(fs, efs_id(expert), &info), 0);
    return info;
}

struct efs_file_info fixture_file_info(struct efs *fs, uint32_t file)
{
    struct efs_file_info info;
    assert_int_equal(efs_file_info(fs, file, &info), 0);
    return info;
}

uint32_t fixture_file_named(struct efs *fs, const char *path)
{
    for (uint32_t i = 0; i < efs_file_count(fs); i++)
        if (strcmp(fixture_file_info(fs, i).path, path) == 0)
            return i;
    fail_msg("no file %s", path);
    return 0;
}

/* In place of libc's: tests wait for the thread of idle work, and on busy processors its class would take minutes. */
_Thread_local int fixture_class = SCHED_OTHER;
int sched_setscheduler(pid_t thread, int class, const struct sched_param *param)
{
    (void)thread;
    (void)param;
    fixture_class = class;
    return 0;
}

struct efs_stats fixture_drain(struct efs *fs)
{
    struct efs_stats s;
    efs_stats(fs, &s);
    while (s.inflight) {
        usleep(100); /* of an idle processor: a thread of class SCHED_IDLE may be what is waited for */
        efs_stats(fs, &s);
    }
    return s;
}

uint64_t fixture_used_bytes(const struct efs_stats *stats)
{
    return stats->fixed_bytes + stats->chunk_pool_bytes + stats->full_pool_bytes;
}

void fixture_within_budget(struct efs *fs)
{
    const struct efs_stats s = fixture_drain(fs);
    assert_true(fixture_used_bytes(&s) <= s.budget_bytes);
}

struct efs_client_request *fixture_submit(struct efs *fs, const struct efs_need *needs, uint32_t count,
                                          enum efs_form form)
{
    const struct efs_request_how how = {.form = form};
    struct efs_client_request *request;
    struct efs_error err = {""};
    if (efs_request_submit(fs, needs, count, &how, &request, &err) < 0)
        fail_msg("%s", err.text);
    return request;
}

void fixture_lease_once(struct efs *fs, uint32_t file)
{
    struct efs_lease *lease;
    assert_int_equal(lease_wait(fs, file, &lease), 0);
    efs_lease_release(lease);
}

unsigned char *fixture_expert(struct efs *fs, uint32_t expert, uint32_t *file, size_t *bytes)
{
    *file = fixture_expert_info(fs, expert).file;
    *bytes = fixture_file_info(fs, *file).bytes;
    unsigned char *data = malloc(*bytes);
    assert_non_null(data);
    assert_int_equal(read_wait(fs, *file, NULL, 0, data, *bytes), *bytes);
    return data;
}

errint_t fixture_prefetch(struct efs *fs, unsigned layer, const struct efs_need *needs, unsigned count,
                          struct efs_error *err)
{
    struct efs_need found[64];
    assert_true(count <= sizeof(found) / sizeof(found[0]));
    memcpy(found, needs, count * sizeof(*needs));
    errint_t rc = efs_experts_find(fs, "", layer, found, count, err);
    return rc < 0 ? rc : efs_experts_want(fs, found, count, err);
}

errint_t fixture_ffn(struct efs *fs, struct efs_team *team, const struct efs_mixture *mixture, struct efs_error *err)
{
    struct efs_mixture m = *mixture;
    struct efs_route_to to[64];
    struct efs_expert_info info, first = {.layer = 0};
    struct efs_client *client;
    m.experts = to;
    assert_true(m.expert_count <= sizeof(to) / sizeof(to[0]));
    for (uint32_t i = 0; i < m.expert_count; i++) {
        if (efs_expert_info(fs, efs_id(mixture->experts[i].expert), &info) < 0)
            return efs_fail(err, -ENOENT, "there is no expert %u", mixture->experts[i].expert);
        first = i ? first : info;
        if (info.layer != first.layer)
            return efs_fail(err, -EINVAL, "experts of two layers");
        to[i] = mixture->experts[i];
        to[i].expert = info.expert;
    }
    char *end = strrchr(first.name, '/'); /* names are STACK-L03/E017 or L03/E017 */
    while (end && end > first.name && *end != 'L')
        end--;
    first.name[end && end > first.name ? end - first.name - 1 : 0] = '\0';
    errint_t rc = efs_client_new(fs, &client, err);
    if (rc < 0)
        return rc;
    rc = efs_client_ffn(client, team, first.name, first.layer, &m, err);
    efs_client_close(client);
    return rc;
}

void fixture_set_and_plan(struct efs *fs, const char *name, const char *value)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    struct efs_error err = {""};
    struct efs_stats s;
    efs_stats(fs, &s);
    uint64_t before = s.plans;
    if (efs_set(fs, name, value, NULL, &err) < 0)
        fail_msg("%s=%s: %s", name, value, err.text);
    for (unsigned i = 0; i < PLAN_TRIES && s.plans == before; i++) {
        nanosleep(&pause, NULL);
        efs_stats(fs, &s);
    }
    assert_true(s.plans > before);
}

unsigned char *fixture_noise(size_t bytes)
{
    uint64_t state = 1;
    unsigned char *data = malloc(bytes);
    assert_non_null(data);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(fixture_random(&state) >> 56);
    return data;
}
