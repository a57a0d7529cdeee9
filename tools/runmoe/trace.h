/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - a routing trace of what is run: what each router read, the probabilities that it gave, the experts chosen,
 * embeddings, and the routers themselves. Version 2 of expertfs-route(5).
 */
#ifndef RUNMOE_TRACE_H
#define RUNMOE_TRACE_H

#include "model.h"

enum trace_kind { TRACE_PROMPT = 1, TRACE_DECODE = 2 }; /* as in the file */

struct trace;

/* Make the file, for that many tokens in all, at most batch at a time. On failure *trace is NULL. -EFBIG: more than
 * readers take. */
errint_t trace_start(const char *path, const struct model *model, uint64_t tokens, uint32_t batch, struct trace **trace,
                     struct efs_error *err);
/* Memory that it needs. */
uint64_t trace_bytes(const struct config *config, uint32_t batch);

/* Of the tokens at hand, one after the other: embeddings [count][hidden]; of a layer the router's input
 * [count][hidden], probabilities [count][experts], and the experts chosen, [count][chosen], in falling order. NULL
 * trace: nothing. */
void trace_embeddings(struct trace *trace, uint32_t count, const float *embeddings);
void trace_router(struct trace *trace, uint32_t layer, uint32_t count, const float *states, const float *probability);
void trace_chosen(struct trace *trace, uint32_t layer, uint32_t count, const uint32_t *experts);
/* All layers of count tokens are told: write them. NULL: 0. */
errint_t trace_tokens(struct trace *trace, uint32_t sequence, enum trace_kind kind, uint32_t count,
                      struct efs_error *err);

/* Write the end, if all went well before, close the file and free the trace. NULL: rc. rc, or what went wrong. */
errint_t trace_end(struct trace *trace, errint_t rc, struct efs_error *err);

#endif
