/* SPDX-License-Identifier: Apache-2.0 */
/* source.c - the sources of experts: a store opened in this process, or the mount that the model is mapped from. */
#include "plugin.h"

#include "expertfs-clock-private.h"
#include "expertfs-peer.h"
#include "expertfs-private.h"
#include "expertfs-stats.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define CHECK_NS 200000000 /* between two readings of the size of the pools */

struct efsg_source {
    struct efsg_device *owner; /* source_lock guards its list of sources, and their refs */
    struct efsg_source *next;
    char path[4096];
    uint64_t device; /* of path, when it was opened: another mount there is another source */
    struct efs_client *client;
    _Atomic(struct efsg_offload *) offload; /* NULL: none yet; set once, under source_lock */
    void (*offload_free)(struct efsg_offload *offload);
    struct efsg_weight *weights; /* [weight_count], copies, under source_lock; only if a device is wanted */
    uint32_t weight_count;
    struct efsg_places *places; /* NULL: not known, so that no tensor is the source's */
    struct efs_store *served;   /* of a mount: the store that it serves, if EXPERTFS_MOUNT_STORE names it; else NULL */
    struct efsg_places *served_places;
    unsigned refs;
    bool hinted;              /* prefetch is on */
    bool peers;               /* EXPERTFS_PEERS names some */
    uint64_t expert_bytes;    /* mean decoded size of an expert; 0: a mount */
    _Atomic int64_t pools_ns; /* time when pools_bytes was read; 0: never */
    _Atomic uint64_t pools_bytes;
    _Atomic uint64_t disk_bytes; /* of the last efsg_source_computes(); UINT64_MAX: none */
};

/* ---- opening ---- */

static void source_log(void *arg, enum efs_log_level level, const char *line)
{
    (void)arg;
    efsg_log(level == EFS_LOG_ERROR     ? GGML_LOG_LEVEL_ERROR
             : level == EFS_LOG_WARNING ? GGML_LOG_LEVEL_WARN
                                        : GGML_LOG_LEVEL_INFO,
             "%s", line);
}

/* EXPERTFS_BUDGET; NULL: not set, empty or auto. */
static const char *source_budget(void)
{
    const char *budget = getenv("EXPERTFS_BUDGET");
    return budget && *budget && strcmp(budget, "auto") != 0 ? budget : NULL;
}

bool efsg_source_fits_memory(uint64_t file_bytes)
{
    const char *budget = getenv("EXPERTFS_BUDGET");
    struct efsg_open_models models;
    const char *device = efsg_device_wanted();
    if ((budget && *budget) || (device && strcmp(device, "auto") != 0))
        return false;
    efsg_open_models(&models);
    return efs_fits_memory(file_bytes > models.bytes ? file_bytes : models.bytes);
}

const char *efsg_source_name(void)
{
    const char *store = getenv("EXPERTFS_STORE"), *served = getenv("EXPERTFS_MOUNT_STORE");
    if (!store || !*store)
        store = served && *served ? getenv("EXPERTFS_MOUNT") : NULL;
    return store && *store ? store : NULL;
}

bool efsg_source_expected(void)
{
    struct efsg_open_models models;
    efsg_open_models(&models);
    return (efsg_source_name() || models.mounted) && !efsg_source_fits_memory(0);
}

static uint64_t pools_of(const struct efs_stats *stats)
{
    const uint64_t fixed = stats->fixed_bytes;
    return stats->effective_budget_bytes > fixed ? stats->effective_budget_bytes - fixed : 0;
}

/* Whether prefetch is on. setting: EXPERTFS_PREFETCH, for a store; a mount has its own setting. */
static bool source_prefetches(struct efsg_source *source, const char *setting)
{
    char mode[64] = "off";
    if (!efs_client_fs(source->client)) {
        ssize_t length = getxattr(source->path, "user.expertfs.prefetch", mode, sizeof(mode) - 1);
        mode[length > 0 ? length : 0] = '\0';
        setting = length > 0 ? mode : "off";
    }
    return setting && *setting && strcmp(setting, "off") != 0;
}

struct efs_client *efsg_source_prefetch_client(struct efsg_source *source)
{
    return source->hinted ? source->client : NULL;
}

/* ---- peers ---- */

