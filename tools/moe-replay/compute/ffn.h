/* SPDX-License-Identifier: Apache-2.0 */
/* ffn.h - a layer's experts from plain BF16 matrices, one after the other as they come. */
#ifndef MOE_REPLAY_FFN_H
#define MOE_REPLAY_FFN_H

#include "compute.h"

/* -EOPNOTSUPP: the experts of this model are no such thing. */
errint_t replay_ffn_possible(const struct replay_model *model, struct efs_error *err);
uint32_t replay_ffn_hidden(const struct replay_model *model); /* 0: not possible */

/* mixture is looked at in each call: it is the layer's that is on. NULL: no memory. */
struct replay_ffn;
struct replay_ffn *replay_ffn_new(const struct efs_mixture *mixture, struct efs_team *team, uint32_t tokens_max,
                                  uint32_t chosen);
void replay_ffn_free(struct replay_ffn *ffn); /* NULL is fine */
/* Run an expert of the layer. */
errint_t replay_ffn_run(struct replay_ffn *ffn, const struct replay_view *view, struct efs_error *err);
/* All were run: put the weighted sums into the mixture's y. */
void replay_ffn_add_up(struct replay_ffn *ffn);

#endif
