# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed while it waits for itself: for an open of its own, to read ahead in the page cache, and
for pages that are being read while it drops them. It dies at once, and who reads gets an error."""
import sys

from e2e import *

need_fuse()
MIB = 1 << 20
SIZE = 256 * MIB
LATE = 120 * MIB + 4096  # the page whose read is answered late, in a part that is dropped behind the reader
PLAIN = "nopassthrough,direct_io=off"
folder = scratch("plain")
os.mkdir(folder)
with open(f"{folder}/file", "wb") as file:
    for number in range(SIZE // MIB):
        file.write(bytes([number]) * MIB)

# Goes through the file in order, but for the page that comes late; or uses that page alone
READER = """
import mmap, sys
path, late, alone = sys.argv[1], int(sys.argv[2]), len(sys.argv) > 3
with open(path, "rb", buffering=0) as file:
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
if alone:
    view.madvise(mmap.MADV_RANDOM)
for at in [late] if alone else range(0, len(view), 4096):
    if alone or at != late:
        view[at]
"""


def reader(mount, *alone):
    return subprocess.Popen([sys.executable, "-c", READER, mount / "file", str(LATE), *alone], stdout=subprocess.DEVNULL,
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


if os.geteuid():
    skip("only root may clone a mount, without which there is no reading ahead")
print("-- opens of its own")
mount = Mount(folder, PLAIN, fake=True, environment={"EFS_FAKE_HOLD": "1"})
readers = [reader(mount)]
if check("an open is held", wait_until(lambda: "is held" in mount.printed(), 30), mount.printed()):
    dies("while it opens a file to read ahead in the page cache", mount, readers)
else:
    readers[0].wait(60)
    mount.stop()

print("-- pages that are being read")
mount = Mount(folder, PLAIN, fake=True, environment={"EFS_FAKE_LATE_AT": str(LATE), "EFS_FAKE_LATE_US": "100000000",
                                                     "EFS_FAKE_MEMORY_MIB": "128"})
readers = [reader(mount, "late")]
wait_until(lambda: mount.count("fuse_reads") > 0)
readers.append(reader(mount))
if check("a page is waited for", wait_until(lambda: waits_for_a_page(mount), 60), (mount.threads(), mount.control("stat"))):
    dies("while it waits for a page that it takes from mappings", mount, readers)
else:
    for process in readers:
        process.kill()
    mount.abandon()
done()
