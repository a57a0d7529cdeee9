/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assign_costs.h - who computes what by what it has taken so far: running an expert on the processor and on the
 * graphics processor, by its tokens, and bringing one there. Moving averages; pure, the caller measures.
 *
 * What was not measured yet is assumed to take what the other side takes, and to be brought while others compute, so
 * that the first layers go to both, half and half. That no side is given up for one bad figure, each of the three is
 * done at least once in EFS_ASSIGN_TRY layers that have an expert for it (some more where several are due): the one
 * that costs least by what is known. So pool G fills, too, where a layer by itself would bring nothing.
 */
#ifndef EFS_ASSIGN_COSTS_H
#define EFS_ASSIGN_COSTS_H

#include "assign.h"

#define EFS_ASSIGN_BUCKETS 17u /* of tokens: 1, 2 to 3, 4 to 7, ..., 65536 and more */
#define EFS_ASSIGN_TRY 64u

enum efs_assign_cost {
    EFS_ASSIGN_COST_CPU, /* run one there, all threads of it; its weights are in memory */
    EFS_ASSIGN_COST_GPU,
    EFS_ASSIGN_COST_LINK, /* bring one, whatever its tokens */
    EFS_ASSIGN_COSTS
};

struct efs_assign_costs {                            /* zeros: nothing is known */
    double ns[EFS_ASSIGN_COSTS][EFS_ASSIGN_BUCKETS]; /* of an expert; 0: not measured */
    uint32_t rest[EFS_ASSIGN_COSTS];                 /* layers until it is due again */
};

/* An expert with so many tokens took so long; 0 tokens or ns are not counted. The first figure of a bucket counts as it
 * is, each later one as a quarter. */
void efs_assign_costs_took(struct efs_assign_costs *costs, enum efs_assign_cost what, uint32_t tokens, uint64_t ns);

/* What an expert with so many tokens takes: of a bucket without a figure that of the nearest one, the smaller of two.
 * 0: nothing was measured. */
uint64_t efs_assign_costs_ns(const struct efs_assign_costs *costs, enum efs_assign_cost what, uint32_t tokens);

/* A layer's experts, whose tokens, cached and bytes are given and whose times are set here, by
 * efs_assign_balanced(). device[count] gets EFS_ASSIGN_CPU or _GPU. -EINVAL: count, or an expert without tokens. */
int efs_assign_by_costs(struct efs_assign_costs *costs, struct efs_assign_expert *experts, uint32_t count,
                        uint64_t room_bytes, uint8_t *device);

#endif
