# SPDX-License-Identifier: Apache-2.0
"""A store, a checkpoint or a mount that is open: its layers, requests, products, files."""
from __future__ import annotations

import atexit
import collections
import ctypes
import errno
import os
import threading
import weakref
from collections.abc import Sequence
from ctypes import byref, c_uint32, c_void_p
from typing import NamedTuple

from . import _library
from ._library import Error, ErrorText, check, lib
from .files import File, Files, stats
from .ffn import run_ffn
from .layers import Layer, list_layers
from .request import Request
from .tensor import free_untaken
from .values import Uncopied, number, size, text

_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


class Message(NamedTuple):
    level: str  # "error", "warning" or "info"
    text: str


def open(path: str | os.PathLike, budget: int | str | None = None, *, workers: int = 0, coded_only: bool = False,
         state: bool = True, prefetch: str | None = None, reserved: int | str | None = None, device: int | None = None,
         device_budget: int | str | None = None) -> Session:
    """Opens a store, a checkpoint (a folder or a file of safetensors or GGUF), or the directory of a mount.

    Of a store or a checkpoint: `budget` limits all memory that it takes, as a number of bytes or "8G" (default: half of
    what is available, more after leave()); `reserved`, memory of the program that the budget includes; `workers`,
    decode threads (0: all cores); `coded_only` keeps no decoded experts; `state=False` reads and writes no state
    directory; `prefetch`: a value of that tunable. A mount has its own: these are then refused.

    `device`: the number of a graphics processor (CUDA), for requests of the form "device"; `device_budget` limits all of
    its memory that is taken (default: half of what is free). OSError: ENODEV, no driver or no such device; EOPNOTSUPP, a
    library without its kernels; EINVAL, the budget is too small.

    OSError with errno: ENOENT, EACCES; ENODEV: neither a store nor a mount; EUCLEAN: damaged; and OutOfMemory, which is
    a MemoryError, too: the budget is below its minimum, which the text names."""
    return Session(path, budget, workers, coded_only, state, prefetch, reserved, device, device_budget)


def _log_to(messages):
    """A callback for any thread. It has no reference to the session, which would then be freed by the collector alone."""
    return _library.LOG(lambda _arg, level, line: messages.append(Message(_library.LEVELS[level], line.decode(errors="replace"))))


class _Calls:
    """The threads that are in calls of the library: close() must not free what they use. Each has a lock, held during a call;
    it is reentrant, as the collector may end a request at any place, and not of Python, where a signal's handler might raise
    before it is released."""

    def __init__(self):
        self._locks: dict[int, threading.RLock] = {}  # by thread

    def running(self):
        """Enter it for the length of a call."""
        thread = threading.get_ident()
        return self._locks.get(thread) or self._locks.setdefault(thread, threading.RLock())

    def others(self) -> int:
        """How many other threads are in one."""
        count = 0
        for lock in list(self._locks.values()):
            if lock.acquire(blocking=False):
                lock.release()
            else:
                count += 1
        return count


