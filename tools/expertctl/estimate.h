/* SPDX-License-Identifier: Apache-2.0 */
/*
 * estimate.h - what `expertctl estimate` reckons: the model, by its names and sizes; what of a machine's memory is left
 * for experts; how long a token takes.
 */
#ifndef EXPERTCTL_ESTIMATE_H
#define EXPERTCTL_ESTIMATE_H

#include "expertfs.h"

#include "model_config.h"

#include <string.h>

struct estimate {
    /* as asked for */
    const char *path;
    uint64_t ram_bytes, context; /* context: tokens */

    /* the model: estimate_model.c */
    bool packed;                /* a store, else a checkpoint, whose coded sizes are reckoned */
    bool gguf;                  /* its weights are in GGUF files */
    char family[32], dtype[16]; /* dtype: of most of the experts' bytes */
    uint64_t source_bytes, store_bytes, expert_bytes, coded_bytes, dense_bytes;
    uint32_t layers, experts; /* layers with experts; experts of the widest */
    struct tools_model_config config;

    /* memory: estimate.c */
    uint64_t system_bytes, kv_bytes, work_bytes, budget_bytes;
    uint64_t window_tokens; /* that layers with a sliding window keep; 0: there are none */
    bool fits;

    /* time: estimate_rates.c */
    double disk_bytes_per_second, memory_bytes_per_second; /* 0: not known */
    double hit_part;                                       /* of the experts that a token needs */
    char skew[16], rates[16];                              /* where hits and the disk's rate are from */
    double read_ns, compute_ns;                            /* of a token */
};

/* Are its experts computed in their coded form by the backend of ggml? */
static inline bool estimate_coded(const struct estimate *e)
{
    return strcmp(e->dtype, "BF16") == 0;
}

/* A store, or a checkpoint as mkexpertfs takes it. Blocks. -EUCLEAN, -ENOENT, ... */
errint_t estimate_model(struct estimate *e, struct efs_error *err);
/* With memory reckoned, and experts chosen known: looks at disk and memory for about a second, and for a store at its
 * profile, which is measured and saved if there is none, and at what earlier mounts counted. */
errint_t estimate_rates(struct estimate *e, struct efs_error *err);

#endif
