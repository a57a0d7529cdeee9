# SPDX-License-Identifier: Apache-2.0
"""make bench: measure expertfs against its peers on this machine.

The candidates of a comparison take turns (runner.py); a row is the median ratio and what is wanted. Each figure names its
command, so that it can be run alone. Nothing here passes or fails.

Figures that depend on the distribution of the weights are measured on each kind of weights (weights.py), and the worst
is printed, too.
"""
import contextlib
import functools
import json
import mmap
import os
import random
import shutil
import struct
import subprocess
import sys
import time

import common
import readers as reader_matrix
import weights
from cgroup import limited_disk
from common import BUILD, DIRECT, WORK, daemons, drop, fields, fio, is_mounted, rate, run, tool, touch_memory
from runner import ROUNDS, Rows, machine, turns

QUICK = "--quick" in sys.argv or len(sys.argv) == 1  # reader matrix: fewer sizes and cells, one round each
MOUNT = os.path.join(WORK, "mnt")
table = Rows("bench", row="bench")


def say(text):
    print(f"   {text}", flush=True)


def each_kind(figure, worst):
    """Calls figure(kind, weights, name) -> {what: arguments of row() but the name} for each kind of weights, and prints by worst (max or
    min) the worst value of each what. name: suffix of the checkpoint's name."""
    told = {}
    for kind, given in weights.kinds(WORK, say):
        for what, found in figure(kind, given, "" if kind == "scaled" else f"-{kind}").items():
            told.setdefault(what, []).append((row(f"{what}, {kind}", *found), kind))
    for what, values in told.items():
        value, kind = worst(values)
        say(f"{what + ': the worst':66} {value:>8.4g}   {kind}, of {len(values)} kinds")


def row(name, values, bar="", note="", peer=None, unit=""):
    """Prints and records a figure of one or several rounds; peer: (name, values) that it is compared with, in GB/s. Returns the median."""
    values = values if isinstance(values, list) else [values]
    if peer:
        result = table.compare(values, dict([peer]), "GB/s", what=name)
        value, note = result.ratio, f"({result.low:.2f} to {result.high:.2f}) {result.value:.2f} over {result.peer_value:.2f} GB/s {note}"
    else:
        value = table.values(values, what=name, unit=unit)
    print(f"   {name:66} {value:>8.4g}   {bar:14} {note}", flush=True)
    return value


def model(name, *args):
    directory = os.path.join(WORK, name)
    if not os.path.exists(os.path.join(directory, "config.json")):
        shutil.rmtree(directory, ignore_errors=True)
        run(tool("mkmodel"), *args, directory)
    return directory


def pack(source, *args):
    store = source + ".efs"
    report = json.loads(run(tool("mkexpertfs"), "--force", "--json", *args, source, store, stderr=subprocess.DEVNULL))
    return store, report


def packed(source):
    store = source + ".efs"
    return store if os.path.exists(store) else pack(source)[0]


@contextlib.contextmanager
def steady_disk(path, bytes_per_second):
    """A cgroup in which a file's disk is read at most at this rate; None where there are no such cgroups."""
    device, group = os.stat(path).st_dev, None
    try:
        group = limited_disk(f"{os.major(device)}:{os.minor(device)}", bytes_per_second)
    except OSError as error:
        say(f"the disk is as fast as it is: {error}")
    yield group
    if group:
        group.remove()


def daemon_memory(store):
    """Resident MiB of the daemon that serves a store."""
    kib = 0
    for pid in daemons(store):
        with open(f"/proc/{pid}/status") as f:
            kib += next(int(line.split()[1]) for line in f if line.startswith("VmRSS:"))
    return kib / 1024


class Mounted(common.Mounted):
    def __init__(self, store, options="budget=auto", where=MOUNT, disk=None):
        super().__init__(store, where, options, disk and disk.join)


def stat(where=MOUNT, name="stat"):
    with open(os.path.join(where, ".expertfs", name)) as f:
        return fields(f.read())


# ---- sections --------------------------------------------------------------------------------------------------------

BOUNDS = {"normal": {"bf16": "<= 1.011"}, "scaled": {"bf16": "<= 1.008"},
          "trained": {"bf16": "<= 1.006", "f16": "<= 1.005", "fp8": "<= 1.013"}}


