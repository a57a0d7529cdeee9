# SPDX-License-Identifier: Apache-2.0
"""Concurrent readers of a mount: processes, each a reader of one kind, that compare all bytes they get and keep some of
them (mappings, pipes, pages in flight) to compare them later, also after the mount has ended. One process for each
reader, so that each can be killed, and so that a fault on a mapping whose daemon is dead ends only one reader."""
import multiprocessing
import socket

import uring
from e2e import *

PIPE = 128 << 10
fork = multiprocessing.get_context("fork")
libc = ctypes.CDLL(None, use_errno=True)
libc.vmsplice.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
# Errors with which read, open and mmap may fail when the daemon dies.
DYING = {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.EINTR, errno.ENOENT, errno.EPIPE, errno.ENODEV,
         errno.EFAULT}


class WrongBytes(Exception):
    pass


def same(got, want, what):
    if got != want:
        first = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        raise WrongBytes(f"{what}: {len(got)} bytes of {len(want)}, the first difference at {first}")


def part_of(want, generator, most=1 << 20):
    """(offset, bytes): any range, also of odd length"""
    at = generator.randrange(len(want))
    count = generator.choice((1, 511, 4096, 65536, 70001, 1 << 20, 3 << 20))
    return at, min(count, most, len(want) - at)


def pages_of(want, generator, most):
    """(offset, bytes), with a page-aligned offset"""
    at = generator.randrange(len(want)) // 4096 * 4096
    return at, min(most, len(want) - at)


def read_all_pieces(end):
    data = b""
    while piece := os.read(end, 1 << 20):
        data += piece
    os.close(end)
    return data


# ---- kinds of readers: kind(path, want, generator) reads and compares, or returns a function to call later ----

def pread(path, want, generator):
    at, count = part_of(want, generator)
    with open(path, "rb", buffering=0) as file:
        shift = generator.choice((0, 0, 1, 16))
        with mmap.mmap(-1, count + 4096) as memory, memoryview(memory) as all_of_it:
            with all_of_it[shift:shift + count] as view:
                got = os.preadv(file.fileno(), [view], at)
                same(bytes(view[:got]), want[at:at + got], f"pread at {at}")
        if got == 0:
            raise WrongBytes(f"pread of {count} at {at}: the end of the file")


def whole(path, want, generator):
    block, at = generator.choice((65536, 1 << 20, 777777)), 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(block):
            same(data, want[at:at + len(data)], f"read at {at}")
            at += len(data)
    if at != len(want):
        raise WrongBytes(f"read: {at} of {len(want)} bytes")