struct efs_client *efsg_source_peers(struct efsg_source *source)
{
    return source->peers ? source->client : NULL;
}

/* Connects to the servers of EXPERTFS_PEERS in the background. */
static void source_open_peers(struct efsg_source *source)
{
    const char *peers = getenv("EXPERTFS_PEERS"), *key = getenv("EXPERTFS_PEER_KEY");
    struct efs_error err = {""};
    if (!peers || !*peers)
        return;
    if (!key || !*key)
        efs_fail(&err, -EINVAL, "EXPERTFS_PEER_KEY names no file with their key");
    source->peers = key && *key && efs_client_peers(source->client, peers, key, &err) == 0;
    if (!source->peers)
        efsg_log(GGML_LOG_LEVEL_WARN, "EXPERTFS_PEERS=%s: %s; going on without peers", peers, err.text);
}

static void source_close_peers(struct efsg_source *source)
{
    struct efs_peer_stats stats;
    if (!source->peers)
        return;
    efs_client_peer_stats(source->client, &stats);
    efsg_log(stats.remote || stats.ready ? GGML_LOG_LEVEL_INFO : GGML_LOG_LEVEL_WARN,
             "%u of %u peers connected: they computed %llu products, this machine %llu; %llu requests failed",
             stats.ready, stats.peers, (unsigned long long)stats.remote, (unsigned long long)stats.local,
             (unsigned long long)stats.failed);
}

/* ---- experts on a device ---- */

struct efsg_offload *efsg_source_offload(struct efsg_source *source)
{
    return atomic_load(&source->offload);
}

struct efsg_offload *efsg_source_set_offload(struct efsg_source *source, struct efsg_offload *offload,
                                             void (*release)(struct efsg_offload *offload))
{
    struct efsg_offload *none = NULL;
    pthread_mutex_lock(&source->owner->source_lock);
    if (atomic_compare_exchange_strong(&source->offload, &none, offload))
        source->offload_free = release;
    pthread_mutex_unlock(&source->owner->source_lock);
    return atomic_load(&source->offload);
}

void efsg_source_add_weight(struct efsg_source *source, const struct efsg_weight *weight)
{
    if (!efsg_device_wanted())
        return;
    pthread_mutex_lock(&source->owner->source_lock);
    struct efsg_weight *more = realloc(source->weights, (source->weight_count + 1) * sizeof(*more));
    if (more) {
        source->weights = more;
        more[source->weight_count++] = *weight;
    }
    pthread_mutex_unlock(&source->owner->source_lock);
}

struct efsg_weight *efsg_source_weights(struct efsg_source *source, uint32_t *count)
{
    pthread_mutex_lock(&source->owner->source_lock);
    *count = source->weight_count;
    struct efsg_weight *copy = calloc(*count + 1, sizeof(*copy));
    for (uint32_t i = 0; copy && i < *count; i++)
        copy[i] = source->weights[i];
    pthread_mutex_unlock(&source->owner->source_lock);
    return copy;
}

void efsg_source_report_device(struct efsg_source *source, struct efs_export_device *counts)
{
    efs_client_report_device(source->client, counts);
}

struct efs *efsg_source_fs(struct efsg_source *source)
{
    return efs_client_fs(source->client);
}

static void source_find_expert_bytes(struct efsg_source *source)
{
    struct efs *fs = efs_client_fs(source->client);
    struct efs_store_info info = {0};
    if (fs)
        efs_store_info(efs_get_store(fs), &info);
    source->expert_bytes = info.experts ? info.expert_raw_bytes / info.experts : 0;
}

/* Opens the store that a mount serves, to compare files elsewhere with it. */
static void source_open_served(struct efsg_source *source)
{
    const char *path = getenv("EXPERTFS_MOUNT_STORE");
    char config[4096 + 32], line[512];
    unsigned long long hash = 0;
    struct efs_store_info info = {0};
    struct stat st;
    snprintf(config, sizeof(config), "%s/.expertfs/config", source->path);
    FILE *file = path && *path ? fopen(config, "re") : NULL;
    if (!file)
        return;
    const bool here = fstat(fileno(file), &st) == 0 && st.st_dev == source->device;
    while (here && fgets(line, sizeof(line), file) && sscanf(line, "store_hash: %llx", &hash) != 1) {
    }
    fclose(file);
    if (!here || efs_store_open(path, &source->served, NULL) < 0)
        return;
    efs_store_info(source->served, &info);
    if (info.content_hash == hash) {
        source->served_places = efsg_places_of_store(source->served);
        return;
    }
    efs_store_close(source->served);
    source->served = NULL;
}

