# SPDX-License-Identifier: Apache-2.0
"""A store or a disk that fails, with readers that retry, does not flood the log: a limited number of each kind of
message is logged, repeated ones once, and then the number of suppressed ones, so that the log and the counters
agree."""
from e2e import *

need_fuse()
model, store = shared(MIXTRAL, "--shard-size", "16K")
names = [name for name in files_below(model) if name.endswith(".safetensors")]
READS = 200


def read_error(path, offset):
    """The errno of a read of a page; 0: success."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.pread(fd, 4096, offset)
        return 0
    except OSError as error:
        return error.errno
    finally:
        os.close(fd)


def told(lines, pattern):
    """(logged lines with the pattern, suppressed ones)"""
    of_it = [line for line in lines if re.search(pattern, line)]
    left = [int(n) for line in of_it for n in re.findall(r"(\d+) more messages like this one were left out: ", line)]
    return len(of_it) - len(left), sum(left)


def ends_when_killed(path):
    """Where a page cannot be read, mmap(MAP_POPULATE) retries until the process is killed. Returns whether that ends
    it."""
    code = """import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
mmap.mmap(fd, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)"""
    before = mount.count("chunks_damaged")
    child = subprocess.Popen([sys.executable, "-c", code, path])
    tried = wait_until(lambda: child.poll() is not None or mount.count("chunks_damaged") > before + READS)
    child.kill()
    try:
        return child.wait(PATIENCE) in (0, -signal.SIGKILL) and tried
    except subprocess.TimeoutExpired:
        return False


def damaged_places(mount):
    """(name, offset) of pages whose read fails"""
    return [(name, at) for name in names for at in range(0, os.path.getsize(mount / name), 32768)
            if read_error(mount / name, at)]


connections = scratch("connections")
os.mkdir(connections)
atexit.register(run, "umount", "-l", connections)
if run("mount", "-t", "fusectl", "none", connections).returncode:
    connections = ""

punched = scratch("punched.efs")
shutil.copy(store, punched)
with open(punched, "r+b") as file:
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    keep_size_and_punch = 3
    if fallocate(file.fileno(), keep_size_and_punch, ctypes.c_long(os.path.getsize(store) // 2 & ~4095), ctypes.c_long(8192)):
        skip("the scratch folder's file system cannot punch holes")
for options in ("nopassthrough", "nopassthrough,direct_io=off"):
    mount = Mount(punched, options)
    places = damaged_places(mount)
    if not check(f"a hole in the store is damage, {options}", places):
        mount.unmount()
        continue
    errors = {read_error(mount / places[0][0], places[0][1]) for _ in range(READS)}
    check(f"{READS} reads of it give EUCLEAN or EIO", errors <= {errno.EUCLEAN, errno.EIO}, errors)
    if hasattr(mmap, "MAP_POPULATE"):
        check("who maps it with MAP_POPULATE can be killed", ends_when_killed(mount / places[0][0]))
    # the kernel may still read ahead for the killed process, which no counter of the daemon shows; and a read that has
    # failed by one shard is answered while another shard is loaded
    check("nothing is read any more", (not connections or wait_until(
        lambda: open(f"{connections}/{minor_of(mount.path)}/waiting").read() == "0\n")) and
        wait_until(lambda: mount.count("inflight") == 0))
    damaged = mount.count("chunks_damaged")
    mount.unmount()
    lines = mount.log_text().splitlines()
    count, left = told(lines, "restore the store from a copy")
    check(f"{damaged} times damage was met: it is told {count} times, and {left} are left out",
          damaged >= READS and 0 < count < damaged // 4 and (count + left == damaged if connections else count + left >= damaged),
          lines[-5:])

cut = scratch("cut.efs")
shutil.copy(store, cut)
mount = Mount(cut, "nopassthrough")
os.truncate(cut, 4096)
failed = sum(read_error(mount / name, at) != 0 for _ in range(3) for name in names
             for at in range(0, os.path.getsize(mount / name), 16384))
mount.unmount()
lines = mount.log_text().splitlines()
count, left = told(lines, "read at offset")
check(f"{failed} reads of a disk that fails: {count} told, {left} left out",
      failed > READS and 0 < count < failed // 4 and count + left >= failed, lines[-5:])
done()
