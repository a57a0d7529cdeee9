/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sources.c - see sources.h. The record is a text:
 *
 *   store: CONTENT-HASH
 *   source: PATH
 *   BYTES MODIFIED CHANGED INODE NAME      a line for each file; times are SECONDS.NANOSECONDS
 *
 * with as many sources as are known. Line ends in paths are written \n, backslashes and quotes after a backslash. A
 * record of another content hash is of a store that was replaced, and is ignored.
 */
#include "sources.h"

#include "control_file.h"
#include "expertctl.h"
#include "expertfs-packing-private.h"
#include "expertfs-private.h"
#include "hub.h"
#include "progress.h"
#include "stores.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the record -------------------------------------------------------------------------------------------------- */

/* Parses a line of a file; false: it is not one. The path of *file is allocated. */
static bool file_parse(const char *line, struct ctl_source_file *file)
{
    int at = 0;
    char name[4096];
    *file = (struct ctl_source_file){.path = NULL};
    if (sscanf(line, "%" SCNu64 " %" SCNd64 ".%ld %" SCNd64 ".%ld %" SCNu64 "%n", &file->bytes, &file->modified.tv_sec,
               &file->modified.tv_nsec, &file->changed.tv_sec, &file->changed.tv_nsec, &file->inode, &at) != 6 ||
        line[at] != ' ')
        return false;
    snprintf(name, sizeof(name), "-: %s", line + at + 1);
    file->path = strdup(tools_line_path(name, "-", name, sizeof(name)));
    return file->path != NULL;
}

/* Reads the next source of a record. false: there is none. */
static bool record_next(FILE *in, struct ctl_sources *sources)
{
    char *line = NULL, path[4200];
    size_t room = 0, capacity = 0;
    ssize_t bytes;
    long at = ftell(in);
    bool whole = true;
    *sources = (struct ctl_sources){.count = 0};
    while (whole && (bytes = getline(&line, &room, in)) > 0) {
        bool begins = strncmp(line, "source: ", 8) == 0;
        if (begins && sources->path)
            break; /* the next one */
        line[strcspn(line, "\n")] = '\0';
        at = ftell(in);
        if (begins) {
            sources->path = strdup(tools_line_path(line, "source", path, sizeof(path)));
        } else if (sources->path) {
            struct ctl_source_file *more = sources->files;
            if (sources->count == capacity)
                more = reallocarray(more, capacity = 2 * capacity + 8, sizeof(*more));
            whole = more && file_parse(line, &more[sources->count]);
            sources->files = more ? more : sources->files;
            sources->count += whole;
        }
    }
    fseek(in, at, SEEK_SET);
    free(line);
    if (sources->path && whole)
        return true;
    ctl_sources_free(sources);
    return false;
}

/* The record of a store, at its first source; hash: of the store that it is of. The caller closes it. NULL: there is
 * none. */
static FILE *record_open(const char *store, uint64_t *hash)
{
    char path[4400];
    snprintf(path, sizeof(path), "%s" CTL_SOURCES_END, store);
    FILE *in = fopen(path, "re");
    if (in && fscanf(in, "store: %16" SCNx64 "\n", hash) == 1)
        return in;
    if (in)
        fclose(in);
    return NULL;
}

/* Closes the record. Whether it is of this store: reads the index. */
static bool record_close(FILE *in, const char *store, uint64_t hash)
{
    struct efs_store *opened;
    struct efs_store_info info;
    struct efs_error ignored;
    fclose(in);
    if (efs_store_open(store, &opened, &ignored) < 0)
        return false;
    efs_store_info(opened, &info);
    efs_store_close(opened);
    return !info.in_place && info.content_hash == hash;
}

static void record_print(FILE *out, const struct ctl_sources *sources)
{
    fputs("source: ", out);
    efs_print_escaped(out, sources->path);
    fputc('\n', out);
    for (size_t i = 0; i < sources->count; i++) {
        const struct ctl_source_file *file = &sources->files[i];
        fprintf(out, "%" PRIu64 " %" PRId64 ".%09ld %" PRId64 ".%09ld %" PRIu64 " ", file->bytes,
                (int64_t)file->modified.tv_sec, file->modified.tv_nsec, (int64_t)file->changed.tv_sec,
                file->changed.tv_nsec, file->inode);
        efs_print_escaped(out, file->path);
        fputc('\n', out);
    }
}

/* Writes the sources of the old record whose files still are what they were, the new one first. */
static errint_t record_write(FILE *out, const char *store, const struct ctl_sources *sources, struct efs_error *err)
{
    struct efs_store *opened;
    struct efs_store_info info;
    struct ctl_sources old;
    uint64_t hash;
    errint_t rc = efs_store_open(store, &opened, err);
    if (rc < 0)
        return rc;
    efs_store_info(opened, &info);
    efs_store_close(opened);
    fprintf(out, "store: %016" PRIx64 "\n", info.content_hash);
    record_print(out, sources);
    FILE *in = record_open(store, &hash);
    while (in && hash == info.content_hash && record_next(in, &old)) {
        struct ctl_sources now = {.count = 0};
        struct efs_error ignored;
        if (strcmp(old.path, sources->path) != 0 && ctl_sources_list(old.path, &now, &ignored) == 0 &&
            ctl_sources_are_equal(&old, &now))
            record_print(out, &old);
        ctl_sources_free(&now);
        ctl_sources_free(&old);
    }
    if (in)
        fclose(in);
    return 0;
}

