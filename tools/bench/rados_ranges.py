# SPDX-License-Identifier: Apache-2.0
"""rados_ranges.py put|read POOL NAME: a file in plain objects NAME.NUMBER of 4 MiB, by librados as CEPH_CONF says.

put: writes them from standard input. read: standard input is a JSON list of items, each a list of [OFFSET, BYTES]; reads DEPTH items at
once (--depth, 8), an operation an object, and prints bytes and seconds."""
import argparse
import collections
import ctypes
import json
import os
import sys
import time

OBJECT = 4 << 20
rados = ctypes.CDLL("librados.so.2")


def must(status):
    if status < 0:
        sys.exit(f"rados_ranges.py: {os.strerror(-status)}")
    return status


def connect(pool):
    cluster, io = ctypes.c_void_p(), ctypes.c_void_p()
    must(rados.rados_create(ctypes.byref(cluster), b"admin"))
    must(rados.rados_conf_read_file(cluster, os.environ["CEPH_CONF"].encode()))
    must(rados.rados_conf_set(cluster, b"rados_osd_op_timeout", b"60"))
    must(rados.rados_connect(cluster))
    must(rados.rados_ioctx_create(cluster, pool.encode(), ctypes.byref(io)))
    return io


def name_of(name, at):
    return f"{name}.{at // OBJECT:016x}".encode()


def put(io, name):
    at = 0
    while data := sys.stdin.buffer.read(OBJECT):
        must(rados.rados_write_full(io, name_of(name, at), data, ctypes.c_size_t(len(data))))
        at += OBJECT


def submit(io, name, ranges, buffer):
    """Begins to read the ranges one after the other into the buffer: [(completion, bytes)]."""
    begun, to = [], ctypes.addressof(buffer)
    for at, left in ranges:
        while left:
            part, completion = min(left, OBJECT - at % OBJECT), ctypes.c_void_p()
            must(rados.rados_aio_create_completion2(None, None, ctypes.byref(completion)))
            must(rados.rados_aio_read(io, name_of(name, at), completion, ctypes.c_void_p(to), ctypes.c_size_t(part), ctypes.c_uint64(at % OBJECT)))
            begun.append((completion, part))
            at, left, to = at + part, left - part, to + part
    return begun


def finish(begun):
    for completion, part in begun:
        rados.rados_aio_wait_for_complete(completion)
        if must(rados.rados_aio_get_return_value(completion)) != part:
            sys.exit("rados_ranges.py: an object is short")
        rados.rados_aio_release(completion)


def read(io, name, items, depth):
    room = max(sum(count for _, count in item) for item in items)
    buffers = [ctypes.create_string_buffer(room) for _ in range(depth)]
    flying, begin = collections.deque(), time.monotonic()
    for number, item in enumerate(items):
        if number >= depth:
            finish(flying.popleft())
        flying.append(submit(io, name, item, buffers[number % depth]))
    for begun in flying:
        finish(begun)
    print(json.dumps({"bytes": sum(count for item in items for _, count in item), "seconds": time.monotonic() - begin}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("put", "read"))
    parser.add_argument("pool")
    parser.add_argument("name")
    parser.add_argument("--depth", type=int, default=8)
    options = parser.parse_args()
    io = connect(options.pool)
    if options.verb == "put":
        put(io, options.name)
    else:
        read(io, options.name, json.load(sys.stdin), options.depth)


main()
