/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rados_write.h - writes and deletes objects in a pool of Ceph: parts of a store, its head, and the mark NAME.part. All
 * calls block; an int is 0 or a negative error of librados.
 */
#ifndef EFS_RADOS_WRITE_H
#define EFS_RADOS_WRITE_H

#include "rados.h"

#define EFS_RADOS_MARK_BYTES (EFS_RADOS_NAME_BYTES + 8u) /* of NAME.part, with the final 0 */

/* Writes an object as a whole: over this version, or 0: a new one. full: EFS_RADOS_FULL_*. */
int efs_rados_write_object(const struct efs_rados *rados, const char *name, uint64_t version, const void *data,
                           size_t bytes, int full);
/* Whether that failed because there is another object, or version. */
bool efs_rados_is_changed(int rc);
/* Writes the head as efs_rados_write_object() does. */
int efs_rados_write_head(const struct efs_rados *rados, const struct efs_rados_head *head, uint64_t version);
/* Sets the mark's name. -EINVAL: the store has that of a mark. */
errint_t efs_rados_mark_name(const struct efs_rados *rados, char name[EFS_RADOS_MARK_BYTES], struct efs_error *err);
/* Writes the mark of this head. replaced: NULL, or with an empty ID, if it replaces no store. -EEXIST: there is one. */
int efs_rados_write_mark(const struct efs_rados *rados, const char *mark, const struct efs_rados_head *head,
                         const struct efs_rados_head *replaced, int full);
int efs_rados_remove_object(const struct efs_rados *rados, const char *name);
/* Deletes the objects [0, end) of an ID; objects that are missing are no error. */
int efs_rados_remove_objects(const struct efs_rados *rados, const char *id, uint64_t end);
/* Deletes all objects of a store but its head. */
int efs_rados_remove_store(const struct efs_rados *rados, const struct efs_rados_head *head);
/* Makes the message for an error of librados. */
errint_t efs_rados_fail(const struct efs_rados *rados, int rc, struct efs_error *err);
/* The same if there is an object of the mark's name. */
errint_t efs_rados_fail_marked(struct efs_rados *rados, const char *mark, struct efs_error *err);

#endif
