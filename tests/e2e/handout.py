# SPDX-License-Identifier: Apache-2.0
"""The packets of a mount's socket (expertfs-proc(5), HANDOUT), by hand."""
import array
import mmap
import os
import socket
import struct

ASK, DROP, UNMAPPED, LIST, ANSWER, KEPT, NOTIFY = 1, 2, 3, 4, 5, 6, 0xFFFFFFFF
VERSION = 3


def packet(kind, items, layer=0, version=VERSION, stack=b"", count=None, length=None):
    body = b"" if kind == LIST else struct.pack("<I32s", layer, stack) + b"".join(struct.pack("<3I", *item) for item in items)
    return struct.pack("<4I", 16 + len(body) if length is None else length, version, kind,
                       len(items) if count is None else count) + body


def address_of(mount):
    return mount.control("handout").removeprefix("address: ").rstrip("\n")


class Client:
    """Asks, and keeps the descriptors of windows beside their mappings."""

    def __init__(self, mount):
        self.windows, self.fds = {}, {}
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(30)
        self.socket.connect(address_of(mount))

    def send(self, *args, **more):
        self.socket.send(packet(*args, **more))

    def answer(self):
        """(tag, error, window, bytes of the file); None: it was cut off."""
        data, ancillary, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(4))
        if not data:
            return None
        length, version, kind, count, tag, error, window, _, window_bytes, file_bytes = struct.unpack("<4IIiIIQQ", data)
        assert (length, version, kind, count) == (len(data), VERSION, ANSWER, 1)
        for _, _, fds in ancillary:
            self.take(window, array.array("i", fds)[0], window_bytes)
        return tag, error, window, file_bytes

    def kept(self):
        """What the mount keeps full: (stack, layer, expert), and its bytes."""
        self.send(LIST, [])
        found, total = set(), 0
        while True:
            data = self.socket.recv(4096)
            length, version, kind, count, layer, last, raw, stack = struct.unpack("<4I2IQ32s", data[:64])
            assert (length, version, kind) == (len(data), VERSION, KEPT) and len(data) == 64 + 4 * count
            total += raw
            found |= {(stack.rstrip(b"\0").decode(), layer, expert) for expert in struct.unpack(f"<{count}I", data[64:])}
            if last:
                return found, total

    def take(self, window, fd, window_bytes):
        self.fds[window] = fd
        self.windows[window] = mmap.mmap(fd, window_bytes, prot=mmap.PROT_READ)

    def file(self, answer):
        return bytes(self.windows[answer[2]][:answer[3]])

    def close(self):
        self.windows.clear()
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()
        self.socket.close()
