/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sweep_read.h - which shards a sweep takes next, and the large reads that bring their chunks; private to sweep*.c.
 */
#ifndef EFS_SWEEP_READ_H
#define EFS_SWEEP_READ_H

#include "sweep.h"

/* The next shard; groups in the order in which they lie on disk. */
struct efs_sweep_cursor {
    uint32_t *sorted; /* owned; NULL: order is the caller's */
    struct efs_sweep_part part;
};
/* part NULL: all of the store. -ENOMEM. */
errint_t efs_sweep_cursor_init(const struct efs_store *store, const struct efs_sweep_part *part,
                               struct efs_sweep_cursor *cursor);
void efs_sweep_cursor_free(struct efs_sweep_cursor *cursor);

/* A part of the store, [begin, end), padding included; empty: begin == end. */
struct efs_sweep_window {
    uint64_t begin, end;
};

#define EFS_SWEEP_SHARDS 256
struct efs_sweep_batch {
    /* All E-chunks lie in one window and all SM-chunks in the other; one window (sm empty) when they are close. */
    struct efs_sweep_window e, sm;
    uint32_t count;
    struct {
        uint32_t object, shard;
    } shards[EFS_SWEEP_SHARDS];
};

/* Bytes that a batch of this shard alone takes in the buffer at most. */
size_t efs_sweep_room(const struct efs_disk_shard *shard);
/* Take shards from the cursor whose windows fit buffer_bytes together. false: none is left. */
bool efs_sweep_take(const struct efs_store *store, struct efs_sweep_cursor *cursor, size_t buffer_bytes,
                    struct efs_sweep_batch *batch);
/* Read the windows into buffer. false: something could not be read; read each shard again by itself. */
bool efs_sweep_read(const struct efs_store *store, const struct efs_sweep_batch *batch, uint8_t *buffer);
/* Describe the batch's shard i, its chunks in buffer. */
void efs_sweep_shard_at(const struct efs_store *store, const struct efs_sweep_batch *batch, uint32_t i, uint8_t *buffer,
                        struct efs_sweep_shard *shard);
/* Read the shard's own chunks and set their errors. */
void efs_sweep_read_again(const struct efs_store *store, struct efs_sweep_shard *shard);

#endif
