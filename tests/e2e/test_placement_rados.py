# SPDX-License-Identifier: Apache-2.0
"""Counts and placement in a pool of Ceph (fake_rados.c): servers write and read them; a planner that was killed, one that
lost its lock, one that writes late; a server that is lost, counts of another store, a clock that jumps, no rights."""
from e2e import *

need_fuse()
store, other = shared(MANY)[1], shared(NARROW)[1]
info = json.loads(ctl("info", "--json", store).stdout)
EXPERTS = 48
each = -(-info["expert_coded_bytes"] // EXPERTS)
root = scratch("rados")
pool = fake_rados(root)
ADDRESS = "rados:pool/models/m"
OPTIONS = f"budget=64M,nopassthrough,direct_io=on,warm=off,nostate,placement={ADDRESS},server="
PLANNER = "m.planner"


def object_of(what):
    return os.path.join(pool, f"models%m.{what}")


def plan_words(*words, servers=f"left={40 * each},right={40 * each}"):
    return ("cluster", "plan", "--servers", servers, *words, store, ADDRESS)


def plan(*words, **more):
    return ctl(*plan_words(*words, **more))


def show():
    return json.loads(ctl("cluster", "--json", store, ADDRESS).stdout)


def placement():
    return open(object_of("placement")).read()


def value(mount, name):
    return mount.config()[f"placement_{name}"]


def replace(what, data):
    """As another client of the pool would."""
    with open(object_of(what) + ".new", "wb") as file:
        file.write(data)
    os.rename(object_of(what) + ".new", object_of(what))
    side = os.path.join(root, "versions", f"pool%models%m.{what}")
    version = int(open(side).read()) + 1
    with open(side, "w") as file:
        file.write(str(version))


print("-- servers and a plan")
check("no placement", one_line(ctl("cluster", store, ADDRESS), "No such file or directory", hint=False))
left, right = Mount(store, OPTIONS + "left"), Mount(store, OPTIONS + "right")
check("counts are written at once", wait_until(lambda: os.path.exists(object_of("counts.left")) and os.path.exists(object_of("counts.right"))))
check("without a placement: one warning", wait_until(lambda: "nothing is placed" in left.control("log")) and
      sum("placed" in line for line in left.control("log").splitlines()) == 1, left.control("log"))
for mount, numbers in ((left, range(6)), (right, range(8, 14))):
    for layer in range(3):
        for number in numbers:
            open(mount / f"experts/L{layer:02}/E{number:03}.safetensors", "rb").read()
    mount.unmount()
result = plan("--json", servers=f"left={30 * each},right={30 * each}")
check("plan", result.returncode == 0 and json.loads(result.stdout)["servers"] == 2, result)
said = show()
check("counts are written at the end, too", [(s["name"], s["calls"], s["local"], s["fault"]) for s in said["servers"]] ==
      [("left", 18, 1.0, None), ("right", 18, 1.0, None)] and said["planner"] is None, said)
left, right = Mount(store, OPTIONS + "left"), Mount(store, OPTIONS + "right")
for mount in (left, right):
    check("it takes the placement", wait_until(lambda: value(mount, "held") == "30" and value(mount, "number") == "1"),
          mount.control("config"))
check("another plan", plan("--rule", "uniform").returncode == 0)
for mount in (left, right):
    check("is taken, too", wait_until(lambda: value(mount, "number") == "2" and value(mount, "rule") == "uniform"))

print("-- planners")


def lease_ends():
    os.unlink(os.path.join(root, "locks", f"pool%models%{PLANNER}"))


def held_planner():
    """A planner that has passed all checks and is about to write."""
    for name in ("holding", "go"):
        if os.path.exists(os.path.join(root, name)):
            os.unlink(os.path.join(root, name))
    faults("held m.placement")
    planner = subprocess.Popen([program("expertctl"), *plan_words()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    check("a planner is about to write", wait_until(lambda: os.path.exists(os.path.join(root, "holding")) or planner.poll() is not None))
    return planner


planner = held_planner()
before = placement()
result = plan()
check("meanwhile no other one plans", result.returncode == 1 and f"-{planner.pid} plans" in result.stderr and
      "30 seconds" in result.stderr, result)
check("cluster names it", show()["planner"].endswith(f"-{planner.pid}"))
planner.kill()
planner.wait()
check("killed: its lock stays", plan().returncode == 1 and placement() == before)
lease_ends()
faults()
check("the lease ends: another plans", plan().returncode == 0 and placement() != before)

planner = held_planner()
lease_ends()  # it is cut off
check("another one plans and writes", plan("--rule", "eplb").returncode == 0, placement())
before = placement()
open(os.path.join(root, "go"), "w").close()
error = planner.communicate()[1]
check("the late one writes nothing", planner.returncode == 1 and "another planner has written meanwhile: nothing is written" in error and
      placement() == before, error)
faults(f"ended {PLANNER}")
result = plan()
check("one that lost its lock writes nothing", result.returncode == 1 and "the lock of the planner was lost: nothing is written" in
      result.stderr and placement() == before, result)
lease_ends()
faults("full m.placement")
result = plan()
check("a full pool", result.returncode == 1 and "ceph df" in result.stderr and placement() == before, result)
faults()

print("-- a server is lost, a clock jumps, counts lie")
right.unmount()
for seconds, text in ((-3600, "60 minutes old: it is lost, or a clock is wrong"), (3600, "60 minutes ahead: a clock is wrong")):
    os.utime(object_of("counts.right"), (time.time() + seconds,) * 2)
    result = plan(servers=f"left={60 * each},right={40 * each}")
    check(text, result.returncode == 0 and f"right: its counts are {text}: planned without it" in result.stderr and
          "server right" not in placement(), result)
check("left takes over", wait_until(lambda: value(left, "held") == str(EXPERTS)), left.control("config"))
before = placement()
foreign = Mount(other, f"{OPTIONS}right")
check("a mount of another store refuses the placement", wait_until(lambda: "a placement of another store" in foreign.control("log")),
      foreign.control("log"))
foreign.unmount()
result = plan()
check("its counts are refused", result.returncode == 1 and "right: counts of another store: planned without it" in result.stderr and
      placement() == before, result)
os.unlink(object_of("counts.right"))
result = plan()
check("no counts", result.returncode == 1 and "right: no counts" in result.stderr and placement() == before, result)

print("-- placements that lie")
number = value(left, "number")
good = placement().encode()
for what, data, why in (("half", good[:-8], "a layer without"), ("other bytes", os.urandom(5000), "not a placement")):
    replace("placement", data)
    check(f"{what}: the one before stays", wait_until(lambda: why in value(left, "fault")) and value(left, "number") == number,
          left.control("config"))
    check(f"{what}: one warning", sum(why in line for line in left.control("log").splitlines()) == 1, left.control("log"))
replace("placement", good)
check("a good one ends it", wait_until(lambda: value(left, "fault") == "-"))
left.unmount()

print("-- no rights, no answer")
faults("denied counts.left")
left = Mount(store, OPTIONS + "left")
check("counts are not written, which is one warning", wait_until(lambda: "the counts of left are not written: the user may not" in
      left.control("log")), left.control("log"))
check("and the placement is taken", wait_until(lambda: value(left, "number") == number))
left.unmount()
faults("silent connect")
left = Mount(store, OPTIONS + "left")
check("no answer: one warning, and the store is served", wait_until(lambda: "no answer in time" in left.control("log")) and
      value(left, "number") == "0" and left.experts(), left.control("log"))
left.unmount()
check("expertctl says so", one_line(ctl("cluster", store, ADDRESS), "no answer in time"))
done()