static struct efsg_source *source_open(const char *path, uint64_t device)
{
    const char *budget = source_budget();
    /* Full experts gain at most a tenth, with AVX2 and one thread, where all of them fit coded: see BENCHMARKS.md. */
    struct efs_client_options options = {.coded_only = true, .warm = true, .log = source_log};
    struct efs_error err = {""};
    struct efsg_source *source = calloc(1, sizeof(*source));
    if (!source || strlen(path) >= sizeof(source->path))
        goto failed;
    if (budget && efs_parse_size(budget, &options.budget_bytes) < 0) {
        efs_fail(&err, -EINVAL, "EXPERTFS_BUDGET=%s is no size; one is written 8G, 512M, auto", budget);
        goto failed;
    }
    options.prefetch = getenv("EXPERTFS_PREFETCH");
    strcpy(source->path, path);
    source->device = device;
    source->refs = 1;
    if (efs_client_open(path, &options, &source->client, &err) < 0)
        goto failed;
    struct efs *fs = efs_client_fs(source->client);
    source->places = fs ? efsg_places_of_store(efs_get_store(fs)) : efsg_places_of_mount(path, device);
    if (!fs)
        source_open_served(source);
    source->hinted = source_prefetches(source, options.prefetch);
    source_open_peers(source);
    source_find_expert_bytes(source);
    atomic_init(&source->disk_bytes, UINT64_MAX);
    if (fs && !budget)
        efsg_log(GGML_LOG_LEVEL_INFO, "budget of %s until a context decodes: %llu MiB", path,
                 (unsigned long long)(efs_budget_leave(fs, EFS_LEAVE_MOST) >> 20));
    return source;
failed:
    efsg_log(GGML_LOG_LEVEL_ERROR, "%s; going on without expertfs", err.text[0] ? err.text : "no memory");
    free(source);
    return NULL;
}

/* The path of a file's source. False: it has none. */
static bool source_path(const struct efsg_file *file, char path[sizeof(file->path)])
{
    const char *named = efsg_source_name();
    if (named)
        return (size_t)snprintf(path, sizeof(file->path), "%s", named) < sizeof(file->path);
    strcpy(path, file->path);
    return efsg_mount_of(path);
}

bool efsg_source_is_named(const struct efsg_file *file)
{
    char path[sizeof(file->path)];
    return source_path(file, path);
}

struct efsg_source *efsg_source_get(struct efsg_device *owner, const struct efsg_file *file)
{
    char path[sizeof(file->path)];
    struct efsg_source *source;
    struct stat st;
    if (!source_path(file, path))
        return NULL;
    const uint64_t device = stat(path, &st) == 0 ? st.st_dev : 0;
    pthread_mutex_lock(&owner->source_lock);
    for (source = owner->sources; source && (strcmp(source->path, path) != 0 || source->device != device);
         source = source->next)
        ;
    if (source) {
        source->refs++;
    } else if ((source = source_open(path, device))) {
        source->owner = owner;
        source->next = owner->sources;
        owner->sources = source;
    }
    pthread_mutex_unlock(&owner->source_lock);
    return source;
}

void efsg_source_ref(struct efsg_source *source)
{
    pthread_mutex_lock(&source->owner->source_lock);
    source->refs++;
    pthread_mutex_unlock(&source->owner->source_lock);
}

void efsg_source_put(struct efsg_source *source)
{
    if (!source)
        return;
    pthread_mutex_lock(&source->owner->source_lock);
    bool last = --source->refs == 0;
    for (struct efsg_source **s = &source->owner->sources; last && *s; s = &(*s)->next)
        if (*s == source) {
            *s = source->next;
            break;
        }
    pthread_mutex_unlock(&source->owner->source_lock);
    if (!last)
        return;
    if (source->offload)
        source->offload_free(source->offload);
    free(source->weights);
    source_close_peers(source);
    efs_client_close(source->client);
    efsg_places_free(source->places);
    efsg_places_free(source->served_places);
    efs_store_close(source->served);
    free(source);
}

