#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""qwen3_moe.py TOKENS CHECKPOINT=LOGITS...: compares logits of runmoe with an independent Qwen3-MoE in numpy and F64.

CHECKPOINT is a folder with config.json and model.safetensors, LOGITS the file that `runmoe --logits` wrote for TOKENS.
mlx-lm is a second reference where it is installed and supports the config. Two checkpoints with equal logits are an
error, because a key had no effect. Exit status 0: equal, 1: different, 77: numpy is missing."""
import json
import os
import struct
import sys

try:
    import numpy as np
except ImportError as missing:
    print(f"qwen3_moe.py: {missing}; tools/setup-python basic installs it")
    sys.exit(77)
try:
    import mlx.core as mx
    from mlx_lm.models import qwen3_moe, rope_utils
except (ImportError, OSError):
    mx = None

WITHIN = 2e-5  # relative to the largest logit: F32 against F64


def load(path):
    with open(os.path.join(path, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            raw = data[slice(*entry["data_offsets"])]
            wide = np.frombuffer(raw, np.float32) if entry["dtype"] == "F32" else (
                np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
            tensors[name] = wide.reshape(entry["shape"])
    with open(os.path.join(path, "config.json")) as file:
        return {key: value for key, value in json.load(file).items() if value is not None}, tensors


def rope(config, dim):
    """The angle per position of each pair, in radians, and the factor of cosine and sine."""
    given = {"rope_theta": config.get("rope_theta", 1e4), **config.get("rope_scaling", {}), **config.get("rope_parameters", {})}
    kind, base, factor = given.get("rope_type", given.get("type", "default")), given["rope_theta"], given.get("factor", 1)
    trained = given.get("original_max_position_embeddings", config.get("max_position_embeddings"))
    pairs = np.arange(dim // 2)
    step = 1.0 / base ** (2 * pairs / dim)
    if kind == "yarn":
        bounds = [dim * np.log(trained / (turns * 2 * np.pi)) / (2 * np.log(base))
                  for turns in (given.get("beta_fast", 32), given.get("beta_slow", 1))]
        bounds = [np.floor(bounds[0]), np.ceil(bounds[1])]
        low, high = max(bounds[0], 0), min(bounds[1], dim - 1)
        slow = np.clip((pairs - low) / (high - low or 0.001), 0, 1)
        return step * (1 - slow + slow / factor), given.get("attention_factor", 0.1 * np.log(factor) + 1)
    assert kind == "default", kind
    return step, 1


def forward(config, tensors, tokens):
    w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    heads, kv, K = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "num_experts_per_tok"))
    dim = config.get("head_dim", config["hidden_size"] // heads)
    step, scale = rope(config, dim)
    angle = np.outer(np.arange(len(tokens)), np.concatenate((step, step)))[:, None, :]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.get("rms_norm_eps", 1e-6)) * w[name + ".weight"]

    def linear(x, name):
        return x @ w[name + ".weight"].T

    def turn(x):
        return scale * (x * np.cos(angle) + np.concatenate((-x[..., dim // 2:], x[..., :dim // 2]), -1) * np.sin(angle))

    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        here = f"model.layers.{layer}."
        y = norm(x, here + "input_layernorm")
        q, k, v = (linear(y, f"{here}self_attn.{name}_proj").reshape(len(tokens), -1, dim) for name in "qkv")
        q, k = turn(norm(q, here + "self_attn.q_norm")), turn(norm(k, here + "self_attn.k_norm"))
        k, v = np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1)
        score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim) + np.triu(np.full((len(tokens),) * 2, -np.inf), 1)
        score = np.exp(score - score.max(-1, keepdims=True))
        y = np.einsum("hqk,khd->qhd", score / score.sum(-1, keepdims=True), v).reshape(len(tokens), -1)
        x = x + linear(y, here + "self_attn.o_proj")
        y = norm(x, here + "post_attention_layernorm")
        chance = np.exp(linear(y, here + "mlp.gate"))
        chance /= chance.sum(-1, keepdims=True)
        for t, row in enumerate(chance):
            best = np.argsort(-row, kind="stable")[:K]
            whole = row[best].sum() if config.get("norm_topk_prob") else 1
            for e in best:
                expert = f"{here}mlp.experts.{e}."
                gate = linear(y[t], expert + "gate_proj")
                x[t] += row[e] / whole * linear(gate / (1 + np.exp(-gate)) * linear(y[t], expert + "up_proj"), expert + "down_proj")
    head = "model.embed_tokens.weight" if config.get("tie_word_embeddings") else "lm_head.weight"
    return norm(x, "model.norm") @ w[head].T


def forward_mlx(config, tensors, tokens):
    """None where mlx-lm is missing, or ignores a key of this config."""
    rope_keys = config.get("rope_parameters", config.get("rope_scaling", {}))
    kind = rope_keys.get("rope_type", rope_keys.get("type", "default"))
    if mx is None or "attention_factor" in rope_keys or \
            kind == "yarn" and "original_max_position_embeddings" not in rope_keys:
        return None
    mx.set_default_device(mx.cpu)
    whole = {"rope_theta": 1e4, "rms_norm_eps": 1e-6, "norm_topk_prob": False, "head_dim": config["hidden_size"] // config["num_attention_heads"],
             "num_experts": config.get("num_local_experts"), **config}
    whole["rope_theta"] = rope_keys.get("rope_theta", whole["rope_theta"])
    model = qwen3_moe.Model(qwen3_moe.ModelArgs.from_dict(whole))
    model.load_weights(list(model.sanitize({name: mx.array(tensor) for name, tensor in tensors.items()}).items()))
    for layer in model.model.layers:  # by default it reads rope_theta only
        layer.self_attn.rope = rope_utils.initialize_rope(whole["head_dim"], whole["rope_theta"], False, rope_keys or None,
                                                          whole["max_position_embeddings"])
    model.eval()
    return np.array(model(mx.array([tokens])))[0].astype(np.float64)


def main():
    tokens = [int(token) for token in sys.argv[1].split(",")]
    good, seen = True, {}
    for pair in sys.argv[2:]:
        path, _, file = pair.partition("=")
        config, tensors = load(path)
        expected = forward(config, tensors, tokens)
        ours = np.fromfile(file, np.float32).reshape(expected.shape)
        largest = np.abs(expected).max()
        off = {"numpy": np.abs(ours - expected).max() / largest}
        other = forward_mlx(config, tensors, tokens)
        if other is not None:
            off["mlx-lm"] = np.abs(ours - other).max() / largest
        alike = min(((np.abs(ours - logits).max() / largest, name) for name, logits in seen.items()), default=(1, ""))
        seen[os.path.basename(path)] = ours
        fine = np.isfinite(ours).all() and max(off.values()) < WITHIN and alike[0] > 100 * WITHIN
        good &= bool(fine)
        print(f"{'ok    ' if fine else 'FAILED'} {os.path.basename(path)}: " +
              ", ".join(f"{value:.1e} off {name}" for name, value in off.items()) + f"; {alike[0]:.1e} beside {alike[1] or 'nothing'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
