# SPDX-License-Identifier: Apache-2.0
"""Nothing of a mount can be changed, though the kernel does not know it: every way to write gives EROFS, to root, to
other users, and on a mount of an unprivileged user to its owner; what stat and access tell."""
import ctypes
import errno
import json
import os
import stat as stat_module
import sys

LIBC = ctypes.CDLL(None, use_errno=True)


def call(function, *arguments):
    if getattr(LIBC, function)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), function)


def attempts(mount, name):
    """All ways to change the file `name`, or to make one beside it: {what: its error}."""
    path, new, folder = f"{mount}/{name}", f"{mount}/new", f"{mount}/experts"
    other = f"{mount}/{'config.json' if name != 'config.json' else 'extra/odd.bin'}"
    raw, long = os.fsencode(path), ctypes.c_long

    def opened(flags, at=path, mode=0o666):
        os.close(os.open(at, flags, mode))

    def with_file(function):
        file = os.open(path, os.O_RDONLY)
        try:
            function(file)
        finally:
            os.close(file)

    ways = {
        "create": lambda: opened(os.O_CREAT | os.O_WRONLY, new),
        "create to read": lambda: opened(os.O_CREAT | os.O_RDONLY, new),
        "create exclusively": lambda: opened(os.O_CREAT | os.O_EXCL | os.O_RDWR, f"{folder}/new"),
        "create in .expertfs": lambda: opened(os.O_CREAT | os.O_WRONLY, f"{mount}/.expertfs/new"),
        "open to write": lambda: opened(os.O_WRONLY),
        "open to read and write": lambda: opened(os.O_RDWR),
        "open to append": lambda: opened(os.O_WRONLY | os.O_APPEND),
        "open to read, cut": lambda: opened(os.O_RDONLY | os.O_TRUNC),
        "open to write, cut": lambda: opened(os.O_WRONLY | os.O_TRUNC | os.O_CREAT),
        "open stat to write": lambda: opened(os.O_WRONLY, f"{mount}/.expertfs/stat"),
        "truncate": lambda: os.truncate(path, 0),
        "truncate to its size": lambda: os.truncate(path, os.stat(path).st_size),
        "unlink": lambda: os.unlink(path),
        "unlink stat": lambda: os.unlink(f"{mount}/.expertfs/stat"),
        "rmdir": lambda: os.rmdir(folder),
        "mkdir": lambda: os.mkdir(new),
        "rename": lambda: os.rename(path, new),
        "rename over": lambda: os.rename(path, other),
        "rename a folder": lambda: os.rename(folder, new),
        "exchange": lambda: call("renameat2", -100, raw, -100, os.fsencode(other), 2),
        "chmod": lambda: os.chmod(path, 0o777),
        "chmod of a folder": lambda: os.chmod(folder, 0o777),
        "fchmod": lambda: with_file(lambda file: os.fchmod(file, 0o666)),
        "chown": lambda: os.chown(path, os.geteuid(), os.getegid()),
        "utime": lambda: os.utime(path),
        "utime to a time": lambda: os.utime(path, (1, 1)),
        "link": lambda: os.link(path, new),
        "symlink": lambda: os.symlink("x", new),
        "mknod of a file": lambda: os.mknod(new),
        "mknod of a pipe": lambda: os.mkfifo(new),
        "access": lambda: call("access", raw, os.W_OK),
        "access of the root": lambda: call("access", os.fsencode(mount), os.W_OK),
    }
    closed = {  # the file is not open to be written, which is told first
        "ftruncate": lambda: with_file(lambda file: os.ftruncate(file, 0)),
        "write": lambda: with_file(lambda file: os.write(file, b"x")),
        "fallocate": lambda: with_file(lambda file: call("fallocate", file, 0, long(0), long(1))),
    }
    results = {}
    for what, way in [*ways.items(), *closed.items()]:
        try:
            way()
            results[what] = "it worked"
        except OSError as error:
            results[what] = errno.errorcode.get(error.errno, error.errno)
            if what in closed and error.errno in (errno.EBADF, errno.EINVAL):
                results[what] = "EROFS"
    return results


if len(sys.argv) > 1:  # as another user
    print(json.dumps(attempts(*sys.argv[1:3])))
    sys.exit(0)

import shutil

from e2e import *

