/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequential readers, with requests cut and mixed in many ways: each pattern is a list of requests, generated from a
 * seed and executed one by one by efs_read(), with one stream per descriptor. All bytes are compared. The remaining
 * checks are of counters: each extent is read once, most of them ahead, and a reader takes no more memory than its
 * read-ahead window. Random readers load no expert that was not requested.
 */
#include "test.h"
#include "efs.h"
#include "extent.h"
#include "fixture.h"
#include "store.h"
#include "sync_calls.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define WINDOW (16 * MIB)
#define BUDGET (320 * MIB)
#define HANDLES 8
#define EXPERTS 96 /* 3 layers x 32, 1.5 MiB each */

static struct fixture model;
static unsigned char *whole;
static uint64_t size, store_bytes;

struct request {
    uint64_t offset;
    size_t bytes;
    unsigned handle;
};

struct list {
    struct request *at;
    size_t count, room;
};

static void add(struct list *list, unsigned handle, uint64_t offset, uint64_t bytes)
{
    if (offset >= size)
        return;
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 1024;
        list->at = realloc(list->at, list->room * sizeof(list->at[0]));
        assert_non_null(list->at);
    }
    bytes = size - offset < bytes ? size - offset : bytes;
    list->at[list->count++] = (struct request){offset, (size_t)bytes, handle};
}

/* The kernel's requests for a read of this length: at most 1 MiB each, cut at the buffer's page boundaries. */
static void add_cut(struct list *list, unsigned handle, uint64_t offset, uint64_t bytes, uint64_t shift)
{
    while (bytes) {
        uint64_t most = shift ? MIB - shift : MIB, part = bytes < most ? bytes : most;
        add(list, handle, offset, part);
        offset += part;
        bytes -= part;
    }
}

/* ---- patterns ---- */

struct pattern {
    const char *name;
    void (*make)(struct list *list, const struct pattern *p, uint64_t *seed);
    uint64_t block, shift;
    unsigned threads, handles;
    unsigned streams; /* concurrent scans, for the memory bound */
};

/* Under TSan, where each pattern takes many times as long, only every fifth one runs. */
#ifdef __SANITIZE_THREAD__
#define PATTERN_EACH 5
#define SEEDS 1
#else
#define PATTERN_EACH 1
#define SEEDS 2
#endif

static void in_order(struct list *list, const struct pattern *p, uint64_t *seed)
{
    (void)seed;
    for (uint64_t at = 0; at < size; at += p->block)
        add_cut(list, 0, at, p->block, p->shift);
}

static void any_length(struct list *list, const struct pattern *p, uint64_t *seed)
{
    for (uint64_t at = 0; at < size;) {
        uint64_t bytes = 1 + fixture_random(seed) % p->block;
        add_cut(list, 0, at, bytes, p->shift);
        at += bytes;
    }
}

/* Small steps back, and small gaps that the next request fills: all bytes are read. */
static void back_and_over(struct list *list, const struct pattern *p, uint64_t *seed)
{
    for (uint64_t at = 0; at < size; at += p->block) {
        uint64_t gap = fixture_random(seed) % (96 * KIB), back = fixture_random(seed) % (256 * KIB);
        add(list, 0, at + gap, p->block - gap);
        add(list, 0, at, gap ? gap : 1);
        if (fixture_random(seed) % 4 == 0)
            add(list, 0, at > back ? at - back : 0, back + 1);
    }
}

/* A reader that decodes ahead requests the next block before the last bytes of this one. */
static void tail_late(struct list *list, const struct pattern *p, uint64_t *seed)
{
    (void)seed;
    add(list, 0, 0, p->block - p->shift);
    for (uint64_t at = 0; at < size; at += p->block) {
        add(list, 0, at + p->block, p->block - p->shift);
        add(list, 0, at + p->block - p->shift, p->shift);
    }
}

/* Threads take the next block of the file in turn, through one descriptor or one each, in random order, but none falls
 * more than 3 requests behind. */
