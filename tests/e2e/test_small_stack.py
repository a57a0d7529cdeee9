# SPDX-License-Identifier: Apache-2.0
"""RLIMIT_STACK, by which glibc chooses the stacks of threads, of 64 to 112 KiB: the daemon serves readers of every kind
and clients, as its threads have stacks of a stated size."""
from e2e import *
from socket_packets import AS_CODED, ASK, FULL, OBSERVE, WITH_LAYOUT, Client, routing

need_fuse()
model, store = shared()
want = experts_without_passthrough(store)
plain = [name for name in files_below(model) if "/" not in name]

for kib in (64, 80, 112):
    print(f"-- {kib} KiB")
    mount = Mount(store, "budget=64M", prefix=("prlimit", f"--stack={kib << 10}"))
    with open(f"/proc/{mount.daemon.pid}/limits") as limits:
        soft = re.search(r"^Max stack size +(\d+)", limits.read(), re.M).group(1)
    check("the limit is in force", int(soft) == kib << 10, soft)
    check("experts", all(open(mount / name, "rb").read() == data for name, data in want.items()))
    check("files", all(open(mount / name, "rb").read() == open(os.path.join(model, name), "rb").read() for name in plain))
    with open(mount / plain[0], "rb", buffering=0) as file:  # small reads
        whole = open(os.path.join(model, plain[0]), "rb").read()
        places = [random.Random(at).randrange(len(whole)) for at in range(200)]
        check("parts of a file", all(os.pread(file.fileno(), 100, at) == whole[at:at + 100] for at in places))
    with open(mount / ".expertfs/want", "w") as asked:
        asked.write("0: 1 2\n")
    check("status files", all(mount.control(name) for name in ("stat", "experts", "plan", "metrics", "config")))
    if mount.control("handout").startswith("address: /"):
        client = Client(mount)
        client.socket.send(routing(OBSERVE, [(n, 0.5) for n in range(512)]))  # the longest packets
        client.send(ASK, [(n, 1, n) for n in range(4)], form=FULL)
        answers = sorted(client.answer() for _ in range(4))
        check("full experts over the socket", [answer[:2] for answer in answers] == [(n, 0) for n in range(4)], answers)
        client.send(ASK, [(n, 1, 10 + n | WITH_LAYOUT) for n in range(4, 8)], form=AS_CODED)
        check("coded ones", sorted(client.coded()[:2] for _ in range(4)) == [(10 + n, 0) for n in range(4, 8)])
        client.close()
    mount.unmount()
done()
