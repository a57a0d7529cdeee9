/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of an earlier mount: saved counts are loaded again; damaged and forged files and those of other stores are
 * refused. */
#include "test.h"
#include "counts.h"
#include "fixture.h"
#include "hash.h"
#include "expertfs-profile-private.h"

#include <sys/stat.h>
#include <unistd.h>

enum { LAYERS = 3, EXPERTS = 5, HEADER = 48, BYTES = HEADER + 16 * LAYERS + 8 * LAYERS * EXPERTS };
#define HASH UINT64_C(0x1234abcd5678ef09)

static char home[64], path[200];
static struct efs_history saved;

static int setup(void **state)
{
    struct efs_error err = {""};
    (void)state;
    snprintf(home, sizeof(home), "/tmp/expertfs-counts-XXXXXX");
    assert_non_null(mkdtemp(home));
    setenv("EXPERTFS_STATE", home, 1);
    assert_int_equal(efs_counts_path(HASH, path, sizeof(path), &err), 0);
    assert_int_equal(efs_history_init(&saved, LAYERS, EXPERTS), 0);
    for (uint32_t pass = 0; pass < 20; pass++)
        for (unsigned l = 0; l < LAYERS - 1; l++) { /* the last layer has no requests */
            const uint32_t experts[] = {pass * 3 % EXPERTS, (pass * 3 + 1 + l) % EXPERTS}, ranks[] = {0, 1 + pass % 3};
            assert_int_equal(efs_history_request(&saved, l, experts, pass % 4 ? ranks : NULL, 2), 0);
        }
    saved.sequences = 7;
    assert_int_equal(efs_counts_save(HASH, &saved, &err), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    rmdir(path);
    rmdir(home);
    efs_history_free(&saved);
    return 0;
}

static void read_back(unsigned char data[BYTES])
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(data, 1, BYTES, f), BYTES);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

static void write_file(const unsigned char *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
}

/* Writes a little-endian number to the file's bytes. */
static void put(unsigned char *data, size_t at, unsigned bytes, uint64_t n)
{
    for (unsigned i = 0; i < bytes; i++)
        data[at + i] = (unsigned char)(n >> 8 * i);
}

static void sign(unsigned char data[BYTES])
{
    put(data, 40, 8, 0);
    put(data, 40, 8, efs_hash(data, BYTES));
}

static bool is_empty(const struct efs_history *h)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < LAYERS * EXPERTS; i++)
        sum += h->counts[i] + h->at_rank[i];
    for (unsigned l = 0; l < LAYERS; l++)
        sum += h->passes[l] + h->ranked[l];
    return sum + h->sequences == 0;
}

/* The load must fail with the path and `text` in its message, and leave an empty, usable history. */
static void refused(const unsigned char *data, size_t bytes, const char *text)
{
    struct efs_history h;
    struct efs_error err = {""};
    write_file(data, bytes);
    assert_int_equal(efs_counts_load(HASH, LAYERS, EXPERTS, &h, &err), -EUCLEAN);
    if (!strstr(err.text, path) || !strstr(err.text, text))
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    assert_true(is_empty(&h));
    assert_int_equal(efs_history_request(&h, 0, &(uint32_t){1}, NULL, 1), 0);
    efs_history_free(&h);
}

