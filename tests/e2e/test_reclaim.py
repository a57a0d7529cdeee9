# SPDX-License-Identifier: Apache-2.0
"""A checkpoint packed with its space reclaimed, on separate disks: one too small for both, killed and resumed, undone;
the disk full in between; other filesystems, and one that does not support it. For power failures: fault/test_reclaim.c.

Needs root and loop devices. EXPERTFS_TEST_DISK=DIR: folder for the disks' files (2.5 GB), otherwise /var/tmp.
"""
import hashlib
import shlex

from e2e import *

DISKS = tempfile.mkdtemp(prefix="expertfs-disk-", dir=os.environ.get("EXPERTFS_TEST_DISK") or "/var/tmp")
_mounted = []


def clean_disks():
    for place in reversed(_mounted):
        run("umount", place)
    shutil.rmtree(DISKS, ignore_errors=True)


atexit.register(clean_disks)


class Disk:
    """A filesystem in a file, mounted."""

    def __init__(self, name, size, kind="ext4", options=()):
        self.image, self.path = f"{DISKS}/{name}.img", f"{DISKS}/{name}"
        with open(self.image, "wb") as file:
            file.truncate(size)
        made = run(f"mkfs.{kind}", *options, self.image)
        if made.returncode:
            raise OSError(made.stderr)
        os.mkdir(self.path)
        mounted = run("mount", "-o", "loop", self.image, self.path)
        if mounted.returncode:
            os.rmdir(self.path)
            raise OSError(mounted.stderr)
        _mounted.append(self.path)

    def __truediv__(self, name):
        return f"{self.path}/{name}"

    def used(self):
        st = os.statvfs(self.path)
        return (st.f_blocks - st.f_bfree) * st.f_frsize

    def gone(self):
        run("umount", self.path)
        _mounted.remove(self.path)
        os.rmdir(self.path)
        os.unlink(self.image)


class Watch(threading.Thread):
    """The maximum that a disk holds meanwhile."""

    def __init__(self, disk):
        super().__init__()
        self.disk, self.most, self.over = disk, disk.used(), False
        self.start()

    def run(self):
        while not self.over:
            self.most = max(self.most, self.disk.used())
            time.sleep(0.005)

    def end(self):
        self.over = True
        self.join()
        return self.most


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def digests(folder):
    return {name: (digest(f"{folder}/{name}"), os.stat(f"{folder}/{name}").st_mtime_ns) for name in files_below(folder)}


def mkexpertfs(*arguments, **more):
    return run(program("mkexpertfs"), "-q", *arguments, **more)


def killed(nth, *arguments, number=signal.SIGKILL):
    """Runs mkexpertfs and sends a signal before its nth call that changes files. Returns its output; None if it
    completed with fewer calls."""
    process = SignalledPacker(nth, *arguments, number=number)
    status, said = process.end()
    if status == 0:
        check("what is done before it is killed makes fewer calls", process.calls < nth, (nth, process.calls))
    return None if status == 0 else said


def has_room(needed):
    st = os.statvfs(DISKS)
    return st.f_bavail * st.f_frsize > needed


if os.geteuid():
    skip("needs root: for loop devices")
if not shutil.which("mkfs.ext4"):
    skip("there is no mkfs.ext4")
try:
    Disk("probe", 16 << 20).gone()
except OSError as error:
    skip(f"no loop device: {error}")
os.environ["PATH"] += ":/sbin:/usr/sbin"
SMALL = ("--preset", "demo", "--layers", "2", "--experts", "4", "--vocab", "4000", "--shard-size", "20MB")


def small_model(path):
    result = run(program("mkmodel"), *SMALL, path)
    if result.returncode:
        check("a small model", False, result.stderr)
        sys.exit(1)


plain = scratch("plain")
small_model(plain)
want_files = digests(plain)
mkexpertfs(plain, scratch("plain.efs"))
want_store = digest(scratch("plain.efs"))
small_bytes = sum(os.path.getsize(f"{plain}/{name}") for name in want_files)
note(f"small model: {small_bytes >> 20} MiB, {len(want_files)} files")


small_model(scratch("copy"))
CALLS = count_write_calls("--reclaim", "--yes", "--step=4M", scratch("copy"), scratch("copy.efs"))
note(f"packed in its own place by {CALLS} calls that change files")


def same_files(folder):
    return {name: content for name, (content, _) in digests(folder).items()} == \
        {name: content for name, (content, _) in want_files.items()}


