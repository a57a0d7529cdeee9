# SPDX-License-Identifier: Apache-2.0
"""A store that fits the budget is read from disk once, however often its files are read from start to end; a larger one
still keeps what readers use beside a scan."""
from e2e import *

need_fuse()
model, store = shared((*WIDE[:-1], "40000"))  # a third of it is dense
files = sorted(name for name in os.listdir(model) if os.path.isfile(os.path.join(model, name)))


def read_all(mount):
    """Reads all files past the page cache; returns the bytes read from disk meanwhile."""
    before = mount.count("disk_bytes")
    for name in files:
        fd = os.open(mount / name, os.O_RDONLY)
        while os.read(fd, 1 << 20):
            pass
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    mount.wait_idle()
    return mount.count("disk_bytes") - before


size = os.stat(store).st_size
for budget in f"{size // (1 << 20) * 2 + 96}M", "4G":
    mount = Mount(store, f"budget={budget},direct_io=on")
    wait_until(lambda: mount.count("plans") > 0)  # the plan is for experts: with 4G most of the budget is in no pool
    passes = [read_all(mount) for _ in range(3)]
    check(f"{budget}: the first pass reads the store", passes[0] >= size * .8, (passes, size))
    check(f"{budget}: three passes read it once", sum(passes) <= size * 1.05, (passes, size))
    mount.check_budget()
    mount.unmount()
mount = Mount(store, "budget=40M,direct_io=on")
passes = [read_all(mount) for _ in range(2)]
mount.check_budget()
check("then each pass reads it", passes[1] >= size * .5, (passes, size))
done()
