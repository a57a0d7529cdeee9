/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ahead.h - experts that are named ahead (efs_hint()), to be brought to pool G before they are asked for.
 *
 * A name stands until its layer is asked for, its sequence ends, or others take its place. What was brought ahead is
 * *used* when it is asked for, *late* when that happens while it is on its way, and else *wasted*. Names are judged
 * also where nothing is brought for them: while more are wrong than right nothing is begun.
 *
 * Not the queue of sched/prefetch/: that wants to know how many layers and experts there are, and one position that
 * rises for all; and its governor weighs reads of a disk. Bookkeeping alone; the device's lock guards it.
 */
#ifndef EFS_GPU_AHEAD_H
#define EFS_GPU_AHEAD_H

#include "vram.h"

#define EFS_AHEAD_NAMES 512u
#define EFS_AHEAD_JUDGED 256u /* names; then both counts are halved */
#define EFS_AHEAD_TRIED 16u   /* so many are judged before they can be found wrong */

struct efs_ahead_name {
    struct efs_expert_key key;
    uint32_t sequence;
    bool missing; /* it was not in pool G when it was named: it is judged */
    bool begun;
};

struct efs_ahead {
    uint32_t count, next; /* next: to be looked at; those before it have been */
    uint32_t right, wrong;
    struct efs_ahead_name name[EFS_AHEAD_NAMES]; /* oldest first */
};

/* A sequence's layer will choose these: in place of what it named for it before. Those that are less likely than not
 * are left out. count 0: the sequence is over. */
void efs_ahead_hint(struct efs_ahead *ahead, struct efs_vram *vram, const struct efs_routing *routing);
/* A layer asks for experts: its names are over. Those that it asks for and that were brought ahead are not so any more
 * (efs_vram_use_ahead()). */
void efs_ahead_asked(struct efs_ahead *ahead, struct efs_vram *vram, const char *stack, uint32_t layer,
                     const struct efs_need *needs, uint32_t count);
/* The next that is worth to be brought; NULL: none. It is not looked at again until efs_ahead_again(). */
struct efs_ahead_name *efs_ahead_next(struct efs_ahead *ahead, const struct efs_vram *vram);
void efs_ahead_again(struct efs_ahead *ahead);
struct efs_ahead_name *efs_ahead_find(struct efs_ahead *ahead, const struct efs_expert_key *key);

#endif
