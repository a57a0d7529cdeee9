# SPDX-License-Identifier: Apache-2.0
"""Programs that are started in unusual environments: closed standard files, a limit on the size of files
(test_fd_limit.py: on their number). No data is written to a wrong file, and an impossible operation is an error, not a
crash."""
import resource

from e2e import *

need_fuse()
model, store = shared(NARROW)
whole = open(store, "rb").read()
source = contents(model)
names = list(source)


def started(command, closed=(), limits=()):
    """Runs it with files closed and limits set; returns its exit status."""
    def prepare():
        for what, soft in limits:
            resource.setrlimit(what, (soft, resource.getrlimit(what)[1]))
        for fd in closed:
            os.close(fd)
    return subprocess.run(command, preexec_fn=prepare).returncode


for closed in ((0, 1, 2), (2,), (1, 2), (0,)):
    print(f"-- without {', '.join(('standard input', 'standard output', 'standard error')[fd] for fd in closed)}")
    out, back, path = scratch("out.efs"), scratch("back"), scratch("mnt")
    status = started([program("mkexpertfs"), "--force", model, out], closed)
    check("mkexpertfs: the store is the store", status == 0 and open(out, "rb").read() == whole, status)
    status = started([program("expertctl"), "unpack", out, back], closed)
    check("unpack: the files are the files", status == 0 and all(open(f"{back}/{name}", "rb").read() == source[name] for name in names), status)
    shutil.rmtree(back)
    os.makedirs(path, exist_ok=True)
    status = started([program("expertfs"), store, path], closed)
    served = is_mounted(path) and all(open(f"{path}/{name}", "rb").read() == source[name] for name in names)
    check("expertfs serves in the background", status == 0 and served, status)
    run("umount", path) if os.geteuid() == 0 else run("fusermount3", "-u", path)
    check("and ends", wait_until(lambda: not is_mounted(path)))

print("-- files of at most 4 KiB")
small = [(resource.RLIMIT_FSIZE, 4096)]
os.remove(out)
before = sorted(os.listdir(SCRATCH))
status = started([program("mkexpertfs"), "--quiet", model, out], (), small)
check("mkexpertfs fails with a message, and leaves nothing", status == 1 and sorted(os.listdir(SCRATCH)) == before, status)
status = started([program("expertctl"), "unpack", "--quiet", store, back], (), small)
check("unpack fails, and leaves nothing", status == 1 and not os.path.exists(back), status)
print("-- files of at most 4 KiB, a mount")
mount = Mount(store, prefix=("prlimit", f"--fsize={4096}"))
check("the mount serves, experts too", all(open(mount / name, "rb").read() == source[name] for name in names) and
      len(open(mount / "experts/L01/E002.safetensors", "rb").read()) > 4096)
mount.unmount()
done()
