/* SPDX-License-Identifier: Apache-2.0 */
/* The line of progress: no estimate of the time that is left from the first bytes alone. */
#include "test.h"
#include "progress.h"

#include <unistd.h>

#define GIB (UINT64_C(1) << 30)

/* The line that is printed `seconds` after the start of a phase. */
static void line_after(double seconds, uint64_t done, uint64_t total, char *line, size_t room)
{
    struct tools_progress progress;
    char path[] = "/tmp/expertfs-progress-XXXXXX";
    int file = mkstemp(path), before = dup(STDERR_FILENO);
    assert_true(file >= 0 && before >= 0);
    unlink(path);
    tools_progress_init(&progress, false);
    progress.terminal = true;
    assert_false(tools_progress_report(&progress, 0, total, "unpacking"));
    progress.began -= seconds;
    progress.printed -= seconds;
    dup2(file, STDERR_FILENO);
    assert_false(tools_progress_report(&progress, done, total, "unpacking"));
    dup2(before, STDERR_FILENO);
    ssize_t n = pread(file, line, room - 1, 0);
    line[n > 0 ? n : 0] = '\0';
    close(file);
    close(before);
}

TEST(estimate)
{
    static const struct {
        double seconds;
        uint64_t done, total;
        bool known;
    } rows[] = {{0.6, 200000, 40 * GIB, false},  {0.6, GIB / 2, 40 * GIB, false}, {0.6, GIB, 40 * GIB, true},
                {4, 100000000, 40 * GIB, false}, {6, 100000000, 40 * GIB, true},  {0.6, 3, 4, true},
                {60, 0, 40 * GIB, false}};
    char line[300];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        line_after(rows[i].seconds, rows[i].done, rows[i].total, line, sizeof(line));
        assert_non_null(strstr(line, " left"));
        assert_int_equal(strstr(line, "? left") == NULL, rows[i].known);
    }
}

TEST_MAIN(NULL, NULL)
