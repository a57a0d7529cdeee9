# SPDX-License-Identifier: Apache-2.0
"""Sequential reads past the page cache: the next block is decoded before it is requested, and a reader gets the file's
bytes whether it requests that block late, early, never or twice."""
from e2e import *

need_fuse()
model = make_model()
store = make_store(model, "--codec", "cascade")  # decoded by the thread that has the request
names = [name for name in files_below(model) if os.path.getsize(f"{model}/{name}") > 3 << 20]
source = contents(model)
BLOCK = 1 << 20


PACE = 32 << 10


def in_order(mount, name, block, first=0, most=None, paced=False):
    """Reads a file block by block from `first` up to `most`, into page-aligned memory; returns wrong blocks. paced:
    waits at least every PACE bytes until started decodes are complete, as for a reader that computes on the data."""
    fd, want, bad, pages = os.open(mount / name, os.O_RDONLY), source[name], [], mmap.mmap(-1, block)
    for at in range(first, min(len(want), most or len(want)), block):
        if pages[:os.preadv(fd, [pages], at)] != want[at:at + block]:
            bad.append((name, at))
        if paced and at // PACE != (at + block) // PACE:
            wait_until(lambda: sums(mount))
    os.close(fd)
    return bad


def sums(mount):
    stat = mount.numbers()
    return (stat["reads"] == stat["fuse_reads"] + stat["fuse_aheads"] - stat["fuse_ahead_hits"] and
            stat["read_bytes"] == stat["fuse_reply_bytes"] + stat["fuse_ahead_bytes"] - stat["fuse_ahead_hit_bytes"] and
            stat["read_errors"] == stat["fuse_reply_errors"] + stat["fuse_ahead_errors"])


for options in ("", ",budget=64M"):  # the second one has one buffer for such blocks
    print(f"-- {options or 'default'}")
    mount = Mount(store, "nostate,direct_io=on,nopassthrough,plan=C=100" + options)
    bad = [wrong for name in names for wrong in in_order(mount, name, BLOCK)]
    before = mount.numbers()
    bad += [wrong for name in names for wrong in in_order(mount, name, BLOCK)]
    after = mount.numbers()
    check("files block by block are the same, twice", not bad, bad)
    hits = after["fuse_ahead_hits"] - before["fuse_ahead_hits"]
    check("blocks in memory were there before they were asked for", 0 < hits < after["fuse_reads"] - before["fuse_reads"], hits)
    check("none was decoded in vain", hits == after["fuse_aheads"] - before["fuse_aheads"], hits)
    before = mount.numbers()
    bad = []
    cut = memoryview(mmap.mmap(-1, BLOCK + 4096))[32:32 + BLOCK]
    for name in names:  # into memory that is not page-aligned: the kernel shortens the read by a few bytes
        fd = os.open(mount / name, os.O_RDONLY)
        for at in range(0, len(source[name]), BLOCK):
            bad += [at] if cut[:os.preadv(fd, [cut], at)] != source[name][at:at + BLOCK] else []
            wait_until(lambda: sums(mount))
        os.close(fd)
    after = mount.numbers()
    hits = after["fuse_ahead_hits"] - before["fuse_ahead_hits"]
    check("the same for reads that the kernel cuts",
          not bad and hits and hits == after["fuse_aheads"] - before["fuse_aheads"],
          (hits, bad))
    bad = [wrong for block in (BLOCK - 4096, 300000, 3 * BLOCK + 1, 1000) for wrong in in_order(mount, names[0], block)]
    check("blocks of other sizes are the same", not bad, bad)
    for block in (4096, 16384, 65536, 5000, 98304):
        before = mount.numbers()
        bad = in_order(mount, names[0], block, paced=True)
        after = mount.numbers()
        asked, hits = after["fuse_reads"] - before["fuse_reads"], after["fuse_ahead_hits"] - before["fuse_ahead_hits"]
        check(f"reads of {block} are the same, and mostly parts of what was decoded already", not bad and hits > asked / 2,
              (asked, hits, bad))
        decoded = after["decoded_bytes"] - before["decoded_bytes"]
        check(f"reads of {block}: what was decoded is read before it is dropped", decoded <= 1.25 * len(source[names[0]]),
              (decoded, len(source[names[0]])))
    before, spare = mount.numbers(), lambda numbers: numbers["fuse_ahead_bytes"] - numbers["fuse_ahead_hit_bytes"]
    bad = [wrong for name in names for most in (BLOCK, 2 * BLOCK + 5) for wrong in in_order(mount, name, BLOCK, 0, most)]
    bad += [wrong for name in names for wrong in in_order(mount, name, BLOCK, 777)]
    check("who stops, or begins somewhere, leaves nothing wrong behind", not bad, bad)
    wait_until(lambda: sums(mount))
    vain = spare(mount.numbers()) - spare(before)
    check("for each of these readers at most a block was decoded that it did not read", 0 < vain <= 3 * len(names) * BLOCK, vain)

    wrong, generator = [], random.Random(7)
    opened = {name: os.open(mount / name, os.O_RDONLY) for name in names}

    def reader(seed):
        mine = random.Random(seed)
        for _ in range(30):
            name = mine.choice(names)
            if mine.random() < 0.5:
                wrong.extend(in_order(mount, name, mine.choice([BLOCK, BLOCK // 2, BLOCK // 16])))
                continue
            at = mine.randrange(len(source[name]) // BLOCK) * BLOCK
            for offset in range(at, min(at + 3 * BLOCK, len(source[name])), BLOCK):
                if os.pread(opened[name], BLOCK, offset) != source[name][offset:offset + BLOCK]:
                    wrong.append((name, offset))

    ended = in_threads(reader, range(6))
    for fd in opened.values():
        os.close(fd)
    check("many readers, of the same open files too, get the same bytes", ended and not wrong, wrong[:5])
    check("reads of engine and daemon add up", wait_until(lambda: sums(mount)), mount.numbers())
    mount.unmount()

print("-- damage")
flip(store, os.path.getsize(store) // 2, 0xff, 1 << 16)
mount = Mount(store, "nostate,direct_io=on,nopassthrough,plan=C=100")
for block in (BLOCK, 16384):
    first, second = (read_pieces(mount, {name: source[name] for name in names}, block, (errno.EUCLEAN,)) for _ in range(2))
    check(f"{block}: damage is an error, each time, and nothing else is lost",
          first == second and first[0] and first[1] and not first[2], (first[0], first[1][:5], first[2][:5], second[1][:5]))
random_order = sorted(((name, at) for name in names for at in range(0, len(source[name]), 16384)), key=lambda _: random.random())
alone = set()
for name, at in random_order:
    fd = os.open(mount / name, os.O_RDONLY)
    try:
        os.pread(fd, 16384, at)
    except OSError:
        alone.add((name, at))
    os.close(fd)
check("in order, no more is refused than what is damaged itself", alone == set(first[1]), (len(alone), len(first[1])))
check("reads of engine and daemon add up", wait_until(lambda: sums(mount)), mount.numbers())
mount.unmount()
done()
