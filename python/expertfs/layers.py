# SPDX-License-Identifier: Apache-2.0
"""The list of layers, experts and their tensors."""
from __future__ import annotations

import weakref
from ctypes import POINTER, byref, c_uint32
from typing import NamedTuple

from ._library import ErrorText, ListedExpert, ROLES, check, lib, libc_free


class TensorInfo(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    role: str | None


class _List:
    """Memory of the library, freed with the last layer that uses it."""

    def __init__(self, client):
        self.experts, count, text = POINTER(ListedExpert)(), c_uint32(), ErrorText()
        check(lib.efs_client_experts(client, byref(self.experts), byref(count), byref(text)), text)
        self.count = count.value
        weakref.finalize(self, libc_free, self.experts)


class Layer:
    """A layer with experts."""

    def __init__(self, all_of, first: int, last: int):
        self._all, self._first = all_of, first
        #: "" for models with one stack; the number of the layer; the numbers of its experts.
        self.stack: str = all_of.experts[first].stack.decode()
        self.number: int = all_of.experts[first].layer
        self.experts: tuple[int, ...] = tuple(all_of.experts[i].expert for i in range(first, last))

    def __repr__(self) -> str:
        return f"<expertfs.Layer {self.stack + ' ' if self.stack else ''}{self.number}: {len(self.experts)} experts>"

    def tensors(self, expert: int | None = None) -> tuple[TensorInfo, ...]:
        """The tensors of an expert (None: of the first) in the order of its file. KeyError: no such expert."""
        if expert is not None and expert not in self.experts:
            raise KeyError(expert)
        one = self._all.experts[self._first + (self.experts.index(expert) if expert is not None else 0)]
        return tuple(TensorInfo(t.name.decode(errors="surrogateescape"), lib.efs_dtype_name(t.dtype).decode(), tuple(t.shape[:t.dims]),
                                t.bytes, ROLES[lib.efs_tensor_role(t.name)]) for t in one.tensors[:one.tensor_count])


def list_layers(client) -> list[Layer]:
    found, all_of = [], _List(client)
    first = 0
    for i in range(1, all_of.count + 1):
        if i == all_of.count or (all_of.experts[i].layer, all_of.experts[i].stack) != (
                all_of.experts[first].layer, all_of.experts[first].stack):
            found.append(Layer(all_of, first, i))
            first = i
    return found
