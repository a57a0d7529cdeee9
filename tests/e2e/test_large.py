# SPDX-License-Identifier: Apache-2.0
"""A mount of 20,000 experts with chunks at offsets of up to 9 TiB in the store, a sparse file of 6 GB: listed, read and
mapped at the far end, by passthrough and by the daemon. Expert n has the bytes of expert n % 12
(tests/common/large_store.h), so the far end must equal the near end; tests/engine/test_large.c compares both with the
packed bytes."""
from e2e import *

need_fuse()
LAYERS, EXPERTS, HIDDEN, INNER, DISTINCT = 80, 250, 512, 96, 12
MATRIX = HIDDEN * INNER * 2
store = scratch("large.efs")
made = run(program("tests/engine/mkstore"), f"--layers={LAYERS}", f"--experts={EXPERTS}", f"--hidden={HIDDEN}",
           f"--inner={INNER}", f"--distinct={DISTINCT}", "--file-size=1T", "--spread=9T", store)
if made.returncode:
    if os.strerror(errno.EFBIG) in made.stderr:
        skip(f"{SCRATCH} takes no file of 9 TiB: {made.stderr.strip()}")
    check("the store is written", False, made.stderr)
    done()
check("the store is as large as it says, and takes little", os.stat(store).st_size > 9 << 40 and
      os.stat(store).st_blocks * 512 < 64 << 20, os.stat(store))


def matrix_place(data, layer, expert, matrix):
    norm, router = HIDDEN * 2, EXPERTS * HIDDEN * 2
    return data + layer * (2 * norm + router + EXPERTS * 3 * MATRIX) + norm + router + (expert * 3 + matrix) * MATRIX


def listed(mount):
    names = files_below(mount.path + "/experts")
    check("every expert is listed", sum(name[0] == "L" for name in names) == LAYERS * EXPERTS, len(names))
    check("layers and experts sort as numbers do", names[0] == "L00/E000.safetensors" and
          f"L79/E{EXPERTS - 1:03}.safetensors" in names, names[:2])
    check("the list of experts has a line each", mount.control("experts").count("\n") >= LAYERS * EXPERTS)


def far_reads(mount, what):
    path = mount / "model-00001-of-00001.safetensors"
    with open(path, "rb", buffering=0) as file:
        data = 8 + struct.unpack("<Q", file.read(8))[0]
        size = os.fstat(file.fileno()).st_size
        check(f"{what}: the file has more than 4 GiB", size > 1 << 32, size)
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        far, near, mapped = [], [], []
        for number in (LAYERS * EXPERTS - 1, LAYERS * EXPERTS - 2, 17000, 15001):
            for matrix in range(3):
                at = matrix_place(data, number // EXPERTS, number % EXPERTS, matrix)
                far.append(os.pread(file.fileno(), MATRIX, at))
                mapped.append(view[at:at + MATRIX])
                near.append(os.pread(file.fileno(), MATRIX, matrix_place(data, 0, number % DISTINCT, matrix)))
        check(f"{what}: far reads give what near reads of the same bytes give", far == near)
        check(f"{what}: so do mappings", mapped == near)
        check(f"{what}: bytes differ between matrices", len(set(far)) == len(far))
        across = (1 << 32) - 12345  # a request on both sides of 2^32
        check(f"{what}: across 2^32", os.pread(file.fileno(), 1 << 20, across) == view[across:across + (1 << 20)])
        check(f"{what}: the end", len(os.pread(file.fileno(), 1 << 20, size - 5)) == 5)
        view.close()
    for number in (LAYERS * EXPERTS - 1, 19000):
        with open(mount / f"experts/L{number // EXPERTS:02}/E{number % EXPERTS:03}.safetensors", "rb") as file:
            a = file.read()
        twin = number % DISTINCT
        with open(mount / f"experts/L00/E{twin:03}.safetensors", "rb") as file:
            b = file.read()
        check(f"{what}: an expert at the end has the bytes of its like at the begin", a[-3 * MATRIX:] == b[-3 * MATRIX:])


for what, options in (("passthrough if possible", "budget=256M"), ("without", "budget=256M,nopassthrough"),
                      ("past the page cache", "budget=256M,nopassthrough,direct_io=on")):
    mount = Mount(store, options)
    if what == "without":
        listed(mount)
    far_reads(mount, what)
    mount.unmount()
os.makedirs(scratch("mnt"))
told = run(program("expertfs"), "-f", store, scratch("mnt"), "-o", "budget=1M")
floor = re.search(r"ask for budget=(\d+)M", told.stderr)
if check("a budget below the floor is refused with the floor", floor, told.stderr):
    mount = Mount(store, f"budget={floor[1]}M")
    far_reads(mount, "the least budget")
    mount.unmount()
done()
