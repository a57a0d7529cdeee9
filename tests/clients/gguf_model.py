#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gguf_model.py FAMILY OUT: a small GGUF file with random weights, of families that mkmodel does not write as GGUF,
using Python's gguf package. gpt-oss: BF16 experts with biases, a sliding window in every second layer, sinks.
nomic-bert-moe: experts of two matrices in every second layer; an embedding model, the only family of llama.cpp with
such experts that has attention in all layers. qwen2moe: shared experts. qwen3moe: a scale for each matrix of an
expert."""
import argparse
import sys

try:
    import ml_dtypes
    import numpy as np
    import gguf
except ImportError as missing:
    print(f"gguf_model.py: {missing}; tools/setup-python basic installs it")
    sys.exit(77)

VOCAB, HIDDEN, INNER, EXPERTS, USED, LAYERS, HEADS, KV_HEADS, HEAD = 512, 256, 192, 8, 4, 4, 4, 2, 64


class Model:
    def __init__(self, family, out):
        self.writer, self.family = gguf.GGUFWriter(out, family), family
        self.random = np.random.default_rng(len(family))
        w = self.writer
        w.add_block_count(LAYERS)
        w.add_context_length(4096)
        w.add_embedding_length(HIDDEN)
        w.add_feed_forward_length(INNER)
        w.add_expert_feed_forward_length(INNER)
        w.add_expert_count(EXPERTS)
        w.add_expert_used_count(USED)
        w.add_head_count(HEADS)
        w.add_rope_freq_base(10000.0)
        w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("gpt-2")
        w.add_token_list([f"t{i:03d}" for i in range(VOCAB)])
        w.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (VOCAB - 1))
        w.add_token_merges(["t 0"])
        w.add_bos_token_id(0)
        w.add_eos_token_id(0)

    def matrix(self, name, *shape):
        weights = self.random.normal(0, 1 / np.sqrt(shape[-1]), shape).astype(ml_dtypes.bfloat16)
        self.writer.add_tensor(name + ".weight", weights.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    def floats(self, name, *shape, around=0.0):
        """A vector, a bias or a router: converters leave them in F32."""
        self.writer.add_tensor(name, self.random.normal(around, 0.1, shape).astype(np.float32))

    def attention(self, layer, biases):
        for part, rows, cols in (("q", HEADS * HEAD, HIDDEN), ("k", KV_HEADS * HEAD, HIDDEN), ("v", KV_HEADS * HEAD, HIDDEN),
                                 ("output", HIDDEN, HEADS * HEAD)):
            self.matrix(f"blk.{layer}.attn_{part}", rows, cols)
            if biases:
                self.floats(f"blk.{layer}.attn_{part}.bias", rows)

    def experts(self, layer, parts, biases):
        self.floats(f"blk.{layer}.ffn_gate_inp.weight", EXPERTS, HIDDEN)
        if biases:
            self.floats(f"blk.{layer}.ffn_gate_inp.bias", EXPERTS)
        for part in parts:
            rows, cols = (HIDDEN, INNER) if part == "down" else (INNER, HIDDEN)
            self.matrix(f"blk.{layer}.ffn_{part}_exps", EXPERTS, rows, cols)
            if biases:
                self.floats(f"blk.{layer}.ffn_{part}_exps.bias", EXPERTS, rows)

    def write(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def gpt_oss(model):
    w = model.writer
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD)
    w.add_value_length(HEAD)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_sliding_window(128)
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(32.0)
    w.add_rope_scaling_orig_ctx_len(4096)
    model.matrix("token_embd", VOCAB, HIDDEN)
    for layer in range(LAYERS):
        model.floats(f"blk.{layer}.attn_norm.weight", HIDDEN, around=1.0)
        model.attention(layer, True)
        model.floats(f"blk.{layer}.attn_sinks.weight", HEADS)
        model.floats(f"blk.{layer}.post_attention_norm.weight", HIDDEN, around=1.0)
        model.experts(layer, ("gate", "up", "down"), True)
    model.floats("output_norm.weight", HIDDEN, around=1.0)
    model.matrix("output", VOCAB, HIDDEN)


def nomic_bert_moe(model):
    w = model.writer
    w.add_head_count_kv(HEADS)
    w.add_layer_norm_eps(1e-5)
    w.add_causal_attention(False)
    w.add_pooling_type(gguf.PoolingType.NONE)
    w.add_moe_every_n_layers(2)
    w.add_token_type_count(1)
    model.matrix("token_embd", VOCAB, HIDDEN)
    model.floats("token_types.weight", 1, HIDDEN)
    for name in ("token_embd_norm", *(f"blk.{layer}.{part}_norm" for layer in range(LAYERS)
                                      for part in ("attn_output", "layer_output"))):
        model.floats(name + ".weight", HIDDEN, around=1.0)
        model.floats(name + ".bias", HIDDEN)
    for layer in range(LAYERS):
        model.matrix(f"blk.{layer}.attn_qkv", 3 * HIDDEN, HIDDEN)
        model.floats(f"blk.{layer}.attn_qkv.bias", 3 * HIDDEN)
        model.matrix(f"blk.{layer}.attn_output", HIDDEN, HIDDEN)
        model.floats(f"blk.{layer}.attn_output.bias", HIDDEN)
        if layer % 2:
            model.experts(layer, ("up", "down"), False)
        else:
            model.matrix(f"blk.{layer}.ffn_up", INNER, HIDDEN)
            model.matrix(f"blk.{layer}.ffn_down", HIDDEN, INNER)


def qwen(model):
    shared = model.family == "qwen2moe"
    w = model.writer
    w.add_head_count_kv(KV_HEADS)
    w.add_layer_norm_rms_eps(1e-6)
    model.matrix("token_embd", VOCAB, HIDDEN)
    for layer in range(LAYERS):
        name = f"blk.{layer}."
        for norm, size in (("attn", HIDDEN), ("ffn", HIDDEN)) + (() if shared else (("attn_q", HEAD), ("attn_k", HEAD))):
            model.floats(f"{name}{norm}_norm.weight", size, around=1.0)
        model.attention(layer, False)
        model.experts(layer, ("gate", "up", "down"), False)
        if shared:
            model.floats(name + "ffn_gate_inp_shexp.weight", HIDDEN)
        for part in ("gate", "up", "down"):
            if shared:
                model.matrix(f"{name}ffn_{part}_shexp", *((HIDDEN, INNER) if part == "down" else (INNER, HIDDEN)))
            else:
                model.floats(f"{name}ffn_{part}_exps.scale", EXPERTS, around=1.0)
    if shared:
        w.add_expert_shared_feed_forward_length(INNER)
    model.floats("output_norm.weight", HIDDEN, around=1.0)
    model.matrix("output", VOCAB, HIDDEN)


def main():
    families = {"gpt-oss": gpt_oss, "nomic-bert-moe": nomic_bert_moe, "qwen2moe": qwen, "qwen3moe": qwen}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=families)
    parser.add_argument("out")
    arguments = parser.parse_args()
    model = Model(arguments.family, arguments.out)
    families[arguments.family](model)
    model.write()


if __name__ == "__main__":
    main()
