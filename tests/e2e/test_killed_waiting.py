# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed while it waits for itself: for an open of its own, to look at the page cache or to read ahead in
it, and for pages that are being read while it takes them from mappings. It dies at once, and who reads gets an error."""
import mmap

from e2e import *

need_fuse()
MIB = 1 << 20
SIZE = 64 * MIB
LATE = 5 * MIB + 4096  # the page whose read is answered late, in the first range
PLAIN = "nopassthrough,direct_io=off"
SYS_CACHESTAT = 451
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(SYS_CACHESTAT, -1, None, None, 0)
cachestat = ctypes.get_errno() != errno.ENOSYS
folder = scratch("plain")
os.mkdir(folder)
with open(f"{folder}/file", "wb") as file:
    for number in range(SIZE // MIB):
        file.write(bytes([number + 1]) * MIB)

READER = """
import mmap, sys
path, way, late = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(path, "rb", buffering=0) as file:
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
if way == "late":
    view.madvise(mmap.MADV_RANDOM)
    view[late]
while way == "others":
    view.madvise(mmap.MADV_RANDOM)
    for at in range(0, len(view), 4096):
        if at != late:
            view[at]
for at in range(0, len(view), 4096):  # in order
    view[at]
"""


def reader(mount, way):
    return subprocess.Popen([sys.executable, "-c", READER, mount / "file", way, str(LATE)], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


def waits_for_a_page(mount, seen={}):
    """Was a thread of the daemon seen waiting for a page 20 times in a row?"""
    now = {number for number, (state, stack) in mount.threads().items() if state == "D" and "invalidate" in stack}
    for number in [*seen, *now]:
        seen[number] = seen.get(number, 0) + 1 if number in now else 0
    return max(seen.values(), default=0) >= 20


def dies(what, mount, readers):
    check(f"{what}: killed, the daemon dies", mount.killed(what, 30))
    for process in readers:
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            check(f"{what}: its readers end", False)
            process.kill()
    mount.abandon()


def open_is_held(hold, options, what):
    mount = Mount(folder, f"{PLAIN}{options}", fake=True, environment={"EFS_FAKE_HOLD": hold})
    readers = [reader(mount, "order")]
    if check(f"{what}: it is held", wait_until(lambda: "is held" in mount.printed(), 30), mount.printed()):
        dies(what, mount, readers)
    else:
        readers[0].wait(60)
        mount.stop()


print("-- opens of its own")
if not cachestat:
    note("left out: looking at the page cache, which needs cachestat (Linux 6.5)")
else:
    open_is_held("look", ",page_cache=8M", "while it opens a file to look at the page cache")
open_is_held("load", "", "while it opens a file to read ahead in the page cache")

print("-- pages that are being read")
if os.geteuid() or not cachestat:
    note("left out: the wait for a page needs cachestat, and root to see it")
    done()
mount = Mount(folder, f"{PLAIN},page_cache=1M", fake=True,
              environment={"EFS_FAKE_LATE_AT": str(LATE), "EFS_FAKE_LATE_US": "100000000"})
readers = [reader(mount, "others"), reader(mount, "late")]
if check("a page is waited for", wait_until(lambda: waits_for_a_page(mount), 60), mount.threads()):
    dies("while it waits for a page that it takes from mappings", mount, readers)
else:
    for process in readers:
        process.kill()
    mount.abandon()
done()
