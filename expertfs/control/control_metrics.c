/* SPDX-License-Identifier: Apache-2.0 */
/* control_metrics.c - .expertfs/metrics: the numbers of stat and pools in Prometheus' text format 0.0.4. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "daemon.h"
#include "expertfs-private.h"
#include "log_queue.h"
#include "mount_table.h"
#include "expertfs-stats.h"

#define U(x) ((unsigned long long)(x))

struct metrics {
    FILE *out;
    const char *mount; /* label of all samples, escaped: one scraper may read several mounts */
};

/* Begins a family: its name is that of its samples, as Prometheus' text format 0.0.4 requires. */
static void metric_head(const struct metrics *m, const char *family, const char *kind, const char *help)
{
    fprintf(m->out, "# HELP %s %s\n# TYPE %s %s\n", family, help, family, kind);
}

/* One family with one sample. Base units of Prometheus are bytes and seconds. */
static void metric_print(const struct metrics *m, const char *prefix, const char *name, const char *kind,
                         const char *unit, const char *help, uint64_t value)
{
    char family[96];
    size_t name_bytes = strlen(name);
    bool seconds = strcmp(unit, "ns") == 0 && name_bytes > 3 && strcmp(name + name_bytes - 3, "_ns") == 0;
    snprintf(family, sizeof(family), "expertfs_%s%.*s%s%s", prefix, (int)(seconds ? name_bytes - 3 : name_bytes), name,
             seconds ? "_seconds" : "", strcmp(kind, "counter") == 0 ? "_total" : "");
    metric_head(m, family, kind, help);
    if (seconds)
        fprintf(m->out, "%s{mount=\"%s\"} %.9f\n", family, m->mount, (double)value / 1e9);
    else
        fprintf(m->out, "%s{mount=\"%s\"} %llu\n", family, m->mount, U(value));
}

/* Values of efs_pool_info(): a family per value, with a sample per pool. M: experts in no pool. */
static void render_pool_metrics(struct efsd *daemon, const struct metrics *m)
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
        snprintf(family, sizeof(family), "expertfs_pool_%s%s", rows[i].name,
                 strcmp(rows[i].kind, "counter") == 0 ? "_total" : "");
        metric_head(m, family, rows[i].kind, rows[i].help);
        for (size_t p = 0; p < sizeof(EFSD_POOLS) - 1; p++) {
            uint64_t value;
            memcpy(&value, (const char *)&info[p] + rows[i].at, sizeof(value));
            fprintf(m->out, "%s{mount=\"%s\",pool=\"%c\"} %llu\n", family, m->mount, EFSD_POOLS[p], U(value));
        }
    }
}

/* The path of the mount, escaped as a label. NULL: no memory. */
static char *mount_label(const struct efsd *daemon)
{
    char *label = NULL, *moved = efsd_mounts_path(daemon->device);
    size_t bytes;
    FILE *to = open_memstream(&label, &bytes);
    if (to) {
        efs_print_escaped(to, moved ? moved : daemon->options.mountpoint);
        fclose(to);
    }
    free(moved);
    return label;
}

void efsd_render_metrics(struct efsd *daemon, FILE *out)
{
    struct efs_stats stats;
    char *label = mount_label(daemon);
    const struct metrics metrics = {out, label ? label : ""}, *m = &metrics;
    efs_stats(daemon->fs, &stats);
    metric_head(m, "expertfs_mount_info", "gauge", "what is mounted, and how it is served");
    fprintf(out, "expertfs_mount_info{mount=\"%s\",version=\"%s\",store=\"", m->mount, efs_version());
    efs_print_escaped(out, daemon->options.store);
    fprintf(out, "\",serving_path=\"%s\"} 1\n", efsd_serving_path(daemon));
#define LINE(name, kind, unit, help) metric_print(m, "", #name, #kind, unit, help, stats.name);
    EFS_STATS(LINE)
#undef LINE
#define LINE(name, help)                                                                                               \
    metric_print(m, "fuse_", #name, "counter", "", help,                                                               \
                 atomic_load_explicit(&daemon->counters.name, memory_order_relaxed));
    EFSD_COUNTERS(LINE)
#undef LINE
    metric_print(m, "fuse_", "log_lost", "counter", "", "messages that standard error or syslog did not take in time",
                 efsd_log_queue_lost());
    render_pool_metrics(daemon, m);
    free(label);
}
