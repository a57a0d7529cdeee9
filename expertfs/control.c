/*
 * control.c - the files below .expertfs, each made when it is opened, so that one open sees one moment.
 * expertfs-proc(5) describes them; names are never reused for something else.
 */
#include "daemon.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const efsd_control_names[EFSD_CONTROL_COUNT] = {
    [EFSD_CONTROL_VERSION] = "version", [EFSD_CONTROL_CONFIG] = "config",   [EFSD_CONTROL_STAT] = "stat",
    [EFSD_CONTROL_POOLS] = "pools",     [EFSD_CONTROL_EXPERTS] = "experts", [EFSD_CONTROL_METRICS] = "metrics",
};

#define U(x) ((unsigned long long)(x))

static const char *yes_no(bool yes)
{
    return yes ? "yes" : "no";
}

static void render_version(struct efsd *daemon, FILE *out)
{
    fprintf(out, "version: %s\n", efs_version());
    fprintf(out, "store_version: %u\n", daemon->info.version);
    fprintf(out, "libfuse: %s\n", fuse_pkgversion());
    fprintf(out, "fuse_protocol: 7.%u\n", daemon->kernel.minor);
}

static void render_paths(struct efsd *daemon, FILE *out)
{
    const struct efsd_kernel *kernel = &daemon->kernel;
    fprintf(out, "serving_path: %s\n", efsd_serving_path(daemon));
    fprintf(out, "serving_reason: %s\n", daemon->path_note);
    fprintf(out, "passthrough: %s\n", yes_no(kernel->passthrough));
    fprintf(out, "passthrough_reason: %s\n", kernel->passthrough ? "-" : kernel->no_passthrough);
    fprintf(out, "direct_io: %s\n", yes_no(daemon->direct_io));
    fprintf(out, "direct_io_mmap: %s\n", yes_no(kernel->direct_mmap));
}

static void render_config(struct efsd *daemon, FILE *out)
{
    static const char *const lease[] = {"read", "wait", "fail"};
    static const char *const direct_io[] = {"auto", "on", "off"};
    const struct efsd_options *options = &daemon->options;
    struct efs_stats stats;
    efs_stats(daemon->fs, &stats);
    fprintf(out, "store: %s\n", options->store);
    fprintf(out, "store_hash: %016llx\n", U(daemon->info.content_hash));
    fprintf(out, "store_bytes: %llu\n", U(daemon->info.store_bytes));
    fprintf(out, "source_bytes: %llu\n", U(daemon->info.source_bytes));
    fprintf(out, "mountpoint: %s\n", options->mountpoint);
    fprintf(out, "pid: %d\n", (int)getpid());
    fprintf(out, "started: %lld\n", (long long)daemon->started);
    fprintf(out, "budget_option: %s\n", options->budget_bytes ? "size" : "auto");
    fprintf(out, "budget_bytes: %llu\n", U(stats.budget_bytes));
    fprintf(out, "workers_option: %llu\n", U(options->workers));
    fprintf(out, "threads: %u\n", daemon->threads);
    fprintf(out, "reply_buffers: %zu\n", daemon->buffers.count);
    fprintf(out, "lease: %s\n", lease[options->lease]);
    fprintf(out, "direct_io_option: %s\n", direct_io[options->direct_io]);
    fprintf(out, "readahead_bytes: %llu\n", U(daemon->readahead_bytes));
    fprintf(out, "readahead_reason: %s\n", *daemon->readahead_note ? daemon->readahead_note : "-");
    fprintf(out, "prefetch_option: %llu\n", U(options->prefetch_bytes));
    fprintf(out, "page_cache_option: %llu\n", U(options->page_cache_bytes));
    const char *note = efsd_pagecache_note(daemon);
    fprintf(out, "page_cache_reason: %s\n", note ? note : "-");
    fprintf(out, "store_direct: %s\n", yes_no(stats.direct_io));
    fprintf(out, "io_uring: %s\n", yes_no(stats.io_uring));
    fprintf(out, "registered_buffers: %s\n", yes_no(stats.registered_buffers));
    fprintf(out, "view_hidden: %s\n", yes_no(efs_view_hidden(daemon->fs)));
    render_paths(daemon, out);
}