def readv(path, want, generator):
    at, count = part_of(want, generator)
    parts = [bytearray(count // 3), bytearray(1), bytearray(max(count - count // 3 - 1, 0))]
    with open(path, "rb", buffering=0) as file:
        got = os.preadv(file.fileno(), parts, at)
    same(b"".join(parts)[:got], want[at:at + got], f"readv at {at}")


def direct(path, want, generator):
    at, count = pages_of(want, generator, 1 << 20)
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 1 << 20) as memory, memoryview(memory) as view:
            got = os.preadv(file, [view], at)
            same(bytes(view[:min(got, count)]), want[at:at + min(got, count)], f"O_DIRECT at {at}")
    finally:
        os.close(file)


def unaligned(path, want, generator):
    """O_DIRECT with unaligned offset or length: the kernel serves or refuses it."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        at, count = generator.choice(((1, 4096), (4096, 100), (513, 513)))
        with mmap.mmap(-1, 4096) as memory, memoryview(memory) as view, view[:count] as part:
            got = os.preadv(file, [part], at)
            same(bytes(part[:got]), want[at:at + got], f"O_DIRECT, {count} at {at}")
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(file)


def past_end(path, want, generator):
    with open(path, "rb", buffering=0) as file:
        for at in (len(want) - 1, len(want), len(want) + 1, len(want) + generator.randrange(10000)):
            same(os.pread(file.fileno(), 4097, at), want[at:at + 4097], f"past the end, at {at}")


def sendfile(path, want, generator):
    at, count = part_of(want, generator)
    with open(path, "rb", buffering=0) as file:
        sink = os.memfd_create("sink")
        try:
            got = os.sendfile(sink, file.fileno(), at, count)
            same(os.pread(sink, got, 0), want[at:at + got], f"sendfile at {at}")
        finally:
            os.close(sink)


def splice(path, want, generator):
    at, _ = part_of(want, generator)
    out, into = os.pipe()
    try:
        room = fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, PIPE)
        with open(path, "rb", buffering=0) as file:
            count = os.splice(file.fileno(), into, room, offset_src=at)
    except OSError:
        os.close(out)
        raise
    finally:
        os.close(into)
    return lambda: same(read_all_pieces(out), want[at:at + count], f"splice at {at}")


def socket_sendfile(path, want, generator):
    at, _ = part_of(want, generator)
    one, other = socket.socketpair()
    with one, open(path, "rb", buffering=0) as file:
        count = os.sendfile(one.fileno(), file.fileno(), at, min(PIPE, len(want) - at))

    def look():
        with other:
            data = b""
            while piece := other.recv(1 << 20):
                data += piece
            same(data, want[at:at + count], f"sendfile to a socket at {at}")
    return look


def mapping(path, want, generator):
    with open(path, "rb", buffering=0) as file:
        view = mmap.mmap(file.fileno(), len(want), prot=mmap.PROT_READ)
    at, count = part_of(want, generator)
    same(view[at:at + count], want[at:at + count], f"mapping at {at}")

    def look():
        with view:
            same(view[at:at + count], want[at:at + count], f"mapping, later, at {at}")
    return look


def private_mapping(path, want, generator):
    """Writes to a private mapping: the rest of it keeps the file's bytes."""
    with open(path, "rb", buffering=0) as file:
        view = mmap.mmap(file.fileno(), len(want), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    at, count = part_of(want, generator, 70001)
    view[at] = want[at] ^ 0xFF

    def look():
        with view:
            same(view[at + 1:at + count], want[at + 1:at + count], f"private mapping at {at}")
            same(view[at:at + 1], bytes([want[at] ^ 0xFF]), f"what was written at {at}")
    return look


def vmsplice(path, want, generator):
    at, count = pages_of(want, generator, PIPE)
    source = Mapping(path)
    out, into = os.pipe()
    try:
        room = fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, PIPE)
        filled = libc.vmsplice(into, struct.pack("QQ", source.address + at, min(room, count)), 1, 0)
    finally:
        os.close(into)
        source.close()
    if filled < 0:
        os.close(out)
        raise OSError(ctypes.get_errno(), "vmsplice")
    return lambda: same(read_all_pieces(out), want[at:at + filled], f"vmsplice at {at}")


def to_disk(path, want, generator):
    """Writes a mapping to a file with O_DIRECT."""
    at, count = pages_of(want, generator, 1 << 20)
    count = count // 4096 * 4096
    source = Mapping(path)
    name = f"{scratch_folder}/copy-{threading.get_native_id()}"
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
    try:
        os.unlink(name)
        written = libc.write(file, ctypes.c_void_p(source.address + at), ctypes.c_size_t(count))
        if written < 0:
            raise OSError(ctypes.get_errno(), "write of a mapping")
        with mmap.mmap(-1, 1 << 20) as memory, memoryview(memory) as view:
            got = os.preadv(file, [view[:count]], 0) if count else 0
            same(bytes(view[:got]), want[at:at + got], f"written from a mapping at {at}")
    finally:
        os.close(file)
        source.close()


def ring_read(path, want, generator):
    at, count = part_of(want, generator)
    ring, file = uring.Ring(), os.open(path, os.O_RDONLY)
    try:
        memory = ctypes.create_string_buffer(count)
        ring.submit(uring.OP_READ, file, ctypes.addressof(memory), count, offset=at)
        got, _ = ring.completion()
        if got < 0:
            raise OSError(-got, "read by a ring")
        same(memory.raw[:got], want[at:at + got], f"read by a ring at {at}")
    finally:
        os.close(file)
        ring.close()


def ring_write(path, want, generator):
    """A ring writes a mapping, which is unmapped meanwhile, to a pipe."""
    at, count = pages_of(want, generator, PIPE)
    source, ring = Mapping(path), uring.Ring()
    out, into = os.pipe()
    try:
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, PIPE)
        ring.submit(uring.OP_WRITE, into, source.address + at, count)
        source.close()
        got, _ = ring.completion()
    finally:
        ring.close()
        os.close(into)
    if got < 0:
        os.close(out)
        raise OSError(errno.EIO if got == -errno.EFAULT else -got, "write by a ring")  # EFAULT: the daemon is dead
    return lambda: same(read_all_pieces(out), want[at:at + got], f"written by a ring at {at}")


def advised(path, want, generator):
    """Reads a file with posix_fadvise(2), then drops it from the page cache."""
    at, count = part_of(want, generator)
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), at, count, generator.choice((os.POSIX_FADV_WILLNEED, os.POSIX_FADV_SEQUENTIAL,
                                                                     os.POSIX_FADV_RANDOM)))
        data = os.pread(file.fileno(), count, at)
        same(data, want[at:at + len(data)], f"read after advice at {at}")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def looker(path, want, generator):
    """Reads names, sizes and the mount's control files."""
    if os.stat(path).st_size != len(want):
        raise WrongBytes(f"size {os.stat(path).st_size} of {len(want)}")
    root = path[:path.index("/", len(served_path))]
    os.listdir(os.path.dirname(path))
    os.listxattr(path)
    name = generator.choice(("stat", "metrics", "experts", "pools", "plan", "config", "trace", "predict"))
    with open(f"{root}/.expertfs/{name}", "rb") as file:
        if not file.read() and name != "trace":
            raise WrongBytes(f"{name} is empty")


