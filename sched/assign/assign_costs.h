/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assign_costs.h - assigns experts by measured times: of running an expert on the CPU and on the GPU, by its tokens,
 * and of a transfer. Moving averages; pure: the caller measures.
 *
 * An unmeasured device is assumed to take the time of the other one, and an unmeasured transfer to take none, so that
 * the first layers are divided equally between both. Each of the three times is measured again after 2, 4, 8, ... and
 * then every EFS_ASSIGN_MEASURE_INTERVAL layers that have an expert for it (a few more if several are due), on the
 * expert where that costs least. A time that was measured too high, as the first ones are that wait for a disk or for a
 * registration of memory, would keep the experts away from the device that it belongs to, so lower samples weigh more
 * than higher ones.
 *
 * A layer takes longer than its experts: threads wake, activations cross the link, sums are added. That extra time is
 * measured for layers on the CPU, on the GPU, and on both; it decides whether dividing a layer pays. At each layer the
 * extra times of the two ways that were not used become a little shorter, so that each way is tried again.
 */
#ifndef EFS_ASSIGN_COSTS_H
#define EFS_ASSIGN_COSTS_H

#include "assign.h"

#define EFS_ASSIGN_BUCKETS 17u /* of tokens: 1, 2 to 3, 4 to 7, ..., 65536 and more */
#define EFS_ASSIGN_MEASURE_INTERVAL 64u

enum efs_assign_cost {
    EFS_ASSIGN_COST_CPU, /* run one on the CPU, with all threads; its weights are in memory */
    EFS_ASSIGN_COST_GPU,
    EFS_ASSIGN_COST_LINK, /* transfer one, with any number of tokens */
    EFS_ASSIGN_MEASURED,  /* those above are measured on experts, those below on layers, by the tokens of the layer */
    EFS_ASSIGN_EXTRA_CPU = EFS_ASSIGN_MEASURED, /* of a layer on the CPU alone, beyond the time of its experts */
    EFS_ASSIGN_EXTRA_GPU,
    EFS_ASSIGN_EXTRA_BOTH,
    EFS_ASSIGN_COSTS
};

struct efs_assign_costs {                            /* initialise to zero */
    bool greedy;                                     /* Algorithm 1 of DALI in place of efs_assign_balanced() */
    double ns[EFS_ASSIGN_COSTS][EFS_ASSIGN_BUCKETS]; /* of an expert, or extra of a layer; 0: not measured */
    uint32_t layers_until_due[EFS_ASSIGN_MEASURED];  /* layers until it is due */
    uint32_t tries[EFS_ASSIGN_MEASURED]; /* layers that had an expert for it, at most EFS_ASSIGN_MEASURE_INTERVAL */
};

/* Records that an expert with `tokens` tokens took ns; ignored if either is 0. The first sample of a bucket is stored
 * as it is; each later one has weight 1/4, or 1/2 if it is lower than the average. */
void efs_assign_costs_record(struct efs_assign_costs *costs, enum efs_assign_cost what, uint32_t tokens, uint64_t ns);

/* Time of an expert with `tokens` tokens: of its bucket, or of the nearest one with a sample, of two the lower one. 0:
 * no samples. */
uint64_t efs_assign_costs_ns(const struct efs_assign_costs *costs, enum efs_assign_cost what, uint32_t tokens);

/* How a layer was divided, for efs_assign_costs_record_layer(). */
struct efs_assign_choice {
    enum efs_assign_cost extra; /* EFS_ASSIGN_EXTRA_CPU, _GPU or _BOTH; EFS_ASSIGN_COSTS: not to be measured */
    uint32_t tokens;
    uint64_t ns; /* expected for the experts alone */
};

/* Records that a layer took ns, after it was run as chosen. */
void efs_assign_costs_record_layer(struct efs_assign_costs *costs, const struct efs_assign_choice *choice, uint64_t ns);

/* Assigns a layer's experts by efs_assign_balanced(), or all to one device if that ends sooner with the extra time. The
 * caller sets tokens, cached and bytes; this function sets the times. fill: nothing has to be evicted for the experts
 * that are not cached; their transfers count as free, because later layers use what they bring, and there are only as
 * many of them as the memory has room for. tokens: of the layer. device[count] gets EFS_ASSIGN_CPU or _GPU. -EINVAL:
 * count, or an expert without tokens; -ENOMEM. */
int efs_assign_by_costs(struct efs_assign_costs *costs, struct efs_assign_expert *experts, uint32_t count,
                        uint64_t room_bytes, bool fill, uint32_t tokens, uint8_t *device,
                        struct efs_assign_choice *choice);

#endif
