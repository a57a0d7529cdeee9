# SPDX-License-Identifier: Apache-2.0
"""Files of a checkpoint that fits the budget are gathered whole in memory after their first reading. Later opens are
served by the kernel, with the same bytes, from no disk and within the budget."""
from e2e import *

need_fuse()
model, store = shared(WIDE)
files = [name for name in files_below(model) if os.path.getsize(os.path.join(model, name)) >= 1 << 20]
size = sum(os.path.getsize(os.path.join(model, name)) for name in files)
MIB = 1 << 20
ROOMY = f"budget={size // MIB * 2 + 128}M"


def original(name):
    with open(os.path.join(model, name), "rb") as file:
        return file.read()


def read_all(mount):
    """Reads the files by read(); returns whether all bytes are right."""
    good = True
    for name in files:
        with open(mount / name, "rb", buffering=0) as file:
            data = b"".join(iter(lambda: file.read(MIB), b""))
        good = good and data == original(name)
    return good


def gather(mount):
    """Reads the files once and waits until all of them are whole in memory."""
    good = read_all(mount)
    return wait_until(lambda: mount.count("whole_files") == len(files)) and good


def opens(mount):
    return mount.count("fuse_opens_whole")


def open_whole(mount, name, seconds=10):
    """Opens the file until the kernel serves it: the release of an earlier open arrives after its close."""
    for _ in range(seconds * 20):
        before, fd = opens(mount), os.open(mount / name, os.O_RDONLY)
        if opens(mount) > before:
            return fd
        os.close(fd)
        time.sleep(.05)
    return os.open(mount / name, os.O_RDONLY)


mount = Mount(store, ROOMY)
need_passthrough(mount)
print("-- passes")
check("the first pass has the bytes, then all files are whole", gather(mount), mount.stat())
mount.check_budget()
disk, reads = mount.count("disk_bytes"), mount.count("fuse_reads")
fd = open_whole(mount, files[0])
os.close(fd)
reads = mount.count("fuse_reads")
check("later passes have the bytes", all(read_all(mount) for _ in range(2)))
check("from no disk", mount.count("disk_bytes") == disk)
check("without the daemon", mount.count("fuse_reads") == reads, (mount.count("fuse_reads"), reads))
mapping = Mapping(mount / files[0])
check("a mapping has them", mapping.bytes() == original(files[0]))
check("open ones are counted", wait_until(lambda: mount.count("whole_open_bytes") >= os.path.getsize(os.path.join(model, files[0]))))
mapping.close()
check("and no longer after the last unmap", wait_until(lambda: mount.count("whole_open_bytes") == 0))
check("it cannot be written", error_of(lambda: os.open(mount / files[0], os.O_RDWR)) == "EROFS")
mount.check_budget()

print("-- experts beside a file that is open")
fd = open_whole(mount, files[0])
check("the file is open", mount.count("whole_open_bytes") > 0)
experts = mount.experts()
reference = {}
for name in experts:
    with open(mount / name, "rb") as file:
        reference[name] = file.read()
check("each expert can be opened and read", all(reference[name][8:9] == b"{" for name in experts))
held = [os.open(mount / name, os.O_RDONLY) for name in experts]
check("all at once, too", all(os.pread(one, 1 << 24, 0) == reference[name] for one, name in zip(held, experts)))
for one in held:
    os.close(one)
check("the file stays", mount.count("whole_files") == len(files) and os.pread(fd, size, 0) == original(files[0]))
mount.check_budget()

print("-- a smaller budget")
small = mount.count("fixed_bytes") // MIB + 40
os.setxattr(mount.path, "user.expertfs.budget", f"{small}M".encode())
check("an open file keeps its memory", mount.count("whole_open_bytes") > 0 and mount.used_bytes() > small * MIB)
check("and its bytes", os.pread(fd, size, 0) == original(files[0]))
os.close(fd)
check("it is freed once it is closed", wait_until(lambda: mount.count("whole_bytes") == 0 and mount.used_bytes() <= small * MIB),
      mount.stat())
check("the daemon serves the file again", read_all(mount))
os.setxattr(mount.path, "user.expertfs.budget", f"{size // MIB * 2 + 128}M".encode())
check("with room it is whole again", gather(mount), mount.stat())
mapping = Mapping(mount / files[0])
check("a mapping has the bytes", mapping.bytes() == original(files[0]))
check("its memory is counted", wait_until(lambda: mount.count("whole_open_bytes") > 0), mount.stat())
os.setxattr(mount.path, "user.expertfs.budget", f"{small}M".encode())
check("and keeps them", mapping.bytes() == original(files[0]))
mapping.close()
check("until it ends", wait_until(lambda: mount.count("whole_bytes") == 0 and mount.used_bytes() <= small * MIB))
os.setxattr(mount.path, "user.expertfs.budget", f"{size // MIB * 2 + 128}M".encode())
check("whole again", gather(mount))
os.setxattr(mount.path, "user.expertfs.budget", f"{small}M".encode())
check("a file that is not open is freed at once", mount.count("whole_bytes") == 0 and mount.used_bytes() <= small * MIB, mount.stat())
check("its bytes are read from the store", read_all(mount))
mount.unmount()