def over_bound(report, tensor_class):
    """Coded bytes over the bytes at the entropy bound with one table per tensor, summed over the rows of a class whose
    tensors have a mean of at least 512 KiB, which excludes the scales of FP8."""
    rows = [r for r in report["rows"]
            if r["class"] == tensor_class and r["elements"] and r["raw_bytes"] / r["tensors"] >= 1 << 19]
    return sum(r["coded_bytes"] for r in rows) / sum(r["bound_bytes"] for r in rows)


def store_over_bound(report):
    """Size of the store's file over the bytes at the bound; rows without a bound count as stored."""
    return report["store_bytes"] / sum(r["bound_bytes"] or r["coded_bytes"] for r in report["rows"])


def of_checkpoint(report):
    return f"store {report['store_bytes'] / report['source_bytes']:.3f} of the checkpoint"


def size():
    """mkexpertfs --json: packed bytes over the bytes at the entropy bound of each tensor, and the whole store over it.

    Tensors of 1 MiB and more are the experts of mkmodel's checkpoints (1.5 to 3 MiB each), and the large tensors of the
    trained model, packed alone: its own weights, rounded to the type. The weights "real" are drawn independently from
    the values of the trained model, so they have no correlation between neighbours."""
    for dtype in ("bf16", "f16", "fp8"):
        def figure(kind, given, name, dtype=dtype):
            source = model(f"size-{dtype}{name}", "--family", "qwen3-moe", "--dtype", dtype, "--layers", "2",
                           "--experts", "16", "--hidden", "2048", "--intermediate", "768", "--vocab", "16384",
                           "--weights", given)
            report = pack(source)[1]
            discard(source)
            bar = BOUNDS.get(kind, {}).get(dtype, "")
            return {f"tensors of 1 MiB and more over the bound, {dtype}":
                    (over_bound(report, "expert"), bar, of_checkpoint(report)),
                    f"whole store over the bound, {dtype}": (store_over_bound(report),)}
        each_kind(figure, max)
    for dtype, source, large in weights.trained(WORK, say):
        report, only_large = pack(source)[1], pack(large)[1]
        discard(source)
        discard(large)
        row(f"trained model, tensors of 1 MiB and more, {dtype}", over_bound(only_large, "dense"), BOUNDS["trained"][dtype])
        row(f"trained model, whole store, {dtype}", store_over_bound(report), "<= 1.008" if dtype == "bf16"
            else "", of_checkpoint(report))


def discard(source):
    """Removes a checkpoint and its store, which no other section reads."""
    shutil.rmtree(source)
    os.unlink(source + ".efs")


def kernels():
    """bench_kernels: decode and merge, memory to memory, one thread, over memcpy of the same bytes. The trained model's
    matrices are repeated to the size of the benchmark."""
    def figure(kind, given, _):
        out = {}
        file = weights.floats(WORK, kind, given)
        for line in run(tool("bench_kernels"), f"--rounds={ROUNDS}", "--weights", file).splitlines():
            result = json.loads(line)
            bf16 = result["format"] == "bf16"
            bar = {"avx512": ">= 1.4", "avx2": ">= 0.6"}.get(result["path"], "") if bf16 else ""
            out[f"decode + merge over memcpy, {result['format']}, {result['path']}"] = (
                result["stream_ratio"], bar,
                f"{result['stream_gbs']:.1f} over {result['memcpy_gbs']:.1f} GB/s, limit {result['limit_ratio']:.2f}; "
                f"encode {result['encode_gbs']:.2f} GB/s")
        return out
    each_kind(figure, min)


def demo(given, name):
    """The demo checkpoint with those weights, and its store."""
    source = model(f"demo{name}", "--preset", "demo", "--weights", given)
    return source, packed(source)


def big_files(directory):
    return sorted(os.path.join(directory, f) for f in os.listdir(directory)
                  if f.endswith(".safetensors") and os.path.getsize(os.path.join(directory, f)) > 100 << 20)


def cold():
    """A fresh mount, the first large file read from its start by pread of 1 MiB; fio reads the original."""
    def figure(_, given, name):
        source, store = demo(given, name)
        file = os.path.basename(big_files(source)[0])

        def ours(*mode):
            touch_memory()
            with Mounted(store):
                return rate("--keep-cache", *mode, os.path.join(MOUNT, file))

        found = turns({"raw": lambda: fio(os.path.join(source, file), *DIRECT), "read": ours, "mmap": lambda: ours("--mode", "mmap")})
        peer = ("fio O_DIRECT", found["raw"])
        return {"cold file, read, over fio O_DIRECT": (found["read"], ">= 1.3 (1.5)", "", peer),
                "cold file, mmap, over fio O_DIRECT": (found["mmap"], "", "", peer)}
    each_kind(figure, min)


