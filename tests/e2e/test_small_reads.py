#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random reads of 4 KiB of large dense tensors, by read() and by page faults, take at most 16 KiB of the store on average
(20 for F16 and F32), and give the right bytes. A store of version 2 is read without small reads."""
import mmap
import os
import threading

from e2e import *

need_fuse()
PAGE, TENSOR, READS = 4096, 24 << 20, 300  # fewer pages of an extent than load it
chance = random.Random(11)
EXPONENTS = bytes(0x38 + min(7, (255 - value).bit_length() // 2 * 2 % 8) for value in range(256))


def table(dtype, width):
    """A checkpoint of one tensor, whose exponents are skewed."""
    data = bytearray(chance.randbytes(TENSOR))
    if dtype != "U8":
        data[width - 1::width] = data[width - 1::width].translate(EXPONENTS)
    header = json.dumps({"embed": {"dtype": dtype, "shape": [TENSOR // width], "data_offsets": [0, TENSOR]}}).encode()
    header += b" " * (-len(header) % 8)
    os.makedirs(scratch(dtype), exist_ok=True)
    whole = struct.pack("<Q", len(header)) + header + data
    with open(scratch(dtype) + "/t.safetensors", "wb") as file:
        file.write(whole)
    return whole


def pages(size):
    return [chance.randrange(size // PAGE) * PAGE for _ in range(READS)]


def by_read(fd, whole):
    return [at for at in pages(len(whole)) if os.pread(fd, PAGE, at) != whole[at:at + PAGE]]


def by_faults(fd, whole):
    with mmap.mmap(fd, len(whole), mmap.MAP_SHARED, mmap.PROT_READ) as view:
        view.madvise(mmap.MADV_RANDOM)
        return [at for at in pages(len(whole)) if view[at:at + PAGE] != whole[at:at + PAGE]]


def by_faults_around(fd, whole):
    with mmap.mmap(fd, len(whole), mmap.MAP_SHARED, mmap.PROT_READ) as view:
        return [at for at in pages(len(whole)) if view[at:at + PAGE] != whole[at:at + PAGE]]


for dtype, width, most in (("BF16", 2, 16), ("F16", 2, 20), ("F32", 4, 20), ("F8_E4M3", 1, 16), ("U8", 1, 16)):
    whole, store = table(dtype, width), scratch(f"{dtype}.efs")
    made = run(program("mkexpertfs"), "-q", "--any", "--codec", "cascade", scratch(dtype), store)
    check(f"{dtype}: packed", made.returncode == 0, made.stderr)
    for action in (by_read, by_faults):
        mount = Mount(store, "budget=40M")
        fd = os.open(mount / "t.safetensors", os.O_RDONLY)
        before, what = mount.count("disk_bytes"), f"{dtype} {action.__name__}"
        wrong = action(fd, whole)
        read, small = (mount.count("disk_bytes") - before) / READS / 1024, mount.count("reads_small")
        check(f"{what}: the bytes", not wrong, wrong[:3])
        check(f"{what}: {read:.1f} KiB of the store a read, {small} small reads", read <= most and small >= READS * 0.9)
        os.close(fd)
        mount.unmount()

mount = Mount(scratch("BF16.efs"), "budget=40M")  # three reply buffers of 1 MiB
whole = open(scratch("BF16") + "/t.safetensors", "rb").read()
fd = os.open(mount / "t.safetensors", os.O_RDONLY)
wrong, offsets = [], [pages(len(whole)) for _ in range(8)]
readers = [threading.Thread(target=lambda mine=mine: wrong.extend(
    at for at in mine if os.pread(fd, PAGE, at) != whole[at:at + PAGE])) for mine in offsets]
for reader in readers:
    reader.start()
for reader in readers:
    reader.join()
check("8 readers: the bytes", not wrong, wrong[:3])
waits, small = mount.count("fuse_reply_waits"), mount.count("reads_small")
check(f"8 readers: {waits} waited for a reply buffer, {small} small reads", waits == 0 and small > READS)
wrong = by_faults_around(fd, whole)
check("by page faults without advice: the bytes", not wrong, wrong[:3])
os.close(fd)
mount.unmount()

made = run(program("mkexpertfs"), "-q", "-f", "--any", "--small-reads", "none", scratch("BF16"), scratch("BF16.efs"))
check("version 2: packed", made.returncode == 0, made.stderr)
with open(scratch("BF16.efs"), "rb") as file:
    check("version 2: says so", struct.unpack_from("<I", file.read(12), 8)[0] == 2)
mount = Mount(scratch("BF16.efs"), "budget=40M")
whole = open(scratch("BF16") + "/t.safetensors", "rb").read()
fd = os.open(mount / "t.safetensors", os.O_RDONLY)
check("version 2: the bytes", all(os.pread(fd, PAGE, at) == whole[at:at + PAGE] for at in pages(len(whole))[:100]))
check("version 2: no small reads", mount.count("reads_small") == 0)
os.close(fd)
mount.unmount()
done()
