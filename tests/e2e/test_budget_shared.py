# SPDX-License-Identifier: Apache-2.0
"""Daemons whose budgets do not fit in their memory cgroup together, though each one fits alone: readers of both get the
correct bytes, no process is killed, the effective budgets fall, and rise again when one daemon ends. And a budget near
the limit with coded experts held by clients, which cannot be evicted, while other processes of the group take
memory."""
import select

from e2e import *
from socket_packets import AS_CODED, ASK, WITH_LAYOUT, Client

need_fuse()
group = need_cgroup(256 << 20)
LAYERS, EXPERTS = 4, 16
store = make_store(make_model("model", "-F", "qwen3-moe", "-d", "1024", "-i", "1024", "-e", str(EXPERTS), "-l", str(LAYERS),
                              "--vocab", "1000"))
want = experts_without_passthrough(store)
with open(store, "rb") as file:
    stored = file.read()


class Readers:
    """Threads outside of the group that read experts until they are stopped."""

    def __init__(self, mount, seed, count=2):
        self.mount, self.stop, self.wrong, self.read = mount, threading.Event(), [], 0
        self.threads = [threading.Thread(target=self.run, daemon=True, args=(random.Random(seed * 10 + i),)) for i in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, generator):
        while not self.stop.is_set():
            name = generator.choice(sorted(want))
            try:
                with open(self.mount / name, "rb", buffering=0) as file:
                    got = file.read() if generator.random() < 0.7 else os.pread(file.fileno(), 3 << 20, 1 << 20)
            except OSError as error:
                self.wrong.append((name, str(error)))
                break
            if got not in (want[name], want[name][1 << 20:4 << 20]):
                self.wrong.append(name)
                break
            self.read += len(got)

    def end(self, what):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        return check(f"{what}: the right bytes, {self.read >> 20} MiB of them", not self.wrong and self.read, self.wrong)


def had(mount):
    return mount.count("effective_budget_bytes")


def alive(what, *mounts):
    check(f"{what}: nobody was killed", group.out_of_memory() == 0 and all(m.daemon.poll() is None for m in mounts),
          [m.log_text()[-500:] for m in mounts])


for options in ("plan=C=100", ""):
    print(f"-- two of 160 MiB in 256 {options}")
    one = Mount(store, f"budget=160M{options and ',' + options}", prefix=group.prefix)
    readers = [Readers(one, 1)]
    check("one alone has its budget", wait_until(lambda: one.used_bytes() > 96 << 20) and had(one) == 160 << 20, one.stat())
    two = Mount(store, f"budget=160M{options and ',' + options}", prefix=group.prefix)
    readers.append(Readers(two, 2))
    # both count what is free
    check("both: less can be had", wait_until(lambda: had(one) + had(two) < 288 << 20), (had(one), had(two)))
    check("and no more is held", wait_until(lambda: one.used_bytes() <= had(one) and two.used_bytes() <= had(two)), (one.used_bytes(), two.used_bytes()))
    least = [reader.read + (512 << 20) for reader in readers]
    wait_until(lambda: all(reader.read > enough or reader.wrong for reader, enough in zip(readers, least)))
    alive("both", one, two)
    note(f"of 160 MiB {had(one) >> 20} and {had(two) >> 20} can be had, {one.used_bytes() >> 20} and {two.used_bytes() >> 20} are held")
    readers[1].end("the second's readers")
    readers[0].end("the first's readers")
    readers = [Readers(two, 3)]
    one.unmount("the first ends")
    check("it ends: the second has its budget again", wait_until(lambda: had(two) > 136 << 20), had(two))
    readers[0].end("its readers")
    alive("one again", two)
    two.unmount()

print("-- coded experts are held")
group.limit(160 << 20)
mount = Mount(store, "budget=150M", prefix=group.prefix)
clients, got = [Client(mount), Client(mount)], []
readers = [Readers(mount, 4)]
for layer, client in enumerate(clients):
    client.send(ASK, [(n, 1, n | WITH_LAYOUT) for n in range(EXPERTS)], layer=layer, form=AS_CODED)
while wait_until(lambda: select.select([c.socket for c in clients], [], [], 0)[0], 2 if len(got) > 4 else PATIENCE):
    for client in clients:
        if select.select([client.socket], [], [], 0)[0]:
            answer = client.coded(oversize=True)
            if not answer:
                continue
            tag, error, layout, places = answer
            if check(f"expert {tag} comes", error == 0, error):
                got.append((client, layout, places, client.chunks(layout, places)[0]))
check("some are held, as the store has them", len(got) > 4 and all(
    e in stored and sm in stored for *_, tensors in got for tensor in tensors for _, _, e, sm in tensor), len(got))
before = had(mount)
note(f"{mount.count('coded_experts')} held, {mount.count('coded_bytes') >> 20} MiB; of 150 MiB {before >> 20} can be had")
other = Hog(group)
for mib in range(8, 72, 8):
    check(f"another takes {mib} MiB", other.allocate())
    # the kernel kills a process if the next 8 MiB are allocated before the daemon has freed memory
    check("less can be had", wait_until(lambda: group.free_bytes() >= 12 << 20) and wait_until(lambda: had(mount) < before - (mib - 24 << 20)), (before, had(mount)))
alive("what is held stays", mount)
check("and is what it was", all(client.chunks(layout, places)[0] == tensors for client, layout, places, tensors in got))
check("no more is held than can be had, but for segments that clients hold",
      wait_until(lambda: mount.used_bytes() <= had(mount) + (16 << 20)), (mount.used_bytes(), had(mount)))
other.end()
for client in clients:
    client.close()
check("they drop all, the other ends: all is there again", wait_until(
    lambda: mount.count("coded_experts") == 0 and had(mount) >= before - (24 << 20)), (before, had(mount)))
readers[0].end("readers beside them")
alive("at the end", mount)
mount.unmount()
done()
