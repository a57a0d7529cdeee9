/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_fixture.h - shared by the tests of the client runtime: a model, its store, a directory with the files of a
 * mount, and functions that request experts from a client of either and check them.
 */
#ifndef EFS_TEST_CLIENT_FIXTURE_H
#define EFS_TEST_CLIENT_FIXTURE_H

#include "fixture_mount.h"
#include "test.h"

#include <stdatomic.h>
#include <sys/wait.h>

#define LAYERS 2
#define EXPERTS 8
#define MIB (1ull << 20)

static struct fixture model;
static struct fixture_mount mount; /* expert e of layer l has index l * EXPERTS + e */

static inline int setup(void **state)
{
    (void)state;
    fixture_mount_begin_moe(&mount, &model, LAYERS, EXPERTS);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    fixture_mount_end_moe(&mount, &model);
    return 0;
}

static inline struct efs_client *open_client(const char *path)
{
    const struct efs_client_options options = {.budget_bytes = 128 * MIB, .workers = 2, .no_state = true};
    return fixture_client(path, &options);
}

static inline void check_tensors(struct efs_client_request *r, uint32_t index, uint32_t layer, uint32_t expert)
{
    const struct efs_tensor *tensors;
    uint32_t count;
    char words[64];
    assert_int_equal(efs_client_tensors(r, index, &tensors, &count), 0);
    fixture_mount_check(&mount, layer * EXPERTS + expert, tensors, count);
    snprintf(words, sizeof(words), "layers.%u.mlp.experts.%u.", layer, expert);
    for (uint32_t i = 0; i < count; i++)
        assert_non_null(strstr(tensors[i].name, words));
}

/* Requests experts with all calls of the client. Each expert must be reported once and have the right bytes. */
static inline void check_all_requests(struct efs_client *client)
{
    struct efs_client_request *r;
    uint32_t index;
    errint_t status;
    for (uint32_t round = 0; round < 6; round++) {
        uint32_t layer = round % LAYERS, count = 1 + round, told = 0;
        struct efs_need needs[EXPERTS];
        bool seen[EXPERTS] = {false};
        for (uint32_t i = 0; i < count; i++)
            needs[i] = (struct efs_need){(round + 3 * i) % EXPERTS, i + 1};
        r = fixture_request(client, layer, needs, count, EFS_FORM_FULL);
        while (efs_client_wait_any(r, -1, &index, &status) == 1) {
            assert_int_equal(status, 0);
            assert_false(seen[index]);
            seen[index] = true;
            check_tensors(r, index, layer, needs[index].expert);
            if (++told % 2)
                efs_client_drop(r, index);
        }
        assert_int_equal(told, count);
        assert_int_equal(efs_client_wait_any(r, 0, &index, &status), 0);
        assert_int_equal(efs_client_wait(r), 0);
        efs_client_release(r);
    }
    struct efs_need needs[EXPERTS];
    for (uint32_t i = 0; i < EXPERTS; i++)
        needs[i] = (struct efs_need){i, 1};
    r = fixture_request(client, 1, needs, EXPERTS, EFS_FORM_FULL);
    assert_int_equal(efs_client_wait(r), 0);
    for (uint32_t i = 0; i < EXPERTS; i++)
        check_tensors(r, i, 1, i);
    const struct efs_tensor *tensors;
    uint32_t count;
    assert_int_equal(efs_client_tensors(r, EXPERTS, &tensors, &count), -EINVAL);
    efs_client_drop(r, 3);
    efs_client_drop(r, 3);
    efs_client_drop(r, EXPERTS);
    assert_int_equal(efs_client_tensors(r, 3, &tensors, &count), -EINVAL);
    check_tensors(r, 4, 1, 4);
    efs_client_release(r);
    efs_client_release(NULL);
    efs_client_release(fixture_request(client, 0, needs, 2, EFS_FORM_FULL)); /* released without a wait */
}

/* ---- many threads ---- */

static struct efs_client *shared;
static _Atomic unsigned rounds_done;

static inline void *request_thread(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    for (unsigned n = 0; n < 150; n++) {
        uint32_t layer = (uint32_t)rand_r(&seed) % LAYERS, first = (uint32_t)rand_r(&seed) % EXPERTS, index;
        errint_t status;
        const struct efs_need needs[] = {{first, 1}, {(first + 1) % EXPERTS, 3}, {(first + 5) % EXPERTS, 1}};
        struct efs_client_request *r = fixture_request(shared, layer, needs, 3, EFS_FORM_FULL);
        switch (rand_r(&seed) % 4) {
        case 0:
            break;
        case 1:
            assert_int_equal(efs_client_wait(r), 0);
            check_tensors(r, 1, layer, needs[1].expert);
            break;
        default:
            while (efs_client_wait_any(r, PATIENCE_MS, &index, &status) == 1) {
                assert_int_equal(status, 0);
                check_tensors(r, index, layer, needs[index].expert);
                if (rand_r(&seed) % 2)
                    efs_client_drop(r, index);
            }
        }
        efs_client_release(r);
        atomic_fetch_add(&rounds_done, 1);
    }
    return NULL;
}

/* ---- forked processes ---- */

static inline int child_status(pid_t child)
{
    int status;
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static inline void child_ended_well(pid_t child)
{
    assert_int_equal(child_status(child), 0);
}

#endif
