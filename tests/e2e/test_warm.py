# SPDX-License-Identifier: Apache-2.0
"""A mount that has memory for all experts reads them before any request, as packed, within the budget: at once with
warm=always, then the rest of its files, and as much as fits of a larger store; with auto, the default, while the machine
is idle. A mount that is ended meanwhile ends normally."""
from e2e import *

need_fuse()
model, store = shared()
PRESSURE = os.environ["EXPERTFS_PRESSURE"]
MISSING = "waits: the kernel does not report how busy the machine is"


def rests(mount):
    """Waits until no read is in flight and the disk was idle for 0.5 s."""
    before, since = -1, time.monotonic()
    while time.monotonic() - since < 0.5:
        stat = mount.stat()
        if stat["disk_reads"] != before or int(stat["inflight"]):
            before, since = stat["disk_reads"], time.monotonic()
        time.sleep(0.02)


def state_is(mount, *states):
    return wait_until(lambda: mount.fields("predict")["warm_state"] in states)


def stall(microseconds):
    """The kernel's files, with these stalls since the start."""
    os.makedirs(PRESSURE, exist_ok=True)
    for name in ("io", "cpu"):
        with open(f"{PRESSURE}/{name}", "a") as file:  # the daemon has it open
            os.pwrite(file.fileno(), b"some avg10=0.00 avg60=0.00 avg300=0.00 total=%d\n" % microseconds, 0)


mount = Mount(store, "nostate,warm=always,budget=1G")
check("experts are read", wait_until(lambda: mount.count("warmed_extents") > 0))
check("all of them", state_is(mount, "done"), mount.control("predict"))
rests(mount)
bytes_before = mount.count("disk_bytes")
experts = mount.experts()
check("there are experts", len(experts) > 8, len(experts))
tensors = tensors_of(model)
bad = []
for name in experts:
    with open(mount / name, "rb") as file:
        data = file.read()
    header, at = safetensors_header(data)
    for tensor, entry in header.items():
        if tensor != "__metadata__":
            begin, end = entry["data_offsets"]
            if data[at + begin:at + end] != tensors[tensor]:
                bad.append(tensor)
check("experts are the checkpoint's", not bad, bad[:3])
check("none of them was read from the disk again", mount.count("disk_bytes") == bytes_before)
mount.check_budget()
mount.unmount()

for pause in (0, 0.02, 0.1):
    mount = Mount(store, "nostate,warm=always,budget=1G")
    time.sleep(pause)
    mount.stop(f"SIGTERM after {pause} s")

print("-- the kernel has no stalls")
mount = Mount(store, "nostate,budget=1G")
check("auto is the default", mount.fields("config")["warm"] == "auto", mount.control("config"))
check("it is unknown whether the machine is idle", state_is(mount, MISSING), mount.control("predict"))
check("warm=always by set", run(program("expertctl"), "set", mount.path, "warm=always").returncode == 0 and state_is(mount, "done"))
result = run(program("expertctl"), "set", mount.path, "warm=now")
check("no other value", result.returncode == 1 and "warm=now: allowed are off, auto, always" in result.stderr, result)
mount.unmount()

print("-- an idle machine")
stall(0)
mount = Mount(store, "nostate,budget=1G")
states = set()
check("all experts are read", wait_until(lambda: states.add(mount.fields("predict")["warm_state"]) or "done" in states) and
      mount.count("warmed_extents") > 0, mount.control("predict"))
check("before the first sample it is not said that the kernel has none", MISSING not in states, states)
told = run(program("expertctl"), "status", mount.path).stdout
check("status says so", re.search(r"^warm +done$", told, re.M), told)
mount.check_budget()
mount.unmount()

print("-- other work on the machine")
stop = threading.Event()


def other_work():
    stalls = 10**9
    while not stop.wait(0.01):
        stalls += 10**6
        stall(stalls)


worker = threading.Thread(target=other_work)
worker.start()
mount = Mount(store, "nostate,budget=1G")
check("the machine is sampled", state_is(mount, "waits: the machine is busy", "done"), mount.control("predict"))
busy = r"^warm +waits: the machine is busy \(programs wait 100 % of the time for disks, 100 % for processors\)$"
told = ""


def said():
    global told
    told = run(program("expertctl"), "status", mount.path).stdout
    return re.search(busy, told, re.M)


# half a second in which this test does not run is an idle sample: test_machine tests busy ones
check("status says so", wait_until(lambda: said() or mount.fields("predict")["warm_state"] == "done"), told)
stop.set()
worker.join()
check("when it ends all experts are read", state_is(mount, "done") and mount.count("warmed_extents") > 0, mount.control("predict"))
mount.unmount()

mount = Mount(store, "nostate,budget=1G")
capacity = lambda: next(int(line.split()[1]) for line in mount.control("pools").splitlines() if line.startswith("C "))
coded = sum(int(line.split()[6]) for line in mount.control("experts").splitlines()[1:])
check("with more memory than they need, the plan keeps all experts", wait_until(lambda: capacity() >= coded * 0.999), (capacity(), coded))
mount.unmount()

mount = Mount(store, "nostate,warm=off,budget=1G")
rests(mount)
check("warm=off: nothing is read", mount.count("warmed_extents") == 0 and mount.fields("predict")["warm_state"] == "off")
mount.unmount()
mount = Mount(shared(DEEP)[1], "nostate,warm=always,budget=40M")
check("a store that does not fit: as much as fits", state_is(mount, "done: the planned part of the memory is full") and
      mount.count("warmed_extents") > 0 and mount.count("evictions_c") == 0, mount.control("predict"))
mount.check_budget()
mount.unmount()
stall(0)
mount = Mount(shared(DEEP)[1], "nostate,budget=40M")
check("warm=auto: nothing", state_is(mount, "off: the plan has no room for all experts, coded"), mount.control("predict"))
check("nothing is read of it", mount.count("warmed_extents") == 0)
os.setxattr(mount.path, "user.expertfs.budget", b"1G")
check("with a larger budget all", state_is(mount, "done") and mount.count("evictions_c") == 0, mount.control("predict"))
mount.check_budget()
mount.unmount()
mount = Mount(shared(DEEP)[1], "nostate,warm=always,budget=40M,plan=F=90:C=10")
check("a plan with decoded experts: what the rest is for", state_is(
    mount, "done: memory for coded experts is full, the rest is for decoded ones"), mount.control("predict").splitlines())
os.setxattr(mount.path, "user.expertfs.warm", b"auto")
check("and with warm=auto", state_is(mount, "off: memory is kept for decoded experts, too little for all, coded"),
      mount.control("predict").splitlines())
mount.unmount()
done()
