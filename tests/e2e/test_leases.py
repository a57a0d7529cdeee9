# SPDX-License-Identifier: Apache-2.0
"""Open experts: one lease for all opens of an expert, kept by mappings, released by the last; and opens without memory
for another lease. In random order, by many readers: test_soak.py."""
from e2e import *

need_fuse()
model, store = shared(DEEP)

mount = Mount(store)
need_passthrough(mount)
experts = mount.experts()
want = {name: open(mount / name, "rb").read() for name in experts}


def leased():
    return mount.count("leased_experts")


def none_leased():
    return wait_until(lambda: leased() == 0)


print("-- sharing")
check("nothing is leased when nothing is open", none_leased())
before = mount.count("leases")
handles = [open(mount / experts[0], "rb") for _ in range(20)]
check("20 opens, one lease", mount.count("leases") == before + 1 and leased() == 1, mount.stat())
for handle in handles[1:]:
    handle.close()
check("19 closed: still leased, still right", leased() == 1 and handles[0].read() == want[experts[0]])
view = mmap.mmap(handles[0].fileno(), 0, prot=mmap.PROT_READ)
handles[0].close()
open(mount / experts[1], "rb").close()  # released after the mapping
check("a mapping keeps it", wait_until(lambda: leased() == 1) and view[:] == want[experts[0]])
view.close()
check("unmapped: given back", none_leased())
results = []


def opens_at_once(name):
    with open(mount / name, "rb") as file:
        results.append(file.read() == want[name])


in_threads(opens_at_once, [experts[7]] * 16)
check("16 first opens at the same time", results == [True] * 16, results)
check("given back", none_leased())
mount.unmount()

print("-- no room")
mount = Mount(store, "budget=72M")
handles = [open(mount / name, "rb") for name in experts]
stat = mount.stat()
fallbacks = int(stat["fuse_lease_fallbacks"])
check(f"all {len(experts)} can be open, {fallbacks} without a lease", 0 < fallbacks < len(experts), stat)
check("all of them are right", all(handle.read() == want[name] for handle, name in zip(handles, experts)))
views = [mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ) for handle in handles]
check("and mapped", all(view[:] == want[name] for view, name in zip(views, experts)))
again = [open(mount / name, "rb") for name in experts]
check("and opened again", all(handle.read() == want[name] for handle, name in zip(again, experts)))
mount.check_budget()
os.setxattr(mount.path, "user.expertfs.budget", b"48M")
answer = os.getxattr(mount.path, "user.expertfs.answer").decode()
check("what a smaller budget leaves held is told", "still hold" in answer and wait_until(lambda: answer in mount.log_text()), answer)
os.setxattr(mount.path, "user.expertfs.budget", b"72M")
for closing in views + handles + again:
    closing.close()
check("given back", none_leased())
last = open(mount / experts[-1], "rb")
check("an expert that had no lease gets one now", leased() == 1 and last.read() == want[experts[-1]])
last.close()
mount.unmount()
done()
