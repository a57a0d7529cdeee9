# SPDX-License-Identifier: Apache-2.0
"""The reader matrix of tools/bench: how a cold file is read through the mount, and from ext4.

A row is one kind of access and one request size. Its cells vary conditions that should not matter: the offset of the
buffer in its page, the number of threads, and whether the threads share a descriptor and each takes the next block, or
each reads its part of the file with its own descriptor. Each round of a cell reads the original, which is not in the
page cache, and the same file through a new mount.
"""
import os
import statistics

from common import DIRECT, drop, fio

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
    """(GB/s of the mount, GB/s of ext4): medians over alternating rounds."""
    shift, threads, team = cell
    how = ("--keep-cache", "--mode", kind, "--block", str(size), "--shift", str(shift), "--threads", str(threads),
           "--team", team)
    ours, theirs = [], []
    for _ in range(rounds):
        drop(raw)
        theirs.append(bench.rate(*how, raw))
        drop(store)
        with bench.Mounted(store, "budget=auto,nostate"):
            ours.append(bench.rate(*how, where))
    return statistics.median(ours), statistics.median(theirs)


def name_of(cell):
    shift, threads, team = cell
    return f"{SHIFTS[shift]}, {threads} thread{'s' * (threads > 1)}{f', {team}' * (threads > 1)}"


def psync(bench, store, raw, where, rounds):
    """Prints the ratio of fio psync through a cold mount, 1 MiB per read, to fio O_DIRECT with io_uring on the
    original."""
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(fio(raw, *DIRECT))
        drop(store)
        bench.touch_memory(TOUCHED)
        with bench.Mounted(store, "budget=auto,nostate"):
            ours.append(fio(where, "--ioengine=psync", "--invalidate=0"))
    bench.ratio("fio psync 1 MiB, cold, over fio O_DIRECT of the original", ours, theirs, ">= 1.3 (1.5)")


def unaligned(bench, store, raw, where, rounds):
    """Prints the ratio of pread of 1 MiB by one thread into buffers that are not page-aligned to aligned ones."""
    told = {shift: [] for shift in SHIFTS}
    order = list(SHIFTS)
    for _ in range(rounds):
        for shift in order:
            drop(store)
            bench.touch_memory(TOUCHED)
            with bench.Mounted(store, "budget=auto,nostate"):
                told[shift].append(bench.rate("--keep-cache", "--team", "shared", "--shift", str(shift), where))
        order.append(order.pop(0))
    for shift in (16, 1):
        bench.ratio(f"pread 1 MiB, cold, buffer {SHIFTS[shift]} over aligned", told[shift], told[0], ">= 0.95")


def matrix(bench, store, raw, where, kinds, sizes, quick, rounds):
    print("\n| access | request | best cell, GB/s | worst over best | ext4, median GB/s | ours over ext4 |\n"
          "|---|---|---|---|---|---|", flush=True)
    for kind in kinds:
        for size in sizes:
            found = {cell: rates(bench, store, raw, where, kind, size, cell, rounds) for cell in cells(quick)}
            best = max(found, key=lambda cell: found[cell][0])
            worst = min(found, key=lambda cell: found[cell][0])
            ours, theirs = (statistics.median(pair[i] for pair in found.values()) for i in (0, 1))
            what = f"{size} KiB" if size < 1024 else f"{size // 1024} MiB"
            print(f"| {kind} | {what} | {found[best][0]:.2f} ({name_of(best)}) | "
                  f"{found[worst][0] / found[best][0]:.2f} ({name_of(worst)}) | {theirs:.2f} | {ours / theirs:.2f} |",
                  flush=True)
            if not quick:
                for cell, (our, their) in sorted(found.items()):
                    bench.say(f"{kind} {what}, {name_of(cell)}: {our:.2f}, ext4 {their:.2f}")


def run(bench, source, store, quick):
    raw = bench.big_files(source)[0]
    where = os.path.join(bench.MOUNT, os.path.basename(raw))
    kinds = os.environ.get("READERS", " ".join(KINDS)).split()
    sizes = [int(size) for size in os.environ.get("READER_KIB", "").split()] or (QUICK_SIZES if quick else SIZES)
    psync(bench, store, raw, where, bench.ROUNDS)
    unaligned(bench, store, raw, where, bench.ROUNDS)
    matrix(bench, store, raw, where, kinds, sizes, quick, 1 if quick else min(bench.ROUNDS, 3))
