#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tens of thousands of tensors or files of a few bytes each: read by pages and not one by one; each still has its own
bytes, checksum and error."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "man"))
from e2e import *
import read_store

chance = random.Random(9)


def safetensors(tensors):
    """A file of tensors [(name, dtype, bytes of an element, bytes)], and where each begins and ends in it."""
    header, at, places = {}, 0, []
    for name, dtype, width, size in tensors:
        header[name] = {"dtype": dtype, "shape": [size // width] if size > width else [],
                        "data_offsets": [at, at + size]}
        places.append((at, at + size))
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return (struct.pack("<Q", len(text)) + text + chance.randbytes(at),
            [(8 + len(text) + begin, 8 + len(text) + end) for begin, end in places])


def write(name, data):
    path = scratch(name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def served(what, name, options, sharing):
    """All files of a source are read back, with less than one page read for each. On average at least `sharing` small
    objects share an extent."""
    source, store = scratch(name), scratch(f"{name}.efs")
    count = len(read_store.Store(store).objects)
    mount = Mount(store, options)
    before = mount.count("disk_bytes")
    files = files_below(source)
    wrong = [file for file in files
             if open(os.path.join(source, file), "rb").read() != open(mount / file, "rb").read()]
    check(f"{what}, {options}: the bytes", not wrong, wrong[:5])
    read = mount.count("disk_bytes") - before
    check(f"{what}, {options}: {read >> 10} KiB read of a store of {os.path.getsize(store) >> 10} KiB",
          read < 1.5 * os.path.getsize(store))
    extents = mount.count("chunk_extents")
    check(f"{what}, {options}: {count} objects in {extents} extents", extents * sharing <= count)
    return mount


def packed(name):
    result = run(program("mkexpertfs"), "-q", "--verify", scratch(name), scratch(f"{name}.efs"))
    check(f"{name}: packed", result.returncode == 0, result.stderr)
    result = run(program("expertctl"), "unpack", "-q", scratch(f"{name}.efs"), scratch(f"{name}.out"))
    check(f"{name}: unpacked", result.returncode == 0 and run("diff", "-r", scratch(name), scratch(f"{name}.out"))
          .returncode == 0, result.stderr)


need_fuse()
# Scales of NVFP4: two of 4 bytes for each matrix
data, places = safetensors([(f"model.layers.{i // 256}.blocks.{i % 256}.{scale}", "F32", 4, 4)
                            for i in range(24576) for scale in ("input_scale", "weight_scale_2")])
write("scales/model.safetensors", data)
packed("scales")
for options in "budget=128M", "budget=56M":
    mount = served("scales", "scales", options, 32)
    with open(mount / "model.safetensors", "rb") as file:
        for begin, end in [places[0], places[-1], *chance.sample(places, 200)]:
            some = chance.randrange(begin, end)
            if os.pread(file.fileno(), end - some + 9, some) != data[some:end + 9]:
                check(f"scales: bytes from {some} on", False)
    mount.stop()

# A damaged one fails, its neighbours do not
store = read_store.Store(scratch("scales.efs"))
number = next(number for number, shard in enumerate(store.shards) if number > 100 and shard[6] == 4)
first_shards = {o[4]: i for i, o in enumerate(store.objects)}
begin = next(x[0] for x in store.extents if x[3] == first_shards[number])
place = next(i for i in range(len(places)) if places[i][0] == begin)
flip(scratch("scales.efs"), store.shards[number][1])
# past the page cache, where a whole page fails
mount = Mount(scratch("scales.efs"), "budget=64M,direct_io=on")
with open(mount / "model.safetensors", "rb") as file:
    for i in range(place - 40, place + 40):
        try:
            got = os.pread(file.fileno(), 4, places[i][0])
        except OSError as error:
            got = errno.errorcode[error.errno]
        want = "EUCLEAN" if i == place else data[places[i][0]:places[i][1]]
        if got != want:
            check(f"tensor {i} beside the damaged one", False, (got, want))
    check("the damaged one is told", wait_until(lambda: "checksum differs" in mount.log_text()), mount.log_text())
mount.stop()

# Norms, biases and scalars of all sizes up to a page, with large tensors in between
data, places = safetensors([(f"t{i}", *(("F32", 4, 4 * chance.randrange(1, 100)) if i % 7 else
                                        ("BF16", 2, chance.choice((64, 4094, 4096, 9000, 20000)))))
                            for i in range(6000)])
write("mixed/model.safetensors", data)
packed("mixed")
served("mixed", "mixed", "budget=64M", 2).stop()

# A checkpoint with thousands of small files
for i in range(1500):
    write(f"files/part{i % 7}/{i}.txt", chance.randbytes(chance.randrange(1, 900)))
write("files/model.safetensors", safetensors([("w", "BF16", 2, 20000)])[0])
packed("files")
served("files", "files", "budget=64M", 8).stop()
done()
