/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h - the decode pool: threads that run jobs in order. A job must not wait for another job.
 */
#ifndef EFS_WORKERS_H
#define EFS_WORKERS_H

#include "codec.h"
#include "expertfs.h"

#define EFS_WORKERS_MAX 256

struct efs_job {
    struct efs_job *next;
    void (*run)(struct efs_job *job, struct efs_codec_scratch *scratch); /* may free job */
};

struct efs_workers;
errint_t efs_workers_start(unsigned count, uint32_t shard_elements, struct efs_workers **workers);
/* Runs all queued jobs, then joins the threads. NULL is allowed. */
void efs_workers_stop(struct efs_workers *workers);
void efs_workers_push(struct efs_workers *workers, struct efs_job *job); /* cannot fail; any thread */
/* Queues a short job on which other threads wait, before all queued jobs. */
void efs_workers_push_first(struct efs_workers *workers, struct efs_job *job);
/* Queues a job that runs only when no other job is queued. */
void efs_workers_push_low(struct efs_workers *workers, struct efs_job *job);

#endif