print("-- opens of both kinds")
mount = Mount(store, ROOMY)
first = os.open(mount / files[0], os.O_RDONLY)
mapped = mmap.mmap(first, 0, prot=mmap.PROT_READ)
check("the file becomes whole while it is open and mapped otherwise", gather(mount))
second = os.open(mount / files[0], os.O_RDONLY)
check("then further opens are like the first one", opens(mount) == 0 and os.pread(second, size, 0) == original(files[0]))
check("its mapping stays", mapped[:] == original(files[0]))
disk = mount.count("disk_bytes")
check("reads of it are from memory", os.pread(first, size, 0) == original(files[0]) and mount.count("disk_bytes") == disk)
mapped.close()
os.close(first)
os.close(second)
whole = open_whole(mount, files[0])
check("after the last release the kernel serves it", opens(mount) > 0 and os.pread(whole, size, 0) == original(files[0]))
again = os.open(mount / files[0], os.O_RDONLY)
both = mmap.mmap(again, 0, prot=mmap.PROT_READ)
check("also a second open and its mapping", both[:] == original(files[0]))
both.close()
os.close(again)
os.close(whole)

print("-- several readers")
wrong = []


def reader(seed):
    generator = random.Random(seed)
    for _ in range(30):
        name = generator.choice(files)
        data, fd = original(name), os.open(mount / name, os.O_RDONLY)
        at = generator.randrange(len(data))
        if generator.random() < .3:
            with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as view:
                got = view[at:at + MIB]
        else:
            got = os.pread(fd, MIB, at)
        os.close(fd)
        if data[at:at + MIB] != got:
            wrong.append((name, at))
        if generator.random() < .1:
            os.setxattr(mount.path, "user.expertfs.budget", f"{generator.choice((small, size // MIB * 2 + 128))}M".encode())


check("in the middle of changes of the budget all of them end", in_threads(reader, range(6)))
check("and read the right bytes", not wrong, wrong)
check("nothing failed", mount.count("fuse_reply_errors") == 0 and mount.count("fuse_open_errors") == 0)
held = os.open(mount / files[0], os.O_RDONLY)
mount.stop("SIGTERM, with an open file")
os.close(held)

print("-- damage")
damaged = scratch("damaged.efs")
shutil.copyfile(store, damaged)
flip(damaged, os.path.getsize(damaged) // 2)
mount = Mount(damaged, ROOMY)
for _ in range(3):
    for name in files:
        data, fd = original(name), os.open(mount / name, os.O_RDONLY)
        for at in range(0, len(data), 65536):
            try:
                if os.pread(fd, 65536, at) != data[at:at + 65536]:
                    wrong.append((name, at))
            except OSError as error:
                if error.errno not in (errno.EIO, errno.EUCLEAN):
                    wrong.append((name, at, error))
        os.close(fd)
    mount.wait_idle()
check("a damaged file gives an error, never wrong bytes", not wrong, wrong)
check("and is not whole", mount.count("chunks_damaged") > 0 and mount.count("whole_files") < len(files), mount.stat())
check("its memory is freed", wait_until(lambda: mount.count("whole_bytes") == sum(
    (os.path.getsize(os.path.join(model, name)) + 4095) // 4096 * 4096 for name in files[:mount.count("whole_files")])))
mount.unmount()

print("-- otherwise")
mount = Mount(store, ROOMY + ",nopassthrough")
check("without passthrough no file is gathered", all(read_all(mount) for _ in range(2)) and mount.wait_idle() and
      mount.count("gathered_files") == 0)
mount.unmount()
mount = Mount(store, f"budget={size // MIB}M")
check("nor if the files do not fit", all(read_all(mount) for _ in range(2)) and mount.wait_idle() and mount.count("gathered_files") == 0)
mount.unmount()
mount = Mount(model, ROOMY)
check("a checkpoint in place is gathered", gather(mount))
disk = mount.count("disk_bytes")
os.close(open_whole(mount, files[0]))
check("and read from memory", read_all(mount) and mount.count("disk_bytes") == disk and opens(mount) > 1)
mount.unmount()
done()
