# SPDX-License-Identifier: Apache-2.0
"""Files and counters of a store in this process, or of a mount."""
from __future__ import annotations

import _thread
import ctypes
import errno
import os
import re
import threading
from collections.abc import Iterator
from ctypes import byref
from typing import NamedTuple

from ._library import DONE, Error, FileInfo, failed, lib
from .values import number

# struct efs_stats, as expertfs-stats.h lists it
STATS = """reads read_bytes read_errors reads_f reads_c reads_m reads_generated leases leases_f leases_c leases_m
leases_shared lease_errors lease_waits disk_reads disk_bytes disk_errors disk_ns readahead_extents warmed_extents placed_bytes
decoded_bytes decode_ns chunks_damaged requests_f requests_c requests_s requests_e requests_p requests_m demotions
recoded_bytes policy_ns plans kept_lost evictions_c memory_short evictions_f evictions_first budget_bytes fixed_bytes
chunk_pool_bytes chunk_used_bytes chunk_extents full_pool_bytes full_experts leased_bytes leased_experts inflight io_uring
direct_io guessed_extents reads_small reads_edge coded coded_c coded_m coded_errors coded_waits coded_bytes coded_experts
effective_budget_bytes reads_past local_bytes local_written_bytes local_evicted_bytes local_damaged
local_held_bytes fetched_bytes""".split()


def stats(session) -> dict[str, int]:
    session._check()
    if session.is_mount:
        with open(os.path.join(session.path, ".expertfs/stat")) as file:
            return {name: int(value) for name, value in re.findall(r"^(\w+): (\d+)$", file.read(), re.M)}
    if lib.efs_struct_bytes(b"efs_stats") != 8 * len(STATS):
        raise ImportError("expertfs: struct efs_stats is of another version than this package")
    values = (ctypes.c_uint64 * len(STATS))()
    lib.efs_stats(session._fs, values)
    return dict(zip(STATS, values))


class File(NamedTuple):
    path: str  # relative, "model.safetensors", "experts/L03/E017.safetensors"
    nbytes: int


def _walk(folder: str, root: str) -> Iterator[File]:
    for entry in os.scandir(folder):
        if entry.is_dir():
            if entry.name != ".expertfs" or folder != root:
                yield from _walk(entry.path, root)
        else:
            yield File(os.path.relpath(entry.path, root), entry.stat().st_size)


class Files:
    """Of a session, to which it has no reference: the session is freed with the last one of the program."""

    def __init__(self):
        self._numbers: dict[str, tuple[int, int]] | None = None

    def files(self, session) -> list[File]:
        session._check()
        if session.is_mount:
            return sorted(_walk(session.path, session.path))
        info, found = FileInfo(), []
        for index in range(lib.efs_file_count(session._fs)):
            lib.efs_file_info(session._fs, index, byref(info))
            found.append(File(os.fsdecode(info.path), info.bytes))
        return found

    def read(self, session, path: str, offset: int, size: int | None) -> bytes:
        session._check()
        offset, size = number("offset", offset, 63), None if size is None else number("size", size, 63)
        if session.is_mount:
            try:
                with open(os.path.join(session.path, path), "rb") as file:
                    file.seek(offset)
                    return file.read() if size is None else file.read(size)
            except OSError as why:
                raise failed(why.errno, f"{session.path}: {path}") from None
        if self._numbers is None:
            self._numbers = {file.path: (index, file.nbytes) for index, file in enumerate(self.files(session))}
        if path not in self._numbers:
            raise Error(errno.ENOENT, f"{session.path}: {path}: no such file")
        index, all_bytes = self._numbers[path]
        there = max(all_bytes - offset, 0)
        return self._read(session, path, index, offset, there if size is None else min(size, there))

    def _read(self, session, path, index, offset, size) -> bytes:
        data, result = ctypes.create_string_buffer(size or 1), []
        begun, ended = threading.Event(), threading.Event()

        @DONE
        def done(_arg, code, got):  # on any thread
            result.append((code, got))
            ended.set()

        def read():  # has data and done until the library does not use them any more, also if the caller is interrupted
            with session._calls.running():
                if not session._client:  # the caller was interrupted, and has closed it
                    return
                lib.efs_read(session._fs, index, None, offset, data, size, done, None)
            begun.set()  # this thread does not use the session any more, which the caller may close when it has the bytes
            ended.wait()
        if threading.current_thread() is threading.main_thread():  # where a signal handler could raise in done()
            _thread.start_new_thread(read, ())
            begun.wait()
            ended.wait()
        else:
            read()
        code, got = result[0]
        if code < 0:
            raise failed(code, f"{session.path}: {path}")
        return data.raw[:got]
