/* SPDX-License-Identifier: Apache-2.0 */
/* test_pack.c - packs, verifies and unpacks: byte for byte, for every source, codec and number of threads. */
#include "pack_fixture.h"
#include "layout.h"
#include "pack.h"
#include "tree.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Unpacks the store into a new directory and compares it with the source. */
static void unpacks(const struct fixture *f)
{
    static unsigned number;
    char out[400];
    struct efs_error err = {""};
    struct efs_store *store = open_store(f->store);
    snprintf(out, sizeof(out), "%s/out-%u", f->directory, number++);
    assert_int_equal(efs_store_unpack(store, out, false, 2, NULL, NULL, &err), 0);
    efs_store_close(store);
    assert_true(tree_same_bytes(f->source, out));
}

struct damage {
    unsigned lines;
    char last[2048];
};

static void count_damage(void *arg, const char *line)
{
    struct damage *d = arg;
    d->lines++;
    snprintf(d->last, sizeof(d->last), "%s", line);
}

/* Returns the number of damaged chunks. The result of efs_store_verify() and its lines must match it. */
static uint64_t verify(const char *path, bool decode, struct damage *damage)
{
    struct efs_error err = {""};
    uint64_t damaged = 77;
    struct efs_store *store = open_store(path);
    *damage = (struct damage){0};
    errint_t rc = efs_store_verify(store, decode, 3, NULL, count_damage, damage, &damaged, &err);
    assert_int_equal(rc, damaged ? -EUCLEAN : 0);
    assert_int_equal(damage->lines, damaged);
    efs_store_close(store);
    return damaged;
}

/* One checkpoint with everything that is valid but unusual. */
static void odd_checkpoint(const struct fixture *f)
{
    static const struct fixture_tensor tensors[] = {
        {"model.layers.0.mlp.experts.0.gate_proj.weight", "BF16", 2, {100, 301}, 60200},
        {"model.layers.0.mlp.experts.0.up_proj.weight", "F16", 2, {100, 301}, 60200},
        {"model.layers.0.mlp.experts.0.down_proj.weight", "F32", 2, {100, 301}, 120400},
        {"model.layers.0.mlp.experts.1.gate_proj.weight", "F8_E4M3", 2, {333, 301}, 100233},
        {"model.layers.0.mlp.experts.1.up_proj.weight", "F8_E5M2", 2, {333, 301}, 100233},
        {"model.layers.0.mlp.experts.1.down_proj.weight", "U8", 2, {333, 301}, 100233},
        {"model.layers.0.mlp.experts.1.gate_proj.weight_scale_inv", "F32", 0, {0}, 4},
        {"model.layers.1.mlp.experts.gate_up_proj", "BF16", 3, {7, 33, 257}, 118734},
        {"empty", "BF16", 2, {0, 5}, 0},
        {"scalar", "BF16", 0, {0}, 2},
        {"gr\xc3\xb6\xc3\x9f"
         "e \xe6\xa8\xa1\xe5\x9e\x8b",
         "I64",
         1,
         {1000},
         8000},
        {"one", "BOOL", 1, {1}, 1},
    };
    char *text = calloc(1, 300001);
    assert_non_null(text);
    for (int i = 0; i < 30000; i++)
        snprintf(text + 10 * i, 11, "line %04d\n", i % 7000);
    fixture_safetensors(f, "model.safetensors", tensors, sizeof(tensors) / sizeof(tensors[0]), 3);
    fixture_file(f, "tokenizer.json", text, 300000);
    fixture_file(f, "a/deep/er/directory/\xc3\xa4.txt", "x", 1);
    fixture_file(f, "a/empty", "", 0);
    fixture_file(f, "block", text, 4096);
    /* Raw safetensors: a header of odd length, padding in the header, tensors out of order. */
    const char header[] = "{\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[6,12]},"
                          "\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]}} ";
    unsigned char raw[8 + sizeof(header) - 1 + 12] = {0};
    uint64_t length = sizeof(header) - 1;
    memcpy(raw, &length, 8);
    memcpy(raw + 8, header, length);
    memcpy(raw + 8 + length, "abcdefghijkl", 12);
    assert_int_equal(length % 2, 1);
    fixture_file(f, "odd.safetensors", raw, sizeof(raw));
    free(text);
}

