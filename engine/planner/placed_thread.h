/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placed_thread.h - the thread efs-placement looks once a second at a placement, in a file or a pool of Ceph, and saves
 * this server's counts. A folder on a network may answer no call for ever, and calls of librados block for their
 * timeouts, so that the plan thread cannot make them.
 */
#ifndef EFS_PLACED_THREAD_H
#define EFS_PLACED_THREAD_H

#include "efs.h"

struct efs_placed_thread;
struct efs_placed_calls {
    void (*take)(struct efs *fs, const char *text, size_t bytes); /* another placement */
    void (*refuse)(struct efs *fs, const char *why); /* there is none, or no answer; once for each reason */
};
/* Starts the thread, which makes these calls without efs.lock. Waits for up to 5 s until the thread has opened the
 * folder of a file; a pool is connected in the background. 0 or -errno with err. */
errint_t efs_placed_thread_start(struct efs *fs, const char *placement, const char *server,
                                 const struct efs_placed_calls *calls, struct efs_placed_thread **thread,
                                 struct efs_error *err);
/* Has these counts written in place of what is still to be written, to the pool or to the state directory; frees data
 * later. */
void efs_placed_thread_count(struct efs_placed_thread *thread, void *data, size_t bytes);
/* Writes the last counts, and ends: after at most the timeouts of librados; a folder that does not answer is left to
 * the thread, which frees its memory when it does. */
void efs_placed_thread_stop(struct efs_placed_thread *thread);
void efs_placed_thread_close_in_child(struct efs_placed_thread *thread);

#endif
