# SPDX-License-Identifier: Apache-2.0
"""Whether a store is that of a checkpoint, of which a model takes all but the experts."""
from __future__ import annotations

import errno
import json
import os

from ._library import Error

SAMPLE_BYTES = 4096
WAY_OUT = "hint: convert it to safetensors, or give the path of a mount of the store"


def _compare(session, folder: str, name: str, offset: int = 0, size: int | None = None) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        file.seek(offset)
        data = file.read() if size is None else file.read(size)
    try:
        same = session.read(name, offset, len(data)) == data
    except OSError as why:  # _library.Error is no FileNotFoundError
        if why.errno != errno.ENOENT:
            raise
        same = False
    if not same:
        raise Error(errno.EINVAL, f"{session.path}: it is not the store of {folder}: {name} differs")
    return data


def _compare_named(session, folder: str, name: str, of, compared: list[str]) -> None:
    """of: takes the names of files that transformers loads from the value in a file of JSON."""
    for file in of(json.loads(_compare(session, folder, name))):
        if file not in compared:
            raise Error(errno.EINVAL, f"{folder}: {name} names {file}, which is no file of safetensors in this folder, and is not compared with "
                        f"{session.path}\n{WAY_OUT}")


def _compare_file(session, folder: str, name: str, samples: dict[str, tuple[int, int]]) -> set[str]:
    header = 8 + int.from_bytes(_compare(session, folder, name, 0, 8), "little")
    tensors = json.loads(_compare(session, folder, name, 8, header - 8))
    found = samples.keys() & tensors.keys()
    for tensor in found:
        expert, size = samples[tensor]
        begin, end = tensors[tensor]["data_offsets"]
        begin += expert * size if end - begin > size else 0  # of all experts
        _compare(session, folder, name, header + begin + size // 2, min(SAMPLE_BYTES, size - size // 2))
    return found


def check_same_model(folder: str, session) -> None:
    """Compares config.json, the indexes, the headers of the files of safetensors, and bytes of each tensor of one expert of each
    layer: a fine-tuned model has the same config.json. A sample of each expert would read the whole store. OSError (EINVAL):
    another model, or a folder that has nothing to compare: other files are not, and the caller must not load them."""
    if not os.path.isdir(folder):
        raise Error(errno.EINVAL, f"{folder}: no folder to compare {session.path} with\n"
                    "hint: download it, and give the path of its folder, or of a mount of the store")
    samples = {}
    for layer in session.layers():
        expert = layer.experts[layer.number % len(layer.experts)]
        samples.update({tensor.name: (expert, tensor.nbytes) for tensor in layer.tensors(expert)})
    names = sorted(os.listdir(folder))
    files = [name for name in names if name.endswith(".safetensors")]
    indexes = [name for name in names if name.endswith(".safetensors.index.json")]
    _compare_named(session, folder, "config.json", lambda config: filter(None, [config.get("transformers_weights")]), files + indexes)
    for name in indexes:
        _compare_named(session, folder, name, lambda index: index.get("weight_map", {}).values(), files)
    missing = samples.keys() - {tensor for name in files for tensor in _compare_file(session, folder, name, samples)}
    if missing:
        raise Error(errno.EINVAL, f"{folder}: no file of safetensors in it has {min(missing)}, to compare it with {session.path}\n{WAY_OUT}")
