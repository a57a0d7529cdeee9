/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets each field of the superblock, of every table and of each codec's header in a chunk to eight other values, with
 * the checksums unchanged (damage) and recomputed (a forged store), by store_sweep.h.
 *
 * EXPERTFS_SWEEP=full takes up to FULL_RECORDS records of each table, all cascade chunks, and more bytes of each;
 * EXPERTFS_SLICE=0/12 takes a twelfth of the cases. With a directory as argument nothing is tested: the program writes
 * samples of the stores to it, for a mount: good-N.efs, and the changed N-NNN-damage.efs and N-NNN-forged.efs.
 */
#include "test.h"
#include "store_rehash.h"
#include "store_sweep.h"
#include "sweep_fields.h"

#include <sys/resource.h>

#define MEMORY_BYTES (1ull << 30)
#define FULL_RECORDS 120 /* of a table, evenly spread; for the strings this number of bytes */
/* Changed chunks are read in all ways, which takes longest. */
#define CHUNK_STRIDE (SWEEP_STRIDE > 3 ? SWEEP_STRIDE : 3)

enum area { SUPERBLOCK, TABLE, CHUNK };

static uint64_t rnd;
static unsigned cases, samples, packs;
static unsigned long told[3][2][OUTCOMES];
static const char *sample_directory;

static void begin(enum efs_codec_choice codec, uint32_t shard_elements)
{
    sweep_pack(codec, shard_elements);
    memset(told, 0, sizeof(told));
    cases = 0, rnd = 11;
    if (sample_directory) {
        char path[400];
        snprintf(path, sizeof(path), "%s/good-%u.efs", sample_directory, ++packs);
        sweep_write(path, sweep.image, sweep.image_bytes);
    }
}

/* Writes every 131st case, so that all fields and all changes occur. */
static void leave_sample(bool forged)
{
    char path[400];
    if (cases % 131 != 0)
        return;
    snprintf(path, sizeof(path), "%s/%u-%03u-%s.efs", sample_directory, packs, samples++, forged ? "forged" : "damage");
    sweep_write(path, sweep.copy, sweep.image_bytes);
}

/* Tries one change of the bytes at `at`. shard: the one that has the chunk, if area is CHUNK. */
static void try_change(enum area area, const char *name, int table, uint32_t shard, bool sm, size_t at, unsigned bytes,
                       unsigned how, bool forged)
{
    uint64_t value = 0;
    if (cases++ % (sweep.full_tier || sample_directory ? 1
                   : area == CHUNK                     ? CHUNK_STRIDE
                                                       : SWEEP_STRIDE) !=
            0 ||
        !sweep_in_slice())
        return;
    memcpy(sweep.copy, sweep.image, sweep.image_bytes);
    memcpy(&value, sweep.copy + at, bytes);
    value = sweep_changed(value, bytes, how, fixture_random(&rnd));
    memcpy(sweep.copy + at, &value, bytes);
    struct efs_disk_shard *s = sweep_shard(sweep.copy, shard);
    if (forged && area == CHUNK) {
        if (sm)
            s->sm_hash = efs_hash(sweep.copy + s->sm_offset, s->sm_bytes);
        else
            s->e_hash = efs_hash(sweep.copy + s->e_offset, s->e_bytes);
    }
    if (forged)
        store_rehash(sweep.copy, sweep.image_bytes);
    if (memcmp(sweep.copy, sweep.image, sweep.image_bytes) == 0) /* no change */
        return;
    if (sample_directory) {
        leave_sample(forged);
        return;
    }
    snprintf(sweep.case_name, sizeof(sweep.case_name), "%s at %zu, %s, checksums %s", name, at, sweep_change_names[how],
             forged ? "made right" : "left");
    bool strict = area == SUPERBLOCK || table == EFS_TABLE_PARTS || table == EFS_TABLE_SHARDS;
    enum sweep_outcome outcome = sweep_try(sweep.image_bytes, forged, strict);
    told[area][forged][outcome]++;
    if (!forged && outcome != (area == CHUNK ? ERROR : REFUSED))
        fail_msg("%s: damage was not noticed", sweep.case_name);
    if (area == CHUNK && outcome == FORGED && sweep_verify() != -EUCLEAN)
        fail_msg("%s: verify finds nothing wrong", sweep.case_name);
    if (outcome == RIGHT && strcmp(name, "shard.raw_hash") == 0 && sweep_verify() != -EUCLEAN)
        fail_msg("%s: verify does not look at it", sweep.case_name);
}

