# SPDX-License-Identifier: Apache-2.0
"""expertctl get, set, ls, doctor and status on a mount: values and error messages."""
import pwd

from e2e import *

need_fuse()
root = os.geteuid() == 0
expertctl = program("expertctl")
model, store = shared()
mount = Mount(store, f"budget=128M,direct_io=on{',allow_other' if root else ''}")
USER = pwd.getpwuid(os.geteuid()).pw_name
EXPERT = mount / "experts/L01/E003.safetensors"


def ctl(*arguments, **more):
    return run(expertctl, *arguments, **more)


print("-- get and set")
result = ctl("get", mount.path)
told = dict(line.split(": ", 1) for line in result.stdout.splitlines())
effective = told.pop("effective_budget", None)
check("get tells everything", result.returncode == 0 and not result.stderr and told == {
      "budget": str(128 << 20), "pools": "FCSE", "plan": "auto", "policy": "zipmoe", "goal": "io",
      "prefetch": "off", "warm": "auto", "local_fill": "off", "answer": "ok"} and effective == str(128 << 20), result)
check("get of one: the value alone", ctl("get", mount.path, "policy").stdout == "zipmoe\n")
result = ctl("get", model)
check("get of what is not in a mount says where mounts are told", result.returncode == 1 and "`expertctl ls`" in result.stderr,
      result)
check("get -h: sizes with their unit", ctl("get", "-h", mount.path, "budget").stdout == "128 MiB\n" and
      ctl("get", "-h", mount.path, "policy").stdout == "zipmoe\n")
check("get of two: with their names", ctl("get", mount.path, "policy", "goal").stdout == "policy: zipmoe\ngoal: io\n")
told = ctl("get", EXPERT).stdout
check("get of an expert", [line.split(": ")[0] for line in told.splitlines()] == ["pin", "state", "kept", "rank", "count",
      "bytes", "leases"], told)
check("get of a layer", ctl("get", mount / "experts/L01").stdout == "pin: -\n")
check("get of a file without any: nothing", ctl("get", mount / "config.json").stdout == "")
result = ctl("set", mount.path, "policy=lru", "budget=64M", "plan=C=60:S=40")
check("set says nothing when all is set", result.returncode == 0 and not result.stdout + result.stderr, result)
check("and it is", ctl("get", mount.path, "policy", "budget", "plan").stdout ==
      f"policy: lru\nbudget: {64 << 20}\nplan: F=0:C=60:S=40:E=0\n")
result = ctl("set", mount.path, "plan=F=10:C=50")
check("a plan that leaves a part of the pools' memory says so", result.returncode == 0 and "40 %" in result.stderr and
      "sum to 60" in result.stderr, result)
result = ctl("set", mount.path, "budget=900G")
check("a budget above the machine's memory says so, and what is available", result.returncode == 0 and
      "warning: " in result.stderr and "budget 900 GiB accepted" in result.stderr and "uses at most" in result.stderr, result)
again = Mount(store, "budget=900G")
told = [re.sub("at most [0-9.]+ ", "at most N ", re.search("budget 900 .*", text).group()) for text in
        (again.log_text(), ctl("set", again.path, "budget=900G").stderr)]
wait_until(lambda: "source: assumed" not in again.control("profile"))
told.append(re.sub("at most [0-9.]+ ", "at most N ", re.search("budget 900 .*", ctl("set", again.path, "budget=900G").stderr).group()))
check("the mount says the same as a budget that is set, while it measures and later", len(set(told)) == 1, told)
again.unmount()
ctl("set", mount.path, "budget=64M", "plan=C=60:S=40")
check("set of a pin", ctl("set", EXPERT, "pin=C").returncode == 0 and ctl("get", EXPERT, "pin").stdout == "C\n" and
      ctl("get", mount / "experts/L01", "pin").stdout == "mixed\n")
check("set of a layer's", ctl("set", mount / "experts/L01", "pin=C").returncode == 0 and
      ctl("get", mount / "experts/L01", "pin").stdout == "C\n")
check("reset", ctl("set", "--reset", mount.path, "policy", "budget", "plan").returncode == 0 and
      ctl("set", "-r", mount / "experts/L01", "pin").returncode == 0 and
      ctl("get", mount.path, "policy", "budget", "plan").stdout == f"policy: zipmoe\nbudget: {128 << 20}\nplan: auto\n" and
      ctl("get", EXPERT, "pin").stdout == "-\n")