TEST(round_trips)
{
    static const uint32_t shards[] = {0, 8192, 65536};
    struct fixture f;
    struct damage damage;
    fixture_begin(&f);
    odd_checkpoint(&f);
    for (int codec = EFS_CHOOSE_AUTO; codec <= EFS_CHOOSE_RAW; codec++)
        for (size_t i = 0; i < sizeof(shards) / sizeof(shards[0]); i++) {
            struct efs_error err;
            struct efs_pack_options options = {
                .codec = (enum efs_codec_choice)codec, .shard_elements = shards[i], .verify = true, .force = true};
            assert_int_equal(pack(&f, &options, &err), 0);
            assert_int_equal(verify(f.store, true, &damage), 0);
            unpacks(&f);
        }
    fixture_end(&f);
}

TEST(single_file_and_no_tensors)
{
    struct fixture f;
    struct efs_error err;
    struct efs_pack_options options = {.force = true};
    char path[400];
    fixture_begin(&f);
    fixture_file(&f, "config.json", "{}", 2);
    fixture_file(&f, "nothing", "", 0);
    assert_int_equal(pack(&f, &options, &err), 0);
    assert_int_equal(report.tensors, 0);
    assert_int_equal(report.files, 2);
    assert_string_equal(report.notice, "");
    unpacks(&f);
    /* A single file: the store may be in the same directory, but must not replace the file. */
    fixture_moe(&f, 1, 2, 16, 64);
    snprintf(path, sizeof(path), "%s/model.safetensors", f.source);
    assert_int_equal(efs_pack(path, f.store, &options, &report, &err), 0);
    assert_int_equal(report.files, 1);
    assert_int_equal(report.experts, 2);
    assert_int_equal(efs_pack(path, path, &options, &report, &err), -EINVAL);
    fixture_end(&f);
}

TEST(same_bytes_for_any_threads)
{
    static const unsigned threads[] = {1, 2, 3, 8, 64};
    struct fixture f;
    struct efs_error err;
    size_t first_bytes = 0, bytes;
    unsigned char *first = NULL;
    fixture_begin(&f);
    odd_checkpoint(&f);
    fixture_moe(&f, 3, 8, 96, 512);
    for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
        struct efs_pack_options options = {.threads = threads[i], .shard_elements = 8192, .force = true};
        assert_int_equal(pack(&f, &options, &err), 0);
        unsigned char *store = fixture_read(f.store, &bytes);
        if (first) {
            assert_int_equal(bytes, first_bytes);
            assert_memory_equal(first, store, bytes);
            free(store);
        } else {
            first = store;
            first_bytes = bytes;
        }
    }
    free(first);
    fixture_end(&f);
}

