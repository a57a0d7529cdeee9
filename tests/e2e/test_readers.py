# SPDX-License-Identifier: Apache-2.0
"""A cold file read by all kinds of readers: pread, read, readv, sendfile, a mapping; into buffers that are page-aligned
and that are not; by one thread, by several that take turns on one descriptor, by several with a descriptor each. Each
gets the file's bytes, each byte of the store is read about once, and none takes more memory than the read-ahead of its
streams."""
from e2e import *

need_fuse()
model = make_model("model", "-F", "qwen3-moe", "-d", "512", "-i", "512", "-e", "32", "-l", "3", "--vocab", "1000")
store = make_store(model, "--codec", "cascade")
name = max(files_below(model), key=lambda name: os.path.getsize(f"{model}/{name}"))
want = open(f"{model}/{name}", "rb").read()
store_bytes = os.path.getsize(store)
OPTIONS = "nostate,nopassthrough,direct_io=on,budget=128M"  # less than the store, which would stay in memory
WINDOW = 32 << 20  # the engine's read-ahead; less with a smaller budget
MEMORY = 2 * WINDOW  # of all streams together, in passing
BEFORE = WINDOW // 3 + (4 << 20)  # coded bytes read before a reader is recognised as a scan


class Readers:
    """Threads that read one file together, and record errors."""

    def __init__(self, mount, kind, block, shift, threads, own):
        self.path, self.kind, self.block, self.shift = mount / name, kind, block, shift
        self.lock, self.next, self.wrong, self.bytes = threading.Lock(), 0, [], 0
        self.shared = os.open(self.path, os.O_RDONLY)
        part = -(-len(want) // threads)
        team = [threading.Thread(target=self.part if own else self.in_turn,
                                 args=(part * n, min(part * (n + 1), len(want))) if own else ()) for n in range(threads)]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        os.close(self.shared)

    def ask(self, fd, at, count, memory):
        view = memoryview(memory)[self.shift:self.shift + count]
        if self.kind == "pread":
            got = os.preadv(fd, [view], at)
        elif self.kind == "read":
            got = os.readv(fd, [view])
        elif self.kind == "readv":
            got = os.preadv(fd, [view[:count // 3], view[count // 3:count // 2], view[count // 2:]], at)
        else:  # sendfile, to a memfd
            os.lseek(self.sink, 0, os.SEEK_SET)
            got = os.sendfile(self.sink, fd, at, count)
            os.preadv(self.sink, [view], 0)
        with self.lock:
            self.bytes += got
            if view[:got] != want[at:at + got]:
                self.wrong.append(at)
        return got

    def in_turn(self):
        with mmap.mmap(-1, self.block + 4096) as memory:
            while True:
                with self.lock:
                    at = self.next
                    self.next += self.block
                if at >= len(want):
                    return
                end = min(at + self.block, len(want))
                while at < end:
                    at += self.ask(self.shared, at, end - at, memory)

    def part(self, at, end):
        fd = os.open(self.path, os.O_RDONLY)
        os.lseek(fd, at, os.SEEK_SET)
        with mmap.mmap(-1, self.block + 4096) as memory:
            while at < end:
                at += self.ask(fd, at, min(self.block, end - at), memory)
        os.close(fd)


seed = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
generator = random.Random(seed)
note(f"SEED={seed} repeats the choice of cells")
cells = [("pread", 1 << 20, shift, 1, True) for shift in (0, 16, 1)]  # first those that were once five times slower
everything = [(kind, block, shift, threads, own)
              for kind in ("pread", "read", "readv", "sendfile") for block in (64 << 10, 1 << 20, 8 << 20, 777777)
              for shift in (0, 16, 1) for threads in (1, 2, 8) for own in (True, False)
              if kind != "sendfile" or not own or threads == 1
              if kind != "read" or own]  # read() on one descriptor by several threads: the parts are unknown
cells += generator.sample(everything, 4 if SANITIZED else 12)
Readers.sink = os.memfd_create("sink")
for cell in cells:
    kind, block, shift, threads, own = cell
    if kind == "sendfile" and threads > 1:
        threads = 1  # there is one sink
    mount = Mount(store, OPTIONS)
    readers = Readers(mount, kind, block, shift, threads, own)
    wait_until(lambda: mount.count("inflight") == 0)
    stat = {key: int(value) for key, value in mount.stat().items() if value.isdigit()}
    check(f"{kind} {block}, shift {shift}, {threads} threads{', own' * own}: all bytes are the file's",
          not readers.wrong and readers.bytes == len(want), (readers.wrong[:5], readers.bytes))
    most = (WINDOW if threads == 1 else MEMORY) + BEFORE * min(threads, 4)
    past = own * (threads - 1) * BEFORE  # read-ahead past the end of a part: the next one may be over by then
    check("each chunk was read about once", stat["disk_bytes"] <= store_bytes * 1.15 + past, (stat["disk_bytes"], store_bytes, past))
    if kind != "sendfile":  # goes through the page cache, where a reader is recognised only after a long run
        check("most of it ahead", stat["readahead_extents"] * 3 > stat["disk_reads"], stat)
        check("little memory", stat["chunk_used_bytes"] <= most, (stat["chunk_used_bytes"], most))
    mount.unmount()

print("-- mapped")
mount = Mount(store, OPTIONS.replace("on", "auto"))
with open(mount / name, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
    check("a mapping has the file's bytes", all(pages[at:at + BEFORE] == want[at:at + BEFORE]
                                                for at in range(0, len(want), BEFORE)))
mount.unmount()

print("-- without order")
mount = Mount(store, OPTIONS)
with open(mount / name, "rb", buffering=0) as file:
    wrong = []
    for _ in range(24):
        at, count = generator.randrange(len(want) - (64 << 10)), generator.randrange(1, 64 << 10)
        if os.pread(file.fileno(), count, at) != want[at:at + count]:
            wrong.append(at)
wait_until(lambda: mount.count("inflight") == 0)
check("random reads get the file's bytes", not wrong, wrong)
read = mount.count("disk_bytes")
check("and bring only what they touch", read <= 24 * 2 * (2 << 20), read)
mount.unmount()
done()