os.chdir(mount / "experts/L01")
check("from inside", ctl("set", ".", "pin=C").returncode == 0 and ctl("get", "E003.safetensors", "pin").stdout == "C\n" and
      ctl("set", "-r", ".", "pin").returncode == 0)
os.chdir("/")

print("-- ls")


for name in ("L00/E000", "L00/E001", "L00/E000"):
    with open(mount / f"experts/{name}.safetensors", "rb") as file:
        file.read()


def listed(result, *mounts):
    """Lines of these mounts; the machine may have further ones."""
    return result.returncode == 0 and [line for line in result.stdout.splitlines() for m in mounts if f" on {m.path} by" in line] == [
        f"{m.config()['store']} on {m.path} by {USER}" for m in mounts]


# ls waits a second for a daemon, in which a busy machine may not run it
check("ls: store and mountpoint", wait_until(lambda: listed(ctl("ls"), mount)), ctl("ls"))
hung = Mount(store, "budget=64M", name="hung")
hung.suspend()
check("ls: a mount whose daemon is stopped does not stop it", wait_until(lambda: listed(stopped := ctl("ls"), mount) and
      f" on {hung.path} by {USER}: its daemon does not answer\n" in stopped.stdout), ctl("ls"))
hung.resume()
if root:
    silent, device = scratch("silent"), os.open("/dev/fuse", os.O_RDWR)
    os.mkdir(silent)
    atexit.register(run, "umount", "-f", "-l", silent)
    mounted = ctypes.CDLL(None, use_errno=True).mount(b"silent", silent.encode(), b"fuse.expertfs", 0,
                                                      b"fd=%d,rootmode=40000,user_id=0,group_id=0" % device)
    check("a mount whose daemon takes what it is asked, and never answers", mounted == 0, os.strerror(ctypes.get_errno()))

    def take_all():
        unique = os.read(device, 1 << 20)[8:16]
        os.write(device, struct.pack("<Ii8sIIIIHHII", 80, 0, unique, 7, 31, 0, 0, 0, 0, 4096, 1).ljust(80, b"\0"))  # INIT
        while True:
            try:
                os.read(device, 1 << 20)
            except OSError:  # the mount has ended
                return

    taker = threading.Thread(target=take_all, daemon=True)
    taker.start()
    result = ctl("ls")
    check("ls: it is listed", result.returncode == 0 and f"silent on {silent} by root: its daemon does not answer\n" in result.stdout, result)
    run("umount", "-f", "-l", silent)
    taker.join()
    os.close(device)
odd = Mount(store, "budget=64M", name="odd\nname")
check("ls: a line end in a path is none", wait_until(lambda: [line for line in ctl("ls").stdout.splitlines() if "name" in line] == [
      f"{store} on " + odd.path.replace("\n", "?") + f" by {USER}"]), ctl("ls"))
odd.unmount()
if root:
    copied = shutil.copy(expertctl, scratch("expertctl-copy"))
    check("ls: another user sees the same", wait_until(lambda: listed(run_as_nobody(copied, "ls"), mount, hung)),
          run_as_nobody(copied, "ls"))
hung.daemon.kill()
hung.daemon.wait()
result = ctl("ls")
check("ls: so is a mount whose daemon has died", hung.path in result.stdout and result.returncode == 0, result)
for command in "get", "doctor", "status":
    result = ctl(command, hung.path)
    check(f"{command}: likewise, with the way out", result.returncode == 1 and f"`expertctl down {hung.path}`" in result.stdout + result.stderr, result)
hung.abandon()
result = ctl("ls", mount.path)
check("ls of one: wrong usage", result.returncode == 2 and "more arguments" in result.stderr, result)

ends = os.pipe()
os.close(ends[0])
for command in "ls", "doctor":
    result = subprocess.run([program("expertctl"), command], stdout=ends[1], stderr=subprocess.PIPE, text=True)
    check(f"{command}: nobody reads what it prints", result.returncode == -signal.SIGPIPE, result)
os.close(ends[1])

print("-- output")
result = ctl("ls")
for command in ("ls",), ("get", mount.path), ("info", mount.config()["store"]), ("doctor", mount.path):
    with open("/dev/full", "w") as full:
        result = subprocess.run([program("expertctl"), *command], stdout=full, stderr=subprocess.PIPE, text=True)
    check(f"{command[0]}: a full disk is told", result.returncode != 0 and "standard output: No space left" in result.stderr, result)
