#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""read_all.py [--no-view] MOUNT ORIGINAL: reads a checkpoint with the usual packages.

Opens every safetensors file with the safetensors package, every GGUF file with the gguf package; each tensor of MOUNT
must have the name, type, shape and bytes that it has in ORIGINAL. The same for each tensor of the files in
MOUNT/experts, or each slice of a fused one. Exit status 0: all equal, 1: a difference, 77: a package is missing."""
import argparse
import re
import sys
from pathlib import Path

try:
    import numpy as np
    import ml_dtypes  # noqa: F401  (adds bfloat16 to numpy)
    import safetensors
    import gguf
except ImportError as missing:
    print(f"read_all.py: {missing}; tools/setup-python basic installs it")
    sys.exit(77)


class Tensor:
    """dtype (as text), shape (slowest first) and bytes (a flat uint8 array)."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), data


class Safetensors:
    """A safetensors file; tensors are read on access."""

    def __init__(self, path):
        self.path = path
        self.file = safetensors.safe_open(path, framework="numpy")
        self.file.__enter__()
        self.whole = None
        self.names = list(self.file.keys())

    def metadata(self):
        return self.file.metadata()

    def tensor(self, name):
        about = self.file.get_slice(name)
        dtype, shape = about.get_dtype(), about.get_shape()
        try:
            array = self.file.get_tensor(name)
        except (TypeError, AttributeError, ValueError):  # FP8 and the like: numpy has no such type
            return Tensor(dtype, shape, self.raw(name))
        return Tensor(dtype, shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def raw(self, name):
        if self.whole is None:
            self.whole = dict(safetensors.deserialize(self.path.read_bytes()))
        return np.frombuffer(self.whole[name]["data"], np.uint8)

    def close(self):
        self.file.__exit__(None, None, None)
        self.whole = None


class Gguf:
    """A GGUF file, mapped."""

    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        self.names = list(self.tensors)

    def metadata(self):
        return {name: field.contents() for name, field in self.reader.fields.items()}

    def tensor(self, name):
        found = self.tensors[name]
        data = np.ascontiguousarray(found.data).reshape(-1).view(np.uint8)
        return Tensor(found.tensor_type.name, [int(n) for n in reversed(found.shape)], data)

    def close(self):
        self.reader = None
        self.tensors = {}


def open_file(path):
    return Gguf(path) if path.suffix == ".gguf" else Safetensors(path)


class Checkpoint:
    """All tensors of a directory (or of one file) by name, each from the file that contains it."""

    def __init__(self, root):
        self.root = root
        self.files, self.opened = {}, {}
        for path in weight_files(root):
            for name in self.file(path).names:
                self.files.setdefault(name, path)

    def file(self, path):
        if path not in self.opened:
            if len(self.opened) > 64:
                self.close()
            self.opened[path] = open_file(path)
        return self.opened[path]

    def tensor(self, name):
        return self.file(self.files[name]).tensor(name)

    def close(self):
        for file in self.opened.values():
            file.close()
        self.opened = {}


def weight_files(root):
    """The safetensors and GGUF files of a checkpoint, without those of experts/."""
    if root.is_file():
        return [root]
    found = [path for path in root.rglob("*") if path.suffix in (".safetensors", ".gguf") and path.is_file()]
    hidden = ("experts", ".expertfs")
    return sorted(path for path in found if path.relative_to(root).parts[0] not in hidden)


class Report:
    def __init__(self):
        self.differences = self.files = self.tensors = self.bytes = 0

    def differ(self, text):
        self.differences += 1
        if self.differences <= 20:
            print(f"DIFFERENT {text}")

    def equal(self, tensor):
        self.tensors += 1
        self.bytes += tensor.data.size


def same_bytes(ours, theirs):
    return ours.size == theirs.size and np.array_equal(ours, theirs)


def compare_files(mount, original, report):
    """Each weight file of both sides, tensor by tensor."""
    ours, theirs = weight_files(mount), weight_files(original)
    if mount.is_dir() and [p.relative_to(mount) for p in ours] != [p.relative_to(original) for p in theirs]:
        report.differ(f"the files: {[p.name for p in ours]} but {[p.name for p in theirs]} in the original")
        return
    if not theirs:
        report.differ(f"{original} has no weights")
    for our_path, their_path in zip(ours, theirs):
        our, their = open_file(our_path), open_file(their_path)
        report.files += 1
        if our.metadata() != their.metadata():
            report.differ(f"{our_path.name}: the metadata")
        if our.names != their.names:
            report.differ(f"{our_path.name}: the names of the tensors")
        for name in set(our.names) & set(their.names):
            a, b = our.tensor(name), their.tensor(name)
            if (a.dtype, a.shape) != (b.dtype, b.shape):
                report.differ(f"{our_path.name}: {name}: {a.dtype} {a.shape} but {b.dtype} {b.shape} in the original")
            elif not same_bytes(a.data, b.data):
                report.differ(f"{our_path.name}: {name}: the bytes")
            else:
                report.equal(a)
        our.close()
        their.close()


def compare_named(name, ours, theirs, where, report):
    """Compares a tensor of experts/ with its original. experts/ has GGUF block types as U8, so only other types must
    agree."""
    blocks = ours.dtype == "U8" and theirs.dtype != "U8"
    if not blocks and (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        report.differ(f"{where}: {name}: {ours.dtype} {ours.shape} but {theirs.dtype} {theirs.shape} in the original")
    elif not same_bytes(ours.data, theirs.data):
        report.differ(f"{where}: {name}: the bytes")
    else:
        report.equal(ours)


# Names of expert tensors in Hugging Face, GGUF and MLX files.
OF_EXPERTS = re.compile(r"(?<!shared_)experts[._]|_exps\.|switch_mlp\.")


def compare_slices(path, root, original, report, seen):
    """Compares an expert's file: its tensors whole, or the expert's slice of a fused one. seen: bytes compared, by
    name."""
    number = re.fullmatch(r"E(\d+)", path.stem)
    file = Safetensors(path)
    report.files += 1
    for name in file.names:
        where = path.relative_to(root)
        if name not in original.files or not number:
            report.differ(f"{where}: {name} is not in the original")
            continue
        ours, theirs = file.tensor(name), original.tensor(name)
        seen[name] = seen.get(name, 0) + ours.data.size
        if ours.data.size != theirs.data.size:  # fused: slice number E of the slowest dimension
            count, expert = theirs.shape[0], int(number.group(1))
            part = theirs.data.size // count
            theirs = Tensor(theirs.dtype, theirs.shape[1:], theirs.data[expert * part : (expert + 1) * part])
        compare_named(name, ours, theirs, where, report)
    file.close()


def compare_view(mount, original_root, report):
    """Compares MOUNT/experts: one safetensors file per expert, and in them every expert tensor."""
    original, seen = Checkpoint(original_root), {}
    for path in sorted((mount / "experts").rglob("E*.safetensors")):
        compare_slices(path, mount / "experts", original, report, seen)
    for name in original.files:
        size = original.tensor(name).data.size if OF_EXPERTS.search(name) else 0
        if seen.get(name, size) != size:
            report.differ(f"experts/: {name}: {seen[name]} bytes of {size}")
        elif size and name not in seen:
            report.differ(f"experts/: {name} is not there")
    original.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mount", type=Path)
    parser.add_argument("original", type=Path)
    parser.add_argument("--no-view", action="store_true", help="MOUNT is a plain copy: it has no experts/")
    arguments = parser.parse_args()
    whole, view = Report(), Report()
    compare_files(arguments.mount, arguments.original, whole)
    line = f"read_all: {whole.files} files, {whole.tensors} tensors, {whole.bytes} bytes equal"
    if not arguments.no_view:
        compare_view(arguments.mount, arguments.original, view)
        line += f"; experts/: {view.files} files, {view.tensors} tensors, {view.bytes} bytes equal"
    differences = whole.differences + view.differences
    print(line + (f"; {differences} DIFFERENT" if differences else ""))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
