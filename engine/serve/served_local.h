/* SPDX-License-Identifier: Apache-2.0 */
/* served_local.h - opens the local copy of a served store. */
#ifndef EFS_SERVED_LOCAL_H
#define EFS_SERVED_LOCAL_H

#include "efs.h"

/* Memory that it takes, also if it cannot be opened; 0: options.local is NULL. */
uint64_t efs_served_local_bytes(const struct efs *fs);
/* Opens it, before the I/O thread; fs->local stays NULL, with a warning, if that fails. */
void efs_served_local_open(struct efs *fs);
/* Starts its thread, after all rooms are built: the thread asks for the worth of experts. */
void efs_served_local_start(struct efs *fs);

/* Why there is no local copy, or why it gets no more: a line; "": nothing is wrong, or none is wanted. */
void efs_served_local_fault(struct efs *fs, char *line, size_t room);
/* The text "local" of efs_describe(), a line of .expertfs/config. */
errint_t efs_served_local_describe(struct efs *fs, char **text, size_t *bytes);

#endif
