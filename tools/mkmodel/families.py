# SPDX-License-Identifier: Apache-2.0
"""families.py - names and shapes of the tensors and the config.json of each family of models, as in transformers."""
from collections import namedtuple

# fill: "linear" (FP8 in FP8 checkpoints), "matrix", "norm" (values near 1) or "bias" (near 0); std: of the elements
Tensor = namedtuple("Tensor", "name shape fill std")
# derive: computes the remaining sizes of a model. tensors: in model order. formats: besides BF16 safetensors.
# The number of layers is a multiple of step, at least least; heads: query heads per key/value head.
Family = namedtuple("Family", "tensors config derive formats step least heads")


def linear(name, rows, columns):
    return Tensor(name, (rows, columns), "linear", columns ** -0.5)


def matrix(name, *shape, std):
    return Tensor(name, shape, "matrix", std)


def norm(name, size):
    return Tensor(name, (size,), "norm", 0.1)


def bias(name, *shape):
    return Tensor(name, shape, "bias", 0.02)


def router(name, m):
    return matrix(name, m.experts, m.hidden, std=2 * m.hidden ** -0.5)


def head(m):
    return matrix("lm_head.weight", m.vocab, m.hidden, std=m.hidden ** -0.5)


def decoder(m, layer_tensors):
    """Tensors of a decoder. Each layer has those of layer_tensors(m, base, layer) and two norms."""
    yield matrix("model.embed_tokens.weight", m.vocab, m.hidden, std=1.0)
    for layer in range(m.layers):
        base = f"model.layers.{layer}"
        yield from layer_tensors(m, base, layer)
        yield norm(f"{base}.input_layernorm.weight", m.hidden)
        yield norm(f"{base}.post_attention_layernorm.weight", m.hidden)
    yield norm("model.norm.weight", m.hidden)
    yield head(m)


def attention(m, base):
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    for part, rows, columns in (("q", q, m.hidden), ("k", kv, m.hidden), ("v", kv, m.hidden), ("o", m.hidden, q)):
        yield linear(f"{base}.self_attn.{part}_proj.weight", rows, columns)


def gated(m, base, inner):
    yield linear(f"{base}.gate_proj.weight", inner, m.hidden)
    yield linear(f"{base}.up_proj.weight", inner, m.hidden)
    yield linear(f"{base}.down_proj.weight", m.hidden, inner)


def common_config(m, architecture, model_type, **more):
    return {"architectures": [architecture], "model_type": model_type, "attention_dropout": 0.0, "hidden_act": "silu",
            "hidden_size": m.hidden, "initializer_range": 0.02, "max_position_embeddings": m.context,
            "num_attention_heads": m.heads, "num_experts_per_tok": m.used, "num_hidden_layers": m.layers,
            "num_key_value_heads": m.kv_heads, "tie_word_embeddings": False, "use_cache": True} | more


def mixtral_layer(m, base, _layer):
    base, outer = f"{base}.block_sparse_moe", base
    yield from attention(m, outer)
    yield router(f"{base}.gate.weight", m)
    for e in range(m.experts):
        yield linear(f"{base}.experts.{e}.w1.weight", m.inner, m.hidden)
        yield linear(f"{base}.experts.{e}.w2.weight", m.hidden, m.inner)
        yield linear(f"{base}.experts.{e}.w3.weight", m.inner, m.hidden)


def mixtral_config(m):
    return common_config(m, "MixtralForCausalLM", "mixtral", intermediate_size=m.inner, num_local_experts=m.experts,
                         output_router_logits=False, rms_norm_eps=1e-5, rope_theta=1e6, router_aux_loss_coef=0.02,
                         sliding_window=None)


def qwen3_derive(m):
    m.dense_inner = 3 * m.hidden


def qwen3_layer(m, base, _layer):
    yield from attention(m, base)
    yield norm(f"{base}.self_attn.q_norm.weight", m.head_dim)
    yield norm(f"{base}.self_attn.k_norm.weight", m.head_dim)
    yield router(f"{base}.mlp.gate.weight", m)
    for e in range(m.experts):
        yield from gated(m, f"{base}.mlp.experts.{e}", m.inner)


def qwen3_config(m):
    return common_config(m, "Qwen3MoeForCausalLM", "qwen3_moe", attention_bias=False, decoder_sparse_step=1,
                         head_dim=m.head_dim, intermediate_size=m.dense_inner, max_window_layers=m.layers,
                         mlp_only_layers=[], moe_intermediate_size=m.inner, norm_topk_prob=True,
                         num_experts=m.experts, output_router_logits=False, rms_norm_eps=1e-6, rope_scaling=None,
                         rope_theta=1e6, router_aux_loss_coef=0.001, sliding_window=None, use_sliding_window=False)


