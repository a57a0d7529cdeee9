# SPDX-License-Identifier: Apache-2.0
"""A request that waits for memory of other clients is refused 30 seconds after it was sent, or after memory was last
released: also if another one waited before, and if its own client holds the memory by another request."""
from e2e import *
from socket_packets import DROP, Client

need_fuse()
HELD, ASKED = 4, 5  # experts: each number fits into memory; both do not, also without one of those held
model, store = shared(WIDE)
mount = Mount(store, "budget=40M,nopassthrough,plan=C=100,prefetch=off,warm=off")
os.setxattr(mount.path, "user.expertfs.budget", str(mount.count("fixed_bytes") + (28 << 20)).encode())


def refused(client, tags=0):
    return client.coded_answers(ASKED) == [(tags + n, -errno.EDEADLK) for n in range(ASKED)]


alone = Mount(store, "budget=40M,nopassthrough,plan=C=100,prefetch=off,warm=off", name="alone")
os.setxattr(alone.path, "user.expertfs.budget", str(alone.count("fixed_bytes") + (28 << 20)).encode())
own = Client(alone)
own.ask_coded(0, 0, HELD)
check("a client holds experts of a mount of its own", own.coded_answers(HELD) == [(n, 0) for n in range(HELD)])
own.ask_coded(1, 10, ASKED)

holder, first, second = Client(mount), Client(mount), Client(mount)
holder.ask_coded(0, 0, HELD)
check("a client holds experts", holder.coded_answers(HELD) == [(n, 0) for n in range(HELD)])
first.ask_coded(1, 0, ASKED)
time.sleep(12)
holder.send(DROP, [(0, 0, 0)])
dropped = time.monotonic()
time.sleep(2)
second.ask_coded(1, 0, ASKED)
# a busy machine may be late, but not by the 30 seconds that the later one would wait for after the first
check("a request is refused", refused(first))
check("30 seconds after the drop", 29 < time.monotonic() - dropped < 58, time.monotonic() - dropped)
check("a later one, too", refused(second))
check("30 seconds after it was sent", 31 < time.monotonic() - dropped < 58, time.monotonic() - dropped)
check("what waits for its own client is refused, too", refused(own, 10))
check("what it holds stays", alone.count("coded_experts") == HELD)
for client in (holder, first, second, own):
    client.close()
mount.unmount()
alone.unmount()
done()
