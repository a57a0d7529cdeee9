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
/* FIRST: a short job on which other threads wait, before all queued jobs. LOW: runs only when no other is queued. */
enum efs_job_order { EFS_JOB_FIRST, EFS_JOB_NORMAL, EFS_JOB_LOW, EFS_JOB_ORDERS };
/* Cannot fail; any thread. */
void efs_workers_push(struct efs_workers *workers, struct efs_job *job, enum efs_job_order order);

#endif
