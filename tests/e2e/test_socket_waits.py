# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for memory that clients hold and do not drop: they are refused half a minute after they were sent, or after
memory was last released; what is held stays as it is. A client that holds memory is stopped, or answers nothing; a client waits for
its own drops; one drops and requests an expert all the time. Each on its own mount, all at once."""
import select

from e2e import *
from socket_packets import AS_CODED, ASK, DROP, WITH_LAYOUT, Client

sys.path.insert(0, os.path.join(ROOT, "tests/clients"))
import ctypes_client as api

need_fuse()
HELD, ASKED = 3, 5  # experts: each number fits into memory, and both do not, also without one of those held
model, store = shared(WIDE)
files = experts_without_passthrough(store)
library = api.load(program("libexpertfs.so.0", PLAIN))


def results(tags, count, error):
    return [(tags + n, error) for n in range(count)]


def refused(client, tags=10):
    return client.coded_answers(ASKED) == results(tags, ASKED, -errno.EDEADLK)


def asks(client, layer, tags, count):
    """Requests experts; whether all of them are served."""
    client.ask_coded(layer, tags, count)
    return client.coded_answers(count) == results(tags, count, 0)


def drops(client, tags, count):
    client.send(DROP, [(0, 0, tags + n) for n in range(count)])


def waits(mount, client, layer, tags, count):
    before = mount.count("coded_waits")
    client.ask_coded(layer, tags, count)
    return wait_until(lambda: mount.count("coded_waits") == before + count)


def library_asks(mount, layer):
    """Requests experts in any form by the library. Returns their errors."""
    client, request, error = ctypes.c_void_p(), ctypes.c_void_p(), api.Error()
    needs = (api.Need * ASKED)(*((n, 1) for n in range(ASKED)))
    index, status, came = ctypes.c_uint32(), ctypes.c_int(), []
    assert library.efs_client_open(mount.path.encode(), None, ctypes.byref(client), None) == 0
    assert library.efs_client_begin(client, b"", layer, needs, ASKED, api.FORM_ANY, ctypes.byref(request), ctypes.byref(error)) == 0, error.text
    while library.efs_client_wait_any(request, 1000 * PATIENCE, ctypes.byref(index), ctypes.byref(status)) == 1:
        came.append(status.value)
    library.efs_client_release(request)
    library.efs_client_close(client)
    return came


def holder_is_stopped(mount):
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        deaf = Client(mount)
        deaf.ask_coded(0, 0, HELD, WITH_LAYOUT)
        held = [deaf.coded() for _ in range(HELD)]
        before = {tag: deaf.chunks(layout, places) for tag, _, layout, places in held}
        os.write(into, b"held")
        signal.raise_signal(signal.SIGSTOP)
        same = before == {tag: deaf.chunks(layout, places) for tag, _, layout, places in held}
        drops(deaf, 0, HELD)
        os.write(into, b"same" if same else b"else")
        os._exit(0)
    check("a client holds some", os.read(out, 4) == b"held")
    os.waitpid(pid, os.WUNTRACED)
    two = Client(mount)
    try:
        check("a request of another client waits", waits(mount, two, 1, 10, ASKED))
        check("files are read meanwhile", all(open(mount / name, "rb").read() == data for name, data in files.items()))
        check("the request is refused", refused(two))
        check("the log says so", wait_until(lambda: "were refused to clients" in mount.log_text()), mount.log_text())
        two.ask_coded(1, 20, ASKED)
        check("another one, too", refused(two, 20))
        check("what fits is served", asks(two, 1, 30, 1))
        drops(two, 30, 1)
        check("the library reports it", library_asks(mount, 1) == [-errno.EDEADLK] * ASKED)
        check("it is still held", mount.count("coded_experts") == HELD, mount.stat())
        check("a request waits again", waits(mount, two, 1, 40, ASKED))
    finally:
        os.kill(pid, signal.SIGCONT)
    check("what was held has not changed", os.read(out, 4) == b"same")
    check("and goes to the request when it is dropped",
          two.coded_answers(ASKED) in (results(40, ASKED, 0), results(40, ASKED, -errno.EDEADLK)))
    drops(two, 40, ASKED)
    check("then all are served", asks(two, 1, 50, ASKED))
    drops(two, 50, ASKED)
    os.waitpid(pid, 0)
    check("nothing is held", mount.wait_idle(), mount.stat())


def stopped_with_nothing(mount):
    """A client of the library that has dropped what it used."""
    pid = os.fork()
    if pid == 0:
        client, request, needs = ctypes.c_void_p(), ctypes.c_void_p(), (api.Need * ASKED)(*((n, 1) for n in range(ASKED)))
        assert library.efs_client_open(mount.path.encode(), None, ctypes.byref(client), None) == 0
        assert library.efs_client_begin(client, b"", 0, needs, ASKED, api.FORM_CODED, ctypes.byref(request), None) == 0
        assert library.efs_client_wait(request) == 0
        library.efs_client_release(request)
        signal.raise_signal(signal.SIGSTOP)
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    check("a stopped client holds nothing", mount.wait_idle(), mount.stat())
    check("another client gets the memory at once", asks(Client(mount), 1, 10, ASKED) and "were refused" not in mount.log_text())
    os.kill(pid, signal.SIGCONT)
    os.waitpid(pid, 0)


def holder_ends(mount):
    deaf, two = Client(mount), Client(mount)
    check("one that answers nothing holds some", asks(deaf, 0, 0, HELD))
    check("a request of another client waits", waits(mount, two, 1, 10, ASKED))
    check("the request is refused", refused(two))
    deaf.close()
    check("it ends: all are served", mount.wait_idle() and asks(two, 1, 20, ASKED))


def waits_for_itself(mount):
    two, three = Client(mount), Client(mount)
    two.send(ASK, [(n, 1, n) for n in range(8)], form=AS_CODED)
    here = [two.coded()[0]]
    check("a client that requests more than fits gets some", 0 <= here[0] < 8, here)
    check("a request of another client waits", waits(mount, three, 1, 10, ASKED))
    check("that one is refused", refused(three))
    while len(here) < 8:  # as it drops them
        two.send(DROP, [(0, 0, here[-1])])
        tag, error, *_ = two.coded()
        here.append(tag if error == 0 else (tag, error))
    check("its own go on", sorted(here) == list(range(8)) and two.oversize <= set(range(8)), here)


def waits_for_another_request_of_its_own(mount):
    own = Client(mount)
    check("a client holds experts", asks(own, 0, 0, HELD + 1))
    own.ask_coded(1, 10, ASKED)
    check("what waits for its own client is refused, too", refused(own))
    check("what it holds stays", mount.count("coded_experts") == HELD + 1)


def since_the_last_release(mount):
    holder, first, second = Client(mount), Client(mount), Client(mount)
    check("a client holds experts", asks(holder, 0, 0, HELD + 1))
    first.ask_coded(1, 10, ASKED)
    time.sleep(3)
    dropped = time.monotonic()
    drops(holder, 0, 1)
    time.sleep(2)
    sent = time.monotonic()
    second.ask_coded(1, 10, ASKED)
    drops(holder, 100, 1)  # which it does not hold: it is heard, else the later request waits for another second only
    # a busy machine may be late, but not by the 30 seconds that the later one would wait for after the first
    check("a request is refused", refused(first))
    check("30 seconds after the drop", 29 < time.monotonic() - dropped < 58, time.monotonic() - dropped)
    check("a later one, too", refused(second))
    check("30 seconds after it was sent", 29 < time.monotonic() - sent < 58, time.monotonic() - sent)


def drops_release_nothing(mount):
    """An expert that another client drops and requests all the time is held by a third one, too."""
    holder, busy, waiter = Client(mount), Client(mount), Client(mount)
    check("a client holds experts", asks(holder, 0, 0, HELD))
    waiter.ask_coded(1, 10, ASKED)
    start, rounds, came = time.monotonic(), 0, False
    while not came and time.monotonic() < start + PATIENCE:
        assert asks(busy, 0, 0, 1)
        drops(busy, 0, 1)
        rounds += 1
        came = bool(select.select([waiter.socket], [], [], 0.5)[0])
    check("the request of another one is answered", came, rounds)
    check("it is refused", came and refused(waiter))


sections = (holder_is_stopped, stopped_with_nothing, holder_ends, waits_for_itself, waits_for_another_request_of_its_own,
            since_the_last_release, drops_release_nothing)
mounts = []
for section in sections:
    mounts.append(Mount(store, "budget=40M,nopassthrough,plan=C=100,prefetch=off,warm=off", name=section.__name__))
    os.setxattr(mounts[-1].path, "user.expertfs.budget", str(mounts[-1].count("fixed_bytes") + (28 << 20)).encode())
at_once(*((section, mount) for section, mount in zip(sections, mounts)))
for mount in mounts:
    mount.unmount()
done()
