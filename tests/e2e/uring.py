# SPDX-License-Identifier: Apache-2.0
"""io_uring from Python for the tests: submits one request at a time, and waits for completions."""
import ctypes
import mmap
import os
import struct

SETUP, ENTER, REGISTER = 425, 426, 427  # the same numbers on all architectures
OP_WRITE_FIXED, OP_READ, OP_WRITE, OP_SPLICE, OP_SEND_ZC = 5, 22, 23, 30, 47
SEND_FIXED = 1 << 2  # IORING_RECVSEND_FIXED_BUF
MORE, NOTIFICATION = 1 << 1, 1 << 3
ENTRIES = 8
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _call(number, *arguments):
    result = _libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class Ring:
    """OSError: io_uring is not available."""

    def __init__(self):
        params = ctypes.create_string_buffer(120)
        self.fd = _call(SETUP, ENTRIES, params)
        entries, cq_entries = struct.unpack_from("2I", params)
        self.sq = struct.unpack_from("7I", params, 40)  # head, tail, mask, entries, flags, dropped, array
        self.cq = struct.unpack_from("6I", params, 80)  # head, tail, mask, entries, overflow, cqes
        self.sq_ring = mmap.mmap(self.fd, self.sq[6] + 4 * entries, offset=0)
        self.cq_ring = mmap.mmap(self.fd, self.cq[5] + 16 * cq_entries, offset=0x8000000)
        self.sqes = mmap.mmap(self.fd, 64 * entries, offset=0x10000000)

    def register(self, address, size):
        """Pins this memory as buffer 0 until the ring is closed."""
        iovec = ctypes.create_string_buffer(struct.pack("QQ", address, size), 16)
        _call(REGISTER, self.fd, 0, iovec, 1)

    def submit(self, operation, fd, address, size, offset=0, how=0, ioprio=0, other=0):
        """Submits an operation. how: its flags; other: for a splice, the descriptor that it reads from, at offset
        `address`."""
        tail, = struct.unpack_from("I", self.sq_ring, self.sq[1])
        mask, = struct.unpack_from("I", self.sq_ring, self.sq[2])
        index = tail & mask
        struct.pack_into("BBHiQQIIQHHiQQ", self.sqes, 64 * index, operation, 0, ioprio, fd, offset, address, size, how,
                         1, 0, 0, other, 0, 0)
        struct.pack_into("I", self.sq_ring, self.sq[6] + 4 * index, index)
        struct.pack_into("I", self.sq_ring, self.sq[1], tail + 1 & 0xFFFFFFFF)
        _call(ENTER, self.fd, 1, 0, 0, 0, 0)

    def completion(self, wait=True):
        """(result, flags) of the next completion; None: none yet."""
        head, = struct.unpack_from("I", self.cq_ring, self.cq[0])
        if wait and struct.unpack_from("I", self.cq_ring, self.cq[1])[0] == head:
            _call(ENTER, self.fd, 0, 1, 1, 0, 0)  # IORING_ENTER_GETEVENTS
        if struct.unpack_from("I", self.cq_ring, self.cq[1])[0] == head:
            return None
        mask, = struct.unpack_from("I", self.cq_ring, self.cq[2])
        _, result, flags = struct.unpack_from("QiI", self.cq_ring, self.cq[5] + 16 * (head & mask))
        struct.pack_into("I", self.cq_ring, self.cq[0], head + 1 & 0xFFFFFFFF)
        return result, flags

    def close(self):
        for memory in (self.sq_ring, self.cq_ring, self.sqes):
            memory.close()
        os.close(self.fd)
