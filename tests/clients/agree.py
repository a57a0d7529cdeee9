#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""agree.py DIRECTORY GGUF_FILE: the same weights as safetensors in mlx-lm and as GGUF in llama.cpp.

Two runtimes that share no code must tokenise a prompt alike and give nearly the same logits (their sums are rounded
in different orders). The checkpoint must be in F32. Exit 0: they agree, 1: not, 77: a package is missing."""
import sys

sys.path.pop(0)  # this folder, where "mlx" would be mlx.py

try:
    import numpy as np
    import llama_cpp
    import mlx.core as mx
    from mlx_lm import load
except (ImportError, OSError, RuntimeError) as missing:
    print(f"agree.py: {missing}; tools/setup-python runtimes installs it")
    sys.exit(77)

PROMPT = "The old man at the end of the pier counts the boats: 1, 2, 3... It's \u00fcber 90 %!"


def main():
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    model, tokenizer = load(sys.argv[1])
    model.set_dtype(mx.float32)
    tokens = tokenizer.encode(PROMPT)
    ours = np.array(model(mx.array([tokens]))[0])
    llama = llama_cpp.Llama(sys.argv[2], n_ctx=256, logits_all=True, n_threads=2, verbose=False,
                            type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
    if llama.tokenize(PROMPT.encode(), add_bos=False) != tokens:
        print(f"agree: the tokens differ: {tokens} and {llama.tokenize(PROMPT.encode(), add_bos=False)}")
        return 1
    if tokenizer.decode(tokens) != PROMPT or llama.detokenize(tokens).decode() != PROMPT:
        print("agree: the tokens do not give the prompt back")
        return 1
    llama.eval(tokens)
    theirs = llama.scores[: len(tokens)]
    error, spread = float(np.abs(ours - theirs).max()), float(theirs.std())
    # NaN must fail, too
    good = error < 1e-3 * spread and np.array_equal(ours.argmax(1), theirs.argmax(1))
    print(f"agree: {len(tokens)} tokens, logits of spread {spread:.2f} differ by {error:.1e} at most: "
          f"{'good' if good else 'TOO MUCH'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
