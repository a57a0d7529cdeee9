/* SPDX-License-Identifier: Apache-2.0 */
/* mount.c - see mount.h. */
#include "mount.h"

#include "mounted.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

/* ---- what a mount tells ------------------------------------------------------------------------------------- */

/* The text behind "name: " in a file of a mount; false: there is none. */
static bool value_of(const char *mountpoint, const char *file, const char *name, char *value, size_t room)
{
    char path[4200], line[4200];
    bool found = false;
    snprintf(path, sizeof(path), "%s/.expertfs/%s", mountpoint, file);
    FILE *in = fopen(path, "re");
    while (in && !found && fgets(line, sizeof(line), in)) {
        line[strcspn(line, "\n")] = '\0';
        const char *at = tools_line_value(line, name);
        found = at && strlen(at) < room;
        if (found)
            strcpy(value, at);
    }
    if (in)
        fclose(in);
    return found;
}

double replay_mount_number(const char *mountpoint, const char *file, const char *name)
{
    char value[64];
    double number = value_of(mountpoint, file, name, value, sizeof(value)) ? strtod(value, NULL) : 0;
    return isfinite(number) ? number : 0;
}

errint_t replay_mount_store(const char *mountpoint, char *store, size_t room, struct efs_error *err)
{
    if (!value_of(mountpoint, "config", "store", store, room))
        return efs_fail(err, -EINVAL, "%s: neither a store nor a mount of one", mountpoint);
    tools_line_unescape(store);
    return 0;
}

void replay_mount_look(const char *mountpoint, struct replay_run_record *record)
{
    char number[32];
    if (value_of(mountpoint, "stat", "budget_bytes", number, sizeof(number)))
        record->budget_bytes = strtoull(number, NULL, 10);
    (void)value_of(mountpoint, "stat", "serving_path", record->path, sizeof(record->path));
}

/* ---- policies and pools as the daemon names them ------------------------------------------------------------ */

struct setting {
    const char *plan, *goal; /* NULL: has no such pools */
};

static const struct setting settings[REPLAY_POOLS] = {[REPLAY_IO] = {"auto", "io"},
                                                      [REPLAY_MAKESPAN] = {"auto", "makespan"},
                                                      [REPLAY_CODED] = {"C=100", "io"},
                                                      [REPLAY_FULL] = {"F=100", "io"}};

bool replay_mount_has_policies(const struct replay_live *live)
{
    char value[256];
    return live->mountpoint ? getxattr(live->mountpoint, "user.expertfs.policy", value, sizeof(value)) >= 0
                            : replay_stage_knows(live->program, "policy");
}

bool replay_mount_has(const struct replay_policy *policy)
{
    return !policy->published && policy->keeper == REPLAY_KEEP_NONE && settings[policy->pools].plan;
}

const char *replay_mount_plan(const struct replay_policy *policy)
{
    return settings[policy->pools].plan;
}

const char *replay_mount_goal(const struct replay_policy *policy)
{
    return settings[policy->pools].goal;
}

bool replay_mount_predicts(const char *predictor)
{
    static const char *const names[] = {"mixed", "fmoe", "moe-infinity"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], predictor) == 0)
            return true;
    return false;
}

void replay_mount_print_prefetch(const struct efs_governor_config *governor, char *text, size_t room)
{
    int n = snprintf(text, room, "%s", efs_governor_mode_name(governor->mode));
    if (governor->share > 0)
        n += snprintf(text + n, room - (size_t)n, ":share=%.6g", 100 * governor->share);
    if (governor->iteration_bytes)
        snprintf(text + n, room - (size_t)n, ":token=%llu", (unsigned long long)governor->iteration_bytes);
}

/* ---- a daemon of our own ------------------------------------------------------------------------------------ */

struct options {
    char text[8192];
    size_t used;
    bool too_long;
};

static void mount_add_option(struct options *o, const char *name, const char *value)
{
    o->used += (size_t)snprintf(o->text + o->used, sizeof(o->text) - o->used, "%s%s%s", o->used ? "," : "", name,
                                *value ? "=" : "");
    for (const char *p = value; *p && o->used + 3 < sizeof(o->text); p++) { /* a comma would end the option */
        if (*p == ',' || *p == '\\')
            o->text[o->used++] = '\\';
        o->text[o->used++] = *p;
    }
    o->too_long = o->too_long || o->used + 3 >= sizeof(o->text);
    o->text[o->used < sizeof(o->text) ? o->used : sizeof(o->text) - 1] = '\0';
}

