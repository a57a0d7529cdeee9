/* SPDX-License-Identifier: Apache-2.0 */
/* source_files.h - the files of a checkpoint, with what identifies each without reading it. */
#ifndef EXPERTCTL_SOURCE_FILES_H
#define EXPERTCTL_SOURCE_FILES_H

#include "expertfs.h"

#include <time.h>

/* The files of a checkpoint, in path order; each is identified by all of its fields. */
struct ctl_source_file {
    char *path; /* relative to the checkpoint; of a checkpoint of one file, its name */
    uint64_t bytes, inode;
    struct timespec modified, changed; /* st_mtim, st_ctim */
};
struct ctl_sources {
    char *path; /* absolute, of the directory or the file */
    struct ctl_source_file *files;
    size_t count;
};

/* Those of a catalogue of the checkpoint at path. -ESTALE: a file was removed. */
struct efs_catalog;
errint_t ctl_sources_take(const struct efs_catalog *catalog, const char *path, struct ctl_sources *sources,
                          struct efs_error *err);
/* The files of a checkpoint; reads no file. The caller frees it with ctl_sources_free(). -errno of the walk. */
errint_t ctl_sources_list(const char *path, struct ctl_sources *sources, struct efs_error *err);
void ctl_sources_free(struct ctl_sources *sources);
/* A checksum of all fields but the path of the checkpoint. */
uint64_t ctl_sources_key(const struct ctl_sources *sources);
/* Whether all fields but the paths of the checkpoints are equal. */
bool ctl_sources_are_equal(const struct ctl_sources *a, const struct ctl_sources *b);

#endif
