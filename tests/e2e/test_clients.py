# SPDX-License-Identifier: Apache-2.0
"""Real clients on a real mount: the safetensors and gguf packages read every family, whole and via experts/; llama.cpp
and mlx-lm, and transformers where it is installed, compute the same logits from the mount as from the files, mapped and
read; with passthrough and without, with half of the runtimes each."""
import e2e
from e2e import *

need_fuse()
PYTHON = os.environ.get("PYTHON", "/usr/bin/python3")
missing = []


def client(name, *arguments):
    """Runs tests/clients/NAME.py. Exit status 77 (its package is missing, or does not support this family) is noted."""
    ran = run(PYTHON, os.path.join(ROOT, f"tests/clients/{name}.py"), *arguments)
    last = (ran.stdout.strip().splitlines() or [""])[-1]
    if ran.returncode == 77:
        missing.append(f"{name}: {last}")
    else:
        check(f"{name}.py: {last}", ran.returncode == 0, ran.stderr[-2000:])


FAMILIES = [(f"{family}{suffix}", [f"--preset=tiny-{family}", *options], runtimes.split())
            for family, suffix, options, runtimes in (
                ("mixtral", "", [], "mlx transformers"), ("qwen3-moe", "", [], "mlx transformers"),
                ("deepseek-v2", "", [], "mlx transformers"), ("gpt-oss", "", [], "transformers"), ("switch", "", [], ""),
                ("qwen3-moe", "-f16", ["--dtype=f16"], ""), ("qwen3-moe", "-f32", ["--dtype=f32"], ""),
                ("deepseek-v2", "-fp8", ["--dtype=fp8"], ""), ("qwen3-moe", "-gguf", ["--format=gguf"], "llama"),
                ("mixtral", "-gguf", ["--format=gguf"], "llama"))]
torch = run(PYTHON, "-c", "import torch, transformers")
if torch.returncode:  # it is large, and not installed by tools/setup-python
    note(f"left out: {torch.stderr.strip().splitlines()[-1]}; pip install torch transformers")

for family, (name, options, runtimes) in enumerate(FAMILIES):
    model = make_model(name, *options)
    store = make_store(model)
    for way, how in enumerate(("budget=256M", "budget=256M,nopassthrough,direct_io=off")):
        print(f"-- {name}, {how}", flush=True)
        mount = Mount(store, how)
        client("read_all", mount.path, model)
        for runtime in runtimes if (family + way) % 2 else ():  # they are slow: half of them each way
            file = "model.gguf" if runtime == "llama" else ""
            if runtime != "transformers" or not torch.returncode:
                client("runtimes", runtime, mount / file, os.path.join(model, file))
        mount.unmount()
for line in sorted(set(missing)):
    note("skipped part: " + line)
if missing and not e2e._failures:
    skip(missing[0])
done()
