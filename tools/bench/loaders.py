# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run loaders: what loaders do, without them: 16 threads that read a file of a mount by pread at different offsets, as
runai-model-streamer does, and 4 that have it mapped, as transformers does, at read-aheads of the mount of .5, 2 and 8 MiB. Prints GB/s,
and the bytes that the daemon sent and read from the disk over those of the file, and its requests. Root.
--size: of the checkpoint."""
import argparse
import os

from bench import model, packed
from common import WORK, Mounted, drop, fields, rate
from runner import ROUNDS, Rows, spread, turns

READ_AHEADS = (512, 2048, 8192)  # KiB
READERS = {"16 threads, pread of 2 MiB": ("--mode", "pread", "--block", "2048", "--threads", "16", "--team", "own"),
           "4 threads, mapped": ("--mode", "mmap", "--block", "2048", "--threads", "4", "--team", "own")}
MOUNT = os.path.join(WORK, "mnt")


def counters(mounted):
    with open(os.path.join(mounted, ".expertfs/stat")) as file:
        found = fields(file.read())
    return {name: int(found[name]) for name in ("fuse_reads", "fuse_reply_bytes", "disk_bytes")}


def measure(store, name, how, kib):
    """GB/s, and the counters, of a cold mount."""
    drop(store)
    with Mounted(store, MOUNT, "budget=512M,nostate") as mounted:
        minor = os.minor(os.stat(mounted).st_dev)
        with open(f"/sys/class/bdi/0:{minor}/read_ahead_kb", "w") as file:
            file.write(str(kib))
        before = counters(mounted)
        speed = rate("--keep-cache", *how, os.path.join(mounted, name))
        after = counters(mounted)
    return {"rate": speed, **{one: after[one] - before[one] for one in after}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1GB")
    parser.add_argument("--rounds", type=int, default=min(ROUNDS, 3))
    options = parser.parse_args()
    path = model(f"loaders-{options.size}", "-F", "qwen3-moe", "-d", "1024", "-i", "512", "-e", "64", "--vocab", "8000", "--size", options.size)
    store = packed(path)
    name = max((name for name in os.listdir(path) if name.endswith(".safetensors")), key=lambda name: os.path.getsize(os.path.join(path, name)))
    size = os.path.getsize(os.path.join(path, name))
    rows = Rows("loaders", row="loaders", input=f"{name}, {size / 1e6:.0f} MB")
    print(f"| {size / 1e6:.0f} MB | read-ahead, KiB | GB/s | requests | bytes sent / file | bytes of the disk / file |\n|---|---|---|---|---|---|")
    for what, how in READERS.items():
        runs = turns({kib: lambda kib=kib: measure(store, name, how, kib) for kib in READ_AHEADS}, options.rounds)
        for kib, found in runs.items():
            rows.values([one["rate"] for one in found], what=f"{what}, read-ahead {kib} KiB", unit="GB/s")
            last = found[-1]
            print(f"| {what} | {kib} | {spread([one['rate'] for one in found])} | {last['fuse_reads']} | {last['fuse_reply_bytes'] / size:.3f} | "
                  f"{last['disk_bytes'] / size:.3f} |", flush=True)


main()
