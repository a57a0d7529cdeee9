# SPDX-License-Identifier: Apache-2.0
"""Functions shared by the benchmarks."""
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
    """Runs a program and returns its standard output; raises CalledProcessError if it fails."""
    return subprocess.run(args, check=True, stdout=subprocess.PIPE, text=True, **kwargs).stdout


def rate(*args):
    """GB/s as measured by readbench.py with these arguments."""
    return json.loads(run(sys.executable, os.path.join(HERE, "readbench.py"), *args))["gb_per_s"]


DIRECT = ("--direct=1", "--ioengine=io_uring", "--iodepth=8")


def fio(path, *options, rw="read"):
    """GB/s as measured by fio with blocks of 1 MiB."""
    out = run("fio", "--name=f", f"--filename={path}", f"--rw={rw}", *["--readonly"] * (rw == "read"), "--bs=1M",
              "--output-format=json", *options)
    return json.loads(out)["jobs"][0][rw]["bw_bytes"] / 1e9


def fields(text):
    """Parses lines `name: value` to a dict."""
    return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)


def drop(path):
    """Write the file back and drop its pages from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def touch_memory(most=None):
    """Touches most of the free memory, at most `most` bytes. The host of a virtual machine reclaims memory that was
    free for some seconds, and the next allocation waits for it (1 GB/s here); without this the first candidate would
    pay for it alone."""
    with open("/proc/meminfo") as f:
        free = next(int(line.split()[1]) for line in f if line.startswith("MemFree:")) << 10
    size = max(free - (4 << 30), 2 << 30) if free > 6 << 30 else free // 2
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, min(size, most or size), flags=flags).close()


def daemons(store):
    """Pids, as text, of the daemons that serve a store."""
    told = subprocess.run(["pgrep", "-f", f"expertfs {store} "], stdout=subprocess.PIPE, text=True).stdout
    return told.split()


def is_mounted(path):
    """os.path.ismount() is false for the mount of another user, which root may not look at."""
    with open("/proc/self/mounts") as mounts:
        return any(line.split()[1].replace("\\040", " ") == os.path.abspath(path) for line in mounts)


class Mounted:
    """A mount by a background daemon until the end of the block. start, env: preexec_fn and environment of the daemon."""

    def __init__(self, store, where, options="budget=auto", start=None, env=None):
        self.store, self.where, self.options, self.start, self.env = store, where, options, start, env

    def __enter__(self):
        os.makedirs(self.where, exist_ok=True)
        run(tool("expertfs"), self.store, self.where, "-o", self.options, preexec_fn=self.start, env=self.env)
        return self.where

    def __exit__(self, *_):
        run("fusermount3", "-u", self.where)
        while is_mounted(self.where) or daemons(self.store):  # wait until its memory is free
            time.sleep(0.05)
