# SPDX-License-Identifier: Apache-2.0
"""The memory that a mount uses for the experts of a client depends on their number, not on the tags that it chooses."""
from e2e import *
from memory_sampler import resident_bytes
from socket_packets import AS_CODED, ASK, DROP, Client

need_fuse()
CLIENTS, LAST_TAG = 50, 16383
model, store = shared(WIDE)
mount = Mount(store, "budget=64M,nopassthrough,plan=C=100,prefetch=off,warm=off")


def clients_with(tag):
    """Clients with one expert each, and the bytes by which the daemon grew for them."""
    before, clients = resident_bytes(mount.daemon.pid)[0], [Client(mount) for _ in range(CLIENTS)]
    for client in clients:
        client.send(ASK, [(0, 1, tag)], form=AS_CODED)
        assert client.coded()[:2] == (tag, 0)
    return clients, resident_bytes(mount.daemon.pid)[0] - before


first = Client(mount)
first.send(ASK, [(0, 1, 0)], form=AS_CODED)
check("an expert is loaded", first.coded()[:2] == (0, 0))
small, small_bytes = clients_with(0)
large, large_bytes = clients_with(LAST_TAG)
check("no more for large tags", large_bytes < small_bytes + (2 << 20), (small_bytes, large_bytes))

one, tags = Client(mount), [n * 16 + 15 for n in range(8)] + [n * 2048 for n in range(8)]
for tag in tags:
    one.send(ASK, [(0, 1, tag)], form=AS_CODED)
check("each tag is answered", [one.coded()[:2] for _ in tags] == [(tag, 0) for tag in tags])
one.send(DROP, [(0, 0, tag) for tag in tags])
one.send(ASK, [(0, 1, tags[-1])], form=AS_CODED)
check("and is free when it was dropped", one.coded()[:2] == (tags[-1], 0))
for client in [first, one] + small + large:
    client.close()
check("nothing is held", mount.wait_idle(), mount.stat())
mount.unmount()
done()
