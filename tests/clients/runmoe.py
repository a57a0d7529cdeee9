#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""runmoe.py RUNMOE STORE GGUF_FILE: compares runmoe and llama.cpp on the same weights and tokens.

STORE is packed from the safetensors with the seed of GGUF_FILE. The logits of all positions are compared: the largest
difference, the correlation of the tokens' ranks, and the number of positions with the same most probable token.
llama.cpp rounds activations to BF16 where weights are BF16. Sums in another order differ in their last bit, which
sometimes rounds to the next BF16 number, and more such differences follow, so BF16 weights are compared twice: rounded
in both programs, with GGUF_FILE, and in neither, with the same weights as F32 in a copy of GGUF_FILE. The second must
agree at --least of the positions, the first at --least-rounded of them; llama.cpp compared with itself, one token at a
time, which changes the order of its sums, shows what to expect. In a model of one layer hardly any sum is near such a
border: --rounded-within limits its median difference. Exit status 0: they agree, 1: they do not, 77: llama-cpp-python
or gguf is missing."""
import argparse
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import gguf
    import llama_cpp
except (ImportError, OSError, RuntimeError) as missing:
    print(f"runmoe.py: {missing}; tools/setup-python basic runtimes installs it")
    sys.exit(77)

BEST = 10
HALVES = (gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.F16)


def llama_logits(path, tokens, threads, batch=64):
    f32 = llama_cpp.GGML_TYPE_F32
    model = llama_cpp.Llama(path, n_ctx=len(tokens) + 8, n_batch=batch, n_ubatch=batch, n_threads=threads,
                            n_threads_batch=threads, logits_all=True, verbose=False, type_k=f32, type_v=f32)
    model.eval(tokens)
    logits = model.scores[: len(tokens)].copy()
    model.close()
    return logits


def runmoe_logits(arguments, tokens, activations, path):
    command = [arguments.runmoe, arguments.store, "--prompt", ",".join(map(str, tokens)), "--tokens", "0", "--logits", path,
               "--threads", str(arguments.threads), "--activations", activations]
    subprocess.run(command + (["--budget", arguments.budget] if arguments.budget else []), stdout=subprocess.DEVNULL,
                   check=True)
    return np.fromfile(path, np.float32).reshape(len(tokens), -1)


def as_f32(path, copy):
    """Writes the same model with BF16 and F16 weights as F32. Returns their number."""
    reader, count = gguf.GGUFReader(path), 0
    writer = gguf.GGUFWriter(copy, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0]
            writer.add_key_value(field.name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    writer.data_alignment = reader.alignment
    wide = {}
    for tensor in reader.tensors:
        count += tensor.tensor_type in HALVES
        wide[tensor.name] = tensor
        shape = [int(n) for n in reversed(tensor.shape)]
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), int(np.prod(shape)) * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in wide.values():
        data = np.ascontiguousarray(tensor.data)
        if tensor.tensor_type == gguf.GGMLQuantizationType.BF16:
            data = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        writer.write_tensor_data(data.astype(np.float32))
    writer.close()
    return count


def ranks(logits):
    out = np.empty(logits.shape)
    np.put_along_axis(out, np.argsort(logits, axis=1), np.arange(logits.shape[1])[None, :], axis=1)
    return out


def compare(what, ours, theirs, least, within=None):
    """Prints the differences, also how much each program prefers its own token where they differ. Returns whether the
    best token agrees often enough and the median difference is within the limit."""
    if ours.shape != theirs.shape or not np.isfinite(ours).all() or not np.isfinite(theirs).all() or not np.ptp(theirs):
        print(f"runmoe: {what}: logits of {ours.shape} and {theirs.shape} are no numbers to compare")
        return False
    same = int((ours.argmax(1) == theirs.argmax(1)).sum())
    difference = np.abs(ours - theirs)
    correlation = np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(ranks(ours), ranks(theirs))])
    best = np.mean([len(set(a) & set(b)) for a, b in zip(np.argsort(-ours, 1)[:, :BEST], np.argsort(-theirs, 1)[:, :BEST])])
    print(f"runmoe: {what}: logits of spread {theirs.std():.3f} differ by {difference.max():.1e} at most, "
          f"{np.median(difference):.1e} at the median; ranks correlate by {correlation:.6f}; {best:.2f} of {BEST} best "
          f"tokens, and the best one at {same} of {len(ours)} positions the same", flush=True)
    for at in np.nonzero(ours.argmax(1) != theirs.argmax(1))[0]:
        a, b = ours[at].argmax(), theirs[at].argmax()
        print(f"   position {at}: token {a} by {ours[at, a] - ours[at, b]:.1e}, {b} by {theirs[at, b] - theirs[at, a]:.1e}; "
              f"the logits there differ by {np.sqrt((difference[at] ** 2).mean()):.1e} (root mean square)")
    return same >= least * len(ours) and (within is None or np.median(difference) <= within)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runmoe")
    parser.add_argument("store")
    parser.add_argument("gguf")
    parser.add_argument("--positions", type=int, default=100)
    parser.add_argument("--least", type=float, default=0.99)
    parser.add_argument("--least-rounded", type=float, default=0.97, help="with activations in BF16 (0.97)")
    parser.add_argument("--rounded-within", type=float, help="the median difference of logits, activations in BF16")
    parser.add_argument("--seed", type=int, default=1, help="of the tokens")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--budget", help="of runmoe")
    arguments = parser.parse_args()
    vocabulary = len(gguf.GGUFReader(arguments.gguf).fields["tokenizer.ggml.tokens"].data)
    tokens = np.random.default_rng(arguments.seed).integers(0, vocabulary, arguments.positions).tolist()
    with tempfile.TemporaryDirectory() as folder:
        scratch = os.path.join(folder, "logits")
        copy = os.path.join(folder, "f32.gguf")
        exact = runmoe_logits(arguments, tokens, "f32", scratch)
        good = True
        if as_f32(arguments.gguf, copy):
            theirs = llama_logits(arguments.gguf, tokens, arguments.threads)
            good = compare("activations in BF16", runmoe_logits(arguments, tokens, "bf16", scratch), theirs,
                           arguments.least_rounded, arguments.rounded_within)
            compare("llama.cpp, token by token, beside itself", llama_logits(arguments.gguf, tokens, arguments.threads, 1),
                    theirs, 0)
        good &= compare("activations in F32", exact, llama_logits(copy, tokens, arguments.threads), arguments.least)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
