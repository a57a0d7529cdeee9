/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - the files below .expertfs, each generated at open, so that all reads of an open see the same text.
 * expertfs-proc(5) describes them; names are never reused with another meaning.
 */
#include "control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon.h"
#include "expertfs-private.h"
#include "expertfs-stats.h"
#include "log_queue.h"
#include "log_recent.h"
#include "mount_table.h"
#include "sample.h"

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
    fprintf(out, "socket_protocol: %u\n", EFS_EXPORT_VERSION);
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

/* Writes a text that the engine generates; nothing if the engine has none now. */
static void render_described(struct efsd *daemon, FILE *out, const char *what)
{
    char *text;
    size_t bytes;
    if (efs_describe(daemon->fs, what, &text, &bytes) == 0) {
        fwrite(text, 1, bytes, out);
        free(text);
    }
}

/* A size in two lines: NAME_bytes for programs, NAME_size for people. */
static void render_size(FILE *out, const char *name, uint64_t bytes)
{
    char text[EFS_SIZE_TEXT];
    fprintf(out, "%s_bytes: %llu\n", name, U(bytes));
    fprintf(out, "%s_size: %s\n", name, efs_size_text(bytes, text));
}

static void render_path(FILE *out, const char *name, const char *path)
{
    fprintf(out, "%s: ", name);
    efs_print_escaped(out, path);
    fputc('\n', out);
}

static void render_config(struct efsd *daemon, FILE *out)
{
    static const char *const direct_io[] = {"auto", "on", "off"};
    const struct efsd_options *options = &daemon->options;
    struct efs_stats stats;
    efs_stats(daemon->fs, &stats);
    render_path(out, "store", options->store);
    fprintf(out, "store_hash: %016llx\n", U(daemon->info.content_hash));
    fprintf(out, "in_place: %s\n", yes_no(daemon->info.in_place));
    fprintf(out, "store_device: %llu\nstore_inode: %llu\n", U(daemon->info.device), U(daemon->info.inode));
    render_size(out, "store", daemon->info.store_bytes);
    render_size(out, "source", daemon->info.source_bytes);
    char *moved = efsd_mounts_path(daemon->device);
    render_path(out, "mountpoint", moved ? moved : options->mountpoint);
    free(moved);
    fprintf(out, "pid: %d\n", (int)getpid());
    fprintf(out, "started: %lld\n", (long long)daemon->started);
    char budget[sizeof(daemon->tuning.at_mount[0])] = "";
    efs_get(daemon->fs, "budget", budget, sizeof(budget));
    fprintf(out, "budget_option: %s\n", strcmp(budget, "auto") == 0 ? "auto" : "size"); /* the current one */
    render_size(out, "budget", stats.budget_bytes);
    render_size(out, "effective_budget", stats.effective_budget_bytes);
    for (size_t i = 0; i < EFS_TUNABLES; i++) { /* current values */
        char value[sizeof(daemon->tuning.at_mount[i])];
        if (efs_get(daemon->fs, efs_tunables[i].name, value, sizeof(value)) == 0)
            fprintf(out, "%s: %s\n", efs_tunables[i].name, value);
    }
    fprintf(out, "state: %s\n", yes_no(!options->no_state));
    fprintf(out, "workers_option: %llu\n", U(options->workers));
    fprintf(out, "threads: %u\n", daemon->threads);
    fprintf(out, "reply_buffers: %zu\n", daemon->buffers.count);
    fprintf(out, "prealloc: %s\n", yes_no(options->prealloc));
    fprintf(out, "direct_io_option: %s\n", direct_io[options->direct_io]);
    render_size(out, "readahead", daemon->readahead_bytes);
    fprintf(out, "readahead_reason: %s\n", *daemon->readahead_note ? daemon->readahead_note : "-");
    fprintf(out, "store_direct: %s\n", yes_no(stats.direct_io));
    render_path(out, "local", options->local ? options->local : "-");
    render_size(out, "local_limit", options->local_bytes);
    render_described(daemon, out, "local");
    render_path(out, "placement", options->placement ? options->placement : "-");
    render_described(daemon, out, "placement");
    fprintf(out, "io_uring: %s\n", yes_no(stats.io_uring));
    render_described(daemon, out, "memory");
    fprintf(out, "view_hidden: %s\n", yes_no(daemon->options.no_experts || efs_view_hidden(daemon->fs)));
    render_paths(daemon, out);
}

