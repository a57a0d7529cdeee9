/* SPDX-License-Identifier: Apache-2.0 */
/* sources.c - see sources.h. */
#include "sources.h"

#include "catalog.h"
#include "control_file.h"
#include "expertfs-private.h"
#include "expertfs-profile-private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define RECORD_BYTES_MAX (64 << 20)

/* ---- the files --------------------------------------------------------------------------------------------------- */

void tools_sources_free(struct tools_sources *sources)
{
    for (size_t i = 0; i < sources->count; i++)
        free(sources->files[i].path);
    free(sources->files);
    free(sources->path);
    *sources = (struct tools_sources){.count = 0};
}

static bool is_same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool is_same_file(const struct tools_source_file *a, const struct tools_source_file *b)
{
    return a->bytes == b->bytes && a->inode == b->inode && is_same_time(&a->modified, &b->modified) &&
           is_same_time(&a->changed, &b->changed) && strcmp(a->path, b->path) == 0;
}

bool tools_sources_are_equal(const struct tools_sources *a, const struct tools_sources *b)
{
    bool same = a->count == b->count;
    for (size_t i = 0; same && i < a->count; i++)
        same = is_same_file(&a->files[i], &b->files[i]);
    return same;
}

errint_t tools_sources_take(const struct efs_catalog *catalog, const char *path, struct tools_sources *sources,
                            struct efs_error *err)
{
    errint_t rc = 0;
    *sources =
        (struct tools_sources){.path = strdup(path), .files = calloc(catalog->file_count + 1, sizeof(*sources->files))};
    if (!sources->path || !sources->files)
        rc = efs_fail(err, -ENOMEM, "no memory");
    for (size_t f = 0; f < catalog->file_count && rc == 0; f++) {
        char *whole;
        struct stat st;
        if (asprintf(&whole, "%s/%s", catalog->root, catalog->files[f].path) < 0) {
            rc = efs_fail(err, -ENOMEM, "no memory");
            break;
        }
        if (stat(whole, &st) < 0)
            rc = efs_fail(err, -ESTALE, "%s: %s", whole, strerror(errno));
        free(whole);
        struct tools_source_file *file = &sources->files[sources->count++];
        *file = (struct tools_source_file){.path = strdup(catalog->files[f].path),
                                           .bytes = (uint64_t)st.st_size,
                                           .inode = st.st_ino,
                                           .modified = st.st_mtim,
                                           .changed = st.st_ctim};
        if (rc == 0 && !file->path)
            rc = efs_fail(err, -ENOMEM, "no memory");
    }
    if (rc < 0)
        tools_sources_free(sources);
    return rc;
}

errint_t tools_sources_list(const char *path, struct tools_sources *sources, struct efs_error *err)
{
    struct efs_catalog catalog;
    *sources = (struct tools_sources){.count = 0};
    errint_t rc = efs_catalog_list(path, &catalog, err);
    if (rc < 0)
        return rc;
    rc = tools_sources_take(&catalog, path, sources, err);
    efs_catalog_free(&catalog);
    return rc;
}

uint64_t tools_sources_key(const struct tools_sources *sources)
{
    uint64_t key = 0;
    for (size_t f = 0; f < sources->count; f++) {
        const struct tools_source_file *file = &sources->files[f];
        const uint64_t facts[] = {key,
                                  file->bytes,
                                  file->inode,
                                  (uint64_t)file->modified.tv_sec,
                                  (uint64_t)file->modified.tv_nsec,
                                  (uint64_t)file->changed.tv_sec,
                                  (uint64_t)file->changed.tv_nsec};
        key = XXH3_64bits_withSeed(file->path, strlen(file->path), XXH3_64bits(facts, sizeof(facts)));
    }
    return key;
}

/* ---- the record -------------------------------------------------------------------------------------------------- */

void tools_record_free(struct tools_record *record)
{
    while (record->count)
        tools_sources_free(&record->sources[--record->count]);
    free(record->sources);
    *record = (struct tools_record){.count = 0};
}

/* Parses a line of a file; false: it is not one. The path of *file is allocated. */
static bool file_parse(const char *line, struct tools_source_file *file)
{
    int at = 0;
    char name[4096];
    *file = (struct tools_source_file){.path = NULL};
    if (sscanf(line, "%" SCNu64 " %" SCNd64 ".%ld %" SCNd64 ".%ld %" SCNu64 "%n", &file->bytes, &file->modified.tv_sec,
               &file->modified.tv_nsec, &file->changed.tv_sec, &file->changed.tv_nsec, &file->inode, &at) != 6 ||
        line[at] != ' ')
        return false;
    snprintf(name, sizeof(name), "-: %s", line + at + 1);
    file->path = strdup(tools_line_path(name, "-", name, sizeof(name)));
    return file->path != NULL;
}

