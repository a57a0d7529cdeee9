# SPDX-License-Identifier: Apache-2.0
"""Pages of an expert's file that outlive its last close: in pipes, in socket queues, under writes from a mapping in
flight, pinned by io_uring, mapped. They keep the expert's bytes while other experts are opened under a small budget."""
import socket

import reader_processes
import uring
from reader_processes import read_all_pieces, libc
from e2e import *
from slow_sockets import connection, receive

libc.syscall.restype = ctypes.c_long

need_fuse()
model, store = shared(DEEP)
want = experts_without_passthrough(store)
names = list(want)
size = len(want[names[0]])

mount = Mount(store, "budget=48M")
need_passthrough(mount)


def others(but, turns=2):
    """Opens, reads a little of, and closes all other experts: more than the budget can hold."""
    for _ in range(turns):
        for name in names:
            if name not in but:
                with open(mount / name, "rb", buffering=0) as file:
                    file.read(4096)


print("-- pipes, queues of sockets, mappings, writes of a ring")
some, generator = names[:12], random.Random(1)
reader_processes.scratch_folder = SCRATCH
for kind in (reader_processes.splice, reader_processes.socket_sendfile, reader_processes.vmsplice, reader_processes.ring_write, reader_processes.mapping, reader_processes.private_mapping):
    try:
        held = [kind(mount / name, want[name], generator) for name in some]
        others([], 1)
        for look in held:
            look()
        check(f"{kind.__name__}: what was held while others were opened is right", True)
    except reader_processes.WrongBytes as wrong:
        check(f"{kind.__name__}: what was held while others were opened is right", False, wrong)
    except OSError as error:
        if kind != reader_processes.ring_write:
            raise
        note(f"left out: io_uring: {error}")

print("-- sent without a copy")
SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
libc.send.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
wrong = []
for name in some:
    sender, receiver = connection(8 << 20)
    sender.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    mapping = Mapping(mount / name)
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
    """Asynchronous O_DIRECT writes from a mapping that is unmapped before they complete; returns whether the file is
    correct."""
    PIECE = 64 << 10
    mapping = Mapping(mount / name)
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
    """begin(ring, name, mapping) starts an operation, and returns a function that gives the bytes that arrive after the
    mapping is unmapped, and their offset in the file. Returns the names with wrong bytes."""
    wrong, arrived = [], 0
    for name in some:
        ring = uring.Ring()
        mapping = Mapping(mount / name)
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
    """Sends an expert to a socket whose reader is late; returns the function that receives it."""
    sender, receiver = connection(8 << 20)
    ring.submit(operation, sender.fileno(), address, size, **more)

    def receive_all():
        others([], 1)
        result = []
        reader = threading.Thread(target=lambda: result.append(receive(receiver)))
        reader.start()
        done, flags = ring.completion()
        sender.shutdown(socket.SHUT_WR)
        reader.join(PATIENCE)
        if flags & uring.MORE:
            ring.completion()
        sender.close()
        return result[0] if done < 0 or len(result[0]) == done else b"more or fewer than were sent"
    return receive_all, 0


def written_by_ring(ring, address, operation, **more):
    """Writes an expert to a pipe whose reader is late, and that is full meanwhile; returns the function that reads
    it."""
    out, into = os.pipe()
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 256 << 10)
    ring.submit(operation, into, address, size, **more)

    def receive_all():
        data = os.read(out, 256 << 10)  # written at once; the rest has no mapping left, or pinned pages
        result = []
        reader = threading.Thread(target=lambda: result.append(read_all_pieces(out)))
        reader.start()
        ring.completion()
        os.close(into)
        reader.join(PATIENCE)
        return data + result[0]
    return receive_all, 0


def written_to_disk_by_ring(ring, name, mapping):
    """Writes the whole pages of an expert with O_DIRECT; returns the function that reads the file."""
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
    offset = size // 4096 // 3 * 4096
    out, into = os.pipe()
    room = fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 256 << 10)
    file = os.open(mount / name, os.O_RDONLY)
    ring.submit(uring.OP_SPLICE, into, offset, room, offset=(1 << 64) - 1, other=file)
    ring.completion()
    os.close(file)
    os.close(into)
    return lambda: read_all_pieces(out), offset


def registered(protection, flags):
    """Whether a ring can pin such a mapping as a buffer: the error, or None."""
    ring, mapping = uring.Ring(), Mapping(mount / names[0], protection, flags)
    try:
        ring.register(mapping.address, size)
    except OSError as error:
        return error
    finally:
        mapping.close()
        ring.close()


def by_registered(begin, operation, protection, flags, **more):
    """The buffer is pinned and its mapping unmapped before the operation starts."""
    def begin_late(ring, name, _):
        mapping = Mapping(mount / name, protection, flags)
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
            # the kernel pins buffers for writing, so it pins none of a shared mapping of a read-only mount
            note(f"left out: a {what} mapping as registered buffer: {error}")
            continue
        wrong = by_registered(sent_by_ring, uring.OP_SEND_ZC, protection, flags, ioprio=uring.SEND_FIXED)
        check(f"sent without a copy from a registered buffer, a {what} mapping", not wrong, wrong)
        wrong = by_registered(written_by_ring, uring.OP_WRITE_FIXED, protection, flags)
        check(f"written to pipes from a registered buffer, a {what} mapping", not wrong, wrong)

print("-- mapped by the system call, that is, with no descriptor")
for settings in {}, {"plan": "F=100", "policy": "lru"}:
    for setting, value in settings.items():
        os.setxattr(mount.path, f"user.expertfs.{setting}", value.encode())
    before, held = mount.count("evictions_f"), {name: Mapping(mount / name) for name in names[:3]}
    check("they stay leased", wait_until(lambda: mount.count("leased_experts") == len(held)), mount.count("leased_experts"))
    wrong = [name for _ in range(2) for name in names[3:] if open(mount / name, "rb").read() != want[name]]
    check("others are right beside them", not wrong, wrong)
    check("others came and went", mount.count("evictions_f") > before, mount.stat())
    check("mappings keep their bytes", all(mapping.bytes() == want[name] for name, mapping in held.items()))
    for mapping in held.values():
        mapping.close()
mount.check_budget()
stat = mount.stat()
check("and they were served by the kernel", int(stat["fuse_opens_passthrough"]) > 100, stat["fuse_opens_passthrough"])
mount.unmount()
done()