static void try_field(enum area area, const char *name, int table, uint32_t shard, bool sm, size_t at, unsigned bytes)
{
    for (unsigned how = 0; how < SWEEP_CHANGES; how++)
        for (int forged = 0; forged < 2; forged++)
            try_change(area, name, table, shard, sm, at, bytes, how, forged);
}

static void tell(const char *what)
{
    static const char *const areas[] = {"superblock", "tables", "chunks"};
    for (int a = 0; a < 3; a++)
        for (int f = 0; f < 2; f++) {
            const unsigned long *n = told[a][f];
            if (n[REFUSED] + n[ERROR] + n[RIGHT] + n[FORGED] > 0)
                print_message("%s, %s, checksums %s: %lu refused, %lu errors, %lu right, %lu other bytes\n", what,
                              areas[a], f ? "made right" : "left", n[REFUSED], n[ERROR], n[RIGHT], n[FORGED]);
        }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    assert_true((uint64_t)usage.ru_maxrss * 1024 < MEMORY_BYTES);
}

/* The first shard of this codec with at least sm_bytes of signs and mantissas. */
static uint32_t find_shard(uint32_t codec, uint32_t sm_bytes)
{
    for (uint32_t i = 0; i < sweep.sb.tables[EFS_TABLE_SHARDS].count; i++)
        if (sweep_shard(sweep.image, i)->codec == codec && sweep_shard(sweep.image, i)->sm_bytes >= sm_bytes)
            return i;
    fail_msg("no shard of codec %u", codec);
    return 0;
}

/* ---- the tests ---- */

TEST(superblock_and_tables)
{
    begin(EFS_CHOOSE_CASCADE, 16384);
    for (size_t i = 0; i < SWEEP_COUNT(superblock_fields); i++)
        try_field(SUPERBLOCK, superblock_fields[i].name, -1, 0, false, superblock_fields[i].offset,
                  superblock_fields[i].bytes);
    for (size_t t = 0; t < EFS_TABLE_PLACES; t++)
        for (size_t i = 0; i < SWEEP_COUNT(table_fields); i++)
            try_field(SUPERBLOCK, table_fields[i].name, -1, 0, false,
                      offsetof(struct efs_disk_superblock, tables) + t * sizeof(struct efs_disk_table) +
                          table_fields[i].offset,
                      table_fields[i].bytes);
    for (int t = 0; t < EFS_TABLE_COUNT; t++) {
        uint32_t count = sweep.sb.tables[t].count, records = sweep.full_tier         ? FULL_RECORDS
                                                             : t == EFS_TABLE_REPORT ? 2
                                                                                     : 3;
        for (uint32_t r = 0; r < records && r < count; r++) {
            uint32_t record = count <= records ? r : (uint32_t)((uint64_t)r * (count - 1) / (records - 1));
            size_t at = sweep.sb.tables[t].offset + (size_t)record * sweep.sb.tables[t].record_bytes;
            for (size_t i = 0; i < record_fields[t].count; i++) {
                const struct sweep_field *f = &record_fields[t].fields[i];
                if (at + f->offset + f->bytes <= sweep.sb.tables[t].offset + sweep.sb.tables[t].bytes)
                    try_field(TABLE, f->name, t, 0, false, at + f->offset, f->bytes);
            }
        }
    }
    tell("fields");
}

