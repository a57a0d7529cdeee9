/* SPDX-License-Identifier: Apache-2.0 */
/* profile.c - expertctl profile STORE: measures how fast this machine reads and decodes the store. */
#include "expertctl.h"

#include "expertfs-private.h"
#include "expertfs-profile-private.h"
#include "interrupt.h"
#include "names.h"
#include "options.h"
#include "size.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SECONDS_DEFAULT 3

struct arguments {
    struct tools_arguments store;
    bool json, force;
    uint64_t seconds;
};

#define AT(member) offsetof(struct arguments, member)
static const struct tools_option options[] = {
    {"force", 'f', NULL, "Save the profile also if its rounds differ, as on a busy machine", TOOLS_FLAG,
     .at = AT(force)},
    {"json", 0, NULL, "Print JSON", TOOLS_FLAG, .at = AT(json)},
    {"seconds", 0, "N", "Measure for about N seconds, 1 to 60 (default: 3)", TOOLS_NUMBER, AT(seconds), .least = 1,
     .most = 60},
    {0},
};
static const struct tools_command command = {
    .options = options,
    .arguments = "STORE|NAME",
    .help = "Measure for a few seconds how fast this machine reads and decodes STORE, print it, and save it where "
            "moe-replay and the daemon look for it: below $EXPERTFS_STATE, else /var/lib/expertfs for root, else "
            "$XDG_STATE_HOME/expertfs. A profile whose rounds differ by more than 25 % is not saved: the machine is "
            "busy.\v"
            "Examples:\n  expertctl profile model.efs\n  expertctl profile --seconds=10 --json model.efs",
    .at = AT(store)};

static void profile_print_text(const char *store, const struct efs_profile *p)
{
    char full[16], coded[16], sm[16], e[16], when[32] = "";
    time_t t = (time_t)p->measured_at;
    struct tm parts;
    if (localtime_r(&t, &parts))
        strftime(when, sizeof(when), "%Y-%m-%d %H:%M", &parts);
    tools_size_print((uint64_t)p->full_bytes, full, sizeof(full));
    tools_size_print((uint64_t)p->coded_bytes, coded, sizeof(coded));
    tools_size_print((uint64_t)p->sm_bytes, sm, sizeof(sm));
    tools_size_print((uint64_t)p->e_bytes, e, sizeof(e));
    ctl_print_line(stdout, "%s: content %016llx, measured %s", store, (unsigned long long)p->content_hash, when);
    printf("experts  %.0f layers of %.0f; one is F %s, C %s, S %s, E %s; %.0f tensors of %.0f shards\n", p->layers,
           p->experts, full, coded, sm, e, p->tensors, p->shards);
    printf("disk     %.3g GB/s with many reads in flight%s, %.0f us for a lone 4 KiB\n", p->disk_bytes_per_second / 1e9,
           p->direct_io ? "" : " (no O_DIRECT)", p->read_latency_ns / 1e3);
    printf("decode   %.3g GB/s a worker with %.0f at work (%s)\n", p->decode_bytes_per_second / 1e9, p->workers,
           p->cpu_path);
    printf("spread   disk %.0f %%, decode %.0f %%, of medians of rounds\n", 100 * p->disk_spread,
           100 * p->decode_spread);
    printf("cost     u %.3f ms, v %.3f ms, c %.3f ms, rho %.3f\n", p->sm_read_ns / 1e6, p->e_read_ns / 1e6,
           p->decode_ns / 1e6, p->rho);
}

static int profile_print_json(const struct efs_profile *profile)
{
    char *text = efs_profile_json(profile);
    if (!text) {
        fprintf(stderr, "expertctl: no memory\n");
        return CTL_FAILED;
    }
    puts(text);
    free(text);
    return CTL_OK;
}

static int profile_run(int argc, char **argv)
{
    struct arguments a = {.seconds = SECONDS_DEFAULT};
    struct efs_store *store;
    struct efs_profile profile;
    struct efs_error err = {""};
    char path[4400], saved[4096];
    tools_parse(&command, argc, argv, &a);
    errint_t rc = ctl_name_open(*a.store.word, path, sizeof(path), &store, &err);
    if (rc < 0)
        return ctl_fail(rc, &err);
    rc = efs_profile_measure(store, 0, (double)a.seconds, &profile, &err);
    efs_store_close(store);
    if (rc < 0)
        return ctl_fail(rc, &err);
    int status = CTL_OK;
    if (a.json)
        status = profile_print_json(&profile);
    else
        profile_print_text(path, &profile);
    if (!a.force && !efs_profile_is_steady(&profile)) {
        rc = efs_fail(&err, -EBUSY,
                      "%s: the profile is not saved: its rounds differ by %.0f %% (disk) and %.0f %% (decoding), the "
                      "limit is %.0f %%\nhint: measure again when the machine is idle; --force saves it all the same",
                      path, 100 * profile.disk_spread, 100 * profile.decode_spread, 100 * EFS_PROFILE_SPREAD_MAX);
        return ctl_fail(rc, &err);
    }
    tools_interrupt_catch(); /* a signal must not end the program while it saves */
    rc = efs_profile_save(&profile, &err);
    if (rc < 0) {
        struct efs_error why = err;
        efs_fail(&err, rc, "cannot save the profile: %s%s", why.text,
                 rc == -EACCES || rc == -EROFS ? "\nhint: set EXPERTFS_STATE to a folder that you own" : "");
    } else {
        rc = efs_profile_path(profile.content_hash, saved, sizeof(saved), &err);
    }
    if (rc < 0)
        return ctl_fail(rc, &err);
    if (!a.json)
        ctl_print_line(stdout, "saved    %s", saved);
    return status;
}

const struct ctl_command ctl_profile = {"profile", "measure how fast a store is read and decoded here", profile_run};
