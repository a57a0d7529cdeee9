/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forward.h - tokens through all layers of the model.
 */
#ifndef RUNMOE_FORWARD_H
#define RUNMOE_FORWARD_H

#include "model.h"
#include "trace.h"

/* A sequence: its keys and values so far, and room to work. */
struct forward;

/* For a sequence of at most that many positions, at most batch tokens at a time. -ENOMEM. */
errint_t forward_start(const struct model *model, unsigned threads, uint32_t positions, uint32_t batch,
                       struct forward **forward);
void forward_stop(struct forward *forward); /* NULL is fine */
/* Memory it needs. */
uint64_t forward_bytes(const struct model *model, uint32_t positions, uint32_t batch);

/* A new sequence in place of the one before. */
void forward_begin(struct forward *forward);
/* Tell it of all tokens from now on; it outlives the forward. trace_tokens() is the caller's. */
void forward_trace(struct forward *forward, struct trace *trace);

/* Append count (1 to batch) tokens, each below the vocabulary. logits: [count][vocab], or with last_only of the last
 * token alone. Blocks. -ENOSPC: more than positions; what the library says of an expert. */
errint_t forward_run(struct forward *forward, const uint32_t *tokens, uint32_t count, bool last_only, float *logits,
                     struct efs_error *err);

#endif
