/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dispatch.c - EXPERTFS_CPU selects the path at the first call; a path that this CPU lacks falls back to the best.
 */
#include "test.h"
#include "cases.h"

#include <sys/wait.h>

/* Returns the path that a new process with this EXPERTFS_CPU (NULL: unset) uses, as an index into path_names. */
static size_t path_with(const char *wanted)
{
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        if (wanted ? setenv("EXPERTFS_CPU", wanted, 1) : unsetenv("EXPERTFS_CPU"))
            _exit(100);
        const char *name = efs_cpu_name(); /* the first call of this process */
        for (size_t p = 0; p < PATH_COUNT; p++)
            if (strcmp(name, path_names[p]) == 0)
                _exit((int)p);
        _exit(101);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_true((size_t)WEXITSTATUS(status) < PATH_COUNT);
    return (size_t)WEXITSTATUS(status);
}

/* Runs first: no path is chosen yet in this process, so each child chooses its own. */
TEST(environment)
{
    size_t best = path_with(NULL), chosen[PATH_COUNT];

    assert_int_equal(path_with("auto"), best);
    assert_int_equal(path_with("abacus"), best);
    assert_int_equal(path_with(""), best);
    for (size_t p = 0; p < PATH_COUNT; p++)
        chosen[p] = path_with(path_names[p]);
    for (size_t p = 0; p < PATH_COUNT; p++)
        assert_int_equal(chosen[p], efs_cpu_force(path_names[p]) ? p : best);
    assert_int_equal(chosen[0], 0); /* every CPU has scalar */
}

TEST(force)
{
    assert_true(efs_cpu_force("scalar"));
    assert_string_equal(efs_cpu_name(), "scalar");
    assert_false(efs_cpu_force("abacus"));
    assert_string_equal(efs_cpu_name(), "scalar");
    for (size_t p = 0; p < PATH_COUNT; p++) {
        bool here = efs_cpu_force(path_names[p]);
        print_message("path %s: %s\n", path_names[p], here ? "tested" : "not on this processor");
        assert_true(!here || strcmp(efs_cpu_name(), path_names[p]) == 0);
    }
    assert_true(efs_cpu_force("auto"));
}

TEST_MAIN(NULL, NULL)
