# SPDX-License-Identifier: Apache-2.0
"""Requests of clients that wait for memory: when they are cancelled or dropped, or their client ends, they leave the
queue at once, and nothing is read for them, whoever else holds memory."""
from e2e import *
from socket_packets import AS_CODED, ASK, CANCEL, DROP, Client

need_fuse()
HELD, ASKED = 3, 5  # experts: each number fits into memory, and three next to those held do not
model, store = shared(WIDE)
mount = Mount(store, "budget=40M,plan=C=100,prefetch=off,warm=off")
need_passthrough(mount)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # a child waits for it
os.setxattr(mount.path, "user.expertfs.budget", str(mount.count("fixed_bytes") + (28 << 20)).encode())


def ask(client, layer, tags, count):
    client.send(ASK, [(n, 1, tags + n) for n in range(count)], layer=layer, form=AS_CODED)


def get(client, tags, count):
    return sorted(client.coded()[:2] for _ in range(count)) == [(tags + n, 0) for n in range(count)]


def errors():
    return mount.count("coded_errors")


def work():
    """What was done for coded requests: experts that were loaded or found, and reads of the store."""
    return [mount.count(name) for name in ("coded_m", "coded_c", "disk_reads")]


def end_in(what, experts, before):
    check(f"{what}: leaves the queue at once", wait_until(lambda: errors() == before + experts), (before, errors()))


print("-- cancelled, dropped")
one, two = Client(mount), Client(mount)
ask(one, 0, 0, HELD)
check("a client holds some", get(one, 0, HELD))
before, done_before, waits = errors(), work(), mount.count("coded_waits")
ask(two, 1, 10, ASKED)
check("a request of another waits for memory", wait_until(lambda: mount.count("coded_waits") == waits + ASKED), mount.stat())
two.send(CANCEL, [(0, 0, 10)])
check("CANCEL is answered", two.coded()[:2] == (10, -errno.ECANCELED))
end_in("an expert that was cancelled", 1, before)
two.send(DROP, [(0, 0, 11)])
end_in("one that was dropped", 2, before)
two.send(CANCEL, [(0, 0, 10 + n) for n in range(2, ASKED)])
end_in("the rest", ASKED, before)
check("it is answered, too", sorted(two.coded()[:2] for _ in range(2, ASKED)) == [(10 + n, -errno.ECANCELED) for n in range(2, ASKED)])
one.send(DROP, [(0, 0, n) for n in range(HELD)])
check("nothing is held", mount.wait_idle(), mount.stat())
check("nothing was read for them when the memory was there", work() == done_before, (done_before, work()))
ask(two, 1, 10, ASKED)
check("their tags are free", get(two, 10, ASKED))
one.close()
two.close()
check("nothing is held", mount.wait_idle(), mount.stat())

print("-- dropped at once with what is held")
one = Client(mount)
ask(one, 0, 0, HELD)
check("a client holds some", get(one, 0, HELD))
before, done_before, waits = errors(), work(), mount.count("coded_waits")
ask(one, 1, 10, ASKED)
check("and waits for others", wait_until(lambda: mount.count("coded_waits") == waits + ASKED), mount.stat())
one.send(DROP, [(0, 0, n) for n in range(HELD)] + [(0, 0, 10 + n) for n in range(ASKED)])
end_in("what it waited for", ASKED, before)
check("nothing is held", mount.wait_idle(), mount.stat())
check("and nothing was read for it", work() == done_before, (done_before, work()))

print("-- a client that ends while it holds some and waits for others")
for killed in (False, True, False, True):
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(600)  # ends with the test, also where that fails
        child = Client(mount)
        ask(child, 0, 0, HELD)
        os.write(into, b"y" if get(child, 0, HELD) else b"n")
        signal.sigwait([signal.SIGUSR1])
        ask(child, 1, 10, ASKED)
        signal.sigwait([signal.SIGUSR1])
        child.socket.close()
        os._exit(0)
    check("it holds some", os.read(out, 1) == b"y")
    done_before, before, waits = work(), errors(), mount.count("coded_waits")
    os.kill(pid, signal.SIGUSR1)
    check("and waits for others", wait_until(lambda: mount.count("coded_waits") == waits + ASKED), mount.stat())
    os.kill(pid, signal.SIGKILL if killed else signal.SIGUSR1)
    os.waitpid(pid, 0)
    end_in("killed: what it waited for" if killed else "closed: what it waited for", ASKED, before)
    check("nothing is held", mount.wait_idle(), mount.stat())
    check("and nothing was read for it", work() == done_before, (done_before, work()))
one.close()
mount.unmount()
done()
