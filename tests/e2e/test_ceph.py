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
check("later reads work", wait_until(lambda: read_all(mount)[0] == set()))
mount.unmount()

print("-- counts, plans and placements")
CLUSTER = "rados:expertfs/m"
each = -(-json.loads(tool("expertctl", "info", "--json", store).stdout)["expert_coded_bytes"] // 32)


def plan(**environment):
    return tool("expertctl", "cluster", "plan", "--json", "--servers", f"a={24 * each},b={24 * each}", store, CLUSTER, **environment)


def number():
    return json.loads(tool("expertctl", "cluster", "--json", store, CLUSTER, **reader).stdout)["number"]


def placed_mount(server, environment=None):
    return Mount(ADDRESS, f"budget=96M,nopassthrough,direct_io=on,warm=off,nostate,placement={CLUSTER},server={server}", environment=environment)


mounts = {server: placed_mount(server) for server in ("a", "b")}
result = None


def planned(count):
    global result
    result = plan()
    return result.returncode == 0 and json.loads(result.stdout)["servers"] == count


check("both servers have written counts", wait_until(lambda: planned(2)), result)
for server, mount in mounts.items():
    check(f"{server} takes the placement and reads its experts", wait_until(lambda: int(mount.config()["placement_held"]) >= 8 and
          mount.config()["placement_held"] == mount.config()["placement_experts"]), mount.control("config"))
check("no wrong byte", read_all(mounts["a"])[0] == set())
mounts["b"].unmount()
mount = placed_mount("b", environment=reader)
check("a server that may only read says so, and takes the placement", wait_until(lambda: "the counts of b are not written: the user may not" in
      mount.control("log") and mount.config()["placement_number"] != "0"), mount.control("log"))
result = plan(**reader)
check("and does not plan", result.returncode == 1 and "the user may not" in result.stderr, result)
begin = number()
run("rados", "-p", "expertfs", "lock", "get", "m.planner", "planner", "--lock-cookie", "other", "--lock-duration", "20")
result = plan()
check("another one plans", result.returncode == 1 and "other plans" in result.stderr, result)
check("its lease ends", wait_until(lambda: plan().returncode == 0) and number() == begin + 1)
begin, results, ended = number(), [], threading.Event()


def breaks_locks():  # all believe that they plan
    while not ended.is_set():
        listed = json.loads(run("rados", "-p", "expertfs", "lock", "info", "m.planner", "planner", "--format", "json").stdout or "{}")
        for locker in listed.get("lockers", []):
            run("rados", "-p", "expertfs", "lock", "break", "m.planner", "planner", locker["name"], "--lock-cookie", locker["cookie"])


def plans():
    for _ in range(6):
        results.append(plan())


threads = [threading.Thread(target=run_it) for run_it in (breaks_locks, plans, plans, plans)]
for thread in threads:
    thread.start()
for thread in threads[1:]:
    thread.join()
ended.set()
threads[0].join()
good = [json.loads(result.stdout)["number"] for result in results if result.returncode == 0]
check("without a lock, too, each plan that ended well is one version", len(set(good)) == len(good) and number() == begin + len(good) and
      all(re.search("plans|lost|meanwhile", result.stderr) for result in results if result.returncode), results)
note(f"{len(good)} of {len(results)} have written")
check("the last one is in force", wait_until(lambda: int(mount.config()["placement_number"]) == number()), mount.control("config"))
mount.unmount()
mounts["a"].unmount()
for name in ("m.placement", "m.planner", "m.counts.a", "m.counts.b"):
    run("rados", "-p", "expertfs", "rm", name)

print("-- packed into the pool, and a full cluster")
check("packed", tool("mkexpertfs", "-q", model, "rados:expertfs/packed").returncode == 0 and
      tool("expertctl", "verify", "rados:expertfs/packed", **reader).returncode == 0)


def listed():
    return sorted(run("rados", "-p", "expertfs", "ls").stdout.split())


def inject(state):
    for osd in range(3):
        run("ceph", "tell", f"osd.{osd}", "injectfull", state)


def is_full():
    return "OSD_FULL" in run("ceph", "health", "detail").stdout


before = listed()
inject("full")
check("the cluster is full", wait_until(is_full, 120), run("ceph", "health", "detail").stdout)
for words in (("--copy", store), (model,)):
    result = tool("mkexpertfs", "-q", *words, "rados:expertfs/full")
    check(f"mkexpertfs {words[0]}: no space, and nothing is left", one_line(result, "No space left on device") and listed() == before, result.stderr)
result = tool("expertctl", "rm", "-y", "rados:expertfs/packed")
check("a store is deleted there", result.returncode == 0 and len(listed()) < len(before), (result, listed()))
check("the other one is read", tool("expertctl", "verify", ADDRESS, **reader).returncode == 0)
inject("none")
check("not full any more", wait_until(lambda: not is_full(), 120))

print("-- a store is replaced")
result = tool("mkexpertfs", "-q", "--force", "--copy", store, ADDRESS)
check("mkexpertfs --force", result.returncode == 0 and tool("expertctl", "verify", ADDRESS).returncode == 0, result.stderr)

print("-- a copy is killed")
copying = subprocess.Popen([program("mkexpertfs"), "-q", "--copy", store, "rados:expertfs/killed"])
wait_until(lambda: run("rados", "-p", "expertfs", "stat", "killed.part").returncode == 0 or copying.poll() is not None)
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
