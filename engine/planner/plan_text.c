/* SPDX-License-Identifier: Apache-2.0 */
/* plan_text.c - see plan_thread_core.h: "plan", "profile" and "memory" for people. */
#include "plan_thread_core.h"

#include "estimator.h"
#include "expertfs-private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const profile_sources[] = {"assumed", "saved", "measured"};
static const char *const history_sources[] = {"none", "route", "saved counts"};

static void tell_plan(struct efs_plan_thread *s, FILE *out)
{
    static const char names[] = "FCSE";
    const struct efs_cache_tuning *tuning = efs_cache_tuning(s->fs);
    fprintf(out, "policy: %s\n", efs_policy_name(tuning->policy));
    fprintf(out, "plan: %s\n", tuning->fixed_plan ? "explicit" : "auto");
    fprintf(out, "goal: %s\n", tuning->goal == EFS_PLAN_IO ? "io" : "makespan");
    fprintf(out, "allowed: ");
    for (unsigned p = 0; p < EFS_POOLS; p++)
        if (s->pools & EFS_PLAN_POOL(p))
            fputc(names[p], out);
    fprintf(out, "%s\nplanned_at: %lld\n", s->pools ? "" : "-", (long long)s->planned_at);
    fprintf(out, "planning_ns: %llu\n", (unsigned long long)s->plan_ns);
    fprintf(out, "error: %s\n", s->plan_error == 0 ? "-" : strerror(-s->plan_error));
    fprintf(out, "effective_budget_bytes: %llu\n", (unsigned long long)s->fs->account.budget_bytes);
    fprintf(out, "pools_bytes: %llu\n", (unsigned long long)efs_cache_pools_bytes(s->fs));
    for (unsigned p = 0; p < EFS_POOLS; p++)
        fprintf(out, "ratio_%c: %.4f\n", names[p] + 32, tuning->ratio[p]);
    for (unsigned p = 0; p < EFS_POOLS; p++)
        fprintf(out, "hits_%c: %.4f\n", names[p] + 32, s->plan.hits[p]);
    fprintf(out, "misses: %.4f\n", s->plan.hits[EFS_POOLS]);
    fprintf(out, "io_ns: %.0f\n", s->plan.io_ns);
    fprintf(out, "makespan_ns: %.0f\n", s->plan.makespan_ns);
    fprintf(out, "product_full_ns: %.0f\n", s->product_ns[EFS_FORM_FULL]);
    fprintf(out, "product_coded_ns: %.0f\n", s->product_ns[EFS_FORM_CODED]);
    fprintf(out, "profile: %s\n", profile_sources[s->profile_source]);
    fprintf(out, "history: %s\n", history_sources[s->history_source]);
    fprintf(out, "history_path: ");
    efs_print_escaped(out, *s->history_path ? s->history_path : "-");
    fputc('\n', out);
    fprintf(out, "history_passes: %llu\n", (unsigned long long)s->skew.passes);
    fprintf(out, "skew: %s\n", efs_skew_source_name(s->skew.source));
    fprintf(out, "chosen: %.3f\n", s->skew.mean_chosen);
    fprintf(out, "drift: %.4f\n", s->drift);
}

static void tell_profile(const struct efs_plan_thread *s, FILE *out)
{
    fprintf(out, "source: %s\n", profile_sources[s->profile_source]);
    fprintf(out, "store_hash: %016llx\n", (unsigned long long)s->profile.content_hash);
    fprintf(out, "measured_at: %lld\n", (long long)s->profile.measured_at);
    struct timespec now_real;
    clock_gettime(CLOCK_REALTIME, &now_real);
    bool dated = s->profile.measured_at > 0 && now_real.tv_sec > s->profile.measured_at;
    fprintf(out, "age_seconds: %lld\n", dated ? (long long)(now_real.tv_sec - s->profile.measured_at) : 0);
    fprintf(out, "cpu_path: %s\n", *s->profile.cpu_path ? s->profile.cpu_path : "-");
#define LINE(name, help) fprintf(out, "%s: %.10g\n", #name, s->profile.name);
    EFS_PROFILE_NUMBERS(LINE)
#undef LINE
    struct efs_rates_now now;
    uint64_t bursts, decoded_bytes;
    efs_estimator_now(s->fs->estimator, &now, &bursts, &decoded_bytes);
    fprintf(out, "live_bursts: %llu\nlive_decoded_bytes: %llu\n", (unsigned long long)bursts,
            (unsigned long long)decoded_bytes);
    fprintf(out, "live_disk_bytes_per_second: %.10g\n", now.disk_bytes_per_second);
    fprintf(out, "live_read_latency_ns: %.10g\n", now.read_latency_ns);
    fprintf(out, "live_read_together: %.4f\n", now.together);
    fprintf(out, "live_read_window_bytes: %u\n", EFS_DISK_WINDOW_BYTES);
    fprintf(out, "live_decode_bytes_per_second: %.10g\n", now.decode_bytes_per_second);
    fprintf(out, "live_decode_fresh_bytes_per_second: %.10g\n", now.decode_each[EFS_DECODE_FRESH]);
    fprintf(out, "live_decode_kept_bytes_per_second: %.10g\n", now.decode_each[EFS_DECODE_KEPT]);
}

errint_t efs_plan_thread_describe(struct efs *fs, const char *what, char **text, size_t *bytes)
{
    bool plan = strcmp(what, "plan") == 0, memory = strcmp(what, "memory") == 0;
    *text = NULL;
    if (!plan && !memory && strcmp(what, "profile") != 0)
        return -ENODATA;
    FILE *out = open_memstream(text, bytes);
    if (!out)
        return -ENOMEM;
    efs_lock(fs);
    if (memory)
        efs_arena_describe(&fs->arena, out);
    else if (!fs->plan_thread)
        fprintf(out, "plan: none\n");
    else if (plan)
        tell_plan(fs->plan_thread, out);
    else
        tell_profile(fs->plan_thread, out);
    efs_unlock(fs);
    if (fclose(out) == 0)
        return 0;
    free(*text);
    *text = NULL;
    return -ENOMEM;
}
