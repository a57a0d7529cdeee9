# SPDX-License-Identifier: Apache-2.0
"""Session.ffn(): arrays of numpy and tensors of torch as the library takes them."""
from __future__ import annotations

import ctypes
import threading
from ctypes import byref, c_void_p
from typing import NamedTuple

from . import _library
from ._library import BF16, F16, F32, I32, I64, ErrorText, check, lib
from .values import number, text

TYPES = {"float32": F32, "bfloat16": BF16, "float16": F16, "int64": I64, "int32": I32}
BYTES = {F32: 4, BF16: 2, F16: 2, I64: 8, I32: 4}


class Array(NamedTuple):
    address: int
    dtype: int
    shape: tuple[int, ...]
    row_stride: int  # elements
    type_name: str


def _of_torch(what: str, value) -> tuple:
    if value.device.type != "cpu":
        raise ValueError(f"ffn: {what} is on {value.device}: the library computes on the CPU")
    if value.requires_grad:
        raise ValueError(f"ffn: {what} requires a gradient, and experts of a store have none: use torch.no_grad()")
    return value.data_ptr(), str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride())


def _of_numpy(what: str, value) -> tuple:
    item = value.itemsize
    if not value.flags.aligned or any(stride % item for stride in value.strides):
        raise ValueError(f"ffn: {what} is not aligned: use .copy()")
    name = value.dtype.name if value.dtype.isnative else value.dtype.str  # a name is that of both byte orders
    return value.ctypes.data, name, tuple(value.shape), tuple(stride // item for stride in value.strides)


def array(what: str, value, types: tuple[int, ...], written: bool = False) -> Array:
    if hasattr(value, "data_ptr"):
        address, name, shape, strides = _of_torch(what, value)
    elif hasattr(value, "ctypes"):
        address, name, shape, strides = _of_numpy(what, value)
        if written and not value.flags.writeable:
            raise ValueError(f"ffn: {what} is read-only")
    else:
        raise TypeError(f"ffn: {what} is a {type(value).__name__}: a tensor of torch or an array of numpy is needed")
    if TYPES.get(name) not in types:
        allowed = ", ".join(known for known, number in TYPES.items() if number in types)
        raise TypeError(f"ffn: {what} is of {name}: {allowed}")
    if len(shape) != 2:
        raise ValueError(f"ffn: {what} has the shape {list(shape)}: two dimensions are needed")
    if 0 not in shape and (shape[1] > 1 and strides[1] != 1 or shape[0] > 1 and strides[0] < shape[1]):
        raise ValueError(f"ffn: {what} is strided: use .contiguous()")
    stride = strides[0] if shape[0] > 1 and shape[1] > 0 else shape[1]
    return Array(address, TYPES[name], shape, stride, name)


def empty_like(x):
    if hasattr(x, "data_ptr"):
        return x.new_empty(x.shape, dtype=x.dtype if str(x.dtype) == "torch.bfloat16" else getattr(__import__("torch"), "float32"))
    import numpy
    return numpy.empty(x.shape, x.dtype if x.dtype.name == "bfloat16" else numpy.float32)


def _signal_handlers(raised: list):
    """A generator that runs the handlers of signals, and returns whether one has raised, which it catches: before the first
    line of a function, where the interpreter looks for signals, the function cannot catch."""
    def look():
        while True:
            try:
                yield bool(raised)
            except GeneratorExit:
                return
            except BaseException as error:  # pylint: disable=broad-except
                raised.append(error)
    looking = look()
    next(looking)
    return looking


def _team(session) -> c_void_p:
    with session._teaming:
        if not session._team:
            check(lib.efs_team_new(0, byref(session._team)))
    return session._team


def _layer_experts(session, layer: int, stack: str) -> int:
    for one in session.layers():
        if one.number == layer and one.stack == stack:
            return one.experts[-1] + 1
    raise _library.error(2, f"{session.path}: there is no layer {layer}{f' of {stack}' if stack else ''}")


def run_ffn(session, layer, x, idx, w, out, act, form, stack, layout):
    client = session._check()
    given, indices = array("x", x, (F32, BF16, F16)), array("idx", idx, (I64, I32))
    weights = array("w", w, (F32, BF16))
    result = empty_like(x) if out is None else out
    to = array("out", result, (F32, BF16), written=True)
    tokens, hidden = given.shape
    if indices.shape != weights.shape or indices.shape[0] != tokens or to.shape != given.shape:
        raise ValueError(f"ffn: shapes: x {given.shape}, idx {indices.shape}, w {weights.shape}, out {to.shape}")
    if form not in _library.FORMS:
        raise ValueError(f"{form!r} is no form: {', '.join(_library.FORMS)}")
    for what, one in (("idx", indices), ("w", weights)):
        if one.row_stride != one.shape[1]:
            raise ValueError(f"ffn: {what} is strided: use .contiguous()")
    layer, stack_text, experts = number("layer", layer), text("stack", stack), _layer_experts(session, layer, stack)
    hidden_act = text("act", act) if act else None
    if tokens == 0 or indices.shape[1] == 0:
        result[...] = 0
        return result
    routing = _library.RouterOutput(experts, number("K", indices.shape[1]), indices.dtype, weights.dtype,
                                    indices.address, weights.address)
    mixture = _library.Mixture(
        routing=ctypes.pointer(routing), hidden_act=hidden_act, layout=layout, x=given.address,
        activation=_library.ACTIVATIONS[given.dtype], tokens=number("tokens", tokens), hidden=number("hidden", hidden), x_stride=given.row_stride,
        y_stride=to.row_stride, form=_library.FORMS[form])
    setattr(mixture, "y_bf16" if to.dtype == BF16 else "y", to.address)
    why, raised = ErrorText(), []
    if threading.current_thread() is threading.main_thread():
        mixture.interrupted = _library.INTERRUPTED(_signal_handlers(raised).send)
    rc = lib.efs_client_ffn(client, _team(session), stack_text, layer, byref(mixture), byref(why))
    if raised:
        raise raised[0]
    if rc < 0:
        raise _library.error(rc, f"{session.path}: {why.text.decode(errors='replace')}")
    return result
