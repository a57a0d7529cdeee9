# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run idle: what work for which no reader waits takes from a program.

Loops run on all processors for --seconds, once alone and once while a mount encodes experts that move from decoded to coded form. Prints
the iterations with over without, the daemon's processor seconds over those of the loops, and the MiB that it encoded: medians and ranges of
ROUNDS rounds. Needs passthrough, by which the experts are decoded first."""
import argparse
import multiprocessing
import os
import resource
import time

from bench import model, packed
from common import WORK, Mounted, daemons, fields, run, tool
from runner import Rows, spread, turns


def loop(until, count):
    done = 0
    while time.monotonic() < until:
        for _ in range(1000):
            done += 1
    count.value = done


def loops(seconds):
    """Iterations of all loops together, and their processor seconds."""
    before, until = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() + seconds
    counts = [multiprocessing.Value("q", 0) for _ in range(os.cpu_count())]
    running = [multiprocessing.Process(target=loop, args=(until, count)) for count in counts]
    for one in running:
        one.start()
    for one in running:
        one.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(count.value for count in counts), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def used_seconds(store):
    with open(f"/proc/{daemons(store)[0]}/stat") as file:
        return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def stat(mount, name):
    with open(os.path.join(mount, ".expertfs/stat")) as file:
        return int(fields(file.read())[name])


def decode_all(mount):
    run(tool("expertctl"), "set", mount, "plan=F=100")
    for folder, _, names in os.walk(os.path.join(mount, "experts")):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                file.read(1)
    if stat(mount, "full_pool_bytes") == 0:
        raise SystemExit("no expert is decoded: passthrough is needed")


def one_round(store, options):
    """Iterations with the daemon's work and without, the daemon's processor seconds over those of the loops, MiB that it encoded."""
    with Mounted(store, os.path.join(WORK, "idle-mnt"), options.options) as mount:
        decode_all(mount)
        alone, _ = loops(options.seconds)
        before = used_seconds(store), stat(mount, "recoded_bytes")
        run(tool("expertctl"), "set", mount, "plan=C=100")
        with_work, taken = loops(options.seconds)
        return with_work, alone, (used_seconds(store) - before[0]) / taken, (stat(mount, "recoded_bytes") - before[1]) / (1 << 20)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--options", default="budget=3G,nostate,warm=off,policy=lru", help="of the mount")
    options = parser.parse_args()
    table, store = Rows("idle", row="idle"), packed(model("demo", "--preset", "demo"))
    with_work, alone, used, mib = zip(*turns({"round": lambda: one_round(store, options)})["round"])
    result = table.compare(with_work, {"alone": alone}, "iterations", what="loops while experts are encoded")
    table.values(used, what="daemon's processor seconds over the loops'")
    table.values(mib, what="encoded", unit="MiB")
    print(f"iterations over those without, {result}; daemon's processor seconds over the loops' {spread(used, 3)}; "
          f"MiB encoded {spread(mib, 0)}; rows in {table.path}")


if __name__ == "__main__":
    main()
