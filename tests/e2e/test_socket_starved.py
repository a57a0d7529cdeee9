# SPDX-License-Identifier: Apache-2.0
"""A request that waits for memory is answered although another client drops and requests an expert all the time: one
that is held by a third client, too, so that its drops release no memory."""
import select

from e2e import *
from socket_packets import DROP, Client

need_fuse()
HELD, ASKED = 3, 5  # experts: each number fits into memory, and both do not
model, store = shared(WIDE)
mount = Mount(store, "budget=40M,nopassthrough,plan=C=100,prefetch=off,warm=off")
os.setxattr(mount.path, "user.expertfs.budget", str(mount.count("fixed_bytes") + (28 << 20)).encode())


holder, busy, waiter = Client(mount), Client(mount), Client(mount)
holder.ask_coded(0, 0, HELD)
check("a client holds experts", holder.coded_answers(HELD) == [(n, 0) for n in range(HELD)])
waiter.ask_coded(1, 10, ASKED)
start, rounds, came = time.monotonic(), 0, False
while not came and time.monotonic() < start + PATIENCE:
    busy.ask_coded(0, 0, 1)
    assert busy.coded_answers(1) == [(0, 0)]
    busy.send(DROP, [(0, 0, 0)])
    rounds += 1
    came = bool(select.select([waiter.socket], [], [], 0.5)[0])
check("the request of another one is answered", came, rounds)
check("it is refused", came and waiter.coded_answers(ASKED) == [(10 + n, -errno.EDEADLK) for n in range(ASKED)])
for client in (holder, busy, waiter):
    client.close()
mount.unmount()
done()
