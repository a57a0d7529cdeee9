# SPDX-License-Identifier: Apache-2.0
"""Coded experts over the socket, by hand: chunks as in the store, in windows that clients cannot write to; their share
of the budget; clients that request too much or are killed; and segments that are freed while clients still map them."""
import random
import select
import threading

from e2e import *
from socket_packets import ANY, AS_CODED, ASK, CANCEL, DROP, FULL, MORE, REFRESH, UNMAPPED, WITH_LAYOUT, Client

sys.path.insert(0, os.path.join(ROOT, "tests/clients"))
import ctypes_client as api

need_fuse()
EXPERTS = 8
model, store = shared(WIDE)


def coded(client, numbers, layer=0, form=AS_CODED, tags=100, layout=True):
    """Requests these experts: {number: (layout, places)}, or the error of one that failed."""
    client.send(ASK, [(n, 1, tags + n | (WITH_LAYOUT if layout else 0)) for n in numbers], layer=layer, form=form)
    answers = [client.coded() for _ in numbers]
    return {tag - tags: error or (layout, places) for tag, error, layout, places in answers}


def drop(client, numbers, tags=100):
    client.send(DROP, [(0, 0, tags + n) for n in numbers])


def numbers_of(mount, *names):
    return [mount.count(name) for name in names]


files = {(layer, n): data for layer in (0, 1) for n, data in enumerate(
    data for name, data in sorted(experts_without_passthrough(store).items()) if f"L{layer:02}" in name)}
with open(store, "rb") as file:
    stored = file.read()

mount = Mount(store, "budget=128M")

print("-- asks and answers")
one = Client(mount)
got = coded(one, range(4))
first = {}
for n, (layout, places) in got.items():
    tensors, header = one.chunks(layout, places)
    check(f"expert {n}: the header of its file", files[0, n].startswith(header) and len(header) % 4096 == 0)
    check(f"expert {n}: three tensors, each chunk as the store has it", len(tensors) == 3 and all(
        chunk in stored for tensor in tensors for _, _, e, sm in tensor for chunk in (e, sm)))
    check(f"expert {n}: all of its elements", 2 * sum(row[0] for tensor in tensors for row in tensor) == len(files[0, n]) - len(header))
    first[n] = layout, tensors
check("they are counted", wait_until(lambda: numbers_of(
    mount, "coded", "coded_m", "fuse_handouts_coded", "coded_experts", "leased_experts") == [4, 4, 4, 4, 0]), mount.stat())
held = mount.count("coded_bytes")
again = coded(one, range(4), tags=200, layout=False)
check("the same experts again: the same places, and no more memory", mount.count("coded_bytes") == held and all(
    layout == b"" and places == got[n][1] for n, (layout, places) in again.items()) and mount.count("coded_c") == 4, mount.stat())
two = Client(mount)
theirs = coded(two, range(4))
check("another client: the same bytes in the same memory", mount.count("coded_bytes") == held and all(
    places == got[n][1] and layout == first[n][0] and two.chunks(layout, places)[0] == first[n][1] for n, (layout, places) in theirs.items()))
drop(one, range(4))
drop(one, range(4), tags=200)
drop(two, range(4))
check("nothing is held", wait_until(lambda: numbers_of(mount, "coded_experts", "coded_bytes") == [0, 0]), mount.stat())
check("an expert that is not there", coded(one, [99])[99] == -errno.ENOENT)
one.send(UNMAPPED, [(0, 0, number) for number in one.windows])
known = set(one.windows)
for window in list(one.windows):
    one.windows.pop(window).close()
    os.close(one.fds.pop(window))
check("windows that were unmapped come again", one.chunks(*coded(one, [2])[2])[0] == first[2][1] and set(one.windows) <= known)
drop(one, [2])

print("-- as the mount likes")
one.send(ASK, [(5, 1, 1)])
window = one.answer()
one.send(ASK, [(5, 1, 2 | WITH_LAYOUT)], form=ANY)
check("what is full comes full", window[:2] == (1, 0) and one.file(one.answer()) == files[0, 5])
check("else it comes coded", one.chunks(*coded(one, [3], form=ANY, tags=0)[3])[0] == first[3][1])
one.send(DROP, [(0, 0, tag) for tag in (1, 2, 3)])
check("both are let go of", mount.wait_idle())

print("-- killed, stopped, greedy")
out, into = os.pipe()
pid = os.fork()
if pid == 0:
    child = Client(mount)
    coded(child, range(EXPERTS), layer=1)
    os.write(into, b"x")
    signal.pause()
