/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged and forged stores beyond single fields (test_sweep.c): truncation, sectors, chunks that are swapped or come
 * from another store, and several random changes at once, from SEED on. By store_sweep.h.
 *
 * EXPERTFS_SWEEP=full takes every 211th size, all sectors and chunks, and more random cases; EXPERTFS_SLICE=0/12 takes
 * a twelfth of them.
 */
#include "test.h"
#include "store_rehash.h"
#include "store_sweep.h"
#include "sweep_fields.h"

#define CHANGES_MOST 6 /* per case */

static unsigned refused;

/* Sets the size to `bytes`, with the old superblock or, if forged, with one that has the new size. */
static void cut(uint64_t bytes, bool forged)
{
    struct efs_disk_superblock *s = (struct efs_disk_superblock *)(void *)sweep.copy;
    if (bytes == sweep.image_bytes || (forged && bytes > sweep.image_bytes) || !sweep_in_slice())
        return;
    memcpy(sweep.copy, sweep.image, sweep.image_bytes);
    if (forged) {
        s->store_bytes = bytes;
        s->hash = efs_hash(s, offsetof(struct efs_disk_superblock, hash));
    }
    snprintf(sweep.case_name, sizeof(sweep.case_name), "cut to %llu of %zu bytes, superblock %s",
             (unsigned long long)bytes, sweep.image_bytes, forged ? "says so" : "does not");
    if (sweep_try(bytes, forged, true) != REFUSED)
        fail_msg("%s: was not refused", sweep.case_name);
    refused++;
}

/* Truncation inside and after the superblock, and around the start and end of each table; and a longer file. */
TEST(cut_at_tables)
{
    static const int around[] = {-4096, -65, -64, -1, 0, 1, 63, 64, 4095};
    static const unsigned begins[] = {0, 1, 97, 300, 4095, 4096, 4097, 5000};
    sweep_pack(EFS_CHOOSE_CASCADE, 16384);
    for (int t = 0; t < EFS_TABLE_COUNT; t++)
        for (int end = 0; end < 2; end++)
            for (size_t a = 0; a < SWEEP_COUNT(around); a++)
                for (int forged = 0; forged < 2; forged++) {
                    const struct efs_disk_table *table = &sweep.sb.tables[t];
                    cut((uint64_t)((int64_t)(table->offset + (end ? table->bytes : 0)) + around[a]), forged);
                }
    for (size_t i = 0; i < SWEEP_COUNT(begins); i++)
        cut(begins[i], false);
    cut(sweep.image_bytes + 100, false);
    for (size_t bytes = 0; sweep.full_tier && bytes < sweep.image_bytes; bytes += 211)
        cut(bytes, false);
    print_message("%u cut stores refused\n", refused);
    assert_true(refused > 100);
}

