/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek-V2: multi-head latent attention, a dense first layer, experts that every token shares. */
#include <math.h>

#include "plan.h"

#define SHARED_EXPERTS 2u
#define DENSE_LAYERS 1u

static void derive(struct mk_model *m)
{
    m->kv_heads = m->heads;
    m->rope_dim = m->head_dim / 2;
    m->nope_dim = m->head_dim;
    m->kv_rank = m->hidden / 4;
    m->q_rank = m->hidden * 3 / 8 / 32 * 32;
    m->q_rank = m->q_rank ? m->q_rank : 32;
    m->dense_intermediate = m->intermediate * (SHARED_EXPERTS + m->experts_per_token);
}

static void plan_attention(const struct mk_model *m, struct mk_plan *plan, uint32_t l)
{
    uint64_t query = (uint64_t)m->heads * (m->nope_dim + m->rope_dim), value = (uint64_t)m->heads * m->head_dim;
    mk_plan_linear(plan, MK_OTHER, l, 0, m->q_rank, m->hidden, "model.layers.%u.self_attn.q_a_proj.weight", l);
    mk_plan_vector(plan, MK_OTHER, MK_FILL_NORM, l, 0, m->q_rank, "model.layers.%u.self_attn.q_a_layernorm.weight", l);
    mk_plan_linear(plan, MK_OTHER, l, 0, query, m->q_rank, "model.layers.%u.self_attn.q_b_proj.weight", l);
    mk_plan_linear(plan, MK_OTHER, l, 0, m->kv_rank + m->rope_dim, m->hidden,
                   "model.layers.%u.self_attn.kv_a_proj_with_mqa.weight", l);
    mk_plan_vector(plan, MK_OTHER, MK_FILL_NORM, l, 0, m->kv_rank, "model.layers.%u.self_attn.kv_a_layernorm.weight",
                   l);
    mk_plan_linear(plan, MK_OTHER, l, 0, (uint64_t)m->heads * m->nope_dim + value, m->kv_rank,
                   "model.layers.%u.self_attn.kv_b_proj.weight", l);
    mk_plan_linear(plan, MK_O, l, 0, m->hidden, value, "model.layers.%u.self_attn.o_proj.weight", l);
}

/* A gated feed-forward network under model.layers.L.PATH. */
static void plan_ffn(const struct mk_model *m, struct mk_plan *plan, uint32_t l, uint64_t inner, const char *path)
{
    mk_plan_linear(plan, MK_OTHER, l, 0, inner, m->hidden, "model.layers.%u.%s.gate_proj.weight", l, path);
    mk_plan_linear(plan, MK_OTHER, l, 0, inner, m->hidden, "model.layers.%u.%s.up_proj.weight", l, path);
    mk_plan_linear(plan, MK_OTHER, l, 0, m->hidden, inner, "model.layers.%u.%s.down_proj.weight", l, path);
}

static void plan_moe(const struct mk_model *m, struct mk_plan *plan, uint32_t l)
{
    char path[64];
    for (uint32_t e = 0; e < m->experts; e++) {
        snprintf(path, sizeof(path), "mlp.experts.%u", e);
        plan_ffn(m, plan, l, m->intermediate, path);
    }
    mk_plan_matrix(plan, MK_ROUTER, l, m->experts, m->hidden, (float)(2 / sqrt(m->hidden)),
                   "model.layers.%u.mlp.gate.weight", l);
    plan_ffn(m, plan, l, (uint64_t)SHARED_EXPERTS * m->intermediate, "mlp.shared_experts");
}

static void plan(const struct mk_model *m, struct mk_plan *plan)
{
    mk_plan_begin(plan);
    for (uint32_t l = 0; l < m->layers; l++) {
        plan_attention(m, plan, l);
        if (l < DENSE_LAYERS)
            plan_ffn(m, plan, l, m->dense_intermediate, "mlp");
        else
            plan_moe(m, plan, l);
        mk_plan_layer_norms(plan, l);
    }
    mk_plan_end(plan);
}

static json_t *config(const struct mk_model *m)
{
    json_t *rope =
        json_pack("{s:i, s:i, s:f, s:f, s:f, s:i, s:s}", "beta_fast", 32, "beta_slow", 1, "factor", 40.0, "mscale",
                  0.707, "mscale_all_dim", 0.707, "original_max_position_embeddings", (int)m->context, "type", "yarn");
    json_t *config = json_pack(
        "{s:[s], s:b, s:f, s:f, s:i, s:s, s:i, s:f, s:i, s:i, s:i, s:s, s:i, s:i, s:i, s:i, s:b, s:i, s:i, s:i, s:i,"
        " s:i, s:i, s:i, s:i, s:f, s:o, s:f, s:f, s:s, s:b, s:b, s:i, s:s, s:b, s:i}",
        "architectures", "DeepseekV2ForCausalLM", "attention_bias", 0, "attention_dropout", 0.0, "aux_loss_alpha",
        0.001, "first_k_dense_replace", (int)DENSE_LAYERS, "hidden_act", "silu", "hidden_size", (int)m->hidden,
        "initializer_range", 0.02, "intermediate_size", (int)m->dense_intermediate, "kv_lora_rank", (int)m->kv_rank,
        "max_position_embeddings", (int)(40 * m->context), "model_type", "deepseek_v2", "moe_intermediate_size",
        (int)m->intermediate, "moe_layer_freq", 1, "n_group", 1, "n_routed_experts", (int)m->experts, "norm_topk_prob",
        0, "n_shared_experts", (int)SHARED_EXPERTS, "num_attention_heads", (int)m->heads, "num_experts_per_tok",
        (int)m->experts_per_token, "num_hidden_layers", (int)m->layers, "num_key_value_heads", (int)m->kv_heads,
        "q_lora_rank", (int)m->q_rank, "qk_nope_head_dim", (int)m->nope_dim, "qk_rope_head_dim", (int)m->rope_dim,
        "rms_norm_eps", 1e-6, "rope_scaling", rope, "rope_theta", 10000.0, "routed_scaling_factor", 1.0, "scoring_func",
        "softmax", "seq_aux", 1, "tie_word_embeddings", 0, "topk_group", 1, "topk_method", "greedy", "use_cache", 1,
        "v_head_dim", (int)m->head_dim);
    return config;
}

const struct mk_family mk_family_deepseek = {.name = "deepseek-v2",
                                             .fp8 = true,
                                             .layer_step = 1,
                                             .layer_min = 2,
                                             .head_divisor = 1,
                                             .derive = derive,
                                             .plan = plan,
                                             .config = config};