KINDS = (pread, whole, readv, direct, unaligned, past_end, sendfile, splice, socket_sendfile, mapping, private_mapping, vmsplice, to_disk,
         ring_read, ring_write, advised, looker)
scratch_folder = served_path = ""


# ---- processes -----------------------------------------------------------------------------------------------------------

class Reader:
    """A process that runs one kind of reader until `stop`, or calls `ask` with a generator repeatedly (a client of the
    library). dying: errors of a killed daemon end the process and are no failure."""

    def __init__(self, kind, mount, want, seed, stop, dying=False, ask=None):
        self.kind, self.want, self.seed, self.stop, self.dying, self.ask = kind, want, seed, stop, dying, ask
        self.name = ask.__name__ if ask else kind.__name__
        self.mount, self.pipe = mount, None
        self.pipe, theirs = fork.Pipe(False)
        self.process = fork.Process(target=self.run, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def run(self, pipe):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        generator, held, did, problem = random.Random(self.seed), [], 0, None
        names = sorted(self.want)
        try:
            while not self.stop.is_set():
                try:
                    if self.ask:
                        self.ask(generator)
                    else:
                        # some names are requested more often
                        name = names[min(int(generator.expovariate(4 / len(names))), len(names) - 1)]
                        late = self.kind(f"{self.mount}/{name}", self.want[name], generator)
                        if late:
                            held.append(late)
                    did += 1
                    while len(held) > 6 or held and generator.random() < 0.3:
                        held.pop(generator.randrange(len(held)))()
                except OSError as error:
                    if not self.dying or error.errno not in DYING:
                        raise
                    break
            while held:
                try:
                    held.pop()()
                except OSError as error:
                    if not self.dying or error.errno not in DYING:
                        raise
        except Exception as error:  # any exception is a finding
            problem = f"{self.name}: {type(error).__name__} {error}"
        pipe.send((did, problem))
        pipe.close()
        os._exit(0)  # mappings need not be closed in order

    def ended(self, deadline):
        """(number of repetitions, problem or None, the signal that ended it); a hang is a problem."""
        try:
            if self.pipe.poll(max(deadline - time.monotonic(), 0)):
                did, problem = self.pipe.recv()
                self.process.join(PATIENCE)
                return did, problem, 0
        except EOFError:
            self.process.join(PATIENCE)
            return 0, None, -(self.process.exitcode or 0)
        with open(f"/proc/{self.process.pid}/stack") as stack:
            where = stack.read()
        self.process.kill()
        self.process.join(PATIENCE)
        return 0, f"{self.name}: hangs: {where}", 0


def each_kind(mount, want, folder, threads=12):
    """Each of the threads runs every kind of reader once, in random order. Returns the problems."""
    global scratch_folder, served_path
    scratch_folder, served_path = folder, mount.path
    problems = []

    def reader(seed):
        generator = random.Random(seed)
        for kind in generator.sample(KINDS, len(KINDS)):
            name = generator.choice(sorted(want))
            try:
                late = kind(f"{mount.path}/{name}", want[name], generator)
                if late:
                    late()
            except Exception as error:  # any exception is a finding
                problems.append(f"{kind.__name__} of {name}: {type(error).__name__} {error}")

    if not in_threads(reader, range(threads)):
        problems.append("a reader hangs")
    return problems


class Flag:
    """An event without a lock: a process that is killed inside fork.Event().is_set() leaves its lock taken for ever."""

    def __init__(self):
        self.byte = mmap.mmap(-1, 1)

    def set(self):
        self.byte[0] = 1

    def is_set(self):
        return self.byte[0] == 1


def start(mount, want, count, seed, folder, dying=False, asks=()):
    """(readers, the flag that ends them): `count` of all kinds in turn, and one for each of `asks`."""
    global scratch_folder, served_path
    scratch_folder, served_path = folder, mount.path
    mount_path, stop = mount.path, Flag()
    readers = [Reader(KINDS[n % len(KINDS)], mount_path, want, seed * 1000 + n, stop, dying) for n in range(count)]
    readers += [Reader(None, mount_path, want, seed * 1000 + count + n, stop, dying, ask) for n, ask in enumerate(asks)]
    return readers, stop


def join(readers, seconds=PATIENCE):
    """(sum of repetitions, problems, [(name, signal)] of readers that a signal ended)"""
    deadline, total, problems, signals = time.monotonic() + seconds, 0, [], []
    for reader in readers:
        did, problem, number = reader.ended(deadline)
        total += did
        if problem:
            problems.append(f"{problem} (seed {reader.seed})")
        if number:
            signals.append((reader.name, number))
    return total, problems, signals
