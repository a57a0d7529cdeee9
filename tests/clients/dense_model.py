#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dense_model.py OUT: a GGUF file of a model without experts (llama) with random weights in a type of ggml, such as
Q8_0 or Q4_K. Exit status 0; 77: a package is missing."""
import argparse
import os
import sys

from ggml_shapes import gguf, ml_dtypes, np, quantised

HEAD = 64
DRAWN_ROWS = 512  # of a matrix; its other rows repeat them


class Writer:
    def __init__(self, options):
        self.options, self.random, self.tensors = options, np.random.default_rng(1), []
        self.file = gguf.GGUFWriter(options.out + ".part", "llama")
        w, hidden = self.file, options.hidden
        w.add_block_count(options.layers)
        w.add_context_length(4096)
        w.add_embedding_length(hidden)
        w.add_feed_forward_length(options.inner)
        w.add_head_count(hidden // HEAD)
        w.add_head_count_kv(max(1, hidden // HEAD // 4))
        w.add_layer_norm_rms_eps(1e-5)
        w.add_rope_freq_base(10000.0)
        w.add_rope_dimension_count(HEAD)
        w.add_vocab_size(options.vocab)
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("gpt-2")
        w.add_token_list([f"t{i:06d}" for i in range(options.vocab)])
        w.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (options.vocab - 1))
        w.add_token_merges(["t 0"])
        w.add_bos_token_id(0)
        w.add_eos_token_id(0)

    def matrix(self, name, rows, columns):
        """Bytes of the rows, made when they are written."""
        kind = self.options.type
        numbers = self.random.normal(0, columns**-0.5, (min(rows, DRAWN_ROWS), columns)).astype(np.float32)
        if kind == "BF16":
            drawn, of = numbers.astype(ml_dtypes.bfloat16).view(np.uint8), gguf.GGMLQuantizationType.BF16
        elif kind == "F32":
            drawn, of = numbers, gguf.GGMLQuantizationType.F32
        else:
            drawn, of = quantised(kind, numbers)
        drawn = drawn.view(np.uint8).reshape(len(numbers), -1)
        self.file.add_tensor_info(name + ".weight", (rows, drawn.shape[1]) if of != gguf.GGMLQuantizationType.F32 else (rows, columns),
                                  np.dtype(np.uint8 if of != gguf.GGMLQuantizationType.F32 else np.float32), rows * drawn.shape[1], of)
        self.tensors.append((drawn, rows))

    def norm(self, name):
        numbers = self.random.normal(1, 0.1, self.options.hidden).astype(np.float32)
        self.file.add_tensor_info(name + ".weight", numbers.shape, numbers.dtype, numbers.nbytes)
        self.tensors.append((numbers.view(np.uint8).reshape(1, -1), 1))

    def write(self):
        w = self.file
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_ti_data_to_file()
        out = w.fout[0]
        for drawn, rows in self.tensors:
            w.write_padding(out, out.tell())
            for begin in range(0, rows, len(drawn)):
                out.write(drawn[:rows - begin].tobytes())
        w.write_padding(out, out.tell())
        w.close()
        os.rename(self.options.out + ".part", self.options.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--type", default="Q8_0")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--inner", type=int, default=2816)
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--tied", action="store_true", help="the output matrix is the token embedding")
    options = parser.parse_args()
    model, hidden = Writer(options), options.hidden
    model.matrix("token_embd", options.vocab, hidden)
    model.norm("output_norm")
    if not options.tied:
        model.matrix("output", options.vocab, hidden)
    for layer in range(options.layers):
        at, shared = f"blk.{layer}.", max(1, hidden // HEAD // 4) * HEAD
        model.norm(at + "attn_norm")
        for part, rows in (("attn_q", hidden), ("attn_k", shared), ("attn_v", shared), ("attn_output", hidden)):
            model.matrix(at + part, rows, hidden)
        model.norm(at + "ffn_norm")
        model.matrix(at + "ffn_gate", options.inner, hidden)
        model.matrix(at + "ffn_up", options.inner, hidden)
        model.matrix(at + "ffn_down", hidden, options.inner)
    model.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
