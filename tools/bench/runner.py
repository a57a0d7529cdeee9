# SPDX-License-Identifier: Apache-2.0
"""The runner of the benchmarks: candidates take turns, each cold and in a memory cgroup if wanted; medians and ranges; every run
becomes a row of results/NAME.csv (BENCH_RESULTS: another folder), which BENCHMARKS.md and pictures are made from."""
import contextlib
import csv
import functools
import os
import pwd
import signal
import statistics
import subprocess
import sys
import time
import typing

from cgroup import Cgroup
from common import ROOT, drop, touch_memory

FOLDER = os.environ.get("BENCH_RESULTS", os.path.join(ROOT, "results"))
COLUMNS = ("time", "commit", "machine", "user", "row", "input", "limit", "what", "unit", "ours", "peer", "round", "value", "peer_value",
           "ratio")
ROUNDS = int(os.environ.get("ROUNDS", "5"))
STARTED = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that mounts, cgroups and read-ahead end as they do otherwise


@functools.cache
def machine():
    """Processor, cores, instruction set and kernel."""
    with open("/proc/cpuinfo") as file:
        lines = file.read().splitlines()
    found = {name: next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "") for name in ("model name", "flags")}
    vectors = next((name for flag, name in (("avx512bw", "AVX-512"), ("avx2", "AVX2")) if flag in found["flags"].split()), os.uname().machine)
    return f"{found['model name'] or 'unknown'}, {os.cpu_count()} cores, {vectors}, Linux {os.uname().release}"


@functools.cache
def commit():
    """Of the source tree, with -dirty if files differ from it; empty outside of git."""
    return subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True).stdout.strip()


def turns(candidates, rounds=ROUNDS, seconds=0):
    """{name: [result of each round]}. Calls the candidates in order, then in reverse order, and so on. One that returns None takes no
    further part. seconds: no round begins that would end later, except the first."""
    runs, begin, longest = {name: [] for name in candidates}, time.monotonic(), 0
    for turn in range(rounds):
        now = time.monotonic()
        if turn and seconds and now - begin + longest > seconds:
            break
        for name in list(candidates)[::-1 if turn % 2 else 1]:
            if None not in runs[name]:
                runs[name].append(candidates[name]())
        longest = max(longest, time.monotonic() - now)
    return runs


def cold(*paths, memory=None):
    """Drops files from the page cache, and touches memory so that no candidate waits for the host to return it."""
    for path in paths:
        drop(path)
    touch_memory(memory)


@contextlib.contextmanager
def limited(limit_bytes):
    """A memory cgroup until the end of the block."""
    group = Cgroup(limit_bytes)
    try:
        yield group
    finally:
        group.remove()


def spread(values, digits=2):
    """Median and range, as text."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


class Result(typing.NamedTuple):
    """Medians over rounds; ratio: above 1 ours is better; peer: the better one."""

    value: float
    peer_value: float
    ratio: float
    low: float
    high: float
    rounds: int
    peer: str

    def __str__(self):
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"


def higher_is_better(unit):
    return unit not in ("s", "ms", "us", "KiB", "MiB", "processor s")


def result(unit, peers):
    """The result against the better peer: of {peer: [(value, peer's value, ratio) of each round]}."""
    found = []
    for peer, rounds in peers.items():
        own, theirs, ratios = zip(*rounds)
        found.append(Result(*map(statistics.median, (own, theirs, ratios)), min(ratios), max(ratios), len(ratios), peer))
    return (max if higher_is_better(unit) else min)(found, key=lambda one: one.peer_value)


class Rows:
    """The table results/NAME.csv; about: columns that are the same in all rows."""

    def __init__(self, name, **about):
        self.path = os.path.join(FOLDER, name + ".csv")
        self.about = {"time": STARTED, "commit": commit(), "machine": machine(), "user": pwd.getpwuid(os.geteuid()).pw_name, **about}

    def add(self, **row):
        os.makedirs(FOLDER, exist_ok=True)
        with open(self.path, "a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in {**self.about, **row}.items()})

    def values(self, values, **about):
        """Figures without a peer, of each round. Returns the median."""
        for number, value in enumerate(values, 1):
            self.add(round=number, value=float(value), **about)
        return statistics.median(values)

    def compare(self, own, peers, unit, **about):
        """Compares the rounds of one candidate with those of its peers, {name: values}, of which the one with the better median
        counts."""
        pairs = {peer: [(float(a), float(b), float(a / b if higher_is_better(unit) else b / a)) for a, b in zip(own, theirs)]
                 for peer, theirs in peers.items()}
        for peer, rounds in pairs.items():
            for number, (a, b, ratio) in enumerate(rounds, 1):
                self.add(round=number, value=a, peer=peer, peer_value=b, ratio=ratio, unit=unit, **about)
        return result(unit, pairs)


def results(name):
    """Of the latest run of each row of results/NAME.csv: [(columns, Result)]."""
    path = os.path.join(FOLDER, name + ".csv")
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["peer"]]
    latest, groups = {row["row"]: row["time"] for row in rows}, {}
    for row in rows:
        if row["time"] == latest[row["row"]]:
            key = tuple(row[column] for column in ("row", "input", "limit", "what", "ours"))
            groups.setdefault(key, (row, {}))[1].setdefault(row["peer"], []).append([float(row[c]) for c in ("value", "peer_value", "ratio")])
    return [(about, result(about["unit"], peers)) for about, peers in groups.values()]
