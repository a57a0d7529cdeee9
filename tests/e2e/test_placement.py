# SPDX-License-Identifier: Apache-2.0
"""Two servers as two mounts: their counts, a plan by each rule, mounts that keep what it puts on them, and what happens
when a server is lost, counts are of another store, a clock jumps, or the placement is damaged."""
from e2e import *

need_fuse()
model, store = shared(MANY)
other = shared(NARROW)[1]
source = contents(model)
states, placement = scratch("states"), scratch("placement")
info = json.loads(ctl("info", "--json", store).stdout)
EXPERTS = 48
each = -(-info["expert_coded_bytes"] // EXPERTS)
OPTIONS = "budget=64M,nopassthrough,direct_io=on,warm=off"


def serve(server, options="", path=store, folder=states):
    return Mount(path, OPTIONS + options, environment={"EXPERTFS_STATE": f"{folder}/{server}"}, name=f"mnt-{server}")


def count(server, layers, numbers, path=store):
    """A mount of the server, whose programs read these experts."""
    mount = serve(server, path=path)
    for _ in range(3):
        for layer in layers:
            for number in numbers:
                open(mount / f"experts/L{layer:02}/E{number:03}.safetensors", "rb").read()
    mount.unmount()


def counts_of(server):
    return next(f"{states}/{server}/{name}" for name in os.listdir(f"{states}/{server}") if name.startswith("counts-"))


def counted(after, *servers):
    """The counts of these servers are from `after` seconds after now."""
    for server in servers:
        os.utime(counts_of(server), (time.time() + after,) * 2)


def plan(*words, servers=f"left={40 * each},right={40 * each}"):
    return ctl("cluster", "plan", "--counts", states, "--servers", servers, *words, store, placement)


def show():
    return json.loads(ctl("cluster", "--json", "--counts", states, store, placement).stdout)


def placed():
    """By server, the (layer, expert) that the placement puts there; checks the text by expertfs-placement(5) alone."""
    lines, where = open(placement).read().splitlines(), {}
    assert lines[0] == "expertfs-placement 1" and lines[-1] == "end"
    head = dict(line.split(" ", 1) for line in lines[1:8])
    at = 8
    for _ in range(int(head["servers"])):
        name = lines[at].removeprefix("server ")
        rows = lines[at + 1:at + 1 + int(head["layers"])]
        where[name] = {(layer, 4 * i + bit) for layer, row in enumerate(rows) for i, digit in enumerate(row) for bit in range(4)
                       if int(digit, 16) >> 3 - bit & 1}
        at += 1 + len(rows)
    assert at == len(lines) - 1
    return where


def state_of(mount):
    return {name: value for name, value in mount.config().items() if name.startswith("placement")}


def holds(mount, server):
    """Whether the mount has in memory what the placement puts on it, and no more pins."""
    want = placed().get(server, set())
    head, *rows = [line.split() for line in mount.control("experts").splitlines()]
    rows = {(int(row["layer"]), int(row["expert"])): row for row in (dict(zip(head, row)) for row in rows)}
    return {at for at, row in rows.items() if row["pin"] == "C"} == want and all(rows[at]["state"] == "C" for at in want)


print("-- counts and plans")
count("left", (0, 1, 2), range(6))
count("right", (0, 1, 2), range(8, 14))
for rule in ("ours", "prism", "eplb", "redundance", "smartmoe", "uniform"):
    result = plan("--rule", rule)
    where = placed() if result.returncode == 0 else {}
    if check(rule, result.returncode == 0 and set(where) == {"left", "right"}, result.stderr):
        check(f"{rule}: all experts, none above a server's memory", len(where["left"] | where["right"]) == EXPERTS and
              all(len(held) <= 40 for held in where.values()), {name: len(held) for name, held in where.items()})
result = plan("--json", servers=f"left={30 * each},right={30 * each}")
check("plan --json", json.loads(result.stdout) == {"placement": placement, "number": 7, "rule": "ours", "servers": 2, "left_out": {}},
      result)
check("what a server calls is on it", {(l, e) for l in range(3) for e in range(6)} <= placed()["left"] and
      {(l, e) for l in range(3) for e in range(8, 14)} <= placed()["right"], placed())
said = show()
check("cluster --json", said["number"] == 7 and said["rule"] == "ours" and said["coverage"] == 1 and
      [(s["name"], s["experts"], s["calls"], s["local"], s["fault"]) for s in said["servers"]] ==
      [(name, 30, 54, 1.0, None) for name in ("left", "right")], said)
text = ctl("cluster", "--counts", states, store, placement).stdout
check("cluster", "placement 7 by ours" in text and "48 of 48 experts are on 2 servers" in text and
      re.search(r"^left +\d+ s ago +30 +54 +100.0 +0.0 +0.0$", text, re.M), text)

print("-- mounts")
# their own counts, which they write once a minute, are in another folder than those that the test changes
live = scratch("live")
left, right = (serve(server, f",placement={placement},server={server}", folder=live) for server in ("left", "right"))
for mount, server in ((left, "left"), (right, "right")):
    check(f"{server} reads and pins what is for it", wait_until(lambda: holds(mount, server)), (state_of(mount), mount.control("experts")))
    check(f"{server}: config", state_of(mount) == {"placement": placement, "placement_server": server, "placement_number": "7",
          "placement_rule": "ours", "placement_experts": "30", "placement_held": "30", "placement_fault": "-"}, state_of(mount))
    check(f"{server}: status --json", json.loads(ctl("status", "--json", mount.path).stdout)["placement"] == {"placement": placement,
          "server": server, "number": 7, "rule": "ours", "experts": 30, "held": 30, "fault": None}, ctl("status", "--json", mount.path))
    check(f"{server}: it counts the bytes, and no use", 0 < mount.count("placed_bytes") <= mount.count("disk_bytes") and
          mount.count("requests_c") + mount.count("requests_m") == 0, mount.numbers())
    text = ctl("status", mount.path).stdout
    check(f"{server}: status", "\nplaced    30 of 30 experts are in memory (placement 7 by ours)\n" in text and
          "placement" not in text.split("problems")[1], text[80:])
check("the files are the files", reading_errors(left, source) == set())
left.check_budget()
check("another plan", plan("--rule", "uniform").returncode == 0)
for mount, server in ((left, "left"), (right, "right")):
    check(f"{server} takes it", wait_until(lambda: holds(mount, server)), (state_of(mount), mount.control("experts")))


def live_servers():
    return [(s["fault"], s["calls"]) for s in json.loads(ctl("cluster", "--json", "--counts", live, store, placement).stdout)["servers"]]


check("a server is seen before its first request", wait_until(lambda: live_servers() == [(None, 0)] * 2), live_servers())

print("-- a server is lost")
layer, expert = min(placed()["right"])
kept = f"{right.path}/experts/L{layer:02}/E{expert:03}.safetensors"
check("right: the user pins an expert that the placement has pinned", ctl("set", kept, "pin=C").returncode == 0)
counted(-3600, "right")
result = plan(servers=f"left={60 * each},right={40 * each}")
check("planned without it, which is said", result.returncode == 0 and set(placed()) == {"left"} and
      "right: its counts are 60 minutes old: it is lost, or a clock is wrong: planned without it" in result.stderr, result)
check("one is no plural", result.stdout.endswith(" by ours, 1 server\n") and
      "experts are on 1 server\n" in ctl("cluster", store, placement).stdout, result)
check("right: the user's pin stays", wait_until(lambda: state_of(right)["placement_experts"] == "0") and
      ctl("get", kept, "pin").stdout == "C\n", ctl("get", kept, "pin"))
check("right: the user ends it", ctl("set", kept, "pin=-").returncode == 0)
check("right: nothing is pinned any more", wait_until(lambda: state_of(right)["placement_experts"] == "0" and holds(right, "right")),
      state_of(right))
check("left takes over", wait_until(lambda: int(state_of(left)["placement_held"]) == EXPERTS), state_of(left))
before = open(placement).read()


def nothing_written(what, result, text):
    check(what, result.returncode == 1 and text in result.stderr and open(placement).read() == before, result)


nothing_written("too little memory without it", plan(), "1 server has memory for 40 of 48 experts")
print("-- a clock jumps")
counted(3600, "right")
result = plan(servers=f"left={60 * each},right={40 * each}")
check("counts from the future", result.returncode == 0 and "right: its counts are 60 minutes ahead: a clock is wrong" in result.stderr,
      result)
before = open(placement).read()
counted(-3600, "left")
nothing_written("all are too old", plan(), "no server has counts that can be used")
counted(0, "left", "right")

print("-- counts that lie")
good = open(counts_of("right"), "rb").read()
flip(counts_of("right"), 60)
nothing_written("damaged", plan(), "right: " + counts_of("right") + ": the checksum is wrong: planned without it")
count("third", (0,), range(4), path=other)
shutil.copy(counts_of("third"), counts_of("right"))
nothing_written("of another store", plan(), "counts of another store: planned without it")
with open(counts_of("right"), "wb") as file:
    file.write(good)
check("planned with it again", plan("--rule", "eplb").returncode == 0 and set(placed()) == {"left", "right"})
for mount, server in ((left, "left"), (right, "right")):
    check(f"{server} takes it", wait_until(lambda: holds(mount, server)), state_of(mount))

print("-- a server that the placement does not name")
wrong = serve("wrong", f",placement={placement},server=wrong", folder=live)
why = "placement placement: does not name this server, wrong, but: left, right"
check("a fault that lists its names", wait_until(lambda: state_of(wrong)["placement_fault"] == why), state_of(wrong))
check("the placement is in force", state_of(wrong)["placement_number"] != "0" and state_of(wrong)["placement_experts"] == "0", state_of(wrong))
check("status --json: the fault", json.loads(ctl("status", "--json", wrong.path).stdout)["placement"]["fault"] == why)
check("a problem of status", why in " ".join(ctl("status", wrong.path).stdout.split("\nproblems")[1].split()), ctl("status", wrong.path))
after = int(state_of(wrong)["placement_number"]) + 1
check("a plan without it", plan("--rule", "eplb").returncode == 0 and
      wait_until(lambda: state_of(wrong)["placement_number"] == str(after)), state_of(wrong))
check("one warning", sum("does not name" in line for line in wrong.control("log").splitlines()) == 1, wrong.control("log"))
with open(placement + ".new", "w") as file:
    file.write(open(placement).read().replace("server right", "server wrong"))
os.rename(placement + ".new", placement)
check("a file with its name ends it", wait_until(lambda: state_of(wrong)["placement_fault"] == "-" and
      state_of(wrong)["placement_experts"] != "0"), state_of(wrong))
wrong.unmount()
check("planned again", plan("--rule", "eplb").returncode == 0 and
      wait_until(lambda: state_of(right)["placement_fault"] == "-"), state_of(right))

print("-- placements that lie")
good = open(placement).read()


def write(text):
    with open(placement + ".new", "w") as file:
        file.write(text)
    os.rename(placement + ".new", placement)


for what, text, why in (("half", good[:-8], "a layer without"), ("of another store", good.replace(
        f"store {good.split()[3]}", "store 0123456789abcdef"), "a placement of another store")):
    write(text)
    check(f"{what}: the one before stays", wait_until(lambda: why in state_of(left)["placement_fault"]) and
          state_of(left)["placement_experts"] == "40", state_of(left))
    check(f"{what}: one warning", sum(why in line for line in left.control("log").splitlines()) == 1, left.control("log"))
    check(f"{what}: a problem of status", re.search(f"^problems .*{why}", ctl("status", left.path).stdout, re.M))
    result = ctl("cluster", store, placement)
    check(f"{what}: refused by cluster", result.returncode == 1 and why in result.stderr, result)
    before = text
    nothing_written(f"{what}: and not replaced", plan(), why)
write(good)
check("a good one ends it", wait_until(lambda: state_of(left)["placement_fault"] == "-"))
write(re.sub(r"\nmade \d+", f"\nmade {int(time.time()) - 60}", good))
check("a minute old", ", 1 minute old: " in ctl("cluster", store, placement).stdout)
with open(placement) as file:
    text = file.read()
with open(placement, "w") as file:
    file.write(re.sub(r"^made \d+$", f"made {int(time.time()) + 7230}", text, flags=re.M))
counted(200, "left")
shown = ctl("cluster", "--counts", states, store, placement)
check("from the future, as its servers' clock says", re.search(r", \d+ minutes ahead: ", shown.stdout) and
      re.search(r"^left +\d+ s ahead ", shown.stdout, re.M) and "-" not in shown.stdout.split("store%")[0], shown)
counted(0, "left")
with open(placement, "w") as file:
    file.write(text)
left.unmount()
right.unmount()

print("-- a folder that does not answer")


def hangs():
    """The placement is in a filesystem whose program is stopped: the mount plans on, and ends."""
    below, hung = scratch("below"), scratch("hung")
    for folder in (below, hung):
        os.mkdir(folder)
    shutil.copy(placement, f"{below}/placement")
    quirkfs = subprocess.Popen([program("tests/e2e/quirkfs"), below, hung])
    try:
        if not wait_until(lambda: is_mounted(hung) or quirkfs.poll() is not None) or quirkfs.poll() is not None:
            note("quirkfs was not mounted")
            return
        mount = serve("left", f",placement={hung}/placement,server=left", folder=scratch("hung-states"))
        check("it takes the placement", wait_until(lambda: state_of(mount)["placement_number"] != "0"), state_of(mount))
        suspend(quirkfs.pid)
        check("its thread waits", wait_until(lambda: any("fuse_simple_request" in stack for _, stack in mount.threads().values())), mount.threads())
        for budget in ("48M", "56M"):
            plans = mount.count("plans")
            ctl("set", mount.path, f"budget={budget}")
            check(f"{budget}: it plans", wait_until(lambda: mount.count("plans") > plans), mount.threads())
        check("the files are the files", reading_errors(mount, source) == set())
        mount.unmount("unmounted meanwhile")
        check("which is said", "its folder does not answer: the counts are not saved" in mount.log_text(), mount.log_text()[-500:])
        mount = serve("left", f",placement={hung}/placement,server=left", folder=scratch("hung-states"))
        check("a mount that starts meanwhile serves", reading_errors(mount, source) == set(), mount.log_text())
        check("without the placement, which is said", state_of(mount)["placement_number"] == "0" and
              "its folder does not answer: it is read when it does" in mount.log_text(), mount.log_text())
        quirkfs.send_signal(signal.SIGCONT)
        check("it takes the placement when the folder answers", wait_until(lambda: state_of(mount)["placement_number"] != "0"), state_of(mount))
        mount.unmount("placed late")
    finally:
        quirkfs.send_signal(signal.SIGCONT)
        if is_mounted(hung):
            run("umount", "-l", hung)
        quirkfs.wait(PATIENCE)


if os.geteuid() == 0:
    hangs()

print("-- wrong usage")
for words in (("cluster",), ("cluster", store), ("cluster", "plan", store, placement), ("cluster", "--rule", "prism", store, placement),
              ("cluster", "plan", "--counts", states, "--servers", "left", store, placement),
              ("cluster", "plan", "--counts", states, "--servers", "a/b=1G", store, placement),
              ("cluster", "plan", "--counts", states, "--servers", "a=1G,a=2G", store, placement)):
    check(" ".join(words[:4]), ctl(*words).returncode == 2)
examples = ctl("cluster", "--help").stdout.split("Examples:\n")[1].splitlines()
check("an example is one line", all(line.startswith("  expertctl cluster ") for line in examples), examples)
check("a checkpoint in place", one_line(ctl("cluster", model, placement), "not packed"))
os.mkfifo(scratch("fifo"))
for options in ("server=left", f"placement={placement},server=a/b", f"placement={scratch('none')}/placement", f"placement={states}",
                f"placement={scratch('fifo')}", "placement=rados:pool"):
    result = run(program("expertfs"), "-f", "-o", options, store, scratch("mnt-left"))
    check(f"expertfs -o {options.replace(SCRATCH, '')}", result.returncode in (1, 2) and "placement" in result.stderr + options and
          len(result.stderr.splitlines()) <= 2, result)
for name in (".a", "a/b", "a" * 64):
    result = run(program("expertfs"), "-f", "-o", f"placement={placement},server={name}", store, scratch("mnt-left"))
    check(f"server={name[:3]}: a wrong value", result.returncode == 2 and f"server={name}: not a name of 1 to 63" in result.stderr, result)
done()
