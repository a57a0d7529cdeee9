/* SPDX-License-Identifier: Apache-2.0 */
/* gpt-oss, as its BF16 variants are published: all experts of a layer fused in one tensor, biases everywhere. */
#include <math.h>

#include "plan.h"

static void plan_projection(struct mk_plan *plan, uint32_t l, uint64_t rows, uint64_t columns, const char *name)
{
    mk_plan_linear(plan, MK_OTHER, l, 0, rows, columns, "model.layers.%u.self_attn.%s.weight", l, name);
    mk_plan_vector(plan, MK_OTHER, MK_FILL_BIAS, l, 0, rows, "model.layers.%u.self_attn.%s.bias", l, name);
}

static void plan_moe(const struct mk_model *m, struct mk_plan *plan, uint32_t l)
{
    uint64_t inner = m->intermediate;
    mk_plan_matrix(plan, MK_ROUTER, l, m->experts, m->hidden, (float)(2 / sqrt(m->hidden)),
                   "model.layers.%u.mlp.router.weight", l);
    mk_plan_vector(plan, MK_OTHER, MK_FILL_BIAS, l, 0, m->experts, "model.layers.%u.mlp.router.bias", l);
    mk_plan_fused(plan, l, m->experts, m->hidden, 2 * inner, m->hidden, "model.layers.%u.mlp.experts.gate_up_proj", l);
    mk_plan_vector(plan, MK_OTHER, MK_FILL_BIAS, l, m->experts, 2 * inner,
                   "model.layers.%u.mlp.experts.gate_up_proj_bias", l);
    mk_plan_fused(plan, l, m->experts, inner, m->hidden, inner, "model.layers.%u.mlp.experts.down_proj", l);
    mk_plan_vector(plan, MK_OTHER, MK_FILL_BIAS, l, m->experts, m->hidden, "model.layers.%u.mlp.experts.down_proj_bias",
                   l);
}

static void plan(const struct mk_model *m, struct mk_plan *plan)
{
    uint64_t q = (uint64_t)m->heads * m->head_dim, kv = (uint64_t)m->kv_heads * m->head_dim;
    mk_plan_begin(plan);
    for (uint32_t l = 0; l < m->layers; l++) {
        mk_plan_vector(plan, MK_OTHER, MK_FILL_BIAS, l, 0, m->heads, "model.layers.%u.self_attn.sinks", l);
        plan_projection(plan, l, q, m->hidden, "q_proj");
        plan_projection(plan, l, kv, m->hidden, "k_proj");
        plan_projection(plan, l, kv, m->hidden, "v_proj");
        plan_projection(plan, l, m->hidden, q, "o_proj");
        plan_moe(m, plan, l);
        mk_plan_layer_norms(plan, l);
    }
    mk_plan_end(plan);
}

static json_t *config(const struct mk_model *m)
{
    json_t *types = json_array();
    for (uint32_t l = 0; l < m->layers; l++)
        json_array_append_new(types, json_string(l % 2 ? "full_attention" : "sliding_attention"));
    json_t *rope = json_pack("{s:f, s:f, s:f, s:i, s:s, s:b}", "beta_fast", 32.0, "beta_slow", 1.0, "factor", 32.0,
                             "original_max_position_embeddings", (int)m->context, "rope_type", "yarn", "truncate", 0);
    return json_pack("{s:[s], s:b, s:f, s:i, s:i, s:s, s:i, s:f, s:i, s:i, s:o, s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:b,"
                     " s:f, s:o, s:i, s:f, s:i, s:f, s:b, s:b}",
                     "architectures", "GptOssForCausalLM", "attention_bias", 1, "attention_dropout", 0.0,
                     "experts_per_token", (int)m->experts_per_token, "head_dim", (int)m->head_dim, "hidden_act", "silu",
                     "hidden_size", (int)m->hidden, "initializer_range", 0.02, "initial_context_length",
                     (int)m->context, "intermediate_size", (int)m->intermediate, "layer_types", types,
                     "max_position_embeddings", (int)(32 * m->context), "model_type", "gpt_oss", "num_attention_heads",
                     (int)m->heads, "num_experts_per_tok", (int)m->experts_per_token, "num_hidden_layers",
                     (int)m->layers, "num_key_value_heads", (int)m->kv_heads, "num_local_experts", (int)m->experts,
                     "output_router_logits", 0, "rms_norm_eps", 1e-5, "rope_scaling", rope, "rope_theta", 150000,
                     "router_aux_loss_coef", 0.9, "sliding_window", 128, "swiglu_limit", 7.0, "tie_word_embeddings", 0,
                     "use_cache", 1);
}

const struct mk_family mk_family_gpt_oss = {
    .name = "gpt-oss", .layer_step = 2, .layer_min = 2, .head_divisor = 8, .plan = plan, .config = config};