os.read(out, 1)
check("a client holds a layer", mount.count("coded_experts") == EXPERTS, mount.stat())
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
check("killed: what it held comes back", wait_until(lambda: numbers_of(mount, "coded_experts", "coded_bytes", "inflight") == [0, 0, 0]), mount.stat())
pid = os.fork()
if pid == 0:
    child = Client(mount)
    for turn in range(400):  # sends requests and never reads
        try:
            child.socket.settimeout(1)
            child.send(ASK, [(n, 1, turn * EXPERTS + n | WITH_LAYOUT) for n in range(EXPERTS)], form=AS_CODED)
        except (BlockingIOError, TimeoutError, ConnectionError):
            break
    os.write(into, b"x")
    signal.pause()
os.read(out, 1)
check("one that does not listen holds up nobody", one.chunks(*coded(one, [1])[1])[0] == first[1][1])
drop(one, [1])
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
check("and leaves nothing", mount.wait_idle(), mount.stat())
late = Client(mount)
for turn in range(60):  # more than the socket holds: the rest waits until it is read
    late.send(ASK, [(n, 1, turn * EXPERTS + n | WITH_LAYOUT) for n in range(EXPERTS)], form=AS_CODED)
taken = [late.coded() for _ in range(60 * EXPERTS)]
check("late answers come whole, each once", sorted(tag for tag, *_ in taken) == list(range(60 * EXPERTS)) and all(
    error == 0 and late.chunks(layout, places)[0] == first[tag % EXPERTS][1] for tag, error, layout, places in taken if tag % EXPERTS < 4))
late.close()
check("a closed socket lets go", wait_until(lambda: mount.count("coded_experts") == 0), mount.stat())

print("-- within the budget")
mount.unmount()
one.close()
two.close()
mount = Mount(store, "budget=40M")
available = mount.count("budget_bytes") - mount.count("fixed_bytes")
one, two = Client(mount), Client(mount)
asked = [(layer, n) for layer in (0, 1) for n in range(EXPERTS)]
for layer in (0, 1):
    one.send(ASK, [(n, 1, layer * EXPERTS + n | WITH_LAYOUT) for n in range(EXPERTS)], layer=layer, form=AS_CODED)
two.send(ASK, [(n, 1, n | WITH_LAYOUT) for n in range(EXPERTS)], layer=1, form=AS_CODED)
most, right = 0, True
for _ in range(2 * EXPERTS):  # each one is released after its check
    tag, error, layout, places = one.coded()
    most = max(most, mount.count("coded_bytes"))
    right = right and error == 0 and files[divmod(tag, EXPERTS)].startswith(one.chunks(layout, places)[1])
    one.send(DROP, [(0, 0, tag)])
for _ in range(EXPERTS):
    tag, error, layout, places = two.coded()
    right = right and error == 0 and two.chunks(layout, places)[1] == files[1, tag][:4096]
    two.send(DROP, [(0, 0, tag)])
check("two clients that ask for more than there is room for get it one after the other", right)
check("never more than the budget", most <= available, (most, available))
mount.check_budget()
check("nothing is held", wait_until(lambda: numbers_of(mount, "coded_experts", "inflight", "coded_errors") == [0, 0, 0]), mount.stat())


def take_what_fits():
    """The tags of the experts of a request that fit: its client has been told that the rest does not."""
    here = []

    def all_came():
        if one.rest or select.select([one.socket], [], [], 0)[0]:
            answer = one.coded(oversize=True)
            here.extend(answer[:1] if answer else ())
            return False
        return one.oversize and mount.count("coded_experts") == len(here)  # none is on the way
    wait_until(all_came)
    return here


print("-- waiting for all")
one.oversize.clear()
two.oversize.clear()
one.send(ASK, [(n, 1, n) for n in range(EXPERTS)], form=AS_CODED)
two.send(ASK, [(0, 1, 9)], layer=1, form=AS_CODED)
here = take_what_fits()
check("some of a request came, and not all of it", 0 < len(here) < EXPERTS, here)
check("its client is told so, once", len(one.oversize) == 1 and one.oversize <= set(range(EXPERTS)) - set(here), one.oversize)
one.send(DROP, [(0, 0, here.pop())])
check("a request that holds nothing comes first", two.coded()[:2] == (9, 0) and not two.oversize, two.oversize)
two.send(DROP, [(0, 0, 9)])
here.append(one.coded()[0])
came = len(here) + 1  # and the one that was dropped
while came < EXPERTS:
    one.send(DROP, [(0, 0, here.pop())])
    here.append(one.coded()[0])
    came += 1
one.send(DROP, [(0, 0, tag) for tag in here])
check("nothing is held", mount.wait_idle(), mount.stat())