need_fuse()
root = os.geteuid() == 0
model = make_model("model", "-F", "qwen3-moe", "-d", "128", "-i", "256", "-e", "4", "-l", "2", "--vocab", "500")
store = make_store(model)
names = files_below(model)
source = {name: open(f"{model}/{name}", "rb").read() for name in names}
large = max(names, key=lambda name: len(source[name]))
expert = "experts/L01/E002.safetensors"
PYTHON = "/usr/bin/python3"  # for users who may not enter this one's folder


def all_refused(who, results):
    bad = {what: error for what, error in results.items() if error != "EROFS"}
    check(f"{who}: {len(results)} ways to write give EROFS", not bad, bad)


def as_user(name, path):
    """The same by nobody, who has to be able to read this script."""
    script = scratch("attempts.py")
    shutil.copy(__file__, script)
    os.chmod(SCRATCH, 0o755)
    result = subprocess.run([PYTHON, script, path, name], capture_output=True, text=True, user="nobody",
                            group="nogroup", extra_groups=[], cwd="/", timeout=60)
    if result.returncode:
        check("a script as nobody", False, result.stderr)
        return {}
    return json.loads(result.stdout)


mount = Mount(store, f"budget=128M{',allow_other' if root else ''}")
print("-- attempts")
for name in (large, expert, "config.json"):
    all_refused(f"who mounted it, {name}", attempts(mount.path, name))
if root and os.path.exists(PYTHON):
    for name in (large, expert):
        all_refused(f"nobody, {name}", as_user(name, mount.path))
    files = {name: open(mount / name, "rb").read() for name in names}
    check("and all is as it was", files == source and sorted(os.listdir(mount.path)) ==
          sorted({name.split("/")[0] for name in names} | {"experts", ".expertfs"}))
else:
    note("left out: another user's attempts, which need root")
with open(mount / expert, "rb") as open_expert:
    open_expert.read(1)
    all_refused("an expert that is open", attempts(mount.path, expert))

print("-- what is told")
st = os.stat(mount / large)
check("attributes of a file", stat_module.S_IMODE(st.st_mode) == 0o444 and st.st_nlink == 1 and
      st.st_blocks == (st.st_size + 511) // 512 and st.st_blksize & (st.st_blksize - 1) == 0 and
      st.st_blksize >= 1 << 20 and int(st.st_mtime) == int(os.stat(store).st_mtime), st)
st = os.stat(mount / "experts")
subdirectories = sum(os.path.isdir(mount / f"experts/{name}") for name in os.listdir(mount / "experts"))
check("attributes of a directory", stat_module.S_IMODE(st.st_mode) == 0o555 and st.st_nlink == 2 + subdirectories, st)
fs = os.statvfs(mount.path)
total = sum(map(len, source.values()))
check("statvfs", 0 <= fs.f_blocks * fs.f_frsize - total < fs.f_frsize and fs.f_bfree == 0 and fs.f_ffree == 0 and
      fs.f_namemax == 255, fs)
check("access to read, to run, to enter", os.access(mount / large, os.R_OK) and not os.access(mount / large, os.X_OK)
      and os.access(mount.path, os.R_OK | os.X_OK))
check("a file is not run", run("sh", "-c", f"exec '{mount / large}'").returncode == 126)
try:
    os.stat(mount / "nothing")
    check("a name that is not there", False)
except FileNotFoundError:
    check("a name that is not there", True)
if root and run("mount", "-i", "-o", "remount,ro", mount.path).returncode == 0:
    all_refused("after a remount with ro", attempts(mount.path, large))
    check("and it still reads", open(mount / large, "rb").read() == source[large])
mount.unmount()

print("-- options of mount(8)")
for options in ("ro", "ro,noatime,noexec", "rw,default_permissions", "ro,nosuid,nodev,relatime,user,_netdev"):
    mount = Mount(store, f"budget=128M,{options}")
    all_refused(f"mounted with {options}", attempts(mount.path, large))
    mount.stop()

print("-- the mount of a user without privileges")
attempting = scratch("attempts.py")
shutil.copy(__file__, attempting)
result = as_nobody("""
    "$1" "$3" "$2" || exit 1
    "$4" "$5" "$2" "$6"
    kill $(sed -n "s/^pid: //p" "$2/.expertfs/config")
    """, store, PYTHON, attempting, large) if os.path.exists(PYTHON) else note(f"left out: needs {PYTHON}")
if result is not None:
    results = json.loads(result.stdout) if check("it mounts", result.returncode == 0, result) else {}
    all_refused("its owner", results)
done()
