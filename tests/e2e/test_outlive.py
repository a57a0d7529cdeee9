# SPDX-License-Identifier: Apache-2.0
"""Pages of an expert's file that outlive its last close: in pipes, in socket queues, under writes of a mapping that are
still on their way, pinned by io_uring. Whatever is opened meanwhile under a small budget, they stay the expert's bytes."""
import ctypes
import fcntl
import mmap
import os
import socket
import struct
import threading

import uring
from e2e import *
from sockets import connection, receive, send_and_close

F_SETPIPE_SZ = 1031
libc = ctypes.CDLL(None, use_errno=True)
libc.vmsplice.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
libc.syscall.restype = ctypes.c_long

need_fuse()
model = make_model("model", "-F", "qwen3-moe", "-d", "512", "-i", "1024", "-e", "8", "-l", "4", "--vocab", "500")
store = make_store(model)
os.environ["EXPERTFS_STATE"] = scratch("state")
want = experts_by_the_daemon(store)
names = list(want)
size = len(want[names[0]])

mount = Mount(store, "budget=48M")
if not mount.passthrough():
    reason = mount.config()["passthrough_reason"]
    mount.unmount()
    skip(f"no passthrough here: {reason}")


def others(but, turns=2):
    """Open, read a little of, and close all other experts: more than the budget has room for."""
    for _ in range(turns):
        for name in names:
            if name not in but:
                with open(mount / name, "rb", buffering=0) as file:
                    file.read(4096)


class Mapping:
    """Of an expert's file, whose address Python tells only of writable ones."""

    def __init__(self, name, protection=mmap.PROT_READ, flags=mmap.MAP_SHARED):
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        file = os.open(mount / name, os.O_RDONLY)
        self.address = libc.mmap(None, size, protection, flags, file, 0)
        os.close(file)

    def close(self):
        libc.munmap(self.address, size)


def filled_pipe(fill):
    """A pipe of up to 256 KiB that fill(end, bytes) puts an expert's pages into; (its other end, bytes in it)"""
    out, into = os.pipe()
    room = fcntl.fcntl(into, F_SETPIPE_SZ, 256 << 10)
    filled = fill(into, room)
    os.close(into)
    return out, filled


def drained(end):
    data = b""
    while True:
        piece = os.read(end, 1 << 20)
        if not piece:
            os.close(end)
            return data
        data += piece


print("-- pipes")
some = names[:12]
wrong = []
offset = size // 4096 // 3 * 4096
for name in some:
    def by_splice(into, room, name=name):
        with open(mount / name, "rb", buffering=0) as file:
            return os.splice(file.fileno(), into, room, offset_src=offset)
    end, filled = filled_pipe(by_splice)
    others([name], 1)
    got = drained(end)
    if filled == 0 or got != want[name][offset:offset + filled]:
        wrong.append(name)
check(f"spliced from {len(some)} files, read when others had been opened", not wrong, wrong)

pipes = []
for name in some:
    pipes.append((name, *filled_pipe(lambda into, room, name=name: os.splice(os.open(mount / name, os.O_RDONLY), into, room, offset_src=offset))))
for fd in os.listdir("/proc/self/fd"):
    if os.path.realpath(f"/proc/self/fd/{fd}").startswith(mount.path):
        os.close(int(fd))
others([])
wrong = [name for name, end, filled in pipes if drained(end) != want[name][offset:offset + filled]]
check("and many pipes at a time", not wrong, wrong)

wrong = []
for name in some:
    def by_vmsplice(into, room, name=name):
        mapping = Mapping(name)
        iovec = struct.pack("QQ", mapping.address + offset, room)
        filled = libc.vmsplice(into, iovec, 1, 0)
        mapping.close()
        return filled
    end, filled = filled_pipe(by_vmsplice)
    others([name], 1)
    if filled <= 0 or drained(end) != want[name][offset:offset + filled]:
        wrong.append(name)
check("vmspliced from mappings that are gone", not wrong, wrong)

print("-- slow readers of sockets")
wrong = []
for name in some:
    sender, receiver = connection(8 << 20)
    sent = send_and_close(sender, mount / name, size)
    others([name], 1)
    if sent == 0 or receive(receiver) != want[name][:sent]:
        wrong.append((name, sent))
check("sendfile to readers that come late", not wrong, wrong)

SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
libc.send.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
wrong = []
for name in some:
    sender, receiver = connection(8 << 20)
    sender.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    mapping = Mapping(name)
    sent = libc.send(sender.fileno(), mapping.address, size, MSG_ZEROCOPY | socket.MSG_DONTWAIT)
    mapping.close()
    others([name], 1)
    sender.shutdown(socket.SHUT_WR)
    if sent <= 0 or receive(receiver) != want[name][:sent]:
        wrong.append((name, sent))
    sender.close()
check("sent without a copy from mappings that are gone", not wrong, wrong)

print("-- writes of mappings that are still on their way")


def written_late(path, name):
    """Asynchronous O_DIRECT writes from a mapping that is gone before they have ended; what the file holds then."""
    PIECE = 64 << 10
    mapping = Mapping(name)
    context = ctypes.c_ulong(0)
    count = (size - 4096) // PIECE
    if libc.syscall(206, ctypes.c_long(count), ctypes.byref(context)) < 0:  # io_setup
        return None
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
    os.posix_fallocate(file, 0, size)
    blocks = [ctypes.create_string_buffer(struct.pack("<QIiHhIQQqQII", i, 0, 0, 1, 0, file, mapping.address + i * PIECE,
                                                      PIECE, i * PIECE, 0, 0, 0), 64) for i in range(count)]
    array = (ctypes.c_void_p * count)(*[ctypes.addressof(block) for block in blocks])
    submitted = libc.syscall(209, context, ctypes.c_long(count), array)  # io_submit
    mapping.close()
    others([name], 1)
    events = ctypes.create_string_buffer(32 * count)
    libc.syscall(208, context, ctypes.c_long(submitted), ctypes.c_long(submitted), events, None)  # io_getevents
    libc.syscall(207, context)  # io_destroy
    os.close(file)
    with open(path, "rb") as back:
        return back.read(submitted * PIECE) == want[name][:submitted * PIECE]


if os.uname().machine != "x86_64":
    note("left out: numbers of system calls are those of x86-64")
else:
    results = []
    try:
        results = [written_late(scratch("copy"), name) for name in some]
    except OSError as error:
        note(f"left out: {error}")
    check("O_DIRECT writes", all(results), results)

print("-- io_uring")


def by_ring(begin):
    """begin(ring, name, mapping) begins something, and returns what gives the bytes that arrive of it once the mapping is
    gone, and where in the file they are from; names of which wrong bytes came, or none for all of them."""
    wrong, arrived = [], 0
    for name in some:
        ring = uring.Ring()
        mapping = Mapping(name)
        receive_all, at = begin(ring, name, mapping)
        mapping.close()
        others([name], 1)
        data = receive_all()
        ring.close()
        arrived += len(data)
        if data != want[name][at:at + len(data)]:
            wrong.append(name)
    return wrong if arrived else ["nothing arrived"]


def sent_by_ring(ring, address, operation, **more):
    """Send an expert to a socket whose reader is late: what receives it."""
    sender, receiver = connection(8 << 20)
    ring.submit(operation, sender.fileno(), address, size, **more)

    def receive_all():
        others([], 1)
        result = []
        reader = threading.Thread(target=lambda: result.append(receive(receiver)))
        reader.start()
        done, flags = ring.completion()
        sender.shutdown(socket.SHUT_WR)
        reader.join(60)
        if flags & uring.MORE:
            ring.completion()
        sender.close()
        return result[0] if done < 0 or len(result[0]) == done else b"more or fewer than were sent"
    return receive_all, 0


def written_by_ring(ring, address, operation, **more):
    """Write an expert into a pipe whose reader is late, and that is full meanwhile: what reads it."""
    out, into = os.pipe()
    fcntl.fcntl(into, F_SETPIPE_SZ, 256 << 10)
    ring.submit(operation, into, address, size, **more)

    def receive_all():
        data = os.read(out, 256 << 10)  # what was put in at once; the rest has no mapping to come from, or pinned pages
        result = []
        reader = threading.Thread(target=lambda: result.append(drained(out)))
        reader.start()
        ring.completion()
        os.close(into)
        reader.join(60)
        return data + result[0]
    return receive_all, 0


