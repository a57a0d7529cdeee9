# SPDX-License-Identifier: Apache-2.0
"""libexpertfs by ctypes: its structs, compared with the library's at import, its calls, its errors.

The library is that of the wheel, in this folder, or else the one that the dynamic linker finds."""
from __future__ import annotations

import ctypes
import errno
import os
import pathlib
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char, c_char_p, c_double, c_int, c_size_t, c_ssize_t,
                    c_uint, c_uint32, c_uint64, c_void_p)

NAME = "libexpertfs.so.0"
FULL, CODED, ANY, DEVICE, SHARED = range(5)
FORMS = {"full": FULL, "coded": CODED, "any": ANY}
LEVELS = ("error", "warning", "info")
ROLES = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias", "in", "out", "gate_up", "gate_up_bias", None)
TRANSPOSED, INTERLEAVED = 1, 2
I32, F32, I64, F16, BF16 = 9, 10, 12, 6, 7  # enum efs_dtype
ACTIVATIONS = {F32: 0, BF16: 1, F16: 2}


class Error(OSError):
    """A call of libexpertfs failed: `errno`, and `strerror` with the library's text. A way out, if there is one, is a
    second line, "hint: ..."."""


class OutOfMemory(Error, MemoryError):
    """The budget is below its minimum, which the text names; or experts that are in use leave no room (EDEADLK)."""


def error(code: int, text: str = "") -> Error:
    number = abs(code)
    kind = OutOfMemory if number in (errno.ENOMEM, errno.EDEADLK) else Error
    return kind(number, text or os.strerror(number))


def failed(code: int, what: str) -> Error:
    """An expert or a file that could not be read; with the words of the library."""
    reason = ("it is damaged\nhint: restore the store from a copy, or pack it again; `expertctl verify` lists all its damage"
              if abs(code) == errno.EUCLEAN else os.strerror(abs(code)))
    return error(code, f"{what}: {reason}")


class ErrorText(Structure):
    _fields_ = [("text", c_char * 1024)]


def check(code: int, text: ErrorText | None = None) -> int:
    """Returns a result that is not an error, or raises it."""
    if code < 0:
        raise error(code, text.text.decode(errors="replace") if text else "")
    return code


LOG = CFUNCTYPE(None, c_void_p, c_int, c_char_p)
DONE = CFUNCTYPE(None, c_void_p, c_int, c_size_t)
INTERRUPTED = CFUNCTYPE(c_bool, c_void_p)
PROGRESS = CFUNCTYPE(c_bool, c_void_p, c_uint64, c_uint64, c_char_p)


class ClientOptions(Structure):
    _fields_ = [("workers", c_uint), ("budget_bytes", c_uint64), ("reserved_bytes", c_uint64), ("coded_only", c_bool),
                ("no_state", c_bool), ("warm", c_bool), ("prefetch", c_char_p), ("log", LOG), ("log_arg", c_void_p)]


class Need(Structure):
    _fields_ = [("expert", c_uint32), ("tokens", c_uint32)]


class CTensor(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_int), ("dims", c_uint32), ("shape", c_uint64 * 8), ("bytes", c_uint64),
                ("data", c_void_p), ("shards", c_void_p), ("shard_count", c_uint32), ("shard_elements", c_uint32)]


class ListedExpert(Structure):
    _fields_ = [("stack", c_char_p), ("layer", c_uint32), ("expert", c_uint32), ("tensors", POINTER(CTensor)),
                ("tensor_count", c_uint32)]


class Routing(Structure):
    _fields_ = [("sequence", c_uint32), ("stack", c_char_p), ("layer", c_uint32), ("count", c_uint32),
                ("experts", POINTER(c_uint32)), ("weights", c_void_p)]


class RouterOutput(Structure):
    _fields_ = [("experts", c_uint32), ("per_token", c_uint32), ("index_type", c_int), ("weight_type", c_int),
                ("indices", c_void_p), ("weights", c_void_p)]


class Mixture(Structure):
    _fields_ = [("expert_count", c_uint32), ("experts", c_void_p), ("routing", POINTER(RouterOutput)),
                ("hidden_act", c_char_p), ("layout", c_uint), ("activation", c_int), ("x", c_void_p), ("tokens", c_uint32),
                ("hidden", c_uint32), ("x_stride", c_size_t), ("y_stride", c_size_t), ("y", c_void_p),
                ("y_bf16", c_void_p), ("form", c_int), ("interrupted", INTERRUPTED), ("interrupted_arg", c_void_p)]


class GpuOptions(Structure):
    _fields_ = [("device", c_uint32), ("budget_bytes", c_uint64), ("policy", c_char_p)]


class FileInfo(Structure):
    _fields_ = [("path", c_char * 1024), ("bytes", c_uint64), ("kind", c_int), ("expert", c_uint32)]


class PackOptions(Structure):
    _fields_ = [("threads", c_uint), ("codec", c_int), ("shard_elements", c_uint32), ("force", c_bool),
                ("verify", c_bool), ("progress", PROGRESS), ("progress_arg", c_void_p), ("reclaim_step_bytes", c_uint64),
                ("small_reads_bytes", c_uint64), ("weights", c_bool), ("experts", c_char_p), ("packed", c_void_p),
                ("packed_arg", c_void_p)]


