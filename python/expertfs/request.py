# SPDX-License-Identifier: Apache-2.0
"""Experts on their way."""
from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from ctypes import byref, c_int, c_uint32, c_void_p

from . import _library
from ._library import ErrorText, check, lib
from .tensor import Expert, free_untaken
from .values import Uncopied, number, text

STEP_MS = 100  # between two looks for signals


class Request(Uncopied):
    """Experts of a layer that were requested; an iterator over them in order of arrival.

    An expert that could not be loaded is raised as an OSError with layer and number; the next call goes on with the
    others. A wait for memory that only experts of the thread which made the request hold raises OutOfMemory, a
    MemoryError: then delete some, and go on. The loop variable of `for expert in request` is one. Of threads that hold
    experts and wait for each other one gets it: at once, or from a mount when no memory was released for 30 s."""

    def __init__(self, session, layer: int, experts: Sequence[int], tokens: int | Sequence[int], form: str, stack: str):
        forms = _library.FORMS if session.device is None else {**_library.FORMS, "device": _library.DEVICE}
        if form not in forms:
            raise ValueError(f"{form!r} is no form: {', '.join(forms)}")
        #: The numbers that were requested, and their layer.
        self.experts = [number("an expert", expert) for expert in experts]
        self.layer, self.session = number("layer", layer), session
        counts = [number("tokens", one) for one in (tokens if isinstance(tokens, Iterable) else [tokens] * len(self.experts))]
        if len(counts) != len(self.experts):
            raise ValueError(f"{len(self.experts)} experts, {len(counts)} numbers of tokens")
        #: The graphics processor that has its tensors, by number; None: the CPU.
        self.device: int | None = session.device if form == "device" else None
        needs = (_library.Need * len(self.experts))(*zip(self.experts, counts))
        stack_text, why, handle = text("stack", stack), ErrorText(), c_void_p()
        free_untaken()
        with session._calls.running():
            session._requests[id(self)] = handle  # first: a signal handler may raise as soon as efs_client_begin() returns
            check(lib.efs_client_begin(session._check(), stack_text, self.layer, needs, len(needs), forms[form],
                                       byref(handle), byref(why)), why)

    def __iter__(self) -> Request:
        return self

    def __next__(self) -> Expert:
        """The next expert that has arrived. Blocks; other Python threads run, and signal handlers."""
        index = self.next_index()
        if index is None:
            raise StopIteration
        return Expert(self, index)

    def next_index(self) -> int | None:
        """The index in `experts` of the next that has arrived, without an object; None: there is none. The caller drops it."""
        index, status = c_uint32(), c_int()
        if not self._wait(index, status):
            return None
        if status.value < 0:
            raise _library.failed(status.value, f"{self.session.path}: layer {self.layer}, expert {self.experts[index.value]}")
        return index.value

    def wait(self) -> list[Expert]:
        """Waits for all, and returns those that were not iterated over yet, in the order of the request. OutOfMemory, at
        once and without taking any: they do not fit into memory together; iterate over them."""
        with self.session._calls.running():
            if self._step(True) == -errno.EDEADLK:
                raise self._no_room()
        return sorted(self, key=lambda expert: self.experts.index(expert.number))

    def _wait(self, index, status) -> int:
        with self.session._calls.running():
            while (rc := lib.efs_client_wait_any(self._open(), 0, byref(index), byref(status))) == -errno.ETIMEDOUT:
                if (rc := self._step(False)) < 0:
                    break
        if rc == -errno.EDEADLK or (rc == 1 and status.value == -errno.EDEADLK):  # a mount has waited 30 s
            raise self._no_room()
        return check(rc)

    def _step(self, of_all: bool) -> int:
        while (rc := lib.efs_client_wait_step(self._open(), of_all, STEP_MS)) == -errno.EINTR:
            pass  # here Python runs the handlers of signals
        return rc

    def _open(self) -> c_void_p:
        self.session._check()
        if not self.handle:
            raise ValueError("the request was released when its session was closed")
        return self.handle

    def _no_room(self) -> _library.Error:
        count, used = len(self.experts), len(self.session._holds)
        hint = "delete tensors before more are requested" if used else "iterate over the request in place of wait()"
        return _library.error(-errno.EDEADLK, f"{self.session.path}: layer {self.layer}: no memory for more of its "
                              f"{count} expert{'s' * (count != 1)}: {used} in use\n"
                              f"hint: {hint}, or open it with a larger budget")

    @property
    def handle(self) -> c_void_p | None:
        """None: it was released when its session was closed."""
        return self.session._requests.get(id(self))

    def __del__(self) -> None:
        if hasattr(self, "session"):
            self.session._release(id(self))
