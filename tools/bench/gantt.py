#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gantt.py MNT|FILE: the latest reads and decodes of experts of a mount, or of a copy of its .expertfs/sched, as trace
events on standard output, which https://ui.perfetto.dev and chrome://tracing show. Concurrent reads get a lane each,
decodes that of their thread."""
import json
import os
import sys


def lane_of(lanes, kind, thread, begin, end):
    """The number of the first lane of this kind that is free at begin, adding one if none is. Updates lanes, a list of
    [name, end]."""
    name = "read" if kind.startswith("read") else f"worker {thread}"
    for number, lane in enumerate(lanes):
        if lane[0] == name and lane[1] <= begin:
            lane[1] = end
            return number
    lanes.append([name, end])
    return len(lanes) - 1


def main(path):
    if os.path.isdir(path):
        path = os.path.join(path, ".expertfs", "sched")
    rows, lanes, events = [], [], []
    with open(path) as file:
        for number, line in enumerate(file, 1):
            try:
                kind, expert, *numbers = line.split()
                unit, shard, begin, end, thread = map(int, numbers)
                if end < begin or kind not in ("read_e", "read_sm", "decode"):
                    raise ValueError
                rows.append((begin, end, kind, expert, unit, shard, thread))
            except ValueError:
                if number > 1 or not line.startswith("kind "):
                    sys.exit(f"gantt.py: {path}: line {number}: not a line of .expertfs/sched")
    rows.sort()
    for begin, end, kind, expert, unit, shard, thread in rows:
        events.append({"name": f"{kind} {expert}", "cat": kind, "ph": "X", "pid": 1,
                       "tid": lane_of(lanes, kind, thread, begin, end), "ts": (begin - rows[0][0]) / 1e3,
                       "dur": (end - begin) / 1e3, "args": {"unit": unit, "shard": shard}})
    names = [{"name": "thread_name", "ph": "M", "pid": 1, "tid": i, "args": {"name": lane[0]}} for i, lane in enumerate(lanes)]
    json.dump({"displayTimeUnit": "ns", "traceEvents": names + events}, sys.stdout)


if len(sys.argv) != 2:
    sys.exit(__doc__)
main(sys.argv[1])