SHARED_EXPERTS = 2  # of DeepSeek-V2: run for each token; its first layer is dense


def deepseek_derive(m):
    """Sizes of multi-head latent attention: the ranks, and the part of each head with RoPE."""
    m.kv_heads, m.rope_dim, m.kv_rank = m.heads, m.head_dim // 2, m.hidden // 4
    m.q_rank = max(32, m.hidden * 3 // 8 // 32 * 32)
    m.dense_inner = m.inner * (SHARED_EXPERTS + m.used)


def deepseek_layer(m, base, layer):
    a, values = f"{base}.self_attn", m.heads * m.head_dim
    yield linear(f"{a}.q_a_proj.weight", m.q_rank, m.hidden)
    yield norm(f"{a}.q_a_layernorm.weight", m.q_rank)
    yield linear(f"{a}.q_b_proj.weight", values + m.heads * m.rope_dim, m.q_rank)
    yield linear(f"{a}.kv_a_proj_with_mqa.weight", m.kv_rank + m.rope_dim, m.hidden)
    yield norm(f"{a}.kv_a_layernorm.weight", m.kv_rank)
    yield linear(f"{a}.kv_b_proj.weight", 2 * values, m.kv_rank)
    yield linear(f"{a}.o_proj.weight", m.hidden, values)
    if layer == 0:
        yield from gated(m, f"{base}.mlp", m.dense_inner)
        return
    for e in range(m.experts):
        yield from gated(m, f"{base}.mlp.experts.{e}", m.inner)
    yield router(f"{base}.mlp.gate.weight", m)
    yield from gated(m, f"{base}.mlp.shared_experts", SHARED_EXPERTS * m.inner)


def yarn(m, **more):
    return {"original_max_position_embeddings": m.context} | more


def deepseek_config(m):
    rope = yarn(m, type="yarn", beta_fast=32, beta_slow=1, factor=40.0, mscale=0.707, mscale_all_dim=0.707)
    return common_config(m, "DeepseekV2ForCausalLM", "deepseek_v2", attention_bias=False, aux_loss_alpha=0.001,
                         first_k_dense_replace=1, intermediate_size=m.dense_inner, kv_lora_rank=m.kv_rank,
                         max_position_embeddings=40 * m.context, moe_intermediate_size=m.inner, moe_layer_freq=1,
                         n_group=1, n_routed_experts=m.experts, n_shared_experts=SHARED_EXPERTS, norm_topk_prob=False,
                         q_lora_rank=m.q_rank, qk_nope_head_dim=m.head_dim, qk_rope_head_dim=m.rope_dim,
                         rms_norm_eps=1e-6, rope_scaling=rope, rope_theta=10000.0, routed_scaling_factor=1.0,
                         scoring_func="softmax", seq_aux=True, topk_group=1, topk_method="greedy",
                         v_head_dim=m.head_dim)


def gpt_oss_layer(m, base, _layer):
    """As in the published BF16 variants: all experts of a layer in one tensor, biases on all layers."""
    yield bias(f"{base}.self_attn.sinks", m.heads)
    for weight in attention(m, base):
        yield weight
        yield bias(weight.name.removesuffix("weight") + "bias", weight.shape[0])
    yield router(f"{base}.mlp.router.weight", m)
    yield bias(f"{base}.mlp.router.bias", m.experts)
    for part, inputs, outputs in (("gate_up", m.hidden, 2 * m.inner), ("down", m.inner, m.hidden)):
        yield matrix(f"{base}.mlp.experts.{part}_proj", m.experts, inputs, outputs, std=inputs ** -0.5)
        yield bias(f"{base}.mlp.experts.{part}_proj_bias", m.experts, outputs)


def gpt_oss_config(m):
    rope = yarn(m, rope_type="yarn", beta_fast=32.0, beta_slow=1.0, factor=32.0, truncate=False)
    return common_config(m, "GptOssForCausalLM", "gpt_oss", attention_bias=True, experts_per_token=m.used,
                         head_dim=m.head_dim, initial_context_length=m.context, intermediate_size=m.inner,
                         layer_types=["sliding_attention", "full_attention"] * (m.layers // 2),
                         max_position_embeddings=32 * m.context, num_local_experts=m.experts,
                         output_router_logits=False, rms_norm_eps=1e-5, rope_scaling=rope, rope_theta=150000,
                         router_aux_loss_coef=0.9, sliding_window=128, swiglu_limit=7.0)


def switch_attention(m, base, kind):
    values = m.heads * m.head_dim
    for part in "qkvo":
        yield linear(f"{base}.{kind}.{part}.weight", *((m.hidden, values) if part == "o" else (values, m.hidden)))
    if base.endswith("block.0.layer.0"):
        yield matrix(f"{base}.{kind}.relative_attention_bias.weight", 32, m.heads, std=0.5)
    yield norm(f"{base}.layer_norm.weight", m.hidden)


def switch_ffn(m, base, layer):
    sparse = layer % 2 == 1
    if sparse:
        yield router(f"{base}.mlp.router.classifier.weight", m)
    for e in range(m.experts if sparse else 1):
        place = f"{base}.mlp.experts.expert_{e}" if sparse else f"{base}.mlp"
        yield linear(f"{place}.wi.weight", m.inner, m.hidden)
        yield linear(f"{place}.wo.weight", m.hidden, m.inner)
    yield norm(f"{base}.layer_norm.weight", m.hidden)


def switch_tensors(m):
    """Encoder and decoder of T5, with experts in every second block of both."""
    yield matrix("shared.weight", m.vocab, m.hidden, std=1.0)
    for stack in ("encoder", "decoder"):
        for layer in range(m.layers):
            base = f"{stack}.block.{layer}.layer"
            yield from switch_attention(m, f"{base}.0", "SelfAttention")
            if stack == "decoder":
                yield from switch_attention(m, f"{base}.1", "EncDecAttention")
            yield from switch_ffn(m, f"{base}.{1 + (stack == 'decoder')}", layer)
        yield norm(f"{stack}.final_layer_norm.weight", m.hidden)
    yield head(m)


def switch_config(m):
    return {"architectures": ["SwitchTransformersForConditionalGeneration"], "model_type": "switch_transformers",
            "add_router_probs": False, "d_ff": m.inner, "d_kv": m.head_dim, "d_model": m.hidden,
            "decoder_sparse_step": 2, "decoder_start_token_id": 0, "dense_act_fn": "relu", "dropout_rate": 0.1,
            "encoder_sparse_step": 2, "expert_capacity": 64, "feed_forward_proj": "relu", "initializer_factor": 1.0,
            "is_encoder_decoder": True, "is_gated_act": False, "layer_norm_epsilon": 1e-6, "n_positions": 512,
            "num_decoder_layers": m.layers, "num_experts": m.experts, "num_heads": m.heads, "num_layers": m.layers,
            "num_sparse_decoder_layers": m.layers // 2, "num_sparse_encoder_layers": m.layers // 2,
            "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32,
            "router_aux_loss_coef": 0.001, "router_bias": False, "router_dtype": "float32",
            "router_ignore_padding_tokens": False, "router_jitter_noise": 0.01, "router_z_loss_coef": 0.001,
            "tie_word_embeddings": False, "use_cache": True}


def nothing(_m):
    pass


FAMILIES = {
    "mixtral": Family(lambda m: decoder(m, mixtral_layer), mixtral_config, nothing, ("gguf",), 1, 1, 4),
    "qwen3-moe": Family(lambda m: decoder(m, qwen3_layer), qwen3_config, qwen3_derive, ("gguf", "fp8"), 1, 1, 8),
    "deepseek-v2": Family(lambda m: decoder(m, deepseek_layer), deepseek_config, deepseek_derive, ("fp8",), 1, 2, 1),
    "gpt-oss": Family(lambda m: decoder(m, gpt_oss_layer), gpt_oss_config, nothing, (), 2, 2, 8),
    "switch": Family(switch_tensors, switch_config, nothing, (), 2, 2, 1),
}
# Sizes that a preset sets unless an option does
SIZES = ("layers", "experts", "used", "hidden", "inner", "vocab", "shard")
PRESETS = {name: (family, dict(zip(SIZES, sizes))) for name, family, *sizes in (
    ("demo", "qwen3-moe", 6, 16, 4, 2048, 768, 8192, 256 << 20),
    ("replay", "qwen3-moe", 24, 32, 4, 2048, 768, 8192, 1 << 30),
    ("tiny-mixtral", "mixtral", 3, 4, 2, 128, 256, 640, 1 << 20),
    ("tiny-qwen3-moe", "qwen3-moe", 3, 8, 2, 128, 128, 640, 1 << 20),
    ("tiny-deepseek-v2", "deepseek-v2", 3, 8, 2, 128, 128, 640, 1 << 20),
    ("tiny-gpt-oss", "gpt-oss", 4, 8, 2, 128, 128, 640, 1 << 20),
    ("tiny-switch", "switch", 4, 8, 1, 128, 256, 640, 1 << 20))}