static void in_turn(struct list *list, const struct pattern *p, uint64_t *seed)
{
    struct list cut[HANDLES] = {{0}};
    size_t done[HANDLES] = {0};
    uint64_t next = 0, went[HANDLES] = {0}, slowest = 0;
    unsigned left = p->threads;
    while (left) {
        unsigned t = (unsigned)(fixture_random(seed) % p->threads);
        while (went[t] > slowest + 3 || went[t] == UINT64_MAX)
            t = (t + 1) % p->threads;
        if (done[t] == cut[t].count && next < size) {
            cut[t].count = done[t] = 0;
            add_cut(&cut[t], p->handles > 1 ? t : 0, next, p->block, p->shift);
            next += p->block;
        }
        if (done[t] < cut[t].count) {
            const struct request *r = &cut[t].at[done[t]++];
            add(list, r->handle, r->offset, r->bytes);
            went[t]++;
        } else { /* the thread is done */
            went[t] = UINT64_MAX;
            left--;
        }
        slowest = UINT64_MAX - 3;
        for (unsigned i = 0; i < p->threads; i++)
            slowest = went[i] < slowest ? went[i] : slowest;
    }
    for (unsigned t = 0; t < p->threads; t++)
        free(cut[t].at);
}

/* Each thread reads its own part of the file. */
static void parts(struct list *list, const struct pattern *p, uint64_t *seed)
{
    uint64_t part = (size + p->threads - 1) / p->threads, at[HANDLES] = {0}, left = p->threads;
    while (left) {
        unsigned t = (unsigned)(fixture_random(seed) % p->threads);
        if (at[t] >= part)
            continue;
        uint64_t bytes = part - at[t] < p->block ? part - at[t] : p->block;
        add_cut(list, p->handles > 1 ? t : 0, t * part + at[t], bytes, p->shift);
        at[t] += bytes;
        left -= at[t] >= part;
    }
}

/* A sequential reader with short random lookups in between. */
static void with_lookups(struct list *list, const struct pattern *p, uint64_t *seed)
{
    for (uint64_t at = 0; at < size; at += p->block) {
        add_cut(list, 0, at, p->block, p->shift);
        for (unsigned i = 0; i < 4; i++) /* in the first tensor: little is loaded for them */
            add(list, 0, fixture_random(seed) % (64 * KIB), 512);
    }
}

static const struct pattern patterns[] = {
    {"1 MiB", in_order, MIB, 0, 1, 1, 1},
    {"4 KiB", in_order, 4 * KIB, 0, 1, 1, 1},
    {"8 MiB", in_order, 8 * MIB, 0, 1, 1, 1},
    {"1 MiB cut 16 bytes before its end", in_order, MIB, 16, 1, 1, 1},
    {"1 MiB cut 1 byte before its end", in_order, MIB, 1, 1, 1, 1},
    {"8 MiB cut", in_order, 8 * MIB, 4080, 1, 1, 1},
    {"any length to 3 MiB", any_length, 3 * MIB, 0, 1, 1, 1},
    {"any length to 3 MiB, cut", any_length, 3 * MIB, 777, 1, 1, 1},
    {"any length to 20 KiB", any_length, 20 * KIB, 0, 1, 1, 1},
    {"small gaps and steps back", back_and_over, MIB, 0, 1, 1, 1},
    {"the tail of a cut block late", tail_late, MIB, 16, 1, 1, 1},
    {"2 threads in turn, one descriptor", in_turn, MIB, 0, 2, 1, 1},
    {"8 threads in turn, one descriptor", in_turn, MIB, 0, 8, 1, 1},
    {"8 threads in turn, cut", in_turn, MIB, 16, 8, 1, 1},
    {"8 threads in turn, 64 KiB", in_turn, 64 * KIB, 0, 8, 1, 1},
    {"4 threads in turn, 8 MiB cut", in_turn, 8 * MIB, 16, 4, 1, 4},
    {"8 threads in turn, 4 MiB", in_turn, 4 * MIB, 0, 8, 1, 8},
    {"4 threads in turn, own descriptors", in_turn, MIB, 0, 4, 4, 1},
    {"8 threads in turn, 4 MiB, own descriptors", in_turn, 4 * MIB, 16, 8, 8, 8},
    {"2 places, one descriptor", parts, MIB, 0, 2, 1, 2},
    {"2 places, cut", parts, MIB, 16, 2, 1, 2},
    {"2 places, 32 KiB", parts, 32 * KIB, 0, 2, 1, 2},
    {"8 parts, one descriptor", parts, MIB, 0, 8, 1, 8},
    {"8 parts, own descriptors", parts, MIB, 16, 8, 8, 8},
    {"1 MiB with short lookups between", with_lookups, MIB, 0, 1, 1, 1},
};

/* ---- execution ---- */

static struct efs *open_model(uint64_t budget)
{
    struct efs *fs = fixture_open(&model, (struct efs_options){.budget_bytes = budget, .workers = 2, .no_state = true});
    efs_extents_streams(fs)->window = WINDOW;
    return fs;
}