/* An expert's E-chunks are contiguous, and so are its SM-chunks, which follow. Groups are in the order of the files. */
TEST(layout_is_contiguous)
{
    struct fixture f;
    fixture_store(&f, 2, 12, 96, 512);
    struct efs_store *s = open_store(f.store);
    assert_int_equal(s->expert_count, 24);
    uint64_t chunk_bytes = 0;
    for (uint32_t g = 0; g < s->group_count; g++) {
        const struct efs_disk_group *group = &s->groups[g];
        assert_int_equal(group->kind, g < 24 ? EFS_GROUP_EXPERT : group->kind);
        assert_true(g < 24 || group->kind != EFS_GROUP_EXPERT);
        uint64_t e = 0, sm = 0;
        for (uint32_t o = group->object_first; o < group->object_first + group->object_count; o++)
            for (uint32_t i = 0; i < s->objects[o].shard_count; i++) {
                const struct efs_disk_shard *shard = &s->shards[s->objects[o].shard_first + i];
                assert_true(!e || !shard->e_bytes || shard->e_offset == e);
                assert_true(!sm || !shard->sm_bytes || shard->sm_offset == sm);
                e = shard->e_bytes ? efs_chunk_up(shard->e_offset + shard->e_bytes) : e;
                sm = shard->sm_bytes ? efs_chunk_up(shard->sm_offset + shard->sm_bytes) : sm;
                chunk_bytes += efs_chunk_up(shard->e_bytes) + efs_chunk_up(shard->sm_bytes);
            }
        if (group->kind == EFS_GROUP_EXPERT) /* SM-chunks follow the last E-chunk */
            assert_int_equal(s->shards[s->objects[group->object_first].shard_first].sm_offset, e);
    }
    /* Chunks fill the range between superblock and index, except for zeros at the end of the last page. The index is
     * the end of the store. */
    assert_int_equal(efs_page_up(EFS_ALIGN + chunk_bytes), s->sb.tables[0].offset);
    const struct efs_disk_table *last = &s->sb.tables[EFS_TABLE_COUNT - 1];
    assert_int_equal(efs_page_up(last->offset + last->bytes), s->sb.store_bytes);
    assert_int_equal(s->part_count, 1);
    assert_int_equal(s->parts[0].bytes, s->sb.store_bytes);
    uint64_t at = 0; /* reading the files in order reads groups in order */
    for (uint32_t x = 0; x < s->extent_count; x++) {
        const struct efs_disk_object *o = &s->objects[s->extents[x].object];
        const struct efs_disk_shard *shard = &s->shards[o->shard_first];
        uint64_t begin = shard->e_bytes ? shard->e_offset : shard->sm_offset;
        assert_true(begin > at);
        at = begin;
    }
    efs_store_close(s);
    fixture_end(&f);
}

TEST(report_totals)
{
    struct fixture f;
    struct efs_error err;
    struct efs_pack_options options = {.force = true};
    struct stat st;
    fixture_begin(&f);
    fixture_moe(&f, 2, 4, 256, 1024);
    assert_int_equal(pack(&f, &options, &err), 0);
    assert_int_equal(stat(f.store, &st), 0);
    assert_int_equal(report.store_bytes, st.st_size);
    assert_int_equal(report.experts, 8);
    assert_int_equal(report.files, 3);
    uint64_t raw = 0, tensors = 0;
    for (unsigned i = 0; i < report.row_count; i++) {
        const struct efs_pack_row *row = &report.rows[i];
        raw += row->raw_bytes;
        tensors += strcmp(row->tensor_class, "other") ? row->tensors : 0;
        if (strcmp(row->tensor_class, "expert") == 0) {
            assert_string_equal(row->dtype, "BF16");
            assert_int_equal(row->tensors, 24);
            assert_int_equal(row->elements * 2, row->raw_bytes);
            assert_true(row->entropy_bits > 1 && row->entropy_bits < 3);
            assert_true(row->exponent_bits > 0.95 * row->entropy_bits && row->exponent_bits < 1.2 * row->entropy_bits);
            assert_true((double)row->coded_bytes < 1.04 * row->bound_bytes);
        }
    }
    assert_int_equal(raw, report.source_bytes);
    assert_int_equal(tensors, report.tensors);
    /* The report in the store is the same text, without times. */
    struct efs_store *s = open_store(f.store);
    char *json = efs_pack_report_json(&report);
    assert_non_null(json);
    assert_int_equal(strlen(json), s->sb.tables[EFS_TABLE_REPORT].bytes);
    assert_memory_equal(json, s->report, strlen(json));
    free(json);
    efs_store_close(s);
    fixture_end(&f);
}

