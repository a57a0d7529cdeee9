# SPDX-License-Identifier: Apache-2.0
"""What the page cache holds of the mount: measured right, held below a limit while readers are at work, never in the way
of umount or of passthrough; and what happens on kernels and in containers that lack the calls."""
import ctypes
import errno
import mmap
import random
import threading

from e2e import *

need_fuse()
MIB = 1 << 20
PLAIN = "nopassthrough,direct_io=off,budget=256M"
CACHESTAT, OPEN_TREE = 451, 428
SECONDS = float(os.environ.get("SOAK_SECONDS", "6"))
model = make_model("model", "-F", "qwen3-moe", "-d", "1024", "-i", "768", "-e", "8", "-l", "8", "--vocab", "2000")
store = make_store(model)
BIG = "model.safetensors"
SIZE = os.path.getsize(f"{model}/{BIG}")
libc = ctypes.CDLL(None, use_errno=True)


def cached(path):
    """Bytes of a file in the page cache, as this process finds them; None where there is no cachestat."""
    span, result = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    fd = os.open(path, os.O_RDONLY)
    try:
        if libc.syscall(CACHESTAT, fd, span, result, 0):
            return None
        return result[0] * mmap.PAGESIZE
    finally:
        os.close(fd)


def wait_for_bytes(mount, condition):
    """Until a figure that was found after now holds."""
    rounds = mount.count("page_cache_rounds")
    return wait_until(lambda: mount.count("page_cache_rounds") > rounds and condition(mount.count("page_cache_bytes")))


def held(mount, limit):
    """The limit is held: the daemon says so, and in truth, if this process can find out."""
    return wait_until(lambda: mount.count("page_cache_bytes") <= limit and (cached(mount / BIG) or 0) <= limit)


