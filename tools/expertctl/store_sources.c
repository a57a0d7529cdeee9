/* SPDX-License-Identifier: Apache-2.0 */
/* store_sources.c - see store_sources.h. */
#include "store_sources.h"

#include "expertctl.h"
#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "hub.h"
#include "progress.h"
#include "stores.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The content hash of a packed store; false: it is no packed store. */
static bool store_hash(const char *path, uint64_t *hash)
{
    struct efs_store *store;
    struct efs_store_info info;
    struct stat st;
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || efs_store_open(path, &store, NULL) < 0)
        return false;
    efs_store_info(store, &info);
    efs_store_close(store);
    *hash = info.content_hash;
    return !info.in_place;
}

static void record_of(const char *store, struct tools_record *record)
{
    uint64_t hash;
    *record = (struct tools_record){.count = 0};
    if (store_hash(store, &hash))
        tools_record_read(store, hash, record);
}

/* ---- finding a store --------------------------------------------------------------------------------------------- */

static bool record_has(const char *store, const struct tools_sources *sources)
{
    struct tools_record record;
    bool found = false;
    record_of(store, &record);
    for (size_t i = 0; i < record.count; i++)
        found |= tools_sources_are_equal(&record.sources[i], sources);
    tools_record_free(&record);
    return found;
}

/* Whether the files have the names, sizes and bytes that were packed into a store; reads them up to the first
 * difference. Recorded if so. */
static bool store_has_bytes(const char *path, const struct tools_sources *sources)
{
    struct efs_store *store;
    struct efs_store_info info;
    struct efs_error err;
    struct tools_progress progress;
    if (efs_store_open(path, &store, &err) < 0)
        return false;
    efs_store_info(store, &info);
    tools_progress_init(&progress, false);
    bool same = efs_pack_compare(sources->path, store, tools_progress_report, &progress, &err) == 0;
    tools_progress_clear(&progress);
    efs_store_close(store);
    if (same)
        tools_record_add(path, info.content_hash, sources, &err); /* fails in a folder of another user */
    return same;
}

bool ctl_sources_store(const char *folder, const struct tools_sources *sources, char *store, size_t room)
{
    struct ctl_paths stores;
    bool found = false;
    ctl_stores_list(folder, &stores);
    for (int reads = 0; reads < 2 && !found; reads++) /* the records first */
        for (size_t i = 0; i < stores.count && !found; i++) {
            const char *path = stores.path[i];
            found = (reads ? store_has_bytes(path, sources) : record_has(path, sources)) &&
                    (size_t)snprintf(store, room, "%s", path) < room;
        }
    ctl_paths_free(&stores);
    return found;
}

bool ctl_sources_compare(const char *store, const char *path)
{
    struct tools_sources sources;
    struct efs_error ignored;
    bool same = tools_sources_list(path, &sources, &ignored) == 0 && store_has_bytes(store, &sources);
    tools_sources_free(&sources);
    return same;
}

errint_t ctl_sources_record(const char *store, const struct tools_sources *sources, struct efs_error *err)
{
    uint64_t hash;
    return store_hash(store, &hash) ? tools_record_add(store, hash, sources, err)
                                    : efs_fail(err, -EINVAL, "%s: not a store", store);
}

/* ---- the state --------------------------------------------------------------------------------------------------- */

/* Compares the files of a record with those that are there. */
static enum ctl_source_state source_state(const struct tools_sources *is)
{
    struct tools_sources now;
    struct efs_error ignored;
    if (tools_sources_list(is->path, &now, &ignored) < 0)
        return CTL_SOURCE_MISSING;
    enum ctl_source_state state = tools_sources_are_equal(is, &now) ? CTL_SOURCE_SAME : CTL_SOURCE_CHANGED;
    for (size_t i = 0, n = 0; i < is->count && state == CTL_SOURCE_CHANGED; i++) { /* both are sorted */
        while (n < now.count && strcmp(now.files[n].path, is->files[i].path) < 0)
            n++;
        if (n == now.count || strcmp(now.files[n].path, is->files[i].path) != 0)
            state = CTL_SOURCE_MISSING;
    }
    tools_sources_free(&now);
    return state;
}

