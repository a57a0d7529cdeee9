/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_fork.c - a client of a store or a mount in a forked child: every call fails with -ECHILD, even when
 * threads of the parent held locks at the fork, and the client of the parent is not affected.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "test.h"
#include "client_fixture.h"
#include "expertfs-compute.h"

static struct efs_team *team;
static errint_t done_with;

static void read_done(void *arg, errint_t error, size_t bytes)
{
    (void)arg;
    (void)bytes;
    done_with = error;
}

static void lease_done(void *arg, errint_t error, struct efs_lease *lease)
{
    (void)arg;
    (void)lease;
    done_with = error;
}

#define CHILD_CALL(call)                                                                                               \
    if ((call) != -ECHILD)                                                                                             \
    return __LINE__

/* Line of the first call that does not fail with -ECHILD, or 0. */
static int store_in_child(struct efs *fs)
{
    struct efs_pool_info pool;
    struct efs_expert_info expert;
    struct efs_client *client;
    struct efs_stats stats = {.budget_bytes = 1};
    char value[64];
    CHILD_CALL(efs_set(fs, "budget", "200M", NULL, NULL));
    CHILD_CALL(efs_get(fs, "budget", value, sizeof(value)));
    CHILD_CALL(efs_pin(fs, efs_id(0), false, 'C', NULL));
    CHILD_CALL(efs_pool_info(fs, 'C', &pool));
    CHILD_CALL(efs_expert_info(fs, efs_id(0), &expert));
    CHILD_CALL(efs_reserve(fs, 4096, NULL));
    CHILD_CALL(efs_client_new(fs, &client, NULL));
    efs_read(fs, 0, NULL, 0, value, sizeof(value), read_done, NULL);
    CHILD_CALL(done_with);
    done_with = 0;
    efs_lease(fs, 0, lease_done, NULL);
    CHILD_CALL(done_with);
    efs_stats(fs, &stats);
    return stats.budget_bytes ? __LINE__ : 0;
}

static int in_child(struct efs_client *client, struct efs_client_request *r)
{
    const struct efs_need need = {1, 1};
    const struct efs_routing chosen = {.count = 1, .experts = &need.expert};
    const uint32_t token = 0;
    const float one = 1, x[64] = {0};
    float y[64];
    const struct efs_route_to route = {.count = 1, .token = &token, .weight = &one};
    const struct efs_plain_expert plain = {x, x, x, 64};
    const struct efs_mixture mixture = {.experts = &route,
                                        .expert_count = 1,
                                        .tokens = 1,
                                        .hidden = 64,
                                        .x = x,
                                        .x_stride = 64,
                                        .y = y,
                                        .y_stride = 64};
    struct efs_error err = {""};
    struct efs_client_request *other;
    const struct efs_tensor *tensors;
    uint32_t index, count;
    errint_t status;
    CHILD_CALL(efs_client_begin(client, "", 0, &need, 1, EFS_FORM_FULL, &other, &err));
    if (!strstr(err.text, "another process"))
        return __LINE__;
    CHILD_CALL(efs_client_wait_any(r, -1, &index, &status));
    CHILD_CALL(efs_client_event(r));
    CHILD_CALL(efs_client_wait(r));
    CHILD_CALL(efs_client_tensors(r, 0, &tensors, &count));
    CHILD_CALL(efs_observe(client, &chosen, NULL));
    CHILD_CALL(efs_hint(client, &chosen, NULL));
    CHILD_CALL(efs_client_ffn(client, NULL, "", 0, &mixture, NULL));
    CHILD_CALL(efs_plain_ffn(team, &mixture, &plain, NULL));
    if (efs_client_fs(client)) {
        int line = store_in_child(efs_client_fs(client));
        if (line)
            return line;
    }
    efs_client_drop(r, 0);
    efs_client_release(r);
    efs_client_close(client);
    efs_team_free(team);
    return 0;
}

#define OTHER_FILES 2

/* Runs the checks and ends this forked process. OTHER_FILES: the number of open descriptors is not fds; another thread
 * of the parent may have had a descriptor open at the fork, so the caller retries. */
static void child_ends(struct efs_client *client, struct efs_client_request *r, unsigned fds)
{
    alarm(PATIENCE_SECONDS); /* without a handler: SIGALRM kills a child that blocks */
    int line = in_child(client, r);
    if (!line && fds && fixture_open_fds() != fds)
        _exit(OTHER_FILES);
    if (line)
        print_error("in the child: line %d\n", line);
    _exit(line != 0);
}

/* The parent and the child both have process id 1, each in its own PID namespace. */
static void same_number(const char *path)
{
    pid_t outer = unshare(CLONE_NEWPID) == 0 ? fork() : -1;
    if (outer == 0) {
        struct efs_client *client = open_client(path);
        struct efs_client_request *r = fixture_request_one(client, 0, 1, EFS_FORM_FULL);
        int status = 1;
        if (getpid() != 1 || unshare(CLONE_NEWPID) < 0)
            _exit(2);
        pid_t inner = fork();
        if (inner == 0 && getpid() == 1)
            child_ends(client, r, 0);
        _exit(inner < 0 || waitpid(inner, &status, 0) != inner || status != 0);
    }
    child_ended_well(outer);
}

TEST(test_forked)
{
    if (SANITIZED)
        skip();
    const char *const paths[] = {model.store, mount.directory};
    const struct efs_need needs[] = {{1, 1}, {6, 1}};
    for (unsigned i = 0; i < 2; i++) {
        unsigned fds = fixture_open_fds();
        pthread_t threads[3];
        shared = open_client(paths[i]);
        assert_int_equal(efs_team_new(3, &team), 0);
        struct efs_client_request *r = fixture_request(shared, 1, needs, 2, EFS_FORM_FULL);
        assert_int_equal(efs_client_wait(r), 0);
        assert_true(efs_client_event(r) >= 0);
        pid_t child;
        int status, forks = 0;
        do {
            child = fork();
            if (child == 0)
                child_ends(shared, r, fds);
            status = child_status(child);
        } while (WIFEXITED(status) && WEXITSTATUS(status) == OTHER_FILES && ++forks < 20);
        assert_int_equal(status, 0);
        child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0); /* bypasses pthread_atfork() */
        if (child == 0)
            child_ends(shared, r, 0);
        child_ended_well(child);
        check_tensors(r, 0, 1, needs[0].expert);
        /* while threads of the parent hold locks */
        atomic_store(&rounds_done, 0);
        for (uintptr_t t = 0; t < 3; t++)
            assert_int_equal(pthread_create(&threads[t], NULL, request_thread, (void *)(t + 1)), 0);
        while (atomic_load(&rounds_done) < 400) {
            child = fork();
            if (child == 0)
                child_ends(shared, r, 0);
            child_ended_well(child);
        }
        for (unsigned t = 0; t < 3; t++)
            pthread_join(threads[t], NULL);
        check_tensors(r, 0, 1, needs[0].expert);
        check_tensors(r, 1, 1, needs[1].expert);
        efs_client_release(r);
        check_all_requests(shared);
        efs_client_close(shared);
        efs_team_free(team);
        assert_int_equal(fixture_open_fds(), fds);
    }
}

TEST(test_forked_same_number)
{
    if (SANITIZED || geteuid()) /* PID namespaces need root */
        skip();
    pid_t child = fork(); /* all later children of this process would be in the new namespace */
    if (child == 0) {
        assert_int_equal(efs_team_new(2, &team), 0);
        same_number(model.store);
        _exit(0);
    }
    child_ended_well(child);
}

TEST_MAIN(setup, teardown)
