# SPDX-License-Identifier: Apache-2.0
"""The reader matrix of tools/bench: how a cold file is read through the mount, and from ext4.

A row is one kind of access and one request size. Its cells vary conditions that should not matter: the offset of the
buffer in its page, the number of threads, and whether the threads share a descriptor and each takes the next block, or
each reads its part of the file with its own descriptor. Each round of a cell reads the original, which is not in the
page cache, and the same file through a new mount.
"""
import functools
import os
import statistics

from common import DIRECT, drop, fio
from runner import turns

KINDS = ("pread", "read", "readv", "mmap", "sendfile")
SIZES = (4, 16, 64, 256, 1024, 8192)  # KiB
TOUCHED = 3 << 30  # upper bound of the memory that a cold read of the file needs, bytes
SHIFTS = {0: "aligned", 16: "+16", 1: "odd"}
TEAMS = ((1, "shared"), (2, "shared"), (4, "shared"), (8, "shared"), (2, "own"), (4, "own"), (8, "own"))
QUICK_SIZES = (64, 1024)
QUICK_TEAMS = ((1, "shared"), (4, "shared"), (4, "own"))


def cells(quick):
    """The cells of a row as (shift, threads, descriptors)."""
    if quick:
        return [(shift, threads, team) for threads, team in QUICK_TEAMS for shift in SHIFTS
                if shift == 16 or threads == 1 or team == "shared"]
    return [(shift, threads, team) for threads, team in TEAMS for shift in SHIFTS]


def rates(bench, store, raw, where, kind, size, cell, rounds):
    """GB/s of the rounds of the mount, of ext4."""
    shift, threads, team = cell
    how = ("--keep-cache", "--mode", kind, "--block", str(size), "--shift", str(shift), "--threads", str(threads),
           "--team", team)

    def theirs():
        drop(raw)
        return bench.rate(*how, raw)

    found = turns({"ext4": theirs, "ours": lambda: ours(bench, store, lambda: bench.rate(*how, where))}, rounds)
    return found["ours"], found["ext4"]


def ours(bench, store, read, memory=0):
    """What read() returns, of a cold mount."""
    drop(store)
    if memory:
        bench.touch_memory(memory)
    with bench.Mounted(store, "budget=auto,nostate"):
        return read()


def name_of(cell):
    shift, threads, team = cell
    return f"{SHIFTS[shift]}, {threads} thread{'s' * (threads > 1)}{f', {team}' * (threads > 1)}"


def psync(bench, store, raw, where, rounds):
    """Prints the ratio of fio psync through a cold mount, 1 MiB per read, to fio O_DIRECT with io_uring on the
    original."""
    found = turns({"fio": lambda: fio(raw, *DIRECT), "ours": lambda: ours(bench, store, lambda: fio(where, "--ioengine=psync",
                                                                                                     "--invalidate=0"), TOUCHED)}, rounds)
    bench.row("fio psync 1 MiB, cold, over fio O_DIRECT of the original", found["ours"], ">= 1.3 (1.5)", "", ("fio O_DIRECT", found["fio"]))


def unaligned(bench, store, raw, where, rounds):
    """Prints the ratio of pread of 1 MiB by one thread into buffers that are not page-aligned to aligned ones."""
    found = turns({shift: functools.partial(ours, bench, store, functools.partial(bench.rate, "--keep-cache", "--team", "shared", "--shift",
                                                                                  str(shift), where), TOUCHED) for shift in SHIFTS}, rounds)
    for shift in (16, 1):
        bench.row(f"pread 1 MiB, cold, buffer {SHIFTS[shift]} over aligned", found[shift], ">= 0.95", "", ("aligned", found[0]))


def matrix(bench, store, raw, where, kinds, sizes, quick, rounds):
    print("\n| access | request | best cell, GB/s | worst over best | ext4, median GB/s | ours over ext4 |\n"
          "|---|---|---|---|---|---|", flush=True)
    for kind in kinds:
        for size in sizes:
            pairs = {cell: rates(bench, store, raw, where, kind, size, cell, rounds) for cell in cells(quick)}
            found = {cell: tuple(map(statistics.median, pair)) for cell, pair in pairs.items()}
            best = max(found, key=lambda cell: found[cell][0])
            worst = min(found, key=lambda cell: found[cell][0])
            ours, theirs = (statistics.median(pair[i] for pair in found.values()) for i in (0, 1))
            what = f"{size} KiB" if size < 1024 else f"{size // 1024} MiB"
            print(f"| {kind} | {what} | {found[best][0]:.2f} ({name_of(best)}) | "
                  f"{found[worst][0] / found[best][0]:.2f} ({name_of(worst)}) | {theirs:.2f} | {ours / theirs:.2f} |",
                  flush=True)
            for cell, (own, their) in pairs.items():
                bench.table.compare(own, {"ext4": their}, "GB/s", what=f"{kind} {what}, {name_of(cell)}")


def run(bench, source, store, quick):
    raw = bench.big_files(source)[0]
    where = os.path.join(bench.MOUNT, os.path.basename(raw))
    kinds = os.environ.get("READERS", " ".join(KINDS)).split()
    sizes = [int(size) for size in os.environ.get("READER_KIB", "").split()] or (QUICK_SIZES if quick else SIZES)
    psync(bench, store, raw, where, bench.ROUNDS)
    unaligned(bench, store, raw, where, bench.ROUNDS)
    matrix(bench, store, raw, where, kinds, sizes, quick, 1 if quick else min(bench.ROUNDS, 3))
