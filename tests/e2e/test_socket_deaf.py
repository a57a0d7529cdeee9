# SPDX-License-Identifier: Apache-2.0
"""A client that holds memory and drops nothing, as it is stopped or does not read its packets: what it holds stays as it
is, and requests of other clients that wait for that memory are refused after half a minute. Without packets of it they
are refused at once afterwards; when it ends, or drops experts, they are served again."""
from e2e import *
from socket_packets import AS_CODED, ASK, DROP, WITH_LAYOUT, Client

sys.path.insert(0, os.path.join(ROOT, "tests/clients"))
import ctypes_client as api

need_fuse()
HELD, ASKED = 3, 5  # experts: each number fits into memory, and both do not
model, store = shared(WIDE)
files = {name: data for name, data in experts_without_passthrough(store).items()}
library = api.load(program("libexpertfs.so.0", PLAIN))
mount = Mount(store, "budget=40M,nopassthrough,plan=C=100,prefetch=off,warm=off")
os.setxattr(mount.path, "user.expertfs.budget", str(mount.count("fixed_bytes") + (28 << 20)).encode())


def refused(tags, count):
    return [(tags + n, -errno.EDEADLK) for n in range(count)]


def served(tags, count):
    return [(tags + n, 0) for n in range(count)]


def waits(client, layer, tags, count):
    before = mount.count("coded_waits")
    client.ask_coded(layer, tags, count)
    return wait_until(lambda: mount.count("coded_waits") == before + count)


def library_asks(layer):
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


print("-- one that holds experts, and is stopped")
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
    deaf.send(DROP, [(0, 0, n) for n in range(HELD)])
    os.write(into, b"same" if same else b"else")
    os._exit(0)
atexit.register(lambda: os.path.exists(f"/proc/{pid}") and os.kill(pid, signal.SIGKILL))
check("it holds some", os.read(out, 4) == b"held")
os.waitpid(pid, os.WUNTRACED)
two = Client(mount)
check("a request of another client waits", waits(two, 1, 10, ASKED))
check("files are read meanwhile", all(open(mount / name, "rb").read() == data for name, data in files.items()))
check("the request is refused", two.coded_answers(ASKED) == refused(10, ASKED))
check("the log says so", wait_until(lambda: "were refused to clients" in mount.log_text()), mount.log_text())
check("another one, too", (two.ask_coded(1, 20, ASKED), two.coded_answers(ASKED))[1] == refused(20, ASKED))
check("what fits is served", (two.ask_coded(1, 30, 1), two.coded_answers(1))[1] == served(30, 1))
two.send(DROP, [(0, 0, 30)])
check("the library reports it", library_asks(1) == [-errno.EDEADLK] * ASKED)
check("it is still held", mount.count("coded_experts") == HELD, mount.stat())
check("a request waits again", waits(two, 1, 40, ASKED))
os.kill(pid, signal.SIGCONT)
check("what was held has not changed", os.read(out, 4) == b"same")
check("and goes to the request when it is dropped", two.coded_answers(ASKED) in (served(40, ASKED), refused(40, ASKED)))
two.send(DROP, [(0, 0, 40 + n) for n in range(ASKED)])
check("then all are served", (two.ask_coded(1, 50, ASKED), two.coded_answers(ASKED))[1] == served(50, ASKED))
two.send(DROP, [(0, 0, 50 + n) for n in range(ASKED)])
os.waitpid(pid, 0)
check("nothing is held", mount.wait_idle(), mount.stat())

print("-- one of the library that has dropped what it used, and is stopped")
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
refusals = mount.log_text().count("were refused")
check("it holds nothing", mount.wait_idle(), mount.stat())
check("another client gets the memory at once", (two.ask_coded(1, 10, ASKED), two.coded_answers(ASKED))[1] == served(10, ASKED) and
      mount.log_text().count("were refused") == refusals)
two.send(DROP, [(0, 0, 10 + n) for n in range(ASKED)])
os.kill(pid, signal.SIGCONT)
os.waitpid(pid, 0)

print("-- one that answers nothing and ends")
deaf = Client(mount)
deaf.ask_coded(0, 0, HELD)
check("it holds some", deaf.coded_answers(HELD) == served(0, HELD))
check("a request of another client waits", waits(two, 1, 10, ASKED))
check("the request is refused", two.coded_answers(ASKED) == refused(10, ASKED))
deaf.close()
check("it ends: all are served", mount.wait_idle() and (two.ask_coded(1, 20, ASKED), two.coded_answers(ASKED))[1] == served(20, ASKED))
two.send(DROP, [(0, 0, 20 + n) for n in range(ASKED)])

print("-- a request that waits for its own client")
two.oversize.clear()
two.send(ASK, [(n, 1, n) for n in range(8)], form=AS_CODED)
here = [two.coded()[0]]
check("it gets some", 0 <= here[0] < 8, here)
three = Client(mount)
check("one of another client waits", waits(three, 1, 10, ASKED))
check("that one is refused", three.coded_answers(ASKED) == refused(10, ASKED))
while len(here) < 8:  # as it drops them
    two.send(DROP, [(0, 0, here[-1])])
    tag, error, *_ = two.coded()
    here.append(tag if error == 0 else (tag, error))
check("its own go on", sorted(here) == list(range(8)) and two.oversize <= set(range(8)), here)
two.close()
three.close()
mount.unmount()
done()
