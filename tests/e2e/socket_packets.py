# SPDX-License-Identifier: Apache-2.0
"""Builds and parses the packets of a mount's socket (expertfs-proc(5), SOCKET)."""
import array
import mmap
import os
import re
import socket
import struct

from e2e import PATIENCE

with open(os.path.join(os.path.dirname(__file__), "../../engine/expertfs-protocol.h")) as header:
    text = header.read()
KINDS = {name: int(number) for number, name in re.findall(r"X\((\d+), (\w+), (?:CLIENT|MOUNT),", text)}
ASK, DROP, UNMAPPED, ANSWER, OBSERVE, HINT, WINDOW, CODED, OVERSIZE, FITS, CANCEL, REFRESH, LEAVE, DEVICE, COUNT = KINDS.values()
WITH_LAYOUT, MORE, COUNTED = 1 << 31, 1 << 31, 1 << 30
FULL, AS_CODED, ANY = range(3)  # forms
VERSION = int(re.search(r"EFS_EXPORT_VERSION (\d+)u", text)[1])


def packet(kind, items, layer=0, version=VERSION, stack=b"", count=None, length=None, form=FULL):
    body = struct.pack("<2I32s", layer, form, stack) + b"".join(struct.pack("<3I", *item) for item in items)
    return struct.pack("<4I", 16 + len(body) if length is None else length, version, kind,
                       len(items) if count is None else count) + body


def routing(kind, items, layer=0, sequence=0, weighed=1, version=VERSION, stack=b"", count=None, length=None):
    """The routing of a layer (OBSERVE, COUNT), or a prediction of it (HINT): items are (expert, weight)."""
    body = struct.pack("<4I32s", layer, sequence, weighed, 0, stack) + b"".join(struct.pack("<If", *item) for item in items)
    return struct.pack("<4I", 16 + len(body) if length is None else length, version, kind,
                       len(items) if count is None else count) + body


def leave(disk_bytes):
    """The program computes with the model mapped, except disk_bytes of it."""
    return struct.pack("<4IQ", 24, VERSION, LEAVE, 1, disk_bytes)


def device(counts, version=VERSION, count=1, length=None):
    """Experts in memory of a device: slots, hits, copied, computed, copied_bytes, wait_ns."""
    body = struct.pack(f"<{len(counts)}Q", *counts)
    return struct.pack("<4I", 16 + len(body) if length is None else length, version, DEVICE, count) + body


def address_of(mount):
    return mount.control("handout").splitlines()[0].removeprefix("address: ")


class Client:
    """Requests experts, and keeps the descriptors of windows with their mappings."""

    def __init__(self, mount, address=None):
        self.windows, self.fds, self.oversize = {}, {}, set()  # oversize: the tags for which it was reported
        self.once = set()  # windows that are to be unmapped when they are dropped
        self.rest = b""  # packets of the last message
        self.parts = {}  # of experts in coded form, of which not all parts have come
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(address or address_of(mount))

    def send(self, kind, *args, **more):
        while kind == DROP and self.once:  # tests hold such experts one at a time
            window = self.once.pop()
            self.windows.pop(window).close()
            if window in self.fds:
                os.close(self.fds.pop(window))
        self.socket.send(packet(kind, *args, **more))

    def receive(self):
        """A packet, and the control messages that came with it; b"": disconnected."""
        data, ancillary = self.rest, []
        if not data:
            data, ancillary, _, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(4))
        length = struct.unpack("<I", data[:4])[0] if data else 0
        assert length == len(data) or length % 8 == 0
        self.rest = data[length:]
        return data[:length], ancillary

    def answer(self):
        """(tag, error, window, bytes of the file); None: disconnected."""
        data, ancillary = self.receive()
        if not data:
            return None
        if struct.unpack("<4I", data[:16])[2] in (OVERSIZE, FITS):
            return self.answer()
        length, version, kind, count, tag, error, window, once, window_bytes, file_bytes = struct.unpack("<4IIiIIQQ", data)
        assert (length, version, kind, count) == (len(data), VERSION, ANSWER, 1)
        self.once |= {window} if once else set()
        for _, _, fds in ancillary:
            self.map_window(window, array.array("i", fds)[0], window_bytes)
        return tag, error, window, file_bytes

    def coded(self, oversize=False):
        """(tag, error, layout, places) of an expert in coded form; stores the windows that come before it. With an
        error both are None. None: disconnected, or with `oversize` that the rest comes after drops."""
        while True:
            data, ancillary = self.receive()
            if not data:
                return None
            length, version, kind, count = struct.unpack("<4I", data[:16])
            assert (length, version) == (len(data), VERSION)
            if kind in (OVERSIZE, FITS):
                (self.oversize.add if kind == OVERSIZE else self.oversize.remove)(struct.unpack("<I", data[16:20])[0])
                if oversize and kind == OVERSIZE:
                    return None
                continue
            if kind in (ANSWER, WINDOW):
                tag, error, window, _, window_bytes, _ = struct.unpack("<IiIIQQ", data[16:])
                if kind == ANSWER:
                    assert error < 0, "full, and not coded"
                    return tag, error, None, None
                self.map_window(window, array.array("i", ancillary[0][2])[0], window_bytes)
                continue
            tag, layout_bytes, at, total = struct.unpack("<4I", data[16:32])
            assert kind == CODED and count == len(data) - 32 and at == len(self.parts.setdefault(tag, b""))
            self.parts[tag] += data[32:]
            if len(self.parts[tag]) == total:
                body = self.parts.pop(tag)
                layout, places = body[:layout_bytes], body[layout_bytes:]
                return tag, 0, layout, list(struct.iter_unpack("<2I2Q", places))

    def ask_coded(self, layer, tags, count, layout=0):
        """Requests the first experts of a layer in coded form, with tags from `tags` on."""
        self.send(ASK, [(n, 1, tags + n | layout) for n in range(count)], layer=layer, form=AS_CODED)

    def coded_answers(self, count):
        """(tag, error) of the next answers, in order of the tags."""
        return sorted(self.coded()[:2] for _ in range(count))

    def chunks(self, layout, places):
        """For each tensor its shards: (elements, codec, E-chunk, SM-chunk); and the header of the expert's file."""
        _, header_bytes, tensors, extents, shards, _, _ = struct.unpack("<Q6I", layout[:32])
        assert extents == len(places)
        at = 32 + header_bytes
        counts = [shards for _, shards, _ in struct.iter_unpack("<Q2I", layout[at:at + 16 * tensors])]
        rows = struct.iter_unpack("<Q6I", layout[at + 16 * tensors:])
        found = []
        for count in counts:
            tensor = []
            for _ in range(count):
                elements, extent, codec, e_at, e_bytes, sm_at, sm_bytes = next(rows)
                e_window, sm_window, e_offset, sm_offset = places[extent]
                e = self.windows[e_window][e_offset + e_at:e_offset + e_at + e_bytes] if e_bytes else b""
                sm = self.windows[sm_window][sm_offset + sm_at:sm_offset + sm_at + sm_bytes] if sm_bytes else b""
                tensor.append((elements, codec, e, sm))
            found.append(tensor)
        assert sum(counts) == shards and next(rows, None) is None
        return found, layout[32:32 + header_bytes]

    def disconnected(self):
        """Whether the connection is closed before another packet arrives."""
        try:
            return self.socket.recv(4096) == b""
        except ConnectionError:
            return True

    def map_window(self, window, fd, window_bytes):
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
