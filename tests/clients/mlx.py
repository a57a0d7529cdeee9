#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mlx.py MOUNT ORIGINAL: mlx-lm (on the CPU) on a checkpoint directory of a mount and on the original.

The logits of a prompt and 16 greedily chosen tokens must be the same, bit for bit.
Exit 0: the same, 1: not, 77: mlx-lm is missing, or does not know the family."""
import sys

sys.path.pop(0)  # this folder, where "mlx" would be this file

import argparse  # noqa: E402
import json  # noqa: E402
from pathlib import Path  # noqa: E402

try:
    import numpy as np
    import mlx.core as mx
    from mlx_lm import load
except (ImportError, OSError) as missing:
    print(f"mlx.py: {missing}; tools/setup-python runtimes installs mlx-lm")
    sys.exit(77)

PROMPT = "The old man at the end of the pier counts the boats, and writes the number into a little book."
FAMILIES = ("mixtral", "qwen3_moe", "deepseek_v2")  # gpt_oss: only its quantised layout


def run(path, count):
    """Tokens and logits: the prompt's, and those of each chosen token. In float32, as mlx's CPU kernels need it."""
    model, tokenizer = load(path)
    model.set_dtype(mx.float32)
    tokens = tokenizer.encode(PROMPT)
    logits = []
    for _ in range(count):
        output = model(mx.array([tokens]))[0]
        mx.eval(output)
        logits.append(np.array(output))
        tokens.append(int(np.argmax(logits[-1][-1])))
    return tokens, np.concatenate(logits)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mount")
    parser.add_argument("original")
    parser.add_argument("--tokens", type=int, default=16)
    arguments = parser.parse_args()
    config = json.loads((Path(arguments.original) / "config.json").read_text())
    if config["model_type"] not in FAMILIES or "quantization_config" in config:
        print(f"mlx.py: mlx-lm does not read {config['model_type']} as it is here")
        return 77
    ours, our_logits = run(arguments.mount, arguments.tokens)
    theirs, their_logits = run(arguments.original, arguments.tokens)
    if not np.isfinite(their_logits).all() or np.ptp(their_logits) == 0:
        print("mlx: the original's logits are no numbers to compare")
        return 1
    same = ours == theirs and np.array_equal(our_logits.view(np.uint32), their_logits.view(np.uint32))
    print(f"mlx: {len(theirs)} tokens, {their_logits.size} logits {'equal' if same else 'DIFFERENT'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
