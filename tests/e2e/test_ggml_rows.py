#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Large tables in llama.cpp with libggml-expertfs.so: rows come from the store, from the file in place or from a mount,
with the bits of ggml's CPU backend; the table is not mapped; an id out of range and a damaged store fail. In a whole model, too; a table that is also the output
matrix is left to the CPU backend."""
from e2e import *
from test_ggml import PLUGIN, PRELOADED, PYTHON, client, drop, need_plugin, number, plugin_environment, same

CLIENT = os.path.join(ROOT, "tests", "clients", "ggml_rows.py")


def in_place(model):
    """Rows of the file in place, opened by the program and by a mount: only the pages of the rows are read."""
    result = run(PYTHON, CLIENT, "run", model, PLUGIN, env=plugin_environment(model, "64M"))
    check("in place: rows are as ggml's", result.returncode == 0 and "compared: 12, wrong: 0\n" in result.stdout,
          result.stdout[-1500:] + result.stderr[-1500:])
    check("in place: the tables are not mapped", number("mapped", result) < 1 << 20, result.stdout)
    if not os.path.exists("/dev/fuse") or (os.geteuid() and not shutil.which("fusermount3")):
        note("left out: a mount needs /dev/fuse, and root or fusermount3")
        return
    mount = Mount(model, "budget=64M")
    result = run(PYTHON, CLIENT, "run", mount / os.path.basename(model), PLUGIN, env=plugin_environment(None))
    check("a mount: rows are as ggml's", result.returncode == 0 and "compared: 12, wrong: 0\n" in result.stdout,
          result.stdout[-1500:] + result.stderr[-1500:])
    check("a mount: the tables are not mapped", number("mapped", result) < 1 << 20, result.stdout)
    small = mount.count("reads_small")
    check("a mount: rows are small reads", small >= 4 * 700, str(small))
    mount.stop()


def single():
    model = scratch("rows.gguf")
    made = run(PYTHON, CLIENT, "make", model)
    if made.returncode == 77:
        skip(made.stdout.strip())
    if not check("the tables are made", made.returncode == 0, made.stderr[-1000:]):
        done()
    store = make_store(model)
    for budget in ("128M", "40M"):
        result = run(PYTHON, CLIENT, "run", model, PLUGIN, env=plugin_environment(store, budget))
        if result.returncode == 77:
            skip(result.stdout.strip())
        if check(f"{budget}: rows are as ggml's", result.returncode == 0 and "compared: 12, wrong: 0\n" in result.stdout,
                 result.stdout[-1500:] + result.stderr[-1500:]):
            check(f"{budget}: the tables are not mapped", number("mapped", result) < 1 << 20, result.stdout)
    in_place(model)
    bad = scratch("bad.efs")
    shutil.copy(store, bad)
    with open(bad, "r+b") as file:
        for part in range(200):  # of the first table; its middle, which is compared at first, stays
            file.seek(int(os.path.getsize(bad) * (0.0005 + 0.015 * part / 200)))
            file.write(bytes(64))
    result = run(PYTHON, CLIENT, "run", model, PLUGIN, env=plugin_environment(bad, "128M"))
    check("damage: the operation fails, never another row", result.returncode == 1 and "cannot be had" in result.stderr and
          "checksum differs" in result.stderr, result.stdout[-500:] + result.stderr[-1500:])


LOADED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from ggml import cached_bytes
import llama_cpp
path, want = sys.argv[2], int(sys.argv[3])
print("before:", cached_bytes(path))
model = llama_cpp.Llama(path, n_ctx=64, verbose=False)
end = time.monotonic() + 200
while cached_bytes(path) < want and time.monotonic() < end:
    time.sleep(0.05)
print("cached:", cached_bytes(path))
"""


def read_ahead(model, store):
    """When a context is created, all tensors that stay mapped are read ahead, also one larger than a read-ahead of the
    disk: the output matrix."""
    environment = {**plugin_environment(store), "LD_PRELOAD": PRELOADED}
    want = 66600 * 512 * 2
    drop(model)
    result = run(PYTHON, "-c", LOADED, os.path.dirname(CLIENT), model, str(want), env=environment)
    if not check("a model is loaded", result.returncode == 0, result.stderr[-1500:]):
        return
    if number("before", result) > 0:
        note("left out: pages of this file system stay in memory")
    else:
        check("a model: the output matrix is read ahead", number("cached", result) >= want, result.stdout)


def whole():
    """A model with a token embedding of 65 MiB."""
    folder = make_model("vocab", "-F", "qwen3-moe", "-d", "512", "-i", "256", "-e", "4", "--experts-per-token", "2", "-l",
                        "2", "--vocab", "66600", "--format", "gguf")
    model = os.path.join(folder, "model.gguf")
    store = make_store(folder)
    read_ahead(model, store)
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