def written_to_disk_by_ring(ring, name, mapping):
    """Write what whole pages an expert has past the page cache: what the file holds then."""
    pages = size // 4096 * 4096
    file = os.open(scratch("copy"), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
    os.posix_fallocate(file, 0, pages)
    ring.submit(uring.OP_WRITE, file, mapping.address, pages)

    def read_back():
        done, _ = ring.completion()
        os.close(file)
        with open(scratch("copy"), "rb") as back:
            return back.read(max(done, 0))
    return read_back, 0


def spliced_by_ring(ring, name, _):
    out, into = os.pipe()
    room = fcntl.fcntl(into, F_SETPIPE_SZ, 256 << 10)
    file = os.open(mount / name, os.O_RDONLY)
    ring.submit(uring.OP_SPLICE, into, offset, room, offset=(1 << 64) - 1, other=file)
    ring.completion()
    os.close(file)
    os.close(into)
    return lambda: drained(out), offset


def registered(protection, flags):
    """Can a ring pin such a mapping as a buffer? The error, or None."""
    ring, mapping = uring.Ring(), Mapping(names[0], protection, flags)
    try:
        ring.register(mapping.address, size)
    except OSError as error:
        return error
    finally:
        mapping.close()
        ring.close()


def by_registered(begin, operation, protection, flags, **more):
    """The buffer is pinned, and the mapping gone, before anything is begun."""
    def begin_late(ring, name, _):
        mapping = Mapping(name, protection, flags)
        ring.register(mapping.address, size)
        mapping.close()
        others([name], 1)
        return begin(ring, mapping.address, operation, **more)
    return by_ring(begin_late)


try:
    uring.Ring().close()
except OSError as error:
    note(f"left out: {error}")
else:
    wrong = by_ring(lambda ring, name, mapping: sent_by_ring(ring, mapping.address, uring.OP_SEND_ZC))
    check("sent without a copy", not wrong, wrong)
    wrong = by_ring(lambda ring, name, mapping: written_by_ring(ring, mapping.address, uring.OP_WRITE))
    check("written to pipes that are full", not wrong, wrong)
    try:
        wrong = by_ring(written_to_disk_by_ring)
        check("written to a disk", not wrong, wrong)
    except OSError as error:
        note(f"left out: a file past the page cache: {error}")
    wrong = by_ring(spliced_by_ring)
    check("spliced", not wrong, wrong)
    for what, protection, flags in (("shared", mmap.PROT_READ, mmap.MAP_SHARED),
                                    ("private", mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE)):
        error = registered(protection, flags)
        if error:
            # the kernel pins buffers for writing: of a shared mapping of a read-only mount it pins none
            note(f"left out: a {what} mapping as registered buffer: {error}")
            continue
        wrong = by_registered(sent_by_ring, uring.OP_SEND_ZC, protection, flags, ioprio=uring.SEND_FIXED)
        check(f"sent without a copy from a registered buffer, a {what} mapping", not wrong, wrong)
        wrong = by_registered(written_by_ring, uring.OP_WRITE_FIXED, protection, flags)
        check(f"written to pipes from a registered buffer, a {what} mapping", not wrong, wrong)

print("-- all of it at once, beside readers")
end_at = time.monotonic() + 4
bad = []
did = [0]


def splices(seed):
    generator = random.Random(seed)
    held = []
    while time.monotonic() < end_at:
        name = generator.choice(names)
        at = generator.randrange(size - (300 << 10)) // 4096 * 4096
        end, filled = filled_pipe(lambda into, room: splice_from(name, at, into, room))
        held.append((name, at, end, filled))
        if len(held) > 20:
            name, at, end, filled = held.pop(generator.randrange(len(held)))
            if drained(end) != want[name][at:at + filled]:
                bad.append((name, at))
            did[0] += 1
    for name, at, end, filled in held:
        if drained(end) != want[name][at:at + filled]:
            bad.append((name, at))


def splice_from(name, at, into, room):
    with open(mount / name, "rb", buffering=0) as file:
        return os.splice(file.fileno(), into, room, offset_src=at)


threads = [threading.Thread(target=splices, args=(seed,)) for seed in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
check(f"{did[0]} pipes by six threads", not bad and did[0] > 0, bad[:5])
stat = mount.stat()
held = sum(int(stat[name]) for name in ("fixed_bytes", "chunk_pool_bytes", "full_pool_bytes"))
check("the budget holds", held <= int(stat["budget_bytes"]), (held, stat["budget_bytes"]))
check("and they were served by the kernel", int(stat["fuse_opens_passthrough"]) > 100, stat["fuse_opens_passthrough"])
mount.unmount()
done()
