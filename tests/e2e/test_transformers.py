# SPDX-License-Identifier: Apache-2.0
"""transformers, by PyTorch, on a mount: the tokens and logits of the plain checkpoint. PyTorch is
large and no part of tools/setup-python: the test is skipped where $PYTHON has none."""
from e2e import *

need_fuse()
PYTHON = os.environ.get("PYTHON", "/usr/bin/python3")
missing = run(PYTHON, "-c", "import torch, transformers")
if missing.returncode:
    skip(f"{missing.stderr.strip().splitlines()[-1]}; pip install torch transformers")

for family in ("mixtral", "qwen3-moe", "deepseek-v2", "gpt-oss"):
    model = make_model(family, f"--preset=tiny-{family}")
    mount = Mount(make_store(model), "budget=256M")
    result = run(PYTHON, os.path.join(ROOT, "tests/clients/transformers.py"), mount.path, model, timeout=400)
    check(f"{family}: {result.stdout.strip()}", result.returncode == 0, result.stderr[-2000:])
    mount.unmount()
done()
