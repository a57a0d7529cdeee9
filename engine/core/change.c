/* SPDX-License-Identifier: Apache-2.0 */
/* change.c - see deferred.h: the retries after a change. */
#include "efs.h"

#define BUDGET (1u << EFS_RETRY_BUDGET)
#define ADMIT (1u << EFS_RETRY_ADMIT)
#define EXTENTS (1u << EFS_RETRY_EXTENTS)
#define SEGMENTS (1u << EFS_RETRY_SEGMENTS)
#define IDLE (1u << EFS_RETRY_IDLE)

/* References end with each read: they admit requests only if these wait for loads and decodes in flight. */
static const unsigned retried[EFS_CHANGES] = {[EFS_CHANGED_BLOCKS] = SEGMENTS,
                                              [EFS_CHANGED_REFS] = EXTENTS | SEGMENTS | IDLE,
                                              [EFS_CHANGED_LOADS] = ADMIT | EXTENTS | SEGMENTS | IDLE,
                                              [EFS_CHANGED_PINS] = BUDGET | ADMIT | EXTENTS,
                                              [EFS_CHANGED_BYTES] = BUDGET | ADMIT | EXTENTS | SEGMENTS | IDLE,
                                              [EFS_CHANGED_READING] = BUDGET,
                                              [EFS_CHANGED_LIMITS] = BUDGET | ADMIT | EXTENTS | IDLE,
                                              [EFS_CHANGED_QUEUE] = ADMIT | EXTENTS,
                                              [EFS_CHANGED_CLOSING] = BUDGET | ADMIT | EXTENTS};

void efs_changed(struct efs *fs, enum efs_change what)
{
    fs->deferred.retries |= retried[what] | (what == EFS_CHANGED_REFS && fs->admission_starved ? ADMIT : 0);
}

void efs_changes_undo(struct efs *fs, unsigned before)
{
    fs->deferred.retries &= before | ~ADMIT;
}