/* Sectors that were lost or written twice, pages of zeros, swapped chunks. */
TEST(sectors_and_swaps)
{
    unsigned n[OUTCOMES] = {0};
    sweep_pack(EFS_CHOOSE_CASCADE, 16384);
    const size_t sectors = sweep.image_bytes / 512, step = sweep.full_tier ? 1 : 5 * SWEEP_STRIDE;
    for (size_t i = 0; i + 1 < sectors; i += step)
        for (int how = 0; how < 3; how++) {
            size_t at = i * 512, bytes = how == 2 ? 4096 : 512;
            if (at + bytes > sweep.image_bytes || !sweep_in_slice())
                continue;
            memcpy(sweep.copy, sweep.image, sweep.image_bytes);
            if (how == 0)
                memcpy(sweep.copy + at + 512, sweep.image + at, 512);
            else
                memset(sweep.copy + at, 0, bytes);
            snprintf(sweep.case_name, sizeof(sweep.case_name), "%s at %zu",
                     how == 0   ? "sector written twice"
                     : how == 1 ? "sector of zeros"
                                : "page of zeros",
                     at);
            n[sweep_try(sweep.image_bytes, false, true)]++;
        }
    uint32_t shards = sweep.sb.tables[EFS_TABLE_SHARDS].count, swaps = 0;
    for (uint32_t i = 0; i + 1 < shards; i++)
        for (int sm = 0; sm < 2; sm++) {
            const struct efs_disk_shard *a = sweep_shard(sweep.image, i), *b = sweep_shard(sweep.image, i + 1);
            uint64_t from = sm ? a->sm_offset : a->e_offset, to = sm ? b->sm_offset : b->e_offset;
            size_t bytes = sm ? a->sm_bytes : a->e_bytes, other = sm ? b->sm_bytes : b->e_bytes;
            bytes = bytes < other ? bytes : other;
            if (bytes == 0 || memcmp(sweep.image + from, sweep.image + to, bytes) == 0 || !sweep_in_slice())
                continue;
            memcpy(sweep.copy, sweep.image, sweep.image_bytes);
            memcpy(sweep.copy + from, sweep.image + to, bytes);
            memcpy(sweep.copy + to, sweep.image + from, bytes);
            snprintf(sweep.case_name, sizeof(sweep.case_name), "%s-chunks of shards %u and %u swapped", sm ? "SM" : "E",
                     i, i + 1);
            if (sweep_try(sweep.image_bytes, false, true) != ERROR)
                fail_msg("%s: was not noticed", sweep.case_name);
            /* with the index swapped as well, but not raw_hash: exponents of one shard, mantissas of the other */
            struct efs_disk_shard *c = sweep_shard(sweep.copy, i), *d = sweep_shard(sweep.copy, i + 1);
            memcpy(sweep.copy, sweep.image, sweep.image_bytes);
            if (a->e_bytes == 0 || b->e_bytes == 0 || a->sm_bytes != b->sm_bytes)
                continue;
            c->e_offset = b->e_offset, c->e_hash = b->e_hash, c->e_bytes = b->e_bytes;
            d->e_offset = a->e_offset, d->e_hash = a->e_hash, d->e_bytes = a->e_bytes;
            store_rehash(sweep.copy, sweep.image_bytes);
            snprintf(sweep.case_name, sizeof(sweep.case_name), "index of the E-chunks of shards %u and %u swapped", i,
                     i + 1);
            if (sweep_try(sweep.image_bytes, true, false) == FORGED && sweep_verify() != -EUCLEAN)
                fail_msg("%s: verify finds nothing wrong", sweep.case_name);
            swaps++;
        }
    print_message("sectors and pages: %u refused, %u errors, %u right; %u swaps\n", n[REFUSED], n[ERROR], n[RIGHT],
                  swaps);
    assert_true(n[REFUSED] > 0 && n[ERROR] > 0 && swaps > 0);
}

/* Chunks of another store with the same tensors: with the old checksums, and with their own, which leaves only raw_hash
 * to detect them. */
TEST(chunks_of_another_store)
{
    unsigned wrong = 0, forged = 0;
    sweep_pack(EFS_CHOOSE_CASCADE, 16384);
    size_t theirs_bytes;
    sweep_write_sources(SWEEP_SEED + 1);
    fixture_pack(&sweep.model,
                 &(struct efs_pack_options){.codec = EFS_CHOOSE_CASCADE, .shard_elements = 16384, .force = true});
    unsigned char *theirs = fixture_read(sweep.model.store, &theirs_bytes);
    sweep_write_sources(SWEEP_SEED);
    struct efs_disk_superblock other;
    memcpy(&other, theirs, sizeof(other));
    assert_int_equal(other.tables[EFS_TABLE_SHARDS].count, sweep.sb.tables[EFS_TABLE_SHARDS].count);
    const struct efs_disk_shard *rows =
        (const struct efs_disk_shard *)(const void *)(theirs + other.tables[EFS_TABLE_SHARDS].offset);
    for (uint32_t i = 0; i < sweep.sb.tables[EFS_TABLE_SHARDS].count; i += sweep.full_tier ? 1 : SWEEP_STRIDE)
        for (int sm = 0; sm < 2; sm++)
            for (int made_right = 0; made_right < 2; made_right++) {
                const struct efs_disk_shard *a = sweep_shard(sweep.image, i), *b = &rows[i];
                size_t room = sm ? a->sm_bytes : a->e_bytes, bytes = sm ? b->sm_bytes : b->e_bytes;
                const unsigned char *from = theirs + (sm ? b->sm_offset : b->e_offset);
                uint64_t to = sm ? a->sm_offset : a->e_offset;
                if (bytes > room)
                    bytes = room;
                if (bytes == 0 || memcmp(sweep.image + to, from, bytes) == 0 || !sweep_in_slice())
                    continue;
                if (made_right && bytes < (sm ? b->sm_bytes : b->e_bytes))
                    continue;
                memcpy(sweep.copy, sweep.image, sweep.image_bytes);
                memcpy(sweep.copy + to, from, bytes);
                struct efs_disk_shard *c = sweep_shard(sweep.copy, i);
                if (made_right && sm)
                    c->sm_hash = b->sm_hash;
                else if (made_right)
                    c->e_hash = b->e_hash, c->e_bytes = b->e_bytes;
                if (made_right)
                    store_rehash(sweep.copy, sweep.image_bytes);
                snprintf(sweep.case_name, sizeof(sweep.case_name), "%s-chunk of shard %u of another store, checksum %s",
                         sm ? "SM" : "E", i, made_right ? "too" : "left");
                enum sweep_outcome outcome = sweep_try(sweep.image_bytes, made_right, false);
                if (!made_right && outcome != ERROR)
                    fail_msg("%s: was not noticed", sweep.case_name);
                if (outcome == FORGED && sweep_verify() != -EUCLEAN)
                    fail_msg("%s: verify finds nothing wrong", sweep.case_name);
                wrong += !made_right;
                forged += outcome == FORGED;
            }
    free(theirs);
    print_message("%u chunks of another store were noticed; %u with its checksums, by verify\n", wrong, forged);
    assert_true(wrong > 0 && forged > 0);
}