/* Many small tensors and blobs share pages; each byte is restored. */
TEST(small_tensors_share_pages)
{
    enum { TENSORS = 300 };
    static struct fixture_tensor tensors[TENSORS];
    static char names[TENSORS][24];
    struct fixture f;
    struct efs_error err;
    struct damage damage;
    struct efs_pack_options options = {.force = true, .verify = true};
    uint64_t raw = 0;
    for (uint64_t i = 0; i < TENSORS; i++) {
        uint64_t elements = 1 + i * i % 3000;
        snprintf(names[i], sizeof(names[i]), "t.%03u", (unsigned)i);
        tensors[i] = (struct fixture_tensor){names[i], "BF16", 1, {elements}, 2 * elements};
        raw += 2 * elements;
    }
    fixture_begin(&f);
    fixture_safetensors(&f, "model.safetensors", tensors, TENSORS, 1);
    for (unsigned i = 0; i < 40; i++) {
        char name[24];
        snprintf(name, sizeof(name), "blob-%u", i);
        fixture_file(&f, name, names, i * 10 + 1);
    }
    assert_int_equal(pack(&f, &options, &err), 0);
    assert_int_equal(verify(f.store, true, &damage), 0);
    struct efs_store *s = open_store(f.store);
    uint64_t chunks = s->sb.tables[0].offset - EFS_ALIGN;
    if (chunks > raw + raw / 10)
        fail_msg("%llu bytes of chunks for %llu of tensors", (unsigned long long)chunks, (unsigned long long)raw);
    efs_store_close(s);
    unpacks(&f);
    fixture_end(&f);
}

/* A tensor smaller than a page is read with one or two pages in any coding, so it is stored raw. */
TEST(small_tensors_are_not_split)
{
    static const struct fixture_tensor tensors[] = {
        {"a", "BF16", 1, {2047}, 4094}, {"b", "BF16", 1, {2048}, 4096}, {"c", "BF16", 1, {8192}, 16384},
        {"d", "F32", 1, {64}, 256},     {"e", "F16", 1, {0}, 0},
    };
    static const enum efs_format formats[] = {EFS_FORMAT_BYTES, EFS_FORMAT_BF16, EFS_FORMAT_BF16, EFS_FORMAT_BYTES};
    struct fixture f;
    struct efs_error err;
    struct efs_pack_options options = {.force = true};
    fixture_begin(&f);
    fixture_safetensors(&f, "model.safetensors", tensors, 5, 1);
    assert_int_equal(pack(&f, &options, &err), 0);
    struct efs_store *s = open_store(f.store);
    assert_int_equal(s->tensor_count, 5);
    for (uint32_t o = 0; o < s->object_count; o++)
        if (s->objects[o].tensor != EFS_NONE)
            assert_int_equal(s->objects[o].format, formats[s->objects[o].tensor]);
    efs_store_close(s);
    for (unsigned i = 0; i < report.row_count; i++)
        if (strcmp(report.rows[i].dtype, "BF16") == 0) {
            assert_int_equal(report.rows[i].elements, 2048 + 8192);
            assert_true(report.rows[i].entropy_bits > 0.5 && report.rows[i].entropy_bits < 3);
            assert_true(report.rows[i].exponent_bits > report.rows[i].entropy_bits);
        }
    fixture_end(&f);
}

TEST(notices)
{
    static const struct fixture_tensor tensor = {"weight", "BF16", 1, {100}, 200};
    struct fixture f;
    struct efs_error err;
    struct efs_pack_options options = {.force = true};
    fixture_begin(&f);
    fixture_safetensors(&f, "model.safetensors", &tensor, 1, 1);
    assert_int_equal(pack(&f, &options, &err), 0);
    assert_non_null(strstr(report.warning, "packed as dense\nhint: the largest tensors are weight; "));
    assert_null(strstr(report.notice, "of its own"));
    assert_null(strstr(report.notice, "zstd"));
    fixture_file(&f, "experts/x", "x", 1);
    assert_int_equal(pack(&f, &options, &err), 0);
    assert_non_null(strstr(report.notice, "of its own"));
    fixture_end(&f);
}

TEST(existing_stores_are_kept)
{
    struct fixture f;
    struct efs_error err;
    struct efs_pack_options options = {0};
    size_t bytes;
    fixture_begin(&f);
    fixture_moe(&f, 1, 1, 16, 64);
    fixture_file_below(f.directory, "model.efs", "old", 3);
    assert_int_equal(pack(&f, &options, &err), -EEXIST);
    unsigned char *now = fixture_read(f.store, &bytes);
    assert_int_equal(bytes, 3);
    free(now);
    options.force = true;
    assert_int_equal(pack(&f, &options, &err), 0);
    efs_store_close(open_store(f.store));
    assert_int_equal(fixture_entry_count(f.directory), 4);
    fixture_end(&f);
}

