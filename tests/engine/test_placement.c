/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placements: each byte that is cut or changed is refused or gives a placement within its bounds; a served store pins
 * and reads the experts of its server, also where memory is full of other experts, counts no use of them, and keeps the
 * placement that it has if the next one is wrong.
 */
#include <time.h>

#include "test.h"
#include "expertfs-placement-private.h"
#include "expertfs-private.h"
#include "fixture.h"
#include "store.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define LAYERS 3u
#define EXPERTS 6u
#define ALL (LAYERS * EXPERTS)
#define MIB (1ull << 20)

static struct fixture model;
static char path[400];
static uint64_t hash;
static char log_text[20000];
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void note_line(void *arg, enum efs_log_level level, const char *line)
{
    (void)arg;
    pthread_mutex_lock(&log_lock);
    if (level == EFS_LOG_WARNING) {
        strncat(log_text, line, sizeof(log_text) - strlen(log_text) - 2);
        strcat(log_text, "\n");
    }
    pthread_mutex_unlock(&log_lock);
}

static unsigned warnings(const char *text)
{
    unsigned count = 0;
    pthread_mutex_lock(&log_lock);
    for (const char *at = log_text; (at = strstr(at, text)); at++)
        count++;
    pthread_mutex_unlock(&log_lock);
    return count;
}

static int setup(void **state)
{
    struct efs_store *store;
    struct efs_store_info info;
    (void)state;
    fixture_store(&model, LAYERS, EXPERTS, 512, 1024); /* about 2 MiB per coded expert */
    snprintf(path, sizeof(path), "%s/placement", model.directory);
    setenv("EXPERTFS_PRESSURE", "/nonexistent", 1);
    assert_int_equal(efs_store_open(model.store, &store, NULL), 0);
    efs_store_info(store, &info);
    hash = info.content_hash;
    efs_store_close(store);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_end(&model);
    return 0;
}

/* Servers a and b; a has the experts of which the bit is set, in the order of the store, b the rest. */
static void place(struct efs_cluster_placement *p, uint64_t content_hash, uint64_t number, uint32_t bits)
{
    static char names[2][EFS_SERVER_NAME_BYTES] = {"a", "b"};
    static uint8_t held[2 * ALL];
    for (uint32_t i = 0; i < ALL; i++) {
        held[i] = bits >> i & 1;
        held[ALL + i] = !held[i];
    }
    *p = (struct efs_cluster_placement){.content_hash = content_hash,
                                        .number = number,
                                        .layers = LAYERS,
                                        .experts = EXPERTS,
                                        .servers = 2,
                                        .made_at = 5,
                                        .rule = "ours",
                                        .name = names,
                                        .held = held};
}

static char *print(uint64_t content_hash, uint64_t number, uint32_t bits, size_t *bytes)
{
    struct efs_cluster_placement p;
    char *text;
    place(&p, content_hash, number, bits);
    assert_int_equal(efs_placement_print(&p, &text, bytes), 0);
    return text;
}