def expert_pieces(source):
    """{(layer, expert): [(first, bytes, file)]} of a Qwen3-MoE checkpoint: the ranges of each expert's tensors."""
    experts = {}
    for name in sorted(os.listdir(source)):
        if not name.endswith(".safetensors"):
            continue
        path = os.path.join(source, name)
        with open(path, "rb") as f:
            length = struct.unpack("<Q", f.read(8))[0]
            header = json.loads(f.read(length))
        for tensor, entry in header.items():
            parts = tensor.split(".")
            if "experts" in parts:
                begin, end = entry["data_offsets"]
                key = (int(parts[2]), int(parts[parts.index("experts") + 1]))
                experts.setdefault(key, []).append((8 + length + begin, end - begin, path))
    return experts


def merged(pieces):
    out = []
    for first, count, path in sorted(pieces, key=lambda p: (p[2], p[0])):
        if out and out[-1][2] == path and out[-1][0] + out[-1][1] == first:
            out[-1] = (out[-1][0], out[-1][1] + count, path)
        else:
            out.append((first, count, path))
    return out


def write_list(path, items):
    with open(path, "w") as f:
        for pieces in items:
            f.writelines(f"{first} {count} {name}\n" for first, count, name in pieces)
            f.write("\n")


def experts():
    """64 experts in random order, 4 at a time: expert files of a fresh mount, O_DIRECT reads of the same tensors."""
    def figure(_, given, name):
        source, store = demo(given, name)
        where = expert_pieces(source)
        keys = sorted(where)
        random.Random(1).shuffle(keys)
        keys = keys[:64]
        raw_list, our_list = os.path.join(WORK, "raw.list"), os.path.join(WORK, "ours.list")
        write_list(raw_list, [merged(where[k]) for k in keys])
        write_list(our_list, [[(0, 0, f"{MOUNT}/experts/L{l:02}/E{e:03}.safetensors")] for l, e in keys])

        def ours(*mode, options="budget=auto"):
            touch_memory()
            with Mounted(store, options):
                return rate("--pieces", "--keep-cache", "--threads", "4", *mode, our_list)

        found = turns({"raw": lambda: rate("--pieces", "--threads", "4", "--mode", "direct", raw_list), "read": ours,
                       "mmap": lambda: ours("--mode", "mmap"), "plain": lambda: ours(options="budget=auto,nopassthrough")})
        peer = ("O_DIRECT", found["raw"])
        return {"cold experts, 4 at a time, over O_DIRECT": (found["read"], ">= 1.3 (1.5)", "", peer),
                "the same, mapped": (found["mmap"], "", "", peer),
                "the same, without passthrough": (found["plain"], "", "", peer)}
    each_kind(figure, min)


def hot():
    """16 open experts from the full pool, read and mapped repeatedly; the same files on tmpfs."""
    store = packed(model("demo", "--preset", "demo"))
    shm = "/dev/shm/expertfs-bench"
    with Mounted(store):
        directory = os.path.join(MOUNT, "experts", "L00")
        names = sorted(os.listdir(directory))[:16]
        ours = [os.path.join(directory, n) for n in names]
        shutil.rmtree(shm, ignore_errors=True)
        os.makedirs(shm)
        try:
            for n in names:
                shutil.copyfile(os.path.join(directory, n), os.path.join(shm, n))
            theirs = [os.path.join(shm, n) for n in names]
            held = [open(p, "rb") for p in ours]
            for way in ("pread", "mmap"):
                before = stat()
                found = turns({name: lambda paths=paths: rate("--keep-cache", "--mode", way, "--rounds", "5", *paths)
                               for name, paths in (("ours", ours), ("tmpfs", theirs))})
                row(f"F hit, {way}, over tmpfs", found["ours"], ">= 0.9 (1)",
                    f"; read requests to the daemon: {int(stat()['fuse_reads']) - int(before['fuse_reads'])}", ("tmpfs", found["tmpfs"]))
            for f in held:
                f.close()
        finally:
            shutil.rmtree(shm, ignore_errors=True)


