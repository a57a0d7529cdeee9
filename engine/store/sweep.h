/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sweep.h - reads every shard of a store once, in disk order, with several threads; used by verifying and unpacking.
 */
#ifndef EFS_SWEEP_H
#define EFS_SWEEP_H

#include "codec.h"
#include "store.h"
#include "expertfs-pack.h"

/* One shard with its chunks in memory. */
struct efs_sweep_shard {
    uint32_t object, shard;
    uint64_t object_offset; /* offset of its first raw byte in the object */
    size_t raw_bytes;
    struct efs_shard_view view;
    errint_t e_error, sm_error; /* read error: the chunk's bytes in view are undefined */
};

/*
 * Called once per shard, on any of the threads, concurrently. raw, other: buffers of the thread, aligned to EFS_ALIGN,
 * each of raw_bytes rounded up to EFS_ALIGN plus another EFS_ALIGN bytes. The padding after each chunk, up to
 * EFS_CHUNK_ALIGN, is in memory, too. A negative return ends the sweep with that error, message in err.
 */
typedef errint_t efs_sweep_fn(void *arg, const struct efs_sweep_shard *shard, struct efs_codec_scratch *scratch,
                              uint8_t *raw, uint8_t *other, struct efs_error *err);

/* A part of an incomplete store: groups in disk order, from one shard to another. */
struct efs_sweep_part {
    const uint32_t *order;      /* [group_count]: groups in disk order */
    uint32_t at, object, shard; /* the first shard; at: index into order of its group */
    uint32_t end_at, end_shard; /* end (exclusive); end_at == group_count: all remaining groups */
};

struct efs_sweep {
    const struct efs_store *store;
    const struct efs_sweep_part *part; /* NULL: the whole store */
    efs_sweep_fn *each;
    void *arg;
    unsigned threads;          /* 0: all cores */
    efs_progress_fn *progress; /* called on the caller's thread; may be NULL */
    void *progress_arg;
    const char *phase;
};

/* Blocks until all shards are processed, a callback fails, or progress() cancels (-ECANCELED). -ENOMEM. Uses at most
 * 192 MiB, or what one thread needs for the largest shard. */
errint_t efs_sweep_run(const struct efs_sweep *sweep, struct efs_error *err);

#endif