struct played {
    uint64_t disk_bytes, most_used, readahead_extents, pool_bytes;
};

static struct played play(struct efs *fs, const struct list *list, unsigned char *buffer)
{
    struct efs_stream *streams[HANDLES];
    for (unsigned i = 0; i < HANDLES; i++)
        assert_int_equal(efs_stream_new(fs, EFS_STREAM_SEQUENTIAL, &streams[i]), 0);
    struct efs_stats before = fixture_drain(fs), s = before;
    uint32_t file = fixture_file_named(fs, "model.safetensors");
    struct played played = {0};
    for (size_t i = 0; i < list->count; i++) {
        const struct request *r = &list->at[i];
        assert_int_equal(read_wait(fs, file, streams[r->handle], r->offset, buffer, r->bytes), r->bytes);
        assert_memory_equal(buffer, whole + r->offset, r->bytes);
        if (i % 8 == 0 || r->bytes >= 64 * KIB) {
            efs_stats(fs, &s);
            played.most_used = s.chunk_used_bytes > played.most_used ? s.chunk_used_bytes : played.most_used;
        }
    }
    for (unsigned i = 0; i < HANDLES; i++)
        efs_stream_free(streams[i]);
    s = fixture_drain(fs);
    played.disk_bytes = s.disk_bytes - before.disk_bytes;
    played.readahead_extents = s.readahead_extents - before.readahead_extents;
    played.pool_bytes = s.chunk_pool_bytes;
    return played;
}

static unsigned experts_in(struct efs *fs, bool untouched)
{
    unsigned found = 0;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const struct efs_expert_info expert = fixture_expert_info(fs, e);
        found += expert.resident_bytes != 0 && (!untouched || expert.touches == 0);
    }
    return found;
}

/* One window, or two with several streams; a third of a window, coded; for each stream the two experts that were read
 * before the scan was detected. */
static uint64_t memory_of(unsigned streams)
{
    return (streams > 1 ? 2 * WINDOW : WINDOW) + WINDOW / 3 + 3 * MIB * streams;
}

/* Bytes of the pages of all extents, each read separately. Here an object is one extent. */
static uint64_t extents_bytes(void)
{
    struct efs_store *store;
    struct efs_error err;
    uint64_t bytes = 0;
    assert_int_equal(efs_store_open(model.store, &store, &err), 0);
    for (uint32_t o = 0; o < store->object_count; o++) {
        const struct efs_disk_shard *first = &store->shards[store->objects[o].shard_first];
        const struct efs_disk_shard *last = first + store->objects[o].shard_count - 1;
        if (store->objects[o].shard_count)
            bytes += efs_page_span(first->e_offset, last->e_offset + last->e_bytes) +
                     efs_page_span(first->sm_offset, last->sm_offset + last->sm_bytes);
    }
    efs_store_close(store);
    return bytes;
}

/* Each extent once. With several threads three extents per thread may be read again, where a thread reaches the start
 * of another one's block or is late. */
static uint64_t disk_of(unsigned threads)
{
    return store_bytes + (threads > 1 ? 3 * threads * 400 * KIB : 0);
}

TEST(test_read_orders)
{
    unsigned char *buffer = malloc(8 * MIB);
    unsigned bad = 0;
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i += PATTERN_EACH) {
        const struct pattern *p = &patterns[i];
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            struct efs *fs = open_model(BUDGET);
            fs->extents->all_bytes = 1ull << 50; /* as if the store did not fit */
            struct list list = {0};
            uint64_t state_of_seed = seed;
            p->make(&list, p, &state_of_seed);
            struct played played = play(fs, &list, buffer);
            bool once = played.disk_bytes <= disk_of(p->threads),
                 ahead = played.readahead_extents >= EXPERTS * 3 * 3 / 4;
            bool small = played.most_used <= memory_of(p->streams);
            if (!once || !ahead || !small) {
                bad++;
                print_message(
                    "%s, seed %u: %.2f of the store read, %u extents ahead, %.1f MiB of memory at most%s%s%s\n",
                    p->name, (unsigned)seed, (double)played.disk_bytes / (double)store_bytes,
                    (unsigned)played.readahead_extents, (double)played.most_used / (double)MIB,
                    once ? "" : "; LOADED TWICE", ahead ? "" : "; NOT AHEAD", small ? "" : "; TOO MUCH MEMORY");
            }
            free(list.at);
            efs_close(fs);
        }
    }
    free(buffer);
    assert_int_equal(bad, 0);
}

