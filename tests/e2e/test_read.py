# SPDX-License-Identifier: Apache-2.0
"""Every file comes back byte for byte, however it is read: whole, in random pieces, past its end, with O_DIRECT, by
shared and private mappings, by many readers at once; with each way of serving and with little memory."""
import errno
import mmap
import os
import random
import threading

from e2e import *

need_fuse()
model = make_model()
store = make_store(model)
names = files_below(model)
source = {name: open(f"{model}/{name}", "rb").read() for name in names}
large = max(names, key=lambda name: len(source[name]))


def same_files(mount):
    bad = [name for name in names if open(mount / name, "rb").read() != source[name]]
    check(f"{len(names)} files are the same", not bad, bad)
    bad = [name for name in names if os.stat(mount / name).st_size != len(source[name])]
    check("their sizes are the same", not bad, bad)


def expert_files(mount):
    return [f"experts/{name}" for name in files_below(mount / "experts") if "/" in name]


def same_experts(mount):
    want = tensors_of(model)
    seen, bad = set(), []
    for name in expert_files(mount):
        data = open(mount / name, "rb").read()
        header, base = safetensors_header(data)
        if base % 4096:
            bad.append(f"{name}: data at {base}")
        for tensor, entry in header.items():
            begin, end = entry["data_offsets"]
            seen.add(tensor)
            if data[base + begin:base + end] != want[tensor]:
                bad.append(f"{name}: {tensor}")
    check(f"{len(seen)} tensors below experts/ are the same", not bad and seen == {name for name in want if ".experts." in name}, bad)


def random_reads(mount, name, want, seed, count=150):
    generator = random.Random(seed)
    size = len(want)
    fd = os.open(mount / name, os.O_RDONLY)
    bad = []
    for _ in range(count):
        length = generator.choice([1, 2, 511, 4096, 4097, 65536, 1 << 20, (1 << 20) + 1, 3 << 20])
        offset = generator.choice([generator.randrange(size + 10000), generator.randrange(size) & ~4095, size - 1, size,
                                   size + 1, 0])
        if os.pread(fd, length, offset) != want[offset:offset + length]:
            bad.append((offset, length))
    os.close(fd)
    return bad


def direct_reads(mount, name, want):
    try:
        fd = os.open(mount / name, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        return [f"open: {error}"]
    memory = mmap.mmap(-1, 2 << 20)
    bad = []
    for offset, length in ((0, 4096), (4096, 1 << 20), (1 << 20, 2 << 20), (len(want) & ~4095, 4096),
                           ((len(want) + 4095) & ~4095, 4096)):
        n = os.preadv(fd, [memoryview(memory)[:length]], offset)
        if memory[:n] != want[offset:offset + length]:
            bad.append((offset, length, n))
    for offset, length in ((1, 4096), (4096, 100), (513, 513)):  # unaligned: served, or refused as the system may
        try:
            n = os.preadv(fd, [memoryview(memory)[:length]], offset)
            if memory[:n] != want[offset:offset + length]:
                bad.append((offset, length, n))
        except OSError as error:
            if error.errno != errno.EINVAL:
                bad.append((offset, length, str(error)))
    os.close(fd)
    return bad


def mapped_reads(mount, name, want):
    bad = []
    with open(mount / name, "rb") as file:
        for flags, protection in ((mmap.MAP_SHARED, mmap.PROT_READ), (mmap.MAP_PRIVATE, mmap.PROT_READ),
                                  (mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)):
            view = mmap.mmap(file.fileno(), 0, flags=flags, prot=protection)
            generator = random.Random(len(want))
            for _ in range(50):
                offset = generator.randrange(len(want))
                if view[offset:offset + 5000] != want[offset:offset + 5000]:
                    bad.append((flags, protection, offset))
            if view[:] != want:
                bad.append((flags, protection, "all"))
            if protection & mmap.PROT_WRITE:
                view[0:4] = b"mine"
                if view[0:4] != b"mine" or os.pread(file.fileno(), 4, 0) != want[:4]:
                    bad.append("a private page shows in the file")
            view.close()
    return bad


def many_readers(mount):
    experts = expert_files(mount)
    want = {name: open(mount / name, "rb").read() for name in experts}
    want.update(source)
    bad = []

    def reader(seed):
        generator = random.Random(seed)
        for _ in range(6):
            name = generator.choice(sorted(want))
            try:
                if generator.random() < 0.5:
                    if open(mount / name, "rb").read() != want[name]:
                        bad.append(name)
                elif want[name]:
                    bad.extend(random_reads(mount, name, want[name], seed, 10))
            except OSError as error:
                bad.append(f"{name}: {error}")

    threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check("12 readers at once see the same bytes", not bad, bad[:5])


def whole(options):
    print(f"-- options: {options or 'none'}")
    with_options = Mount(store, options)
    mount = with_options
    note(f"{mount.config()['serving_path']}: {mount.config()['serving_reason']}")
    same_files(mount)
    same_experts(mount)
    expert = expert_files(mount)[3]
    expert_bytes = open(mount / expert, "rb").read()
    bad = random_reads(mount, large, source[large], 1) + random_reads(mount, expert, expert_bytes, 2)
    check("random reads, also past the end", not bad, bad[:5])
    bad = direct_reads(mount, large, source[large]) + direct_reads(mount, expert, expert_bytes)
    check("O_DIRECT, aligned and not", not bad, bad)
    bad = mapped_reads(mount, large, source[large]) + mapped_reads(mount, expert, expert_bytes)
    check("mappings, shared and private", not bad, bad[:5])
    many_readers(mount)
    same_files(mount)
    stat = mount.stat()
    errors = {name: stat[name] for name in ("read_errors", "fuse_reply_errors", "lease_errors", "disk_errors",
                                            "chunks_damaged") if stat[name] != "0"}
    check("no errors were counted", not errors, errors)
    mount.unmount()


for options in ("", "nopassthrough", "direct_io=off", "nopassthrough,direct_io=off", "workers=1",
                "budget=64M", "budget=64M,nopassthrough"):
    whole(options)
done()
