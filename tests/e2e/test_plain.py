# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are mounted without being packed: bytes by read(), by mappings and as experts are those of the
sources and of packed stores of them; files that change, and bytes that differ when they are read again."""
from e2e import *

need_fuse()
GGUF = ("-F", "qwen3-moe", "--format", "gguf", "-d", "256", "-i", "512", "-e", "8", "-l", "3", "--vocab", "1000")
ctl = program("expertctl")


def cut_gguf(path, folder):
    """Writes the GGUF file as two parts, as llama.cpp's gguf-split does: metadata and half of the tensors, the rest."""
    data = open(path, "rb").read()
    tensors, pairs = struct.unpack_from("<QQ", data, 8)
    at = 24
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def string():
        nonlocal at
        length = struct.unpack_from("<Q", data, at)[0]
        at += 8 + length

    def value(kind):
        nonlocal at
        if kind == 8:
            string()
        elif kind == 9:
            inner, count = struct.unpack_from("<IQ", data, at)
            at += 12
            for _ in range(count):
                value(inner)
        else:
            at += sizes[kind]
    for _ in range(pairs):
        string()
        kind = struct.unpack_from("<I", data, at)[0]
        at += 4
        value(kind)
    metadata = data[24:at]
    entries = []
    for _ in range(tensors):
        begin = at
        string()
        dims = struct.unpack_from("<I", data, at)[0]
        at += 4 + 8 * dims + 4
        entries.append((data[begin:at], struct.unpack_from("<Q", data, at)[0]))
        at += 8
    base = (at + 31) // 32 * 32
    ends = [offset for _, offset in entries[1:]] + [len(data) - base]
    os.makedirs(folder)
    for number, (first, last) in enumerate(((0, tensors // 2), (tensors // 2, tensors)), 1):
        head = b"GGUF" + struct.pack("<IQQ", 3, last - first, pairs if number == 1 else 0) + (metadata if number == 1 else b"")
        for entry, offset in entries[first:last]:
            head += entry + struct.pack("<Q", offset - entries[first][1])
        head += bytes(-len(head) % 32)
        with open(f"{folder}/cut-0000{number}-of-00002.gguf", "wb") as file:
            file.write(head + data[base + entries[first][1]:base + ends[last - 1]])


def check_mount(what, path, source, packed, options):
    """The mount of path has the files of the folder `source`, and the experts of the packed store."""
    mount = Mount(path, options)
    want = contents(source)
    names = [name for name in files_below(mount.path) if not name.startswith(("experts/", ".expertfs/"))]
    check(f"{what}, {options}: the files are those of the source", names == sorted(want), names)
    _, refused, wrong = read_pieces(mount, want, 1 << 20)
    check(f"{what}, {options}: read() gives their bytes", not refused and not wrong, (refused, wrong))
    generator = random.Random(3)
    for name, data in want.items():
        with open(mount / name, "rb") as file:
            for _ in range(40):
                at = generator.randrange(len(data) + 1)
                size = generator.choice((1, 31, 4096, 100000))
                file.seek(at)
                if file.read(size) != data[at:at + size]:
                    check(f"{what}, {options}: {name} at {at}", False)
    for name, data in want.items():
        if data:
            view = Mapping(mount / name)
            if view.bytes() != data:
                check(f"{what}, {options}: {name} mapped", False)
            view.close()
    experts = {name: open(mount / name, "rb").read() for name in mount.experts()}
    check(f"{what}, {options}: {len(experts)} experts are those of a packed store", experts == packed and len(experts) > 0)
    stat = mount.numbers()
    check(f"{what}, {options}: nothing was damaged", stat["chunks_damaged"] == 0 and stat["read_errors"] == 0)
    mount.check_budget()
    mount.unmount()


gguf = make_model("gguf", *GGUF)
shutil.rmtree(f"{gguf}/extra")
model = shared(SMALL)[0]
cut_gguf(f"{gguf}/model.gguf", scratch("cut"))
print("-- the same files and experts as the source and a packed store")
for what, path, source in (("a GGUF file", f"{gguf}/model.gguf", gguf), ("a folder with a GGUF file", gguf, gguf),
                           ("a split GGUF file", scratch("cut/cut-00002-of-00002.gguf"), scratch("cut")),
                           ("a folder of safetensors files", model, model)):
    packed = experts_without_passthrough(make_store(source) if source != model else model + ".efs")
    for options in ("budget=64M,nostate", "budget=40M,nopassthrough,direct_io=off"):
        check_mount(what, path, source, packed, options)

print("-- tools")
told = json.loads(run(ctl, "verify", "--json", "-q", gguf).stdout)
check("verify --json: in place", told["in_place"] is True and told["damage"] == [], told)
verified = run(ctl, "verify", gguf)
check("verify reads all of it, and says that there are no checksums",
      verified.returncode == 0 and "no checksums" in verified.stdout, verified)
unpacked = run(ctl, "unpack", gguf, scratch("unpacked"))
check("unpack refuses it", unpacked.returncode == 1 and "copy them" in unpacked.stderr, unpacked)

print("-- a file that changes")
for what, change, reason in (
        ("written to", lambda path: flip(path, 5000000), "it was written to"),
        ("truncated", lambda path: os.truncate(path, 5000000), "its size changed"),
        ("replaced", lambda path: (shutil.copy2(path, path + ".new"), os.replace(path + ".new", path)), "it was replaced"),
        ("removed", os.remove, "it was removed")):
    path = shutil.copy(f"{gguf}/model.gguf", scratch("changing.gguf"))
    os.utime(path, (1000000, 1000000))
    data = open(path, "rb").read()
    mount = Mount(path, "budget=64M,nostate")
    with open(mount / "changing.gguf", "rb") as file:
        start = file.read(4096)
        change(path)
        file.seek(len(data) - 100000)
        check(f"{what}: EIO", error_of(file.read, 50000) == "EIO")
    check(f"{what}: bytes that were read before are the first ones", start == data[:4096])
    mount.unmount()
    check(f"{what}: the log has the reason, once", mount.log_text().count(reason) == 1 and "mount it again" in mount.log_text(),
          mount.log_text())

print("-- damage between two reads")
path = shutil.copy(f"{gguf}/model.gguf", scratch("damaged.gguf"))
os.utime(path, (1000000, 1000000))
data = open(path, "rb").read()
mount = Mount(path, "budget=33M,nostate,direct_io=on")
check("all of it was read", open(mount / "damaged.gguf", "rb").read() == data)
os.posix_fadvise(os.open(path, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
for at in range(100000, len(data), 1 << 19):
    flip(path, at)
os.utime(path, (1000000, 1000000))
refused = right = wrong = 0
fd = os.open(mount / "damaged.gguf", os.O_RDONLY)
for at in range(0, len(data), 65536):
    try:
        got = os.pread(fd, 65536, at)
        right, wrong = (right + 1, wrong) if got == data[at:at + 65536] else (right, wrong + 1)
    except OSError as error:
        refused += error.errno == errno.EIO
        wrong += error.errno != errno.EIO
os.close(fd)
check(f"{refused} pieces are refused, {right} right, none is wrong", refused > 0 and wrong == 0, wrong)
mount.unmount()
check("the log says why", "differ from those of the first read" in mount.log_text(), mount.log_text()[-500:])
done()