for command in (("expertctl", "--help"), ("expertctl", "--version"), ("mkexpertfs", "--help"), ("moe-replay", "--version"),
                ("runmoe", "--version"), ("mkexpertfs", "--reclaim",
                "--dry-run", model, scratch("dry.efs"))):
    with open("/dev/full", "w") as full:
        result = subprocess.run([program(command[0]), *command[1:]], stdout=full, stderr=subprocess.PIPE, text=True)
    check(f"{' '.join(command[:2])}: a full disk is told",
          result.returncode == 1 and f"{command[0]}: standard output: No space left" in result.stderr, result)

print("-- doctor, of a mount whose store was removed or replaced")
served = shutil.copy(store, scratch("served.efs"))
other = Mount(served, f"budget=64M{',allow_other' if root else ''}", name="served")


def doctor_store(says, *words):
    status = [line for line in json.loads(ctl("status", "--json", other.path).stdout)["problems"] if line.startswith("its store ")]
    check(f"status: {says}", len(status) == (1 if words else 0) and all(word in status[0] for word in (
          *([served] if words else ()), *words)), status)
    result = ctl("doctor", other.path)
    found = re.findall(r"^(\w+) +store +(.*)$", result.stdout, re.M)
    check(f"doctor: {says}", len(found) == (1 if words else 0) and all(level == "WRONG" and all(word in text for word in (
          other.path, served, *words)) for level, text in found) and result.returncode == (1 if words else 0), result)


doctor_store("nothing while it is there")
if root:
    os.chmod(served, 0o600)
    result = run_as_nobody(copied, "doctor", other.path)
    topics = [line.split()[1] for line in result.stdout.splitlines()]
    check("doctor: nor where another user cannot tell", "store" not in topics and "mount" in topics, result)
os.rename(served, scratch("aside"))
doctor_store("gone", "was removed", "until it is unmounted")
shutil.copy(scratch("aside"), served)
doctor_store("a copy of it in its place", "was replaced", "until it is unmounted")
os.remove(served)
os.link(scratch("aside"), served)
doctor_store("nothing when it is back")
check("and it serves on", open(other / "config.json").read() and tensors_of(other.path) == tensors_of(model))
other.unmount()

print("-- the same of models that are served in place")
weights = make_model("in place", *NARROW, "--format=gguf")
for served in (weights + "/model.gguf", weights):
    aside = served + ".aside"
    other = Mount(served, "budget=64M", name="in")
    doctor_store("nothing of what is served in place")
    os.rename(served, aside)
    doctor_store("it is not there", "was removed")
    shutil.copytree(aside, served) if os.path.isdir(aside) else shutil.copy(aside, served)
    doctor_store("another in its place", "was replaced", "until it is unmounted")
    other.unmount()

print("-- the budget of info holds all experts")
wide = make_store(make_model("wide", "-F", "qwen3-moe", "-d", "512", "-i", "512", "-e", "16", "-l", "4", "--vocab", "1000"))
told = json.loads(ctl("info", "--json", wide).stdout)
held = Mount(wide, f"budget={told['budget_bytes']},plan=C=100", name="held")


def read_experts():
    for name in files_below(held.path):
        if name.startswith("experts/"):
            open(held / name, "rb").read()
    return held.count("disk_bytes")


first, second = read_experts(), read_experts()
check("the second time no expert is read from the disk", second == first > told["expert_coded_bytes"] * 0.9, (first, second, told))
held.unmount()

