# SPDX-License-Identifier: Apache-2.0
"""Real clients on a real mount: the safetensors and gguf packages read every family, whole and by experts/; llama.cpp
and mlx-lm compute the same logits from the mount as from the files, mapped and read; with passthrough and without."""
import os
import subprocess

import e2e
from e2e import *

need_fuse()
CLIENTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "clients")
missing = []


def client(name, *arguments):
    """Run tests/clients/NAME.py. Exit 77 (its package is not there, or cannot load this family) is noted."""
    ran = subprocess.run([os.environ.get("PYTHON", "/usr/bin/python3"), os.path.join(CLIENTS, name + ".py"), *arguments],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    last = (ran.stdout.strip().splitlines() or [""])[-1]
    if ran.returncode == 77:
        missing.append(f"{name}: {last}")
    else:
        check(f"{name}.py: {last}", ran.returncode == 0, ran.stderr[-2000:])
    return ran.returncode


FAMILIES = [(f"{family}{suffix}", [f"--preset=tiny-{family}", *options], runtime)
            for family, suffix, options, runtime in (
                ("mixtral", "", [], "mlx"), ("qwen3-moe", "", [], "mlx"), ("deepseek-v2", "", [], "mlx"),
                ("gpt-oss", "", [], None), ("switch", "", [], None), ("qwen3-moe", "-f16", ["--dtype=f16"], None),
                ("qwen3-moe", "-f32", ["--dtype=f32"], None), ("deepseek-v2", "-fp8", ["--dtype=fp8"], None),
                ("qwen3-moe", "-gguf", ["--format=gguf"], "llama"), ("mixtral", "-gguf", ["--format=gguf"], "llama"))]

for name, options, runtime in FAMILIES:
    model = make_model(name, *options)
    store = make_store(model)
    for how in ("budget=256M", "budget=256M,nopassthrough,direct_io=off"):
        print(f"-- {name}, {how}", flush=True)
        mount = Mount(store, how)
        client("read_all", mount.path, model)
        if runtime == "mlx":
            client("mlx", mount.path, model)
        elif runtime == "llama":
            client("llama", mount / "model.gguf", os.path.join(model, "model.gguf"))
        mount.unmount()
for line in sorted(set(missing)):
    note("skipped part: " + line)
if missing and not e2e._failures:
    skip(missing[0])
done()
