# SPDX-License-Identifier: Apache-2.0
"""Experts of a mixture-of-experts model from a store, a checkpoint or a mount of expertfs: see expertfs-python(7).

    with expertfs.open("model.efs", budget="2G") as session:
        for expert in session.request(0, [3, 17]):
            print(expert.number, expert["gate_proj"].shape)
"""
from ._library import Error, OutOfMemory, version as __version__
from .mounts import mount, pack
from .session import Layer, Session, open
from .tensor import Expert, Tensor

__all__ = ["__version__", "Error", "Expert", "Layer", "OutOfMemory", "Session", "Tensor", "mount", "open", "pack"]
