# SPDX-License-Identifier: Apache-2.0
"""The store, its target or its source is on a filesystem with quirks (quirkfs.c): close() fails where there is no
fsync(), O_DIRECT can be opened but not read, inode numbers change, reads fail or wait for a while. Refused links and
syncs of folders: fault/test_pack_fallbacks."""
import hashlib

from e2e import *

need_fuse()
if os.geteuid():
    skip("quirkfs is mounted by root")
quirkfs_program = program("tests/e2e/quirkfs")
model = make_model("model", "-F", "qwen3-moe", "-d", "256", "-i", "256", "-e", "8", "-l", "2", "--vocab", "500")
store = make_store(model)


whole = open(store, "rb").read()
source = contents(model)


def wrong(folder):
    return [name for name, data in source.items() if open(f"{folder}/{name}", "rb").read() != data]


class Quirkfs:
    """quirkfs over a new folder, with files copied to the folder first."""

    count = 0

    def __init__(self, *quirks, files=()):
        Quirkfs.count += 1
        self.folder, self.path = scratch(f"below{Quirkfs.count}"), scratch(f"quirkfs{Quirkfs.count}")
        os.mkdir(self.folder)
        os.mkdir(self.path)
        for file in files:
            (shutil.copytree if os.path.isdir(file) else shutil.copy)(file, f"{self.folder}/{os.path.basename(file)}")
        self.process = subprocess.Popen([quirkfs_program, self.folder, self.path, *quirks])
        atexit.register(self.end)
        if not wait_until(lambda: is_mounted(self.path) or self.process.poll() is not None) or self.process.poll() is not None:
            skip("quirkfs was not mounted")

    def __truediv__(self, name):
        return os.path.join(self.path, name)

    def names(self):
        return sorted(os.listdir(self.folder))

    def signalled(self):
        """Whether it has handled its signal: none is pending."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return not re.search("^(ShdPnd|SigPnd):.*[1-9a-f]", status.read(), re.M)

    def end(self):
        if is_mounted(self.path):
            run("umount", "-l", self.path)
        self.process.wait(PATIENCE)
        atexit.unregister(self.end)


def refused(what, result, text, quirkfs, names=()):
    check(f"{what}: fails and says why", result.returncode == 1 and text in result.stderr, (result.returncode, result.stderr))
    check(f"{what}: nothing is left behind", quirkfs.names() == sorted(names), quirkfs.names())


for error in (errno.EDQUOT, errno.EIO):
    print(f"-- close() fails with {errno.errorcode[error]}, and there is no fsync()")
    quirkfs = Quirkfs(f"flush={error}")
    why = os.strerror(error)
    for options in ((), ("--verify",)):
        refused(f"mkexpertfs {' '.join(options)}", run(program("mkexpertfs"), "-q", *options, model, quirkfs / "out.efs"), why, quirkfs)
    result = run(program("expertctl"), "unpack", store, quirkfs / "files")
    refused("expertctl unpack", result, why, quirkfs)
    shutil.copy(store, f"{quirkfs.folder}/old.efs")
    refused("mkexpertfs --force, and the old store stays",
            run(program("mkexpertfs"), "-q", "--force", model, quirkfs / "old.efs"), why, quirkfs, ["old.efs"])
    result = run("sh", "-c", '"$0" info --json "$1" >"$2"', program("expertctl"), store, quirkfs / "list.json")
    check("expertctl >FILE: fails and says why", result.returncode == 1 and why in result.stderr,
          (result.returncode, result.stderr))
    result = run(program("expertctl"), "profile", "--force", "--seconds=1", store, env={**os.environ, "EXPERTFS_STATE": quirkfs / "state"})
    check("expertctl profile: fails and says why", result.returncode == 1 and why in result.stderr, (result.returncode, result.stderr))
    quirkfs.end()

print("-- statfs() reports 0 of 0 blocks")
quirkfs = Quirkfs("blocks")
result = run(program("expertctl"), "unpack", store, quirkfs / "files")
check("unpack: the files are the files", result.returncode == 0 and wrong(quirkfs / "files") == [], result.stderr)
result = run(program("expertctl"), "up", "--store", quirkfs / "stores", model, scratch("mnt"))
check("up packs", result.returncode == 0, result.stderr)
run(program("expertctl"), "down", scratch("mnt"))
shutil.copytree(model, f"{quirkfs.folder}/model")
result = run(program("mkexpertfs"), "--reclaim", "--dry-run", quirkfs / "model", quirkfs / "out.efs")
check("--reclaim does not fail for want of room", "free space" not in result.stderr, result.stderr)
quirkfs.end()

# not EOPNOTSUPP later: the kernel then reissues a read of io_uring without end (seen with Linux 6.18)
for quirk, error in (("direct", errno.EINVAL), ("direct", errno.EOPNOTSUPP), ("late", errno.EINVAL)):
    print(f"-- {'from some time on, ' if quirk == 'late' else ''}reads with O_DIRECT fail with {errno.errorcode[error]}")
    quirkfs = Quirkfs(f"{quirk}={error}", files=(store,))
    mount = Mount(quirkfs / "model.efs", "budget=128M,nopassthrough,store_direct=on")
    if quirk == "late":
        check("the store is read with O_DIRECT", mount.stat()["direct_io"] == "1")
        quirkfs.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: quirkfs.signalled())
    bad = wrong(mount.path)
    check("the files are the files", not bad, bad)
    check("the store is read through the page cache", mount.stat()["direct_io"] == "0" and mount.stat()["disk_errors"] == "0")
    check("that is said once", mount.log_text().count("O_DIRECT is refused") == 1, mount.log_text())
    mount.unmount()
    if quirk == "direct":
        text = run(program("expertctl"), "doctor", quirkfs / "model.efs").stdout
        check("doctor tells", "O_DIRECT" in text, text)
        result = run(program("expertctl"), "verify", quirkfs / "model.efs")
        check("verify reads it", result.returncode == 0, result.stderr)
        result = run(program("mkexpertfs"), "-q", "--verify", model, quirkfs / "out.efs")
        check("mkexpertfs: the store is the store", result.returncode == 0 and
              open(f"{quirkfs.folder}/out.efs", "rb").read() == whole, result.stderr)
        result = run(program("expertctl"), "unpack", store, quirkfs / "files")
        check("unpack: the files are the files", result.returncode == 0 and wrong(quirkfs / "files") == [], result.stderr)
        result = run(program("mkexpertfs"), "-q", quirkfs / "files", scratch("from.efs"))
        check("mkexpertfs packs from there", result.returncode == 0 and open(scratch("from.efs"), "rb").read() == whole,
              result.stderr)
        os.remove(scratch("from.efs"))
    quirkfs.end()

print("-- store_direct")
quirkfs = Quirkfs("direct=22", files=(store, model))
for path in (quirkfs / "model.efs", quirkfs / "model"):
    for option, direct in (("auto", "0"), ("off", "0")):
        mount = Mount(path, f"budget=128M,nopassthrough,store_direct={option}")
        check(f"{os.path.basename(path)}, {option}: through the page cache of the network's file system",
              mount.stat()["direct_io"] == direct and not wrong(mount.path), mount.stat()["direct_io"])
        check("which no message mentions", "O_DIRECT" not in mount.log_text(), mount.log_text())
        mount.unmount()
quirkfs.end()
local = Mount(store, "budget=128M")
remembered = local.stat()["direct_io"]
local.unmount()
local = Mount(store, "budget=128M,store_direct=off")
check("a local store is read with O_DIRECT, with off it is not", (remembered, local.stat()["direct_io"]) == ("1", "0") and
      local.config()["store_direct"] == "no", (remembered, local.stat()["direct_io"]))
local.unmount()

for error in (errno.EIO, errno.ESTALE):
    print(f"-- the file system of the store fails with {errno.errorcode[error]}, and then no more")
    quirkfs = Quirkfs(f"read={error}", files=(store,))
    mount = Mount(quirkfs / "model.efs", "budget=128M,nopassthrough,warm=off,direct_io=on,nostate")
    name = next(name for name, data in source.items() if name.endswith(".safetensors"))
    quirkfs.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: quirkfs.signalled())
    forget_pages(quirkfs / "model.efs")
    try:
        with open(f"{mount.path}/{name}", "rb") as file:
            check("what is read is right", file.read() == source[name])
        failed = None
    except OSError as reason:
        failed = reason.errno
    check("the reader gets EIO", failed == errno.EIO, failed)
    check("the log names store and reason", wait_until(lambda: os.strerror(error) in mount.log_text()), mount.log_text())
    quirkfs.process.send_signal(signal.SIGUSR2)
    wait_until(lambda: quirkfs.signalled())
    check("later reads are right", wrong(mount.path) == [])
    mount.unmount()
    quirkfs.end()

print("-- the file system of the store answers late")
quirkfs = Quirkfs("wait", files=(store,))
mount = Mount(quirkfs / "model.efs", "budget=128M,nopassthrough,warm=off,nostate")
quirkfs.process.send_signal(signal.SIGUSR1)
wait_until(lambda: quirkfs.signalled())
forget_pages(quirkfs / "model.efs")
reader = subprocess.Popen(["md5sum", *(f"{mount.path}/{name}" for name in source)], stdout=subprocess.PIPE)
wait_until(lambda: int(mount.stat()["inflight"]) > 0 or reader.poll() is not None)
check("a reader waits, and the mount answers others", reader.poll() is None and os.path.exists(mount.path))
quirkfs.process.send_signal(signal.SIGUSR2)
sums = reader.communicate()[0].decode()
check("then it has all bytes", reader.returncode == 0 and [line.split()[0] for line in sums.splitlines()] ==
      [hashlib.md5(data).hexdigest() for data in source.values()], sums)
mount.unmount()
quirkfs.end()

print("-- each stat() gives another inode number")
quirkfs = Quirkfs("inodes", files=(model, store))
for options in ((), ("--verify",)):
    result = run(program("mkexpertfs"), "-q", "--force", *options, quirkfs / "model", scratch("from.efs"))
    check(f"mkexpertfs {' '.join(options)}: the store is the store", result.returncode == 0 and
          open(scratch("from.efs"), "rb").read() == whole, result.stderr)
mount = Mount(quirkfs / "model.efs", "budget=128M")
bad = wrong(mount.path)
check("expertfs: the files are the files", not bad, bad)
mount.unmount()
result = run(program("mkexpertfs"), "-q", "--force", quirkfs / "model/config.json", quirkfs / "model/config.json", "--any")
check("a file is not replaced by its store", result.returncode == 1 and "one of the files" in result.stderr, result)
quirkfs.end()
done()
