#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Large tables in llama.cpp with libggml-expertfs.so: rows come from the store, with the bits of ggml's CPU backend; the
table is not mapped; an id out of range and a damaged store fail. In a whole model, too; a table that is also the output
matrix is left to the CPU backend."""
from e2e import *
from test_ggml import PLUGIN, PYTHON, client, need_plugin, number, plugin_environment, same

CLIENT = os.path.join(ROOT, "tests", "clients", "ggml_rows.py")


def single():
    model = scratch("rows.gguf")
    made = run(PYTHON, CLIENT, "make", model)
    if made.returncode == 77:
        skip(made.stdout.strip())
    if not check("the tables are made", made.returncode == 0, made.stderr[-1000:]):
        done()
    store = make_store(model)
    for budget in ("128M", "40M"):
        result = run(PYTHON, CLIENT, "run", model, PLUGIN, env=plugin_environment(store, budget), timeout=240)
        if result.returncode == 77:
            skip(result.stdout.strip())
        if check(f"{budget}: rows are as ggml's", result.returncode == 0 and "compared: 12, wrong: 0\n" in result.stdout,
                 result.stdout[-1500:] + result.stderr[-1500:]):
            check(f"{budget}: the tables are not mapped", number("mapped", result) < 1 << 20, result.stdout)
    bad = scratch("bad.efs")
    shutil.copy(store, bad)
    with open(bad, "r+b") as file:
        for part in range(200):  # of the first table; its middle, which is compared at first, stays
            file.seek(int(os.path.getsize(bad) * (0.0005 + 0.015 * part / 200)))
            file.write(bytes(64))
    result = run(PYTHON, CLIENT, "run", model, PLUGIN, env=plugin_environment(bad, "128M"), timeout=240)
    check("damage: the operation fails, never another row", result.returncode == 1 and "cannot be had" in result.stderr and
          "checksum differs" in result.stderr, result.stdout[-500:] + result.stderr[-1500:])


def whole():
    """A model with a token embedding of 65 MiB."""
    folder = make_model("vocab", "-F", "qwen3-moe", "-d", "512", "-i", "256", "-e", "4", "--experts-per-token", "2", "-l",
                        "2", "--vocab", "66600", "--format", "gguf")
    model = os.path.join(folder, "model.gguf")
    store = make_store(folder)
    plain = client(model, "--prompts", "1,64", plugin=None, name="plain")
    if check("a model: llama.cpp by itself runs", plain.returncode == 0, plain.stderr[-1500:]):
        for plugin in ("path", "preload"):
            same(f"a model, {plugin}", client(model, "--prompts", "1,64", store=store, plugin=plugin), "out", "plain")
        ours = client(model, "--prompts", "1,64", store=store, plugin="preload")
        check("a model: the table is not mapped, the output matrix is",
              50 << 20 < number("mapped", ours) < 120 << 20, ours.stdout[-500:])


def main():
    need_plugin()
    single()
    whole()
    done()


if __name__ == "__main__":
    main()
