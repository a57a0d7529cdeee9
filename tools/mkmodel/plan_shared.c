/* SPDX-License-Identifier: Apache-2.0 */
/* plan_shared.c - tensors that most families have under the same names. */
#include <math.h>

#include "plan.h"

void mk_plan_begin(struct mk_plan *plan)
{
    const struct mk_model *m = plan->model;
    mk_plan_matrix(plan, MK_EMBED, 0, m->vocab, m->hidden, 1.0f, "model.embed_tokens.weight");
}

void mk_plan_attention(struct mk_plan *plan, uint32_t l)
{
    const struct mk_model *m = plan->model;
    uint64_t q = (uint64_t)m->heads * m->head_dim, kv = (uint64_t)m->kv_heads * m->head_dim;
    mk_plan_linear(plan, MK_Q, l, 0, q, m->hidden, "model.layers.%u.self_attn.q_proj.weight", l);
    mk_plan_linear(plan, MK_K, l, 0, kv, m->hidden, "model.layers.%u.self_attn.k_proj.weight", l);
    mk_plan_linear(plan, MK_V, l, 0, kv, m->hidden, "model.layers.%u.self_attn.v_proj.weight", l);
    mk_plan_linear(plan, MK_O, l, 0, m->hidden, q, "model.layers.%u.self_attn.o_proj.weight", l);
}

void mk_plan_layer_norms(struct mk_plan *plan, uint32_t l)
{
    uint64_t n = plan->model->hidden;
    mk_plan_vector(plan, MK_ATTENTION_NORM, MK_FILL_NORM, l, 0, n, "model.layers.%u.input_layernorm.weight", l);
    mk_plan_vector(plan, MK_FFN_NORM, MK_FILL_NORM, l, 0, n, "model.layers.%u.post_attention_layernorm.weight", l);
}

void mk_plan_end(struct mk_plan *plan)
{
    const struct mk_model *m = plan->model;
    mk_plan_vector(plan, MK_FINAL_NORM, MK_FILL_NORM, 0, 0, m->hidden, "model.norm.weight");
    mk_plan_matrix(plan, MK_HEAD, 0, m->vocab, m->hidden, (float)(1 / sqrt(m->hidden)), "lm_head.weight");
}
