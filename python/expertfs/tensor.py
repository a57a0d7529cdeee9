# SPDX-License-Identifier: Apache-2.0
"""Experts that were loaded, and their tensors: memory of the mount, the store or a graphics processor, without a copy,
read-only."""
from __future__ import annotations

import atexit
import ctypes
import os
import sys
from collections.abc import Iterator, Mapping

from ._library import CTensor, ROLES, check, lib
from .values import Uncopied

# The format characters of numpy's typestr, and kind and bits in DLPack, by the type's name. All other types are bytes.
NUMPY = {"BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
         "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8", "BF16": "<u2"}
DLPACK = {"BOOL": (6, 8), "U8": (1, 8), "I8": (0, 8), "U16": (1, 16), "I16": (0, 16), "F16": (2, 16), "BF16": (4, 16),
          "U32": (1, 32), "I32": (0, 32), "F32": (2, 32), "U64": (1, 64), "I64": (0, 64), "F64": (2, 64), "C64": (5, 64)}
CPU, CUDA = (1, 0), 2  # devices in DLPack
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
_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_NAMES = (b"dltensor", b"dltensor_versioned")

_offered: list[tuple] = []  # capsules that may not be taken yet, their names, the addresses of their structs


def _uses(offer: tuple) -> int:
    return sys.getrefcount(offer[0])


_UNUSED = _uses((object(),))


def free_untaken() -> None:
    """Frees what capsules lend that were dropped before they were taken, as after numpy refused BF16. Not a destructor of the
    capsule: that would run while numpy's exception is set, and ctypes can neither call Python then nor keep it."""
    kept = []
    for _ in range(len(_offered)):
        try:
            offer = _offered.pop()
        except IndexError:  # another thread is here
            break
        if _valid(offer[0], offer[1]):  # else it was taken: the taker frees it
            if _uses(offer) > _UNUSED:
                kept.append(offer)
            else:
                _lent.pop(offer[2], None)
    _offered.extend(kept)


@atexit.register
def _forget():
    """At the end of the interpreter: tensors of other libraries that live longer must not call into Python."""
    for managed, *_ in list(_lent.values()):
        managed.free = None
    _kept.extend(_lent.values())


_kept: list = []


def _stream(device: int) -> int | None:
    """PyTorch's current stream of a graphics processor; None: the default one, as PyTorch does not use it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda.current_stream(device).cuda_stream if cuda and cuda.is_initialized() else None


class Lease(Uncopied):
    """An expert in use: the last reference drops it, on a graphics processor after the work in the current stream."""

    def __init__(self, request, index: int):
        self.request, self.index = request, index
        request.session._holds.add(id(self))

    def __del__(self):
        session, handle = self.request.session, self.request.handle
        if handle and session._pid == os.getpid():
            if self.request.device is None:
                lib.efs_client_drop(handle, self.index)
            else:
                lib.efs_client_drop_after(handle, self.index, _stream(self.request.device))
        session._holds.discard(id(self))  # last: then the session may be closed


class Tensor(Uncopied):
    """A tensor of an expert, mapped read-only.

    numpy: `numpy.asarray(tensor)` (BF16 as uint16), `numpy.from_dlpack(tensor)`; torch: `torch.from_dlpack(tensor)`;
    bytes: `tensor.buffer`. None of these copies; each keeps the expert in memory until it is freed itself. A tensor that
    torch makes looks writable: **writing to it ends the process with SIGSEGV**. Types without a number in numpy or
    DLPack (FP8, block types of ggml) are passed as bytes.

    Of the form "device": memory of the graphics processor, for torch.from_dlpack() alone. Do not write to it. It is
    reused after the work that is in the thread's current stream of PyTorch when the last tensor is freed; wait for work
    in other streams first.
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
        if self._lease.request.device is not None:
            raise BufferError("expertfs.Tensor: memory of a graphics processor")
        owner = (ctypes.c_ubyte * self.nbytes).from_address(self._address) if self.nbytes else (ctypes.c_ubyte * 0)()
        owner.lease = self._lease
        return memoryview(owner).cast("B").toreadonly()

    def __buffer__(self, flags: int) -> memoryview:  # from Python 3.12 on
        return self.buffer

    @property
    def __array_interface__(self) -> dict:
        if self._lease.request.device is not None:
            raise BufferError("expertfs.Tensor: memory of a graphics processor")
        known = self.dtype in NUMPY
        return {"version": 3, "typestr": NUMPY.get(self.dtype, "|u1"), "data": (self._address or 0, True),
                "shape": self.shape if known else (self.nbytes,)}

    def __dlpack_device__(self) -> tuple[int, int]:
        device = self._lease.request.device
        return CPU if device is None else (CUDA, device)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        device = self.__dlpack_device__()  # all of it is decoded: no stream has to wait
        if dl_device not in (None, device) or copy or (device == CPU and stream not in (None, -1)):
            raise BufferError(f"expertfs.Tensor: memory of the {'CPU' if device == CPU else 'GPU'}, never copied")
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
        managed.tensor = DLTensor(self._address, device, len(shape), kind, bits, 1, *places, 0)
        if versioned:
            managed.version[:] = 1, 0
            managed.flags = READ_ONLY
        address = ctypes.addressof(managed)
        free_untaken()
        _lent[address] = managed, places, self._lease
        capsule = _new(address, _NAMES[versioned], None)
        _offered.append((capsule, _NAMES[versioned], address))
        return capsule


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