print("-- errors")
for arguments, status, says in (
        (["set", mount.path, "policy=best"], 1, "allowed are zipmoe, lru, lfu, fifo, marking"),
        (["set", mount.path, "budget=1M"], 1, "mount with a small budget"), (["set", mount.path, "budget="], 1, "8G"),
        (["set", mount.path, "plan=F=90,C=90"], 1, "F=10:C=70"), (["set", mount.path, "budgets=1G"], 1, "did you mean budget?"), (["set", mount.path, "pin=F"], 1, "set it on a layer"),
        (["set", mount.path, "answer=ok"], 1, "can only be read"), (["set", EXPERT, "rank=1"], 1, "can only be read"),
        (["set", EXPERT, "pin=S"], 1, "F, C"), (["set", EXPERT, "budget=1G"], 1, "of the whole mount"),
        (["set", "-r", mount.path, "budgets"], 1, "did you mean budget?"), (["set", mount / "nothing", "pin=C"], 1, "No such file"),
        (["set", SCRATCH, "pin=C"], 1, "not in a mount"), (["get", SCRATCH], 1, "not in a mount"),
        (["get", mount.path, "budgets"], 1, "budgets: unknown setting\nhint: did you mean budget?"), (["get", mount.path, "nothing"], 1, "`expertctl get"), (["get", mount / "nothing"], 1, "No such file"),
        (["verify", mount.path], 1, "`expertctl get` and `status` read mounts"),
        (["info", mount.path], 1, f"its store is {store}"),
        (["profile", mount.path], 1, f"its store is {store}"),
        (["unpack", mount.path, scratch("copy")], 1, f"its store is {store}"),
        (["profile", SCRATCH], 1, "without weights"),
        (["get", store], 1, "a store is mounted first"),
        (["status", SCRATCH], 1, "not in a mount"), (["set"], 2, "PATH is needed"), (["set", mount.path], 2, "NAME=VALUE... is needed"),
        (["top", mount.path], 2, "`expertctl status -w"),
        (["set", "policy=lru", mount.path], 2, "the mount comes first"),
        (["set", mount.path, "policy"], 2, "NAME=VALUE"), (["set", mount.path, "=lru"], 2, "NAME=VALUE"),
        (["set", "-r", mount.path, "policy=lru"], 2, "NAME alone"), (["get"], 2, "needed"),
        (["status", "-w", "0", mount.path], 2, "number"), (["status", "-w", "x", mount.path], 2, "number"),
        (["status", mount.path, SCRATCH], 2, "more arguments"), (["status", "--json", "-t"], 2, "no other option"), (["stats"], 2, "did you mean status?"),
        (["verify", "--decoed", store], 2, "did you mean --decode?")):
    result = ctl(*arguments)
    words = " ".join(arguments).replace(SCRATCH, "")
    check(f"{words}: exit {status}, and why", result.returncode == status and says in result.stderr and not result.stdout,
          result)
check("nothing has changed", ctl("get", mount.path, "policy", "budget", "plan").stdout ==
      f"policy: zipmoe\nbudget: {128 << 20}\nplan: auto\n")
result = ctl("set", mount.path, "goal=makespan", "policy=x", "plan=C=100")
check("what comes before an error stays", result.returncode == 1 and result.stderr.endswith("\nhint: goal was set\n") and
      ctl("get", mount.path, "goal", "plan").stdout == "goal: makespan\nplan: auto\n" and
      ctl("set", "-r", mount.path, "goal").returncode == 0)
if root:
    result = run_as_nobody(copied, "set", mount.path, "policy=lru")
    check("another user is told who may", result.returncode == 1 and "only the user who mounted it, and root" in result.stderr, result)

print("-- JSON")
told = json.loads(ctl("get", "--json", mount.path).stdout)
check("get --json", told["policy"] == "zipmoe" and told["budget"] == str(128 << 20) and told["answer"], told)
check("get --json of one", json.loads(ctl("get", "--json", "-h", mount.path, "budget").stdout) == {"budget": "128 MiB"})
told = ctl("set", "--json", mount.path, "policy=lru", "budget=64M")
check("set --json: the values that are set", json.loads(told.stdout) == {"policy": "lru", "budget": str(64 << 20)}, told)
told = ctl("set", "--json", "-r", mount.path, "policy", "budget")
check("set --json --reset", json.loads(told.stdout) == {"policy": "zipmoe", "budget": str(128 << 20)}, told)
told = json.loads(ctl("verify", "--json", "-q", store).stdout)
check("verify --json", told["damage"] == [] and told["shards"] > 0 and told["decoded"] is False and
      told["in_place"] is False, told)
told = json.loads(ctl("doctor", "--json", mount.path).stdout)
check("doctor --json", {row["level"] for row in told} <= {"good", "slower", "WRONG"} and
      mount.path in " ".join(row["text"] for row in told), told)
told = json.loads(ctl("unpack", "--json", "-q", store, scratch("unpacked")).stdout)
check("unpack --json", told["directory"] == scratch("unpacked") and told["files"] == len(files_below(model)), told)

print("-- status")
files = [mount / name for name in files_below(mount.path) if not name.startswith(".expertfs")]
for name in files:
    open(name, "rb").read()
result = ctl("status", mount.path)
check("status: which store, how fast, for whom, and what is wrong", result.returncode == 0 and re.match(
      rf"{mount.path} serves {store}\n.* for .* of files, by \w+, up [0-9hms]+, pid {mount.daemon.pid}\n\nmemory    .* of 128 MiB used", result.stdout) and
      re.search(r"^from memory +\d+\.\d % +\d+\.\d %$", result.stdout, re.M) and re.search(
      r"^clients   \d+ files are open, 0 programs use libexpertfs\nproblems  ", result.stdout, re.M), result)