/* Experts that were in memory stay there, though the scan needs all remaining memory. */
TEST(test_scan_keeps_resident_experts)
{
    unsigned char *buffer = malloc(8 * MIB);
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i += PATTERN_EACH) {
        struct efs *fs = open_model(112 * MIB);
        struct list list = {0};
        uint64_t seed = 5;
        char path[100];
        for (uint32_t e = 0; e < 8; e++) {
            snprintf(path, sizeof(path), "experts/L01/E%03u.safetensors", 3 * e);
            uint32_t file = fixture_file_named(fs, path);
            const size_t bytes = fixture_file_info(fs, file).bytes;
            assert_int_equal(read_wait(fs, file, NULL, 0, buffer, bytes), bytes);
        }
        patterns[i].make(&list, &patterns[i], &seed);
        play(fs, &list, buffer);
        for (uint32_t e = 0; e < 8; e++)
            if (fixture_expert_info(fs, 32 + 3 * e).state != 'C')
                fail_msg("%s: expert %u of layer 1 was pushed out", patterns[i].name, 3 * e);
        free(list.at);
        efs_close(fs);
    }
    free(buffer);
}

/* Random readers: only requested experts are loaded, once each, and they stay in memory. */
TEST(test_random_is_no_stream)
{
    unsigned char *buffer = malloc(8 * MIB);
    for (uint64_t seed = 1; seed <= 6; seed++)
        for (uint64_t most = 4 * KIB; most <= MIB; most *= 16) {
            struct efs *fs = open_model(BUDGET);
            struct list list = {0};
            uint64_t random = seed, asked = 0;
            for (unsigned i = 0; i < 24; i++) { /* like the blocks of a reader: often full */
                uint64_t bytes = fixture_random(&random) % 2 ? most : 1 + fixture_random(&random) % most;
                add(&list, i % 3, fixture_random(&random) % size, bytes);
            }
            struct played played = play(fs, &list, buffer);
            if (experts_in(fs, true) != 0)
                fail_msg("seed %u, reads to %llu bytes: %u experts came that nobody asked for", (unsigned)seed,
                         (unsigned long long)most, experts_in(fs, true));
            for (uint32_t e = 0; e < EXPERTS; e++) {
                const struct efs_expert_info expert = fixture_expert_info(fs, e);
                asked += expert.touches ? expert.coded_bytes : 0;
            }
            assert_true(played.disk_bytes <= asked + 4 * MIB); /* and the dense tensors */
            played = play(fs, &list, buffer);
            assert_int_equal(played.disk_bytes, 0);
            free(list.at);
            efs_close(fs);
        }
    free(buffer);
}

/* Random reads between those of a scan, through one descriptor: read-ahead follows the scan, and at most twice the
 * store is read. */
TEST(test_random_beside_a_scan)
{
    unsigned char *buffer = malloc(8 * MIB);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct efs *fs = open_model(BUDGET);
        struct list list = {0};
        uint64_t random = seed;
        for (uint64_t at = 0; at < size; at += MIB) {
            add_cut(&list, 0, at, MIB, 16);
            if (at / MIB % 2)
                add(&list, 0, fixture_random(&random) % size, 4 * KIB);
        }
        struct played played = play(fs, &list, buffer);
        assert_true(played.readahead_extents >= EXPERTS * 3 / 2);
        assert_true(played.disk_bytes <= 2 * store_bytes);
        free(list.at);
        efs_close(fs);
    }
    free(buffer);
}

/* Every defined hint is accepted, any other number is refused. */
TEST(test_hints)
{
    struct efs *fs = open_model(BUDGET);
    for (uint32_t hints = 0; hints < 16; hints++) {
        struct efs_stream *stream = (struct efs_stream *)fs;
        assert_int_equal(efs_stream_new(fs, hints, &stream), hints < 2 ? 0 : -EINVAL);
        assert_int_equal(stream != NULL, hints < 2);
        efs_stream_free(stream);
    }
    efs_close(fs);
}

static int begin(void **state)
{
    (void)state;
    size_t bytes;
    fixture_store(&model, 3, 32, 512, 512);
    whole = fixture_weights(&model, &bytes);
    size = bytes;
    /* bytes to read each extent once: extents share pages, so this is slightly more than the store */
    store_bytes = extents_bytes();
    return 0;
}

static int end(void **state)
{
    (void)state;
    free(whole);
    fixture_end(&model);
    return 0;
}

TEST_MAIN(begin, end)