print("-- every filesystem at hand")
for kind, size, options in (("ext4", 256, ("-q",)), ("xfs", 320, ("-q",)), ("btrfs", 320, ("-q",)), ("tmpfs", 256, ())):
    if kind != "tmpfs" and not shutil.which(f"mkfs.{kind}"):
        note(f"{kind}: left out, there is no mkfs.{kind}")
        continue
    try:
        if kind == "tmpfs":
            os.mkdir(f"{DISKS}/tmpfs")
            if run("mount", "-t", "tmpfs", "-o", f"size={size}M", "none", f"{DISKS}/tmpfs").returncode:
                raise OSError("cannot mount it")
            _mounted.append(f"{DISKS}/tmpfs")
            disk = None
            place = f"{DISKS}/tmpfs"
        else:
            disk = Disk(kind, size << 20, kind, options)
            place = disk.path
    except OSError as error:
        note(f"{kind}: left out, {str(error).splitlines()[0]}")
        continue
    small_model(f"{place}/model")
    whole = digests(f"{place}/model")
    told = mkexpertfs("--reclaim", "--dry-run", "--step=4M", f"{place}/model", f"{place}/out.efs")
    check(f"{kind}: --dry-run tells and changes nothing", told.returncode == 0 and "at a time" in told.stdout and
          digests(f"{place}/model") == whole and os.listdir(place).count("out.efs.reclaim") == 0, told)
    step = ("--reclaim", "--yes", "--step=4M", f"{place}/model", f"{place}/out.efs")
    out = f"{place}/out.efs"
    check(f"{kind}: killed half way", killed(CALLS // 2, *step) is not None and os.path.exists(f"{out}.reclaim/journal"))
    back = mkexpertfs("--undo", f"{place}/out.efs")
    check(f"{kind}: undone, with times", back.returncode == 0 and digests(f"{place}/model") == whole, back.stderr)
    rounds, said = 0, ""
    while said is not None and rounds < 100:
        rounds += 1
        again = ("--resume", "--step=4M", out) if os.path.exists(f"{out}.reclaim/journal") else step
        said = killed(rounds * rounds + random.randrange(rounds), *again)
    check(f"{kind}: killed {rounds - 1} times, the store is the one that is packed beside the source", rounds > 4 and
          os.path.exists(f"{place}/out.efs") and digest(f"{place}/out.efs") == want_store)
    mkexpertfs("--resume", f"{place}/out.efs")  # it may have been killed while it cleaned up
    check(f"{kind}: nothing else is left", sorted(set(os.listdir(place)) - {"lost+found"}) == ["out.efs"], os.listdir(place))
    if disk:
        disk.gone()
    else:
        run("umount", place)
        _mounted.remove(place)
try:
    disk = Disk("vfat", 200 << 20, "vfat") if shutil.which("mkfs.vfat") else None
except OSError as error:
    note(f"vfat: left out, {str(error).splitlines()[0]}")
    disk = None
if disk:
    small_model(disk / "model")
    told = mkexpertfs("--reclaim", "--yes", disk / "model", disk / "out.efs")
    check("vfat: refused before anything is done", told.returncode == 1 and "punch holes" in told.stderr and
          os.listdir(disk.path) == ["model"] and same_files(disk / "model"), told.stderr)
    disk.gone()

print("-- asked, refused, interrupted")
disk = Disk("asked", 256 << 20)
small_model(disk / "model")
told = mkexpertfs("--reclaim", disk / "model", disk / "out.efs", stdin=subprocess.DEVNULL)
check("nobody to ask: --yes is needed", told.returncode == 1 and "--yes" in told.stderr, told)
if shutil.which("script"):
    command = shlex.join([program("mkexpertfs"), "-q", "--reclaim", disk / "model", disk / "out.efs"])
    told = run("script", "-qec", command, "/dev/null", input="no\n")
    check("asked on a terminal: no", "Type yes" in told.stdout and "nothing was done" in told.stdout and
          same_files(disk / "model"), told)
told = mkexpertfs("--reclaim", "--yes", disk / "model", scratch("elsewhere.efs"))
check("a store on another filesystem is refused", told.returncode == 1 and "another filesystem" in told.stderr, told.stderr)
said = killed(CALLS // 2, "--reclaim", "--yes", "--step=4M", disk / "model", disk / "out.efs", number=signal.SIGINT)
if check("interrupted half way", said is not None):
    check("Ctrl-C tells how to go on", "--resume" in said and "--undo" in said, said)
    for source, other in (("model", "other.efs"), ("model", "out.efs"), ("model/config.json", "other.efs")):
        told = mkexpertfs("--any", disk / source, disk / other)
        check(f"{source} to {other}: what is left of a source cannot be packed, and the way out is told", told.returncode == 1 and
              all(f"--{way} {disk / 'out.efs'}`" in told.stderr for way in ("resume", "undo")), told)
    told = run(program("expertctl"), "info", disk / "model")
    check("info tells the way out, too, or knows enough", told.returncode == 0 or f"--resume {disk / 'out.efs'}`" in told.stderr, told)
    told = run(program("expertctl"), "verify", disk / "out.efs.reclaim/store")
    check("what is there so far is no store", told.returncode != 0, told)
    told = mkexpertfs("--resume", "--json", disk / "out.efs")
    check("--resume goes on and reports", told.returncode == 0 and json.loads(told.stdout)["experts"] > 0, told)
check("the store is whole", digest(disk / "out.efs") == want_store)
disk.gone()

print("-- a disk that cannot hold both")
if not os.environ.get("EXPERTFS_LONG"):
    note("left out: make test-long PART=scripts runs it (EXPERTFS_LONG)")
    done()
if SANITIZED or not has_room(2600 << 20):
    note("left out: needs 2.6 GB of disk, and no sanitizer")
    done()
disk = Disk("small", 1300 << 20, "ext4", ("-q", "-m", "0"))
built = run(program("mkmodel"), "--preset", "demo", disk / "model")
check("a model of 1 GiB on a disk of 1.3", built.returncode == 0, built.stderr)
run("sync", "-f", disk.path)
whole = digests(disk / "model")
source = sum(os.path.getsize(disk / f"model/{name}") for name in whole)
began = disk.used()
packed = f"{DISKS}/plain.efs"
mkexpertfs(disk / "model", packed)
beside = os.path.getsize(packed)
told = mkexpertfs(disk / "model", disk / "out.efs")
check("it cannot be packed beside its source there", told.returncode == 1 and "No space left" in told.stderr, told.stderr)
note(run(program("mkexpertfs"), "--reclaim", "--dry-run", disk / "model", disk / "out.efs").stdout.strip())
check("killed in it", killed(100, "--reclaim", "--yes", disk / "model", disk / "out.efs") is not None and
      disk.used() > began // 2 and os.path.exists(disk / "out.efs.reclaim/journal"))
watch = Watch(disk)
told = mkexpertfs("--undo", disk / "out.efs")
most = watch.end()
check("undone", told.returncode == 0 and digests(disk / "model") == whole, told.stderr)
note(f"most that undoing took beside the source: {(most - began) / 2**20:.0f} MiB")

# Another process fills the disk: mkexpertfs ends cleanly, and can be resumed when there is space again.
stopped = SignalledPacker(100, "--reclaim", "--yes", disk / "model", disk / "out.efs", number=signal.SIGSTOP)
os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED | os.WNOWAIT)
with open(disk / "filler", "wb") as filler:
    try:
        while True:
            filler.write(bytes(1 << 20))
            filler.flush()
    except OSError:
        pass  # the disk is full
stopped.process.send_signal(signal.SIGCONT)
status, said = stopped.end()
check("a disk that others fill: it ends with 1 and tells how to go on", status == 1 and "--resume" in said and
      os.path.exists(disk / "out.efs.reclaim"), (status, said))
os.unlink(disk / "filler")
watch, rounds = Watch(disk), 0
while (os.path.exists(disk / "out.efs.reclaim") or not os.path.exists(disk / "out.efs")) and rounds < 60:
    rounds += 1
    again = ("--resume",) if os.path.exists(disk / "out.efs.reclaim") else ("--reclaim", "--yes", disk / "model")
    killed(100 * rounds, *again, disk / "out.efs")
most = watch.end()
check(f"gone on with {rounds} times, the store is the one that is packed beside the source",
      os.path.exists(disk / "out.efs") and digest(disk / "out.efs") == digest(packed))
run("sync", "-f", disk.path)
note(f"source {source / 2**20:.0f} MiB, store {beside / 2**20:.0f} MiB, most on the disk beside the source: "
     f"{(most - began) / 2**20:.0f} MiB")
told = run(program("expertctl"), "verify", disk / "out.efs")
check("it verifies", told.returncode == 0, told.stderr)
os.unlink(disk / "out.efs")

built = run(program("mkmodel"), "--preset", "demo", disk / "model")
watch, before = Watch(disk), time.monotonic()
told = mkexpertfs("--reclaim", "--yes", disk / "model", disk / "out.efs")
took, most = time.monotonic() - before, watch.end()
check("in one go", told.returncode == 0 and digest(disk / "out.efs") == digest(packed), told.stderr)
note(f"in one go: {source / 2**20 / took:.0f} MiB/s, most beside the source {(most - began) / 2**20:.0f} MiB")
disk.gone()
done()
