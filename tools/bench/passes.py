# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run passes: three passes through the files of a checkpoint, over the plain files in the page cache of their file system.

Each round mounts, and reads all files three times in one way. Prints of each pass GB/s over those of the plain files, which were read
before, and the processor seconds of the plain readers over those of readers and daemon; then the bytes read from the store over its size.
Medians and ranges. The checkpoint is that of `mkmodel --preset demo`, packed and in place. --trained: with weights drawn from those of a trained
model (weights.py). --file: this GGUF file or folder, in place."""
import argparse
import glob
import os
import resource
import subprocess
import time

import weights
from bench import model, packed
from common import WORK, Mounted, daemons, drop, fields, rate
from runner import ROUNDS, Rows, turns

PASSES = 3
BENCH = {"read": ("--mode", "read"), "pread": ("--mode", "pread", "--random", "--block", "64"), "mmap": ("--mode", "mmap"),
         "mmap-random": ("--mode", "mmap", "--random", "--block", "4")}
PROGRAMS = {"cat": lambda name: f"cat {name} | cat > {os.devnull}", "cp": lambda name: f"cp {name} {WORK}/passes-copy",
            "sha256sum": lambda name: f"sha256sum {name}"}


def files_of(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder)
                  if os.path.isfile(os.path.join(folder, name)) and os.path.getsize(os.path.join(folder, name)) > 1 << 20)


def one_pass(way, readers, files):
    """GB/s of all readers together: each reads all files, except with random blocks, which they share."""
    if way in PROGRAMS:
        begin = time.monotonic()
        for name in files:
            running = [subprocess.Popen(PROGRAMS[way](name) + str(i) * (way == "cp"), shell=True, stdout=subprocess.DEVNULL)
                       for i in range(readers)]
            if any(one.wait() for one in running):
                raise SystemExit(f"{way} {name} failed")
        return readers * sum(map(os.path.getsize, files)) / (time.monotonic() - begin) / 1e9
    shared = "--random" in BENCH[way]
    return rate("--keep-cache", "--threads", str(readers), *BENCH[way], *files * (1 if shared else readers))


def processor_seconds(served):
    """Of the readers that have ended, and of the daemon that serves a store; None: of the readers."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not served:
        return used.ru_utime + used.ru_stime
    with open(f"/proc/{daemons(served)[0]}/stat") as file:
        ticks = sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))
    return used.ru_utime + used.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def timed_pass(served, *what):
    """GB/s, processor seconds."""
    before = processor_seconds(served)
    rate = one_pass(*what)
    return rate, processor_seconds(served) - before


def plain_pass(plain, way, readers):
    for name in plain:
        one_pass("read", 1, [name])
    one_pass(way, readers, plain)
    return timed_pass(None, way, readers, plain)


def passes(served, plain, way, readers, options):
    """Rates and processor seconds of three passes, and bytes from the store over its size."""
    held = [served] if os.path.isfile(served) else plain
    for name in held + plain:
        drop(name)
    with Mounted(served, options.mnt, options.options) as mount:
        files = files_of(mount)
        found = [timed_pass(served, way, readers, files) for _ in range(PASSES)]
        with open(os.path.join(mount, ".expertfs/stat")) as file:
            disk = int(fields(file.read())["disk_bytes"])
    return found, disk / sum(map(os.path.getsize, held))


def measure(rows, name, served, plain, way, readers, options):
    found = turns({"plain": lambda: plain_pass(plain, way, readers), "ours": lambda: passes(served, plain, way, readers, options)},
                  options.rounds)
    told = []
    for i, unit in enumerate(("GB/s", "processor s")):
        told.append([rows.compare([one[0][number][i] for one in found["ours"]], {"plain, in memory": [one[i] for one in found["plain"]]}, unit,
                                  row=f"{name}-{way}-{readers}", what=f"{way}, {readers} readers, pass {number + 1}") for number in range(PASSES)])
    store = rows.values([one[1] for one in found["ours"]], row=f"{name}-{way}-{readers}", what="store read, over its size")
    print(f"{name}, {way}, {readers}: rate {', '.join(map(str, told[0]))}; processors {', '.join(map(str, told[1]))} times fewer; "
          f"store {store:.2f}; plain {told[0][0].peer_value:.2f} GB/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--file")
    parser.add_argument("--trained", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--ways", default=",".join([*BENCH, *PROGRAMS]))
    parser.add_argument("--readers", default="1,4")
    parser.add_argument("--options", default="budget=auto,nostate,warm=off", help="of the mount")
    parser.add_argument("--only", default="packed,in place")
    options = parser.parse_args()
    options.mnt = os.path.join(WORK, "passes-mnt")
    source = options.file
    if options.trained:
        source = model("demo-trained", "--preset", "demo", "--weights", weights.required(WORK))
    elif not source:
        source = model("demo", "--preset", "demo")
    rows = Rows("passes", input=os.path.basename(source))
    plain = files_of(source) if os.path.isdir(source) else [source]
    for name, served in [("in place", source)] if options.file else [("packed", packed(source)), ("in place", source)]:
        for way in options.ways.split(",") if name in options.only else ():
            for readers in map(int, options.readers.split(",")):
                measure(rows, name, served, plain, way, readers, options)
    for name in glob.glob(os.path.join(WORK, "passes-copy*")):
        os.unlink(name)


if __name__ == "__main__":
    main()
