/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_sweep.h - damaged and forged stores, case by case: each is a changed copy of a good store, is opened, read
 * whole and in ranges, leased, asked for coded and decoded, and multiplied with, and compared with the good one.
 *
 * Damage: refused, an error, or the right bytes; never a wrong one. Forged chunks, with the raw_hash left: whatever
 * decodes to other bytes is told by efs_store_verify(). Forged indexes can name other bytes, and nothing in a store can
 * tell: they are counted apart, and must only do no harm. A case that takes too long ends the test with its name.
 */
#ifndef EFS_STORE_SWEEP_H
#define EFS_STORE_SWEEP_H

#include "fixture.h"
#include "layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SWEEP_INNER 272 /* two spans a tensor: SWEEP_INNER * SWEEP_HIDDEN > EFS_SPAN */
#define SWEEP_HIDDEN 128
#define SWEEP_SEED 7 /* of the good store's weights */
/* Cases of which one is taken. No multiple of 2: a field's cases are changes, with the checksums left and made right.
 */
#if defined(__SANITIZE_THREAD__)
#define SWEEP_STRIDE 23 /* what becomes of a field is not a matter of threads */
#elif defined(__SANITIZE_ADDRESS__)
#define SWEEP_STRIDE 3
#else
#define SWEEP_STRIDE 1
#endif

enum sweep_outcome { REFUSED, ERROR, RIGHT, FORGED, OUTCOMES };

struct store_sweep {
    struct fixture model;
    unsigned char *image, *copy;   /* the good store, one with changes */
    size_t image_bytes;            /* of either */
    struct efs_disk_superblock sb; /* of image */
    char case_name[200];           /* of the case under way, for messages */
    bool full_tier;                /* EXPERTFS_SWEEP=full */
    unsigned slice, slices;        /* EXPERTFS_SLICE=SLICE/SLICES: every SLICES-th case, from SLICE (0) on */
    uint64_t seed;                 /* SEED, or 1 */
};
extern struct store_sweep sweep;

/* A group's setup and teardown, which tells how many stores were tried. */
int sweep_setup(void **state);
int sweep_teardown(void **state);
/* The checkpoint with other weights, for the next packing. */
void sweep_write_sources(unsigned weights_seed);
/* It becomes the good store. */
void sweep_pack(enum efs_codec_choice codec, uint32_t shard_elements);
struct efs_disk_shard *sweep_shard(unsigned char *store, uint32_t i);
void sweep_write(const char *path, const unsigned char *data, size_t bytes);
/* Counts a case: is it one of the slice that runs? */
bool sweep_in_slice(void);
/* The copy, cut to so many bytes, as a store. strict: wrong bytes are a failure, whoever made the checksums. */
enum sweep_outcome sweep_try(size_t bytes, bool forged, bool strict);
/* What efs_store_verify() says of the store that was tried last. */
errint_t sweep_verify(void);

#endif