/* Up to CHANGES_MOST fields or bytes per case, at random places, with the checksums unchanged or recomputed. */
TEST(many_changes)
{
    static const enum efs_codec_choice choices[] = {EFS_CHOOSE_CASCADE, EFS_CHOOSE_ZSTD, EFS_CHOOSE_LZ4};
    unsigned n[2][OUTCOMES] = {{0}};
    const unsigned each = sweep.full_tier ? 20000 : 450 / SWEEP_STRIDE;
    for (size_t codec = 0; codec < SWEEP_COUNT(choices); codec++) {
        sweep_pack(choices[codec], 16384);
        for (unsigned i = 0; i < each; i++) {
            if (!sweep_in_slice())
                continue;
            uint64_t state_of_case = sweep.seed + i, forged = i % 2;
            unsigned changes = 1 + (unsigned)(fixture_random(&state_of_case) % CHANGES_MOST);
            memcpy(sweep.copy, sweep.image, sweep.image_bytes);
            for (unsigned c = 0; c < changes; c++) {
                uint64_t where = fixture_random(&state_of_case), value = 0;
                unsigned bytes = 1u << fixture_random(&state_of_case) % 4;
                size_t first = 0, room = sweep.image_bytes; /* anywhere, or in a table or an E-chunk */
                if (where % 4 == 1) {
                    const struct efs_disk_table *t = &sweep.sb.tables[where / 4 % EFS_TABLE_COUNT];
                    first = t->offset, room = t->bytes;
                } else if (where % 4 > 1) {
                    const struct efs_disk_shard *s =
                        sweep_shard(sweep.image, (uint32_t)(where / 4 % sweep.sb.tables[EFS_TABLE_SHARDS].count));
                    first = s->e_offset, room = s->e_bytes < 256 ? s->e_bytes : 256;
                }
                if (room < 8)
                    continue;
                size_t at = first + fixture_random(&state_of_case) % (room - 7);
                memcpy(&value, sweep.copy + at, bytes);
                value = sweep_changed(value, bytes, (unsigned)(fixture_random(&state_of_case) % SWEEP_CHANGES),
                                      fixture_random(&state_of_case));
                memcpy(sweep.copy + at, &value, bytes);
            }
            if (forged) {
                store_rehash_chunks(sweep.copy, sweep.image_bytes);
                store_rehash(sweep.copy, sweep.image_bytes);
            }
            snprintf(sweep.case_name, sizeof(sweep.case_name), "%u changes, codec %zu, case %u, SEED=%llu", changes,
                     codec, i, (unsigned long long)sweep.seed);
            n[forged][sweep_try(sweep.image_bytes, forged, false)]++;
        }
    }
    for (int forged = 0; forged < 2; forged++)
        print_message("many changes, checksums %s: %u refused, %u errors, %u right, %u other bytes\n",
                      forged ? "made right" : "left", n[forged][REFUSED], n[forged][ERROR], n[forged][RIGHT],
                      n[forged][FORGED]);
    assert_int_equal(n[0][FORGED], 0);
}

TEST_MAIN(sweep_setup, sweep_teardown)
