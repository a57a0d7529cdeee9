/* SPDX-License-Identifier: Apache-2.0 */
/* control_metrics.c - .expertfs/metrics: the numbers of stat and pools as OpenMetrics text. */
#include <stddef.h>
#include <string.h>

#include "control.h"
#include "daemon.h"
#include "expertfs-private.h"
#include "log_queue.h"

#define U(x) ((unsigned long long)(x))

static void metric_head(FILE *out, const char *family, const char *kind, const char *unit, const char *help)
{
    fprintf(out, "# TYPE %s %s\n", family, kind);
    if (*unit)
        fprintf(out, "# UNIT %s %s\n", family, unit);
    fprintf(out, "# HELP %s %s\n", family, help);
}

/* One family with one sample. Base units of OpenMetrics are bytes and seconds. */
static void metric_print(FILE *out, const char *prefix, const char *name, const char *kind, const char *unit,
                         const char *help, uint64_t value)
{
    char family[96];
    size_t name_bytes = strlen(name);
    bool seconds = strcmp(unit, "ns") == 0 && name_bytes > 3 && strcmp(name + name_bytes - 3, "_ns") == 0;
    bool bytes = strcmp(unit, "bytes") == 0;
    bool counter = strcmp(kind, "counter") == 0;
    snprintf(family, sizeof(family), "expertfs_%s%.*s%s", prefix, (int)(seconds ? name_bytes - 3 : name_bytes), name,
             seconds ? "_seconds" : "");
    metric_head(out, family, kind, seconds ? "seconds" : bytes ? "bytes" : "", help);
    if (seconds)
        fprintf(out, "%s%s %.9f\n", family, counter ? "_total" : "", (double)value / 1e9);
    else
        fprintf(out, "%s%s %llu\n", family, counter ? "_total" : "", U(value));
}

/* Values of efs_pool_info(): a family per value, with a sample per pool. M: experts in no pool. */
static void render_pool_metrics(struct efsd *daemon, FILE *out)
{
    static const struct {
        const char *name, *kind, *help;
        size_t at;
    } rows[] = {
#define ROW(field, kind, help) {#field, kind, help, offsetof(struct efs_pool_info, field)}
        ROW(capacity_bytes, "gauge", "what the pool may take"),
        ROW(used_bytes, "gauge", "what it takes"),
        ROW(experts, "gauge", "experts kept in it"),
        ROW(hits, "counter", "experts asked for that were found so, M: misses"),
        ROW(partial, "counter", "of them, those of which a part had to be read"),
        ROW(admitted, "counter", "experts that came from the store"),
        ROW(promoted, "counter", "experts that came from a lower pool"),
        ROW(demoted, "counter", "experts that went to a lower pool"),
        ROW(evicted, "counter", "experts that were given up"),
        ROW(saved_bytes, "counter", "that hits did not read from the store"),
#undef ROW
    };
    struct efs_pool_info info[sizeof(EFSD_POOLS) - 1];
    for (size_t p = 0; p < sizeof(EFSD_POOLS) - 1; p++)
        if (efs_pool_info(daemon->fs, EFSD_POOLS[p], &info[p]))
            return;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        char family[96];
        bool counter = strcmp(rows[i].kind, "counter") == 0;
        snprintf(family, sizeof(family), "expertfs_pool_%s", rows[i].name);
        metric_head(out, family, rows[i].kind, strstr(rows[i].name, "_bytes") ? "bytes" : "", rows[i].help);
        for (size_t p = 0; p < sizeof(EFSD_POOLS) - 1; p++) {
            uint64_t value;
            memcpy(&value, (const char *)&info[p] + rows[i].at, sizeof(value));
            fprintf(out, "%s%s{pool=\"%c\"} %llu\n", family, counter ? "_total" : "", EFSD_POOLS[p], U(value));
        }
    }
}

void efsd_render_metrics(struct efsd *daemon, FILE *out)
{
    struct efs_stats stats;
    efs_stats(daemon->fs, &stats);
    fprintf(out, "# TYPE expertfs_mount info\n# HELP expertfs_mount what is mounted, and how it is served\n");
    fprintf(out, "expertfs_mount_info{version=\"%s\",store=\"", efs_version());
    efs_print_escaped(out, daemon->options.store);
    fprintf(out, "\",serving_path=\"%s\"} 1\n", efsd_serving_path(daemon));
#define LINE(name, kind, unit, help) metric_print(out, "", #name, #kind, unit, help, stats.name);
    EFS_STATS(LINE)
#undef LINE
#define LINE(name, help)                                                                                               \
    metric_print(out, "fuse_", #name, "counter", strstr(#name, "_bytes") ? "bytes" : "", help,                         \
                 atomic_load_explicit(&daemon->counters.name, memory_order_relaxed));
    EFSD_COUNTERS(LINE)
#undef LINE
    metric_print(out, "fuse_", "log_lost", "counter", "", "messages that standard error or syslog did not take in time",
                 efsd_log_queue_lost());
    render_pool_metrics(daemon, out);
    fputs("# EOF\n", out);
}
