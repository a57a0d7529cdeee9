# SPDX-License-Identifier: Apache-2.0
"""A request that waits for memory is answered although another client drops and requests an expert all the time: one
that is held by a third client, too, so that its drops release no memory."""
import select

from e2e import *
from socket_packets import AS_CODED, ASK, DROP, Client

need_fuse()
HELD, ASKED = 3, 5  # experts: each number fits into memory, and both do not
model, store = shared(WIDE)
mount = Mount(store, "budget=40M,nopassthrough,plan=C=100,prefetch=off,warm=off")
os.setxattr(mount.path, "user.expertfs.budget", str(mount.count("fixed_bytes") + (28 << 20)).encode())


def ask(client, layer, tags, count):
    client.send(ASK, [(n, 1, tags + n) for n in range(count)], layer=layer, form=AS_CODED)


def answers(client, count):
    client.socket.settimeout(120)
    return sorted(client.coded()[:2] for _ in range(count))


holder, busy, waiter = Client(mount), Client(mount), Client(mount)
ask(holder, 0, 0, HELD)
check("a client holds experts", answers(holder, HELD) == [(n, 0) for n in range(HELD)])
ask(waiter, 1, 10, ASKED)
start, rounds, came = time.monotonic(), 0, False
while not came and time.monotonic() < start + 80:
    ask(busy, 0, 0, 1)
    assert answers(busy, 1) == [(0, 0)]
    busy.send(DROP, [(0, 0, 0)])
    rounds += 1
    came = bool(select.select([waiter.socket], [], [], 0.5)[0])
check("the request of another one is answered", came, rounds)
check("it is refused", came and answers(waiter, ASKED) == [(10 + n, -errno.EDEADLK) for n in range(ASKED)])
for client in (holder, busy, waiter):
    client.close()
mount.unmount()
done()
