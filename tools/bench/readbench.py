#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""readbench.py [OPTION...] FILE...: read files in one way; print bytes, seconds and GB/s of the median round as JSON.

Workers are processes, so that they do not share an interpreter lock. Each takes the next file or list of pieces; with
--team they read each file together. All wait at a barrier before the first read."""
import argparse
import errno
import json
import mmap
import os
import random
import statistics
import sys
import tempfile
import time

DEPTH = 8  # O_DIRECT requests in flight per worker
WAYS = ("pread", "direct", "mmap", "read", "readv", "sendfile")


class File:
    def __init__(self, path, way, at):
        self.fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if way == "direct" else 0))
        size = os.fstat(self.fd).st_size
        self.view = memoryview(mmap.mmap(self.fd, size, prot=mmap.PROT_READ)) if way == "mmap" else None
        self.null = os.open("/dev/null", os.O_WRONLY) if way == "sendfile" else -1
        os.lseek(self.fd, at, os.SEEK_SET)  # for read(2)

    def close(self):
        for fd in (self.fd, self.null):
            if fd >= 0:
                os.close(fd)
        self.view = None

    def read(self, way, at, size, buffer):
        if way == "mmap":
            buffer[:size] = self.view[at:at + size]
            return size
        if way == "sendfile":
            return os.sendfile(self.null, self.fd, at, size)
        if way == "readv":
            return os.preadv(self.fd, [buffer[i * size // 4:(i + 1) * size // 4] for i in range(4)], at)
        return os.readv(self.fd, [buffer[:size]]) if way == "read" else os.preadv(self.fd, [buffer[:size]], at)


def work(options, jobs, counter, shared):
    buffer = memoryview(mmap.mmap(-1, options.block + options.shift, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
    buffer, opened = buffer[options.shift:], {}
    while (number := os.lseek(counter, 1, os.SEEK_CUR) - 1) < len(jobs):
        for path, at, end in jobs[number]:
            file = shared.get(path) or opened.get(path) or File(path, options.mode, at)
            if options.random:
                opened[path] = file
            while at < end:
                size = min(options.block, -(-(end - at) // 4096) * 4096 if options.mode == "direct" else end - at)
                got = file.read(options.mode, at, size, buffer)
                if got <= 0:
                    raise OSError(errno.EIO, "file became shorter", path)
                at += got
            if path not in shared and path not in opened:
                file.close()


def pieces_of(path):
    """Parses a list of items: a line "FIRST BYTES PATH" is a piece, BYTES 0 means to the end; an empty line ends an
    item."""
    items = [[]]
    with open(path) as lines:
        for line in lines:
            if not line.strip():
                items.append([])
                continue
            first, size, name = line.rstrip("\n").split(" ", 2)
            items[-1].append((name, int(first), int(first) + int(size) if int(size) else os.path.getsize(name)))
    return [item for item in items if item]


def cut(path, at, end, size):
    return [[(path, first, min(first + size, end))] for first in range(at, end, size)]


def jobs_of(options):
    """The jobs, each of which one worker takes as a whole: lists of (path, first, end)."""
    if options.pieces:
        items = [item for path in options.files for item in pieces_of(path)]
    else:
        items = [[(path, 0, os.path.getsize(path))] for path in options.files]
    if options.random:
        blocks = [job for item in items for path, at, end in item for job in cut(path, at, end, options.block)]
        random.Random(1).shuffle(blocks)
        return [[piece for job in blocks[i::options.threads] for piece in job] for i in range(options.threads)]
    if options.mode == "direct":  # expand each piece to whole blocks
        return [job for item in items for path, at, end in item for job in cut(path, at // 4096 * 4096, end, options.block)]
    if not options.team:
        return items
    parts = {"shared": lambda end: options.block, "own": lambda end: -(-end // options.threads // 4096) * 4096 or 4096}
    return [job for (path, at, end), in items for job in cut(path, at, end, parts[options.team](end))]


def round_seconds(options, jobs):
    paths = {path for job in jobs for path, *_ in job}
    for path in () if options.keep_cache else paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    shared = {path: File(path, options.mode, 0) for path in paths} if options.team == "shared" else {}
    (ready, tell), (wait, go) = os.pipe(), os.pipe()
    counter_file = tempfile.TemporaryFile()  # its offset is the next job; lseek(2) is not atomic for a memfd
    counter = counter_file.fileno()
    workers = []
    for _ in range(options.threads * (DEPTH if options.mode == "direct" else 1) - 1):
        workers.append(os.fork())
        if not workers[-1]:
            status = 1
            try:
                os.close(go)
                os.write(tell, b".")
                os.read(wait, 1)
                work(options, jobs, counter, shared)
                status = 0
            except OSError as error:
                print(f"readbench: {error.filename}: {error.strerror}", file=sys.stderr)
            finally:
                os._exit(status)
    for _ in workers:
        os.read(ready, 1)
    begin = time.monotonic()
    os.close(go)
    work(options, jobs, counter, shared)
    failed = [os.waitpid(worker, 0)[1] for worker in workers]
    seconds = time.monotonic() - begin
    counter_file.close()
    for fd in (ready, tell, wait):
        os.close(fd)
    for file in shared.values():
        file.close()
    if any(failed):
        sys.exit(1)
    return seconds


def main():
    parser = argparse.ArgumentParser("readbench", description="Read files in one way and print how fast.")
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE")
    add("--mode", choices=WAYS, default="pread", help="direct: O_DIRECT, 8 requests at once of each worker")
    add("--team", choices=("shared", "own"), help="workers read each file together: the next block of one descriptor, or parts")
    add("--random", action="store_true", help="read the blocks of all files in random order, the same in each round")
    add("--shift", type=int, default=0, metavar="BYTES", help="buffers begin so far behind a page's begin (0)")
    add("--block", type=lambda text: int(text) << 10, default=1 << 20, metavar="KIB", help="bytes of one read (1024)")
    add("--threads", type=int, default=1, metavar="N", help="workers (1)")
    add("--rounds", type=int, default=1, metavar="N", help="read all N times (1)")
    add("--keep-cache", action="store_true", help="do not drop the files from the page cache before each round")
    add("--pieces", action="store_true", help="FILEs are lists of pieces: FIRST BYTES PATH a line")
    options = parser.parse_args()
    try:
        jobs = jobs_of(options)
        seconds = statistics.median(round_seconds(options, jobs) for _ in range(options.rounds))
    except OSError as error:
        sys.exit(f"readbench: {error.filename}: {error.strerror}")
    total = sum(end - at for job in jobs for _, at, end in job)
    print(json.dumps({"bytes": total, "seconds": round(seconds, 6), "gb_per_s": round(total / seconds / 1e9, 3)}))


if __name__ == "__main__":
    main()
