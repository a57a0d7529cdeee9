/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forward.h - the forward pass of the model. For one thread.
 */
#ifndef RUNMOE_FORWARD_H
#define RUNMOE_FORWARD_H

#include "model.h"
#include "trace.h"

/* A sequence: its KV cache and the work buffers. */
struct forward;

/* Allocates for sequences of at most `positions` tokens, at most `batch` tokens per forward_run(). Keeps a pointer to
 * model. 0 or -ENOMEM. */
errint_t forward_start(const struct model *model, unsigned threads, uint32_t positions, uint32_t batch,
                       struct forward **forward);
void forward_stop(struct forward *forward); /* NULL is allowed */
/* Memory that forward_start() and forward_run() allocate, bytes. */
uint64_t forward_bytes(const struct model *model, uint32_t positions, uint32_t batch);

/* Starts a new sequence: empties the KV cache. */
void forward_begin(struct forward *forward);
/* Records all following tokens in trace, which must outlive forward. The caller calls trace_tokens(). */
void forward_trace(struct forward *forward, struct trace *trace);

/* Appends count (1 to batch) tokens, each below config.vocab. logits: [count][vocab], or with last_only [vocab] of the
 * last token. Blocks. -ENOSPC: more than positions; else errors of efs_client_ffn(). */
errint_t forward_run(struct forward *forward, const uint32_t *tokens, uint32_t count, bool last_only, float *logits,
                     struct efs_error *err);

#endif