check("status: one screen", len(result.stdout.splitlines()) <= 24, result.stdout)
told = json.loads(ctl("status", "--json", mount.path).stdout)
check("status --json", told["store"] == store and told["mountpoint"] == mount.path and told["budget_bytes"] == 128 << 20 and
      told["placement"] is None and 0 < told["minute"]["hit_ratio"] < 1 and told["since_mount"]["errors"] == 0 and told["clients"] == [], told)
small = next(name for name in files if "experts/" not in name and os.path.getsize(name) > 100)
child = subprocess.Popen(["python3", "-c", f"import sys; f = open({small!r}, 'rb', 0); f.read(100); g = open({small!r}, 'rb', 0);"
                          "print(flush=True); sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
told = [row for row in json.loads(ctl("status", "--json", mount.path).stdout)["readers"] if row["pid"] == child.pid]
check("readers: a process, its files, what it read", told == [{"pid": child.pid, "uid": os.getuid(), "files": 2, "read_bytes": 100}], told)
for _ in range(len(files) + 2):
    mount.control("config")
check("open_files: without control files, open or closed", wait_until(lambda: json.loads(ctl("status", "--json", mount.path).stdout)["open_files"] == 2))
told = ctl("status", mount.path).stdout
check("files that are open, in words", "\nclients   2 files are open, " in told, told)
check("readers by name", f"          python3 (pid {child.pid}, {pwd.getpwuid(os.getuid()).pw_name}): 2 files open, 100 B read by the daemon\n"
      in told, told)
child.communicate()
check("then it is gone", wait_until(lambda: child.pid not in {row["pid"] for row in json.loads(
      ctl("status", "--json", mount.path).stdout)["readers"]}))
with open(small, "rb") as file:  # after all that was sampled
    file.read()
recent, stat = mount.fields("recent"), mount.fields("stat")
check("recent: the counters of an earlier time", float(recent.pop("seconds")) > 0 and set(recent) == set(stat) -
      {"serving_path", "serving_reason", "fuse_log_lost"} and int(recent["reads"]) < int(stat["reads"]), recent)
result = ctl("status", "--tables", mount.path)
rows = [line.split() for line in result.stdout.splitlines()]
check("pools by name", result.returncode == 0 and [row[0] for row in rows if row and row[0] in "FCSEM"] == [*"FCSEM"], result)
check("no rate of requests from one print: they are counted over all mounts",
      {row[5] for row in rows if row and re.match(r"L0\d/E", row[0])} == {"-"}, rows)
check("ten experts", len([row for row in rows if row and re.match(r"L0\d/E", row[0])]) == 10, rows)
check("no line is wider than a terminal but for a path's", not [line for line in result.stdout.splitlines()
      if len(line) > 80 and mount.path not in line], result.stdout)
check("memory is that of stat", "of 128 MiB used" in result.stdout and "F full  C coded" in result.stdout, result.stdout)
check("the mount is found where it is the only one", ctl("status").returncode in (0, 1))
watch = subprocess.Popen([expertctl, "status", "-t", "-w", "1", mount.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
prints = []  # the first two experts of each
for line in watch.stdout:
    if line.startswith("EXPERT "):
        prints.append([])
        open(mount / "experts/L01/E002.safetensors", "rb").read()
    elif prints and line.strip() and len(prints[-1]) < 2:
        prints[-1].append(line.split())
        # where the next print came before the read, a later one has it
        if len(prints[-1]) == 2 and len(prints) > 1 and (float(prints[-1][0][5]) > 0 or len(prints) == 30):
            break
check("-w: later prints have rates, the experts requested since come first", prints[-1][0][0] == "L01/E002" and
      float(prints[-1][0][5]) > 0 and prints[-1][1][5] == "0.0", prints)
watch.send_signal(signal.SIGINT)
check("SIGINT ends it, which is no failure", watch.wait(PATIENCE) == 0)
watch.communicate()
reading = subprocess.run(["sh", "-c", f"'{expertctl}' status -w 1 '{mount.path}' | head -n 1"], capture_output=True, text=True,
                         timeout=PATIENCE)
check("so does a closed pipe", reading.stdout.startswith(mount.path) and not reading.stderr, reading)
watch = subprocess.Popen([expertctl, "status", "-t", "-w", "1", mount.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
watch.stdout.readline()
mount.stop()
out, error = watch.communicate(timeout=PATIENCE)
check("and a mount that goes away, with a message", watch.returncode == 0 and "was unmounted" in error, (out, error))
done()
