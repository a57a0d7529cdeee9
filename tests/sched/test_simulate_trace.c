/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole traces: totals by hand, a policy that keeps the used experts, errors in the middle of a trace.
 */
#include "test.h"
#include "request_random.h"
#include "simulate_trace.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define LAYERS 3u
#define EXPERTS 8u

/* Each expert is one tensor: e = 2, K = 2, u = 10, c = 3; 4 and 10 bytes. After its use it stays in state `kept`. */
struct book {
    enum efs_task_state state[LAYERS][EXPERTS], kept;
    uint32_t begun, used, tensors, shards;
    int begin_error;
    struct efs_trace_timeline line;
};

static int begin(void *arg, uint32_t layer, const uint32_t *experts, uint32_t count)
{
    struct book *book = arg;
    (void)layer;
    (void)experts;
    book->begun += count;
    return book->begin_error;
}

static uint32_t describe(void *arg, uint32_t layer, uint32_t expert, struct efs_trace_tensor *tensors)
{
    struct book *book = arg;
    tensors[0] = (struct efs_trace_tensor){.task = {.state = book->state[layer][expert],
                                                    .shards = book->shards,
                                                    .e_read_ns = 2,
                                                    .sm_read_ns = 10,
                                                    .decode_ns = 3},
                                           .e_bytes = 4,
                                           .sm_bytes = 10};
    return book->tensors;
}

static void used(void *arg, uint32_t layer, const uint32_t *experts, uint32_t count)
{
    struct book *book = arg;
    for (uint32_t i = 0; i < count; i++)
        book->state[layer][experts[i]] = book->kept;
    book->used += count;
}

static void book_init(struct book *book, enum efs_task_state kept)
{
    *book = (struct book){.kept = kept, .tensors = 1, .shards = 2};
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t n = 0; n < EXPERTS; n++)
            book->state[l][n] = EFS_TASK_M;
}

static struct efs_trace_config config_for(struct book *book)
{
    return (struct efs_trace_config){.policy = {book, begin, describe, used},
                                     .timeline = &book->line,
                                     .workers = 2,
                                     .kind = EFS_SCHEDULE_REQUEST,
                                     .run_token_ns = 2,
                                     .layer_ns = 100,
                                     .max_shards = 2};
}

struct seen {
    struct efs_trace_totals tokens[8];
    uint32_t count;
};

static void keep_totals(void *arg, const struct efs_trace_totals *totals)
{
    struct seen *seen = arg;
    assert_in_range(seen->count, 0, COUNT(seen->tokens) - 1);
    seen->tokens[seen->count++] = *totals;
}

static int simulate(const struct efs_trace_config *config, const struct efs_trace_request *requests, size_t count,
                    struct seen *seen, struct efs_trace_totals *all)
{
    size_t bytes = efs_trace_bytes(config);
    assert_int_not_equal(bytes, 0);
    void *memory = malloc(bytes);
    assert_non_null(memory);
    memset(seen, 0, sizeof *seen);
    int error = efs_trace_simulate(config, requests, count, memory, bytes, keep_totals, seen, all);
    free(memory);
    return error;
}

static uint64_t next_piece(void *arg, uint64_t now_ns);

/*
 * Token 7 requests expert 1 of layer 0 (missing): reads until 14, decoded by 7, recovered at 14, runs 2 * 3: 20. Then
 * the same expert of layer 1: 1 token, 16. Token 8 finds both compressed: decoded at 3, runs 2: 5 each.
 */
TEST(totals_by_hand)
{
    const uint32_t expert[] = {1}, three[] = {3};
    const struct efs_trace_request requests[] = {
        {7, 0, 1, expert, three}, {7, 1, 1, expert, NULL}, {8, 0, 1, expert, NULL}, {8, 1, 1, expert, NULL}};
    struct book book;
    struct seen seen;
    struct efs_trace_totals all;
    book_init(&book, EFS_TASK_C);
    struct efs_trace_config config = config_for(&book);
    assert_int_equal(simulate(&config, requests, COUNT(requests), &seen, &all), 0);
    assert_int_equal(seen.count, 2);
    assert_int_equal(seen.tokens[0].token, 7);
    assert_int_equal(seen.tokens[0].requests, 2);
    assert_int_equal(seen.tokens[0].time_ns, 200 + 20 + 16);
    assert_int_equal(seen.tokens[0].read_bytes, 28);
    assert_int_equal(seen.tokens[0].hits[EFS_TASK_M], 2);
    assert_int_equal(seen.tokens[0].busy_ns[EFS_ON_IO], 28);
    assert_int_equal(seen.tokens[0].busy_ns[EFS_ON_WORKER], 12);
    assert_int_equal(seen.tokens[0].busy_ns[EFS_ON_EXECUTOR], 8);
    assert_int_equal(seen.tokens[1].token, 8);
    assert_int_equal(seen.tokens[1].time_ns, 200 + 5 + 5);
    assert_int_equal(seen.tokens[1].read_bytes, 0);
    assert_int_equal(seen.tokens[1].hits[EFS_TASK_C], 2);
    assert_int_equal(all.time_ns, 236 + 210);
    assert_int_equal(all.requests, 4);
    assert_int_equal(book.begun, 4);
    assert_int_equal(book.used, 4);
}

