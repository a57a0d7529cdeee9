/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.h - assigns experts to servers, after Prism.
 *
 * place/ assigns experts to servers that compute for each other, and simulates such servers (servers.h). place/ of
 * moe-replay and `expertctl cluster plan` call it. It never does I/O or reads a clock, and is never called by the
 * engine.
 *
 * Each server has its own users and memory for a part of the experts; it calls other servers for the experts that it
 * does not hold. A placement must hold every expert on at least one server (coverage) and no more on a server than fits
 * (Prism III-B). All experts have the same size, so a GPU has a whole number of slots.
 *
 * Arrays of a placement, and the counts of calls, are [servers][layers][experts].
 *
 * Pure; every function frees what it allocates.
 */
#ifndef EFS_PLACE_H
#define EFS_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EFS_PLACE_SERVERS_MAX 1024u
#define EFS_PLACE_LAYERS_MAX 1024u
#define EFS_PLACE_EXPERTS_MAX 4096u
#define EFS_PLACE_GPUS_MAX 16u

struct efs_place_server {
    uint32_t gpus;                          /* 1 to EFS_PLACE_GPUS_MAX */
    uint64_t gpu_bytes[EFS_PLACE_GPUS_MAX]; /* for experts; memory below a whole expert is not used */
    double load_bytes_per_second;           /* of each GPU: rate of loading experts */
    double passes;   /* forward passes of its own users in the window; every layer of a pass calls several experts */
    double remote_s; /* extra time of a remote call over a local one, as measured: used by Prism */
    /* The same in two parts, used by our rules: time added to a layer of a pass by remote calls, regardless of their
     * number, and by each of them. */
    double pass_s, call_s;
};

struct efs_place_problem {
    uint32_t servers, layers, experts; /* 1 to the limits above */
    uint64_t expert_bytes;             /* m_e, above 0 */
    const struct efs_place_server *server;
    const double *calls; /* f: calls of each expert by the server's own users in the window, 0 or more */
};

static inline size_t efs_place_at(const struct efs_place_problem *p, uint32_t server, uint32_t layer, uint32_t expert)
{
    return ((size_t)server * p->layers + layer) * p->experts + expert;
}

/* Number of experts that fit on a server. */
uint64_t efs_place_slots(const struct efs_place_problem *problem, uint32_t server);
/* 0; -EINVAL: out of bounds, or an invalid number; -ENOSPC: the servers together have fewer slots than there are
 * experts. All functions that place return these errors, and -ENOMEM. */
int efs_place_check(const struct efs_place_problem *problem);

/*
 * Prism, Algorithm 1: counts[servers][layers]. Choices where the paper is not specific: too few slots in total are an
 * error; a server gets at most all experts of a layer; slots left by rounding down go to the largest remainders; a
 * layer that lacks experts borrows only from layers with more than they need; a server whose entropies are all 0 gives
 * its layers equal parts.
 */
int efs_place_counts(const struct efs_place_problem *problem, uint32_t *counts);
/* Prism, Algorithm 2: the experts for these counts, which must cover each layer. Servers without duplicates are
 * skipped. */
int efs_place_assign(const struct efs_place_problem *problem, const uint32_t *counts, uint8_t *placement);

enum efs_place_rule {
    EFS_PLACE_UNIFORM,    /* one copy of each, at random in proportion to memory */
    EFS_PLACE_REDUNDANCE, /* the same, then random copies until the memory is full */
    EFS_PLACE_SMARTMOE,   /* one copy of each, with balanced loads */
    EFS_PLACE_EPLB,       /* replicas of the experts with the highest loads, packed to balance the loads */
    EFS_PLACE_GREEDY,     /* on each server its most called experts, then coverage as in Algorithm 2 */
    EFS_PLACE_PRISM,      /* Algorithms 1 and 2 */
    EFS_PLACE_GAIN,       /* by calls saved: see place_gain.c */
    EFS_PLACE_TIME,       /* by time saved: see place_time.c */
    EFS_PLACE_RULES
};
const char *efs_place_rule_name(enum efs_place_rule rule); /* "uniform", ..., "ours-calls", "ours" */
/* seed: for random choices. */
int efs_place_by(enum efs_place_rule rule, const struct efs_place_problem *problem, uint64_t seed, uint8_t *placement);

/* ---- cost of a placement ----------------------------------------------------------------------------------------- */

bool efs_place_fits(const struct efs_place_problem *problem, const uint8_t *placement);
/* Eq. 2: remote calls, weighted by remote_s. */
double efs_place_remote_s(const struct efs_place_problem *problem, const uint8_t *placement);
/* In both parts: pass_s for each layer of a pass with a remote call, assuming independent calls of the experts, and
 * call_s for each remote call. */
double efs_place_wait_s(const struct efs_place_problem *problem, const uint8_t *placement);

/* ---- GPUs, and migration ----------------------------------------------------------------------------------------- */

#define EFS_PLACE_NO_GPU UINT8_MAX
/* Chooses the GPU for each held expert: gpu gets its number, or EFS_PLACE_NO_GPU where placement is 0. before (may be
 * NULL): an expert that stays on a server keeps its GPU if it has room; other experts go to the GPU with the fewest
 * calls of their layer. */
int efs_place_pack(const struct efs_place_problem *problem, const uint8_t *placement, const uint8_t *before,
                   uint8_t *gpu);

/* Prism, Eq. 3: the time of all changes between two packed placements. */
double efs_place_migration_s(const struct efs_place_problem *problem, const uint8_t *before, const uint8_t *after);
/* Eq. 4 in seconds, where the paper adds calls to seconds: C(after) + T_mig < C(before), with C = efs_place_remote_s of
 * the window's calls. */
bool efs_place_migrates(const struct efs_place_problem *problem, const uint8_t *held_before, const uint8_t *held_after,
                        const uint8_t *gpu_before, const uint8_t *gpu_after);

#ifdef __cplusplus
}
#endif
#endif