static void render_stat(struct efsd *daemon, FILE *out)
{
    struct efsd_sample now;
    efsd_sample_take(daemon, &now);
    fprintf(out, "serving_path: %s\n", efsd_serving_path(daemon));
    fprintf(out, "serving_reason: %s\n", daemon->path_note);
    efsd_sample_print(&now, out);
    fprintf(out, "fuse_log_lost: %llu\n", U(efsd_log_queue_lost()));
}

/* A row for memory that is not a pool of experts: capacity and used bytes. */
static void other_row(FILE *out, const char *name, const char *capacity, uint64_t used, const char *experts)
{
    fprintf(out, "%-6s %15s %15llu %8s", name, capacity, U(used), experts);
    for (int i = 0; i < 8; i++)
        fprintf(out, " %*s", i < 7 ? 10 : 15, "-");
    fputc('\n', out);
}

static const char *format_number(uint64_t n, char text[24])
{
    snprintf(text, 24, "%llu", U(n));
    return text;
}

static void pool_row(FILE *out, char pool, const struct efs_pool_info *info)
{
    bool missing = pool == 'M';
    char capacity[24], used[24], hits[24], partial[24], misses[24], saved[24];
    fprintf(out, "%-6c %15s %15s %8llu %10s %10s %10s %10llu %10llu %10llu %10llu %15s\n", pool,
            missing ? "-" : format_number(info->capacity_bytes, capacity),
            missing ? "-" : format_number(info->used_bytes, used), U(info->experts),
            missing ? "-" : format_number(info->hits, hits), missing ? "-" : format_number(info->partial, partial),
            missing ? format_number(info->hits, misses) : "-", U(info->admitted), U(info->promoted), U(info->demoted),
            U(info->evicted), missing ? "-" : format_number(info->saved_bytes, saved));
}

static void render_pools(struct efsd *daemon, FILE *out)
{
    struct efs_stats stats;
    char capacity[24], experts[24];
    efs_stats(daemon->fs, &stats);
    fprintf(out, "%-6s %15s %15s %8s %10s %10s %10s %10s %10s %10s %10s %15s\n", "pool", "capacity_bytes", "used_bytes",
            "experts", "hits", "partial", "misses", "admitted", "promoted", "demoted", "evicted", "saved_bytes");
    for (const char *pool = EFSD_POOLS; *pool; pool++) {
        struct efs_pool_info info;
        if (efs_pool_info(daemon->fs, *pool, &info) == 0)
            pool_row(out, *pool, &info);
    }
    other_row(out, "fixed", format_number(stats.fixed_bytes, capacity), stats.fixed_bytes, "-");
    other_row(out, "chunks", format_number(stats.chunk_pool_bytes, capacity), stats.chunk_used_bytes, "-");
    other_row(out, "full", format_number(stats.full_pool_bytes, capacity), stats.full_pool_bytes,
              format_number(stats.full_experts, experts));
    other_row(out, "leased", "-", stats.leased_bytes, format_number(stats.leased_experts, experts));
    other_row(out, "budget", format_number(stats.budget_bytes, capacity),
              stats.fixed_bytes + stats.chunk_pool_bytes + stats.full_pool_bytes, "-");
}

static void render_experts(struct efsd *daemon, FILE *out)
{
    fprintf(out, "%-24s %5s %6s %5s %6s %12s %12s %14s %10s %4s %3s %4s %10s\n", "name", "layer", "expert", "state",
            "leases", "raw_bytes", "coded_bytes", "resident_bytes", "touches", "kept", "pin", "rank", "count");
    for (uint32_t i = 0; i < daemon->expert_count; i++) {
        struct efs_expert_info e;
        if (efs_expert_info(daemon->fs, efs_id(i), &e) == 0) {
            fprintf(out, "%-24s %5u %6u %5c %6u %12llu %12llu %14llu %10llu %4c %3c %4u %10llu\n", e.name, e.layer,
                    e.expert, e.state, e.leases, U(e.raw_bytes), U(e.coded_bytes), U(e.resident_bytes), U(e.touches),
                    e.kept, e.pin, e.rank, U(e.count));
        }
    }
}

