/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads at the border of two experts (engine/fetch/slot.c): of the expert that is not in memory the first one
 * reads a whole shard, later ones a few pages, with the same bytes; damage is found, and a checkpoint in place needs no
 * first read.
 */
#include <errno.h>
#include <stdlib.h>

#include "test.h"
#include "fixture.h"
#include "expertfs-private.h"
#include "fragment.h"
#include "kernels.h"
#include "store.h"
#include "sync_calls.h"

#define ELEMENTS (1u << 20) /* of an expert, in 16 shards; in place in two to eight */
#define SHARD_ELEMENTS (64u << 10)
#define PAGE 4096u
#define READ_BYTES 40000u

static const struct {
    const char *dtype;
    unsigned width, most_pages; /* a block of SM, a span of E at most, and pages that these begin and end in */
} formats[] = {{"BF16", 2, 12}, {"F16", 2, 12}, {"F32", 4, 20}, {"F8_E4M3", 1, 10}, {"U8", 1, 10}};
#define FORMATS (sizeof(formats) / sizeof(formats[0]))

static struct fixture models[FORMATS];
static unsigned char *raw[FORMATS];
static size_t border[FORMATS]; /* of the two experts in the file */

static int setup(void **state)
{
    (void)state;
    for (unsigned f = 0; f < FORMATS; f++) {
        const uint64_t bytes = (uint64_t)ELEMENTS * formats[f].width;
        const struct fixture_tensor tensors[] = {
            {"model.embed_tokens.weight",
             "BF16",
             2,
             {256, 512},
             256 << 10}, /* with page checksums: small_reads_bytes */
            {"model.layers.0.mlp.experts.0.gate_proj.weight", formats[f].dtype, 2, {1024, 1024}, bytes},
            {"model.layers.0.mlp.experts.1.gate_proj.weight", formats[f].dtype, 2, {1024, 1024}, bytes},
        };
        size_t all;
        fixture_begin(&models[f]);
        fixture_safetensors(&models[f], "model.safetensors", tensors, 3, 7 + f);
        fixture_pack(&models[f], &(struct efs_pack_options){.codec = EFS_CHOOSE_CASCADE,
                                                            .shard_elements = SHARD_ELEMENTS,
                                                            .small_reads_bytes = 64 << 10});
        raw[f] = fixture_weights(&models[f], &all);
        border[f] = all - bytes;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (unsigned f = 0; f < FORMATS; f++) {
        free(raw[f]);
        fixture_end(&models[f]);
    }
    return 0;
}

static struct efs *open_source(const char *path)
{
    struct efs_error err = {""};
    struct efs *fs = NULL;
    const struct efs_options options = {.workers = 2, .no_state = true, .budget_bytes = 64 << 20};
    assert_int_equal(efs_open(path, &options, &fs, &err), 0);
    return fs;
}

/* Reads READ_BYTES, of which `before` are of expert 0. Returns the bytes that were read from the disk. */
static uint64_t read_border(struct efs *fs, unsigned f, size_t before, ssize_t expected)
{
    unsigned char got[READ_BYTES];
    const struct efs_stats old = fixture_drain(fs);
    const size_t at = border[f] - before;
    const ssize_t rc = read_wait(fs, fixture_file_named(fs, "model.safetensors"), NULL, at, got, READ_BYTES);
    assert_int_equal(rc, expected);
    if (rc > 0)
        assert_memory_equal(got, raw[f] + at, READ_BYTES);
    const struct efs_stats now = fixture_drain(fs);
    assert_int_equal(now.reads_edge - old.reads_edge, before > 0);
    return now.disk_bytes - old.disk_bytes;
}

/* The disk bytes of the last shard of expert 0. */
static struct efs_disk_shard last_shard(struct efs *fs, uint64_t *bytes)
{
    const struct efs_store *store = efs_get_store(fs);
    const struct efs_disk_object *o = &store->objects[store->groups[0].object_first];
    const struct efs_disk_shard s = store->shards[o->shard_first + o->shard_count - 1];
    *bytes = s.e_bytes + s.sm_bytes;
    return s;
}

TEST(pages_after_the_first_read)
{
    for (unsigned f = 0; f < FORMATS; f++) {
        struct efs *fs = open_source(models[f].store);
        uint64_t shard;
        last_shard(fs, &shard);
        read_border(fs, f, 0, READ_BYTES); /* expert 1 is in memory from now on */
        assert_true(read_border(fs, f, 3001, READ_BYTES) >= shard);
        for (size_t before = 1; before < 6000; before += 997) {
            const uint64_t read = read_border(fs, f, before, READ_BYTES);
            assert_in_range(read, PAGE, formats[f].most_pages * PAGE);
        }
        efs_lock(fs);
        while (efs_fragments_evict(fs, false))
            ;
        efs_unlock(fs);
        assert_true(read_border(fs, f, 3001, READ_BYTES) >= shard);
        fixture_within_budget(fs);
        efs_close(fs);
    }
}

/* A page that is damaged later is not returned; other pages of its shard are. */
TEST(damage)
{
    for (unsigned f = 0; f < FORMATS; f++) {
        struct efs *fs = open_source(models[f].store);
        uint64_t bytes;
        const struct efs_disk_shard shard = last_shard(fs, &bytes);
        const uint64_t begin = shard.sm_bytes ? shard.sm_offset : shard.e_offset + shard.e_bytes / 3;
        const uint64_t end =
            shard.sm_bytes ? begin + shard.sm_bytes : shard.e_offset + shard.e_bytes - EFS_CASCADE_SLACK;
        read_border(fs, f, 0, READ_BYTES);
        read_border(fs, f, 3000, READ_BYTES);
        fixture_damage(models[f].store, end - 1);
        read_border(fs, f, 3000, -EUCLEAN);
        const struct efs_stats s = fixture_drain(fs);
        assert_true(s.chunks_damaged > 0);
        fixture_damage(models[f].store, end - 1); /* restores it */
        fixture_damage(models[f].store, begin);
        read_border(fs, f, 3000, READ_BYTES);
        fixture_damage(models[f].store, begin);
        efs_close(fs);
    }
}

TEST(in_place)
{
    for (unsigned f = 0; f < FORMATS; f++) {
        struct efs *fs = open_source(models[f].source);
        read_border(fs, f, 0, READ_BYTES);
        for (size_t before = 1; before < 9000; before += 997)
            assert_in_range(read_border(fs, f, before, READ_BYTES), PAGE, (before / PAGE + 2) * PAGE);
        efs_close(fs);
    }
}

TEST_MAIN(setup, teardown)
