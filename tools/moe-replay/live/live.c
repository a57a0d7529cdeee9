/* SPDX-License-Identifier: Apache-2.0 */
/* live.c - live runs: each in a cgroup, from a cold start, watched until it ends. */
#include "live.h"

#include "interrupt.h"
#include "mount.h"
#include "raw.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define LOOK_NS 20000000L
#define STOP_SECONDS 3 /* that a player has to end by itself */

errint_t replay_live_open(struct replay_live *live, struct efs_error *err)
{
    errint_t rc = replay_model_load(live->store, &live->model, err);
    if (rc == 0)
        rc = replay_compute_possible(live->compute, &live->model, err);
    if (rc == 0 && live->raw)
        rc = replay_model_find_raw(&live->model, live->raw, err);
    if (rc == 0 && !live->program) {
        replay_stage_program(live->found_program, sizeof(live->found_program));
        live->program = live->found_program;
    }
    if (rc == 0)
        rc = replay_stage_open(&live->stage, err);
    if (rc == 0)
        live->has_policies =
            (live->compute == REPLAY_COMPUTE_FFN_CODED && !live->mountpoint) || replay_mount_has_policies(live);
    return rc;
}

void replay_live_close(struct replay_live *live)
{
    replay_mount_restore(live);
    replay_stage_close(&live->stage);
    replay_model_free(&live->model);
}

/* ---- one run ------------------------------------------------------------------------------------------------ */

/* No page of store or raw files in the page cache, whoever brought it. */
static void live_make_cold(const struct replay_live *live, struct replay_run_record *record)
{
    uint64_t left = replay_drop_cache(live->store);
    char note[80];
    for (uint32_t i = 0; i < live->model.raw_count; i++)
        left += replay_drop_cache(live->model.raw_paths[i]);
    if (left > live->model.most_bytes) {
        snprintf(note, sizeof(note), "not cold: %llu MiB of the files stayed in the page cache",
                 (unsigned long long)(left >> 20));
        replay_record_note(record, note, "");
    }
}

/*
 * Until the player has ended. Returns its wait status. When it is asked to stop it has some seconds, then it is killed;
 * if even that does not end it, it waits for a mount that does not answer: our own daemon is ended, another's is left.
 */
static int live_watch(const struct replay_stage *stage, pid_t pid, struct replay_stand *stand,
                      replay_progress_fn *progress, void *arg)
{
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    time_t stopped = 0;
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) != pid) {
        nanosleep(&pause, NULL);
        if (stopped == 0 && progress(arg, replay_stand_tokens(stand))) {
            replay_stand_stop(stand);
            stopped = time(NULL);
        }
        time_t since = stopped ? time(NULL) - stopped : 0;
        if (since > STOP_SECONDS)
            kill(pid, SIGKILL);
        if (since > 2 * STOP_SECONDS && stage->daemon > 0)
            kill(stage->daemon, SIGKILL);
        if (since > 4 * STOP_SECONDS)
            break;
    }
    return status;
}

/* Play on what is ready: a mount, or raw files. */
static errint_t live_play(struct replay_live *live, const struct replay_play *what, replay_progress_fn *progress,
                          void *arg, struct replay_run_record *record, struct efs_error *err)
{
    struct replay_stand *stand = replay_stand_new(what->workload->passes);
    if (!stand)
        return efs_fail(err, -ENOMEM, "no memory");
    pid_t pid = replay_player_start(what, stand);
    errint_t rc = pid < 0 ? efs_fail(err, pid, "fork: %s", strerror(-pid)) : 0;
    if (rc == 0) {
        bool tells = what->runner == REPLAY_EXPERTFS && !what->library;
        struct replay_learner *learner = tells ? replay_learner_start(what->mountpoint, stand) : NULL;
        int status = live_watch(&live->stage, pid, stand, progress, arg);
        replay_learner_end(learner, &record->learned);
        if (what->library)
            record->learned = *replay_stand_learned(stand);
        rc = replay_stand_result(stand, what->workload, &record->result, &record->check, err);
        if (live->turns && what->guesses && record->result.passes > 0)
            record->pass_ns = replay_stand_passes(stand);
        if (rc == 0 && WIFSIGNALED(status) && !tools_interrupted())
            rc = replay_cgroup_kills(&live->stage.cgroup) > 0
                     ? efs_fail(err, -ENOMEM, "%s needs more memory than its cgroup allows",
                                replay_runner_name(what->runner))
                     : efs_fail(err, -EIO, "%s was ended by signal %d (%s)", replay_runner_name(what->runner),
                                WTERMSIG(status), strsignal(WTERMSIG(status)));
    }
    replay_stand_free(stand);
    return rc;
}