/* Includes the reason of the last refusal: a shell that writes an invalid line prints only strerror(). */
static void render_messages(struct efsd *daemon, const struct efsd_messages *messages, FILE *out)
{
    pthread_mutex_lock(&daemon->tuning.lock);
    fprintf(out, "taken: %llu\nrefused: %llu\nrefused_last: %s\n", U(messages->accepted), U(messages->refused),
            *messages->refused_last ? messages->refused_last : "-");
    pthread_mutex_unlock(&daemon->tuning.lock);
}

static void render_want(struct efsd *daemon, FILE *out)
{
    render_messages(daemon, &daemon->tuning.wants, out);
}

static void render_hint(struct efsd *daemon, FILE *out)
{
    render_messages(daemon, &daemon->tuning.hints, out);
}

static void render_handout(struct efsd *daemon, FILE *out)
{
    fprintf(out, "address: %s\n", daemon->export_address);
}

static void render_log(struct efsd *daemon, FILE *out)
{
    (void)daemon;
    efsd_log_recent_print(out);
}

static void render_clients(struct efsd *daemon, FILE *out)
{
    fprintf(out, "%-10s %10s %12s %10s %10s %12s %12s %13s %15s %19s %19s\n", "pid", "uid", "connected", "requested",
            "held", "device_slots", "device_hits", "device_copied", "device_computed", "device_copied_bytes",
            "device_wait_ns");
    if (daemon->print_clients)
        daemon->print_clients(daemon->export, out);
}

static void render_readers(struct efsd *daemon, FILE *out)
{
    fprintf(out, "%-10s %10s %10s %15s\n", "pid", "uid", "files", "read_bytes");
    daemon->print_readers(daemon, out);
}

/* The inode of a file of the checkpoint; 0: none. */
static uint64_t file_inode(const struct efsd *daemon, uint32_t file)
{
    for (uint32_t node = 0; node < daemon->tree.count; node++)
        if (daemon->tree.nodes[node].kind == EFSD_FILE && daemon->tree.nodes[node].id == file)
            return node + FUSE_ROOT_ID;
    return 0;
}

static void render_tensors(struct efsd *daemon, FILE *out)
{
    struct efs_stacked *list;
    uint32_t count;
    fprintf(out, "%-8s %15s %15s %8s %6s name\n", "inode", "offset", "bytes", "experts", "layer");
    if (efs_stacked_list(efs_get_store(daemon->fs), &list, &count) < 0)
        return;
    uint64_t inode = 0;
    for (uint32_t i = 0; i < count; i++) {
        inode = i > 0 && list[i].file == list[i - 1].file ? inode : file_inode(daemon, list[i].file);
        fprintf(out, "%-8llu %15llu %15llu %8u %6u ", U(inode), U(list[i].offset), U(list[i].bytes), list[i].experts,
                list[i].layer);
        efs_print_escaped_bytes(out, list[i].name, list[i].name_bytes);
        fputc('\n', out);
    }
    free(list);
}

static const struct {
    const char *name;
    void (*render)(struct efsd *daemon, FILE *out);
} files[EFSD_CONTROL_COUNT] = {
#define ROW(name, render) {#name, render},
    EFSD_CONTROL_FILES(ROW)
#undef ROW
};

const char *efsd_control_name(enum efsd_control file)
{
    return files[file].name;
}

errint_t efsd_control_render(struct efsd *daemon, enum efsd_control file, char **text, size_t *bytes)
{
    *text = NULL;
    FILE *out = open_memstream(text, bytes);
    if (!out)
        return -ENOMEM;
    if (files[file].render)
        files[file].render(daemon, out);
    else
        render_described(daemon, out, files[file].name);
    return efs_text_stream_end(out, text);
}
