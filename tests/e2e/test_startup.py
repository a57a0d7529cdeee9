# SPDX-License-Identifier: Apache-2.0
"""Before the mount exists: a signal ends expertfs, also while it looks up a path on a filesystem that does not answer;
and no path that it opens between mount(2) and its first answer is on the mount itself."""
from e2e import *

need_fuse()
model = make_model("model", "-F", "qwen3-moe", "-l", "1", "-e", "2", "-d", "64", "-i", "64", "--vocab", "320")
plain = make_store(model)
inner = scratch("inner")  # a checkpoint with folders that were never looked up, so that the kernel asks the daemon
shutil.copytree(model, inner)
for folder in range(6):
    os.makedirs(os.path.join(inner, str(folder)))
    shutil.copy(plain, os.path.join(inner, f"{folder}/inner.efs.txt"))
outer = Mount(make_store(inner))


def in_a_call(pid):
    """True if the process, or a child, waits for the answer of a FUSE daemon."""
    try:
        with open(f"/proc/{pid}/stack") as stack, open(f"/proc/{pid}/task/{pid}/children") as children:
            return "fuse" in stack.read() or any(in_a_call(child) for child in children.read().split())
    except OSError:
        return False


def ends(what, number, background, store, path, *options):
    """Starts the daemon while the outer mount is stopped, waits until it blocks on that mount, and sends it a
    signal."""
    outer.suspend()
    process = subprocess.Popen([program("expertfs"), *([] if background else ["-f"]), *options, store, path],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        waits = wait_until(lambda: in_a_call(process.pid) or process.poll() is not None) and process.poll() is None
        process.send_signal(number)
        said = process.communicate(timeout=PATIENCE)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        said = "still running"
    finally:
        outer.resume()
    process.wait()
    check(f"{what}: {number.name} ends it, background: {background}",
          waits and (process.returncode == -number or process.returncode == 1 and "was ended by signal" in said) and
          not is_mounted(empty),
          f"waits: {waits}, {process.returncode}, {said}")


empty = scratch("empty")
os.makedirs(empty)
if os.geteuid():
    note("left out: only root may see where a process waits")
else:
    for background in (False, True):
        first = 3 * background
        ends("a store that is not found", signal.SIGTERM, background, outer / f"{first}/inner.efs.txt", empty)
        ends("a mountpoint that is not found", signal.SIGINT, background, plain, outer / f"{first + 1}")
        ends("a mountpoint that does not answer", signal.SIGINT, background, plain, outer.path)
outer.stop()


for below in ("", "folder"):  # the daemon creates the second one
    mount = Mount(plain, environment={"EXPERTFS_RUN": os.path.join(scratch("run0"), below).rstrip("/")}, name="run")
    what = f"EXPERTFS_RUN is {'below ' if below else ''}the mountpoint"
    check(f"{what}: the mount serves", mount.ready and os.path.exists(mount / "config.json"), mount.log_text())
    mount.stop(what)
done()
