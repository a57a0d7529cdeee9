# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share."""
import json
import mmap
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
WORK = os.environ.get("BENCH_DIR", os.path.join(BUILD, "bench"))


def tool(name):
    return os.path.join(BUILD, name)


def run(*args, **kwargs):
    """What a program prints; an exception if it fails."""
    return subprocess.run(args, check=True, stdout=subprocess.PIPE, text=True, **kwargs).stdout


def rate(*args):
    """GB/s of readbench.py."""
    return json.loads(run(sys.executable, os.path.join(HERE, "readbench.py"), *args))["gb_per_s"]


DIRECT = ("--direct=1", "--ioengine=io_uring", "--iodepth=8")


def fio(path, *options, rw="read"):
    """GB/s of fio, 1 MiB at a time."""
    out = run("fio", "--name=f", f"--filename={path}", f"--rw={rw}", *["--readonly"] * (rw == "read"), "--bs=1M",
              "--output-format=json", *options)
    return json.loads(out)["jobs"][0][rw]["bw_bytes"] / 1e9


def fields(text):
    """Lines `name: value` as a dict."""
    return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)


def drop(path):
    """Write the file back and drop its pages from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def touch_memory(most=None):
    """Most of what is free, or at most so many bytes of it. A virtual machine's host takes back memory that was free for
    some seconds, and who needs it next waits for it: 1 GB/s here. Whoever comes first shall not pay for that alone."""
    with open("/proc/meminfo") as f:
        free = next(int(line.split()[1]) for line in f if line.startswith("MemFree:")) << 10
    size = max(free - (4 << 30), 2 << 30) if free > 6 << 30 else free // 2
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, min(size, most or size), flags=flags).close()


def daemons(store):
    """Processes of the daemon that serves a store."""
    told = subprocess.run(["pgrep", "-f", f"expertfs {store} "], stdout=subprocess.PIPE, text=True).stdout
    return told.split()


class Mounted:
    """A mount in the background until the end of the block. start: called in the daemon's process."""

    def __init__(self, store, where, options="budget=auto", start=None):
        self.store, self.where, self.options, self.start = store, where, options, start

    def __enter__(self):
        os.makedirs(self.where, exist_ok=True)
        run(tool("expertfs"), self.store, self.where, "-o", self.options, preexec_fn=self.start)
        return self.where

    def __exit__(self, *_):
        run("fusermount3", "-u", self.where)
        while os.path.ismount(self.where) or daemons(self.store):  # its memory is free before the next measurement
            time.sleep(0.05)
