# SPDX-License-Identifier: Apache-2.0
"""Files of a checkpoint that fits into memory are read through the page cache, so that a later reader, of any kind, finds
the pages that an earlier one has left, and each byte of the store is read once. Those of a larger one bypass it."""
from e2e import *

need_fuse()
model, store = shared(WIDE)
files = [name for name in files_below(model) if os.path.getsize(os.path.join(model, name)) >= 1 << 20]
size = sum(os.path.getsize(os.path.join(model, name)) for name in files)
original = {}
for name in files:
    with open(os.path.join(model, name), "rb") as file:
        original[name] = file.read()


def by_read(path):
    with open(path, "rb", buffering=0) as file:
        return b"".join(iter(lambda: file.read(1 << 20), b""))


def by_map(path):
    mapping = Mapping(path)
    data = mapping.bytes()
    mapping.close()
    return data


def at_random(path):
    with open(path, "rb", buffering=0) as file:
        at = list(range(0, os.fstat(file.fileno()).st_size, 48 << 10))
        order = random.Random(3).sample(at, len(at))
        pieces = {begin: os.pread(file.fileno(), 48 << 10, begin) for begin in order}
    return b"".join(pieces[begin] for begin in at)


WAYS = {"read()": by_read, "mapped": by_map, "pread() at random": at_random}


def asked(mount, way):
    """Bytes that the daemon sends for a pass through all files."""
    before = mount.count("fuse_reply_bytes")
    check(f"{way}: the bytes", all(WAYS[way](mount / name) == original[name] for name in files))
    return mount.count("fuse_reply_bytes") - before


def passes(served, options):
    for first in WAYS:
        print(f"-- {os.path.basename(served)}, {options}, first {first}")
        mount = Mount(served, options)
        holder = Mapping(mount / files[0])
        sent = asked(mount, first)
        check("the first pass is sent once", sent < size * 1.1, (sent, size))
        disk = mount.count("disk_bytes")
        check("and read once", disk < os.path.getsize(served) * 1.1 if os.path.isfile(served) else disk < size * 1.1, disk)
        sent = sum(asked(mount, way) for way in WAYS)
        check("later passes of any kind are from memory", sent < size // 20, sent)
        check("a mapping from before has its bytes", holder.bytes() == original[files[0]])
        check("no page was dropped, but a few by the kernel", mount.count("fuse_reply_bytes") - sent < size * 1.2 and
              mount.count("disk_bytes") - disk < size // 2, (sent, size, mount.count("disk_bytes") - disk))
        holder.close()
        decoded = mount.count("decoded_bytes")
        check("nothing is decoded that no reader requested", decoded <= mount.count("fuse_reply_bytes"), decoded)
        mount.check_budget()
        mount.unmount()


probe = Mount(store, "budget=64M,nostate")
maps = probe.config()["direct_io_mmap"] == "yes"
probe.unmount()
for served in (store, model):
    passes(served, "budget=256M,nostate")

print("-- chunks whose pages are cached")
large = make_model("large", "-F", "qwen3-moe", "-d", "2048", "-i", "1536", "-e", "10", "-l", "1", "--vocab", "1000", "--format=gguf")
for way in ("read()", "mapped"):
    mount = Mount(large, "budget=900M,nostate")
    bytes_read = len(WAYS[way](mount / "model.gguf"))
    pool = mount.count("chunk_pool_bytes")
    check(f"{way}: they make room for the next ones: the pool has {pool} bytes of {bytes_read}", pool < bytes_read * 2 // 3)
    mount.unmount()

print("-- pages that are dropped")
mount = Mount(store, "budget=256M,nostate,direct_io=off")


def drop():
    for name in files:
        forget_pages(mount / name)


for _ in range(2):
    asked(mount, "read()")
    drop()
disk = mount.count("disk_bytes")
check("they are read again", asked(mount, "read()") > size * .9)
check("then chunks stay in the pool", mount.count("disk_bytes") - disk < size // 20, mount.count("disk_bytes") - disk)
mount.unmount()

print("-- a checkpoint that does not fit")
try:
    limited = memory_cgroup(size + (24 << 20))
except OSError as error:
    note(f"skipped part: no memory limit: {error}")
    done()
mount = Mount(store, "budget=48M,nostate", prefix=limited.prefix)
asked(mount, "read()")
direct, cached = mount.count("fuse_opens_direct"), mount.count("fuse_opens_cached")
check("its files bypass the page cache", (direct >= len(files) and cached == 0) or not maps, (direct, cached))
by_map(mount / files[0])
asked(mount, "read()")
check("but for one that was mapped", mount.count("fuse_opens_cached") > cached or not maps, mount.stat())
mount.unmount()
done()
