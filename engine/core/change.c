/* SPDX-License-Identifier: Apache-2.0 */
/* change.c - see deferred.h: the changes since waiters were retried. */
#include "efs.h"

void efs_changed(struct efs *fs, enum efs_change what)
{
    fs->deferred.changes.any = true;
    fs->deferred.changes.flight |= what == EFS_CHANGED_FLIGHT;
    fs->deferred.changes.admission |=
        what == EFS_CHANGED_GROWN || what == EFS_CHANGED_HELD || what == EFS_CHANGED_QUEUE;
}

struct efs_changes efs_changes(struct efs *fs)
{
    bool changed = efs_account_take_changed(&fs->account) != 0;
    fs->deferred.changes.any |= changed;
    fs->deferred.changes.admission |= changed;
    return fs->deferred.changes;
}

void efs_changes_undo(struct efs *fs, struct efs_changes before)
{
    bool any = efs_changes(fs).any;
    fs->deferred.changes = before;
    fs->deferred.changes.any = any; /* other waiters: a failed attempt may have ended references and demotions */
}
