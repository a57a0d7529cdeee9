# SPDX-License-Identifier: Apache-2.0
"""Mounts for the length of a block, and packing."""
from __future__ import annotations

import _thread
import contextlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from ctypes import byref
from typing import NamedTuple

from . import _library
from ._library import Error, ErrorText, PROGRESS, check, lib
from .values import number, size, text


def _apart(work: Callable[[], object], raised: list[BaseException]) -> None:
    """Does the work on another thread, where no signal handler runs, and waits for its end. raised: exceptions of signal
    handlers meanwhile, of which the first is raised then, else that of the work."""
    once, done, failed = threading.Lock(), threading.Event(), []

    def run():
        if not once.acquire(blocking=False):  # an exception came after the thread was started
            return
        try:
            work()
        except BaseException as error:  # pylint: disable=broad-except
            failed.append(error)
        finally:
            done.set()
    while not done.is_set():
        try:
            _thread.start_new_thread(run, ())
            done.wait()
        except BaseException as error:  # pylint: disable=broad-except
            raised.append(error)
    for error in (*raised, *failed):
        raise error


def _run(*command: str) -> None:
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               start_new_session=True, check=False)
    except FileNotFoundError:
        raise Error(2, f"{command[0]} is not in PATH\nhint: install the package expertfs") from None
    if ended.returncode:
        raise Error(5, ended.stderr.strip() or f"{command[0]}: exit status {ended.returncode}")


@contextlib.contextmanager
def mount(store: str | os.PathLike, path: str | os.PathLike | None = None, budget: int | str | None = None) -> Iterator[str]:
    """Mounts a store or a checkpoint by the program `expertfs`, and yields the path; unmounts at the end of the block,
    also after an exception. path: an empty folder (None: a temporary one). budget: as for open(). OSError (EIO) with the
    program's message."""
    undo, paths = contextlib.ExitStack(), []
    amount = size("budget", budget)

    def begin():
        paths.append(os.fspath(tempfile.mkdtemp(prefix="expertfs-") if path is None else path))
        if path is None:
            undo.callback(os.rmdir, paths[0])
        _run("expertfs", *(["-o", f"budget={amount}"] if amount else []), os.fspath(store), paths[0])
        undo.callback(_unmount, paths[0])
    try:
        _apart(begin, [])
        yield paths[0]
    finally:
        _apart(undo.close, [])


def _unmount(path: str) -> None:
    command = ("umount",) if os.geteuid() == 0 else ("fusermount3", "-u")
    try:
        _run(*command, path)
    except Error:  # files are open: it ends with the last of them
        _run(*command[:1], "-l" if command[0] == "umount" else "-uz", path)


class Packed(NamedTuple):
    """What pack() has written."""
    source_bytes: int
    store_bytes: int
    experts: int
    family: str
    notices: str


def pack(src: str | os.PathLike, dst: str | os.PathLike, progress: Callable[[int, int, str], object] | None = None, *,
         force: bool = False, threads: int = 0) -> Packed:
    """Packs a checkpoint into the store dst. progress(done_bytes, total_bytes, phase) is called on another thread, while
    this one runs signal handlers; it cancels by returning a true value, or by an exception, which is raised again, as is
    that of a signal handler. force replaces a store.

    OSError: EEXIST, ENOENT, ENODATA (an incomplete checkpoint), ESTALE (a file changed), ENOSPC, ECANCELED."""
    raised = []

    @PROGRESS
    def report(_arg, done, total, phase):
        try:
            return bool(raised or (progress and progress(done, total, phase.decode())))
        except BaseException as error:  # pylint: disable=broad-except
            raised.append(error)
            return True
    options = _library.PackOptions(threads=number("threads", threads), force=force, progress=report)
    result, why = _library.PackReport(), ErrorText()
    source, store, codes = text("src", src), text("dst", dst), []
    _apart(lambda: codes.append(lib.efs_pack(source, store, byref(options), byref(result), byref(why))), raised)
    check(codes[0], why)
    return Packed(result.source_bytes, result.store_bytes, result.experts, result.family.decode(),
                  (result.warning + result.notice).decode(errors="replace"))