TEST(damage_is_found_and_named)
{
    struct fixture f;
    struct damage damage;
    struct efs_error err = {""};
    char out[400];
    fixture_store(&f, 1, 3, 64, 256);
    struct efs_store *s = open_store(f.store);
    struct efs_disk_shard a = s->shards[s->objects[0].shard_first], b = s->shards[s->objects[4].shard_first];
    efs_store_close(s);
    assert_int_equal(verify(f.store, false, &damage), 0);
    fixture_damage(f.store, a.e_offset + 5);
    assert_int_equal(verify(f.store, false, &damage), 1);
    assert_non_null(strstr(damage.last, "E-chunk"));
    assert_non_null(strstr(damage.last, "experts.0."));
    fixture_damage(f.store, b.sm_offset + b.sm_bytes - 1);
    assert_int_equal(verify(f.store, true, &damage), 2);
    snprintf(out, sizeof(out), "%s/out", f.directory);
    s = open_store(f.store);
    assert_int_equal(efs_store_unpack(s, out, false, 2, NULL, NULL, &err), -EUCLEAN);
    assert_non_null(strstr(err.text, "chunk at store offset"));
    efs_store_close(s);
    assert_int_equal(access(out, F_OK), -1); /* no file is left, nor the directory */
    fixture_damage(f.store, a.e_offset + 5); /* a second flip restores the byte */
    assert_int_equal(verify(f.store, true, &damage), 1);
    assert_non_null(strstr(damage.last, "SM-chunk"));
    fixture_damage(f.store, b.sm_offset + b.sm_bytes - 1);
    assert_int_equal(verify(f.store, true, &damage), 0);
    s = open_store(f.store);
    uint64_t gap = 0;
    for (uint32_t i = 0; i < s->shard_count && gap == 0; i++)
        if (s->shards[i].sm_bytes % EFS_CHUNK_ALIGN != 0)
            gap = s->shards[i].sm_offset + s->shards[i].sm_bytes;
    efs_store_close(s);
    assert_true(gap != 0);
    fixture_damage(f.store, gap); /* padding, which readers ignore */
    assert_int_equal(verify(f.store, false, &damage), 1);
    assert_non_null(strstr(damage.last, "padding"));
    fixture_end(&f);
}

/* A store with page checksums: everything decodes to the source; damage to them is found. */
TEST(small_reads)
{
    struct fixture f;
    struct damage damage;
    struct efs_error err = {""};
    fixture_store(&f, 1, 3, 64, 256);
    for (enum efs_codec_choice codec = EFS_CHOOSE_AUTO; codec <= EFS_CHOOSE_RAW; codec++) {
        struct efs_pack_options options = {.codec = codec, .force = true, .verify = true, .small_reads_bytes = 4096};
        assert_int_equal(efs_pack(f.source, f.store, &options, &report, &err), 0);
        struct efs_store *s = open_store(f.store);
        uint64_t checks = 0;
        for (uint32_t i = 0; i < s->object_count; i++) {
            const struct efs_disk_object *o = &s->objects[i];
            const struct efs_disk_shard *shard = &s->shards[o->shard_first];
            bool expert = s->groups[o->group].kind == EFS_GROUP_EXPERT;
            bool some = shard->codec == EFS_CODEC_NONE || shard->codec == EFS_CODEC_CASCADE;
            assert_int_equal(shard->checks != 0, !expert && o->bytes >= 4096 && some);
            if (shard->checks)
                checks = (shard->sm_bytes ? shard->sm_offset : shard->e_offset) + 64ull * shard->checks;
        }
        assert_int_equal(s->sb.version, checks ? 3 : 2);
        assert_int_equal(s->sb.incompat, checks ? EFS_INCOMPAT_CHECKS : 0);
        efs_store_close(s);
        assert_int_equal(verify(f.store, true, &damage), 0);
        if (checks) {
            fixture_damage(f.store, checks + 2);
            assert_int_equal(verify(f.store, true, &damage), 1);
            assert_non_null(strstr(damage.last, "page checksums"));
        }
        assert_true(checks || codec == EFS_CHOOSE_ZSTD || codec == EFS_CHOOSE_LZ4);
    }
    fixture_end(&f);
}

