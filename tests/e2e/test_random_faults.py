#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random page faults of a mapping without advice take at most 16 KiB of the store on average once they are recognised,
and give the right bytes: the kernel's requests around them are refused. A sequential reader of the same mapping, of a
new one, and of a new file gets requests of many pages."""
import mmap
import os

from e2e import *

need_fuse()
PAGE, TENSOR = 4096, 96 << 20
chance = random.Random(12)
EXPONENTS = bytes(0x38 + min(7, (255 - value).bit_length() // 2 * 2 % 8) for value in range(256))

data = bytearray(chance.randbytes(TENSOR))
data[1::2] = data[1::2].translate(EXPONENTS)
header = json.dumps({"embed": {"dtype": "BF16", "shape": [TENSOR // 2], "data_offsets": [0, TENSOR]}}).encode()
header += b" " * (-len(header) % 8)
whole = struct.pack("<Q", len(header)) + header + data
os.makedirs(scratch("model"), exist_ok=True)
with open(scratch("model") + "/t.safetensors", "wb") as file:
    file.write(whole)
store = scratch("model.efs")
made = run(program("mkexpertfs"), "-q", "--any", "--codec", "cascade", scratch("model"), store)
check("packed", made.returncode == 0, made.stderr)
mount = Mount(store, "budget=40M")
PAGES = len(whole) // PAGE


def opened():
    fd = os.open(mount / "t.safetensors", os.O_RDONLY)
    view = mmap.mmap(fd, len(whole), mmap.MAP_SHARED, mmap.PROT_READ)
    os.close(fd)
    return view


def opened_after_drop():
    """An open has the daemon drop pages without data: it opens and closes the file for that."""
    closed = mount.count("fuse_releases")
    mapping = opened()
    check("the daemon has dropped pages", wait_until(lambda: mount.count("fuse_releases") > closed))
    return mapping


def wrong(view, pages):
    return [page for page in pages if view[page * PAGE:(page + 1) * PAGE] != whole[page * PAGE:(page + 1) * PAGE]]


def counted(name, view, pages):
    """Number by which a counter grows during these faults."""
    before = mount.count(name)
    bad = wrong(view, pages)
    check(f"{len(pages)} pages: the bytes", not bad, bad[:3])
    return mount.count(name) - before


def refused(view):
    return counted("fuse_reads_refused", view, chance.sample(range(PAGES), 100))


view = opened()
check("random faults are recognised", refused(view) > 20)
kib = counted("disk_bytes", view, chance.sample(range(PAGES), 400)) / 400 / 1024
check(f"{kib:.1f} KiB of the store a fault", kib <= 16)

closed = mount.count("fuse_releases")
counted("fuse_reads", view, range(1000, 1200))  # pages without data, one by one
check("the daemon has dropped the pages", wait_until(lambda: mount.count("fuse_releases") > closed))
requests = counted("fuse_reads", view, range(1200, 5200))
check(f"sequential, the same mapping: {requests} requests for 4000 pages", requests < 2000)

again = opened()
check("random again", refused(again) > 20)
other = opened_after_drop()
requests = counted("fuse_reads", other, range(6000, 10000))
check(f"sequential, a new mapping: {requests} requests for 4000 pages", requests < 2000)

third = opened()
check("random again", refused(third) > 20)
opened_after_drop().close()
before = mount.count("fuse_reads")
with open(mount / "t.safetensors", "rb", buffering=0) as file:
    check("a new file: the bytes", b"".join(iter(lambda: file.read(1 << 20), b"")) == whole)
requests = mount.count("fuse_reads") - before
check(f"a new file: {requests} requests", requests < 2000)
for mapping in (view, again, other, third):
    mapping.close()
mount.unmount()

print("-- random faults, and a file that is opened meanwhile")
mount = Mount(store, "budget=40M,direct_io=off")
view = opened()
pages = [page for page in range(PAGES) if page % 3]
chance.shuffle(pages)
bad = wrong(view, pages)
check("the bytes", not bad, bad[:3])
other = opened_after_drop()
before = mount.count("fuse_reply_bytes")
bad = wrong(view, pages)
check("pages that are mapped stay", not bad and mount.count("fuse_reply_bytes") - before < TENSOR // 20, (bad[:3],
      mount.count("fuse_reply_bytes") - before))
view.close()
other.close()
mount.unmount()

print("-- read(2) at random, through the page cache")
mount = Mount(store, "budget=40M,direct_io=off")
before, bad = mount.count("fuse_reads"), []
with open(mount / "t.safetensors", "rb", buffering=0) as file:
    for at in chance.sample(range(0, TENSOR, 48 << 10), 200):
        if os.pread(file.fileno(), 48 << 10, at) != whole[at:at + (48 << 10)]:
            bad.append(at)
requests = mount.count("fuse_reads") - before
check("the bytes", not bad, bad[:3])
check(f"at most one is refused: {requests} requests for 200 reads", mount.count("fuse_reads_refused") <= 1 and requests < 600)
before = mount.count("fuse_reads")
with open(mount / "t.safetensors", "rb", buffering=0) as file:
    os.pread(file.fileno(), 48 << 10, at)
check("and its pages are kept", mount.count("fuse_reads") == before)
mount.unmount()

print("-- an unmount while the daemon drops pages")
mount = Mount(store, "budget=40M", faults={"FADVISE_US": 20000})
view = opened()
check("random faults are recognised", refused(view) > 20)


def opens():
    return sum(mount.count(f"fuse_opens_{way}") for way in ("passthrough", "direct", "cached"))


before = opens()
counted("fuse_reads", view, range(1000, 1200))
check("the daemon has opened the file", wait_until(lambda: opens() > before))
view.close()
if os.geteuid() == 0:  # without CAP_SYS_ADMIN the daemon cannot copy its mount
    mount.unmount()
else:
    mount.stop()
done()
