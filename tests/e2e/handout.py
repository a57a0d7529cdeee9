# SPDX-License-Identifier: Apache-2.0
"""The packets of a mount's socket (expertfs-proc(5), HANDOUT), by hand."""
import array
import mmap
import os
import socket
import struct

ASK, DROP, FORGET, TOLD = 1, 2, 3, 0xFFFFFFFF


def packet(kind, items, layer=0, version=1, stack=b"", count=None):
    head = struct.pack("<4I32s", version, kind, layer, len(items) if count is None else count, stack)
    return head + b"".join(struct.pack("<3I", *item) for item in items)


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
        data, ancillary, _, _ = self.socket.recvmsg(64, socket.CMSG_SPACE(4))
        if not data:
            return None
        _, tag, error, window, window_bytes, file_bytes = struct.unpack("<IIiIQQ", data)
        for _, _, fds in ancillary:
            self.take(window, array.array("i", fds)[0], window_bytes)
        return tag, error, window, file_bytes

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