void efsg_kept_release(struct efsg_kept *kept)
{
    if (!kept->request)
        return;
    efs_client_release(kept->request);
    efsg_source_put(kept->source);
    kept->request = NULL;
}

void efsg_buffers_release(struct efsg_buffers *room)
{
    efsg_kept_release(&room->kept);
    efsg_kept_release(&room->ahead);
}

/* Whether this thread is to do now what is done every CHECK_NS, the last time at *at_ns. */
static bool check_due(_Atomic int64_t *at_ns)
{
    int64_t last = atomic_load(at_ns);
    const int64_t now = (int64_t)efs_clock_ns(CLOCK_MONOTONIC_COARSE);
    return (last == 0 || now - last >= CHECK_NS) && atomic_compare_exchange_strong(at_ns, &last, now);
}

void efsg_source_computes(struct efsg_source *source, uint64_t disk_bytes)
{
    struct efs *fs = efs_client_fs(source->client);
    uint64_t last = atomic_load(&source->disk_bytes);
    struct efs_stats stats;
    if (last == disk_bytes || (fs && source_budget()) ||
        !atomic_compare_exchange_strong(&source->disk_bytes, &last, disk_bytes))
        return;
    efs_client_leave(source->client, disk_bytes, NULL);
    if (!fs)
        return;
    efs_stats(fs, &stats);
    efsg_log(GGML_LOG_LEVEL_INFO, "budget of %s: %llu MiB", source->path,
             (unsigned long long)(stats.budget_bytes >> 20));
}

/* ---- requests and checks ---- */

errint_t efsg_source_begin(struct efsg_source *source, uint32_t layer, const struct efs_need *needs, uint32_t count,
                           bool counted, struct efs_client_request **request, struct efs_error *err)
{
    const enum efs_form form = EFS_FORM_CODED | (counted ? EFS_FORM_COUNTED : 0);
    return efs_client_begin(source->client, "", layer, needs, count, form, request, err);
}

uint32_t efsg_source_room(struct efsg_source *source, uint32_t part, uint32_t of)
{
    struct efs_stats stats;
    if (source->expert_bytes == 0)
        return 0;
    if (check_due(&source->pools_ns)) {
        efs_stats(efs_client_fs(source->client), &stats);
        atomic_store(&source->pools_bytes, pools_of(&stats));
    }
    const uint64_t experts = atomic_load(&source->pools_bytes) / of * part / source->expert_bytes;
    return experts < EFS_ROUTING_EXPERTS ? (uint32_t)experts : EFS_ROUTING_EXPERTS;
}

bool efsg_source_has_layer(struct efsg_source *source, uint32_t layer)
{
    struct efs_need first = {.tokens = 1};
    struct efs *fs = efs_client_fs(source->client);
    return fs && efs_experts_find(fs, "", layer, &first, 1, NULL) == 0;
}

uint32_t efsg_source_file(struct efsg_source *source, const struct efsg_file *file, uint64_t offset, uint64_t bytes)
{
    struct efs *fs = efs_client_fs(source->client);
    return fs ? efsg_same_file(fs, file, offset, bytes) : UINT32_MAX;
}

bool efsg_source_is_mount_of(const struct efsg_source *source, const struct efsg_file *file)
{
    return !efs_client_fs(source->client) && source->device == file->st.st_dev;
}

errint_t efsg_source_same_experts(struct efsg_source *source, const struct efsg_file *file,
                                  const struct ggml_tensor *tensor, uint32_t layer, struct efs_error *err)
{
    struct efs *fs = efs_client_fs(source->client);
    if (!fs && source->device != file->st.st_dev && source->served)
        return efsg_same_experts(source->served_places, source->served, file, tensor, layer, err);
    if (!fs && source->device != file->st.st_dev) /* the environment may name a mount other than the file's */
        return efs_fail(err, -ESTALE, "%s: is not on the mount %s", file->path, source->path);
    return efsg_same_experts(source->places, fs ? efs_get_store(fs) : NULL, file, tensor, layer, err);
}
