/* SPDX-License-Identifier: Apache-2.0 */
/*
 * behind.h - bytes that are written behind their writer's back: it copies them into a ring of memory and goes on, a
 * thread takes them to the disk in large pieces.
 *
 * One thread at a time calls these. Which writes are made does not depend on time: pieces end where they would always.
 */
#ifndef EFS_BEHIND_H
#define EFS_BEHIND_H

#include "expertfs.h"

#include <stddef.h>
#include <stdint.h>

#define EFS_BEHIND_BYTES (32u << 20) /* of memory, as far as it is used */
#define EFS_BEHIND_PIECE (8u << 20)  /* of one write, at most */

struct efs_behind;
/* Write bytes bytes, whole pages from memory that is aligned to one, at the file's offset at. By the thread. */
typedef errint_t efs_behind_write(void *arg, const uint8_t *data, size_t bytes, uint64_t at, struct efs_error *err);

/*
 * What is put first is for the file's offset begin. Its page may have bytes before it: efs_behind_page() is where they
 * belong. write is called with arg by no more than one thread at a time. -ENOMEM. Without a thread to be had, writes
 * are made by who puts.
 */
errint_t efs_behind_start(uint64_t begin, efs_behind_write *write, void *arg, struct efs_behind **behind);
/* Copy bytes bytes, zeros where data is NULL; waits for room. An error of an earlier write. */
errint_t efs_behind_put(struct efs_behind *behind, const uint8_t *data, size_t bytes, struct efs_error *err);
/* Wait until all whole pages of what was put are written; no write is under way then. */
errint_t efs_behind_flush(struct efs_behind *behind, struct efs_error *err);
/* After a start or a flush: the memory of the page that is filled next, EFS_ALIGN bytes, those behind free to use. */
uint8_t *efs_behind_page(struct efs_behind *behind);
/* After a flush that left no part of a page: what is put next is for the file's offset begin, a page. */
void efs_behind_move(struct efs_behind *behind, uint64_t begin);
/* What was not written is forgotten. NULL is fine. */
void efs_behind_stop(struct efs_behind *behind);

#endif