class Session(Uncopied):
    """What expertfs.open() returns. Threads may share it. As a context manager it is closed at the end.

    Forms of experts: "full", decoded; "coded", as the library's products read them; "any", the one in memory; "device",
    decoded in memory of the graphics processor.
    After a fork all methods of the child raise OSError (ECHILD); full tensors stay readable."""

    def __init__(self, path, budget, workers, coded_only, state, prefetch, reserved, device, device_budget):
        self.path = os.fspath(path)
        self._pid = os.getpid()
        self._messages: collections.deque[Message] = collections.deque(maxlen=1000)
        self._holds: set[int] = set()  # the ids of experts in use
        self._requests: dict[int, c_void_p] = {}  # those that are not released, by the object's id
        self._calls = _Calls()
        self._client, self._team, self._layers = c_void_p(), c_void_p(), None
        self._teaming = threading.Lock()
        self._log = _log_to(self._messages)
        if device is None and device_budget is not None:
            raise ValueError("device_budget is for a device\nhint: device=0")
        options = _library.ClientOptions(
            workers=number("workers", workers), budget_bytes=size("budget", budget), reserved_bytes=size("reserved", reserved),
            coded_only=coded_only, no_state=not state, prefetch=text("prefetch", prefetch) if prefetch else None, log=self._log)
        why = ErrorText()
        check(lib.efs_client_open(text("path", self.path), byref(options), byref(self._client), byref(why)), why)
        self._fs = c_void_p(lib.efs_client_fs(self._client))
        #: Whether it is a mount.
        self.is_mount = not self._fs
        _open_sessions.add(self)
        if self.is_mount and (budget or workers or coded_only or prefetch or reserved):
            self.close()
            raise ValueError(f"{self.path}: a mount has a budget, workers and prefetch of its own")
        self._files = Files()
        #: The number of the graphics processor; None: none.
        self.device: int | None = None if device is None else number("device", device)
        if device is not None:
            gpu = _library.GpuOptions(device=self.device, budget_bytes=size("device_budget", device_budget))
            check(lib.efs_client_gpu(self._client, byref(gpu), byref(why)), why)

    def __repr__(self) -> str:
        return f"<expertfs.Session {self.path}{'' if self._client else ', closed'}>"

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind, value, trace) -> None:
        free_untaken()
        if kind is None:
            self.close()
        elif not self._holds and not self._calls.others():  # with tensors in use, the exception has a traceback that holds them
            self._close()

    def __del__(self) -> None:
        if getattr(self, "_client", None) and self._pid == os.getpid():
            self._close()

    def messages(self) -> list[Message]:
        """The log lines since the last call, the latest 1,000 of them."""
        found = []
        while self._messages:
            found.append(self._messages.popleft())
        return found

    def _check(self) -> c_void_p:
        if self._pid != os.getpid():
            raise Error(errno.ECHILD, f"{self.path} was opened by the process from which this one was forked")
        if not self._client:
            raise ValueError(f"{self.path} is closed")
        return self._client

    def close(self) -> None:
        """Ends all of it. OSError (EBUSY) with the number of experts whose tensors are still in use, or of calls that are
        running in other threads."""
        client = self._check()
        free_untaken()
        self._client = c_void_p()  # first: a call that begins now fails
        living, others = len(self._holds), self._calls.others()
        if not living and not others:
            return self._free(client)
        self._client = client
        if living:
            raise Error(errno.EBUSY, f"{self.path}: tensors of {living} expert{'s' * (living != 1)} are in use\n"
                        "hint: delete them, and what was made of them, before the session is closed")
        raise Error(errno.EBUSY, f"{self.path}: other threads use it: {others}\nhint: wait for them before it is closed")

    def _close(self) -> None:
        client, self._client = self._client, c_void_p()
        self._free(client)

    def _free(self, client: c_void_p) -> None:
        for request in list(self._requests):
            self._release(request)
        team, self._team = self._team, c_void_p()
        lib.efs_team_free(team)
        lib.efs_client_close(client)

    def _release(self, request: int) -> None:
        """Ends a request, by the id of its object, once."""
        with self._calls.running():
            handle = self._requests.pop(request, None)
            if handle and self._pid == os.getpid():
                lib.efs_client_release(handle)

    # ---- what it has ----

    def layers(self) -> list[Layer]:
        """The layers with experts, in the order of stack and number, with their tensors; none is loaded."""
        with self._calls.running():
            client = self._check()
            if self._layers is None:
                self._layers = list_layers(client)
            return list(self._layers)

    def request(self, layer: int, experts: Sequence[int], tokens: int | Sequence[int] = 1, form: str = "full",
                stack: str = "") -> Request:
        """Requests experts of a layer, each once, in this order; does not block. `tokens`: routed to each, or to all.

        Iterate over it for the experts in order of arrival, or wait() for all. OSError: ENOENT, no such layer or expert;
        EINVAL, an expert twice."""
        return Request(self, layer, experts, tokens, form, stack)

    def ffn(self, layer: int, x, idx, w, out=None, *, act: str | None = None, form: str = "any", stack: str = "",
            transposed: bool = False, interleaved: bool = False):
        """Runs the experts of each token: out[t] = sum over k of w[t, k] * expert idx[t, k] (x[t]).

        x: [tokens, hidden], of float32, bfloat16 or float16; idx: [tokens, K], int64 or int32; w: [tokens, K], float32
        or bfloat16: tensors of torch on the CPU, or arrays of numpy (bfloat16 by ml_dtypes), with rows that are not
        strided. out: as x, float32 or bfloat16; it is made if it is None. act: `hidden_act` of config.json. Sums are
        float32, rounded once if out is bfloat16; the same bits for every form. transposed, interleaved: the layout of
        gate_up and down, which names and shapes do not say: [inputs, outputs] (Llama 4, Qwen3-VL-MoE), and gate and up
        in turns (gpt-oss in BF16, which has both). Blocks; other Python threads run.

        ValueError, TypeError: shapes and types; OSError: EOPNOTSUPP, another kind of expert, layout or activation;
        EUCLEAN, damage; EIO; MemoryError: tensors that this thread holds, or that threads which wait for each other hold, leave no
        room."""
        layout = (_library.TRANSPOSED if transposed else 0) | (_library.INTERLEAVED if interleaved else 0)
        with self._calls.running():
            return run_ffn(self, layer, x, idx, w, out, act, form, stack, layout)

    # ---- prefetch ----

    def _routing(self, call, layer, experts, weights, sequence, stack) -> None:
        why = ErrorText()
        if weights is not None and len(weights) != len(experts):
            raise ValueError(f"{len(experts)} experts, {len(weights)} weights")
        numbers = (c_uint32 * len(experts))(*(number("an expert", one) for one in experts))
        floats = (ctypes.c_float * len(experts))(*weights) if weights is not None else None
        routing = _library.Routing(number("sequence", sequence), text("stack", stack), number("layer", layer), len(experts),
                                   numbers, ctypes.cast(floats, c_void_p))
        with self._calls.running():
            check(call(self._check(), byref(routing), byref(why)), why)

    def observe(self, layer: int, experts: Sequence[int], weights: Sequence[float] | None = None, *, sequence: int = 0,
                stack: str = "") -> None:
        """Reports the router's choice for a layer of a sequence before its experts are requested, the best first.
        No experts: the sequence has ended. Does not block."""
        self._routing(lib.efs_observe, layer, experts, weights, sequence, stack)

    def hint(self, layer: int, experts: Sequence[int], weights: Sequence[float] | None = None, *, sequence: int = 0,
             stack: str = "") -> None:
        """Replaces the prediction for a layer by experts with probabilities. Does not block."""
        self._routing(lib.efs_hint, layer, experts, weights, sequence, stack)

    def leave(self, disk_bytes: int = 0) -> None:
        """The program begins to compute, and has the model loaded: an automatic budget, also of a mount, leaves memory to
        all of the model but its experts, and disk_bytes of tables that stay on disk, in place of half of what is
        available. No effect on a budget that is a number. Does not block."""
        why, disk = ErrorText(), number("disk_bytes", disk_bytes, 63)
        with self._calls.running():
            check(lib.efs_client_leave(self._check(), disk, byref(why)), why)

    # ---- files and counters ----

    def stats(self) -> dict[str, int]:
        """The counters and gauges of expertfs-proc(5)."""
        with self._calls.running():
            return stats(self)

    def files(self) -> list[File]:
        """The files: those of the checkpoint, then one for each expert."""
        with self._calls.running():
            return self._files.files(self)

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        """Bytes of a file of files(). OSError: ENOENT; EIO; EUCLEAN, damage."""
        with self._calls.running():
            return self._files.read(self, path, offset, size)


@atexit.register
def _close_all() -> None:
    """Before the interpreter ends: threads of the library call no Python afterwards. Sessions with tensors in use, or that
    other threads use, stay open until the process ends, and nothing of them is freed."""
    for session in list(_open_sessions):
        if session._client and session._pid == os.getpid():
            others = session._calls.others()
            if not session._holds and not others:
                session._close()
                continue
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
            if not others:
                session._pid = 0
