# SPDX-License-Identifier: Apache-2.0
"""No file of a mount can be changed, also where the kernel does not mount it read-only (ro): every way to write gives EROFS,
to root, to other users, and on a mount of an unprivileged user to its owner; the results of stat and access."""
import stat as stat_module

from write_attempts import in_a_mount, results
from e2e import *

need_fuse()
root = os.geteuid() == 0
model, store = shared(NARROW)
source = contents(model)
large = max(source, key=lambda name: len(source[name]))
expert = "experts/L01/E002.safetensors"
NOBODY = 65534
PYTHON = "/usr/bin/python3"  # for users who cannot enter this interpreter's folder


def all_refused(who, found):
    bad = {what: error for what, error in found.items() if error != "EROFS"}
    check(f"{who}: {len(found)} ways to write give EROFS", found and not bad, bad)


def attempts(path, name):
    return results(*in_a_mount(path, name))


mount = Mount(store, f"budget=128M{',allow_other' if root else ''}")
print("-- attempts")
for name in (large, expert, "config.json"):
    all_refused(f"who mounted it, {name}", attempts(mount.path, name))
if root:
    for name in (large, expert):
        all_refused(f"nobody, {name}", json.loads(as_user(NOBODY, [NOBODY], lambda: json.dumps(attempts(mount.path, name)))))
    check("and all is as it was", {name: open(mount / name, "rb").read() for name in source} == source and
          sorted(os.listdir(mount.path)) == sorted({name.split("/")[0] for name in source} | {"experts", ".expertfs"}))
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
    for what, tune in (("budget", lambda: os.setxattr(mount.path, "user.expertfs.budget", b"120M")),
                       ("want", lambda: open(mount / ".expertfs/want", "w").write("0: 1\n"))):
        told = error_of(tune)
        check(f"mounted with {options}: {what} can be set only with rw", told == ("EROFS" if "ro" in options.split(",") else "none"), told)
    mount.stop()

print("-- the mount of a user without privileges")
attempting = shutil.copy(os.path.join(ROOT, "tests/e2e/write_attempts.py"), scratch("write_attempts.py"))
result = as_nobody("""
    "$1" "$3" "$2" || exit 1
    "$4" "$5" "$2" "$6"
    pid=$(sed -n "s/^pid: //p" "$2/.expertfs/config")
    kill "$pid"
    for i in $(seq 12000); do [ -d "/proc/$pid" ] || break; sleep 0.02; done # it saves its state below the scratch folder
    """, store, PYTHON, attempting, large) if os.path.exists(PYTHON) else note(f"left out: needs {PYTHON}")
if result is not None:
    if check("it mounts", result.returncode == 0, result):
        all_refused("its owner", json.loads(result.stdout))
done()
