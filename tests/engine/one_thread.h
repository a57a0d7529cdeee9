/* SPDX-License-Identifier: Apache-2.0 */
/*
 * one_thread.h - the engine on the thread of the test: jobs of the workers and reads of the I/O thread are lists, and
 * the test chooses which to run or complete next. Bytes are neither read nor decoded. A program that links
 * one_thread.o opens one store at a time; the Makefile replaces the functions (--wrap).
 */
#ifndef EFS_ONE_THREAD_H
#define EFS_ONE_THREAD_H

#include "efs.h"

#define ONE_THREAD_MAX 8192u /* jobs or reads at a time */

struct one_thread {
    uint64_t number; /* of the thread that calls now: efs_thread_number() */
    unsigned job_count, read_count;
    struct efs_job *jobs[ONE_THREAD_MAX]; /* in the order in which they were queued */
    struct efs_io *reads[ONE_THREAD_MAX];
    struct efs_io_options io;
    struct efs_codec_scratch *scratch;
    /* Called in place of reading, of decoding from an extent, of verifying its checksums, and of decoding from a bounce
     * slot; any may be NULL. */
    void (*read)(const struct efs_io *read);
    void (*decode)(struct efs *fs, uint32_t extent, void *dst);
    void (*check)(struct efs *fs, uint32_t extent);
    void (*decode_slot)(struct efs *fs, uint32_t object, const uint8_t *e, const uint8_t *sm, void *dst);
};

/* Set by the test before it opens a store; all zero, or with functions. */
extern struct one_thread *one_thread;

/* Runs a queued job, by its index. */
void one_thread_run(unsigned index);
/* Takes a read off the list and completes it: with -ECANCELED if it was cancelled, else with this error, or 0. The I/O
 * thread calls one_thread->io.completed() after one or several completions. */
void one_thread_complete(unsigned index, errint_t error);

#endif