/* The state of an expert determines its reads: none, SM-chunks, E-chunks or both. */
TEST(states_decide_reads)
{
    static const uint64_t second_bytes[EFS_TASK_STATES] = {0, 0, 4, 10, 14};
    const uint32_t experts[] = {0, 3, 5};
    const struct efs_trace_request requests[] = {{0, 2, 3, experts, NULL}, {1, 2, 3, experts, NULL}};
    for (enum efs_task_state kept = EFS_TASK_F; kept < EFS_TASK_STATES; kept++) {
        struct book book;
        struct seen seen;
        book_init(&book, kept);
        struct efs_trace_config config = config_for(&book);
        assert_int_equal(simulate(&config, requests, 2, &seen, NULL), 0);
        assert_int_equal(seen.tokens[0].read_bytes, 3 * 14);
        assert_int_equal(seen.tokens[1].read_bytes, 3 * second_bytes[kept]);
        assert_int_equal(seen.tokens[1].hits[kept], 3);
    }
}

TEST(errors_stop_simulation)
{
    const uint32_t experts[] = {0, 3};
    struct efs_trace_request requests[] = {{0, 0, 2, experts, NULL}, {1, 0, 2, experts, NULL}};
    struct book book;
    struct seen seen;
    struct efs_trace_totals all;
    book_init(&book, EFS_TASK_M);
    struct efs_trace_config config = config_for(&book), bad;

    requests[1].count = 0;
    assert_int_equal(simulate(&config, requests, 2, &seen, &all), -EINVAL);
    assert_int_equal(seen.count, 1);
    assert_int_equal(all.requests, 1);
    requests[1].count = EFS_TASK_MAX_EXPERTS + 1;
    assert_int_equal(simulate(&config, requests, 2, &seen, &all), -EINVAL);
    requests[1].count = 2;
    book.begin_error = -ENOENT;
    assert_int_equal(simulate(&config, requests, 2, &seen, &all), -ENOENT);
    assert_int_equal(all.requests, 0);
    book.begin_error = 0;
    book.tensors = 0;
    assert_int_equal(simulate(&config, requests, 2, &seen, &all), -EINVAL);
    book.tensors = 1;
    book.shards = 3; /* more than configured */
    assert_int_equal(simulate(&config, requests, 2, &seen, &all), -EINVAL);
    book.shards = 0;
    assert_int_equal(simulate(&config, requests, 2, &seen, &all), -EINVAL);
    book.shards = 2;
    const uint32_t many[] = {1, UINT32_MAX};
    config.run_token_ns = EFS_TASK_MAX_NS; /* the longest allowed time */
    requests[1].tokens = many;
    assert_int_equal(simulate(&config, requests, 2, &seen, &all), -EINVAL);
    assert_int_equal(all.requests, 1);

    bad = config;
    bad.workers = 0;
    assert_int_equal(efs_trace_bytes(&bad), 0);
    bad = config;
    bad.policy.describe = NULL;
    assert_int_equal(efs_trace_bytes(&bad), 0);
    bad = config;
    bad.timeline = NULL;
    assert_int_equal(efs_trace_bytes(&bad), 0);
    bad = config;
    bad.ahead.next = next_piece; /* without a done function */
    assert_int_equal(efs_trace_bytes(&bad), 0);
    bad = config;
    bad.max_shards = EFS_TASK_MAX_SHARDS + 1;
    assert_int_equal(efs_trace_bytes(&bad), 0);
    uint64_t small[4];
    assert_int_equal(efs_trace_simulate(&config, requests, 2, small, sizeof small, NULL, NULL, NULL), -ENOSPC);
    assert_int_equal(efs_trace_simulate(&bad, requests, 2, small, sizeof small, NULL, NULL, NULL), -EINVAL);
}

