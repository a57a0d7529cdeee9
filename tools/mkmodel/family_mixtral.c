/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtral: eight large experts a layer in block_sparse_moe, no dense layer. */
#include <math.h>

#include "plan.h"

static void plan(const struct mk_model *m, struct mk_plan *plan)
{
    mk_plan_begin(plan);
    for (uint32_t l = 0; l < m->layers; l++) {
        mk_plan_attention(plan, l);
        mk_plan_matrix(plan, MK_ROUTER, l, m->experts, m->hidden, (float)(2 / sqrt(m->hidden)),
                       "model.layers.%u.block_sparse_moe.gate.weight", l);
        for (uint32_t e = 0; e < m->experts; e++) {
            const char *format = "model.layers.%u.block_sparse_moe.experts.%u.%s.weight";
            mk_plan_linear(plan, MK_EXPERT_GATE, l, e, m->intermediate, m->hidden, format, l, e, "w1");
            mk_plan_linear(plan, MK_EXPERT_DOWN, l, e, m->hidden, m->intermediate, format, l, e, "w2");
            mk_plan_linear(plan, MK_EXPERT_UP, l, e, m->intermediate, m->hidden, format, l, e, "w3");
        }
        mk_plan_layer_norms(plan, l);
    }
    mk_plan_end(plan);
}

static json_t *config(const struct mk_model *m)
{
    return json_pack("{s:[s], s:f, s:s, s:i, s:f, s:i, s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:b, s:f, s:f, s:f, s:n, s:b,"
                     " s:b}",
                     "architectures", "MixtralForCausalLM", "attention_dropout", 0.0, "hidden_act", "silu",
                     "hidden_size", (int)m->hidden, "initializer_range", 0.02, "intermediate_size",
                     (int)m->intermediate, "max_position_embeddings", (int)m->context, "model_type", "mixtral",
                     "num_attention_heads", (int)m->heads, "num_experts_per_tok", (int)m->experts_per_token,
                     "num_hidden_layers", (int)m->layers, "num_key_value_heads", (int)m->kv_heads, "num_local_experts",
                     (int)m->experts, "output_router_logits", 0, "rms_norm_eps", 1e-5, "rope_theta", 1000000.0,
                     "router_aux_loss_coef", 0.02, "sliding_window", "tie_word_embeddings", 0, "use_cache", 1);
}

const struct mk_family mk_family_mixtral = {.name = "mixtral",
                                            .gguf = true,
                                            .layer_step = 1,
                                            .layer_min = 1,
                                            .head_divisor = 4,
                                            .plan = plan,
                                            .config = config};
