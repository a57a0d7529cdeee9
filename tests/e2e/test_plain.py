# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are mounted without being packed: bytes by read(), by mappings and as experts are those of the
sources and of packed stores of them; files that change, and bytes that differ when they are read again."""
from e2e import *

from split_gguf import cut_gguf

need_fuse()
GGUF = ("-F", "qwen3-moe", "--format", "gguf", "-d", "256", "-i", "512", "-e", "8", "-l", "3", "--vocab", "1000")
ctl = program("expertctl")


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
