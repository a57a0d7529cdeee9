# SPDX-License-Identifier: Apache-2.0
"""Files that are mapped: a later mapping uses the page cache of the first, and does not evict other data; a reader of
single experts gets no read-ahead; under a memory limit the daemon leaves its memory to the page cache, and reclaims it
for leases."""
from e2e import *

need_fuse()

# Maps a file, reads every page of parts of it, prints their sum, and waits for the end of its input
READER = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
pages = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
parts = [tuple(map(int, a.split(":"))) for a in sys.argv[2:]] or [(0, len(pages))]
total = sum(sum(pages[at] for at in range(first, end, 4096)) for first, end in parts)
print(total, flush=True)
sys.stdin.read()
"""


class Reader:
    def __init__(self, path, *parts, join=None):
        self.process = subprocess.Popen([sys.executable, "-c", READER, path, *parts], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, preexec_fn=join)
        self.total = int(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def sum_of(path, *parts):
    reader = Reader(path, *parts)
    reader.end()
    return reader.total


def name_of(model):
    return max((n for n in os.listdir(model) if n.endswith((".safetensors", ".gguf"))),
               key=lambda n: os.path.getsize(os.path.join(model, n)))


def mapped_again(store, model, options, again):
    """Does a second mapping read from the daemon again?"""
    mount = Mount(store, options)
    path, want = mount / name_of(model), sum_of(os.path.join(model, name_of(model)))
    first = Reader(path)
    cached, before = mount.count("fuse_opens_cached"), mount.count("read_bytes")
    second = Reader(path)
    more = mount.count("read_bytes") - before
    check(f"{options}: the same bytes", first.total == want and second.total == want)
    if again:
        check(f"{options}: a second mapping reads again", more > 0)
    else:
        # apart from reads of the control files, the daemon only gets reads of a few pages that the kernel dropped
        check(f"{options}: a second mapping finds what the first has left", more * 20 < os.path.getsize(path), more)
        check(f"{options}: its open goes through the page cache",
              mount.count("fuse_opens_cached") > cached or "direct_io=off" in options)
    first.end()
    second.end()
    mount.unmount()


model = make_model("small")
store = make_store(model)
probe = Mount(store, "budget=256M")
direct = probe.config()["direct_io"] == "yes"
probe.unmount()
mapped_again(store, model, "budget=256M", False)
mapped_again(store, model, "budget=256M,direct_io=off", False)
if direct:
    mapped_again(store, model, "budget=256M,direct_io=on", True)

# Some experts of a file, a MiB each: the bytes read from the store are near those requested, not 32 MiB more each time
big = make_model("big", "-F", "qwen3-moe", "-d", "2048", "-i", "768", "-e", "16", "-l", "3", "--vocab", "4096",
                 "--format=gguf")
big_store = make_store(big)
mount = Mount(big_store, "budget=1G")
if not os.geteuid():
    device = os.stat(mount.path).st_dev
    with open(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb", "w") as kib:
        kib.write("128")
size = os.path.getsize(os.path.join(big, "model.gguf"))
parts = [f"{at}:{at + (1 << 20)}" for at in range(40 << 20, size - (4 << 20), 60 << 20)]
before = mount.count("disk_bytes")
check("parts of a mapping", sum_of(mount / "model.gguf", *parts) == sum_of(os.path.join(big, "model.gguf"), *parts))
# a MiB, and the kernel's read-around, span two or three extents of at most 4 MiB
read = mount.count("disk_bytes") - before
check("a mapping read here and there is not read ahead for", read <= len(parts) * (12 << 20), (read, len(parts)))
mount.unmount()

# Under a memory limit
try:
    limited = memory_cgroup(400 << 20)
except OSError as error:
    note(f"skipped part: no memory limit: {error}")
    done()
mount = Mount(big_store, "budget=auto", prefix=limited.prefix)
auto = mount.count("budget_bytes")
check("auto is about half of the limit", auto <= 200 << 20, auto)
# the daemon checks the page cache once a second
def ceded():
    Reader(mount / "model.gguf", join=limited.join).end()
    return mount.count("budget_bytes") < auto * 7 // 8
check("a mapping larger than the limit: the budget is left to the page cache", wait_until(ceded),
      mount.control("stat"))
mount.check_budget()


def taken_back(name):
    """Opens an expert. A look at the page cache in between may lower the budget again: then another one."""
    held = mount.count("budget_bytes")
    with open(mount / name, "rb") as file:
        file.read(1)
        return mount.count("budget_bytes") > held


if TSAN:
    note("no lease takes it back: the sanitizer's memory has left no room for one")
elif mount.passthrough():
    check("a lease takes it back", any(map(taken_back, mount.experts())), mount.control("stat"))
    check("as auto", os.getxattr(mount.path, "user.expertfs.budget") == b"auto")
os.setxattr(mount.path, "user.expertfs.budget", b"180M")
Reader(mount / "model.gguf", join=limited.join).end()
time.sleep(1.5)
Reader(mount / "model.gguf", join=limited.join).end()
check("a budget that was set is left alone", mount.count("budget_bytes") == 180 << 20, mount.count("budget_bytes"))
mount.unmount()
done()
