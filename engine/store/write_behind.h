/* SPDX-License-Identifier: Apache-2.0 */
/*
 * write_behind.h - write-behind: the producer copies bytes into a ring buffer and continues; a thread writes them to
 * the disk in large pieces.
 *
 * Only one thread at a time may call these functions. The sequence of writes does not depend on timing: pieces end at
 * fixed offsets.
 */
#ifndef EFS_WRITE_BEHIND_H
#define EFS_WRITE_BEHIND_H

#include "expertfs.h"

#include <stddef.h>
#include <stdint.h>

#define EFS_WRITE_BEHIND_BYTES (32u << 20) /* size of the ring; pages are allocated on first use */
#define EFS_WRITE_BEHIND_PIECE (8u << 20)  /* limit of one write */

struct efs_write_behind;
/* Writes `bytes` bytes (whole pages, from page-aligned memory) at file offset `at`. Called on the write-behind
 * thread, if it could be started. */
typedef errint_t efs_write_behind_fn(void *arg, const uint8_t *data, size_t bytes, uint64_t at, struct efs_error *err);

/*
 * The first byte appended is for file offset `begin`. If begin is inside a page, the caller stores the page's earlier
 * bytes in efs_write_behind_page(). write(arg) is called by one thread at a time; if no thread can be started,
 * efs_write_behind_append() and efs_write_behind_flush() call it. 0 or -ENOMEM.
 */
errint_t efs_write_behind_start(uint64_t begin, efs_write_behind_fn *write, void *arg,
                                struct efs_write_behind **behind);
/* Copies `bytes` bytes into the ring, zeros if data is NULL; blocks while the ring is full. Returns the error of an
 * earlier write, if any. */
errint_t efs_write_behind_append(struct efs_write_behind *behind, const uint8_t *data, size_t bytes,
                                 struct efs_error *err);
/* Blocks until all whole pages in the ring are written; no write is in flight then. Returns the error of an earlier
 * write, if any. */
errint_t efs_write_behind_flush(struct efs_write_behind *behind, struct efs_error *err);
/* After a start or a flush: the page in the ring that is filled next (EFS_ALIGN bytes). Its bytes after the
 * last one appended are scratch space for the caller. */
uint8_t *efs_write_behind_page(struct efs_write_behind *behind);
/* After a flush that left no partial page: the next byte appended is for file offset `begin`, a multiple of EFS_ALIGN.
 */
void efs_write_behind_seek(struct efs_write_behind *behind, uint64_t begin);
/* Discards bytes that are not written yet and frees it. NULL is allowed. */
void efs_write_behind_stop(struct efs_write_behind *behind);

#endif
