/* SPDX-License-Identifier: Apache-2.0 */
/* Switch Transformers: T5's encoder and decoder, experts in every other block of both. */
#include <math.h>

#include "plan.h"

#define SPARSE_STEP 2u
#define BUCKETS 32u

static void plan_attention(const struct mk_model *m, struct mk_plan *plan, const char *stack, uint32_t l, uint32_t sub,
                           const char *kind)
{
    static const char *const names[] = {"q", "k", "v", "o"};
    uint64_t inner = (uint64_t)m->heads * m->head_dim;
    for (int i = 0; i < 4; i++)
        mk_plan_linear(plan, MK_OTHER, l, 0, i < 3 ? inner : m->hidden, i < 3 ? m->hidden : inner,
                       "%s.block.%u.layer.%u.%s.%s.weight", stack, l, sub, kind, names[i]);
    if (l == 0 && sub == 0)
        mk_plan_matrix(plan, MK_OTHER, l, BUCKETS, m->heads, 0.5f,
                       "%s.block.0.layer.0.SelfAttention.relative_attention_bias.weight", stack);
    mk_plan_vector(plan, MK_OTHER, MK_FILL_NORM, l, 0, m->hidden, "%s.block.%u.layer.%u.layer_norm.weight", stack, l,
                   sub);
}

static void plan_ffn(const struct mk_model *m, struct mk_plan *plan, const char *stack, uint32_t l, uint32_t sub)
{
    const char *format = "%s.block.%u.layer.%u.mlp.experts.expert_%u.%s.weight";
    if (l % SPARSE_STEP == 1) {
        mk_plan_matrix(plan, MK_OTHER, l, m->experts, m->hidden, (float)(2 / sqrt(m->hidden)),
                       "%s.block.%u.layer.%u.mlp.router.classifier.weight", stack, l, sub);
        for (uint32_t e = 0; e < m->experts; e++) {
            mk_plan_linear(plan, MK_OTHER, l, e, m->intermediate, m->hidden, format, stack, l, sub, e, "wi");
            mk_plan_linear(plan, MK_OTHER, l, e, m->hidden, m->intermediate, format, stack, l, sub, e, "wo");
        }
    } else {
        mk_plan_linear(plan, MK_OTHER, l, 0, m->intermediate, m->hidden, "%s.block.%u.layer.%u.mlp.wi.weight", stack, l,
                       sub);
        mk_plan_linear(plan, MK_OTHER, l, 0, m->hidden, m->intermediate, "%s.block.%u.layer.%u.mlp.wo.weight", stack, l,
                       sub);
    }
    mk_plan_vector(plan, MK_OTHER, MK_FILL_NORM, l, 0, m->hidden, "%s.block.%u.layer.%u.layer_norm.weight", stack, l,
                   sub);
}

static void plan(const struct mk_model *m, struct mk_plan *plan)
{
    mk_plan_matrix(plan, MK_EMBED, 0, m->vocab, m->hidden, 1.0f, "shared.weight");
    for (uint32_t l = 0; l < m->layers; l++) {
        plan_attention(m, plan, "encoder", l, 0, "SelfAttention");
        plan_ffn(m, plan, "encoder", l, 1);
    }
    mk_plan_vector(plan, MK_OTHER, MK_FILL_NORM, 0, 0, m->hidden, "encoder.final_layer_norm.weight");
    for (uint32_t l = 0; l < m->layers; l++) {
        plan_attention(m, plan, "decoder", l, 0, "SelfAttention");
        plan_attention(m, plan, "decoder", l, 1, "EncDecAttention");
        plan_ffn(m, plan, "decoder", l, 2);
    }
    mk_plan_vector(plan, MK_OTHER, MK_FILL_NORM, 0, 0, m->hidden, "decoder.final_layer_norm.weight");
    mk_plan_matrix(plan, MK_HEAD, 0, m->vocab, m->hidden, (float)(1 / sqrt(m->hidden)), "lm_head.weight");
}

static json_t *config(const struct mk_model *m)
{
    return json_pack("{s:b, s:[s], s:i, s:i, s:i, s:i, s:i, s:s, s:f, s:i, s:i, s:s, s:f, s:b, s:b, s:f, s:s, s:i, s:i,"
                     " s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:b, s:s, s:b, s:f, s:f, s:b, s:b}",
                     "add_router_probs", 0, "architectures", "SwitchTransformersForConditionalGeneration", "d_ff",
                     (int)m->intermediate, "d_kv", (int)m->head_dim, "d_model", (int)m->hidden, "decoder_sparse_step",
                     (int)SPARSE_STEP, "decoder_start_token_id", 0, "dense_act_fn", "relu", "dropout_rate", 0.1,
                     "encoder_sparse_step", (int)SPARSE_STEP, "expert_capacity", 64, "feed_forward_proj", "relu",
                     "initializer_factor", 1.0, "is_encoder_decoder", 1, "is_gated_act", 0, "layer_norm_epsilon", 1e-6,
                     "model_type", "switch_transformers", "n_positions", 512, "num_decoder_layers", (int)m->layers,
                     "num_experts", (int)m->experts, "num_heads", (int)m->heads, "num_layers", (int)m->layers,
                     "num_sparse_decoder_layers", (int)(m->layers / SPARSE_STEP), "num_sparse_encoder_layers",
                     (int)(m->layers / SPARSE_STEP), "relative_attention_max_distance", 128,
                     "relative_attention_num_buckets", (int)BUCKETS, "router_aux_loss_coef", 0.001, "router_bias", 0,
                     "router_dtype", "float32", "router_ignore_padding_tokens", 0, "router_jitter_noise", 0.01,
                     "router_z_loss_coef", 0.001, "tie_word_embeddings", 0, "use_cache", 1);
}

const struct mk_family mk_family_switch = {
    .name = "switch", .layer_step = 2, .layer_min = 2, .head_divisor = 1, .plan = plan, .config = config};
