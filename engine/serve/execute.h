/*
 * execute.h - experts are brought to memory as one schedule: reads in its order, decodes by whichever worker is free,
 * the first available in its order (ZipMoE 3.3). An expert that is brought is a *fill*.
 */
#ifndef EFS_EXECUTE_H
#define EFS_EXECUTE_H

#include "serve.h"

struct efs_batch;
struct efs_fill;

/* One unit of a fill. */
struct efs_fill_piece {
    struct efs_unit_waiter waiter;
    struct efs_fill *fill;
    struct efs_batch *batch;
    uint64_t file_offset, object_offset; /* where its raw bytes stand in the expert's file, and in the object */
    size_t bytes;
    uint32_t place; /* in the batch */
    uint32_t shards, next_shard, done_shards;
    bool ready;                       /* the unit is here and referenced, or failed */
    uint8_t found;                    /* halves that it had */
    struct efs_disk_request *read[2]; /* E, SM: while the batch is put together */
};

struct efs_fill {
    struct efs *fs;
    uint32_t expert, tokens;
    struct efs_slot *slot; /* to be decoded into; NULL: the chunks are wanted, each unit stays referenced */
    void (*ended)(struct efs_fill *fill); /* from any thread; owns the fill then */
    void *owner;
    _Atomic uint32_t remaining;
    _Atomic errint_t error;
    _Atomic bool from_disk;
    uint32_t piece_count;
    struct efs_fill_piece pieces[];
};

/* Not begun yet; to be freed with free(). NULL: no memory. */
struct efs_fill *efs_fill_new(struct efs *fs, uint32_t expert);
/* Begin all of these (no lock held); each ends once. */
void efs_execute(struct efs *fs, struct efs_fill **fills, uint32_t count);
/* Give back the units of a fill without slot that ended well. */
void efs_fill_unref(struct efs_fill *fill);

#endif
