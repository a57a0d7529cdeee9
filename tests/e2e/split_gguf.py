# SPDX-License-Identifier: Apache-2.0
"""Cuts a GGUF file into two parts."""
import os
import struct


def cut_gguf(path, folder):
    """Writes the GGUF file as two parts, as llama.cpp's gguf-split does: metadata and half of the tensors, the rest."""
    data = open(path, "rb").read()
    tensors, pairs = struct.unpack_from("<QQ", data, 8)
    at = 24
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def string():
        nonlocal at
        length = struct.unpack_from("<Q", data, at)[0]
        at += 8 + length

    def value(kind):
        nonlocal at
        if kind == 8:
            string()
        elif kind == 9:
            inner, count = struct.unpack_from("<IQ", data, at)
            at += 12
            for _ in range(count):
                value(inner)
        else:
            at += sizes[kind]
    for _ in range(pairs):
        string()
        kind = struct.unpack_from("<I", data, at)[0]
        at += 4
        value(kind)
    metadata = data[24:at]
    entries = []
    for _ in range(tensors):
        begin = at
        string()
        dims = struct.unpack_from("<I", data, at)[0]
        at += 4 + 8 * dims + 4
        entries.append((data[begin:at], struct.unpack_from("<Q", data, at)[0]))
        at += 8
    base = (at + 31) // 32 * 32
    ends = [offset for _, offset in entries[1:]] + [len(data) - base]
    os.makedirs(folder)
    for number, (first, last) in enumerate(((0, tensors // 2), (tensors // 2, tensors)), 1):
        head = b"GGUF" + struct.pack("<IQQ", 3, last - first, pairs if number == 1 else 0) + (metadata if number == 1 else b"")
        for entry, offset in entries[first:last]:
            head += entry + struct.pack("<Q", offset - entries[first][1])
        head += bytes(-len(head) % 32)
        with open(f"{folder}/cut-0000{number}-of-00002.gguf", "wb") as file:
            file.write(head + data[base + entries[first][1]:base + ends[last - 1]])
