/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of the kernel's stalls: which are idle, that warm reads pause for one sample in five, and files that the
 * kernel does not have. */
#include "test.h"
#include "cores.h"
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define HALF UINT64_C(500000) /* microseconds between two samples */

static char folder[64];
static struct efs_machine machine;
static uint64_t stalls[2], now_ns;

static void write_text(const char *name, const char *text)
{
    char path[100];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void write_stalls(void)
{
    static const char *const names[] = {"io", "cpu"};
    for (int i = 0; i < 2; i++) {
        char text[200];
        snprintf(text, sizeof(text),
                 "some avg10=1.00 avg60=0.00 avg300=0.00 total=%llu\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n",
                 (unsigned long long)stalls[i]);
        write_text(names[i], text);
    }
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/expertfs-machine-XXXXXX");
    assert_non_null(mkdtemp(folder));
    setenv("EXPERTFS_PRESSURE", folder, 1);
    stalls[0] = stalls[1] = 1000;
    now_ns = 77;
    write_stalls();
    efs_machine_open(&machine);
    return 0;
}

static int teardown(void **state)
{
    char path[100];
    (void)state;
    efs_machine_close(&machine);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, i ? "io" : "cpu");
        unlink(path);
    }
    rmdir(folder);
    return 0;
}

/* Half a second passes, with these shares of stalls in percent. */
static bool sample(unsigned io, unsigned cpu)
{
    stalls[0] += io * HALF / 100;
    stalls[1] += cpu * HALF / 100;
    now_ns += HALF * 1000;
    write_stalls();
    return efs_machine_sample(&machine, now_ns);
}

TEST_WITH(idle_and_busy, setup, teardown)
{
    assert_false(sample(0, 0)); /* nothing to compare it with */
    assert_false(machine.known || machine.missing);
    assert_false(sample(6, 0));
    assert_true(machine.known && machine.share[0] > 0.059 && machine.share[0] < 0.061 && machine.share[1] == 0);
    assert_false(sample(0, 26));
    assert_false(sample(100, 100));
    assert_true(sample(4, 24));
    assert_true(machine.share[0] < 0.041 && machine.share[1] < 0.241);
}

TEST_WITH(pauses, setup, teardown)
{
    sample(0, 0);
    for (int turn = 0; turn < 3; turn++) {
        assert_true(sample(0, 0));
        for (int i = 0; i < 3; i++)
            assert_true(sample(90, 0)); /* stalls of the warm reads themselves */
        assert_false(sample(90, 0));    /* they pause from here to the next sample */
    }
    assert_false(sample(90, 0));
    assert_true(sample(0, 0));
}

/* A program that wants the processors ends warm reads with the next sample, and they begin after an idle one alone. */
TEST_WITH(processors_are_wanted, setup, teardown)
{
    const uint64_t step = EFS_MACHINE_RUNNING_NS / 1000;
    sample(0, 0);
    assert_true(sample(0, 0));
    for (unsigned i = 0; i < 5; i++) {
        stalls[0] += step; /* of the warm reads */
        stalls[1] += step / 5;
        now_ns += EFS_MACHINE_RUNNING_NS;
        write_stalls();
        assert_true(efs_machine_sample(&machine, now_ns));
    }
    stalls[1] += step / 2;
    now_ns += EFS_MACHINE_RUNNING_NS;
    write_stalls();
    assert_false(efs_machine_sample(&machine, now_ns));
    assert_true(machine.share[1] > 0.49 && machine.share[1] < 0.51);
    assert_false(sample(0, 30));
    assert_true(sample(0, 0));
}

TEST_WITH(stalls_that_fall, setup, teardown)
{
    stalls[0] = 1u << 30;
    sample(0, 0);
    stalls[0] = 0;
    assert_true(sample(0, 0));
    assert_true(machine.share[0] == 0);
    for (int i = 0; i < 4; i++)
        sample(0, 0);
    stalls[0] = UINT64_MAX / 2;
    assert_false(sample(0, 0));
    assert_true(machine.share[0] == 1);
}

TEST_WITH(not_known, setup, teardown)
{
    static const char *const texts[] = {"",
                                        "some",
                                        "some total=",
                                        "full avg10=0.00 total=5\n",
                                        "some avg10=0.00 total=x\n",
                                        "some avg10=0.00\nfull avg10=0.00 total=5\n",
                                        "some avg10=0.00 total=5 6\n"};
    sample(0, 0);
    assert_true(sample(0, 0));
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        write_text("io", texts[i]);
        assert_false(efs_machine_sample(&machine, now_ns += HALF * 1000));
        assert_true(machine.missing && !machine.known);
    }
    write_stalls();
    efs_machine_sample(&machine, now_ns += HALF * 1000);
    assert_false(machine.missing);
    efs_machine_close(&machine);
    setenv("EXPERTFS_PRESSURE", "/nonexistent", 1);
    efs_machine_open(&machine);
    assert_false(efs_machine_sample(&machine, now_ns));
    assert_true(machine.missing);
}

/* ---- cores.h ---- */

#define MS UINT64_C(1000000)

static struct efs_cores cores;

/* What efs_cores_pause() returns this many ms after the last call, in which threads waited for this many ms. */
static uint64_t pause_ms(uint64_t passed_ms, uint64_t stalled_ms)
{
    stalls[1] += 1000 * stalled_ms;
    write_stalls();
    now_ns += passed_ms * MS;
    return efs_cores_pause(&cores, now_ns) / MS;
}

/* Work for which no thread waits stops 40 ms after threads wait for a processor, and looks twice a second whether they
 * still do. */
TEST_WITH(cores_are_wanted, setup, teardown)
{
    efs_cores_open(&cores);
    assert_int_equal(pause_ms(0, 0), 0);
    assert_int_equal(pause_ms(10, 10), 0); /* between two samples */
    assert_int_equal(pause_ms(30, 0), 500);
    assert_int_equal(pause_ms(100, 0), 400);
    assert_int_equal(pause_ms(400, 130), 500);
    assert_int_equal(pause_ms(500, 120), 0);
    assert_int_equal(pause_ms(40, 9), 0);
    assert_int_equal(pause_ms(40, 10), 500);
    assert_int_equal(pause_ms(60000, 60000), 0); /* says nothing about the last second */
    assert_int_equal(pause_ms(39, 39), 0);
    assert_int_equal(pause_ms(1, 0), 500);
    efs_cores_close(&cores);
}

/* Without the kernel's file the work never pauses. */
TEST_WITH(cores_are_not_known, setup, teardown)
{
    write_text("cpu", "full avg10=0.00\n");
    efs_cores_open(&cores);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(efs_cores_pause(&cores, now_ns += 100 * MS), 0);
    efs_cores_close(&cores);
    write_stalls();
}

TEST_MAIN(NULL, NULL)