/* Takes a line after the first; false: it is not one of a record, or no memory. */
static bool line_take(const char *line, struct tools_record *record)
{
    char path[4200];
    if (strncmp(line, "source: ", 8) == 0) {
        struct tools_sources *more = reallocarray(record->sources, record->count + 1, sizeof(*more));
        if (!more)
            return false;
        record->sources = more;
        more[record->count] =
            (struct tools_sources){.path = strdup(tools_line_path(line, "source", path, sizeof(path)))};
        return more[record->count++].path != NULL;
    }
    struct tools_sources *last = record->count ? &record->sources[record->count - 1] : NULL;
    struct tools_source_file *more = last ? reallocarray(last->files, last->count + 1, sizeof(*more)) : NULL;
    if (!more)
        return false;
    last->files = more;
    return file_parse(line, &more[last->count]) && ++last->count;
}

/* Opens a record: a regular file only, since an open of a FIFO would wait for a writer. NULL: there is none. */
static FILE *record_open(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    const bool good = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= RECORD_BYTES_MAX;
    FILE *in = good ? fdopen(fd, "r") : NULL;
    if (fd >= 0 && !in)
        close(fd);
    return in;
}

/* Adds the sources in a file. One that is cut or damaged is left out, with those after it. */
static void record_load(const char *path, uint64_t content_hash, struct tools_record *record)
{
    FILE *in = record_open(path);
    char *line = NULL;
    size_t room = 0;
    uint64_t hash;
    bool good = in && fscanf(in, "store: %16" SCNx64 "\n", &hash) == 1 && hash == content_hash;
    while (good && getline(&line, &room, in) > 0) {
        line[strcspn(line, "\n")] = '\0';
        good = line_take(line, record);
        if (!good && record->count)
            tools_sources_free(&record->sources[--record->count]);
    }
    free(line);
    if (in)
        fclose(in);
}

/* The path of a record; store NULL: in the state directory. false: there is none. */
static bool record_path(const char *store, uint64_t content_hash, char *path, size_t room)
{
    return store ? (size_t)snprintf(path, room, "%s" TOOLS_SOURCES_END, store) < room
                 : efs_state_path("sources", content_hash, "txt", path, room, NULL) == 0;
}

void tools_record_read(const char *store, uint64_t content_hash, struct tools_record *record)
{
    char path[4400];
    *record = (struct tools_record){.count = 0};
    if (record_path(store, content_hash, path, sizeof(path)))
        record_load(path, content_hash, record);
    if (record_path(NULL, content_hash, path, sizeof(path)))
        record_load(path, content_hash, record);
}

static void sources_print(FILE *out, const struct tools_sources *sources)
{
    fputs("source: ", out);
    efs_print_escaped(out, sources->path);
    fputc('\n', out);
    for (size_t i = 0; i < sources->count; i++) {
        const struct tools_source_file *file = &sources->files[i];
        fprintf(out, "%" PRIu64 " %" PRId64 ".%09ld %" PRId64 ".%09ld %" PRIu64 " ", file->bytes,
                (int64_t)file->modified.tv_sec, file->modified.tv_nsec, (int64_t)file->changed.tv_sec,
                file->changed.tv_nsec, file->inode);
        efs_print_escaped(out, file->path);
        fputc('\n', out);
    }
}

errint_t tools_record_add(const char *store, uint64_t content_hash, const struct tools_sources *sources,
                          struct efs_error *err)
{
    char path[4400], *text = NULL;
    size_t bytes;
    struct tools_record old = {.count = 0};
    if (!record_path(store, content_hash, path, sizeof(path)))
        return efs_fail(err, -ENOENT, "no path for the record of sources");
    record_load(path, content_hash, &old);
    FILE *out = open_memstream(&text, &bytes);
    if (out) {
        fprintf(out, "store: %016" PRIx64 "\n", content_hash);
        sources_print(out, sources);
    }
    for (size_t i = 0; out && i < old.count; i++) {
        struct tools_sources now = {.count = 0};
        struct efs_error ignored;
        if (strcmp(old.sources[i].path, sources->path) != 0 &&
            tools_sources_list(old.sources[i].path, &now, &ignored) == 0 &&
            tools_sources_are_equal(&old.sources[i], &now))
            sources_print(out, &old.sources[i]);
        tools_sources_free(&now);
    }
    tools_record_free(&old);
    errint_t rc =
        out && fclose(out) == 0 ? efs_state_save(path, text, bytes, err) : efs_fail(err, -ENOMEM, "no memory");
    free(text);
    return rc;
}
