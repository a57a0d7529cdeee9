/* SPDX-License-Identifier: Apache-2.0 */
/*
 * large_store.h - a store of any logical size that takes little disk space: a few experts are coded, and the shards of
 * the remaining ones share their chunks.
 *
 * Several shards may have the same chunk (expertfs-store(5)): each refers to it by offset. The coded experts are spread
 * evenly over a file of the size that the full store would have, with holes between them, so that offsets are as large
 * as in a real store. The checkpoint has the names of Qwen3-MoE: three BF16 matrices per expert, a router and two norms
 * per layer, and config.json.
 */
#ifndef EFS_LARGE_STORE_H
#define EFS_LARGE_STORE_H

#include "expertfs.h"

struct large_store {
    uint32_t layers, experts; /* experts: per layer */
    uint32_t hidden, inner;   /* gate and up are inner x hidden, down is hidden x inner */
    uint32_t distinct;        /* number of coded experts; expert n of the store has the bytes of expert n % distinct */
    uint64_t file_bytes;      /* maximum bytes of tensors in one file; a larger tensor has a file to itself */
    uint64_t spread_bytes;    /* range that the experts' chunks are spread over; 0: their size without sharing */
};

/* Write the store to path and replace an existing file. Blocks; single-threaded. 0 or -errno with the reason in err. */
errint_t large_store_write(const char *path, const struct large_store *store, struct efs_error *err);

/* Bytes of one of the three matrices of an expert. */
uint64_t large_store_matrix_bytes(const struct large_store *store);
/* Write the expected bytes of an expert's matrix (0 gate, 1 up, 2 down) to out. */
void large_store_matrix(const struct large_store *store, uint32_t layer, uint32_t expert, uint32_t matrix, void *out);

#endif