print("-- cancelled, dropped in parts, and fitting again")
one.oversize.clear()

one.send(ASK, [(n, 1, n) for n in range(EXPERTS)], form=AS_CODED)
here = take_what_fits()
waiting = [tag for tag in range(EXPERTS) if tag not in here]
check("the last one is told of", one.oversize == {waiting[-1]}, one.oversize)
one.oversize.clear()
one.send(REFRESH, [(0, 0, tag) for tag in (here[0], waiting[-1])])
check("and again when asked, no other", one.coded(oversize=True) is None and one.oversize == {waiting[-1]}, one.oversize)
one.send(CANCEL, [(0, 0, tag) for tag in waiting[:-1]])
check("what waits can be cancelled", sorted(one.coded()[:2] for _ in waiting[:-1]) == [(tag, -errno.ECANCELED) for tag in waiting[:-1]])
one.send(DROP, [(0, 0, here[0])])
check("the one that is left comes", one.coded()[:2] == (waiting[-1], 0))
check("and fits", not one.oversize, one.oversize)
one.send(DROP, [(0, 0, tag) for tag in here[1:] + waiting[-1:]])
one.send(ASK, [(n, 1, n) for n in range(EXPERTS - 1)], form=AS_CODED | MORE)
one.send(DROP, [(0, 0, EXPERTS - 2)])
one.send(ASK, [(EXPERTS - 1, 1, EXPERTS - 1)], form=AS_CODED)
here = take_what_fits()
check("a tag dropped between the parts of a request is not told of, another is", one.oversize == {EXPERTS - 1}, (here, one.oversize))
came = len(here)
while came < EXPERTS - 1:
    one.send(DROP, [(0, 0, here.pop())])
    here.append(one.coded()[0])
    came += 1
one.send(DROP, [(0, 0, tag) for tag in here])
check("nothing is held", mount.wait_idle(), mount.stat())


def library_waits(form):
    """Waits with the library for a whole layer, then keeps its experts until a wait for the next one fails, then drops
    each: (results of both waits, whether some were kept, experts received)."""
    client, request, error = ctypes.c_void_p(), ctypes.c_void_p(), api.Error()
    needs, index, status, came = (api.Need * EXPERTS)(*((n, 1) for n in range(EXPERTS))), ctypes.c_uint32(), ctypes.c_int(), 0
    if library.efs_client_open(mount.path.encode(), None, ctypes.byref(client), ctypes.byref(error)) or library.efs_client_begin(
            client, b"", 1, needs, EXPERTS, form, ctypes.byref(request), ctypes.byref(error)):
        return (error.text.decode(),)
    rc, kept = library.efs_client_wait(request), []
    while (kept_rc := library.efs_client_wait_any(request, -1, ctypes.byref(index), ctypes.byref(status))) == 1:
        came += status.value == 0
        kept.append(index.value)
    for one in kept:
        library.efs_client_drop(request, one)
    while library.efs_client_wait_any(request, -1, ctypes.byref(index), ctypes.byref(status)) == 1:
        came += status.value == 0
        library.efs_client_drop(request, index)
    library.efs_client_release(request)
    library.efs_client_close(client)
    return rc, kept_rc, 0 < len(kept) < EXPERTS, came


library = api.load(program("libexpertfs.so.0", PLAIN))
for form in (api.FORM_FULL, api.FORM_CODED):
    said = library_waits(form)
    check(f"form {form}: the library gets all of them, one by one, and does not wait for its own drops",
          said == (-errno.EDEADLK, -errno.EDEADLK, True, EXPERTS), said)
check("nothing is held", mount.wait_idle(), mount.stat())

print("-- threads that request the same experts, with memory for few of them")
wrong, rounds = [], 60


def request_on_and_on(client, seed):
    """Requests 6 experts, waits for all, and releases them; takes them one by one where they do not fit at once."""
    chosen, index, status = random.Random(seed), ctypes.c_uint32(), ctypes.c_int()
    for _ in range(rounds):
        needs = (api.Need * 6)(*((n, 1) for n in chosen.sample(range(EXPERTS), 6)))
        request, error, came = ctypes.c_void_p(), api.Error(), 0
        if library.efs_client_begin(client, b"", chosen.randrange(2), needs, 6, api.FORM_CODED, ctypes.byref(request), ctypes.byref(error)):
            wrong.append(error.text)
            return
        rc = library.efs_client_wait(request)
        if rc not in (0, -errno.EDEADLK):
            wrong.append(rc)
        while library.efs_client_wait_any(request, 1000 * PATIENCE, ctypes.byref(index), ctypes.byref(status)) == 1:
            came += status.value == 0
            library.efs_client_drop(request, index)
        if came != 6:
            wrong.append(came)
        library.efs_client_release(request)


