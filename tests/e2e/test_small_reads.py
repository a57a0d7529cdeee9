#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random reads of 4 KiB of a large dense tensor through a mount, by read(), by page faults and by 8 readers at once, give the
right bytes, take at most 16 KiB of the store on average, and wait for no reply buffer. Each format, and a store of version 2:
engine/test_small."""
import mmap
import os
import threading

from e2e import *

need_fuse()
PAGE, TENSOR, READS = 4096, 24 << 20, 300  # fewer pages of an extent than load it
chance = random.Random(11)
EXPONENTS = bytes(0x38 + min(7, (255 - value).bit_length() // 2 * 2 % 8) for value in range(256))

data = bytearray(chance.randbytes(TENSOR))
data[1::2] = data[1::2].translate(EXPONENTS)
header = json.dumps({"embed": {"dtype": "BF16", "shape": [TENSOR // 2], "data_offsets": [0, TENSOR]}}).encode()
header += b" " * (-len(header) % 8)
whole = struct.pack("<Q", len(header)) + header + data
os.makedirs(scratch("model"))
with open(scratch("model/t.safetensors"), "wb") as file:
    file.write(whole)
store = make_store(scratch("model"), "--any", "--codec", "cascade")


def wrong(read):
    return [at for at in (chance.randrange(len(whole) // PAGE) * PAGE for _ in range(READS)) if read(at) != whole[at:at + PAGE]]


def by_read(fd):
    return wrong(lambda at: os.pread(fd, PAGE, at))


def by_faults(fd, advice=mmap.MADV_RANDOM):
    with mmap.mmap(fd, len(whole), mmap.MAP_SHARED, mmap.PROT_READ) as view:
        view.madvise(advice)
        return wrong(lambda at: view[at:at + PAGE])


for action in (by_read, by_faults):
    mount = Mount(store, "budget=40M")
    fd = os.open(mount / "t.safetensors", os.O_RDONLY)
    before = mount.count("disk_bytes")
    check(f"{action.__name__}: the bytes", not action(fd))
    read, small = (mount.count("disk_bytes") - before) / READS / 1024, mount.count("reads_small")
    check(f"{action.__name__}: {read:.1f} KiB of the store a read, {small} small reads", read <= 16 and small >= READS * 0.9)
    os.close(fd)
    mount.unmount()

mount = Mount(store, "budget=40M")  # three reply buffers of 1 MiB
fd = os.open(mount / "t.safetensors", os.O_RDONLY)
found = []
readers = [threading.Thread(target=lambda: found.extend(by_read(fd))) for _ in range(8)]
for reader in readers:
    reader.start()
for reader in readers:
    reader.join()
check("8 readers: the bytes", not found, found[:3])
waits, small = mount.count("fuse_reply_waits"), mount.count("reads_small")
check(f"8 readers: {waits} waited for a reply buffer, {small} small reads", waits == 0 and small > READS)
check("by page faults without advice: the bytes", not by_faults(fd, mmap.MADV_NORMAL))
os.close(fd)
mount.unmount()
done()
