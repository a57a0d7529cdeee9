#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""runtimes.py mlx|transformers|llama OURS ORIGINAL: a runtime on a mounted checkpoint and on the original: directories,
for llama.cpp GGUF files. The logits of a prompt and the greedily chosen tokens must be equal, bit for bit; for
llama.cpp with the file mapped and read.
runtimes.py agree DIRECTORY GGUF_FILE: the same weights, in F32, as safetensors in mlx-lm and as GGUF in llama.cpp. Two
runtimes that share no code must tokenise a prompt equally and give nearly the same logits: the order of their sums
differs.
Exit status 0: equal, 1: not, 77: a package is missing, or does not support the family."""
import importlib
import json
import sys
from pathlib import Path

PROMPT = "The old man at the end of the pier counts the boats: 1, 2, 3... It's \u00fcber 90 %, and writes it into a little book!"
TOKENS = 8
MLX_FAMILIES = ("mixtral", "qwen3_moe", "deepseek_v2")  # gpt_oss: only its quantised layout


class Missing(Exception):
    pass


def need(name):
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError) as missing:
        raise Missing(f"{missing}; tools/setup-python runtimes installs all but torch and transformers") from missing


def known_to_mlx(path):
    config = json.loads((Path(path) / "config.json").read_text())
    if config["model_type"] not in MLX_FAMILIES or "quantization_config" in config:
        raise Missing(f"mlx-lm does not read {config['model_type']} as it is here")


def of_mlx(path, count=TOKENS):
    """The tokens, and the logits of the prompt and of the chosen tokens. In float32, which mlx's CPU kernels need."""
    mx, load = need("mlx.core"), need("mlx_lm").load
    known_to_mlx(path)
    model, tokenizer = load(path)
    model.set_dtype(mx.float32)
    tokens, logits = tokenizer.encode(PROMPT), []
    if tokenizer.decode(tokens) != PROMPT:
        sys.exit("mlx: the tokens do not give the prompt back")
    for _ in range(count):
        output = model(mx.array([tokens]))[0]
        mx.eval(output)
        logits.append(np.array(output))
        tokens.append(int(np.argmax(logits[-1][-1])))
    return tokens, np.concatenate(logits)


def of_llama(path, count=TOKENS, mapped=True, **more):
    llama_cpp = need("llama_cpp")
    model = llama_cpp.Llama(path, n_ctx=256, n_batch=64, logits_all=True, use_mmap=mapped, n_threads=2,
                            n_threads_batch=2, verbose=False, **more)
    tokens = model.tokenize(PROMPT.encode(), add_bos=False)
    if model.detokenize(tokens).decode() != PROMPT:
        sys.exit("llama: the tokens do not give the prompt back")
    model.eval(tokens)
    for _ in range(count):
        tokens.append(int(np.argmax(model.scores[model.n_tokens - 1])))
        model.eval(tokens[-1:])
    logits = model.scores[:model.n_tokens].copy()
    model.close()
    return tokens, logits


def of_transformers(path, count=TOKENS):
    """The tokens, and the logits of the prompt."""
    torch, transformers = need("torch"), need("transformers")
    torch.set_num_threads(1)  # a fixed order of sums
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    asked = transformers.AutoTokenizer.from_pretrained(path)(PROMPT, return_tensors="pt")
    with torch.no_grad():
        logits = model(**asked).logits
    return model.generate(**asked, max_new_tokens=count, do_sample=False)[0].tolist(), logits.float().numpy()


def same(what, run, ours, theirs):
    (our_tokens, our_logits), (their_tokens, their_logits) = run(ours), run(theirs)
    if not np.isfinite(their_logits).all() or np.ptp(their_logits) == 0:
        print(f"{what}: the original's logits are no numbers to compare")
        return False
    good = our_tokens == their_tokens and np.array_equal(our_logits.view(np.uint32), their_logits.view(np.uint32))
    print(f"{what}: {len(their_tokens)} tokens, {their_logits.size} logits {'equal' if good else 'DIFFERENT'}")
    return good


def agree(directory, gguf_file):
    f32 = need("llama_cpp").GGML_TYPE_F32
    (tokens, ours), (others, theirs) = of_mlx(directory, 1), of_llama(gguf_file, 0, type_k=f32, type_v=f32)
    if others != tokens[:-1]:
        print(f"agree: the tokens differ: {tokens[:-1]} and {others}")
        return False
    error, spread = float(np.abs(ours - theirs).max()), float(theirs.std())
    # NaN must fail as well
    good = error < 1e-3 * spread and np.array_equal(ours.argmax(1), theirs.argmax(1))
    print(f"agree: {len(others)} tokens, logits of spread {spread:.2f} differ by {error:.1e} at most: "
          f"{'good' if good else 'TOO MUCH'}")
    return good


def main():
    if len(sys.argv) != 4:
        print(__doc__)
        return 2
    runtime, ours, theirs = sys.argv[1:]
    if runtime == "agree":
        return 0 if agree(ours, theirs) else 1
    ways = {"mlx": {"mlx": of_mlx}, "transformers": {"transformers": of_transformers},
            "llama": {"llama: mmap": of_llama, "llama: read": lambda path: of_llama(path, mapped=False)}}[runtime]
    return 0 if all([same(what, run, ours, theirs) for what, run in ways.items()]) else 1


if __name__ == "__main__":
    try:
        np = need("numpy")
        sys.exit(main())
    except Missing as missing:
        print(f"runtimes.py: {missing}")
        sys.exit(77)
