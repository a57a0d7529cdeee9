#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama.cpp with libggml-expertfs.so on model families that test_ggml does not have, bit by bit as without it: experts
with biases and the clamped SwiGLU of gpt-oss, where every second layer has a sliding window; experts of two matrices
(nomic-bert-moe: llama.cpp has no Switch); weights sampled from a checkpoint, whose exponents differ from generated
ones."""
from e2e import *
from test_ggml import PYTHON, SHAPE, client, need_plugin, same

MAKER = os.path.join(ROOT, "tests", "clients", "gguf_model.py")


def kind(family, prompts, *options):
    """Compares the bits on one thread and two."""
    model = scratch(family + ".gguf")
    made = run(PYTHON, MAKER, family, model)
    if made.returncode == 77:
        skip(made.stdout.strip())
    if not check(f"{family}: made", made.returncode == 0, made.stderr[-1000:]):
        return
    store = make_store(model)
    plain = client(model, "--prompts", prompts, *options, plugin=None, name=family)
    if plain.returncode == 77:
        skip(plain.stdout.strip().splitlines()[-1])
    if not check(f"{family}: llama.cpp by itself runs", plain.returncode == 0, plain.stdout + plain.stderr[-1500:]):
        return
    for threads in ("1", "2"):
        ours = client(model, "--prompts", prompts, *options, "--threads", threads, store=store)
        same(f"{family}, {threads} threads", ours, "out", family)
        check(f"{family}: no tensor of experts is left to the processor", "left to the processor" not in ours.stderr,
              ours.stderr[-1500:])


def drawn():
    """Weights distributed as in a trained model, if `tools/bench/run size` has downloaded one; otherwise as in a
    generated checkpoint with heavy tails."""
    given = os.path.join(ROOT, "build", "bench", "trained", "model.safetensors")
    if not os.path.exists(given):
        note("no trained model is at hand (tools/bench/run size fetches one): drawn from a generated one")
        given = make_model("given", "--preset=tiny-mixtral", "--weights=heavy", "--seed=3")
    folder = make_model("drawn", *SHAPE, f"--weights={given}")
    model, store = os.path.join(folder, "model.gguf"), make_store(folder)
    plain = client(model, "--prompts", "7,64", plugin=None, name="drawn")
    if check("drawn weights: llama.cpp by itself runs", plain.returncode == 0, plain.stderr[-1500:]):
        same("drawn weights", client(model, "--prompts", "7,64", store=store), "out", "drawn")


def main():
    need_plugin()
    kind("gpt-oss", "1,7,64,700")
    kind("nomic-bert-moe", "1,7,64,400", "--embeddings")
    drawn()
    done()


if __name__ == "__main__":
    main()