static void render_stat(struct efsd *daemon, FILE *out)
{
    struct efs_stats stats;
    efs_stats(daemon->fs, &stats);
    fprintf(out, "serving_path: %s\n", efsd_serving_path(daemon));
    fprintf(out, "serving_reason: %s\n", daemon->path_note);
#define LINE(name, kind, unit, help) fprintf(out, "%s: %llu\n", #name, U(stats.name));
    EFS_STATS(LINE)
#undef LINE
#define LINE(name, help)                                                                                               \
    fprintf(out, "fuse_%s: %llu\n", #name, U(atomic_load_explicit(&daemon->counters.name, memory_order_relaxed)));
    EFSD_COUNTERS(LINE)
#undef LINE
    struct efsd_pagecache_stats page_cache;
    efsd_pagecache_stats(daemon, &page_cache);
#define LINE(name, kind, unit, help) fprintf(out, "%s: %llu\n", #name, U(page_cache.name));
    EFSD_PAGECACHE_STATS(LINE)
#undef LINE
}

static void render_pools(struct efsd *daemon, FILE *out)
{
    struct efs_stats stats;
    efs_stats(daemon->fs, &stats);
    uint64_t held = stats.fixed_bytes + stats.chunk_pool_bytes + stats.full_pool_bytes;
    fprintf(out, "%-8s %15s %15s %10s\n", "pool", "bytes", "used_bytes", "units");
    fprintf(out, "%-8s %15llu %15llu %10s\n", "fixed", U(stats.fixed_bytes), U(stats.fixed_bytes), "-");
    fprintf(out, "%-8s %15llu %15llu %10llu\n", "chunks", U(stats.chunk_pool_bytes), U(stats.chunk_used_bytes),
            U(stats.chunk_units));
    fprintf(out, "%-8s %15llu %15llu %10llu\n", "full", U(stats.full_pool_bytes), U(stats.full_pool_bytes),
            U(stats.full_experts));
    fprintf(out, "%-8s %15s %15llu %10llu\n", "leased", "-", U(stats.leased_bytes), U(stats.leased_experts));
    fprintf(out, "%-8s %15llu %15llu %10s\n", "budget", U(stats.budget_bytes), U(held), "-");
}

static void render_experts(struct efsd *daemon, FILE *out)
{
    fprintf(out, "%-24s %5s %6s %5s %6s %12s %12s %14s %10s\n", "name", "layer", "expert", "state", "leases",
            "raw_bytes", "coded_bytes", "resident_bytes", "touches");
    for (uint32_t i = 0; i < daemon->expert_count; i++) {
        struct efs_expert_info e;
        if (efs_expert_info(daemon->fs, i, &e) == 0) {
            fprintf(out, "%-24s %5u %6u %5c %6u %12llu %12llu %14llu %10llu\n", e.name, e.layer, e.expert, e.state,
                    e.leases, U(e.raw_bytes), U(e.coded_bytes), U(e.resident_bytes), U(e.touches));
        }
    }
}

/* One family in OpenMetrics text. Base units there are bytes and seconds. */
static void metric(FILE *out, const char *prefix, const char *name, const char *kind, const char *unit,
                   const char *help, uint64_t value)
{
    char family[96];
    size_t name_bytes = strlen(name);
    bool seconds = strcmp(unit, "ns") == 0 && name_bytes > 3 && strcmp(name + name_bytes - 3, "_ns") == 0;
    bool bytes = strcmp(unit, "bytes") == 0;
    bool counter = strcmp(kind, "counter") == 0;
    snprintf(family, sizeof(family), "expertfs_%s%.*s%s", prefix, (int)(seconds ? name_bytes - 3 : name_bytes), name,
             seconds ? "_seconds" : "");
    fprintf(out, "# TYPE %s %s\n", family, kind);
    if (seconds || bytes) {
        fprintf(out, "# UNIT %s %s\n", family, seconds ? "seconds" : "bytes");
    }
    fprintf(out, "# HELP %s %s\n", family, help);
    if (seconds) {
        fprintf(out, "%s%s %.9f\n", family, counter ? "_total" : "", (double)value / 1e9);
    } else {
        fprintf(out, "%s%s %llu\n", family, counter ? "_total" : "", U(value));
    }
}

/* A label's value, escaped. */
static void print_label(FILE *out, const char *value)
{
    for (const char *p = value; *p; p++) {
        if (*p == '\\' || *p == '"') {
            fprintf(out, "\\%c", *p);
        } else if (*p == '\n') {
            fputs("\\n", out);
        } else {
            fputc(*p, out);
        }
    }
}

static void render_metrics(struct efsd *daemon, FILE *out)
{
    struct efs_stats stats;
    efs_stats(daemon->fs, &stats);
    fprintf(out, "# TYPE expertfs_mount info\n# HELP expertfs_mount what is mounted, and how it is served\n");
    fprintf(out, "expertfs_mount_info{version=\"%s\",store=\"", efs_version());
    print_label(out, daemon->options.store);
    fprintf(out, "\",serving_path=\"%s\"} 1\n", efsd_serving_path(daemon));
#define LINE(name, kind, unit, help) metric(out, "", #name, #kind, unit, help, stats.name);
    EFS_STATS(LINE)
#undef LINE
#define LINE(name, help)                                                                                               \
    metric(out, "fuse_", #name, "counter", strstr(#name, "_bytes") ? "bytes" : "", help,                               \
           atomic_load_explicit(&daemon->counters.name, memory_order_relaxed));
    EFSD_COUNTERS(LINE)
#undef LINE
    struct efsd_pagecache_stats page_cache;
    efsd_pagecache_stats(daemon, &page_cache);
#define LINE(name, kind, unit, help) metric(out, "", #name, #kind, unit, help, page_cache.name);
    EFSD_PAGECACHE_STATS(LINE)
#undef LINE
    fputs("# EOF\n", out);
}

errint_t efsd_control_render(struct efsd *daemon, enum efsd_control file, char **text, size_t *bytes)
{
    static void (*const render[EFSD_CONTROL_COUNT])(struct efsd *, FILE *) = {
        [EFSD_CONTROL_VERSION] = render_version, [EFSD_CONTROL_CONFIG] = render_config,
        [EFSD_CONTROL_STAT] = render_stat,       [EFSD_CONTROL_POOLS] = render_pools,
        [EFSD_CONTROL_EXPERTS] = render_experts, [EFSD_CONTROL_METRICS] = render_metrics,
    };
    *text = NULL;
    FILE *out = open_memstream(text, bytes);
    if (!out) {
        return -ENOMEM;
    }
    render[file](daemon, out);
    bool failed = ferror(out);
    if (fclose(out) || failed) {
        free(*text);
        *text = NULL;
        return -ENOMEM;
    }
    return 0;
}
