/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.h - who holds what: experts placed on servers that compute for each other, after Prism.
 *
 * Each server has its own users and room for a part of the experts; what it does not hold is computed by a server that
 * does. A placement has to hold every expert somewhere (coverage) and each server no more than fits (Prism III-B).
 * Experts are equally large, so a graphics processor has whole slots for them.
 *
 * Arrays of a placement, and the counts of calls, are [servers][layers][experts].
 *
 * Pure; what is allocated inside is freed inside.
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
    uint64_t gpu_bytes[EFS_PLACE_GPUS_MAX]; /* for experts; what is no whole expert is left empty */
    double load_bytes_per_second;           /* of each: bringing experts into it */
    double passes;                          /* of layers by its own users, in the window; each calls some experts */
    double remote_s;                        /* a call elsewhere over one here, as measured: Prism goes by it */
    /* The same in two parts, by which ours goes: what any call elsewhere adds to a pass, and what each adds. */
    double pass_s, call_s;
};

struct efs_place_problem {
    uint32_t servers, layers, experts; /* 1 to the limits above */
    uint64_t expert_bytes;             /* m_e, above 0 */
    const struct efs_place_server *server;
    const double *calls; /* f: how often a server's own users called each expert in the window, 0 or more */
};

static inline size_t efs_place_at(const struct efs_place_problem *p, uint32_t server, uint32_t layer, uint32_t expert)
{
    return ((size_t)server * p->layers + layer) * p->experts + expert;
}

/* Experts that a server has room for. */
uint64_t efs_place_slots(const struct efs_place_problem *problem, uint32_t server);
/* 0; -EINVAL: out of bounds, or a number that cannot be; -ENOSPC: all servers together have too few slots. All that
 * places returns these, and -ENOMEM. */
int efs_place_check(const struct efs_place_problem *problem);

/*
 * Prism, Algorithm 1: counts[servers][layers]. Where the paper is silent: too few slots in all are refused; a server
 * gets no more of a layer than there are experts; slots that rounding down left go to the largest remainders; a layer
 * that lacks experts borrows only from layers that have more than they need; a server whose entropies are all 0 gives
 * its layers equal parts.
 */
int efs_place_counts(const struct efs_place_problem *problem, uint32_t *counts);
/* Prism, Algorithm 2: the experts to these counts, each layer's at least its experts in all. A server that has no
 * duplicate is passed over. */
int efs_place_assign(const struct efs_place_problem *problem, const uint32_t *counts, uint8_t *held);

enum efs_place_rule {
    EFS_PLACE_UNIFORM,    /* one copy of each, dealt out at random by room */
    EFS_PLACE_REDUNDANCE, /* the same, and copies at random up to the room */
    EFS_PLACE_SMARTMOE,   /* one copy of each, loads level */
    EFS_PLACE_EPLB,       /* replicas where loads are highest, packed so that loads are level */
    EFS_PLACE_GREEDY,     /* each server what it calls most, then coverage as in Algorithm 2 */
    EFS_PLACE_PRISM,      /* Algorithms 1 and 2 */
    EFS_PLACE_GAIN,       /* ours by calls saved: see place_gain.c */
    EFS_PLACE_TIME,       /* ours by time saved: see place_time.c */
    EFS_PLACE_RULES
};
const char *efs_place_rule_name(enum efs_place_rule rule); /* "uniform", ..., "ours-calls", "ours" */
/* seed: of random choices. */
int efs_place_by(enum efs_place_rule rule, const struct efs_place_problem *problem, uint64_t seed, uint8_t *held);

/* ---- what a placement is worth ---- */

bool efs_place_fits(const struct efs_place_problem *problem, const uint8_t *held);
/* Eq. 2, each call by its remote_s. */
double efs_place_remote_s(const struct efs_place_problem *problem, const uint8_t *held);
/* By both parts: pass_s for each pass with a call elsewhere, as if experts were called independently of each other, and
 * call_s for each call. */
double efs_place_wait_s(const struct efs_place_problem *problem, const uint8_t *held);

/* ---- on processors, and from one placement to another ---- */

#define EFS_PLACE_NOWHERE UINT8_MAX
/* Which graphics processor holds it: gpu gets a number where held is set, else EFS_PLACE_NOWHERE. before (may be NULL):
 * what stays on a server stays where it is; the others go where their layer has the least calls. */
int efs_place_pack(const struct efs_place_problem *problem, const uint8_t *held, const uint8_t *before, uint8_t *gpu);

/* Prism, Eq. 3: the time of all changes, packed. */
double efs_place_migration_s(const struct efs_place_problem *problem, const uint8_t *before, const uint8_t *after);
/* Eq. 4 in seconds, where the paper adds calls to seconds: C(after) + T_mig < C(before), C by efs_place_remote_s of the
 * window's calls. */
bool efs_place_migrates(const struct efs_place_problem *problem, const uint8_t *held_before, const uint8_t *held_after,
                        const uint8_t *gpu_before, const uint8_t *gpu_after);

#ifdef __cplusplus
}
#endif
#endif