/* Changes the header, the spans and bytes of the code of a shard's chunks. */
static void cascade_chunk(uint32_t i, size_t code_step, size_t sm_step)
{
    const struct efs_disk_shard *s = sweep_shard(sweep.image, i);
    uint32_t spans;
    memcpy(&spans, sweep.image + s->e_offset + 4, sizeof(spans));
    assert_true(spans > 0 && spans < 1000);
    for (size_t f = 0; f < SWEEP_COUNT(cascade_chunk_fields); f++)
        try_field(CHUNK, cascade_chunk_fields[f].name, -1, i, false, s->e_offset + cascade_chunk_fields[f].offset,
                  cascade_chunk_fields[f].bytes);
    for (uint32_t span = 0; span < spans; span++)
        for (size_t f = 0; f < SWEEP_COUNT(cascade_span_fields); f++)
            try_field(CHUNK, cascade_span_fields[f].name, -1, i, false,
                      s->e_offset + SWEEP_CASCADE_SPANS + span * SWEEP_CASCADE_SPAN + cascade_span_fields[f].offset,
                      cascade_span_fields[f].bytes);
    size_t code = SWEEP_CASCADE_SPANS + spans * SWEEP_CASCADE_SPAN;
    for (size_t at = code; at < s->e_bytes; at += code_step)
        try_field(CHUNK, "cascade code", -1, i, false, s->e_offset + at, 1);
    try_field(CHUNK, "cascade slack", -1, i, false, s->e_offset + s->e_bytes - 8, 8);
    for (size_t at = 0; at < s->sm_bytes; at += sm_step)
        try_field(CHUNK, "signs and mantissas", -1, i, true, s->sm_offset + at, 1);
}

TEST(cascade_chunks)
{
    begin(EFS_CHOOSE_CASCADE, 65536);
    uint32_t first = find_shard(EFS_CODEC_CASCADE, SWEEP_INNER * SWEEP_HIDDEN);
    cascade_chunk(first, sweep.full_tier ? 97 : 1499, sweep.full_tier ? 1021 : 8191);
    for (uint32_t i = 0; sweep.full_tier && i < sweep.sb.tables[EFS_TABLE_SHARDS].count; i++)
        if (i != first && sweep_shard(sweep.image, i)->codec == EFS_CODEC_CASCADE)
            cascade_chunk(i, 499, 2039);
    tell("cascade");
    assert_true(SWEEP_STRIDE > 3 || sample_directory || told[CHUNK][true][ERROR] > 50);
}

/* The other codecs: the start of the frame or block, byte by byte, and bytes in it. */
TEST(other_chunks)
{
    static const struct {
        enum efs_codec_choice choice;
        uint32_t codec;
        const char *name;
    } codecs[] = {{EFS_CHOOSE_ZSTD, EFS_CODEC_ZSTD, "zstd"}, {EFS_CHOOSE_LZ4, EFS_CODEC_LZ4, "lz4"}};
    for (size_t c = 0; c < SWEEP_COUNT(codecs); c++) {
        begin(codecs[c].choice, 65536);
        uint32_t i = find_shard(codecs[c].codec, SWEEP_INNER * SWEEP_HIDDEN);
        const struct efs_disk_shard *s = sweep_shard(sweep.image, i);
        try_field(CHUNK, codecs[c].name, -1, i, false, s->e_offset, 4);
        for (size_t at = 0; at < (sweep.full_tier ? 200 : 24); at++)
            try_field(CHUNK, codecs[c].name, -1, i, false, s->e_offset + at, 1);
        for (size_t at = 24; at < s->e_bytes; at += sweep.full_tier ? 499 : 4999)
            try_field(CHUNK, codecs[c].name, -1, i, false, s->e_offset + at, 1);
        try_field(CHUNK, codecs[c].name, -1, i, false, s->e_offset + s->e_bytes - 4, 4);
        tell(codecs[c].name);
    }
}

int main(int argc, char **argv)
{
    sample_directory = argc > 1 ? argv[1] : NULL;
    return TEST_RUN(sweep_setup, sweep_teardown);
}
