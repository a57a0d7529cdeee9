/* SPDX-License-Identifier: Apache-2.0 */
/* The effective budget follows the memory that other processes leave, also of a store without experts that nobody
 * reads. */
#include "test.h"
#include "budget.h"
#include "fixture.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#define MIB (1ull << 20)

static struct fixture model;

static int setup(void **state)
{
    const struct fixture_tensor dense = {"model.embed.weight", "BF16", 2, {4096, 1024}, 8 * MIB};
    *state = &model;
    fixture_begin(&model);
    fixture_safetensors(&model, "model.safetensors", &dense, 1, 1);
    fixture_pack(&model, NULL);
    return 0;
}

/* A mock machine of 4 GiB. */
static void machine_leaves_mib(struct efs *fs, FILE *meminfo, unsigned mib)
{
    pthread_mutex_lock(&fs->budget->grow.lock); /* not during a reading */
    assert_int_equal(ftruncate(fileno(meminfo), 0), 0);
    rewind(meminfo);
    assert_true(fprintf(meminfo, "MemTotal: 4194304 kB\nMemAvailable: %u kB\n", mib * 1024) > 0);
    assert_int_equal(fflush(meminfo), 0);
    fs->budget->memory_left.machine = fileno(meminfo);
    pthread_mutex_unlock(&fs->budget->grow.lock);
}

static void wait_for_effective(struct efs *fs, bool reduced)
{
    for (bool is = !reduced; is != reduced; usleep(1000)) {
        efs_lock(fs);
        is = fs->account.budget_bytes < fs->options.budget_bytes;
        if (is && !reduced)
            fs->budget->controller.samples = INT_MAX / 2; /* as if enough samples were higher */
        efs_unlock(fs);
    }
}

TEST(test_dense_store)
{
    struct efs *fs =
        fixture_open(&model, (struct efs_options){.budget_bytes = 128 * MIB, .workers = 2, .no_state = true});
    FILE *meminfo = tmpfile();
    int real = fs->budget->memory_left.machine;
    assert_non_null(meminfo);
    machine_leaves_mib(fs, meminfo, 64 + 40);
    wait_for_effective(fs, true);
    machine_leaves_mib(fs, meminfo, 4000);
    wait_for_effective(fs, false);
    struct efs_stats s = fixture_drain(fs);
    assert_int_equal(s.effective_budget_bytes, s.budget_bytes);
    pthread_mutex_lock(&fs->budget->grow.lock);
    fs->budget->memory_left.machine = real;
    pthread_mutex_unlock(&fs->budget->grow.lock);
    efs_close(fs);
    fclose(meminfo);
}

TEST_MAIN(setup, fixture_teardown)
