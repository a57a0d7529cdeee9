/*
 * workers.h - the decode pool: L threads that take tasks in order. A task must not block on another task.
 */
#ifndef EFS_WORKERS_H
#define EFS_WORKERS_H

#include "codec.h"
#include "libexpertfs.h"

#define EFS_WORKERS_MAX 256
#define EFS_STACK_BYTES (512u << 10) /* of every thread of the engine */

struct efs_task {
    struct efs_task *next;
    void (*run)(struct efs_task *task, struct efs_codec_scratch *scratch); /* may free the task */
};

struct efs_workers;
errint_t efs_workers_start(unsigned count, uint32_t shard_elements, struct efs_workers **workers);
/* Runs what is queued, then joins the threads. NULL is fine. */
void efs_workers_stop(struct efs_workers *workers);
void efs_workers_push(struct efs_workers *workers, struct efs_task *task); /* never fails; any thread */
/* A thread of the engine: small stack, signals blocked. 0 or -errno. */
errint_t efs_thread_start(void *(*run)(void *), void *arg, const char *name, unsigned long *thread);

#endif
