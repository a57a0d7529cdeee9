#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama.py MOUNT_FILE ORIGINAL_FILE: llama.cpp on a GGUF file of a mount and on the original.

With the file mapped and with it read: the logits of a prompt and of 16 greedily chosen tokens must be the same, bit
for bit. Exit 0: the same, 1: not, 77: llama-cpp-python is missing."""
import argparse
import sys

try:
    import numpy as np
    import llama_cpp
except (ImportError, OSError, RuntimeError) as missing:
    print(f"llama.py: {missing}; tools/setup-python runtimes installs llama-cpp-python")
    sys.exit(77)

PROMPT = b"The old man at the end of the pier counts the boats, and writes the number into a little book."


def run(path, mapped, count):
    """Tokens and logits: prompt and count chosen tokens."""
    model = llama_cpp.Llama(path, n_ctx=256, n_batch=64, logits_all=True, use_mmap=mapped, n_threads=2,
                            n_threads_batch=2, verbose=False)
    tokens = model.tokenize(PROMPT, add_bos=False)
    model.eval(tokens)
    for _ in range(count):
        chosen = int(np.argmax(model.scores[model.n_tokens - 1]))
        tokens.append(chosen)
        model.eval([chosen])
    logits = model.scores[: model.n_tokens].copy()
    model.close()
    return tokens, logits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mount_file")
    parser.add_argument("original_file")
    parser.add_argument("--tokens", type=int, default=16)
    arguments = parser.parse_args()
    different = 0
    for mapped in (True, False):
        way = "mmap" if mapped else "read"
        ours, our_logits = run(arguments.mount_file, mapped, arguments.tokens)
        theirs, their_logits = run(arguments.original_file, mapped, arguments.tokens)
        if not np.isfinite(their_logits).all() or np.ptp(their_logits) == 0:
            print(f"llama: {way}: the original's logits are no numbers to compare")
            different += 1
        same = ours == theirs and np.array_equal(our_logits.view(np.uint32), their_logits.view(np.uint32))
        different += not same
        print(f"llama: {way}: {len(theirs)} tokens, {their_logits.size} logits {'equal' if same else 'DIFFERENT'}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