TEST(unpack_refuses_overwrites)
{
    struct fixture f;
    struct efs_error err = {""};
    char out[300], path[400], elsewhere[400];
    size_t bytes;
    fixture_store(&f, 1, 2, 64, 256);
    struct efs_store *s = open_store(f.store);
    unsigned fds = fixture_open_fds();
    snprintf(out, sizeof(out), "%s/out", f.directory);
    assert_int_equal(mkdir(out, 0755), 0);
    /* An existing file is not replaced without force. */
    snprintf(path, sizeof(path), "%s/config.json", out);
    fixture_file_below(out, "config.json", "old", 3);
    assert_int_equal(efs_store_unpack(s, out, false, 2, NULL, NULL, &err), -EEXIST);
    unsigned char *now = fixture_read(path, &bytes);
    assert_int_equal(bytes, 3);
    free(now);
    assert_int_equal(fixture_entry_count(out), 3);
    /* A symbolic link in the destination is not followed. */
    snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", f.directory);
    snprintf(path, sizeof(path), "%s/sub", out);
    assert_int_equal(mkdir(elsewhere, 0755), 0);
    assert_int_equal(symlink(elsewhere, path), 0);
    assert_true(efs_store_unpack(s, out, true, 2, NULL, NULL, &err) < 0);
    assert_int_equal(fixture_entry_count(elsewhere), 2);
    assert_int_equal(unlink(path), 0);
    /* With force, existing files are replaced. */
    assert_int_equal(efs_store_unpack(s, out, true, 2, NULL, NULL, &err), 0);
    assert_true(tree_same_bytes(f.source, out));
    assert_int_equal(efs_store_unpack(s, f.store, false, 2, NULL, NULL, &err), -ENOTDIR);
    assert_int_equal(fixture_open_fds(), fds);
    efs_store_close(s);
    fixture_end(&f);
}

/* 2000 experts with tensors smaller than a page. */
TEST(many_small_experts)
{
    struct fixture f;
    struct damage damage;
    fixture_store(&f, 10, 200, 8, 40);
    struct efs_store *s = open_store(f.store);
    assert_int_equal(s->expert_count, 2000);
    efs_store_close(s);
    assert_int_equal(verify(f.store, true, &damage), 0);
    fixture_end(&f);
}

/* A sparse file, which costs no disk to read, with one tensor of `bytes` bytes, rounded down to elements. */
static void sparse_checkpoint(const struct fixture *f, const char *dtype, uint64_t element_bytes, uint64_t bytes)
{
    char path[400], header[512];
    uint64_t elements = bytes / element_bytes, length;
    int n = snprintf(header, sizeof(header),
                     "{\"model.layers.0.mlp.experts.0.up_proj.weight\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64
                     "],\"data_offsets\":[0,%" PRIu64 "]}}",
                     dtype, elements, elements * element_bytes);
    length = (uint64_t)n;
    snprintf(path, sizeof(path), "%s/model.safetensors", f->source);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, &length, 8), 8);
    assert_int_equal(write(fd, header, length), n);
    assert_int_equal(ftruncate(fd, (off_t)(8 + length + elements * element_bytes)), 0);
    close(fd);
}

