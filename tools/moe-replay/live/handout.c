/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handout.c - what it takes the client library to get an expert from a mount and to give it back: the simulator
 * knows reads and decodes alone. Measured with experts that are full already, a layer's request at a time.
 */
#include "live.h"
#include "mount.h"

#include "clock.h"

#include <errno.h>
#include <stdlib.h>

#define EXPERTS 4u /* a request, as runtimes make them */
#define ROUNDS 65u
#define ROOM (UINT64_C(256) << 20) /* for all else that a mount needs */

static int compare_ns(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The median time of a request for the first experts of a layer; nothing stays open. */
static errint_t measure_handout_ns(const struct replay_live *live, const char *mountpoint, uint64_t *ns,
                                   struct efs_error *err)
{
    const struct efs_client_options options = {.size = sizeof(struct efs_client_options), .keep_bytes = 0};
    const struct replay_layer *layer = &live->model.layer[0];
    struct efs_client *client;
    struct efs_need needs[EXPERTS];
    uint64_t times[ROUNDS];
    uint32_t count = live->model.experts < EXPERTS ? live->model.experts : EXPERTS;
    *ns = 0;
    for (uint32_t i = 0; i < count; i++)
        needs[i] = (struct efs_need){replay_model_expert(&live->model, 0, i)->number, 1};
    errint_t rc = efs_client_open(mountpoint, &options, &client, err);
    if (rc < 0)
        return rc;
    for (uint32_t round = 0; rc == 0 && round < ROUNDS; round++) {
        struct efs_client_request *request;
        uint64_t begin = tools_now_ns();
        rc = efs_client_begin(client, layer->stack, layer->number, needs, sizeof(struct efs_need), count, EFS_FORM_FULL,
                              &request, err);
        if (rc == 0) {
            rc = efs_client_wait(request);
            efs_client_release(request);
        }
        times[round] = tools_now_ns() - begin;
    }
    efs_client_close(client);
    qsort(times + 1, ROUNDS - 1, sizeof(times[0]), compare_ns); /* the first has read them */
    *ns = rc == 0 ? times[ROUNDS / 2] / count : 0;
    return rc;
}

errint_t replay_live_handout(struct replay_live *live, uint64_t *ns, struct efs_error *err)
{
    struct replay_run_record record = {
        .runner = REPLAY_EXPERTFS,
        .policy = {.name = "lru", .kind = EFS_POLICY_LRU, .pools = REPLAY_FULL},
        .budget_bytes = ROOM + 4 * EXPERTS * live->model.most_bytes,
    };
    struct efs_error end = {""};
    *ns = 0;
    if (live->mountpoint)
        return measure_handout_ns(live, live->mountpoint, ns, err);
    replay_stage_limit(&live->stage, record.budget_bytes + live->allowance_bytes);
    errint_t rc = replay_mount_start(live, &record, err);
    if (rc == 0) {
        rc = measure_handout_ns(live, live->stage.mountpoint, ns, err);
        replay_stage_unmount(&live->stage, &end);
    }
    replay_cgroup_remove(&live->stage.cgroup);
    return rc;
}
