/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3-MoE: many small experts, a norm on queries and keys, heads wider than the hidden size needs. */
#include <math.h>

#include "plan.h"

static void derive(struct mk_model *m)
{
    m->dense_intermediate = 3 * m->hidden;
}

static void plan_attention(const struct mk_model *m, struct mk_plan *plan, uint32_t l)
{
    mk_plan_attention(plan, l);
    mk_plan_vector(plan, MK_Q_NORM, MK_FILL_NORM, l, 0, m->head_dim, "model.layers.%u.self_attn.q_norm.weight", l);
    mk_plan_vector(plan, MK_K_NORM, MK_FILL_NORM, l, 0, m->head_dim, "model.layers.%u.self_attn.k_norm.weight", l);
}

static void plan(const struct mk_model *m, struct mk_plan *plan)
{
    mk_plan_begin(plan);
    for (uint32_t l = 0; l < m->layers; l++) {
        plan_attention(m, plan, l);
        mk_plan_matrix(plan, MK_ROUTER, l, m->experts, m->hidden, (float)(2 / sqrt(m->hidden)),
                       "model.layers.%u.mlp.gate.weight", l);
        for (uint32_t e = 0; e < m->experts; e++) {
            const char *format = "model.layers.%u.mlp.experts.%u.%s_proj.weight";
            mk_plan_linear(plan, MK_EXPERT_GATE, l, e, m->intermediate, m->hidden, format, l, e, "gate");
            mk_plan_linear(plan, MK_EXPERT_UP, l, e, m->intermediate, m->hidden, format, l, e, "up");
            mk_plan_linear(plan, MK_EXPERT_DOWN, l, e, m->hidden, m->intermediate, format, l, e, "down");
        }
        mk_plan_layer_norms(plan, l);
    }
    mk_plan_end(plan);
}

static json_t *config(const struct mk_model *m)
{
    return json_pack("{s:[s], s:b, s:f, s:i, s:i, s:s, s:i, s:f, s:i, s:i, s:i, s:[], s:s, s:i, s:b, s:i, s:i, s:i,"
                     " s:i, s:i, s:b, s:f, s:n, s:f, s:f, s:n, s:b, s:b, s:b}",
                     "architectures", "Qwen3MoeForCausalLM", "attention_bias", 0, "attention_dropout", 0.0,
                     "decoder_sparse_step", 1, "head_dim", (int)m->head_dim, "hidden_act", "silu", "hidden_size",
                     (int)m->hidden, "initializer_range", 0.02, "intermediate_size", (int)m->dense_intermediate,
                     "max_position_embeddings", (int)m->context, "max_window_layers", (int)m->layers, "mlp_only_layers",
                     "model_type", "qwen3_moe", "moe_intermediate_size", (int)m->intermediate, "norm_topk_prob", 1,
                     "num_attention_heads", (int)m->heads, "num_experts", (int)m->experts, "num_experts_per_tok",
                     (int)m->experts_per_token, "num_hidden_layers", (int)m->layers, "num_key_value_heads",
                     (int)m->kv_heads, "output_router_logits", 0, "rms_norm_eps", 1e-6, "rope_scaling", "rope_theta",
                     1000000.0, "router_aux_loss_coef", 0.001, "sliding_window", "tie_word_embeddings", 0, "use_cache",
                     1, "use_sliding_window", 0);
}

const struct mk_family mk_family_qwen3 = {.name = "qwen3-moe",
                                          .gguf = true,
                                          .fp8 = true,
                                          .layer_step = 1,
                                          .layer_min = 1,
                                          .head_divisor = 8,
                                          .derive = derive,
                                          .plan = plan,
                                          .config = config};
