/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assign.h - who computes which expert of a layer: processor and graphics processors, each with its time for each.
 *
 * DALI 4.1. The devices work side by side, each on its experts one after the other, and the layer ends with the last of
 * them: its time is the makespan, the largest sum of times on a device (Eq. 3 to 5). No expert is on two devices (Eq.
 * 8); one that no token chose, which costs nothing anywhere, is on none. What a device holds has to fit into its memory
 * (Eq. 9), which the printed Algorithm 1 does not look at: here every decision does.
 *
 * Pure; nothing is allocated but by efs_assign_optimum().
 */
#ifndef EFS_ASSIGN_H
#define EFS_ASSIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EFS_ASSIGN_EXPERTS_MAX 1024u
#define EFS_ASSIGN_DEVICES_MAX 8u
#define EFS_ASSIGN_NS_MAX (UINT64_C(1) << 53) /* of one expert: sums of all stay below 2^64 */
#define EFS_ASSIGN_NONE UINT8_MAX             /* the device of an expert that no token chose */

struct efs_assign_problem {
    uint32_t experts, devices;  /* 1..EFS_ASSIGN_EXPERTS_MAX; 1..EFS_ASSIGN_DEVICES_MAX, device 0 the processor */
    const uint64_t *ns;         /* [devices][experts], at most EFS_ASSIGN_NS_MAX; 0 on all devices: not chosen */
    const uint64_t *bytes;      /* [devices][experts]: memory to be taken there; NULL: none is */
    const uint64_t *room_bytes; /* [devices]; NULL: memory without limit */
};

struct efs_assign_sum {
    uint64_t device_ns[EFS_ASSIGN_DEVICES_MAX];
    uint64_t makespan_ns; /* the largest of them */
};

/*
 * All below: device[experts] gets the device of each expert. 0; -EINVAL: the problem is out of bounds; -ENOSPC: an
 * expert found no device with room for it (a processor without limit always has it).
 */

/* Algorithm 1: experts by how much their times differ, falling, each to the device that is then done first; on a tie to
 * the one with the larger number. O(N log N + N D). */
int efs_assign_greedy(const struct efs_assign_problem *problem, uint8_t *device, struct efs_assign_sum *sum);

/*
 * Ours. Algorithm 1, and on two devices the split by the ratio of times, too (the best that whole experts allow of the
 * optimum with divided ones), each made better by moving an expert off the device that is done last, or exchanging it
 * for another, while that helps. Then, on two devices, a tree of assignments is searched by branch and bound: the
 * optimum up to EFS_ASSIGN_FEW experts, and of more as far as its limit goes. Never worse than Algorithm 1. Work is
 * bounded: 256 experts on 8 devices are decided in some 20 microseconds.
 */
#define EFS_ASSIGN_FEW 10u
int efs_assign_balanced(const struct efs_assign_problem *problem, uint8_t *device, struct efs_assign_sum *sum);

/* The best there is on two devices, the processor's memory without limit; or -E2BIG: more than so many partial
 * assignments would have to be kept. May also be -ENOMEM. Exponential in the worst case. */
#define EFS_ASSIGN_STATES_MAX (1u << 20)
int efs_assign_optimum(const struct efs_assign_problem *problem, uint8_t *device, struct efs_assign_sum *sum);

/* No assignment to two devices ends earlier: the optimum when an expert may be divided, memory without limit. 0: the
 * problem is out of bounds, or of another number of devices. */
uint64_t efs_assign_bound_ns(const struct efs_assign_problem *problem);

/* What an assignment takes; an expert with EFS_ASSIGN_NONE takes nothing. -EINVAL: the problem is out of bounds, a
 * device does not exist, or an expert with work is on none; -ENOSPC: a device's memory does not hold its experts. */
int efs_assign_sum(const struct efs_assign_problem *problem, const uint8_t *device, struct efs_assign_sum *sum);

/* ---- one processor and one graphics processor, as DALI and its peers see them ---- */

enum { EFS_ASSIGN_CPU, EFS_ASSIGN_GPU };

struct efs_assign_expert {
    uint32_t tokens;      /* w_i; 0: it was not chosen */
    bool cached;          /* its weights are in the memory of the graphics processor */
    uint64_t cpu_ns;      /* run it on the processor, with so many tokens */
    uint64_t gpu_ns;      /* run it on the graphics processor, its weights there */
    uint64_t transfer_ns; /* bring its weights there */
    uint64_t bytes;       /* of its weights */
};

struct efs_assign_pair {
    uint32_t experts; /* 1..EFS_ASSIGN_EXPERTS_MAX */
    const struct efs_assign_expert *expert;
    uint64_t room_bytes; /* of the graphics processor, for experts that are not cached; UINT64_MAX: no limit */
};

/* t_gpu of Eq. 5 and 6: the transfer hides the computing, or the other way round. */
static inline uint64_t efs_assign_gpu_ns(const struct efs_assign_expert *e)
{
    uint64_t transfer_ns = e->cached ? 0 : e->transfer_ns;
    return e->tokens == 0 ? 0 : transfer_ns > e->gpu_ns ? transfer_ns : e->gpu_ns;
}

/* The pair as a problem of two devices; ns and bytes have room for 2 * experts, room for 2. */
struct efs_assign_problem efs_assign_pair_problem(const struct efs_assign_pair *pair, uint64_t *ns, uint64_t *bytes,
                                                  uint64_t *room_bytes);

enum efs_assign_rule {
    EFS_ASSIGN_ALL_CPU,  /* nothing on the graphics processor */
    EFS_ASSIGN_POPULAR,  /* what is cached there, all else here: a set that was chosen before */
    EFS_ASSIGN_FIDDLER,  /* each expert by itself: there if cached, or if transfer and computing take less than here */
    EFS_ASSIGN_HYBRIMOE, /* both take from a list by tokens, the processor from its light end; see assign_peers.c */
    EFS_ASSIGN_GREEDY,   /* Algorithm 1 of DALI */
    EFS_ASSIGN_BALANCED, /* ours */
    EFS_ASSIGN_OPTIMUM,  /* the best */
    EFS_ASSIGN_RULES
};
const char *efs_assign_rule_name(enum efs_assign_rule rule); /* "cpu", "popular", "fiddler", ... */
/* device[experts]; as above, of the optimum also -E2BIG. What finds no room stays on the processor. */
int efs_assign_by(enum efs_assign_rule rule, const struct efs_assign_pair *pair, uint8_t *device,
                  struct efs_assign_sum *sum);

#ifdef __cplusplus
}
#endif
#endif
