# SPDX-License-Identifier: Apache-2.0
"""Experts on their way."""
from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Sequence
from ctypes import byref, c_int, c_uint32, c_void_p

from . import _library
from ._library import ErrorText, OutOfMemory, check, lib
from .tensor import Expert
from .values import Uncopied, number, text

POLL_MS = 100  # how often a wait looks whether it can end
STUCK = 3  # as often in a row it must not


class Request(Uncopied):
    """Experts of a layer that were requested; an iterator over them in order of arrival.

    An expert that could not be loaded is raised as an OSError with layer and number; the next call goes on with the
    others. A wait for memory that only waiting threads hold raises OutOfMemory, a MemoryError."""

    def __init__(self, session, layer: int, experts: Sequence[int], tokens: int | Sequence[int], form: str, stack: str):
        if form not in _library.FORMS:
            raise ValueError(f"{form!r} is no form: {', '.join(_library.FORMS)}")
        #: The numbers that were requested, and their layer.
        self.experts = [number("an expert", expert) for expert in experts]
        self.layer, self.session = number("layer", layer), session
        counts = [number("tokens", one) for one in (tokens if isinstance(tokens, Iterable) else [tokens] * len(self.experts))]
        if len(counts) != len(self.experts):
            raise ValueError(f"{len(self.experts)} experts, {len(counts)} numbers of tokens")
        needs = (_library.Need * len(self.experts))(*zip(self.experts, counts))
        client, why, handle = session._check(), ErrorText(), c_void_p()
        check(lib.efs_client_begin(client, text("stack", stack), self.layer, needs, len(needs), _library.FORMS[form],
                                   byref(handle), byref(why)), why)
        session._requests[id(self)] = handle
        session._holds[id(self)] = threading.get_ident()

    def __iter__(self) -> Request:
        return self

    def __next__(self) -> Expert:
        """The next expert that has arrived. Blocks; other Python threads run."""
        index, status = c_uint32(), c_int()
        if not self._wait(index, status):
            self.session._holds.pop(id(self), None)
            raise StopIteration
        if status.value < 0:
            kind = type(_library.error(status.value))
            raise kind(-status.value, f"{self.session.path}: layer {self.layer}, expert {self.experts[index.value]}: "
                       f"{os.strerror(-status.value)}")
        return Expert(self, index.value)

    def wait(self) -> list[Expert]:
        """Waits for all, and returns those that were not iterated over yet, in the order of the request."""
        return sorted(self, key=lambda expert: self.experts.index(expert.number))

    def _wait(self, index, status) -> int:
        session, thread, stuck = self.session, threading.get_ident(), 0
        session._waits[thread] = id(self)
        try:
            while True:
                session._check()
                if not self.handle:
                    raise ValueError("the request was released when its session was closed")
                rc = lib.efs_client_wait_any(self.handle, POLL_MS, byref(index), byref(status))
                if rc != -errno.ETIMEDOUT:
                    break
                stuck = stuck + 1 if session._stuck() else 0
                if stuck == STUCK:
                    raise self._no_room()
        finally:
            session._waits.pop(thread, None)
        if rc == 1 and status.value == -errno.EDEADLK and session._living():
            raise self._no_room()  # a mount has waited 30 s
        return check(rc)

    def _no_room(self) -> OutOfMemory:
        living = self.session._living()
        return OutOfMemory(errno.ENOMEM, f"{self.session.path}: layer {self.layer}: no memory for more experts: {living} in use"
                           "\nhint: delete tensors before more are requested, or open it with a larger budget")

    @property
    def handle(self) -> c_void_p | None:
        """None: it was released when its session was closed."""
        return self.session._requests.get(id(self))

    def __del__(self) -> None:
        if hasattr(self, "session"):
            self.session._release(id(self))
