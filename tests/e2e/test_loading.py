# SPDX-License-Identifier: Apache-2.0
"""A reader that goes through a mapped file once, in order, as a program that loads a model does: pages are read ahead
of it, and where the file is larger than memory what it has passed makes room, so that its beginning stays. The bytes
are right; a reader who goes no further, or comes from another memory cgroup, or reads here and there, is not helped."""
import ctypes
import hashlib
import mmap
import os
import sys

import e2e
from e2e import *

sys.path.insert(0, os.path.join(ROOT, "tools", "bench"))
from cgroup import Cgroup

need_fuse()
if os.geteuid():
    skip("only root may clone a mount, without which there is no reading ahead")

MIB = 1 << 20
# Maps a file; loads all of it (populate), or touches a part of it in order; prints a hash of what it touched
LOADER = """
import hashlib, mmap, os, sys
path, how, end = sys.argv[1], sys.argv[2], int(sys.argv[3])
fd = os.open(path, os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if how == "populate" else 0)
pages = mmap.mmap(fd, 0, flags=flags, prot=mmap.PROT_READ)
if how == "backwards":
    for at in range(end - 4096, 0, -(12 << 20)):
        pages[at]
digest = hashlib.sha256()
if how != "backwards":
    for at in range(int(sys.argv[4]), end, 1 << 20):
        digest.update(pages[at:min(at + (1 << 20), end)])
print(digest.hexdigest(), flush=True)
"""
libc = ctypes.CDLL(None, use_errno=True)
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def load(path, how, end, join=None, begin=0):
    return subprocess.run([sys.executable, "-c", LOADER, path, how, str(end), str(begin)], stdout=subprocess.PIPE, text=True,
                          check=True, preexec_fn=join).stdout.strip()


def hash_of(path, end):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for at in range(0, end, MIB):
            digest.update(file.read(min(MIB, end - at)))
    return digest.hexdigest()


