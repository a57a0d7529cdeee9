/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sources.h - the files of a checkpoint, and the record of the checkpoints that a store was packed from.
 *
 * A store has names, sizes and checksums of all its bytes, but neither the path of the checkpoint nor the times of its
 * files. These are kept next to it (STORE.sources, by `expertctl up`) and in the state directory (sources-HASH.txt, by
 * mkexpertfs), so that an unchanged checkpoint is found again without reading it. The record is a text:
 *
 *   store: CONTENT-HASH
 *   source: PATH
 *   BYTES MODIFIED CHANGED INODE NAME      a line for each file; times are SECONDS.NANOSECONDS
 *
 * with as many sources as are known. Line ends in paths are written \n, backslashes and quotes after a backslash. A
 * record of another content hash is of a store that was replaced, and is ignored.
 */
#ifndef TOOLS_SOURCES_H
#define TOOLS_SOURCES_H

#include "expertfs.h"

#include <time.h>

#define TOOLS_SOURCES_END ".sources" /* appended to the path of the store */

/* The files of a checkpoint, in path order; each is identified by all of its fields. */
struct tools_source_file {
    char *path; /* relative to the checkpoint; of a checkpoint of one file, its name */
    uint64_t bytes, inode;
    struct timespec modified, changed; /* st_mtim, st_ctim */
};
struct tools_sources {
    char *path; /* absolute, of the directory or the file */
    struct tools_source_file *files;
    size_t count;
};

/* Those of a catalogue of the checkpoint at path. -ESTALE: a file was removed. */
struct efs_catalog;
errint_t tools_sources_take(const struct efs_catalog *catalog, const char *path, struct tools_sources *sources,
                            struct efs_error *err);
/* The files of a checkpoint; reads no file. The caller frees it with tools_sources_free(). -errno of the walk. */
errint_t tools_sources_list(const char *path, struct tools_sources *sources, struct efs_error *err);
void tools_sources_free(struct tools_sources *sources);
/* A checksum of all fields but the path of the checkpoint. */
uint64_t tools_sources_key(const struct tools_sources *sources);
/* Whether all fields but the paths of the checkpoints are equal. */
bool tools_sources_are_equal(const struct tools_sources *a, const struct tools_sources *b);

struct tools_record {
    struct tools_sources *sources;
    size_t count;
};
/* The sources of the store at this path with this content hash, those next to it first; none, if nothing is known. The
 * caller frees them with tools_record_free(). */
void tools_record_read(const char *store, uint64_t content_hash, struct tools_record *record);
void tools_record_free(struct tools_record *record);
/* Adds a checkpoint to the record next to the store, or with store NULL to the one in the state directory: before the
 * sources there whose files still are what they were. -errno. */
errint_t tools_record_add(const char *store, uint64_t content_hash, const struct tools_sources *sources,
                          struct efs_error *err);

#endif
