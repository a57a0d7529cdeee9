# SPDX-License-Identifier: Apache-2.0
"""A daemon with a low RLIMIT_NOFILE, from 8 up: it refuses to start with a reason, or serves every kind of reader the
correct bytes, disables what it has no descriptors for, closes all of them, and ends normally."""
import reader_processes
from e2e import *

need_fuse()
if not shutil.which("prlimit"):
    skip("there is no prlimit")
model = make_model("model", "-F", "qwen3-moe", "-d", "128", "-i", "256", "-e", "16", "-l", "3", "--vocab", "500")
store = make_store(model)
folder = scratch("copies")
os.mkdir(folder)
want = {name: data for name, data in {**experts_without_passthrough(store), **contents(model)}.items() if data}
refused, served = [], []
for most in (8, 16, *range(20, 42, 2), 48, 64, 128):
    mount = Mount(store, "budget=96M", wait=False, prefix=("prlimit", f"--nofile={most}:{most}"))
    ready = wait_until(lambda: mount.daemon.poll() is not None or any(f": {way} (" in mount.log_text() for way in
                                                                     ("passthrough", "direct_io", "page_cache")))
    if mount.daemon.poll() is not None:
        good = mount.daemon.returncode == 1 and not is_mounted(mount.path) and "Too many open files" in mount.log_text()
        check(f"{most} files: refused, and it is told why", good, (mount.daemon.returncode, mount.log_text()))
        refused.append(most)
        mount.abandon()
        continue
    readers, stop = reader_processes.start(mount, want, 2 * len(reader_processes.KINDS), most, folder)
    time.sleep(0.5)
    stop.set()
    did, problems, signals = reader_processes.join(readers)
    check(f"{most} files: {did} reads, no wrong byte, no error", ready and not problems and not signals, (problems[:4], signals))
    check("nothing is held", mount.wait_idle(), mount.stat())
    served.append(most)
    mount.unmount(f"{most} files")
check("with few it is refused, with more it serves", {64, 128} <= set(served), (refused, served))
for most in (52, 64):  # more experts than that are open when the daemon is stopped
    mount = Mount(store, "budget=96M", prefix=("prlimit", f"--nofile={most}:{most}"))
    experts = [open(mount / name, "rb") for name in want if name.startswith("experts/L")]
    for file in experts:
        file.read()
    mount.stop(f"{most} files, {len(experts)} experts open: SIGTERM")
    for file in experts:
        file.close()
done()