for one_client in (True, False):
    clients = [ctypes.c_void_p() for _ in range(1 if one_client else 3)]
    for client in clients:
        assert library.efs_client_open(mount.path.encode(), None, ctypes.byref(client), None) == 0
    threads = [threading.Thread(target=request_on_and_on, args=(clients[n % len(clients)], n)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    check(f"in {len(clients)} clients: all of them come", not wrong and not any(thread.is_alive() for thread in threads), wrong)
    for client in clients:
        library.efs_client_close(client)
check("nothing is held", mount.wait_idle(), mount.stat())

print("-- a client that drops nothing, and waits for its own drops")
stopped, before = Client(mount), mount.count("coded_waits")
for layer in (0, 1):
    for n in range(EXPERTS):
        stopped.send(ASK, [(n, 1, layer * EXPERTS + n)], layer=layer, form=AS_CODED)
check("it waits", wait_until(lambda: mount.count("coded_waits") > before and mount.count("coded_experts") > 0), mount.stat())
two.send(ASK, [(1, 1, 1)], layer=1, form=FULL)
held = []
while len(held) < 2 * EXPERTS:  # one after the other, as it drops them
    held.append(stopped.coded()[:2])
    stopped.send(DROP, [(0, 0, held[-1][0])])
check("it gets all when it drops them", sorted(held) == [(tag, 0) for tag in range(2 * EXPERTS)], held)
check("a full expert that another one waits for comes at the latest when all are dropped", two.answer()[1] == 0, mount.stat())
two.send(DROP, [(0, 0, 1)])
stopped.close()
check("nothing is held", mount.wait_idle(), mount.stat())

print("-- clients that request a lot, drop some of it, and die")
one.close()
two.close()
check("nothing is requested", mount.wait_idle(), mount.stat())
before = mount.stat()
for form in (FULL, AS_CODED):
    hostile = [Client(mount) for _ in range(8)]
    for client in hostile:
        client.socket.setblocking(False)
        for tag in range(0, 8000, EXPERTS):
            try:
                client.send(ASK, [(n, 1, tag + n) for n in range(EXPERTS)], layer=tag // EXPERTS % 2, form=form)
                if tag % 3 == 0:
                    client.send(DROP, [(0, 0, tag + n) for n in range(EXPERTS)])
            except BlockingIOError:
                time.sleep(0.001)
            except ConnectionError:
                break  # it left too many answers unread
    for client in hostile:
        client.close()
    one = Client(mount)
    one.send(ASK, [(3, 1, 7)], form=AS_CODED)
    check("another client gets its expert", one.coded()[:2] == (7, 0))
    one.close()
    check("nothing is left of them", mount.wait_idle(), mount.stat())
read = int(mount.stat()["disk_reads"]) - int(before["disk_reads"])
check("what they had queued was not read", read < 4000, read)  # of 128,000 experts that they requested
one, two = Client(mount), Client(mount)

print("-- segments that leave")
one.close()
mount.unmount()
mount = Mount(store, "budget=256M")
one = Client(mount)
got = coded(one, range(EXPERTS), layer=0)
got1 = coded(one, range(EXPERTS), layer=1, tags=200)
seen = {n: one.chunks(*got[n])[0] for n in got}
drop(one, range(EXPERTS), tags=200)
os.setxattr(mount.path, "user.expertfs.budget", b"40M")
check("what is held stays as it is when the budget shrinks", all(one.chunks(*got[n])[0] == seen[n] for n in got))
drop(one, range(EXPERTS))
check("then memory goes, also from those who keep it mapped", wait_until(lambda: mount.count("chunk_pool_bytes") <= 40 << 20), mount.stat())
emptied = [number for number, window in one.windows.items() if not any(window[at:at + 4096].strip(b"\0") for at in range(0, len(window), 1 << 20))]
check("windows that went read as zeros", emptied, list(one.windows))
check("and what comes is right, in other windows", all(one.chunks(*found)[0] == seen[n] and not {w for p in found[1] for w in p[:2]} & set(emptied)
                                                       for n, found in coded(one, [0, 7]).items()))

print("-- the mount goes while a client holds")
tensors = {n: found for n, found in coded(one, [3], tags=300).items()}
before = one.chunks(*tensors[3])[0]
mount.unmount()
check("its bytes stay", one.chunks(*tensors[3])[0] == before == seen[3])
one.close()
two.close()
done()
