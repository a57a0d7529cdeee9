#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""inspect_checkpoint.py DIRECTORY [BF16|F16|F32|FP8]: is this what transformers would have saved?

Checks, with the real packages: each file opens; names, shapes and sizes agree with index and config.json; every
expert of every sparse layer is there; weights are spread as real ones are (entropy of exponents and mantissas).
Exit 0 or 1 with the reason, 77: a package is missing."""
import json
import math
import sys
from collections import Counter
from pathlib import Path

try:
    import numpy as np
    import safetensors
except ImportError as missing:
    print(f"{missing}; tools/setup-python basic installs it")
    sys.exit(77)

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}


def need(condition, text):
    if not condition:
        print(f"{sys.argv[1]}: {text}")
        sys.exit(1)


def read(root):
    """{name: (dtype, shape, bytes)} of all files, compared with the index."""
    tensors, places = {}, {}
    for path in sorted(root.glob("*.safetensors")):
        header = int.from_bytes(path.read_bytes()[:8], "little")
        need(header % 8 == 0, f"{path.name}: its header is not padded")
        with safetensors.safe_open(path, framework="numpy") as file:
            need(file.metadata() == {"format": "pt"}, f"{path.name}: metadata {file.metadata()}")
        for name, about in safetensors.deserialize(path.read_bytes()):
            need(name not in tensors, f"{name}: twice")
            tensors[name] = (about["dtype"], list(about["shape"]), np.frombuffer(about["data"], np.uint8))
            places[name] = path.name
    total = sum(data.size for _, _, data in tensors.values())
    index = root / "model.safetensors.index.json"
    if len(set(places.values())) == 1:
        need(not index.exists() and (root / "model.safetensors").exists(), "one shard, but not model.safetensors alone")
    else:
        text = json.loads(index.read_text())
        need(text["weight_map"] == places, "the index does not say where the tensors are")
        need(text["metadata"]["total_size"] == total, "total_size is wrong")
        count = len(set(places.values()))
        want = {f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)}
        need(want == set(places.values()), f"the shards are named {sorted(set(places.values()))}")
    for name, (dtype, shape, data) in tensors.items():
        need(math.prod(shape) * BYTES[dtype] == data.size, f"{name}: {dtype} {shape} has {data.size} bytes")
    return tensors


def expect(tensors, names_shapes):
    for name, shape in names_shapes.items():
        need(name in tensors, f"{name} is missing")
        need(tensors[name][1] == shape, f"{name}: shape {tensors[name][1]}, not {shape}")


def decoder_shapes(config):
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    return {"model.embed_tokens.weight": [vocab, hidden], "lm_head.weight": [vocab, hidden],
            "model.norm.weight": [hidden]}


def gated(prefix, hidden, inner, names=("gate_proj", "up_proj", "down_proj")):
    gate, up, down = (f"{prefix}.{name}.weight" for name in names)
    return {gate: [inner, hidden], up: [inner, hidden], down: [hidden, inner]}


def mixtral(c):
    shapes = decoder_shapes(c)
    for layer in range(c["num_hidden_layers"]):
        moe = f"model.layers.{layer}.block_sparse_moe"
        shapes[f"{moe}.gate.weight"] = [c["num_local_experts"], c["hidden_size"]]
        for e in range(c["num_local_experts"]):
            shapes |= gated(f"{moe}.experts.{e}", c["hidden_size"], c["intermediate_size"], ("w1", "w3", "w2"))
    return shapes


def qwen3_moe(c):
    shapes = decoder_shapes(c)
    for layer in range(c["num_hidden_layers"]):
        base = f"model.layers.{layer}"
        shapes[f"{base}.mlp.gate.weight"] = [c["num_experts"], c["hidden_size"]]
        shapes[f"{base}.self_attn.q_norm.weight"] = [c["head_dim"]]
        shapes[f"{base}.self_attn.q_proj.weight"] = [c["num_attention_heads"] * c["head_dim"], c["hidden_size"]]
        for e in range(c["num_experts"]):
            shapes |= gated(f"{base}.mlp.experts.{e}", c["hidden_size"], c["moe_intermediate_size"])
    return shapes


def deepseek_v2(c):
    shapes = decoder_shapes(c)
    hidden = c["hidden_size"]
    for layer in range(c["num_hidden_layers"]):
        base = f"model.layers.{layer}"
        shapes[f"{base}.self_attn.kv_a_proj_with_mqa.weight"] = [c["kv_lora_rank"] + c["qk_rope_head_dim"], hidden]
        shapes[f"{base}.self_attn.kv_b_proj.weight"] = [
            c["num_attention_heads"] * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"]]
        if layer < c["first_k_dense_replace"]:
            shapes |= gated(f"{base}.mlp", hidden, c["intermediate_size"])
            continue
        shapes[f"{base}.mlp.gate.weight"] = [c["n_routed_experts"], hidden]
        shapes |= gated(f"{base}.mlp.shared_experts", hidden, c["n_shared_experts"] * c["moe_intermediate_size"])
        for e in range(c["n_routed_experts"]):
            shapes |= gated(f"{base}.mlp.experts.{e}", hidden, c["moe_intermediate_size"])
    return shapes


def gpt_oss(c):
    shapes = decoder_shapes(c)
    experts, hidden, inner = c["num_local_experts"], c["hidden_size"], c["intermediate_size"]
    for layer in range(c["num_hidden_layers"]):
        base = f"model.layers.{layer}"
        shapes |= {f"{base}.self_attn.sinks": [c["num_attention_heads"]], f"{base}.mlp.router.weight": [experts, hidden],
                   f"{base}.mlp.router.bias": [experts],
                   f"{base}.mlp.experts.gate_up_proj": [experts, hidden, 2 * inner],
                   f"{base}.mlp.experts.gate_up_proj_bias": [experts, 2 * inner],
                   f"{base}.mlp.experts.down_proj": [experts, inner, hidden],
                   f"{base}.mlp.experts.down_proj_bias": [experts, hidden]}
    return shapes


def switch_transformers(c):
    shapes = {"shared.weight": [c["vocab_size"], c["d_model"]]}
    for stack, place in (("encoder", 1), ("decoder", 2)):
        for block in range(c["num_layers"]):
            mlp = f"{stack}.block.{block}.layer.{place}.mlp"
            experts = [f"{mlp}.experts.expert_{e}" for e in range(c["num_experts"])] if block % 2 else [mlp]
            for expert in experts:
                shapes |= {f"{expert}.wi.weight": [c["d_ff"], c["d_model"]],
                           f"{expert}.wo.weight": [c["d_model"], c["d_ff"]]}
            if block % 2:
                shapes[f"{mlp}.router.classifier.weight"] = [c["num_experts"], c["d_model"]]
    return shapes


def add_scales(shapes, tensors):
    """FP8: the linear layers have block scales, the rest is BF16."""
    for name in list(shapes):
        if tensors.get(name, ("",))[0] == "F8_E4M3":
            shapes[f"{name}_scale_inv"] = [(n + 127) // 128 for n in shapes[name]]
    scaled = [name for name in tensors if name.endswith("_scale_inv")]
    need(scaled and all(tensors[name[: -len("_scale_inv")]][0] == "F8_E4M3" for name in scaled), "scales without FP8")


def entropy(values):
    counts = np.array(list(Counter(values.tolist()).values()), float)
    share = counts / counts.sum()
    return float(-(share * np.log2(share)).sum())


def spread(tensors, dtype):
    """Entropy of exponents and of sign and mantissa over all weights of the type."""
    data = np.concatenate([data for kind, shape, data in tensors.values() if kind == dtype and len(shape) > 1])
    if dtype == "BF16":
        words = data.view(np.uint16)
        return entropy(words >> 7 & 255), entropy((words >> 8 & 128) | (words & 127))
    if dtype == "F16":
        words = data.view(np.uint16)
        return entropy(words >> 10 & 31), entropy(words >> 2 & 255)
    if dtype == "F32":
        words = data.view(np.uint32)
        return entropy(words >> 23 & 255), entropy(words & 255)
    return entropy(data >> 3 & 15), entropy((data >> 4 & 8) | (data & 7))


def main():
    root, dtype = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "BF16"
    config = json.loads((root / "config.json").read_text())
    tensors = read(root)
    shapes = globals()[config["model_type"]](config)
    main_type = "F8_E4M3" if dtype == "FP8" else dtype
    if dtype == "FP8":
        add_scales(shapes, tensors)
    expect(tensors, shapes)
    others = {kind for kind, _, _ in tensors.values()} - {main_type}
    need(others == ({"BF16", "F32"} if dtype == "FP8" else set()), f"types {others} beside {main_type}")
    e, sm = spread(tensors, main_type)
    full = 4 if dtype == "FP8" else 8
    # embeddings have another scale than the rest, so E of all together is a little above that of one tensor
    need(2.5 < e < 3.2 and full - 0.06 < sm <= full, f"entropy: exponents {e:.2f}, rest {sm:.2f} of {full} bits")
    vocab = json.loads((root / "tokenizer.json").read_text())["model"]["vocab"]
    need(sorted(vocab.values()) == list(range(config["vocab_size"])), "the vocabulary has gaps")
    print(f"{root.name}: {len(tensors)} tensors, exponents {e:.2f} bits, rest {sm:.2f}")


if __name__ == "__main__":
    main()