def read_all(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(MIB):
            pass


can_measure = cached(__file__) is not None
original = open(f"{model}/{BIG}", "rb").read()


def measured():
    print("-- measured")
    mount = Mount(store, PLAIN)
    check("nothing is there at first", mount.count("page_cache_bytes") == 0)
    read_all(mount / BIG)
    pages = -(-SIZE // mmap.PAGESIZE) * mmap.PAGESIZE
    check(f"{SIZE // MIB} MiB that were read are found, as this process finds them", wait_until(
          lambda: pages // 2 < mount.count("page_cache_bytes") == (cached(mount / BIG) if can_measure else pages)),
          (cached(mount / BIG), mount.stat()))
    stat = mount.stat()
    if can_measure:
        check("the figure was measured, and has an age", stat["page_cache_measured"] == "1" and
              int(stat["page_cache_age_ns"]) > 0 and int(stat["page_cache_rounds"]) > 0, stat)
        check("nothing was given up without a limit", stat["page_cache_evictions"] == "0" and
              stat["page_cache_limit_bytes"] == "0", stat)
        fd = os.open(mount / BIG, os.O_RDONLY)
        os.posix_fadvise(fd, 0, SIZE // 2 & ~(64 * MIB - 1), os.POSIX_FADV_DONTNEED)
        left = cached(mount / BIG)
        os.pread(fd, 4096, 0)  # so that it looks at once
        os.close(fd)
        check("it sees that pages went", left < pages - 64 * MIB and
              wait_until(lambda: mount.count("page_cache_bytes") == cached(mount / BIG)), (left, mount.stat()))
    opens = mount.count("fuse_opens")
    check("its own opens are counted apart", mount.count("fuse_opens") == opens + 1 and
          (mount.count("page_cache_opens") > 0) == can_measure, mount.stat())
    mount.unmount()


class Readers:
    """Eight at work on all of a file: four read, four have it mapped (a mapping dies with the mount, and who uses it then,
    too). Every byte that they get is compared."""

    def __init__(self, path, mapped=True):
        self.mapped = mapped
        self.stop, self.wrong, self.pieces = threading.Event(), [], [0] * 8
        self.threads = [threading.Thread(target=self.work, args=(path, number)) for number in range(8)]
        for thread in self.threads:
            thread.start()

    def work(self, path, number):
        generator = random.Random(number)
        try:
            with open(path, "rb", buffering=0) as file:
                mapping = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ) if self.mapped and number % 2 else None
                while not self.stop.is_set():
                    at, count = generator.randrange(SIZE - MIB), generator.randrange(1, MIB)
                    piece = mapping[at:at + count] if mapping else os.pread(file.fileno(), count, at)
                    if piece != original[at:at + count]:
                        self.wrong.append((number, at, count))
                    self.pieces[number] += 1
        except Exception as problem:
            self.wrong.append((number, problem))

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
        return not any(thread.is_alive() for thread in self.threads)


def soak(what, mount, limit):
    """Readers at work while the limit is held; returns the numbers at the end."""
    readers = Readers(mount / BIG)
    end, most = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        time.sleep(0.05)
        most = max(most, mount.count("page_cache_bytes"))
    check(f"{what}: ranges are given up meanwhile", wait_until(lambda: mount.count("page_cache_evictions") > 20),
          mount.stat())
    check(f"{what}: readers end", readers.end())
    check(f"{what}: every one got all of its bytes right", not readers.wrong and min(readers.pieces) > 0,
          (readers.wrong[:5], readers.pieces))
    check(f"{what}: the limit holds when they have ended", held(mount, limit), (cached(mount / BIG), mount.stat()))
    stat = mount.stat()
    note(f"{sum(readers.pieces)} pieces; at most {most / MIB:.0f} MiB of {limit // MIB} were seen; "
         f"{stat['page_cache_rounds']} rounds, {int(stat['page_cache_dropped_bytes']) // MIB} MiB dropped, "
         f"{int(stat['page_cache_invalidated_bytes']) // MIB} MiB invalidated")
    return stat


def bounded():
    print("-- held below a limit")
    limit = 64 * MIB
    mount = Mount(store, PLAIN + ",page_cache=64M")
    read_all(mount / BIG)
    check("after one reader", held(mount, limit), (cached(mount / BIG), mount.stat()))
    soak("8 readers", mount, limit)
    readers = Readers(mount / BIG, mapped=False)
    wait_until(lambda: min(readers.pieces) > 0)
    evictions = mount.count("page_cache_evictions")
    wait_until(lambda: mount.count("page_cache_evictions") > evictions)
    mount.stop("SIGTERM amid readers and evictions")
    check("its readers end", readers.end())

    print("-- set while it serves")
    mount = Mount(store, PLAIN)
    read_all(mount / BIG)
    check("no limit at first", wait_for_bytes(mount, lambda found: found > SIZE // 2) and
          mount.count("page_cache_evictions") == 0, mount.stat())
    os.setxattr(mount.path, "user.expertfs.page_cache", b"64M")
    check("then one, which holds without further reads", held(mount, limit), mount.stat())
    os.setxattr(mount.path, "user.expertfs.page_cache", b"off")
    read_all(mount / BIG)
    check("then none again", wait_for_bytes(mount, lambda found: found > SIZE // 2), mount.stat())
    mount.unmount()

    print("-- a limit smaller than a range; one larger than all")
    mount = Mount(store, PLAIN + ",page_cache=1M")
    read_all(mount / BIG)
    check("smaller", held(mount, MIB), (cached(mount / BIG), mount.stat()))
    mount.unmount()
    mount = Mount(store, PLAIN + ",page_cache=8G")
    read_all(mount / BIG)
    check("larger: nothing goes", wait_for_bytes(mount, lambda found: found > SIZE // 2) and
          mount.count("page_cache_evictions") == 0, mount.stat())
    mount.unmount()


def mappings():
    print("-- what is mapped goes last")
    if not can_measure:
        note("left out: without cachestat all is taken alike")
        return
    mount = Mount(store, PLAIN + ",page_cache=192M")
    with open(mount / BIG, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 64 * MIB, prot=mmap.PROT_READ)
        mapping[::mmap.PAGESIZE]
        reads = mount.count("fuse_reads")
        for _ in range(3):  # more than the limit each time, and younger than what is mapped
            for at in range(64 * MIB, SIZE, MIB):
                os.pread(file.fileno(), MIB, at)
            held(mount, 192 * MIB)
        stat = mount.stat()
        check("pages that were read went, mapped ones did not", int(stat["page_cache_dropped_bytes"]) > 64 * MIB and
              int(stat["page_cache_invalidated_bytes"]) <= int(stat["page_cache_dropped_bytes"]) // 2, stat)
        check("the mapping has the right bytes", mapping[:] == original[:64 * MIB])
        mapping.close()
    mount.unmount()


def never_busy(what, prefix=()):
    """Read, close, unmount at once, again and again: umount never finds the mount busy."""
    problems = []
    for number in range(12):
        mount = Mount(store, PLAIN + ",page_cache=32M", prefix=prefix, name="busy")
        for _ in range(number % 3 + 1):
            with open(mount / BIG, "rb", buffering=0) as file:
                file.read(MIB)
                os.pread(file.fileno(), MIB, random.randrange(SIZE))
        time.sleep(random.random() * 0.3 if number % 2 else 0)
        result = run("umount", mount.path) if os.geteuid() == 0 else run("fusermount3", "-u", mount.path)
        problems += [result.stderr] if result.returncode else []
        try:
            problems += [mount.printed()] if mount.daemon.wait(60) else []
        except subprocess.TimeoutExpired:
            problems.append("the daemon did not end")
        mount.abandon()
    check(f"{what}: 12 times umount, and the daemon has ended", not problems, problems)


def busy_with_readers():
    print("-- umount while the watcher works")
    never_busy("through a clone" if os.geteuid() == 0 else "by path")
    mount = Mount(store, PLAIN + ",page_cache=16M")
    readers = Readers(mount / BIG)
    wait_until(lambda: mount.count("page_cache_evictions") > 20)
    result = run("umount", "-l", mount.path) if os.geteuid() == 0 else run("fusermount3", "-uz", mount.path)
    check("lazily, under readers", result.returncode == 0, result.stderr)
    before = sum(readers.pieces)
    check("they go on", wait_until(lambda: sum(readers.pieces) > before + 200) and not readers.wrong, readers.wrong[:3])
    readers.end()
    check("all bytes right", not readers.wrong, readers.wrong[:3])
    mount.ended("and when they have closed")


def with_passthrough():
    print("-- passthrough")
    mount = Mount(store, "direct_io=off,budget=512M")
    if not mount.passthrough():
        note(f"left out: {mount.config()['passthrough_reason']}")
        mount.unmount()
        return
    experts = [f"experts/{name}" for name in files_below(mount / "experts") if "/" in name][:8]
    held = [open(mount / name, "rb") for name in experts]
    for file in held:
        file.read()
    read_all(mount / "config.json")
    check("memory files are not counted twice", wait_for_bytes(mount, lambda found: found == mmap.PAGESIZE), mount.stat())
    check("the watcher opened no expert", mount.count("leases") == len(experts) and
          mount.count("page_cache_opens") <= 2 * mount.count("page_cache_rounds"), mount.stat())
    for file in held:
        file.close()
    mount.unmount()


def now_and_then_with_passthrough():
    """Room for one lease, so that an expert is now served through the page cache, and watched, now by the kernel. The
    kernel takes no open of another kind meanwhile; the watcher's must not be in the way."""
    source, want = scratch("source"), random.Random(5).randbytes(300000)
    os.makedirs(f"{source}/experts/L00")
    for number in range(2):
        with open(f"{source}/experts/L00/E00{number}.safetensors", "wb") as file:
            file.write(want)
    mount = Mount(source, "direct_io=off,page_cache=4K", fake=True, environment={"EFS_FAKE_ROOM": "1"})
    if not mount.passthrough():
        mount.unmount()
        return
    wrong = []
    for number in range(60):
        one, other = (mount / f"experts/L00/E00{(number + k) % 2}.safetensors" for k in range(2))
        with open(one, "rb") as leased, open(other, "rb") as plain:
            for file in leased, plain:
                if file.read() != want:
                    wrong.append((number, file.name))
        if not wait_until(lambda: mount.count("leased_experts") == 0, 10):
            note("a lease stays")
    stat = mount.stat()
    check("60 turns of both ways, every byte right", not wrong, wrong[:5])
    check("and both ways served", int(stat["fuse_opens_passthrough"]) >= 60 and int(stat["fuse_opens_cached"]) >= 30, stat)
    check("and were watched", wait_until(lambda: mount.count("page_cache_rounds") > 0 and mount.count("page_cache_bytes") <= 4096),
          mount.stat())
    mount.unmount()


def calls_that_fail():
    print("-- calls that fail")
    if not without_calls(errno.ENOSYS, CACHESTAT):
        return
    for error, reason in ((errno.ENOSYS, "the kernel has no cachestat"), (errno.EPERM, "the daemon may not use cachestat")):
        mount = Mount(store, PLAIN + ",page_cache=64M", prefix=without_calls(error, CACHESTAT))
        check(f"{os.strerror(error)}: said in config, stat and log", reason in mount.config()["page_cache_reason"] and
              mount.stat()["page_cache_measured"] == "0" and wait_until(lambda: reason in mount.printed()), mount.printed())
        stat = soak(os.strerror(error), mount, 64 * MIB)
        check("without opens", stat["page_cache_opens"] == "0" and stat["page_cache_measured"] == "0", stat)
        mount.unmount()
    never_busy("by path", without_calls(errno.EPERM, OPEN_TREE))
    if can_measure:
        mount = Mount(store, PLAIN + ",page_cache=64M", prefix=without_calls(errno.EPERM, OPEN_TREE))
        with open(mount / BIG, "rb") as file:
            file.read(MIB)
            check("by path: measured while a file is open", wait_until(lambda: mount.stat()["page_cache_measured"] == "1"
                  and mount.count("page_cache_bytes") >= MIB), mount.stat())
        soak("by path", mount, 64 * MIB)
        mount.unmount()


measured()
bounded()
mappings()
busy_with_readers()
with_passthrough()
now_and_then_with_passthrough()
calls_that_fail()
done()
