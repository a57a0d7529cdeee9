/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - writes a routing trace of the run: input, probabilities and chosen experts of each router, embeddings, and
 * the routers' weights. Version 2 of expertfs-route(5).
 */
#ifndef RUNMOE_TRACE_H
#define RUNMOE_TRACE_H

#include "model.h"

enum trace_kind { TRACE_PROMPT = 1, TRACE_DECODE = 2 }; /* as in the file */

struct trace;

/* Creates the file, for `tokens` tokens in total, at most `batch` per trace_tokens(). Keeps pointers to path and model.
 * On failure *trace is NULL. -EFBIG: larger than the 1 GiB that readers accept. */
errint_t trace_start(const char *path, const struct model *model, uint64_t tokens, uint32_t batch, struct trace **trace,
                     struct efs_error *err);
/* Memory of a trace, bytes. */
uint64_t trace_bytes(const struct config *config, uint32_t batch);

/* Record the tokens of the current batch: embeddings [count][hidden]; for each layer the router's input
 * [count][hidden], probabilities [count][experts] and chosen experts [count][chosen], in descending order of
 * probability. trace NULL: do nothing. */
void trace_embeddings(struct trace *trace, uint32_t count, const float *embeddings);
void trace_router(struct trace *trace, uint32_t layer, uint32_t count, const float *states, const float *probability);
void trace_chosen(struct trace *trace, uint32_t layer, uint32_t count, const uint32_t *experts);
/* Writes the records of the batch, after all layers were recorded. trace NULL: returns 0. */
errint_t trace_tokens(struct trace *trace, uint32_t sequence, enum trace_kind kind, uint32_t count,
                      struct efs_error *err);

/* Closes the file and frees the trace. rc: the result so far, which is returned; if it is 0, the error of fclose().
 * trace NULL: returns rc. */
errint_t trace_end(struct trace *trace, errint_t rc, struct efs_error *err);

#endif
