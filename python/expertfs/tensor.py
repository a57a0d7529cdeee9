# SPDX-License-Identifier: Apache-2.0
"""Experts that were loaded, and their tensors: memory of the mount or the store, without a copy, read-only."""
from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Iterator, Mapping

from ._library import CTensor, ROLES, check, lib
from .values import Uncopied

# The format characters of numpy's typestr, and kind and bits in DLPack, by the type's name. All other types are bytes.
NUMPY = {"BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
         "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8", "BF16": "<u2"}
DLPACK = {"BOOL": (6, 8), "U8": (1, 8), "I8": (0, 8), "U16": (1, 16), "I16": (0, 16), "F16": (2, 16), "BF16": (4, 16),
          "U32": (1, 32), "I32": (0, 32), "F32": (2, 32), "U64": (1, 64), "I64": (0, 64), "F64": (2, 64), "C64": (5, 64)}
CPU = (1, 0)  # the device in DLPack
READ_ONLY = 1


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("dims", ctypes.c_int32),
                ("kind", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("free", ctypes.c_void_p)]


class Versioned(ctypes.Structure):  # from DLPack 1.0 on
    _fields_ = [("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p), ("free", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", DLTensor)]


_lent: dict[int, tuple] = {}  # what capsules and their takers use, by the address of the struct


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _free_managed(address, lent=_lent):
    lent.pop(address, None)


_python = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _python))
_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))
_NAMES = (b"dltensor", b"dltensor_versioned")


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _free_capsule(capsule, lent=_lent):
    for name in _NAMES:
        if _valid(capsule, name):  # not consumed
            lent.pop(_pointer(capsule, name), None)


@atexit.register
def _forget():
    """At the end of the interpreter: tensors of other libraries that live longer must not call into Python."""
    for managed, *_ in list(_lent.values()):
        managed.free = None
    _kept.extend(_lent.values())


_kept: list = []


class Lease(Uncopied):
    """An expert in use: the last reference drops it."""

    def __init__(self, request, index: int):
        self.request, self.index = request, index
        self.thread = threading.get_ident()
        request.session._hold(self)

    def __del__(self):
        session, handle = self.request.session, self.request.handle
        session._let_go(self)
        if handle and session._pid == os.getpid():
            lib.efs_client_drop(handle, self.index)


class Tensor(Uncopied):
    """A tensor of an expert, mapped read-only.

    numpy: `numpy.asarray(tensor)` (BF16 as uint16), `numpy.from_dlpack(tensor)`; torch: `torch.from_dlpack(tensor)`;
    bytes: `tensor.buffer`. None of these copies; each keeps the expert in memory until it is freed itself. A tensor that
    torch makes looks writable: **writing to it ends the process with SIGSEGV**. Types without a number in numpy or
    DLPack (FP8, block types of ggml) are passed as bytes.
    """

    def __init__(self, lease: Lease, tensor: CTensor):
        self._lease, self._address = lease, tensor.data
        #: Name in the checkpoint, dtype as safetensors names it ("BF16", "ggml:Q4_0"), shape slowest first, bytes.
        self.name: str = tensor.name.decode(errors="surrogateescape")
        self.dtype: str = lib.efs_dtype_name(tensor.dtype).decode()
        self.shape: tuple[int, ...] = tuple(tensor.shape[:tensor.dims])
        self.nbytes: int = tensor.bytes
        #: "gate", "up", "down", "gate_bias", "up_bias", "down_bias", "in", "out", "gate_up" or None.
        self.role: str | None = ROLES[lib.efs_tensor_role(tensor.name)]

    def __repr__(self) -> str:
        return f"<expertfs.Tensor {self.name} {self.dtype} {list(self.shape)}>"

    @property
    def buffer(self) -> memoryview:
        """The bytes, read-only."""
        owner = (ctypes.c_ubyte * self.nbytes).from_address(self._address) if self.nbytes else (ctypes.c_ubyte * 0)()
        owner.lease = self._lease
        return memoryview(owner).cast("B").toreadonly()

    def __buffer__(self, flags: int) -> memoryview:  # from Python 3.12 on
        return self.buffer

    @property
    def __array_interface__(self) -> dict:
        known = self.dtype in NUMPY
        return {"version": 3, "typestr": NUMPY.get(self.dtype, "|u1"), "data": (self._address or 0, True),
                "shape": self.shape if known else (self.nbytes,)}

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if dl_device not in (None, CPU) or copy or stream not in (None, -1):
            raise BufferError("expertfs.Tensor: memory of the CPU, never copied")
        versioned = max_version is not None and max_version[0] >= 1
        kind, bits = DLPACK.get(self.dtype, (1, 8))
        shape = self.shape if self.dtype in DLPACK else (self.nbytes,)
        strides = [1] * len(shape)
        for i in range(len(shape) - 1, 0, -1):
            strides[i - 1] = strides[i] * shape[i]
        numbers = ctypes.c_int64 * max(len(shape), 1)
        places = numbers(*shape), numbers(*strides)
        managed = Versioned() if versioned else Managed()
        managed.free = ctypes.cast(_free_managed, ctypes.c_void_p)
        managed.tensor = DLTensor(self._address, CPU, len(shape), kind, bits, 1, *places, 0)
        if versioned:
            managed.version[:] = 1, 0
            managed.flags = READ_ONLY
        address = ctypes.addressof(managed)
        _lent[address] = managed, places, self._lease
        return _new(address, _NAMES[versioned], ctypes.cast(_free_capsule, ctypes.c_void_p))


class Expert(Uncopied, Mapping):
    """An expert that has arrived: its tensors by role ("gate") or by name, in the order of its file.

    It is in use until it and all that was made from its tensors are freed."""

    def __init__(self, request, index: int):
        found, count = ctypes.POINTER(CTensor)(), ctypes.c_uint32()
        lease = Lease(request, index)
        check(lib.efs_client_tensors(request.handle, index, ctypes.byref(found), ctypes.byref(count)))
        #: Its number in the layer.
        self.number: int = request.experts[index]
        self._lease = lease
        #: Its tensors; empty for the coded form, whose memory only the library reads.
        self.tensors: tuple[Tensor, ...] = tuple(Tensor(lease, one) for one in found[:count.value] if one.data or not one.bytes)

    def __getitem__(self, key: str) -> Tensor:
        for tensor in self.tensors:
            if key in (tensor.role, tensor.name):
                return tensor
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return (tensor.name for tensor in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)