errint_t ctl_sources_record(const char *store, const struct ctl_sources *sources, struct efs_error *err)
{
    char path[4400], written[4500];
    snprintf(path, sizeof(path), "%s" CTL_SOURCES_END, store);
    snprintf(written, sizeof(written), "%s.%d", path, (int)getpid());
    FILE *out = fopen(written, "we");
    if (!out)
        return efs_fail(err, -errno, "%s: %s", written, strerror(errno));
    errint_t rc = record_write(out, store, sources, err);
    if (fclose(out) < 0 && rc == 0)
        rc = efs_fail(err, -errno, "%s: %s", written, strerror(errno));
    if (rc == 0 && rename(written, path) < 0)
        rc = efs_fail(err, -errno, "%s: %s", path, strerror(errno));
    if (rc < 0)
        unlink(written);
    return rc;
}

/* ---- finding a store --------------------------------------------------------------------------------------------- */

static bool record_has(const char *store, const struct ctl_sources *sources)
{
    uint64_t hash;
    FILE *in = record_open(store, &hash);
    struct ctl_sources is;
    bool found = false;
    while (in && !found && record_next(in, &is)) {
        found = ctl_sources_are_equal(&is, sources);
        ctl_sources_free(&is);
    }
    if (found)
        return record_close(in, store, hash);
    if (in)
        fclose(in);
    return false;
}

/* Whether the files have the names, sizes and bytes that were packed into a store; reads them up to the first
 * difference. Recorded if so. */
static bool store_has_bytes(const char *path, const struct ctl_sources *sources)
{
    struct efs_store *store;
    struct efs_error err;
    struct tools_progress progress;
    if (efs_store_open(path, &store, &err) < 0)
        return false;
    tools_progress_init(&progress, false);
    bool same = efs_pack_compare(sources->path, store, tools_progress_report, &progress, &err) == 0;
    tools_progress_clear(&progress);
    efs_store_close(store);
    if (same)
        ctl_sources_record(path, sources, &err); /* fails in a folder of another user */
    return same;
}

bool ctl_sources_store(const char *folder, const struct ctl_sources *sources, char *store, size_t room)
{
    struct dirent **stores;
    char path[4400];
    int count = ctl_stores_list(folder, &stores);
    bool found = false;
    for (int reads = 0; reads < 2 && !found; reads++) /* the records first */
        for (int i = 0; i < count && !found; i++) {
            snprintf(path, sizeof(path), "%s/%s", folder, stores[i]->d_name);
            found = reads ? store_has_bytes(path, sources) : record_has(path, sources);
            if (found)
                found = (size_t)snprintf(store, room, "%s", path) < room;
        }
    for (int i = 0; i < count; i++)
        free(stores[i]);
    if (count >= 0)
        free(stores);
    return found;
}

bool ctl_sources_compare(const char *store, const char *path)
{
    struct ctl_sources sources;
    struct efs_error ignored;
    bool same = ctl_sources_list(path, &sources, &ignored) == 0 && store_has_bytes(store, &sources);
    ctl_sources_free(&sources);
    return same;
}

/* ---- the state --------------------------------------------------------------------------------------------------- */

/* Compares the files of a record with those that are there. */
static enum ctl_source_state source_state(const struct ctl_sources *is)
{
    struct ctl_sources now;
    struct efs_error ignored;
    if (ctl_sources_list(is->path, &now, &ignored) < 0)
        return CTL_SOURCE_MISSING;
    enum ctl_source_state state = ctl_sources_are_equal(is, &now) ? CTL_SOURCE_SAME : CTL_SOURCE_CHANGED;
    for (size_t i = 0, n = 0; i < is->count && state == CTL_SOURCE_CHANGED; i++) { /* both are sorted */
        while (n < now.count && strcmp(now.files[n].path, is->files[i].path) < 0)
            n++;
        if (n == now.count || strcmp(now.files[n].path, is->files[i].path) != 0)
            state = CTL_SOURCE_MISSING;
    }
    ctl_sources_free(&now);
    return state;
}

enum ctl_source_state ctl_sources_state(const char *store, char *path, size_t room)
{
    uint64_t hash;
    FILE *in = record_open(store, &hash);
    struct ctl_sources is;
    enum ctl_source_state best = CTL_SOURCE_UNKNOWN;
    *path = '\0';
    while (in && best != CTL_SOURCE_SAME && record_next(in, &is)) {
        enum ctl_source_state state = source_state(&is);
        if (best == CTL_SOURCE_UNKNOWN || state < best) {
            best = state;
            snprintf(path, room, "%s", is.path);
        }
        ctl_sources_free(&is);
    }
    return in && record_close(in, store, hash) ? best : CTL_SOURCE_UNKNOWN;
}

bool ctl_sources_has_path(const char *store, const char *path)
{
    uint64_t hash;
    FILE *in = record_open(store, &hash);
    struct ctl_sources is;
    bool found = false;
    while (in && !found && record_next(in, &is)) {
        found = strcmp(is.path, path) == 0;
        ctl_sources_free(&is);
    }
    return in && record_close(in, store, hash) && found;
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
