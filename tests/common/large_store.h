/* SPDX-License-Identifier: Apache-2.0 */
/*
 * large_store.h - a store of any size that takes little disk: few experts are coded, all the others name their chunks.
 *
 * Several shards may have the same chunk (expertfs-store(5)): each names its own by offset. The experts that are there
 * lie evenly spread over a file of the size that the store would have, with holes between them, so that offsets are as
 * large as in the real thing. The checkpoint is of Qwen3-MoE's names: three BF16 matrices an expert, a router and two
 * norms a layer, config.json.
 */
#ifndef EFS_LARGE_STORE_H
#define EFS_LARGE_STORE_H

#include "expertfs.h"

struct large_store {
    uint32_t layers, experts; /* experts a layer */
    uint32_t hidden, inner;   /* the matrices are inner x hidden twice, and hidden x inner */
    uint32_t distinct;        /* experts that are coded; expert n of all has the bytes of number n % distinct */
    uint64_t file_bytes;      /* tensors in one file of the checkpoint, at most (but one tensor at least) */
    uint64_t spread_bytes;    /* the experts' chunks are spread over so many; 0: what they would take without sharing */
};

/* Write it as path, which is replaced. Blocks; one thread. 0 or -errno with the reason. */
errint_t large_store_write(const char *path, const struct large_store *store, struct efs_error *err);

/* Bytes of one of the three matrices of an expert. */
uint64_t large_store_matrix_bytes(const struct large_store *store);
/* The bytes of matrix (0 gate, 1 up, 2 down) of an expert into out: what any reader must get. */
void large_store_matrix(const struct large_store *store, uint32_t layer, uint32_t expert, uint32_t matrix, void *out);

#endif