errint_t replay_mount_start(struct replay_live *live, struct replay_run_record *record, struct efs_error *err)
{
    struct options o = {.used = 0};
    const struct setting *setting = &settings[record->policy.pools];
    char number[32];
    errint_t rc = replay_stage_forget(&live->stage, live->profile, err);
    if (rc < 0)
        return rc;
    /* its own fixed memory is the process's, as that of the peers: half of the allowance that all have alike */
    snprintf(number, sizeof(number), "%llu", (unsigned long long)(record->budget_bytes + live->allowance_bytes / 2));
    mount_add_option(&o, "budget", number);
    if (live->workers) {
        snprintf(number, sizeof(number), "%u", live->workers);
        mount_add_option(&o, "workers", number);
    }
    if (live->prealloc && replay_stage_knows(live->program, "prealloc"))
        mount_add_option(&o, "prealloc", "");
    if (live->warm && replay_stage_knows(live->program, "warm"))
        mount_add_option(&o, "warm", "");
    if (live->has_policies) {
        mount_add_option(&o, "policy", record->policy.name);
        mount_add_option(&o, "plan", setting->plan);
        mount_add_option(&o, "goal", setting->goal);
        if (live->plan_from)
            mount_add_option(&o, "history", live->plan_from);
    } else {
        replay_record_note(record, live->program, " has no policies: what it has serves");
    }
    if (record->predictor) {
        mount_add_option(&o, "predictor", record->predictor);
        mount_add_option(&o, "prefetch", live->prefetch);
    }
    if (o.too_long)
        return efs_fail(err, -ENAMETOOLONG, "the options of the daemon are too long");
    return replay_stage_mount(&live->stage, live->program, live->store, o.text, err);
}

/* ---- a mount that is there ---------------------------------------------------------------------------------- */

static errint_t mount_set(const struct replay_live *live, const char *name, const char *value,
                          struct replay_run_record *record, struct efs_error *err)
{
    char attribute[64];
    snprintf(attribute, sizeof(attribute), "user.expertfs.%s", name);
    if (setxattr(live->mountpoint, attribute, value, strlen(value), 0) == 0)
        return 0;
    if (errno == EINVAL || errno == ENOMEM)
        return efs_fail(err, -errno, "%s: %s=%s is refused", live->mountpoint, attribute, value);
    replay_record_note(record, name, " cannot be set: as the mount has it");
    return 0;
}

static const char *const tuned[] = {"budget", "policy", "goal", "plan", "predictor", "prefetch"};
#define TUNED (sizeof(tuned) / sizeof(tuned[0]))

struct replay_mount_before {
    char value[TUNED][256]; /* "": it has no such attribute */
};

static errint_t mount_remember(struct replay_live *live, struct efs_error *err)
{
    char attribute[64];
    if (live->before)
        return 0;
    live->before = calloc(1, sizeof(*live->before));
    for (size_t i = 0; i < TUNED && live->before; i++) {
        snprintf(attribute, sizeof(attribute), "user.expertfs.%s", tuned[i]);
        ssize_t n = getxattr(live->mountpoint, attribute, live->before->value[i], sizeof(live->before->value[i]) - 1);
        live->before->value[i][n > 0 ? n : 0] = '\0';
    }
    return live->before ? 0 : efs_fail(err, -ENOMEM, "no memory");
}

void replay_mount_restore(struct replay_live *live)
{
    char attribute[64];
    for (size_t i = 0; i < TUNED && live->before; i++) {
        const char *value = live->before->value[i];
        snprintf(attribute, sizeof(attribute), "user.expertfs.%s", tuned[i]);
        if (*value && setxattr(live->mountpoint, attribute, value, strlen(value), 0) < 0)
            fprintf(stderr, "moe-replay: %s: %s was %s, and is not taken back: %s\n", live->mountpoint, attribute,
                    value, strerror(errno));
    }
    free(live->before);
    live->before = NULL;
}

errint_t replay_mount_tune(struct replay_live *live, struct replay_run_record *record, struct efs_error *err)
{
    const struct setting *setting = &settings[record->policy.pools];
    char number[32];
    snprintf(number, sizeof(number), "%llu", (unsigned long long)record->budget_bytes);
    replay_record_note(record, "a mount that was there: not cold, no memory cgroup", "");
    errint_t rc = mount_remember(live, err);
    if (rc == 0)
        rc = mount_set(live, "budget", number, record, err);
    if (!live->has_policies)
        return rc;
    if (rc == 0)
        rc = mount_set(live, "policy", record->policy.name, record, err);
    if (rc == 0)
        rc = mount_set(live, "goal", setting->goal, record, err);
    if (rc == 0)
        rc = mount_set(live, "plan", setting->plan, record, err);
    if (rc == 0 && record->predictor)
        rc = mount_set(live, "predictor", record->predictor, record, err);
    if (rc == 0 && live->prefetch[0])
        rc = mount_set(live, "prefetch", record->predictor ? live->prefetch : "off", record, err);
    return rc;
}