class PackRow(Structure):
    _fields_ = [("tensor_class", c_char * 8), ("dtype", c_char * 16), ("tensors", c_uint64), ("raw_bytes", c_uint64),
                ("coded_bytes", c_uint64), ("elements", c_uint64), ("exponent_bits", c_double),
                ("entropy_bits", c_double), ("bound_bytes", c_double)]


class PackReport(Structure):
    _fields_ = [("source_bytes", c_uint64), ("store_bytes", c_uint64), ("files", c_uint64), ("experts", c_uint64),
                ("tensors", c_uint64), ("content_hash", c_uint64), ("seconds", c_double), ("family", c_char * 64),
                ("warning", c_char * 1024), ("notice", c_char * 8192), ("row_count", c_uint), ("rows", PackRow * 96)]


STRUCTS = {"efs_error": ErrorText, "efs_client_options": ClientOptions, "efs_need": Need, "efs_tensor": CTensor,
           "efs_listed_expert": ListedExpert, "efs_routing": Routing, "efs_router_output": RouterOutput,
           "efs_mixture": Mixture, "efs_gpu_options": GpuOptions, "efs_file_info": FileInfo, "efs_pack_options": PackOptions,
           "efs_pack_row": PackRow, "efs_pack_report": PackReport}
P = c_void_p
CALLS = {
    "efs_version": (c_char_p, []),
    "efs_struct_bytes": (c_size_t, [c_char_p]),
    "efs_dtype_name": (c_char_p, [c_int]),
    "efs_tensor_role": (c_int, [c_char_p]),
    "efs_client_open": (c_int, [c_char_p, POINTER(ClientOptions), POINTER(P), POINTER(ErrorText)]),
    "efs_client_close": (None, [P]),
    "efs_client_fs": (P, [P]),
    "efs_client_experts": (c_int, [P, POINTER(POINTER(ListedExpert)), POINTER(c_uint32), POINTER(ErrorText)]),
    "efs_client_begin": (c_int, [P, c_char_p, c_uint32, POINTER(Need), c_uint32, c_int, POINTER(P), POINTER(ErrorText)]),
    "efs_client_wait_any": (c_int, [P, c_int, POINTER(c_uint32), POINTER(c_int)]),
    "efs_client_wait_step": (c_int, [P, c_bool, c_int]),
    "efs_client_tensors": (c_int, [P, c_uint32, POINTER(POINTER(CTensor)), POINTER(c_uint32)]),
    "efs_client_drop": (None, [P, c_uint32]),
    "efs_client_release": (None, [P]),
    "efs_client_gpu": (c_int, [P, POINTER(GpuOptions), POINTER(ErrorText)]),
    "efs_client_drop_after": (c_int, [P, c_uint32, c_void_p]),
    "efs_client_ffn": (c_int, [P, P, c_char_p, c_uint32, POINTER(Mixture), POINTER(ErrorText)]),
    "efs_team_new": (c_int, [c_uint, POINTER(P)]),
    "efs_team_free": (None, [P]),
    "efs_client_leave": (c_int, [P, c_uint64, POINTER(ErrorText)]),
    "efs_observe": (c_int, [P, POINTER(Routing), POINTER(ErrorText)]),
    "efs_hint": (c_int, [P, POINTER(Routing), POINTER(ErrorText)]),
    "efs_stats": (None, [P, P]),
    "efs_file_count": (c_uint32, [P]),
    "efs_file_info": (c_int, [P, c_uint32, POINTER(FileInfo)]),
    "efs_read": (None, [P, c_uint32, P, c_uint64, P, c_size_t, DONE, P]),
    "efs_set": (c_int, [P, c_char_p, c_char_p, POINTER(c_uint64), POINTER(ErrorText)]),
    "efs_pack": (c_int, [c_char_p, c_char_p, POINTER(PackOptions), POINTER(PackReport), POINTER(ErrorText)]),
}


def load() -> ctypes.CDLL:
    bundled = pathlib.Path(__file__).with_name(NAME)
    try:
        library = ctypes.CDLL(str(bundled) if bundled.exists() else NAME)
    except OSError as why:
        raise ImportError(f"expertfs: {NAME}: {why}\nhint: install the package libexpertfs0 or the wheel that "
                          "`make wheel` builds, or set LD_LIBRARY_PATH to the folder of this library") from None
    for name, (result, arguments) in CALLS.items():
        if not hasattr(library, name):
            raise ImportError(f"expertfs: {NAME} has no {name}: it is of another version than this package")
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    for name, struct in STRUCTS.items():
        if library.efs_struct_bytes(name.encode()) != ctypes.sizeof(struct):
            raise ImportError(f"expertfs: struct {name} of {NAME} {library.efs_version().decode()} has "
                              f"{library.efs_struct_bytes(name.encode())} bytes, here {ctypes.sizeof(struct)}: "
                              "the library is of another version than this package")
    return library


lib = load()
version = lib.efs_version().decode()
libc_free = ctypes.CDLL(None).free
libc_free.argtypes, libc_free.restype = [c_void_p], None
