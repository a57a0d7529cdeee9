/* SPDX-License-Identifier: Apache-2.0 */
/* store_sources.h - which checkpoint a store was packed from, by its record (sources.h). */
#ifndef EXPERTCTL_STORE_SOURCES_H
#define EXPERTCTL_STORE_SOURCES_H

#include "sources.h"

/* The store in folder that was packed from these files, or from files with the same bytes: those are read and
 * compared, which is said on stderr, and recorded. false: none. */
bool ctl_sources_store(const char *folder, const struct tools_sources *sources, char *store, size_t room);
/* Adds a checkpoint to the record next to its store. A failure means that the checkpoint is compared next time; err. */
errint_t ctl_sources_record(const char *store, const struct tools_sources *sources, struct efs_error *err);

enum ctl_source_state {
    CTL_SOURCE_UNKNOWN, /* there is no record */
    CTL_SOURCE_SAME,    /* a recorded checkpoint is unchanged */
    CTL_SOURCE_CHANGED, /* files differ, by size or time, and none is missing */
    CTL_SOURCE_MISSING  /* files are missing: the store may be the only copy */
};
/* The state of the checkpoints of a store, and the path of the one that decides: the first unchanged one, else the
 * first changed one, else the first. */
enum ctl_source_state ctl_sources_state(const char *store, char *path, size_t room);
/* Words for messages, after the path of a checkpoint with CTL_SOURCE_MISSING: all of it, or some files are missing. */
const char *ctl_sources_missing(const char *path);
/* Whether the checkpoint at path has the bytes that were packed into the store: reads it up to the first difference,
 * and records it if so. */
bool ctl_sources_compare(const char *store, const char *path);
/* Whether the bytes of the checkpoint at path, which a record names, are those of the store: by earlier results
 * (efs_same_known()), else by reading them once. 0; -ESTALE: they differ; -EOPNOTSUPP: its file system may change a
 * file without changing its times. */
errint_t ctl_sources_check_bytes(const char *store, const char *path);
/* Whether the checkpoint at path is recorded for the store, unchanged or not. */
bool ctl_sources_has_path(const char *store, const char *path);
/* Whether it is there, and no record of it has the files that it has now. */
bool ctl_sources_has_changed(const char *store, const char *path);
/* As ctl_sources_has_path() for a model in the local cache of the Hub, by its name (hub_name.h). */
bool ctl_sources_is_of(const char *store, const char *given);

#endif
