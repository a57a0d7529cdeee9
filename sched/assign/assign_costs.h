/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assign_costs.h - assigns experts by measured times: of running an expert on the CPU and on the GPU, by its tokens,
 * and of a transfer. Moving averages; pure: the caller measures.
 *
 * An unmeasured device is assumed to take the time of the other one, and an unmeasured transfer to take none, so that
 * the first layers are divided equally between both. Each of the three times is measured at least once in
 * EFS_ASSIGN_TRY layers that have an expert for it (a few more if several are due), on the expert where that costs
 * least, so that no device is abandoned because of one bad sample. So pool G also fills where a single layer would not
 * transfer anything.
 */
#ifndef EFS_ASSIGN_COSTS_H
#define EFS_ASSIGN_COSTS_H

#include "assign.h"

#define EFS_ASSIGN_BUCKETS 17u /* of tokens: 1, 2 to 3, 4 to 7, ..., 65536 and more */
#define EFS_ASSIGN_TRY 64u

enum efs_assign_cost {
    EFS_ASSIGN_COST_CPU, /* run one on the CPU, with all threads; its weights are in memory */
    EFS_ASSIGN_COST_GPU,
    EFS_ASSIGN_COST_LINK, /* transfer one, with any number of tokens */
    EFS_ASSIGN_COSTS
};

struct efs_assign_costs {                            /* initialise to zero */
    double ns[EFS_ASSIGN_COSTS][EFS_ASSIGN_BUCKETS]; /* of an expert; 0: not measured */
    uint32_t rest[EFS_ASSIGN_COSTS];                 /* layers until it is due */
};

/* Records that an expert with `tokens` tokens took ns; ignored if either is 0. The first sample of a bucket is stored
 * as it is, each later one has weight 1/4. */
void efs_assign_costs_took(struct efs_assign_costs *costs, enum efs_assign_cost what, uint32_t tokens, uint64_t ns);

/* Time of an expert with `tokens` tokens: of its bucket, or of the nearest one with a sample, of two the lower one. 0:
 * no samples. */
uint64_t efs_assign_costs_ns(const struct efs_assign_costs *costs, enum efs_assign_cost what, uint32_t tokens);

/* Assigns a layer's experts by efs_assign_balanced(). The caller sets tokens, cached and bytes; this function sets the
 * times. device[count] gets EFS_ASSIGN_CPU or _GPU. -EINVAL: count, or an expert without tokens. */
int efs_assign_by_costs(struct efs_assign_costs *costs, struct efs_assign_expert *experts, uint32_t count,
                        uint64_t room_bytes, uint8_t *device);

#endif
