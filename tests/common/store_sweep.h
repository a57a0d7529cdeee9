/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_sweep.h - damaged and forged stores, case by case. Each case changes a copy of a good store and opens it, reads
 * it whole and in ranges, leases experts, requests them coded and decoded, computes with them, and compares the results
 * with those of the good store.
 *
 * Damage (checksums unchanged): the store is refused, or each access returns an error or the right bytes. Forged chunks
 * (raw_hash unchanged): efs_store_verify() reports every chunk that decodes to other bytes. Forged indexes can refer to
 * other bytes, which nothing in a store can detect: these cases are counted separately and must only do no harm. A case
 * that exceeds 60 seconds ends the test with its name.
 */
#ifndef EFS_STORE_SWEEP_H
#define EFS_STORE_SWEEP_H

#include "fixture.h"
#include "layout.h"
#include "expertfs-pack.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SWEEP_INNER 272 /* two spans per tensor: SWEEP_INNER * SWEEP_HIDDEN > EFS_SPAN */
#define SWEEP_HIDDEN 128
#define SWEEP_SEED 7 /* seed of the good store's weights */
/* Only every SWEEP_STRIDE-th case runs. Odd, because the cases of a field alternate between unchanged and recomputed
 * checksums. */
#if defined(__SANITIZE_THREAD__)
#define SWEEP_STRIDE 23 /* the checks of fields do not depend on threads */
#elif defined(__SANITIZE_ADDRESS__)
#define SWEEP_STRIDE 3
#else
#define SWEEP_STRIDE 1
#endif

enum sweep_outcome { REFUSED, ERROR, RIGHT, FORGED, OUTCOMES };

struct store_sweep {
    struct fixture model;
    unsigned char *image, *copy;   /* the good store and a changed copy */
    size_t image_bytes;            /* of image and of copy */
    struct efs_disk_superblock sb; /* superblock of image */
    char case_name[200];           /* current case, for messages */
    bool full_tier;                /* EXPERTFS_SWEEP=full */
    unsigned slice, slices;        /* EXPERTFS_SLICE=SLICE/SLICES: run every SLICES-th case, from SLICE (0) on */
    uint64_t seed;                 /* SEED, or 1 */
};
extern struct store_sweep sweep;

/* Setup and teardown of a group; the teardown prints the number of stores tried. */
int sweep_setup(void **state);
int sweep_teardown(void **state);
/* Write the checkpoint with weights from this seed, for the next sweep_pack(). */
void sweep_write_sources(unsigned weights_seed);
/* Pack the checkpoint; the result is the good store from then on. */
void sweep_pack(enum efs_codec_choice codec, uint32_t shard_elements);
struct efs_disk_shard *sweep_shard(unsigned char *store, uint32_t i);
void sweep_write(const char *path, const unsigned char *data, size_t bytes);
/* Counts a case. true: the case belongs to the slice that runs. */
bool sweep_in_slice(void);
/* Write the first `bytes` of the copy as a store and read it. strict: wrong bytes are a failure, even if forged. */
enum sweep_outcome sweep_try(size_t bytes, bool forged, bool strict);
/* Result of efs_store_verify() for the store that was tried last. */
errint_t sweep_verify(void);

#endif
