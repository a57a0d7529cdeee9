#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""inspect_weights.py MKMODEL DIRECTORY: are weights spread as --weights says?

DIRECTORY has kind-normal, kind-scaled, kind-heavy, tiny-qwen3-moe each; checkpoints to draw from are made in it.
Exit 0 or 1 with the reason, 77: a package is missing."""
import subprocess
import sys
from pathlib import Path

try:
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import save_file
    import ml_dtypes  # noqa: F401: numpy has no bfloat16 of its own
except ImportError as missing:
    print(f"{missing}; tools/setup-python basic installs it")
    sys.exit(77)

MKMODEL, ROOT = sys.argv[1], Path(sys.argv[2])


def need(condition, text):
    if not condition:
        print(text)
        sys.exit(1)


def tensors(folder):
    """{name: float32 array} of a checkpoint."""
    found = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():
                found[name] = np.asarray(file.get_tensor(name)).astype(np.float32)
    return found


def made(weights, *options):
    folder = ROOT / "drawn"
    subprocess.run([MKMODEL, "-q", "--force", "--family=qwen3-moe", "--layers=2", "--hidden=256", "--intermediate=256",
                    f"--weights={weights}", *options, folder], check=True)
    return tensors(folder)


def kinds():
    """Rows of normal weights have one scale, of the others many; the tails are as heavy as said."""
    rows, tails = {}, {}
    for kind in ("normal", "scaled", "heavy"):
        experts = [w for name, w in tensors(ROOT / f"kind-{kind}").items() if ".experts." in name]
        rows[kind] = np.median([w.std(1).std() / w.std() for w in experts])
        unit = np.concatenate([(w / w.std(1, keepdims=True)).ravel() for w in experts])
        tails[kind] = np.mean(np.abs(unit) > 4) * 1e6
    need(rows["normal"] < 0.1 < 0.2 < rows["scaled"], f"rows' scales vary by {rows}")
    need(rows["heavy"] > 0.2, f"rows' scales vary by {rows}")
    # normal: 63 in a million are past 4 deviations; Student's t of 4 to 6 degrees has some 2,500
    need(tails["normal"] < 150 and tails["heavy"] > 1000 and tails["heavy"] > 2 * tails["scaled"],
         f"past 4 deviations, in a million: {tails}")


SHARES = {-1.5: 0.5, 0.0: 0.2, 2.0 ** -120: 0.2, 0.15625: 0.09, 3.0e38: 0.01}


def given(dtype):
    """A checkpoint with few values, of known shares; what is not finite is left out of the count."""
    generator = np.random.default_rng(5)
    values = np.array(list(SHARES), np.float32)
    matrix = generator.choice(values, size=(512, 512), p=list(SHARES.values()))
    matrix[0, :3] = np.inf, -np.inf, np.nan
    return {"a.mlp.down.weight": matrix.astype(dtype), "a.self_attn.k.weight": np.full((64, 64), -2.5, dtype),
            "embed.weight": np.full((64, 64), 4.0, dtype), "a.norm.weight": np.full(64, 1.25, dtype),
            "a.norm.bias": np.full(64, -0.75, dtype), "a.ids": np.arange(64)}


def close(share, want, count):
    return abs(share - want) < 6 * np.sqrt(want * (1 - want) / count) + 1e-5


def drawn():
    """The values of a given checkpoint come as often as there, each kind of tensor's to its like."""
    for dtype in ("bfloat16", "float32", "float64"):
        save_file(given(np.dtype(dtype)), ROOT / "few.safetensors")
        found = made(ROOT / "few.safetensors")
        experts = np.concatenate([w.ravel() for name, w in found.items() if ".experts." in name])
        small = {np.float32(np.dtype("bfloat16").type(v)): share for v, share in SHARES.items()}
        need(set(np.unique(experts)) == set(small), f"{dtype}: experts have {np.unique(experts)}")
        for value, share in small.items():
            got = np.mean(experts == value)
            need(close(got, share, 512 * 512), f"{dtype}: {value} comes in {got} of the places, not {share}")
        for name, w in found.items():
            want = 4.0 if "embed_tokens" in name else -2.5 if "attn" in name and "norm" not in name else \
                1.25 if "norm" in name else None
            need(want is None or np.all(w == want), f"{dtype}: {name} is not {want}: {np.unique(w)}")


def wider():
    """In F32 the values lie anywhere in what BF16 rounds to the given ones."""
    save_file(given(np.dtype("bfloat16")), ROOT / "few.safetensors")
    attention = np.concatenate([w.ravel() for name, w in made(ROOT / "few.safetensors", "--dtype=f32").items()
                                if "self_attn.q_proj" in name])
    need(np.all(attention.astype("bfloat16").astype(np.float32) == -2.5), "F32 does not round to the given value")
    need(len(np.unique(attention)) > 1000, "F32 has the BF16 values only")


def without():
    """A checkpoint of one matrix alone: it serves all matrices; norms are as they are without it."""
    save_file({"x.weight": np.full((8, 8), 2.0, np.float16)}, ROOT / "one.safetensors")
    found = made(ROOT / "one.safetensors")
    for name, w in found.items():
        if "norm" in name:
            need(0.8 < w.mean() < 1.2 and w.std() > 0, f"{name}: {w.mean()}")
        else:
            need(np.all(w == 2.0), f"{name} has {np.unique(w)}")
    for nothing in ({"x.bias": np.ones(8, np.float32)}, {"x.weight": np.full((8, 8), np.nan, np.float32)},
                    {"x.weight": np.ones((8, 8), np.int32)}):
        save_file(nothing, ROOT / "none.safetensors")
        end = subprocess.run([MKMODEL, "-q", "--family=mixtral", f"--weights={ROOT / 'none.safetensors'}", ROOT / "n"],
                             stderr=subprocess.PIPE, text=True)
        need(end.returncode == 1 and "no tensor" in end.stderr, f"{nothing}: {end.returncode} {end.stderr}")


kinds()
drawn()
wider()
without()