enum ctl_source_state ctl_sources_state(const char *store, char *path, size_t room)
{
    struct tools_record record;
    enum ctl_source_state best = CTL_SOURCE_UNKNOWN;
    *path = '\0';
    record_of(store, &record);
    for (size_t i = 0; i < record.count && best != CTL_SOURCE_SAME; i++) {
        enum ctl_source_state state = source_state(&record.sources[i]);
        if (best == CTL_SOURCE_UNKNOWN || state < best) {
            best = state;
            snprintf(path, room, "%s", record.sources[i].path);
        }
    }
    tools_record_free(&record);
    return best;
}

const char *ctl_sources_missing(const char *path)
{
    return access(path, F_OK) == 0 ? "files of which are missing" : "which is not there any more";
}

/* ---- the bytes --------------------------------------------------------------------------------------------------- */

/* Opens the nth file of a checkpoint. -1: it cannot be. */
static int file_open(const struct tools_sources *sources, size_t nth, struct stat *st)
{
    char path[8192];
    const char *slash = strrchr(sources->path, '/');
    const bool folder = stat(sources->path, st) == 0 && S_ISDIR(st->st_mode);
    const int above = folder || !slash ? (int)strlen(sources->path) : (int)(slash - sources->path);
    const int bytes = snprintf(path, sizeof(path), "%.*s/%s", above, sources->path, sources->files[nth].path);
    int fd = (size_t)bytes < sizeof(path) ? open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;
    if (fd >= 0 && fstat(fd, st) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* What efs_same_known() says of all files; remember: records that they are the same. -EOPNOTSUPP: the times of one may
 * miss a change. seen: before the bytes were read. */
static int files_known(const struct tools_sources *sources, uint64_t hash, const struct timespec *seen, bool remember)
{
    int known = 1;
    for (size_t i = 0; i < sources->count && known >= 0; i++) {
        struct stat st;
        int fd = file_open(sources, i, &st);
        if (fd < 0)
            return -ESTALE;
        const struct efs_same_range all = {.file = (uint32_t)i, .bytes = (uint64_t)st.st_size};
        const int is = efs_same_lasts(fd) ? efs_same_known(hash, &st, &all) : -EOPNOTSUPP;
        if (remember && is == 0)
            efs_same_remember(hash, &st, seen, &all, true);
        known = is < known ? is : known;
        close(fd);
    }
    return known;
}

errint_t ctl_sources_check_bytes(const char *store, const char *path)
{
    struct tools_sources sources = {.count = 0}, now = {.count = 0};
    struct efs_error ignored;
    struct timespec seen;
    uint64_t hash;
    clock_gettime(CLOCK_REALTIME, &seen);
    errint_t rc = tools_sources_list(path, &sources, &ignored);
    if (rc < 0)
        return rc;
    const int known = store_hash(store, &hash) ? files_known(&sources, hash, &seen, false) : -ESTALE;
    rc = known < 0 ? known : 0;
    if (known == 0) {
        rc = store_has_bytes(store, &sources) && tools_sources_list(path, &now, &ignored) == 0 &&
                     tools_sources_are_equal(&sources, &now)
                 ? 0
                 : -ESTALE;
        if (rc == 0)
            files_known(&sources, hash, &seen, true);
    }
    tools_sources_free(&now);
    tools_sources_free(&sources);
    return rc;
}

bool ctl_sources_has_path(const char *store, const char *path)
{
    struct tools_record record;
    bool found = false;
    record_of(store, &record);
    for (size_t i = 0; i < record.count; i++)
        found |= strcmp(record.sources[i].path, path) == 0;
    tools_record_free(&record);
    return found;
}

bool ctl_sources_has_changed(const char *store, const char *path)
{
    struct tools_record record;
    struct tools_sources now = {.count = 0};
    struct efs_error ignored;
    bool found = false, same = false;
    record_of(store, &record);
    if (*path && tools_sources_list(path, &now, &ignored) == 0)
        for (size_t i = 0; i < record.count; i++)
            if (strcmp(record.sources[i].path, path) == 0) {
                found = true;
                same |= tools_sources_are_equal(&record.sources[i], &now);
            }
    tools_sources_free(&now);
    tools_record_free(&record);
    return found && !same;
}

bool ctl_sources_is_of(const char *store, const char *given)
{
    char path[4096], *absolute = NULL;
    struct efs_error ignored;
    bool found = ctl_hub_find(given, path, sizeof(path), &ignored) == 0 &&
                 efs_source_path(path, &absolute, &ignored) == 0 && ctl_sources_has_path(store, absolute);
    free(absolute);
    return found;
}