/* Prefetch in pieces of 7 ns: pieces left to start, and the number of callbacks. */
struct guesses {
    unsigned left, begun, done;
    uint64_t last_ns;
};

static uint64_t next_piece(void *arg, uint64_t now_ns)
{
    struct guesses *guesses = arg;
    if (guesses->left == 0)
        return 0;
    assert_int_equal(guesses->begun, guesses->done); /* one piece at a time */
    guesses->left--;
    guesses->begun++;
    guesses->last_ns = now_ns;
    return 7;
}

static void piece_done(void *arg)
{
    struct guesses *guesses = arg;
    guesses->done++;
}

/*
 * The disk is idle for 100 ns until the first request: 15 pieces of 7, the last of which ends 5 ns later. Then the
 * expert is read in 14, and decoded and run as without prefetch. From the end of that read on the disk is idle again.
 */
TEST(prefetch_uses_idle_disk)
{
    const uint32_t expert[] = {1};
    const struct efs_trace_request requests[] = {{1, 0, 1, expert, NULL}, {2, 1, 1, expert, NULL}};
    struct book book;
    struct seen without, seen;
    struct efs_trace_totals all;
    struct guesses guesses = {.left = 1000};
    struct efs_trace_config config = config_for(&book);
    book_init(&book, EFS_TASK_F);
    assert_int_equal(simulate(&config, requests, 2, &without, &all), 0);
    assert_int_equal(all.ahead_ns, 0);
    assert_int_equal(book.line.now_ns, all.time_ns);
    book_init(&book, EFS_TASK_F);
    config.ahead = (struct efs_trace_prefetch){&guesses, next_piece, piece_done};
    assert_int_equal(simulate(&config, requests, 1, &seen, &all), 0);
    assert_int_equal(seen.tokens[0].time_ns, without.tokens[0].time_ns + 5);
    assert_int_equal(seen.tokens[0].busy_ns[EFS_ON_IO], 14);
    assert_int_equal(all.ahead_ns, 105);
    assert_int_equal(guesses.begun, 15);
    assert_int_equal(guesses.done, 14);
    assert_int_equal(guesses.last_ns, 98);
    assert_int_equal(book.line.request_ns, 100);
    assert_int_equal(book.line.disk_ns, 100 + 5 + 14);
    assert_int_equal(book.line.now_ns, seen.tokens[0].time_ns);
    /* The next call continues where this one ended: the last piece completes, then prefetch fills the gap. */
    uint64_t idle = book.line.now_ns + 100 - book.line.disk_ns, pieces = (idle + 6) / 7;
    assert_int_equal(simulate(&config, requests + 1, 1, &seen, &all), 0);
    assert_int_equal(guesses.begun, 15 + pieces);
    assert_int_equal(seen.tokens[0].time_ns, without.tokens[1].time_ns + 7 * pieces - idle);
}

/* With no pieces left, or no reads of the request, prefetch delays nothing. */
TEST(prefetch_delays_nothing)
{
    const uint32_t expert[] = {1};
    const struct efs_trace_request requests[] = {{1, 0, 1, expert, NULL}, {2, 0, 1, expert, NULL}};
    struct book book;
    struct seen without, seen;
    struct efs_trace_totals all;
    struct guesses guesses = {.left = 3};
    struct efs_trace_config config = config_for(&book);
    book_init(&book, EFS_TASK_F);
    assert_int_equal(simulate(&config, requests, 2, &without, &all), 0);
    book_init(&book, EFS_TASK_F);
    config.ahead = (struct efs_trace_prefetch){&guesses, next_piece, piece_done};
    assert_int_equal(simulate(&config, requests, 2, &seen, &all), 0);
    assert_int_equal(seen.tokens[0].time_ns, without.tokens[0].time_ns);
    assert_int_equal(guesses.done, 3);
    guesses.left = 1000; /* the second request finds full experts only */
    assert_int_equal(simulate(&config, requests + 1, 1, &seen, &all), 0);
    assert_int_equal(seen.tokens[0].time_ns, without.tokens[1].time_ns);
    assert_true(guesses.begun > 3);
}

TEST_MAIN(NULL, NULL)
