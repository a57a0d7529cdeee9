# SPDX-License-Identifier: Apache-2.0
"""The socket that passes experts without files: its packets by hand, valid and invalid, and the state left by clients
that die, mounts that end, and readers that open the same experts as files."""
from e2e import *
from socket_packets import AS_CODED, ASK, CANCEL, DROP, FITS, FULL, MORE, OVERSIZE, UNMAPPED, WITH_LAYOUT, VERSION, Client, address_of, device, leave, packet

need_fuse()
model, store = shared()


class Socket(Client):
    """Tries to write to each window, and keeps no descriptor."""

    def map_window(self, window, fd, window_bytes):
        try:
            mmap.mmap(fd, window_bytes, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            check("a window cannot be written", False)
        except PermissionError:
            pass
        self.windows[window] = mmap.mmap(fd, window_bytes, prot=mmap.PROT_READ)
        os.close(fd)


def expert(mount, layer, number):
    return os.path.join(mount.path, f"experts/L{layer:02}/E{number:03}.safetensors")


print("-- without passthrough")
plain = Mount(store, "budget=128M,nopassthrough")
files = {(layer, number): open(expert(plain, layer, number), "rb").read() for layer in (0, 1) for number in range(8)}
one = Socket(plain)
one.send(ASK, [(n, 1, n) for n in range(8)])
check("the socket serves the same", all(one.file(answer) == files[0, answer[0]] for answer in (one.answer() for _ in range(8))))
one.windows.clear()
one.socket.close()
check("all are given back", wait_until(lambda: plain.count("leased_experts") == 0))
plain.unmount()

mount = Mount(store, "budget=128M")
need_passthrough(mount)

print("-- asks and answers")
one = Socket(mount)
one.send(ASK, [(n, 1, 100 + n) for n in range(4)])
answers = sorted(one.answer() for _ in range(4))
check("an answer for each tag", [a[:2] for a in answers] == [(100 + n, 0) for n in range(4)], answers)
check("the files, byte for byte", all(one.file(a) == files[0, a[0] - 100] for a in answers))
check("four are held", mount.count("leased_experts") == 4, mount.count("leased_experts"))
one.send(ASK, [(1, 1, 7)])
again = one.answer()
check("the same expert twice is the same window", again[2] == answers[1][2] and one.file(again) == files[0, 1], again)
one.send(DROP, [(0, 0, tag) for tag in (100, 101, 102, 103)])
check("one is still held", wait_until(lambda: mount.count("leased_experts") == 1))
one.send(ASK, [(99, 1, 3)])
check("an expert that is not there", one.answer()[:2] == (3, -errno.ENOENT))
one.send(ASK, [(1, 1, 3)], layer=9)
check("a layer that is not there", one.answer()[:2] == (3, -errno.ENOENT))
one.send(ASK, [(1, 1, 3)], stack=b"encoder")
check("a stack that is not there", one.answer()[:2] == (3, -errno.ENOENT))
one.send(UNMAPPED, [(0, 0, again[2])])
one.windows.pop(again[2]).close()
one.send(ASK, [(1, 1, 8)])
check("a window that was forgotten comes again", one.file(one.answer()) == files[0, 1])

one.send(DROP, [(0, 0, tag) for tag in (7, 8)])
print("-- wrong ones")
wrong = {
    "another version": packet(ASK, [(1, 1, 1)], version=1), "an unknown kind": packet(9, [(1, 1, 1)]),
    "fewer items than said": packet(ASK, [(1, 1, 1)], count=2), "more items than said": packet(ASK, [(1, 1, 1)] * 2, count=1),
    "too many items": packet(ASK, [(1, 1, 1)] * 64, count=65), "no item": packet(ASK, []), "nothing": b"\0",
    "half a head": packet(ASK, [])[:20], "a stack without end": packet(ASK, [(1, 1, 1)], stack=b"x" * 32),
    "a tag twice": packet(ASK, [(1, 1, 1), (2, 1, 1)]), "a tag out of range": packet(ASK, [(1, 1, 16384)]),
    "another length than said": packet(ASK, [(1, 1, 1)], length=63),
    "a kind of the mount's": packet(5, [(1, 1, 1)]), "a long packet": packet(ASK, [(1, 1, 1)] * 200, count=64),
    "another kind of the mount's": packet(10, [(1, 1, 1)]), "a third one": packet(OVERSIZE, []), "a fourth one": packet(FITS, [(1, 1, 1)]),
    "a kind of earlier versions": packet(4, []), "cancelling a tag out of range": packet(CANCEL, [(0, 0, 16384)]),
    "a form that there is not": packet(ASK, [(1, 1, 1)], form=3),
    "a tag twice, with and without layout": packet(ASK, [(1, 1, 1), (2, 1, 1 | WITH_LAYOUT)], form=AS_CODED),
    "a tag with layout, out of range": packet(ASK, [(1, 1, 16384 | WITH_LAYOUT)], form=AS_CODED),
    "no bytes left": leave((1 << 64) - 1), "bytes that only the library uses": leave((1 << 64) - 2), "bytes left, cut": leave(0)[:20],
    "a form that there is not, in parts": packet(ASK, [(1, 1, 1)], form=3 | MORE),
    "counts of a device, one too few": device([1] * 5), "one too many": device([1] * 7), "two of them": device([1] * 6, count=2),
    "more than can be counted": device([0, 0, 0, 0, 0, (1 << 60) + 1]), "more slots than can be": device([1 << 32, 0, 0, 0, 0, 0]), "all bits": device([(1 << 64) - 1] * 6),
}
for name, data in wrong.items():
    other = Socket(mount)
    other.socket.send(data)
    check(f"{name}: cut off", other.disconnected())
check("another version is named in the log, with the mount's", re.search(
      rf"a client of .* speaks version 1 of the socket's protocol, this mount version {VERSION}: disconnected\nhint: ", mount.log_text()), mount.log_text())
in_parts = {
    "a request that goes on in another layer": packet(ASK, [(2, 1, 2)], layer=1), "in another form": packet(ASK, [(2, 1, 2)], form=AS_CODED),
    "with a tag of its first part": packet(ASK, [(2, 1, 1)]),
}
for name, data in in_parts.items():
    other = Socket(mount)
    other.send(ASK, [(1, 1, 1)], form=FULL | MORE)
    other.socket.send(data)
    check(f"{name}: cut off", other.disconnected() or other.disconnected())  # the first part may be answered before
other = Socket(mount)
for part in range(9):  # 576 experts
    try:
        other.send(ASK, [(n % 8, 1, 64 * part + n) for n in range(64)], form=FULL | MORE)
    except ConnectionError:
        break
while not other.disconnected():
    pass
check("a request of more than 512 experts: cut off", True)
other = Socket(mount)
other.send(ASK, [(1, 1, 1)], form=FULL | MORE)
other.socket.close()
other = Socket(mount)
other.send(ASK, [(1, 1, 1), (2, 1, 2)], form=FULL | MORE)
other.send(ASK, [(3, 1, 3)])
check("a request in two parts is one", sorted(other.answer()[0] for _ in range(3)) == [1, 2, 3])
other.socket.close()
check("what was right goes on", one.send(ASK, [(2, 1, 9)]) is None and one.file(one.answer()) == files[0, 2])
other = Socket(mount)
other.send(ASK, [(1, 1, 1)])
other.answer()
other.socket.send(packet(ASK, [(2, 1, 1)]))
check("a tag that is in use: cut off", other.disconnected())
one.send(DROP, [(0, 0, tag) for tag in (7, 8, 9, 5, 70000)])
check("nothing is held by those that were cut off", wait_until(lambda: mount.count("leased_experts") == 0), mount.control("experts"))

print("-- experts on a device")


def shown():
    rows = json.loads(run(program("expertctl"), "status", "--json", mount.path).stdout)["clients"]
    return [[row["device_" + name] for name in ("slots", "hits", "copied", "computed", "copied_bytes", "wait_ns")] for row in rows]


def columns():
    rows = json.loads(run(program("expertctl"), "status", "--json", mount.path).stdout)["clients"]
    return {tuple(row) for row in rows}


def line():
    found = re.findall(r"^ +device: .*$", run(program("expertctl"), "status", mount.path).stdout, re.M)
    check("status: lines of at most 80 characters", all(len(text) <= 80 for text in found), found)
    return [text.strip() for text in found]


check("JSON has the columns of the file", columns() == {tuple(mount.control("clients").splitlines()[0].split())}, columns())
check("none is reported", wait_until(lambda: shown() == [[0] * 6]) and line() == [], shown())
one.socket.send(device([64, 30, 8, 2, 3 << 20, 90 * 10**9]))
check("what a client reports is shown", wait_until(lambda: shown() == [[64, 30, 8, 2, 3 << 20, 90 * 10**9]]), shown())
check("also in words", line() == ["device: 64 slots, 75.0 % hits, 3.00 MiB copied, waited 1m30s"], line())
most = [(1 << 32) - 1] + [1 << 60] * 5
one.socket.send(device(most))
check("the last report counts, and the largest numbers", wait_until(lambda: shown() == [most]), shown())
check("also in words", len(line()) == 1, line())
one.socket.send(device([0] * 6))
check("and none again", wait_until(lambda: shown() == [[0] * 6]) and line() == [], shown())

print("-- many clients")
address = address_of(mount)
mount.suspend()  # all connect before the mount accepts one
others = [Socket(mount, address) for _ in range(100)]
mount.resume()
for other in others:
    other.send(ASK, [(99, 1, 1)])
check("all of 100 that connect at once are served", all(other.answer()[:2] == (1, -errno.ENOENT) for other in others))
others += [Socket(mount) for _ in range(40)]
check("those above 128 are cut off", others[-1].disconnected())
for other in others:
    other.socket.close()
check("all are gone", wait_until(lambda: len(mount.control("clients").splitlines()) <= 2), mount.control("clients"))

print("-- clients that die")
pid = os.fork()
if pid == 0:
    child = Socket(mount)
    child.send(ASK, [(n, 1, n) for n in range(8)], layer=1)
    child.answer()
    os._exit(0)
os.waitpid(pid, 0)
check("what it held, and what was coming, is let go", wait_until(lambda: mount.count("leased_experts") == 0 and mount.count("inflight") == 0))

print("-- beside readers of files")
one.send(ASK, [(3, 1, 1)])
answer = one.answer()
before = mount.count("fuse_opens_passthrough")
with open(expert(mount, 0, 3), "rb") as f:
    check("a file whose memory is a window has its bytes", f.read() == files[0, 3])
    check("the kernel does not serve it", mount.count("fuse_opens_passthrough") == before)
one.send(DROP, [(0, 0, 1)])
os.setxattr(mount.path, "user.expertfs.budget", b"64M")
shown = open(expert(mount, 1, 0), "rb")
mapped = mmap.mmap(shown.fileno(), 0, prot=mmap.PROT_READ)
one.send(ASK, [(0, 1, 2)], layer=1)
answer = one.answer()
by_kernel = mount.count("fuse_opens_passthrough") > before
check("one that is open as a file is handed out, in a window of its own", one.file(answer) == files[1, 0] and
      one.once == ({answer[2]} if by_kernel else set()), (answer, one.once))
one.send(DROP, [(0, 0, 2)])
one.send(ASK, [(0, 1, 2)], layer=1)
check("and again", one.file(one.answer()) == files[1, 0])
one.send(DROP, [(0, 0, 2)])
for turn in range(3):  # other experts reuse the memory of windows; a mapped file never changes
    for layer in (0, 1):
        one.send(ASK, [(n, 1, 10 + n) for n in range(1, 8)], layer=layer)
        for _ in range(7):
            answer = one.answer()
            if answer[1] or one.file(answer) != files[layer, answer[0] - 10]:
                check(f"layer {layer}: expert {answer[0] - 10}", False, answer)
        one.send(DROP, [(0, 0, 10 + n) for n in range(1, 8)])
check("the mapped file is what it was", mapped[:] == files[1, 0])
mapped.close()
shown.close()

one.windows.clear()
other.windows.clear()
one.socket.close()
check("without clients it ends", wait_until(lambda: mount.count("leased_experts") == 0 and len(mount.control("clients").splitlines()) == 1))
before = mount.count("fuse_opens_passthrough")
for n in range(8):
    with open(expert(mount, 0, n), "rb") as f:
        check(f"expert {n} is served by the kernel again", f.read() == files[0, n] and mount.count("fuse_opens_passthrough") == before + n + 1)
os.setxattr(mount.path, "user.expertfs.budget", b"128M")
one = Socket(mount)

print("-- more answers than the socket holds")


def requested():
    return sum(int(row.split()[3]) for row in mount.control("clients").splitlines()[1:])


before = requested()
one.send(ASK, [(4, 1, 20)])
one.answer()
for tag in range(1000, 3000, 50):
    one.send(ASK, [(4, 1, tag)])
    for i in range(1, 50):
        one.send(ASK, [(4, 1, tag + i)])
check("the daemon has taken all", wait_until(lambda: requested() == before + 2001))
one.send(DROP, [(0, 0, 2999)])
one.send(CANCEL, [(0, 0, 2998), (0, 0, 400)])
one.send(ASK, [(4, 1, 2999)])
check("and what came after it", wait_until(lambda: requested() == before + 2002))
tags = sorted(one.answer()[:2] for _ in range(2001))  # that of 2998 is queued behind them: it is not sent any more
check("all come, each once; what was cancelled is answered by that", tags == [(400, -errno.ECANCELED)] + [(tag, 0) for tag in range(1000, 2998)] + [
    (2998, -errno.ECANCELED), (2999, 0)], tags[:3] + tags[-4:])
one.send(ASK, [(99, 1, 5), (4, 1, 2998)])
check("and nothing comes after them", [one.answer()[:2] for _ in range(2)] == [(5, -errno.ENOENT), (2998, -errno.ENOENT)])
one.send(ASK, [(4, 1, 2998)])
check("a cancelled tag is free", one.answer()[:2] == (2998, 0))
for tag in range(1000, 3000, 50):
    one.send(DROP, [(0, 0, tag + i) for i in range(50)])
one.send(DROP, [(0, 0, 20)])
check("and are given back", wait_until(lambda: mount.count("leased_experts") == 0))

deaf = Socket(mount)
try:  # requests an expert that does not exist, and never reads an answer
    for _ in range(2000):
        deaf.send(ASK, [(99, 1, tag) for tag in range(64)])
    said = "it was taken"
except OSError as error:
    said = error.strerror
check("who never listens is cut off", said in ("Broken pipe", "Connection reset by peer"), said)
deaf.socket.close()

deaf = [Socket(mount) for _ in range(8)]


def is_cut_off(client, kind, items):
    try:
        client.send(kind, items)
        return False
    except ConnectionError:
        return True


for client in deaf * 63:  # 32,256 answers in all
    is_cut_off(client, CANCEL, [(0, 0, tag) for tag in range(64)])
check("all together may leave 16,384 answers unread", wait_until(lambda: any(is_cut_off(client, UNMAPPED, []) for client in deaf)))
one.send(ASK, [(4, 1, 1)])
check("who listens is served", one.answer()[:2] == (1, 0))
one.send(DROP, [(0, 0, 1)])
for client in deaf:
    client.socket.close()

print("-- experts that are held")
for _ in range(200):  # of each request one is held, and the daemon keeps the memory of all
    one.send(ASK, [(n, 1, n) for n in range(8)])
    if any(one.answer()[1] for _ in range(8)):
        break
    one.send(DROP, [(0, 0, n) for n in range(8)])
check("requests that are dropped count no more", _ == 199)
refused = 0
for tag in range(100, 600):
    one.send(ASK, [(n, 1, n if n else tag) for n in range(8)])
    refused = [one.answer()[1] for _ in range(8)].count(-errno.EBUSY)
    if refused:
        break
    one.send(DROP, [(0, 0, n) for n in range(1, 8)])
check("only so many as a sixteenth of the budget has room for", refused == 8 and 400 < tag < 520, (refused, tag))
other = Socket(mount)
other.send(ASK, [(n, 1, n) for n in range(8)])
check("another client may have 64", [other.answer()[1] for _ in range(8)] == [0] * 8)
other.socket.close()
for first in range(100, 600, 50):
    one.send(DROP, [(0, 0, first + n) for n in range(50)])
one.send(ASK, [(n, 1, n) for n in range(8)])
check("after drops it gets experts again", [one.answer()[1] for _ in range(8)] == [0] * 8)
one.send(DROP, [(0, 0, n) for n in range(8)])
check("all are given back", wait_until(lambda: mount.count("leased_experts") == 0))

print("-- others, and the end")
one.send(ASK, [(6, 1, 1)])
held = one.answer()
unfinished, before = Socket(mount), requested()
unfinished.send(ASK, [(1, 1, 1), (2, 1, 2)], form=FULL | MORE)
unfinished.send(DROP, [(0, 0, 2)])
check("a request is not complete when the mount ends", wait_until(lambda: requested() == before + 2))
mount.unmount()
check("what is held stays as it was when the mount is gone", one.file(held) == files[0, 6])
check("and the socket says so", one.disconnected())
done()
