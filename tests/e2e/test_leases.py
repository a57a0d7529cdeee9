# SPDX-License-Identifier: Apache-2.0
"""Open experts: one lease for all opens of one, kept by mappings, given back by the last; what happens when there is
no room for another, by option; and all of it in random order by many threads."""
import mmap
import os
import random
import threading
import time

from e2e import *

need_fuse()
model = make_model("model", "-F", "qwen3-moe", "-d", "512", "-i", "1024", "-e", "8", "-l", "4", "--vocab", "500")
store = make_store(model)
BUDGET = "budget=72M"

mount = Mount(store)
if not mount.passthrough():
    skip(f"no passthrough here: {mount.config()['passthrough_reason']}")
experts = [f"experts/{name}" for name in files_below(mount / "experts") if "/" in name]
want = {name: open(mount / name, "rb").read() for name in experts}
tensors = tensors_of(model)
for name in experts[::9]:
    header, base = safetensors_header(want[name])
    for tensor, entry in header.items():
        begin, end = entry["data_offsets"]
        check(f"{tensor} is the checkpoint's", want[name][base + begin:base + end] == tensors[tensor])


def leased(on=None):
    return (on or mount).count("leased_experts")


def none_leased(on=None):
    return wait_until(lambda: leased(on) == 0)


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
open(mount / experts[1], "rb").close()  # released behind it
check("a mapping keeps it", wait_until(lambda: leased() == 1) and view[:] == want[experts[0]])
view.close()
check("unmapped: given back", none_leased())
threads = []
results = []


def opens_at_once(name):
    with open(mount / name, "rb") as file:
        results.append(file.read() == want[name])


for _ in range(16):
    threads.append(threading.Thread(target=opens_at_once, args=(experts[7],)))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
check("16 first opens at the same time", results == [True] * 16, results)
check("given back", none_leased())
mount.unmount()

print("-- no room")
mount = Mount(store, BUDGET)
handles = [open(mount / name, "rb") for name in experts]
stat = mount.stat()
fallbacks = int(stat["fuse_lease_fallbacks"])
check(f"all {len(experts)} can be open, {fallbacks} without a lease", 0 < fallbacks < len(experts), stat)
check("all of them are right", all(handle.read() == want[name] for handle, name in zip(handles, experts)))
views = [mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ) for handle in handles]
check("and mapped", all(view[:] == want[name] for view, name in zip(views, experts)))
again = [open(mount / name, "rb") for name in experts]
check("and opened again", all(handle.read() == want[name] for handle, name in zip(again, experts)))
held = sum(int(stat[name]) for name in ("fixed_bytes", "chunk_pool_bytes", "full_pool_bytes"))
check("the budget holds", held <= int(stat["budget_bytes"]), (held, stat["budget_bytes"]))
for closing in views + handles + again:
    closing.close()
check("given back", none_leased())
last = open(mount / experts[-1], "rb")
check("an expert that had no lease gets one now", leased() == 1 and last.read() == want[experts[-1]])
last.close()
mount.unmount()


def stress(options, seconds=4):
    print(f"-- random opens, reads, mappings and closes, {options}")
    mount = Mount(store, options)
    end = time.monotonic() + seconds
    bad, did = [], []

    def worker(seed):
        generator = random.Random(seed)
        open_files = []
        while time.monotonic() < end:
            name = generator.choice(experts[:6] if generator.random() < 0.5 else experts)
            if len(open_files) >= 4 or (open_files and generator.random() < 0.4):
                for closing in open_files.pop(generator.randrange(len(open_files))):
                    closing.close()
                continue
            try:
                file = open(mount / name, "rb", buffering=0)
            except OSError as error:
                bad.append(f"{name}: {error}")
                continue
            offset = generator.randrange(len(want[name]))
            if os.pread(file.fileno(), 9999, offset) != want[name][offset:offset + 9999]:
                bad.append(f"{name} at {offset}")
            held = [file]
            if generator.random() < 0.3:
                view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
                if view[offset:offset + 9999] != want[name][offset:offset + 9999]:
                    bad.append(f"{name} mapped at {offset}")
                held.append(view)
                if generator.random() < 0.5:
                    held.remove(file)
                    file.close()
            open_files.append(held)
            did.append(1)
        for held in open_files:
            for closing in held:
                closing.close()

    workers = [threading.Thread(target=worker, args=(seed,)) for seed in range(8)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join(60)
    check(f"{len(did)} opens, all right", not bad and not any(thread.is_alive() for thread in workers), bad[:5])
    check("given back", none_leased(mount))
    mount.unmount()


stress("")
stress(BUDGET)
stress(BUDGET + ",direct_io=off")
done()
