/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines that are suppressed: repeated lines and those above the limit of a kind, until the log reports their
 * number; and lines that do not fit into the output. */
#include <pthread.h>
#include <unistd.h>

#include "test.h"
#include "log.h"
#include "log_queue.h"

#define THREADS 4
#define LINES_A_THREAD 5000

static FILE *told; /* the file that stderr goes to */
static int terminal;

static int log_to_file(void **state)
{
    (void)state;
    told = tmpfile();
    if (!told)
        return -1;
    fflush(stderr);
    terminal = dup(STDERR_FILENO);
    efsd_log_open(true);
    return dup2(fileno(told), STDERR_FILENO) < 0 ? -1 : 0;
}

static int log_to_terminal(void **state)
{
    (void)state;
    efsd_log_report_suppressed(); /* resets the limits for the next test */
    fflush(stderr);
    dup2(terminal, STDERR_FILENO);
    close(terminal);
    fclose(told);
    return 0;
}

/* Number of lines with `what` since the last call, without reports of suppressed lines, which are added to left_out. */
static unsigned lines_told(const char *what, unsigned long long *left_out)
{
    char line[1024];
    unsigned count = 0;
    fflush(stderr);
    rewind(told);
    while (fgets(line, sizeof(line), told)) {
        unsigned long long n;
        if (!strstr(line, what))
            continue;
        const char *more =
            strstr(line, "warning: ") ? line + strlen("expertfs: warning: ") : line + strlen("expertfs: ");
        if (sscanf(more, "%llu more messages like this one were left out: ", &n) == 1)
            *left_out += n;
        else
            count++;
    }
    rewind(told);
    assert_int_equal(ftruncate(fileno(told), 0), 0);
    return count;
}

TEST_WITH(same_line_once, log_to_file, log_to_terminal)
{
    unsigned long long left_out = 0;
    for (int i = 0; i < 100; i++)
        efsd_log(EFS_LOG_ERROR, "place %d is damaged", 7);
    efsd_log_report_suppressed();
    assert_int_equal(lines_told("place 7 is damaged", &left_out), 1);
    assert_int_equal(left_out, 99);
    efsd_log(EFS_LOG_ERROR, "place %d is damaged", 7);
    efsd_log_report_suppressed();
    assert_int_equal(lines_told("place 7 is damaged", &left_out), 1);
    assert_int_equal(left_out, 99);
}

TEST_WITH(kinds_are_limited_separately, log_to_file, log_to_terminal)
{
    unsigned long long left_out = 0;
    for (int i = 0; i < 100; i++)
        efsd_log(EFS_LOG_ERROR, "place %d is damaged", i);
    efsd_log(EFS_LOG_ERROR, "another %s", "error");
    efsd_log_line(NULL, EFS_LOG_ERROR, "of the engine, an error");
    efsd_log_line(NULL, EFS_LOG_WARNING, "of the engine, a warning");
    assert_int_equal(lines_told("", &left_out), EFSD_LOG_LINES + 3);
    efsd_log_report_suppressed();
    assert_int_equal(lines_told("place 99 is damaged", &left_out), 0);
    assert_int_equal(left_out, 100 - EFSD_LOG_LINES);
}

TEST_WITH(changes_are_always_logged, log_to_file, log_to_terminal)
{
    unsigned long long left_out = 0;
    for (int i = 0; i < 100; i++)
        efsd_log(EFS_LOG_INFO, "user 0 set policy=lru");
    efsd_log_report_suppressed();
    assert_int_equal(lines_told("policy", &left_out), 100);
    assert_int_equal(left_out, 0);
}

#pragma GCC diagnostic ignored "-Wformat-nonliteral"
TEST_WITH(more_kinds_than_slots, log_to_file, log_to_terminal)
{
    unsigned long long left_out = 0;
    static char formats[2 * EFSD_LOG_KINDS][16]; /* each one is a kind */
    for (unsigned i = 0; i < 2 * EFSD_LOG_KINDS; i++) {
        snprintf(formats[i], sizeof(formats[i]), "kind %u %%d", i);
        efsd_log(EFS_LOG_ERROR, formats[i], 1);
    }
    efsd_log_report_suppressed();
    assert_int_equal(lines_told("kind ", &left_out), EFSD_LOG_KINDS - 1 + EFSD_LOG_LINES);
    assert_int_equal(left_out, EFSD_LOG_KINDS + 1 - EFSD_LOG_LINES);
}

static void *log_much(void *arg)
{
    const int *thread = arg;
    for (int i = 0; i < LINES_A_THREAD; i++)
        efsd_log(EFS_LOG_WARNING, "thread %d, line %d", *thread, i / 100);
    return NULL;
}

TEST_WITH(threads_add_up, log_to_file, log_to_terminal)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    unsigned long long left_out = 0;
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, log_much, &numbers[i]), 0);
    }
    for (int i = 0; i < 10; i++)
        efsd_log_report_suppressed();
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    efsd_log_report_suppressed();
    unsigned count = lines_told("thread ", &left_out);
    assert_in_range(count, EFSD_LOG_LINES, 11 * EFSD_LOG_LINES);
    assert_int_equal(count + left_out, THREADS * LINES_A_THREAD);
}

static void *put_lines(void *arg)
{
    (void)arg;
    for (int i = 0; i < LINES_A_THREAD; i++)
        efsd_log_queue_put(EFSD_LOG_STDERR, "a line");
    return NULL;
}

/* The pipe is not read until all threads have logged: they finish, and each line is written or reported as lost. */
TEST(blocked_output)
{
    pthread_t threads[THREADS];
    unsigned long long reported = 0, n;
    unsigned written = 0;
    char line[128];
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    FILE *from = fdopen(ends[0], "r");
    assert_non_null(from);
    int before = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    assert_int_equal(efsd_log_queue_start(), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, put_lines, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    while (reported + written < THREADS * LINES_A_THREAD && fgets(line, sizeof(line), from))
        if (sscanf(line, "expertfs: %llu messages were lost: standard error", &n) == 1)
            reported += n;
        else
            written++;
    efsd_log_queue_flush();
    dup2(before, STDERR_FILENO);
    close(before);
    fclose(from);
    assert_int_equal(reported, efsd_log_queue_lost());
    assert_int_equal(reported + written, THREADS * LINES_A_THREAD);
}

TEST_MAIN(NULL, NULL)