/* An expert of more than one run (EFS_RUN_BYTES). Memory stays below 512 MiB with 64 threads and the largest shards. */
TEST(memory_is_bounded)
{
    static const struct {
        const char *dtype;
        uint64_t element_bytes;
        uint32_t shard_elements;
    } cases[] = {{"BF16", 2, EFS_SHARD_ELEMENTS_MAX}, {"F32", 4, EFS_SHARD_ELEMENTS_MAX}, {"BF16", 2, 0}};
    const uint64_t bytes = (SANITIZED ? 100ull : 400ull) << 20;
    struct fixture f;
    fixture_begin(&f);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rusage usage;
        int status;
        sparse_checkpoint(&f, cases[i].dtype, cases[i].element_bytes, bytes);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct efs_error err;
            struct efs_pack_options options = {
                .threads = 64, .shard_elements = cases[i].shard_elements, .force = true, .verify = true};
            _exit(efs_pack(f.source, f.store, &options, &report, &err) == 0 ? 0 : 1);
        }
        assert_int_equal(wait4(child, &status, 0, &usage), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        if (!SANITIZED)
            assert_true(usage.ru_maxrss < 512 << 10);
        struct efs_store *s = open_store(f.store);
        const struct efs_disk_object *o = &s->objects[0];
        bool second_run = false;
        for (uint32_t k = o->shard_first; k + 1 < o->shard_first + o->shard_count; k++) {
            uint64_t gap = s->shards[k + 1].e_offset - s->shards[k].e_offset;
            second_run |= gap > efs_chunk_up(s->shards[k].e_bytes); /* SM-chunks of the first run are in between */
        }
        assert_true(second_run);
        efs_store_close(s);
    }
    fixture_end(&f);
}

/* The tensors of a file that copies another one are freed, also those of types without a number. LeakSanitizer checks
 * this. */
TEST(copies_of_unknown_types)
{
    static const struct fixture_tensor tensors[] = {{"a", "F8_E3M4", 2, {100, 100}, 10000},
                                                    {"b", "I4", 1, {8192}, 4096}};
    const struct efs_pack_options options = {0};
    struct efs_error err;
    struct fixture f;
    fixture_begin(&f);
    fixture_safetensors(&f, "model.safetensors", tensors, 2, 3);
    fixture_safetensors(&f, "copy/model.safetensors", tensors, 2, 3);
    assert_int_equal(pack(&f, &options, &err), 0);
    assert_int_equal(report.tensors, 2);
    assert_non_null(strstr(report.notice, "has the bytes of"));
    fixture_end(&f);
}

static bool cancel_at_once(void *arg, uint64_t done_bytes, uint64_t total_bytes, const char *phase)
{
    (void)arg, (void)phase;
    assert_true(done_bytes <= total_bytes);
    return true;
}

/* Every byte of every file counts, and the list of files, in a checkpoint with files of equal bytes. */
TEST(comparing_finds_every_difference)
{
    static const struct efs_pack_options options = {.shard_elements = EFS_SHARD_ELEMENTS_MIN};
    struct efs_error err;
    struct fixture f;
    char path[500], other[520];
    struct stat st;
    fixture_begin(&f);
    odd_checkpoint(&f);
    assert_int_equal(pack(&f, &options, &err), 0);
    struct efs_store *store = open_store(f.store);
    assert_int_equal(efs_pack_compare(f.source, store, NULL, NULL, &err), 0);
    assert_int_equal(efs_pack_compare(f.source, store, cancel_at_once, NULL, &err), -ECANCELED);
    assert_int_equal(efs_pack_compare(f.store, store, NULL, NULL, &err), -ESTALE);
    snprintf(path, sizeof(path), "%s/model.safetensors", f.source);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    for (off_t at = 0; at < st.st_size;
         at += at + 1 < st.st_size && at + 4099 >= st.st_size ? st.st_size - 1 - at : 4099) {
        uint8_t byte, changed;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        changed = byte ^ 1;
        assert_int_equal(pwrite(fd, &changed, 1, at), 1);
        assert_int_equal(efs_pack_compare(f.source, store, NULL, NULL, &err), -ESTALE);
        assert_non_null(strstr(err.text, "model.safetensors: other bytes"));
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    assert_int_equal(efs_pack_compare(f.source, store, NULL, NULL, &err), 0);
    assert_int_equal(ftruncate(fd, st.st_size - 1), 0);
    assert_int_equal(efs_pack_compare(f.source, store, NULL, NULL, &err), -ESTALE);
    close(fd);
    snprintf(other, sizeof(other), "%s.moved", path);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(efs_pack_compare(f.source, store, NULL, NULL, &err), -ESTALE);
    assert_int_equal(efs_pack_compare("/nowhere", store, NULL, NULL, &err), -ENOENT);
    efs_store_close(store);
    fixture_end(&f);
}

TEST_MAIN(NULL, NULL)