def packing():
    """mkexpertfs on the demo checkpoint, cold page cache; the limit is reading it and writing its store."""
    def figure(_, given, name):
        source, store = demo(given, name)
        share = os.path.getsize(store) / sum(map(os.path.getsize, big_files(source)))
        scratch = os.path.join(WORK, "write.tmp")

        def write():
            written = fio(scratch, "--size=700M", *DIRECT, rw="write")
            os.unlink(scratch)
            return written

        def ours():
            report = pack(source)[1]
            return report["source_bytes"] / report["seconds"] / 1e9

        found = turns({"read": lambda: rate("--mode", "direct", *big_files(source)), "write": write, "ours": ours})
        limits = [1 / (1 / read + share / write) for read, write in zip(found["read"], found["write"])]
        return {"packing, GB/s of input, over reading and then writing": (found["ours"], ">= 0.8 GB/s", "", ("disk's limit", limits))}
    each_kind(figure, min)


def mount():
    """20,000 small experts: from starting the program to the first byte; resident memory of the idle mount."""
    source = model("many", "--family", "qwen3-moe", "--layers", "80", "--experts", "250", "--hidden", "128",
                   "--intermediate", "64", "--vocab", "4096")
    store = packed(source)
    os.makedirs(MOUNT, exist_ok=True)

    def once():
        begin = time.monotonic()
        with Mounted(store):
            with open(os.path.join(MOUNT, "config.json"), "rb") as f:
                assert f.read(1)
            seconds = time.monotonic() - begin
            while int(stat()["plans"]) == 0:  # idle: planned, after measuring the machine on the first mount
                time.sleep(0.02)
            return seconds, daemon_memory(store)

    seconds, resident = zip(*turns({"mount": once})["mount"])
    row("mount of 20,000 experts until the first byte, s", list(seconds), "<= 0.3", unit="s")
    row("resident memory of an idle mount of it, MiB", list(resident), "<= 64", unit="MiB")


LARGE = (("60 GB", "--layers=48", "--experts=128", "--hidden=2048", "--inner=768", "--distinct=64"),
         ("600 GB", "--layers=60", "--experts=384", "--hidden=4096", "--inner=1056", "--distinct=32"))
STRETCH = 256 << 20  # bytes read at each end of a file
MAPPED_STRETCH = 1 << 30  # for mappings: the daemon detects a loader that starts inside a file only after 64 MiB


def stretch(path, from_end, mapped):
    """GB/s of reading the first or the last STRETCH of a file in blocks of 1 MiB, or MAPPED_STRETCH by a mapping."""
    buffer = mmap.mmap(-1, 1 << 20)
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        length = min(MAPPED_STRETCH if mapped else STRETCH, size & ~((1 << 20) - 1))
        first = (size - length if from_end else 0) & ~((1 << 20) - 1)
        begin = time.monotonic()
        if mapped:
            with mmap.mmap(file.fileno(), length, prot=mmap.PROT_READ, offset=first) as view:
                for at in range(0, length, 4096):
                    view[at]
        else:
            for at in range(first, first + length, 1 << 20):
                assert os.preadv(file.fileno(), [buffer], at) > 0
        return length / (time.monotonic() - begin) / 1e9


def floor_mib(store):
    said = subprocess.run([tool("expertfs"), "-f", store, MOUNT, "-o", "budget=1M,nostate"], stderr=subprocess.PIPE,
                          text=True).stderr
    return int(said.split("ask for budget=")[1].split("M")[0])


