#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers.py MOUNT ORIGINAL: transformers, by PyTorch on the CPU, on a checkpoint directory of a mount and on the
original.

The logits of a prompt and 8 greedily chosen tokens must be the same, bit for bit.
Exit 0: the same, 1: not, 77: transformers or torch is missing."""
import sys

sys.path.pop(0)  # this folder, where "transformers" would be this file

import argparse  # noqa: E402

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
except (ImportError, OSError) as missing:
    print(f"transformers.py: {missing}; pip install torch transformers")
    sys.exit(77)

PROMPT = "The old man at the end of the pier counts the boats, and writes the number into a little book."


def run(path, count):
    """The tokens, and the logits of the prompt."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    asked = AutoTokenizer.from_pretrained(path)(PROMPT, return_tensors="pt")
    with torch.no_grad():
        logits = model(**asked).logits
    tokens = model.generate(**asked, max_new_tokens=count, do_sample=False)[0].tolist()
    return tokens, logits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mount")
    parser.add_argument("original")
    parser.add_argument("--tokens", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order
    ours, our_logits = run(arguments.mount, arguments.tokens)
    theirs, their_logits = run(arguments.original, arguments.tokens)
    if not torch.isfinite(their_logits).all() or their_logits.min() == their_logits.max():
        print("transformers: the original's logits are no numbers to compare")
        return 1
    same = ours == theirs and torch.equal(our_logits.view(torch.uint8), their_logits.view(torch.uint8))
    print(f"transformers {our_logits.dtype}: {len(theirs)} tokens, {their_logits.numel()} logits "
          f"{'equal' if same else 'DIFFERENT'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
