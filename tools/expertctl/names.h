/* SPDX-License-Identifier: Apache-2.0 */
/* names.h - stores and models by their names. */
#ifndef EXPERTCTL_NAMES_H
#define EXPERTCTL_NAMES_H

#include "expertfs.h"

/* The path of the store in folder with this name, which may have the checksum: NAME or NAME@CHECKSUM, or of the name on
 * the Hub, ORG/NAME. current: leave out stores of a checkpoint that has changed. -ENOENT: none; -E2BIG: several, which
 * err lists. */
errint_t ctl_store_by_name(const char *folder, const char *name, bool current, char *path, size_t room,
                           struct efs_error *err);
/* The path for a verb that takes a store or a checkpoint: `given` if it exists; else the store with that name in the
 * default folder, the model that the mount of that name serves, or the model on the Hub in the local cache. -ENOENT:
 * none; -E2BIG: several. */
errint_t ctl_name_find(const char *given, char *path, size_t room, struct efs_error *err);
/* Finds and opens such a store: ctl_store_open(). */
errint_t ctl_name_open(const char *given, char *path, size_t room, struct efs_store **store, struct efs_error *err);
/* The name, with the checksum, of a store in the default folder that was packed from the checkpoint at path: one that
 * is not stale if there is one. false: none. */
bool ctl_store_of_checkpoint(const char *path, char *name, size_t room);

#endif
