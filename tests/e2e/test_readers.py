# SPDX-License-Identifier: Apache-2.0
"""A cold file read in order past the page cache: into buffers that are page-aligned and that are not; by one thread, by
several that take turns on one descriptor, by several with a descriptor each. Each gets the file's bytes, each byte of the
store is read about once, most of it ahead, and none takes more memory than the read-ahead of its streams. More orders:
engine/test_streams.c; other kinds of readers: test_read.py."""
from e2e import *

need_fuse()
model = make_model("model", "-F", "qwen3-moe", "-d", "512", "-i", "512", "-e", "32", "-l", "3", "--vocab", "1000")
store = make_store(model, "--codec", "cascade")
name = max(files_below(model), key=lambda name: os.path.getsize(f"{model}/{name}"))
want = open(f"{model}/{name}", "rb").read()
store_bytes = os.path.getsize(store)
MIB = 1 << 20
WINDOW = 32 << 20  # the engine's read-ahead of a stream, or of all streams together twice that; less with a smaller budget
BEFORE = WINDOW // 3 + (4 << 20)  # coded bytes read before a reader is recognised as a scan


def read(fd, at, end, block, shift):
    """Reads [at, end) block by block. Returns (offset, bytes) of wrong pieces, and the error that ended it. The kernel
    shortens reads into memory that is not page-aligned."""
    wrong, memory = [], memoryview(mmap.mmap(-1, block + 4096))[shift:]
    try:
        while at < end:
            got = os.preadv(fd, [memory[:min(block, end - at)]], at)
            wrong += [] if got and memory[:got] == want[at:at + got] else [(at, got)]
            at += max(got, 1)
    except OSError as error:
        wrong.append(error)
    return wrong


def in_turn(path, block, shift, threads):
    lock, blocks, wrong, fd = threading.Lock(), iter(range(0, len(want), block)), [], os.open(path, os.O_RDONLY)

    def reader(_):
        while True:
            with lock:
                at = next(blocks, None)
            if at is None:
                return
            wrong.extend(read(fd, at, min(at + block, len(want)), block, shift))

    ended = in_threads(reader, range(threads))
    os.close(fd)
    return wrong if ended else ["a reader hangs"]


def own_part(path, block, shift, threads):
    part, wrong = -(-len(want) // threads), []

    def reader(number):
        fd = os.open(path, os.O_RDONLY)
        wrong.extend(read(fd, part * number, min(part * (number + 1), len(want)), block, shift))
        os.close(fd)

    return wrong if in_threads(reader, range(threads)) else ["a reader hangs"]


for way, block, shift, threads in ((own_part, MIB, 0, 1), (own_part, MIB, 16, 1), (own_part, 777777, 1, 1), (in_turn, MIB, 0, 8),
                                   (in_turn, 8 * MIB, 16, 2), (own_part, MIB, 16, 8), (own_part, 64 << 10, 0, 2)):
    mount = Mount(store, "nostate,nopassthrough,direct_io=on,budget=128M")  # less than the store, which would stay in memory
    what, wrong = f"{way.__name__}, {block}, shift {shift}, {threads} threads", way(mount / name, block, shift, threads)
    mount.wait_idle()
    stat = mount.numbers()
    check(f"{what}: the file's bytes", not wrong, wrong[:5])
    past = (way is own_part) * (threads - 1) * BEFORE  # read-ahead past the end of a part: the next one may be over by then
    check("each chunk was read about once", stat["disk_bytes"] <= store_bytes * 1.15 + past, (stat["disk_bytes"], store_bytes, past))
    check("most of it ahead", stat["readahead_extents"] * 3 > stat["disk_reads"], stat)
    most = (1 if threads == 1 else 2) * WINDOW + BEFORE * min(threads, 4)
    check("little memory", stat["chunk_used_bytes"] <= most, (stat["chunk_used_bytes"], most))
    mount.unmount()
done()
