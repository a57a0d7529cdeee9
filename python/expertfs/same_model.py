# SPDX-License-Identifier: Apache-2.0
"""Whether a store is that of a checkpoint, of which a model takes all but the experts."""
from __future__ import annotations

import errno
import json
import os

from ._library import Error

SAMPLE_BYTES = 4096


def _compare(session, folder: str, name: str, offset: int = 0, size: int | None = None) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        file.seek(offset)
        data = file.read() if size is None else file.read(size)
    try:
        same = session.read(name, offset, len(data)) == data
    except FileNotFoundError:
        same = False
    if not same:
        raise Error(errno.EINVAL, f"{session.path}: it is not the store of {folder}: {name} differs")
    return data


def check_same_model(folder: str, session) -> None:
    """Compares config.json, the headers of the files, and bytes of each tensor of one expert of each layer: a fine-tuned model has
    the same config.json. OSError (EINVAL): another model."""
    _compare(session, folder, "config.json")
    samples = {}
    for layer in session.layers():
        expert = layer.experts[layer.number % len(layer.experts)]
        samples.update({tensor.name: (expert, tensor.nbytes) for tensor in layer.tensors(expert)})
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        header = 8 + int.from_bytes(_compare(session, folder, name, 0, 8), "little")
        for tensor, entry in json.loads(_compare(session, folder, name, 8, header - 8)).items():
            if tensor in samples:
                expert, size = samples[tensor]
                begin, end = entry["data_offsets"]
                begin += expert * size if end - begin > size else 0  # of all experts
                _compare(session, folder, name, header + begin + size // 2, min(SAMPLE_BYTES, size - size // 2))
