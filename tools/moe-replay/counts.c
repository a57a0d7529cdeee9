/* SPDX-License-Identifier: Apache-2.0 */
/* counts.c - moe-replay counts: counts the requests of routing traces, and saves them for the next mount. */
#include "arguments.h"

#include "process.h"
#include "history.h"
#include "interrupt.h"
#include "options.h"
#include "replay.h"
#include "expertfs-profile-private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arguments {
    struct tools_arguments paths; /* STORE TRACE... */
};

static errint_t add_trace(const char *path, const struct efs_route *route, const struct replay_setup *setup,
                          struct efs_history *all, struct efs_error *err)
{
    struct replay_workload workload = {0};
    struct replay_history learned = {0};
    errint_t rc = replay_workload_make(route, setup->layers, setup->experts, 1, 0, &workload);
    if (rc == 0)
        rc = replay_history_learn(setup, &workload, workload.chosen, &learned);
    if (rc == 0)
        rc = efs_history_add(all, &learned.seen);
    if (rc < 0)
        efs_fail(err, rc, "%s: cannot be counted: %s", path, strerror(-rc));
    replay_history_free(&learned);
    replay_workload_free(&workload);
    return rc;
}

static errint_t read_traces(const struct arguments *a, const struct replay_setup *setup, struct efs_history *all,
                            struct efs_error *err)
{
    errint_t rc = 0;
    for (uint32_t i = 1; rc == 0 && i < a->paths.count; i++) {
        struct efs_route route = {0};
        rc = efs_route_read(a->paths.word[i], &route, err);
        if (rc == 0)
            rc = add_trace(a->paths.word[i], &route, setup, all, err);
        efs_route_free(&route);
    }
    return rc;
}

static errint_t count_traces(const struct arguments *a, struct efs_error *err)
{
    const char *path = a->paths.word[0];
    struct efs_store *store = NULL;
    struct efs_store_info info;
    struct efs_history all = {0};
    errint_t rc = efs_store_open(path, &store, err);
    if (rc < 0)
        return rc;
    efs_store_info(store, &info);
    efs_store_close(store);
    const struct replay_setup setup = {.layers = (uint32_t)info.layers, .experts = (uint32_t)info.layer_experts};
    rc = efs_history_init(&all, setup.layers, setup.experts);
    if (rc < 0)
        efs_fail(err, rc, "%s: %u layers of %u experts: %s", path, setup.layers, setup.experts, strerror(-rc));
    if (rc == 0)
        rc = read_traces(a, &setup, &all, err);
    if (rc == 0)
        rc = efs_counts_save(info.content_hash, &all, err);
    efs_history_free(&all);
    return rc;
}

int replay_counts_main(int argc, char **argv)
{
    static const struct tools_option none = {0};
    static const struct tools_command command = {
        .options = &none,
        .arguments = "STORE TRACE...",
        .at = offsetof(struct arguments, paths),
        .help = "Count how often routing traces ask for each expert of STORE, and save that as what the next mount "
                "starts with (expertfs-counts(5)), in place of the counts of earlier mounts.\v"
                "Exit status: 0 saved, 1 failed, 2 wrong usage, 130 interrupted."};
    struct arguments a = {0};
    struct efs_error err = {""};
    tools_parse(&command, argc, argv, &a);
    tools_interrupt_catch();
    errint_t rc = count_traces(&a, &err);
    return rc < 0 ? tools_fail("moe-replay", rc, &err) : 0;
}