TEST_WITH(save_and_load, setup, teardown)
{
    struct efs_history h;
    struct efs_error err = {""};
    assert_int_equal(efs_counts_load(HASH, LAYERS, EXPERTS, &h, &err), 0);
    assert_memory_equal(h.counts, saved.counts, LAYERS * EXPERTS * sizeof(*h.counts));
    assert_memory_equal(h.at_rank, saved.at_rank, LAYERS * EXPERTS * sizeof(*h.at_rank));
    assert_memory_equal(h.passes, saved.passes, LAYERS * sizeof(*h.passes));
    assert_memory_equal(h.ranked, saved.ranked, LAYERS * sizeof(*h.ranked));
    assert_int_equal(h.sequences, 7);
    assert_int_equal(h.ranked[0], 15);
    assert_int_equal(efs_history_request(&h, 0, &(uint32_t){4}, NULL, 1), 0); /* save again, over the old file */
    assert_int_equal(efs_counts_save(HASH, &h, &err), 0);
    efs_history_free(&h);
    assert_int_equal(efs_counts_load(HASH, LAYERS, EXPERTS, &h, &err), 0);
    assert_int_equal(h.passes[0], saved.passes[0] + 1);
    efs_history_free(&h);

    assert_int_equal(efs_counts_load(HASH + 1, LAYERS, EXPERTS, &h, &err), -ENOENT);
    assert_true(is_empty(&h));
    efs_history_free(&h);
    assert_int_equal(efs_counts_load(HASH, 0, EXPERTS, &h, &err), -EINVAL);
    efs_history_free(&h);
}

TEST_WITH(damaged, setup, teardown)
{
    unsigned char good[BYTES], data[BYTES + 1];
    read_back(good);
    for (size_t i = 0; i < BYTES; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            memcpy(data, good, BYTES);
            data[i] ^= (unsigned char)(1u << bit);
            refused(data, BYTES,
                    i < 8    ? "not a file of counts"
                    : i < 12 ? "a version that is not known"
                    : i < 16 ? "reserved"
                    : i < 24 ? "another store"
                    : i < 32 ? "other layers and experts"
                             : "checksum");
        }
    memcpy(data, good, BYTES);
    data[BYTES] = 0;
    refused(data, BYTES + 1, "cut, or too long");
    for (size_t n = 0; n < BYTES; n++)
        refused(good, n, n < HEADER ? "not a file of counts" : "cut, or too long");
}

/* With a valid checksum: the loader checks each number. */
TEST_WITH(forged, setup, teardown)
{
    enum { PASSES = HEADER, RANKED = PASSES + 8 * LAYERS, COUNTS = RANKED + 8 * LAYERS };
    static const struct {
        size_t at;
        unsigned bytes;
        uint64_t number;
        const char *text;
    } lies[] = {
        {8, 4, 2, "version"},
        {12, 4, 1, "reserved"},
        {16, 8, HASH + 1, "another store"},
        {24, 4, 0xffffffff, "other layers"},
        {28, 4, 0xffffffff, "other layers"},
        {24, 8, UINT64_C(0x0000000300000005), "other layers"}, /* 5 layers of 3 experts: the same number of counts */
        {PASSES, 8, EFS_HISTORY_MAX_PASSES + 1, "more passes than there can be"},
        {PASSES + 8, 8, UINT64_MAX, "more passes than there can be"},
        {PASSES, 8, 14, "more passes with ranks than passes"},
        {PASSES, 8, 0, "more passes with ranks"},
        {RANKED, 8, 21, "more passes with ranks than passes"},
        {RANKED + 16, 8, 1, "more passes with ranks than passes"},
        {RANKED, 8, 0, "a rank asked for more often"},
        {COUNTS, 4, 21, "an expert asked for more often"},
        {COUNTS + 4 * 2 * EXPERTS, 4, 1, "an expert asked for more often"}, /* of the layer without passes */
        {COUNTS + 4 * LAYERS * EXPERTS, 4, 16, "a rank asked for more often"},
        {BYTES - 4, 4, 0xffffffff, "a rank asked for more often"},
    };
    unsigned char good[BYTES], data[BYTES];
    struct efs_history h;
    struct efs_error err = {""};
    read_back(good);
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        memcpy(data, good, BYTES);
        put(data, lies[i].at, lies[i].bytes, lies[i].number);
        sign(data);
        refused(data, BYTES, lies[i].text);
    }
    memcpy(data, good, BYTES); /* a possible value passes: the checksum is not the reason */
    put(data, PASSES, 8, EFS_HISTORY_MAX_PASSES);
    sign(data);
    write_file(data, BYTES);
    assert_int_equal(efs_counts_load(HASH, LAYERS, EXPERTS, &h, &err), 0);
    assert_true(h.passes[0] == EFS_HISTORY_MAX_PASSES);
    efs_history_free(&h);
}