def resident(path, end):
    """The part of the first bytes of a file that is in the page cache."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as pages:
        start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        found = ctypes.create_string_buffer(end // mmap.PAGESIZE)
        check("mincore", libc.mincore(start, end, found) == 0)
        return sum(byte & 1 for byte in found.raw) / len(found.raw)


model = make_model("big", "-F", "qwen3-moe", "-d", "2048", "-i", "768", "-e", "16", "-l", "3", "--vocab", "4096",
                   "--format=gguf")
store = make_store(model)
plain = os.path.join(model, "model.gguf")
size = os.path.getsize(plain)
whole = hash_of(plain, size)

# All of it is loaded
mount = Mount(store, "budget=1G")
check("a file that is loaded: the same bytes", load(mount / "model.gguf", "populate", size) == whole)
check("its loader was found", mount.count("fuse_loads") > 0, mount.control("stat"))
check("most of it was read ahead", mount.count("fuse_load_ahead_bytes") > size // 3, mount.control("stat"))
check("it was seen to come by", mount.count("fuse_load_signposts") > 0, mount.control("stat"))
check("nothing was given up", mount.count("fuse_load_dropped_bytes") == 0)
# What the kernel reads for the file is what it has bytes, not more: what was read ahead was used
check("no byte was read twice", mount.count("read_bytes") <= size + 8 * MIB, (mount.count("read_bytes"), size))
stat = mount.stat()
stat = {name: int(value) for name, value in stat.items() if value.isdigit()}
check("only its open counts", stat["fuse_opens_direct"] + stat["fuse_opens_cached"] == 1, mount.control("stat"))
kept = stat["fuse_load_signposts"] - stat["fuse_load_signpost_hits"]
check("reads add up", stat["reads"] == stat["fuse_reads"] + stat["fuse_aheads"] - stat["fuse_ahead_hits"] + kept and
      stat["read_bytes"] == stat["fuse_reply_bytes"] + stat["fuse_ahead_bytes"] - stat["fuse_ahead_hit_bytes"] +
      4096 * (kept - stat["fuse_load_signpost_errors"]), mount.control("stat"))
mount.unmount()

# It is not given up while it waits for an answer, to it or to who reads ahead
source = scratch("fake")
os.mkdir(source)
with open(f"{source}/model.gguf", "wb") as file:
    for _ in range(192):  # who is lost is found again before the end
        file.write(os.urandom(MIB))
late = hash_of(f"{source}/model.gguf", 192 * MIB)
for what, at in (("a page that is read ahead", 60 * MIB + MIB // 2), ("the page that was left out", 64 * MIB - 1)):
    mount = Mount(source, fake=True, environment={"EFS_FAKE_LATE_AT": str(at), "EFS_FAKE_LATE_US": "1500000"})
    check(f"{what} comes late: the same bytes", load(mount / "model.gguf", "populate", 192 * MIB) == late)
    check("the loader is followed all the way", mount.count("fuse_loads") == 1, mount.control("stat"))
    mount.unmount()

# Someone begins, and stops
mount = Mount(store, "budget=1G")
part = 160 * MIB
check("a file of which a part is touched: the same bytes",
      load(mount / "model.gguf", "touch", part) == hash_of(plain, part))
check("no more than some MiB are read ahead for nothing", mount.count("read_bytes") <= part + 48 * MIB,
      mount.count("read_bytes"))
mount.unmount()

# Who begins with the file's first byte is believed sooner than who begins inside
mount = Mount(store, "budget=1G")
load(mount / "model.gguf", "touch", 144 * MIB, begin=104 * MIB)
check("40 MiB inside the file are no sign of a loader", mount.count("fuse_loads") == 0, mount.control("stat"))
mount.unmount()
mount = Mount(store, "budget=1G")
load(mount / "model.gguf", "touch", 12 * MIB)
check("nor are the first 12 MiB, a long header", mount.count("fuse_loads") == 0, mount.control("stat"))
mount.unmount()
mount = Mount(store, "budget=1G")
load(mount / "model.gguf", "touch", 48 * MIB)
check("the first 48 MiB are", mount.count("fuse_loads") == 1, mount.control("stat"))
check("little is read ahead for nothing", mount.count("read_bytes") <= (48 + 48) * MIB, mount.count("read_bytes"))
mount.unmount()

# Someone reads here and there
mount = Mount(store, "budget=1G")
load(mount / "model.gguf", "backwards", size)
check("nobody was found", mount.count("fuse_loads") == 0, mount.control("stat"))
check("nothing was read ahead", mount.count("fuse_load_ahead_bytes") == 0)
mount.unmount()

try:
    limited, other = Cgroup(size * 6 // 10), Cgroup(None)
except OSError as error:
    note(f"skipped part: no memory limit: {error}")
    done()
try:
    # Larger than memory
    mount = Mount(store, "budget=96M", prefix=limited.prefix)
    check("a file larger than memory: the same bytes",
          load(mount / "model.gguf", "populate", size, limited.join) == whole)
    check("room was made", mount.count("fuse_load_dropped_bytes") > 0, mount.control("stat"))
    check("nobody was killed for it", limited.out_of_memory() == 0)
    mount.unmount()
    mount = Mount(store, "budget=96M", prefix=limited.prefix)
    load(mount / "model.gguf", "populate", 4096, limited.join)
    kept = resident(mount / "model.gguf", size // 5)
    check("the loader is followed all the way", mount.count("fuse_loads") == 1, mount.control("stat"))
    if TSAN:
        note("of the page cache nothing is said: the sanitizer's memory takes most of the limit")
    else:
        check("its beginning stays in the page cache", kept > 0.9, (kept, mount.control("stat")))
    mount.unmount()

    # Pages that the daemon's thread reads would not count for it
    mount = Mount(store, "budget=1G")
    check("a loader of another cgroup: the same bytes",
          load(mount / "model.gguf", "populate", size, other.join) == whole)
    check("is left alone", mount.count("fuse_loads") == 0, mount.control("stat"))
    mount.unmount()
finally:
    limited.remove()
    other.remove()
done()
