/* SPDX-License-Identifier: Apache-2.0 */
/*
 * assign.h - assigns the experts of a layer to devices, each with its own time for each expert.
 *
 * assign/ assigns the experts of a layer to the CPU and GPUs. gpu/ of the engine, ggml/ of tools and the room assign/
 * of moe-replay call it. It never runs an expert and never reads a clock: callers pass the times.
 *
 * DALI 4.1. The devices work in parallel, each on its experts one after the other, and the layer ends with the last of
 * them: its time is the makespan, the largest sum of times on a device (Eq. 3 to 5). No expert is on two devices (Eq.
 * 8); an expert that no token chose costs nothing and is on no device. The experts on a device must fit into its memory
 * (Eq. 9), which the printed Algorithm 1 does not check; all functions here do.
 *
 * Pure; only efs_assign_optimum() and efs_assign_by() allocate, until they return.
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
#define EFS_ASSIGN_NS_MAX (UINT64_C(1) << 53) /* of one expert: sums stay below 2^64 */
#define EFS_ASSIGN_NONE UINT8_MAX             /* the device of an expert that no token chose */

struct efs_assign_problem {
    uint32_t experts, devices;  /* 1..EFS_ASSIGN_EXPERTS_MAX; 1..EFS_ASSIGN_DEVICES_MAX, device 0 is the CPU */
    const uint64_t *ns;         /* [devices][experts], at most EFS_ASSIGN_NS_MAX; 0 on all devices: not chosen */
    const uint64_t *bytes;      /* [devices][experts]: memory needed there; NULL: none */
    const uint64_t *room_bytes; /* [devices]; NULL: unlimited memory */
};

struct efs_assign_sum {
    uint64_t device_ns[EFS_ASSIGN_DEVICES_MAX];
    uint64_t makespan_ns; /* the maximum */
};

/*
 * All functions below set device[experts]. 0; -EINVAL: the problem is out of bounds; -ENOSPC: no device has room for an
 * expert (an unlimited CPU always does).
 */

/* Algorithm 1: in order of falling difference between its times, each expert goes to the device that then finishes
 * first; on a tie to the one with the larger number. O(N log N + N D). */
int efs_assign_greedy(const struct efs_assign_problem *problem, uint8_t *device, struct efs_assign_sum *sum);

/*
 * Our rule. Starts from Algorithm 1, and on two devices also from the split by the ratio of times (the best
 * whole-expert version of the optimum with divided experts). Improves each start by moving experts off the device that
 * finishes last, or exchanging them, while that helps. On two devices it then searches a tree of assignments by branch
 * and bound: up to EFS_ASSIGN_FEW experts it finds the optimum, above that it stops at a limit. Never worse than
 * Algorithm 1. The work is bounded: about 20 microseconds for 256 experts on 8 devices.
 */
#define EFS_ASSIGN_FEW 10u
int efs_assign_balanced(const struct efs_assign_problem *problem, uint8_t *device, struct efs_assign_sum *sum);

/* The optimum on two devices, with unlimited CPU memory. -E2BIG: the search needs more than EFS_ASSIGN_STATES_MAX
 * partial assignments; -ENOMEM. Exponential in the worst case. */
#define EFS_ASSIGN_STATES_MAX (1u << 20)
int efs_assign_optimum(const struct efs_assign_problem *problem, uint8_t *device, struct efs_assign_sum *sum);

/* Lower bound for assignments to two devices: the optimum with divisible experts and unlimited memory. 0: the problem
 * is out of bounds, or has another number of devices. */
uint64_t efs_assign_bound_ns(const struct efs_assign_problem *problem);

/* Computes the times of an assignment; an expert with EFS_ASSIGN_NONE takes none. -EINVAL: the problem is out of
 * bounds, a device does not exist, or an expert with work has none; -ENOSPC: the experts of a device exceed its
 * memory. */
int efs_assign_sum(const struct efs_assign_problem *problem, const uint8_t *device, struct efs_assign_sum *sum);

/* ---- one CPU and one GPU, as in DALI and its peers --------------------------------------------------------------- */

enum { EFS_ASSIGN_CPU, EFS_ASSIGN_GPU };

struct efs_assign_expert {
    uint32_t tokens;      /* w_i; 0: not chosen */
    bool cached;          /* its weights are in GPU memory */
    uint64_t cpu_ns;      /* time to run it on the CPU, with this number of tokens */
    uint64_t gpu_ns;      /* time to run it on the GPU, with its weights there */
    uint64_t transfer_ns; /* time to transfer its weights */
    uint64_t bytes;       /* of its weights */
};

struct efs_assign_pair {
    uint32_t experts; /* 1..EFS_ASSIGN_EXPERTS_MAX */
    const struct efs_assign_expert *expert;
    uint64_t room_bytes; /* GPU memory for experts that are not cached; UINT64_MAX: unlimited */
};

/* t_gpu of Eq. 5 and 6: transfer and computation overlap, so the longer one counts. */
static inline uint64_t efs_assign_gpu_ns(const struct efs_assign_expert *e)
{
    uint64_t transfer_ns = e->cached ? 0 : e->transfer_ns;
    return e->tokens == 0 ? 0 : transfer_ns > e->gpu_ns ? transfer_ns : e->gpu_ns;
}

/* The pair as a problem with two devices; ns and bytes need room for 2 * experts, room_bytes for 2. */
struct efs_assign_problem efs_assign_pair_problem(const struct efs_assign_pair *pair, uint64_t *ns, uint64_t *bytes,
                                                  uint64_t *room_bytes);

enum efs_assign_rule {
    EFS_ASSIGN_ALL_CPU,  /* all on the CPU */
    EFS_ASSIGN_POPULAR,  /* cached experts on the GPU, the rest on the CPU: a static set */
    EFS_ASSIGN_FIDDLER,  /* each by itself: GPU if cached, or if transfer plus computation take less than the CPU */
    EFS_ASSIGN_HYBRIMOE, /* CPU and GPU take from a list by tokens, the CPU from its light end; see assign_published.c
                          */
    EFS_ASSIGN_GREEDY,   /* Algorithm 1 of DALI */
    EFS_ASSIGN_BALANCED, /* efs_assign_balanced() */
    EFS_ASSIGN_OPTIMUM,  /* efs_assign_optimum() */
    EFS_ASSIGN_RULES
};
const char *efs_assign_rule_name(enum efs_assign_rule rule); /* "cpu", "popular", "fiddler", ... */
/* Sets device[experts]; errors as above, also -ENOMEM, with the optimum -E2BIG. Experts without room stay on the CPU.
 */
int efs_assign_by(enum efs_assign_rule rule, const struct efs_assign_pair *pair, uint8_t *device,
                  struct efs_assign_sum *sum);

#ifdef __cplusplus
}
#endif
#endif
