# SPDX-License-Identifier: Apache-2.0
"""A sample of the stores of tests/engine/test_sweep.c through a mount: changed fields of the superblock, tables and
chunks. With unchanged checksums such a store is not mounted, or readers get the correct bytes or an error. With
recomputed checksums the daemon survives all reads, and ends normally."""
import glob

from e2e import *

need_fuse()
folder, empty = scratch("stores"), scratch("empty")
os.mkdir(folder)
os.mkdir(empty)
made = run(program("tests/engine/test_sweep"), folder)
check("stores are made", made.returncode == 0, made.stdout + made.stderr)


def read(path):
    """Its bytes, or None for an error that reports damage."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = b""
            while piece := file.read(1 << 20):
                data += piece
            return data
    except OSError as error:
        if error.errno in (errno.EUCLEAN, errno.EIO):
            return None
        raise


def files(mount):
    return {name: read(mount / name) for name in files_below(mount.path) if not name.startswith(".expertfs")}


good = {}
for path in sorted(glob.glob(f"{folder}/good-*.efs")):
    mount = Mount(path)
    good[os.path.basename(path)[5:-4]] = files(mount)
    mount.unmount("a good store")
check("good stores are read", good and all(None not in f.values() and len(f) > 2 for f in good.values()))

counts = {"refused": 0, "errors": 0, "right": 0, "other bytes": 0}
names = sorted(glob.glob(f"{folder}/[0-9]*.efs"))
for turn, path in enumerate(names):
    name = os.path.basename(path)
    forged, want = "forged" in name, good[name.split("-")[0]]
    looked = run(program("expertctl"), "info", path)
    if looked.returncode:  # the daemon must refuse it, too
        mounted = run(program("expertfs"), path, empty)
        check(f"{name} is not mounted, and it is told why", mounted.returncode > 0 and path in mounted.stderr,
              (mounted.returncode, mounted.stderr))
        if is_mounted(empty):
            run("fusermount3", "-uz", empty)
        counts["refused"] += 1
        continue
    mount = Mount(path, ("", "nopassthrough", "direct_io=off")[turn % 3])
    seen = files(mount)
    wrong = [n for n in {*seen, *want} if seen.get(n, b"") is not None and seen.get(n) != want.get(n)]
    if not forged:
        check(f"{name}: no wrong byte, and an error", not wrong and None in seen.values(), wrong)
    counts["other bytes" if wrong else "errors" if None in seen.values() else "right"] += 1
    mount.unmount(name)
note(f"{len(names)} stores: {counts}")
check("some of each kind", counts["refused"] > 5 and counts["errors"] > 3, counts)
done()
