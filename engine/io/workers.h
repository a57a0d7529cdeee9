/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h - the decode pool: L threads that take jobs in order. A job must not block on another job.
 */
#ifndef EFS_WORKERS_H
#define EFS_WORKERS_H

#include "codec.h"
#include "expertfs.h"

#define EFS_WORKERS_MAX 256

struct efs_job {
    struct efs_job *next;
    void (*run)(struct efs_job *job, struct efs_codec_scratch *scratch); /* may free the job */
};

struct efs_workers;
errint_t efs_workers_start(unsigned count, uint32_t shard_elements, struct efs_workers **workers);
/* Runs what is queued, then joins the threads. NULL is fine. */
void efs_workers_stop(struct efs_workers *workers);
void efs_workers_push(struct efs_workers *workers, struct efs_job *job); /* never fails; any thread */
/* The same, for a short one that others wait for: before all others. */
void efs_workers_push_first(struct efs_workers *workers, struct efs_job *job);
/* The same, for a job that can wait until there is no other. */
void efs_workers_push_low(struct efs_workers *workers, struct efs_job *job);

#endif
