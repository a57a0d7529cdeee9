/* SPDX-License-Identifier: Apache-2.0 */
/*
 * idle.h - a thread for work on which no thread waits: of the class SCHED_IDLE, and paused while threads wait for a
 * processor (base/cores.h).
 *
 * It may lose its processor at any instruction, for seconds. So it takes no lock that other threads take, and its jobs
 * use only memory that no other thread needs meanwhile: workers prepare a job, and take its result after
 * efs_io_wake().
 */
#ifndef EFS_IDLE_H
#define EFS_IDLE_H

#include "workers.h"

struct efs_idle;
/* 0 or -errno. */
errint_t efs_idle_start(struct efs_idle **idle);
/* Joins the thread, at the end of its job; a job that has not begun, or is pushed later, is dropped. NULL is allowed.
 */
void efs_idle_stop(struct efs_idle *idle);
/* After efs_idle_stop(), when no thread can push any more. NULL is allowed. */
void efs_idle_free(struct efs_idle *idle);
void efs_idle_close_in_child(struct efs_idle *idle); /* closes its descriptor in a forked process; NULL is allowed */
/* Has the thread run a job, without scratch. One at a time: the last one has ended. */
void efs_idle_push(struct efs_idle *idle, struct efs_job *job);

#endif
