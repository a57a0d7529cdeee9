# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed while the read of a mapped file's page is unanswered: it dies at once, and its readers get
errors."""
from e2e import *

need_fuse()
store = make_store(make_model())
LATE = 5 << 20  # the byte that is answered late: in the first shard, with larger reads before it

# Reads the mapped file in order, or only one page.
READER = """
import mmap, sys
path, late, alone = sys.argv[1], int(sys.argv[2]), len(sys.argv) > 3
with open(path, "rb", buffering=0) as file:
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.readline()
for at in [late] if alone else range(0, len(view), 4096):
    view[at]
"""


def reader(mount, *alone):
    path = mount / "model-00001-of-00003.safetensors"
    return subprocess.Popen([sys.executable, "-c", READER, path, str(LATE), *alone], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL)


for options in ("nopassthrough,direct_io=off", "nopassthrough"):
    mount = Mount(store, options, faults={"LATE_AT": LATE, "LATE_US": 4 * PATIENCE * 1000000})
    readers = [reader(mount), reader(mount, "late")]
    for process in readers:  # an open would wait for a page that another reader waits for
        process.stdout.readline()
    for process in readers:
        process.stdin.close()
    check(f"{options}: its readers wait for the page", wait_until(lambda: all(is_blocked(reader.pid) for reader in readers)))
    check("killed, the daemon dies", mount.kill(options))
    for process in readers:
        check("its reader gets SIGBUS", wait_until(lambda: process.poll() is not None) and process.poll() == -7, process)
    mount.abandon()
done()