TEST_WITH(counts_of_other_stores, setup, teardown)
{
    struct efs_history h;
    struct efs_error err = {""};
    assert_int_equal(efs_counts_load(HASH, LAYERS + 1, EXPERTS, &h, &err), -EUCLEAN);
    assert_non_null(strstr(err.text, "other layers and experts"));
    efs_history_free(&h);
    assert_int_equal(efs_counts_load(HASH, LAYERS, EXPERTS - 1, &h, &err), -EUCLEAN);
    efs_history_free(&h);
    char other[200];
    assert_int_equal(efs_counts_path(HASH + 1, other, sizeof(other), &err), 0);
    assert_int_equal(rename(path, other), 0); /* the file of another store under this store's name */
    assert_int_equal(efs_counts_load(HASH + 1, LAYERS, EXPERTS, &h, &err), -EUCLEAN);
    assert_non_null(strstr(err.text, "another store"));
    efs_history_free(&h);
    unlink(other);
}

TEST_WITH(state_folder_errors, setup, teardown)
{
    struct efs_history h;
    struct efs_error err = {""};
    char missing[300], longer[8], message[400];
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(efs_counts_load(HASH, LAYERS, EXPERTS, &h, &err), -EISDIR);
    efs_history_free(&h);
    assert_true(efs_counts_save(HASH, &saved, &err) < 0);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* the open must not block until there is a writer */
    assert_int_equal(efs_counts_load(HASH, LAYERS, EXPERTS, &h, &err), -EINVAL);
    efs_history_free(&h);
    unlink(path);
    write_file((const unsigned char *)"x", 1);
    setenv("EXPERTFS_STATE", path, 1); /* a file in place of the directory */
    assert_int_equal(efs_counts_save(HASH, &saved, &err), -ENOTDIR);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(efs_counts_load(HASH, LAYERS, EXPERTS, &h, &err), -ENOTDIR);
    efs_history_free(&h);
    snprintf(missing, sizeof(missing), "%s/a/b", path); /* the directory that cannot be made is named */
    snprintf(message, sizeof(message), "%s/a: Not a directory", path);
    setenv("EXPERTFS_STATE", missing, 1);
    assert_int_equal(efs_counts_save(HASH, &saved, &err), -ENOTDIR);
    assert_string_equal(err.text, message);
    snprintf(missing, sizeof(missing), "%s/a/b", home); /* missing directories are created */
    setenv("EXPERTFS_STATE", missing, 1);
    assert_int_equal(efs_counts_save(HASH, &saved, &err), 0);
    assert_int_equal(efs_counts_load(HASH, LAYERS, EXPERTS, &h, &err), 0);
    efs_history_free(&h);
    assert_int_equal(efs_counts_path(HASH, longer, sizeof(longer), &err), -ENAMETOOLONG);
    assert_int_equal(efs_counts_path(HASH, path, sizeof(path), &err), 0);
    unlink(path);
    rmdir(missing);
    *strrchr(missing, '/') = '\0';
    rmdir(missing);
    snprintf(path, sizeof(path), "%s/counts-%016llx.bin", home, (unsigned long long)HASH);
}

TEST_WITH(not_writable, setup, teardown)
{
    struct efs_error err = {""};
    unlink(path);
    assert_int_equal(chmod(home, 0500), 0);
    bool root = geteuid() == 0; /* root can write anywhere, so change the user id for the save */
    assert_true(!root || (chown(home, 65534, 65534) == 0 && seteuid(65534) == 0));
    errint_t rc = efs_counts_save(HASH, &saved, &err);
    assert_true(!root || seteuid(0) == 0);
    assert_int_equal(rc, -EACCES);
    assert_int_equal(chmod(home, 0700), 0);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(fixture_entry_count(home), 2);
}

TEST_MAIN(NULL, NULL)