def large_store(name, *options):
    store = os.path.join(WORK, "large-" + name.replace(" ", "") + ".efs")
    if not os.path.exists(store):
        run(os.path.join(BUILD, "tests/engine/mkstore"), *options, store)
    about = json.loads(run(tool("expertctl"), "info", "--json", store))
    gb, experts = about["source_bytes"] / 1e9, about["experts"]
    os.makedirs(MOUNT, exist_ok=True)

    def idle():
        begin = time.monotonic()
        with Mounted(store, "budget=4G,nostate"):
            with open(os.path.join(MOUNT, "config.json"), "rb") as f:
                assert f.read(1)
            seconds = time.monotonic() - begin
            while int(stat()["plans"]) == 0:
                time.sleep(0.02)
            planning, resident, begin = int(stat(name="plan")["planning_ns"]) / 1e6, daemon_memory(store), time.monotonic()
            run("ls", "-R", MOUNT)
            return seconds, time.monotonic() - begin, resident, planning, big_files(MOUNT)

    def end(files, at_end, mapped):
        with Mounted(store, "budget=4G,nostate"):
            return stretch(files[-1 if at_end else 0], at_end, mapped)

    seconds, listing, memory, plans, files = map(list, zip(*turns({"idle": idle})["idle"]))
    found = turns({(at_end, mapped): lambda at_end=at_end, mapped=mapped: end(files[0], at_end, mapped)
                   for mapped in (False, True) for at_end in (True, False)})
    for what, values, unit, bar in ((f", {experts} experts: mount until the first byte", seconds, "s", "<= 0.3"),
                                    (": ls -R", listing, "s", ""), (": resident memory of an idle mount", memory, "MiB", ""),
                                    (": least budget", [floor_mib(store)], "MiB", "")):
        middle = sorted(values)[len(values) // 2]
        row(name + what, values, bar, f"{middle / gb * 1e3:.2f} {unit} a TB, {middle / experts * 1e3:.2f} a thousand experts", unit=unit)
    row(f"{name}: planning, ms", plans, "<= 100", unit="ms")
    for mapped, what in ((False, "cold read"), (True, "cold mapping")):
        row(f"{name}: {what}, far end over near end", found[True, mapped], ">= 0.9", "", ("near end", found[False, mapped]))


def large():
    """Costs that grow with size: stores of 60 and 600 GB whose experts share a few chunks (tests/engine/mkstore.c)."""
    for one in LARGE:
        large_store(*one)


def peers():
    """For comparison: squashfs (zstd) of the same files, loop-mounted by the kernel, and plain buffered reads."""
    source = model("demo", "--preset", "demo")
    store = packed(source)
    image = os.path.join(WORK, "demo.squashfs")
    if not os.path.exists(image):
        run("mksquashfs", source, image, "-comp", "zstd", "-b", "1M", "-quiet", "-no-progress")
    files = [os.path.basename(f) for f in big_files(source)]
    directory = os.path.join(WORK, "squash")
    os.makedirs(directory, exist_ok=True)
    row("size, expertfs over squashfs (zstd)", os.path.getsize(store) / os.path.getsize(image))

    def squash():
        drop(image)
        return rate(*[os.path.join(directory, f) for f in files])

    def ours():
        touch_memory()
        with Mounted(store):
            return rate("--keep-cache", *[os.path.join(MOUNT, f) for f in files])

    try:
        run("mount", "-o", "loop,ro", image, directory)
        how = "kernel"
        leave = ["umount", directory]
    except subprocess.CalledProcessError:
        run("squashfuse", image, directory)
        how = "squashfuse"
        leave = ["fusermount3", "-u", directory]
    try:
        found = turns({"squashfs": squash, "ours": ours, "buffered": lambda: rate(*[os.path.join(source, f) for f in files])})
    finally:
        run(*leave)
    row(f"cold read, expertfs over squashfs ({how})", found["ours"], "", "", ("squashfs", found["squashfs"]))
    row("cold read, expertfs over buffered reads", found["ours"], "", "", ("buffered reads", found["buffered"]))


def expert_files(where, count):
    names = [os.path.join(where, "experts", layer, name) for layer in sorted(os.listdir(os.path.join(where, "experts")))
             if layer.startswith("L") for name in sorted(os.listdir(os.path.join(where, "experts", layer)))]
    return names[:count]


def c_hit(store):
    """Whole experts from the chunk pool, read past the page cache; the same files on tmpfs; one reader."""
    shm = "/dev/shm/expertfs-bench"
    with Mounted(store, "budget=auto,nopassthrough,direct_io=on,plan=C=100,nostate") as where:
        ours = expert_files(where, 16)
        shutil.rmtree(shm, ignore_errors=True)
        os.makedirs(shm)
        try:
            theirs = [shutil.copyfile(path, os.path.join(shm, str(n))) for n, path in enumerate(ours)]
            before = stat(where)
            found = turns({"ours": lambda: rate("--keep-cache", *ours), "tmpfs": lambda: rate("--keep-cache", *theirs)}, ROUNDS * 5)
            read = int(stat(where)["disk_bytes"]) - int(before["disk_bytes"])
            row("C hit, direct reads, over tmpfs", found["ours"], ">= 0.8", f"{read} bytes read from disk", ("tmpfs", found["tmpfs"]))
        finally:
            shutil.rmtree(shm, ignore_errors=True)


def half_hit(store, pool, share, bar):
    """Reads all experts ROUNDS times from two mounts with the same budget: one caches one component of every expert
    (share: its part of the store), the other nothing. Alternates every 32 experts; the disk is limited to 200 MiB/s if
    possible."""
    other = MOUNT + "-missing"
    with Mounted(store, "budget=64M,nostate") as where:
        fixed = int(stat(where)["fixed_bytes"])
    budget = fixed + (64 << 20) + int(share * os.path.getsize(store))
    options = f"budget={budget},nopassthrough,direct_io=on,policy=lru,nostate,plan="
    with steady_disk(store, 200 << 20) as disk, Mounted(store, options + f"{pool}=100", disk=disk) as hit, \
            Mounted(store, options + "C=1", other, disk) as miss:
        ours, theirs = expert_files(hit, 1000), expert_files(miss, 1000)
        rate("--keep-cache", *ours, *theirs)
        rate("--keep-cache", *ours, *theirs)
        before, before_miss = stat(hit), stat(miss)

        def once():
            got = missed = 0
            for first in range(0, len(ours), 32):
                got += 1 / rate("--keep-cache", *ours[first:first + 32])
                missed += 1 / rate("--keep-cache", *theirs[first:first + 32])
            return got / missed

        times = turns({"both": once})["both"]
        after, after_miss = stat(hit), stat(miss)
        disk = [int(b["disk_bytes"]) - int(a["disk_bytes"]) for a, b in ((before, after), (before_miss, after_miss))]
        found = {name: int(after["requests_" + name]) - int(before["requests_" + name]) for name in "fcsepm"}
        row(f"{pool} hit over M, time", times, bar,
            f"{disk[0] / max(disk[1], 1):.2f} of the bytes read; found {found}")


def states():
    """Experts served from each state (C, S, E, M), the cost of the policy, the time of planning."""
    store = packed(model("demo", "--preset", "demo"))
    c_hit(store)
    half_hit(store, "S", 0.78, "<= 0.65")
    half_hit(store, "E", 0.27, "<= 0.85")
    small = packed(model("wide", "--family", "qwen3-moe", "--layers", "8", "--experts", "128", "--hidden", "256",
                         "--intermediate", "64", "--vocab", "2048"))
    generator = random.Random(3)
    with Mounted(small, "budget=128M,nostate") as where:
        with open(expert_files(where, 1)[0], "rb") as held:
            held.read(1)
        requests = 4000
        for n in range(requests // 8):
            chosen = [min(int(generator.expovariate(1 / 16)), 127) for _ in range(40)]
            with open(os.path.join(where, ".expertfs", "want"), "w") as want:
                want.write("".join(f"{layer}: {' '.join(map(str, list(dict.fromkeys(chosen[layer:]))[:8]))}\n"
                                   for layer in range(8)))
        after = stat(where)
        row("policy and counters, us a request of 8 experts", int(after["policy_ns"]) / requests / 1e3, "<= 5", unit="us")
        subprocess.run(["setfattr", "-n", "user.expertfs.goal", "-v", "makespan", where], check=True)
        subprocess.run(["setfattr", "-n", "user.expertfs.goal", "-v", "io", where], check=True)
        time.sleep(0.5)
        plan = stat(where, "plan")
        row("planning, 128 experts, four pools, ms", int(plan["planning_ns"]) / 1e6, "<= 100",
            f"k {plan['chosen']}, pools {plan['allowed']}, {plan['skew']}")


def readers():
    """The reader matrix (readers.py): a cold file by all ways to read it; READERS and READER_KIB choose some."""
    source = model("demo", "--preset", "demo")
    reader_matrix.run(sys.modules[__name__], source, packed(source), QUICK)


class Nothing:
    """A mount of the minimal FUSE file system (tools/bench_fuse). ahead_kib: read-ahead of the mount; None: default."""

    def __init__(self, cached, ahead_kib=None):
        self.options = ["--cached"] if cached else []
        self.ahead_kib = ahead_kib

    def __enter__(self):
        os.makedirs(MOUNT, exist_ok=True)
        self.daemon = subprocess.Popen([tool("bench_fuse"), *self.options, MOUNT], stdin=subprocess.DEVNULL)
        while not is_mounted(MOUNT):
            if self.daemon.poll() is not None:
                sys.exit("bench_fuse did not mount")
            time.sleep(0.01)
        if self.ahead_kib:
            device = os.stat(MOUNT).st_dev
            with open(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb", "w") as f:
                f.write(str(self.ahead_kib))
        return os.path.join(MOUNT, "data")

    def __exit__(self, *_):
        run("fusermount3", "-u", MOUNT)
        self.daemon.wait()


def limits():
    """Limits of the kernel and this machine: a minimal FUSE file system (256 MiB, the same request sizes), a copy from
    tmpfs, the disk. Needs root to set the read-ahead."""
    shm = "/dev/shm/expertfs-bench"
    ways = [("pread", 64, 1, 0), ("pread", 64, 4, 0), ("pread", 1024, 1, 0), ("pread", 1024, 1, 16),
            ("pread", 1024, 1, 1), ("pread", 1024, 4, 0)]
    def measure(path, mode, kib, threads=1, shift=0):
        return rate("--keep-cache", "--team", "shared", "--mode", mode, "--block", str(kib), "--threads", str(threads), "--shift", str(shift),
                    path)

    def fuse(*way):
        with Nothing(False) as path:
            return measure(path, *way)

    def ahead(mode, kib):
        touch_memory(reader_matrix.TOUCHED)
        with Nothing(True, kib) as path:
            return measure(path, mode, 1024)

    def again(threads, path=None):
        """The second of two passes through the page cache."""
        with contextlib.nullcontext(path) if path else Nothing(True) as name:
            measure(name, "pread", 1024, threads)
            return measure(name, "pread", 1024, threads)

    source = big_files(model("demo", "--preset", "demo"))[0]
    os.makedirs(shm, exist_ok=True)
    try:
        with open(os.path.join(shm, "data"), "wb") as f:
            f.write(b"\1" * (256 << 20))
        passes = [((who, threads), again, (threads, path)) for threads in (1, 4) for who, path in (("again", None), ("cached", source))]
        found = turns({name: functools.partial(call, *arguments) for name, call, arguments in
                       [(("FUSE", *way), fuse, way) for way in ways] +
                       [(("tmpfs", *way), measure, (os.path.join(shm, "data"), *way)) for way in ways] +
                       [((mode, kib), ahead, (mode, kib)) for mode in ("mmap", "sendfile") for kib in (128, 256, 1024)] + passes})
    finally:
        shutil.rmtree(shm, ignore_errors=True)
    for way in ways:
        mode, kib, threads, shift = way
        row(f"FUSE over tmpfs, {mode} of {kib} KiB, {threads} thread{'s' * (threads > 1)}, {reader_matrix.SHIFTS[shift]}",
            found["FUSE", *way], "", "", ("tmpfs", found["tmpfs", *way]))
    for mode in ("mmap", "sendfile"):
        for kib in (128, 256, 1024):
            row(f"FUSE, cold, {mode} of 1 MiB, read-ahead {kib} KiB, GB/s", found[mode, kib], unit="GB/s")
    for threads in (1, 4):
        row(f"FUSE, second pass by pread of 1 MiB over that of the disk's file system, {threads} thread{'s' * (threads > 1)}",
            found["again", threads], "", "", ("page cache", found["cached", threads]))
    row("disk, O_DIRECT reads, GB/s", turns({"disk": lambda: fio(source, *DIRECT)})["disk"], unit="GB/s")


SECTIONS = {"size": size, "kernels": kernels, "cold": cold, "experts": experts, "hot": hot, "pack": packing,
            "mount": mount, "large": large, "peers": peers, "states": states, "readers": readers,
            "limits": limits}


def main():
    chosen = [name for name in sys.argv[1:] if name != "--quick"] or list(SECTIONS)
    if any(name not in SECTIONS for name in chosen):
        sys.exit(f"usage: tools/bench/run [--quick] [{' '.join(SECTIONS)}]...")
    os.makedirs(WORK, exist_ok=True)
    print(f"{machine()}; medians of {ROUNDS}, taking turns; rows in {table.path}")
    for name in chosen:
        print(f"\n{name}: {SECTIONS[name].__doc__.strip()}")
        SECTIONS[name]()


if __name__ == "__main__":
    main()
