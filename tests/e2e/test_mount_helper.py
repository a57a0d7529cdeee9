# SPDX-License-Identifier: Apache-2.0
"""mount -t expertfs: the command line with which mount(8) calls /sbin/mount.expertfs; through mount(8) and fstab, with
remounts, where a link can be put into /sbin."""
from e2e import *

need_fuse()
model, store = shared(NARROW)
folder, helper, path = scratch("sbin"), scratch("sbin/mount.expertfs"), scratch("a mount")
os.makedirs(folder)
os.makedirs(path)
os.symlink(program("expertfs"), helper)
os.symlink(program("expertfs"), scratch("sbin/expertfs"))  # /sbin/mount.fuse3 runs it for a remount
large = max(files_below(model), key=lambda name: os.path.getsize(f"{model}/{name}"))


def options_of(path):
    with open("/proc/mounts") as table:
        return [line.split()[3] for line in table if line.split()[1] == path.replace(" ", "\\040")]


print("-- as mount(8) calls it")
result = run(helper, store, path, "-o", "rw,budget=64M,noauto,x-systemd.automount", "-n", "-v", "-s", "-t", "expertfs")
check("it mounts and says nothing", result.returncode == 0 and not result.stdout + result.stderr and
      options_of(path) and options_of(path)[0].startswith("rw,nosuid,nodev"), (result, options_of(path)))
check("it serves", open(f"{path}/{large}", "rb").read() == open(f"{model}/{large}", "rb").read())
if os.geteuid() == 0:
    result = run(helper, store, path, "-o", "remount,ro,budget=80M")
    check("-o remount: ro, and the budget", result.returncode == 0 and options_of(path)[0].startswith("ro,") and
          os.getxattr(path, "user.expertfs.budget").decode() == str(80 << 20), (result, options_of(path)))
run(program("expertctl"), "down", path)
result = run(helper, store, path, "-f", "-o", "budget=64M")
check("-f: nothing is mounted", result.returncode == 0 and not is_mounted(path), result)
for arguments, says in (((store, path, "-o", "budjet=1G"), "unknown option \"budjet\"\nhint: did you mean budget?"),
                        ((store,), "a store and a mountpoint are needed"), ((store, path, "-x"), "unknown option -x"),
                        ((scratch("none.efs"), path), "No such file")):
    result = run(helper, *arguments)
    check(f"refused: {says}", result.returncode == 1 and says in result.stderr and not is_mounted(path), result)

print("-- through mount(8)")
with open(scratch("fstab"), "w") as table:
    table.write(f"{store} {path.replace(' ', chr(92) + '040')} expertfs ro,noauto,budget=64M 0 0\n")
script = """set -e
mount --make-rprivate /
mount -t overlay overlay -o lowerdir="$1":/sbin /sbin 2>/dev/null || exit 77
mount -t expertfs -o budget=72M "$2" "$3"
cmp "$3/$5" "$4/$5"
mount -o remount,ro "$3"
grep -c "fuse.expertfs ro," /proc/mounts
mount -o remount,rw,budget=80M "$3"
cat "$3/.expertfs/config" | grep budget_bytes
umount "$3"
mount -T "$6" "$3"
grep -c "fuse.expertfs ro," /proc/mounts
cmp "$3/$5" "$4/$5"
umount "$3"
"""
result = run("unshare", "-m", "sh", "-c", script, "sh", folder, store, path, model, large, scratch("fstab"))
if result.returncode == 77 or "unshare" in result.stderr:
    note("left out: /sbin cannot be overlaid here")
else:
    check("mount -t expertfs, remount, umount, fstab", result.returncode == 0 and f"\nbudget_bytes: {80 << 20}\n" in result.stdout, result)
done()
