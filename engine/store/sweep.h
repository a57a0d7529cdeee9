/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sweep.h - every shard of a store once, in the order of the disk, by several threads: what verifying and unpacking do.
 */
#ifndef EFS_SWEEP_H
#define EFS_SWEEP_H

#include "codec.h"
#include "store.h"

/* One shard with its chunks in memory. */
struct efs_sweep_shard {
    uint32_t object, shard;
    uint64_t object_offset; /* of its first raw byte in the object */
    size_t raw_bytes;
    struct efs_shard_view view;
    errint_t e_error, sm_error; /* the chunk could not be read: its bytes in view are undefined */
};

/*
 * Called once a shard, by any of the threads, several at a time. raw, other: memory of the thread, each for raw_bytes
 * bytes, aligned to EFS_ALIGN, with room to round up to it and one EFS_ALIGN more. The padding behind each chunk, up to
 * EFS_CHUNK_ALIGN, was read too. Non-zero ends the sweep with that error, text in err.
 */
typedef errint_t efs_sweep_fn(void *arg, const struct efs_sweep_shard *shard, struct efs_codec_scratch *scratch,
                              uint8_t *raw, uint8_t *other, struct efs_error *err);

/* A part of a store that is being written: groups in the order of the disk, from one shard up to another. */
struct efs_sweep_part {
    const uint32_t *order; /* [group_count] */
    uint32_t at, object, shard;
    uint32_t end_at, end_shard; /* end_at group_count: up to the end */
};

struct efs_sweep {
    const struct efs_store *store;
    const struct efs_sweep_part *part; /* NULL: all of it */
    efs_sweep_fn *each;
    void *arg;
    unsigned threads;          /* 0: all cores */
    efs_progress_fn *progress; /* called from the caller's thread; may be NULL */
    void *progress_arg;
    const char *phase;
};

/* Blocks until all shards were seen, one failed or progress cancelled (-ECANCELED). -ENOMEM. Holds 192 MiB at most. */
errint_t efs_sweep_run(const struct efs_sweep *sweep, struct efs_error *err);

#endif
