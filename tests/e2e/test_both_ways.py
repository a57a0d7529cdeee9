# SPDX-License-Identifier: Apache-2.0
"""The same experts as files and over the socket, at the same time and by turns, under a budget that makes each give way:
a mapped file and a pipe never change, a window has what it was handed out for, and the daemon lives."""
import ctypes
import mmap
import multiprocessing
import os
import threading

from e2e import *
from handout import ASK, DROP, Client

need_fuse()
model = make_model("model", "-F", "qwen3-moe", "-d", "512", "-i", "1024", "-e", "8", "-l", "2", "--vocab", "500")
store = make_store(model)
os.environ["EXPERTFS_STATE"] = scratch("state")
plain = Mount(store, "nopassthrough")
files = {(layer, number): open(plain / f"experts/L{layer:02}/E{number:03}.safetensors", "rb").read()
         for layer in range(2) for number in range(8)}
plain.unmount()
mount = Mount(store, "budget=48M")
if not mount.passthrough():
    reason = mount.config()["passthrough_reason"]
    mount.unmount()
    skip(f"no passthrough here: {reason}")


def path(layer, number):
    return mount / f"experts/L{layer:02}/E{number:03}.safetensors"


def readers(seed, until, results):
    """Another process: opens, maps, closes the file, then looks at the mapping for a while."""
    generator = random.Random(seed)
    bad, did, held = [], 0, []
    while time.monotonic() < until:
        key = generator.choice(sorted(files))
        with open(path(*key), "rb") as file:
            held.append((key, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
        if len(held) > 2:
            key, view = held.pop(0)
            if view[:] != files[key]:
                bad.append(key)
            did += 1
            view.close()
    results.put((did, bad))


def askers(seed, until, results):
    generator = random.Random(seed)
    client = Client(mount)
    bad, did = [], 0
    while time.monotonic() < until:
        layer = generator.randrange(2)
        chosen = generator.sample(range(8), 2)
        client.send(ASK, [(n, 1, n) for n in chosen], layer=layer)
        for _ in chosen:
            answer = client.answer()
            if answer[1] == 0:
                did += 1
                if client.file(answer) != files[layer, answer[0]]:
                    bad.append((layer, answer[0]))
            elif answer[1] not in (-16, -12):  # busy, or no room
                bad.append(answer)
        client.send(DROP, [(0, 0, n) for n in chosen])
    results.put((did, bad))


def one_process(expert_first, seconds, results):
    """The same expert is asked for and opened at the same moment; its mapping is looked at when others came and went."""
    client, until, bad, did = Client(mount), time.monotonic() + seconds, [], 0
    held = []
    while time.monotonic() < until:
        key = (expert_first, did % 8)
        client.send(ASK, [(key[1], 1, 1)], layer=key[0])
        with open(path(*key), "rb") as file:
            held.append((key, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
        answer = client.answer()
        if answer[1] == 0 and client.file(answer) != files[key]:
            bad.append(("window", key))
        client.send(DROP, [(0, 0, 1)])
        for number in range(8):
            if number != key[1]:
                client.send(ASK, [(number, 1, 2)], layer=key[0])
                answer = client.answer()
                if answer[1] == 0 and client.file(answer) != files[key[0], number]:
                    bad.append(("window", number))
                client.send(DROP, [(0, 0, 2)])
        if len(held) > 1:
            key, view = held.pop(0)
            if view[:] != files[key]:
                bad.append(("mapping", key))
            view.close()
        did += 1
    results.put((did, bad))


def run_all(of, arguments):
    """Each in a process of its own, for a SIGBUS ends it; what they say."""
    results = multiprocessing.Queue()
    processes = [multiprocessing.Process(target=of, args=(*more, results)) for more in arguments]
    for process in processes:
        process.start()
    said = []
    for process in processes:
        process.join(40)
        if process.exitcode is None:
            process.kill()
        elif process.exitcode == 0:
            said.append(results.get(timeout=5))
    codes = [process.exitcode for process in processes]
    check("nobody was killed", codes == [0] * len(processes), codes)
    if mount.daemon.poll() is not None:
        check("the daemon lives", False, mount.daemon.returncode)
        done()
    return said


print("-- the same expert at the same moment")
said = run_all(one_process, [(layer, 4) for layer in range(2)])
check(f"{sum(s[0] for s in said)} mapped files and what was handed out", said and not any(s[1] for s in said), said)

print("-- files and windows by many")
until = time.monotonic() + 4
said = run_all(readers, [(seed, until) for seed in range(3)])
check(f"{sum(s[0] for s in said)} mapped files", said and not any(s[1] for s in said), said)
until = time.monotonic() + 4
said = run_all(lambda kind, seed, end, results: (readers if kind else askers)(seed, end, results),
               [(kind, seed, until) for seed in range(3) for kind in (True, False)])
check(f"{sum(s[0] for s in said)} files or windows", said and not any(s[1] for s in said), said)

print("-- by turns")
check("what the clients held is given back", wait_until(lambda: mount.count("leased_experts") == 0))
client = Client(mount)
held, by_kernel = [], 0
for turn in range(40):
    layer, number = turn % 2, turn // 2 % 8
    before = mount.count("fuse_opens_passthrough")
    with open(path(layer, number), "rb") as file:
        held.append(((layer, number), mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
    by_kernel += mount.count("fuse_opens_passthrough") - before
    if len(held) > 1:
        key, view = held.pop(0)
        if view[:] != files[key]:
            check(f"turn {turn}: a mapped file is its expert", False, key)
        view.close()
        # the last one closed it: it can be had as a window now
        wait_until(lambda: mount.count("leased_experts") <= 1, 5)
        client.send(ASK, [(key[1], 1, 5)], layer=key[0])
        answer = client.answer()
        if answer[1] != -16 and (answer[1] or client.file(answer) != files[key]):
            check(f"turn {turn}: one whose file nobody has open any more is handed out", False, answer)
            break
        client.send(DROP, [(0, 0, 5)])
        wait_until(lambda: mount.count("leased_experts") <= 1, 5)
for _, view in held:
    view.close()

# not all: one that is being coded again just then stays where it is
check(f"of 40 whose window no client holds the kernel serves {by_kernel}", by_kernel > 10)

print("-- busy")
client.send(ASK, [(3, 1, 1)])
answer = client.answer()
before = mount.count("fuse_opens_passthrough")
with open(path(0, 3), "rb") as file:
    check("the file of one in a window has its bytes", file.read() == files[0, 3])
    check("by the daemon", mount.count("fuse_opens_passthrough") == before)
client.send(DROP, [(0, 0, 1)])
with open(path(0, 4), "rb") as file:
    client.send(ASK, [(4, 1, 2)])
    check("one whose file is open is not handed out", client.answer()[:2] == (2, -16))
client.close()

print("-- many opens while memory changes hands")
end_at = time.monotonic() + 4
bad, did = [], [0]


def opens(seed):
    generator = random.Random(seed)
    while time.monotonic() < end_at:
        key = generator.choice(sorted(files))
        with open(path(*key), "rb", buffering=0) as file:
            if os.pread(file.fileno(), 4096, 0) != files[key][:4096]:
                bad.append(key)
        did[0] += 1


try:
    threads = [threading.Thread(target=opens, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    check(f"{did[0]} opens by eight threads", not bad and did[0] > 0, bad[:5])
except OSError as error:
    check("opens", False, error)
check("the daemon was not killed by a signal", mount.daemon.poll() is None, mount.daemon.returncode)
if mount.daemon.poll() is None:
    stat = mount.stat()
    kept = sum(int(stat[name]) for name in ("fixed_bytes", "chunk_pool_bytes", "full_pool_bytes"))
    check("the budget holds", kept <= int(stat["budget_bytes"]), (kept, stat["budget_bytes"]))
    check("nothing is leased", wait_until(lambda: mount.count("leased_experts") == 0))
    mount.unmount()
done()
