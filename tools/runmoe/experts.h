/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experts.h - the one place where the experts come in: which of them each token goes to, and what they give.
 */
#ifndef RUNMOE_EXPERTS_H
#define RUNMOE_EXPERTS_H

#include "model.h"

/* Of a layer's tokens: what the router chose. */
struct routes {
    uint32_t tokens, chosen;
    const uint32_t *expert; /* [tokens][chosen] */
    const float *weight;    /* [tokens][chosen] */
};

/* What running experts needs: for so many tokens at a time at most. */
struct experts;
errint_t experts_start(const struct model *model, unsigned threads, uint32_t tokens, struct experts **experts);
void experts_stop(struct experts *experts); /* NULL is fine */
/* Memory it needs, the library's for products included. */
uint64_t experts_bytes(const struct config *config, uint32_t tokens);

/* y[token] = the sum over its experts of weight * down(silu(gate(x[token])) * up(x[token])); x, y: [tokens][hidden].
 * With BF16 activations x, and what meets down, are rounded to BF16.
 * The sums are in the order of the experts' numbers, whichever comes first. Blocks. */
errint_t experts_run(struct experts *experts, uint32_t layer, const struct routes *routes, const float *x, float *y,
                     struct efs_error *err);

#endif