/* What the library is opened with, in place of a daemon. */
static errint_t live_set_library(struct replay_live *live, struct replay_run_record *record,
                                 struct efs_options *options, struct efs_error *err)
{
    *options = (struct efs_options){.size = sizeof(struct efs_options),
                                    .budget_bytes = record->budget_bytes + live->allowance_bytes / 2,
                                    .workers = live->workers,
                                    .full_pool = record->policy.pools == REPLAY_FULL,
                                    .lease_wait = true,
                                    .prealloc = live->prealloc,
                                    .warm = live->warm,
                                    .policy = record->policy.name,
                                    .plan = replay_mount_plan(&record->policy),
                                    .goal = replay_mount_goal(&record->policy),
                                    .history_path = live->plan_from,
                                    .predictor = record->predictor,
                                    .prefetch = record->predictor ? live->prefetch : NULL};
    snprintf(record->path, sizeof(record->path), "library");
    return replay_stage_forget(&live->stage, live->profile, err);
}

/* What serves a run: raw files, by the player itself; the library, in the player; a daemon of the run's own; a mount
 * that was there. */
enum server { SERVER_RAW, SERVER_LIBRARY, SERVER_MOUNT, SERVER_FOREIGN };

static enum server server_of(const struct replay_live *live, const struct replay_run_record *record)
{
    if (record->runner != REPLAY_EXPERTFS)
        return SERVER_RAW;
    if (live->mountpoint)
        return SERVER_FOREIGN;
    return live->compute == REPLAY_COMPUTE_FFN_CODED ? SERVER_LIBRARY : SERVER_MOUNT;
}

/* A cold start in a cgroup, where there can be one. Returns whether there is. */
static bool live_set_limit(struct replay_live *live, struct replay_run_record *record)
{
    record->limit_bytes = replay_stage_limit(&live->stage, record->budget_bytes + live->allowance_bytes);
    live_make_cold(live, record);
    if (record->limit_bytes == 0)
        replay_record_note(record, "no memory cgroup: ", live->stage.no_cgroup.text);
    return record->limit_bytes > 0;
}

static errint_t server_begin(enum server server, struct replay_live *live, struct replay_run_record *record,
                             struct efs_options *options, struct efs_error *err)
{
    errint_t rc = 0;
    switch (server) {
    case SERVER_RAW:
        return 0;
    case SERVER_LIBRARY:
        return live_set_library(live, record, options, err);
    case SERVER_MOUNT:
        rc = replay_mount_start(live, record, err);
        break;
    case SERVER_FOREIGN:
        rc = replay_mount_tune(live, record, err);
        break;
    }
    if (rc == 0)
        replay_mount_look(server == SERVER_FOREIGN ? live->mountpoint : live->stage.mountpoint, record);
    return rc;
}

/* Why its daemon did not end well is why the run failed. */
static errint_t server_end(enum server server, struct replay_live *live, errint_t rc, struct efs_error *err)
{
    struct efs_error end = {""};
    errint_t gone = server == SERVER_MOUNT ? replay_stage_unmount(&live->stage, &end) : 0;
    if (gone == 0 || tools_interrupted())
        return rc;
    return efs_fail(err, gone, "%s", end.text);
}

errint_t replay_live_run(struct replay_live *live, const struct replay_setup *setup,
                         const struct replay_workload *workload, replay_progress_fn *progress, void *arg,
                         struct replay_run_record *record, struct efs_error *err)
{
    enum server server = server_of(live, record);
    bool coded = live->compute == REPLAY_COMPUTE_FFN_CODED;
    struct efs_options options;
    struct replay_play what = {.live = live,
                               .workload = workload,
                               .mountpoint = server == SERVER_FOREIGN ? live->mountpoint : live->stage.mountpoint,
                               .runner = record->runner,
                               .form = record->policy.pools == REPLAY_FULL ? EFS_FORM_FULL : EFS_FORM_CODED,
                               .compute = server == SERVER_RAW && coded ? REPLAY_COMPUTE_FFN : live->compute,
                               .library = server == SERVER_LIBRARY ? &options : NULL,
                               .budget_bytes = record->budget_bytes,
                               .guesses = record->predictor != NULL,
                               .begins_without = record->begins_without,
                               .layer_ns = setup->layer_ns};
    record->compute = replay_compute_name(what.compute);
    if (live->turns && what.guesses)
        replay_record_note(record, "begins with", record->begins_without ? "out guesses" : " guesses");
    what.limited = server != SERVER_FOREIGN && live_set_limit(live, record);
    errint_t rc = server_begin(server, live, record, &options, err);
    if (rc == 0 && server == SERVER_FOREIGN && live->compares && !live->played) {
        struct replay_run_record unmeasured = *record;
        live->played = true;
        rc = live_play(live, &what, progress, arg, &unmeasured, err);
        free(unmeasured.pass_ns);
    }
    if (rc == 0)
        rc = live_play(live, &what, progress, arg, record, err);
    record->peak_bytes = replay_cgroup_peak_bytes(&live->stage.cgroup);
    rc = server_end(server, live, rc, err);
    replay_cgroup_remove(&live->stage.cgroup);
    return rc;
}
