/* SPDX-License-Identifier: Apache-2.0 */
/* gather.h - fills memory files with whole checkpoint files (cache/whole.h). */
#ifndef EFS_GATHER_H
#define EFS_GATHER_H

#include "whole.h"

/* EFS_RETRY_IDLE: plans the pools for the files in memory; begins to gather the next one, or goes on, if no reader
 * waits for the disk or for memory. With efs.lock held. */
void efs_gather_run(struct efs *fs);
/* efs_read() of a file that is in memory up to the end of these bytes. false: it is not. Without lock. */
bool efs_gather_read(struct efs *fs, uint32_t file, uint64_t offset, void *dst, size_t len, efs_done_fn *done,
                     void *arg);

#endif
