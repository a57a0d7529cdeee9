# SPDX-License-Identifier: Apache-2.0
"""A store in a real pool of Ceph (tools/cluster): copied, read by a user who may only read, OSDs killed and paused under
readers, a copy killed. `make test-cluster` runs it."""
import threading

from e2e import *

need_fuse()
ceph = servers("up")


def tool(name, *words, **environment):
    return run(program(name), *words, env={**os.environ, **environment})


def read_all(mount):
    """(errors, the longest read of a file in seconds); a wrong byte fails the test."""
    errors, longest = set(), 0
    for name in source:
        begin = time.monotonic()
        errors |= reading_errors(mount, {name: source[name]})
        longest = max(longest, time.monotonic() - begin)
    return errors, longest


def while_reading(mount, action):
    """read_all() again and again while action() runs, and once more."""
    found, ended = [], threading.Event()

    def reads():
        while not ended.is_set():
            found.append(read_all(mount))

    thread = threading.Thread(target=reads)
    thread.start()
    action()
    ended.set()
    thread.join()
    found.append(read_all(mount))
    return set().union(*(errors for errors, _ in found)), max(longest for _, longest in found)


model, store = shared(DEEP)  # more than the memory of a mount, so that each round reads from the OSDs
source = contents(model)
ADDRESS, OPTIONS = "rados:expertfs/model.efs", "budget=64M,nopassthrough,direct_io=on,warm=off,nostate"
reader, soon = {"CEPH_ARGS": "--id reader"}, {"CEPH_ARGS": "--id reader --rados_osd_op_timeout=4"}

print("-- copied, and read by a user who may only read")
check("copied", tool("mkexpertfs", "-q", "--copy", store, ADDRESS).returncode == 0)
check("verify as the reader", tool("expertctl", "verify", ADDRESS, **reader).returncode == 0)
result = tool("mkexpertfs", "-q", "--copy", store, "rados:expertfs/other", **reader)
check("who may not write", result.returncode == 1 and "the user may not" in result.stderr, result.stderr)
result = tool("expertctl", "rm", "-y", ADDRESS, **reader)
check("nor delete", result.returncode == 1 and "the user may not" in result.stderr, result.stderr)
for words, text in (("rados:expertfs/none", "no such store"), ("rados:none/x", "no such pool")):
    begin = time.monotonic()
    result = tool("expertctl", "info", words, **reader)
    check(f"{words}: {text}", result.returncode == 1 and text in result.stderr, result.stderr)
    note(f"{words}: said after {time.monotonic() - begin:.2f} s")
result = tool("expertctl", "info", ADDRESS, CEPH_ARGS="--id nobody")
check("a user without a key", result.returncode == 1 and "cannot connect" in result.stderr, result.stderr)

print("-- an OSD is killed under a reader")
mount = Mount(ADDRESS, OPTIONS, environment=reader)
check("read", read_all(mount)[0] == set())


def one_killed():
    time.sleep(1)
    ceph.call("stop", "1")
    time.sleep(20)


errors, longest = while_reading(mount, one_killed)
check("no failed read, no wrong byte", errors == set(), errors)
check("which were of the OSDs", mount.count("disk_bytes") > 2 * os.path.getsize(store), mount.count("disk_bytes"))
note(f"the longest read of a file: {longest:.1f} s")
ceph.call("start", "1")

print("-- all are paused for 10 s")


def all_paused():
    ceph.call("pause")
    time.sleep(10)
    ceph.call("continue")


errors, longest = while_reading(mount, all_paused)
check("no failed read, no wrong byte", errors == set(), errors)
note(f"the longest read of a file: {longest:.1f} s")
mount.unmount()

print("-- all are paused for longer than the timeout")
mount = Mount(ADDRESS, OPTIONS, environment=soon)
ceph.call("pause")
errors, longest = read_all(mount)
check("EIO", errors == {"EIO"}, errors)
check("the log says why", "no answer in time" in mount.control("log"), mount.control("log"))
ceph.call("continue")
check("later reads work", wait_until(lambda: read_all(mount)[0] == set(), 120))
mount.unmount()

print("-- a copy is killed")
copying = subprocess.Popen([program("mkexpertfs"), "-q", "--copy", store, "rados:expertfs/killed"])
wait_until(lambda: run("rados", "-p", "expertfs", "stat", "killed.part").returncode == 0 or copying.poll() is not None, 60)
copying.kill()
copying.wait()
if "no such store" in tool("expertctl", "info", "rados:expertfs/killed").stderr:
    check("rm --unfinished", tool("expertctl", "rm", "-y", "--unfinished", "rados:expertfs/killed").returncode == 0)
else:
    note("the copy had ended before")
    check("rm", tool("expertctl", "rm", "-y", "rados:expertfs/killed").returncode == 0)
check("rm", tool("expertctl", "rm", "-y", ADDRESS).returncode == 0)
left = run("rados", "-p", "expertfs", "ls").stdout.split()
check("nothing is left in the pool", left == [], left)
ceph.__exit__()
check("the cluster is removed", not os.path.exists(ceph.folder))
done()