static void write_bytes(const char *text, size_t bytes)
{
    char next[500];
    snprintf(next, sizeof(next), "%s.next", path);
    FILE *file = fopen(next, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    fclose(file);
    assert_int_equal(rename(next, path), 0);
}

static void write_placement(uint64_t content_hash, uint64_t number, uint32_t bits)
{
    size_t bytes;
    char *text = print(content_hash, number, bits, &bytes);
    write_bytes(text, bytes);
    free(text);
}

/* ---- the text ---- */

TEST(round_trip)
{
    struct efs_cluster_placement want, got;
    const char *wrong = NULL;
    size_t bytes;
    char *text = print(hash, 7, 0x2a5f1, &bytes);
    place(&want, hash, 7, 0x2a5f1);
    assert_int_equal(efs_placement_parse(text, bytes, NULL, &got, &wrong), 0);
    assert_int_equal(got.content_hash, hash);
    assert_int_equal(got.number, 7);
    assert_int_equal(got.servers, 2);
    assert_string_equal(got.rule, "ours");
    assert_string_equal(got.name[1], "b");
    assert_memory_equal(got.held, want.held, 2 * ALL);
    efs_placement_free(&got);
    assert_int_equal(efs_placement_parse(text, bytes, "b", &got, &wrong), 0);
    assert_string_equal(got.name[0], "a");
    assert_memory_equal(got.held, want.held + ALL, ALL);
    efs_placement_free(&got);
    assert_int_equal(efs_placement_parse(text, bytes, "c", &got, &wrong), 0); /* a server that is not named */
    for (uint32_t i = 0; i < ALL; i++)
        assert_int_equal(got.held[i], 0);
    efs_placement_free(&got);
    free(text);
}

TEST(cut_and_changed)
{
    struct efs_cluster_placement p;
    const char *wrong;
    size_t bytes;
    char *text = print(hash, 7, 0x2a5f1, &bytes);
    for (size_t end = 0; end < bytes; end++) {
        assert_int_equal(efs_placement_parse(text, end, NULL, &p, &wrong), -EUCLEAN);
        assert_non_null(wrong);
        efs_placement_free(&p);
    }
    for (size_t at = 0; at < bytes; at++)
        for (unsigned bit = 0; bit < 8; bit++) {
            text[at] ^= (char)(1 << bit);
            if (efs_placement_parse(text, bytes, NULL, &p, &wrong) == 0) {
                assert_true(p.layers == LAYERS && p.experts <= 8 && p.experts > 4 && p.servers == 2);
                for (size_t i = 0; i < (size_t)p.servers * p.layers * p.experts; i++)
                    assert_true(p.held[i] <= 1);
            }
            efs_placement_free(&p);
            text[at] ^= (char)(1 << bit);
        }
    free(text);
}

static void refused(const char *format, const char *layers, const char *experts, const char *servers)
{
    struct efs_cluster_placement p;
    const char *wrong;
    char text[1000];
    int bytes = snprintf(text, sizeof(text), format, layers, experts, servers);
    assert_int_equal(efs_placement_parse(text, (size_t)bytes, NULL, &p, &wrong), -EUCLEAN);
    efs_placement_free(&p);
}

TEST(lies)
{
    static const char head[] = "expertfs-placement 1\nstore 0123456789abcdef\nlayers %s\nexperts %s\nservers %s\n"
                               "number 1\nmade 1\nrule ours\nserver a\nf\nserver b\nf\nend\n";
    struct efs_cluster_placement p;
    char *text;
    size_t bytes;
    refused(head, "0", "4", "2");
    refused(head, "1025", "4", "2");
    refused(head, "1", "0", "2");
    refused(head, "1", "4097", "2");
    refused(head, "1", "4", "0");
    refused(head, "1", "4", "1025");
    refused(head, "1", "4", "1");
    refused(head, "1", "4", "3");
    refused(head, "1", "3", "2"); /* an expert that does not exist */
    refused(head, "1", "5", "2");
    refused(head, "-1", "4", "2");
    refused(head, "+1", "4", "2");
    refused(head, "1 ", "4", "2");
    refused(head, "1024", "4096", "1024"); /* more than a text may have */
    refused(head, "18446744073709551617", "4", "2");
    place(&p, hash, 1, 1);
    strcpy(p.rule, "two words");
    assert_int_equal(efs_placement_print(&p, &text, &bytes), -EINVAL);
    place(&p, hash, 1, 1);
    p.layers = 4096;
    assert_int_equal(efs_placement_print(&p, &text, &bytes), -EINVAL);
    assert_true(efs_server_name_valid("Node-1.x_2"));
    assert_false(efs_server_name_valid("") || efs_server_name_valid(".a") || efs_server_name_valid("a b") ||
                 efs_server_name_valid("a/b") ||
                 efs_server_name_valid("0123456789012345678901234567890123456789012345678901234567890123"));
}

/* ---- a served store ---- */

static struct efs *serve(uint64_t budget_bytes)
{
    log_text[0] = '\0';
    return fixture_open(&model, (struct efs_options){.budget_bytes = budget_bytes,
                                                     .workers = 2,
                                                     .no_state = true,
                                                     .placement = path,
                                                     .server = "a",
                                                     .log = note_line,
                                                     .log_arg = NULL});
}

/* The value of a line of the text "placement". */
static uint64_t value_of(struct efs *fs, const char *name)
{
    char *text;
    size_t bytes;
    assert_int_equal(efs_describe(fs, "placement", &text, &bytes), 0);
    const char *at = strstr(text, name);
    assert_non_null(at);
    uint64_t value = strtoull(at + strlen(name) + 2, NULL, 10);
    free(text);
    return value;
}

static bool is_held(struct efs *fs, uint32_t expert)
{
    return fixture_expert_info(fs, expert).state == 'C';
}

static bool are_held(struct efs *fs, uint32_t bits)
{
    bool all = true;
    for (uint32_t e = 0; e < ALL; e++)
        all = all && (!(bits >> e & 1) || (is_held(fs, e) && fixture_expert_info(fs, e).kept == 'C'));
    return all;
}

TEST(reads_and_pins)
{
    struct efs_stats s;
    unlink(path);
    struct efs *fs = serve(256 * MIB);
    WAIT_FOR(warnings("No such file or directory: nothing is placed") == 1);
    write_placement(hash, 1, 0x00707);
    WAIT_FOR(value_of(fs, "placement_held") == 6);
    assert_true(are_held(fs, 0x00707));
    assert_false(is_held(fs, 3) || is_held(fs, ALL - 1));
    assert_int_equal(value_of(fs, "placement_number"), 1);
    assert_int_equal(value_of(fs, "placement_experts"), 6);
    for (uint32_t e = 0; e < ALL; e++) {
        struct efs_expert_info info = fixture_expert_info(fs, e);
        assert_int_equal(info.pin, 0x00707 >> e & 1 ? 'C' : '-');
        assert_int_equal(info.count + info.touches, 0); /* no use */
    }
    efs_stats(fs, &s);
    assert_true(s.placed_bytes > 0 && s.placed_bytes <= s.disk_bytes);
    assert_int_equal(s.requests_m + s.requests_c, 0);
    assert_true(fixture_check_files(&model, fs) > 0);

    write_placement(hash, 2, 0x38000); /* elsewhere: the pins move */
    WAIT_FOR(value_of(fs, "placement_held") == 3 && value_of(fs, "placement_number") == 2);
    assert_true(are_held(fs, 0x38000));
    for (uint32_t e = 0; e < ALL; e++)
        assert_int_equal(fixture_expert_info(fs, e).pin, 0x38000 >> e & 1 ? 'C' : '-');
    efs_close(fs);
}

TEST(a_user_pin_stays)
{
    struct efs_error err;
    write_placement(hash, 1, 1);
    struct efs *fs = serve(256 * MIB);
    WAIT_FOR(value_of(fs, "placement_held") == 1);
    assert_int_equal(efs_pin(fs, (struct efs_expert_id){.number = 2}, false, 'C', &err), 0);
    write_placement(hash, 2, 6); /* experts 1 and 2 */
    WAIT_FOR(value_of(fs, "placement_held") == 2);
    assert_int_equal(fixture_expert_info(fs, 0).pin, '-');
    write_placement(hash, 3, 8);
    WAIT_FOR(value_of(fs, "placement_number") == 3 && value_of(fs, "placement_held") == 1);
    assert_int_equal(fixture_expert_info(fs, 1).pin, '-');
    assert_int_equal(fixture_expert_info(fs, 2).pin, 'C');
    efs_close(fs);
}

/* All experts but those of the placement were read, and memory has no room for more. */
TEST(where_memory_is_full)
{
    unlink(path);
    struct efs *fs = serve(48 * MIB);
    fixture_check_files(&model, fs);
    struct efs_stats before = fixture_drain(fs);
    assert_true(before.evictions_c > 0); /* it was full */
    write_placement(hash, 1, 0x01f);
    WAIT_FOR(are_held(fs, 0x01f));
    for (unsigned i = 0; i < 2; i++) { /* all files are read, which does not take their memory */
        fixture_check_files(&model, fs);
        WAIT_FOR(are_held(fs, 0x01f));
    }
    write_placement(hash, 2, 0x3ffff); /* more than fits: an eighth stays for all other experts */
    WAIT_FOR(value_of(fs, "placement_number") == 2 && value_of(fs, "placement_held") >= 6);
    fixture_check_files(&model, fs);
    fixture_within_budget(fs);
    assert_true(value_of(fs, "placement_held") < ALL);
    efs_close(fs);
}

TEST(wrong_ones_change_nothing)
{
    size_t bytes;
    write_placement(hash, 1, 0x3);
    struct efs *fs = serve(256 * MIB);
    WAIT_FOR(value_of(fs, "placement_held") == 2);
    assert_int_equal(warnings("stays"), 0);

    write_placement(hash + 1, 2, 0xff);
    WAIT_FOR(warnings("a placement of another store: number 1 stays") == 1);
    char *text = print(hash, 3, 0xff, &bytes);
    write_bytes(text, bytes / 2);
    WAIT_FOR(warnings("stays") == 2);
    text[bytes - 2] = 'x';
    write_bytes(text, bytes);
    WAIT_FOR(warnings("cut, or too long: number 1 stays") == 1);
    free(text);
    char *large = calloc(1, EFS_PLACEMENT_BYTES_MAX + 1);
    write_bytes(large, EFS_PLACEMENT_BYTES_MAX + 1);
    free(large);
    WAIT_FOR(warnings("File too large: number 1 stays") == 1);
    unlink(path);
    WAIT_FOR(warnings("No such file or directory: number 1 stays") == 1);
    assert_int_equal(mkfifo(path, 0600), 0); /* is not waited for */
    WAIT_FOR(warnings("not a regular file: number 1 stays") == 1);
    assert_int_equal(value_of(fs, "placement_number"), 1);
    assert_true(are_held(fs, 0x3));
    assert_false(is_held(fs, 4));
    assert_int_equal(fixture_expert_info(fs, 4).pin, '-');

    write_placement(hash, 4, 0x30);
    WAIT_FOR(value_of(fs, "placement_number") == 4 && value_of(fs, "placement_held") == 2);
    assert_int_equal(warnings("stays"), 6); /* one line each */
    efs_close(fs);
}

TEST(refused_at_the_mount)
{
    struct efs *fs = NULL;
    struct efs_error err;
    struct efs_options options = {.budget_bytes = 256 * MIB, .no_state = true, .placement = path, .server = "a/b"};
    assert_int_equal(efs_open(model.store, &options, &fs, &err), -EINVAL);
    assert_non_null(strstr(err.text, "server=a/b"));
    options.server = "a";
    options.placement = "/nonexistent/placement";
    assert_int_equal(efs_open(model.store, &options, &fs, &err), -ENOENT);
    options.placement = path;
    assert_int_equal(efs_open(model.source, &options, &fs, &err), -EOPNOTSUPP);
    assert_non_null(strstr(err.text, "not packed"));
}

TEST_MAIN(setup, teardown)
