# SPDX-License-Identifier: Apache-2.0
"""expertctl get, set and top on a mount: values, errors in words, screens on a pipe and in a terminal that changes its
size and is left as it was."""
import atexit
import ctypes
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import termios
import threading
import time

from e2e import *

need_fuse()
root = os.geteuid() == 0
expertctl = program("expertctl")
os.environ["EXPERTFS_STATE"] = scratch("state")
model = make_model()
store = make_store(model)
mount = Mount(store, f"budget=128M{',allow_other' if root else ''}")
EXPERT = mount / "experts/L01/E003.safetensors"


def ctl(*arguments, **more):
    return run(expertctl, *arguments, **more)


print("-- get and set")
result = ctl("get", mount.path)
told = dict(line.split(": ", 1) for line in result.stdout.splitlines())
effective = told.pop("effective_budget", None)
check("get tells everything", result.returncode == 0 and not result.stderr and told == {
      "budget": str(128 << 20), "pools": "FCSE", "plan": "auto", "policy": "zipmoe", "goal": "makespan", "delta": "auto",
      "schedule": "best", "predictor": "mixed", "prefetch": "off", "answer": "ok"} and effective == str(128 << 20), result)
check("get of one: the value alone", ctl("get", mount.path, "policy").stdout == "zipmoe\n")
result = ctl("get", model)
check("get of what is not in a mount says where mounts are told", result.returncode == 1 and "`expertctl list'" in result.stderr,
      result)
check("get -h: sizes with their unit", ctl("get", "-h", mount.path, "budget").stdout == "128 MiB\n" and
      ctl("get", "-h", mount.path, "policy").stdout == "zipmoe\n")
check("get of two: with their names", ctl("get", mount.path, "policy", "goal").stdout == "policy: zipmoe\ngoal: makespan\n")
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
check("a plan that leaves a part of the pools' memory says so", result.returncode == 0 and "40 %" in result.stdout and
      "sum to 60" in result.stdout, result)
result = ctl("set", mount.path, "budget=900G")
check("a budget above the machine's memory says so, and what is available", result.returncode == 0 and
      "is above" in result.stdout and "are available (effective_budget)" in result.stdout, result)
again = Mount(store, "budget=900G")
told = [re.sub("[0-9]+ MiB of it", "N MiB of it", re.search("a budget of .*", text).group()) for text in
        (again.printed(), ctl("set", again.path, "budget=900G").stdout)]
wait_until(lambda: "source: assumed" not in again.control("profile"))
told.append(re.sub("[0-9]+ MiB of it", "N MiB of it", re.search("a budget of .*", ctl("set", again.path, "budget=900G").stdout).group()))
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

told = json.loads(ctl("get", "--json", mount.path).stdout)
check("get --json: numbers and texts", told["budget"] == 128 << 20 and told["policy"] == "zipmoe" and
      told == {name: told[name] for name in ("budget", "pools", "plan", "policy", "goal", "delta", "schedule",
                                             "predictor", "prefetch", "effective_budget", "answer")}, told)
check("get --json of one", json.loads(ctl("get", "--json", EXPERT, "rank", "pin").stdout).keys() == {"rank", "pin"})

print("-- list")


def listed():
    """This mount's line and its object; other mounts of the machine may be there, and may not answer."""
    lines = [line.split() for line in ctl("list").stdout.splitlines()]
    objects = [o for o in json.loads(ctl("list", "--json").stdout) if o["mount"] == mount.path]
    return lines[0], [line for line in lines if line[-1] == mount.path], objects


for name in ("L00/E000", "L00/E001", "L00/E000"):
    with open(mount / f"experts/{name}.safetensors", "rb") as file:
        file.read()
head, lines, objects = listed()
check("list: this mount is there once, with a value for each column", head[-1] == "MOUNT" and len(lines) == 1 and
      len([word for word in lines[0] if word not in ("B", "KiB", "MiB", "GiB")]) == len(head), (head, lines))
check("list --json: likewise", len(objects) == 1 and set(objects[0]) == {"mount", "store", "serving_path", "source_bytes",
      "store_bytes", "budget_bytes", "effective_budget_bytes", "used_bytes", "asked", "found"}, objects)
o = objects[0]
check("its numbers are those of the mount", o["store"] == model + ".efs" and o["budget_bytes"] == 128 << 20 and
      0 < o["used_bytes"] <= 128 << 20 and o["store_bytes"] == os.path.getsize(model + ".efs"), o)
check("hits and misses are all that was asked for", o["asked"] >= 3 and sum(o["found"].values()) == o["asked"] and
      o["found"]["M"] >= 2 and set(o["found"]) == set("FCSEM"), o)
hung = Mount(make_store(make_model("other")), "budget=64M", name="hung")
os.kill(hung.daemon.pid, signal.SIGSTOP)
result = ctl("list")
os.kill(hung.daemon.pid, signal.SIGCONT)
check("list: a mount whose daemon is stopped does not stop it", result.returncode == 1 and
      f"{hung.path}: does not answer" in result.stderr and mount.path in result.stdout and hung.path not in result.stdout,
      result)
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
            except OSError:  # it is gone
                return

    taker = threading.Thread(target=take_all, daemon=True)
    taker.start()
    told, lock = os.pipe()  # as a lock that it is called with
    program_list = subprocess.Popen([expertctl, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=[lock])
    os.close(lock)
    try:
        out, error = program_list.communicate(timeout=60)
        check("list: it does not keep it", program_list.returncode == 1 and f"{silent}: does not answer" in error and
              mount.path in out and silent not in out, (program_list.returncode, out, error))
    except subprocess.TimeoutExpired:
        check("list: it does not keep it", False, "60 s")
    check("list: nor what it was called with", select.select([told], [], [], 30)[0])
    os.close(told)
    run("umount", "-f", "-l", silent)
    program_list.communicate(timeout=60)
    taker.join()
    os.close(device)
odd = Mount(make_store(make_model("odd")), "budget=64M", name="odd\nname")
result = ctl("list")
lines = [line for line in result.stdout.splitlines() if "name" in line]  # of other mounts there may be more
check("list: a line end in a path is none", len(lines) == 1 and lines[0].endswith(odd.path.replace("\n", "?")), result)
odd.unmount()
if root:
    os.chmod(SCRATCH, 0o755)
    copied = shutil.copy(expertctl, scratch("expertctl-copy"))
    as_user = {"capture_output": True, "text": True, "user": "nobody", "group": "nogroup", "extra_groups": [], "cwd": "/"}
    result = subprocess.run([copied, "list"], **as_user)
    check("list: a mount of another user is told as such, what others may see is listed", result.returncode == 1 and
          f"{hung.path}: of another user, who mounted it without -o allow_other" in result.stderr and
          mount.path in result.stdout and hung.path not in result.stdout, result)
    result = subprocess.run([copied, "list", "--json"], **as_user)
    check("list --json: likewise", result.returncode == 1 and hung.path in result.stderr and
          mount.path in [o["mount"] for o in json.loads(result.stdout)], result)
hung.daemon.kill()
hung.daemon.wait()
result = ctl("list")
check("list: a mount whose daemon has died is told, the others are listed", result.returncode == 1 and
      hung.path in result.stderr and mount.path in result.stdout and hung.path not in result.stdout, result)
for command in "get", "doctor", "top":
    result = ctl(command, hung.path)
    check(f"{command}: likewise, with the way out", result.returncode == 1 and "fusermount3 -u" in result.stdout + result.stderr, result)
hung.abandon()
result = ctl("list", mount.path)
check("list of one: wrong usage", result.returncode == 2 and "expertctl get" in result.stderr, result)

print("-- list: the process that looks")
reaper = """import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
try:
    sys.exit(os.waitpid(-1, 0)[0] > 0)
except ChildProcessError:
    pass"""
result = run(sys.executable, "-c", reaper, program("expertctl"), "list")
check("is left to nobody to reap", result.returncode == 0, result)
ends = os.pipe()
os.close(ends[0])
for command in "list", "doctor":
    result = subprocess.run([program("expertctl"), command], stdout=ends[1], stderr=subprocess.PIPE, text=True)
    check(f"{command}: nobody reads what it prints", result.returncode == -signal.SIGPIPE, result)
os.close(ends[1])

print("-- output")
result = ctl("list")
check("list: its head fits a terminal", len(result.stdout.split("\n")[0]) <= 80, result)
for command in ("list",), ("get", mount.path), ("info", mount.config()["store"]), ("doctor", mount.path):
    with open("/dev/full", "w") as full:
        result = subprocess.run([program("expertctl"), *command], stdout=full, stderr=subprocess.PIPE, text=True)
    check(f"{command[0]}: a full disk is told", result.returncode != 0 and "standard output: No space left" in result.stderr, result)
for command in (("expertctl", "--help"), ("expertctl", "--version"), ("mkexpertfs", "--help"), ("moe-replay", "--version"),
                ("runmoe", "--version"), ("mkexpertfs", "--reclaim",
                "--dry-run", make_model("dry"), scratch("dry.efs"))):
    with open("/dev/full", "w") as full:
        result = subprocess.run([program(command[0]), *command[1:]], stdout=full, stderr=subprocess.PIPE, text=True)
    check(f"{' '.join(command[:2])}: a full disk is told",
          result.returncode == 1 and f"{command[0]}: standard output: No space left" in result.stderr, result)

print("-- doctor, of a mount whose store is another's, changed, or gone")
served = make_store(make_model("served"))
other = Mount(served, f"budget=64M{',allow_other' if root else ''}", name="served")


def doctor_store(says, *words):
    result = ctl("doctor", other.path)
    found = re.findall(r"^(\w+) +store +(.*)$", result.stdout, re.M)
    check(f"doctor: {says}", len(found) == (1 if words else 0) and all(level == "WRONG" and all(word in text for word in (
          other.path, served, *words)) for level, text in found) and result.returncode == (1 if words else 0), result)


doctor_store("nothing while it is there")
if root:
    os.chmod(served, 0o600)
    result = subprocess.run([copied, "doctor", other.path], **as_user)
    topics = [line.split()[1] for line in result.stdout.splitlines()]
    check("doctor: nor where another user cannot tell", "store" not in topics and "mount" in topics, result)
os.rename(served, scratch("aside"))
doctor_store("gone", "is gone", "until it is unmounted")
shutil.copy(scratch("aside"), served)
doctor_store("a copy of it in its place", "has the same content", "mount again")
os.remove(served)
os.link(scratch("aside"), served)
doctor_store("nothing when it is back")
os.remove(served)
shutil.copy(mount.config()["store"], scratch("another"))
os.rename(scratch("another"), served)
doctor_store("replaced", "another store has this name now", "mount again")
with open(served, "r+b") as file:
    file.truncate(5000)
doctor_store("cut", "has changed", "cut or appended")
check("and it serves on", open(other / "config.json").read() and tensors_of(other.path) == tensors_of(scratch("served")))
other.unmount()

print("-- the budget of info holds all experts")
wide = make_store(make_model("wide", "-F", "qwen3-moe", "-d", "512", "-i", "512", "-e", "16", "-l", "4", "--vocab", "1000"))
told = json.loads(ctl("info", "--json", wide).stdout)
held = Mount(wide, f"budget={told['budget_bytes']}", name="held")


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
        (["set", mount.path, "budget=1M"], 1, "mounted with a small budget"), (["set", mount.path, "budget="], 1, "8G"),
        (["set", mount.path, "plan=F=90,C=90"], 1, "F=10:C=70"), (["set", mount.path, "budgets=1G"], 1, "budget pools plan"),
        (["set", mount.path, "answer=ok"], 1, "can only be read"), (["set", EXPERT, "rank=1"], 1, "can only be read"),
        (["set", EXPERT, "pin=S"], 1, "F, C"), (["set", EXPERT, "budget=1G"], 1, "on the root"),
        (["set", "-r", mount.path, "budgets"], 1, "no budgets"), (["set", mount / "nothing", "pin=C"], 1, "No such file"),
        (["set", SCRATCH, "pin=C"], 1, "not in a mount"), (["get", SCRATCH], 1, "not in a mount"),
        (["get", mount.path, "budgets"], 1, "no budgets"), (["get", mount / "nothing"], 1, "No such file"),
        (["verify", mount.path], 1, "`expertctl get` and `top` read mounts"),
        (["info", mount.path], 1, f"its store is {store}"),
        (["profile", mount.path], 1, f"its store is {store}"),
        (["unpack", mount.path, scratch("copy")], 1, f"its store is {store}"),
        (["profile", SCRATCH], 1, "pack a checkpoint first"),
        (["get", store], 1, "a store is mounted first"), (["estimate", mount.path], 2, "`expertctl info"),
        (["top", SCRATCH], 1, "not in a mount"), (["set"], 2, "needed"), (["set", mount.path], 2, "needed"),
        (["set", "policy=lru", mount.path], 2, "the mount comes first"),
        (["set", mount.path, "policy"], 2, "NAME=VALUE"), (["set", mount.path, "=lru"], 2, "NAME=VALUE"),
        (["set", "-r", mount.path, "policy=lru"], 2, "NAME alone"), (["get"], 2, "needed"),
        (["top", "-d", "0", mount.path], 2, "0.1"), (["top", "-d", "x", mount.path], 2, "0.1"),
        (["top", "-n", "0", mount.path], 2, "number"), (["top", mount.path, SCRATCH], 2, "one mount")):
    result = ctl(*arguments)
    words = " ".join(arguments).replace(SCRATCH, "")
    check(f"{words}: exit {status}, and why", result.returncode == status and says in result.stderr and not result.stdout,
          result)
check("nothing has changed", ctl("get", mount.path, "policy", "budget", "plan").stdout ==
      f"policy: zipmoe\nbudget: {128 << 20}\nplan: auto\n")
check("what comes before an error stays", ctl("set", mount.path, "goal=io", "policy=x", "delta=1").returncode == 1 and
      ctl("get", mount.path, "goal", "delta").stdout == "goal: io\ndelta: auto\n" and
      ctl("set", "-r", mount.path, "goal").returncode == 0)
if root:
    result = subprocess.run([copied, "set", mount.path, "policy=lru"], **as_user)
    check("another user is told who may", result.returncode == 1 and "only who mounted it, and root" in result.stderr, result)

print("-- top on a pipe")
files = [mount / name for name in files_below(mount.path) if not name.startswith(".expertfs")]
for name in files:
    open(name, "rb").read()
result = ctl("top", "-n", "2", "-d", "0.2", mount.path)
screens = result.stdout.split("\n\n" + mount.path)
check("two screens of plain text", result.returncode == 0 and len(screens) == 2 and "\033" not in result.stdout and
      "\1" not in result.stdout, result)
rows = [line.split() for line in result.stdout.splitlines()]
heads = [row for row in rows if row[:1] == ["POOL"]]
check("pools by name", len(heads) == 2 and [row[0] for row in rows if row and row[0] in "FCSEM"] == [*"FCSEM"] * 2, rows)
check("experts, the most asked for first", len([row for row in rows if row and re.match(r"L0\d/E", row[0])]) == 20)
check("no line is wider than a terminal but for a path's", not [line for line in result.stdout.splitlines()
      if len(line) > 80 and mount.path not in line], result.stdout)
check("and the letters are explained", result.stdout.count("F full  C coded") == 2 and "space shows" not in result.stdout)
check("memory is that of stat", "of 128 MiB" in result.stdout, result.stdout)
result = ctl("top", "--json", "-n", "2", "-d", "0.1", mount.path)
objects = [json.loads(line) for line in result.stdout.splitlines()]
check("--json: an object on a line for each screen", result.returncode == 0 and len(objects) == 2 and
      [o["mount"] for o in objects] == [mount.path] * 2 and set(objects[0]) == {"mount", "time", "seconds", "policy",
      "goal", "plan", "serving_path", "errors", "memory", "rates", "pools", "experts"}, result)
check("with the pools' and the mount's numbers", list(objects[1]["pools"]) == [*"FCSEM"] and
      objects[0]["memory"]["budget_bytes"] == 128 << 20 and objects[0]["rates"]["read_bytes"] > 0 and
      objects[0]["pools"]["M"]["hits"] > 0 and len(objects[0]["experts"]) == 10, objects)
check("-b, and the mount found by itself where it is the only one", ctl("top", "-b", "-n1").returncode in (0, 1))
top = subprocess.Popen([expertctl, "top", "-b", "-d", "60", mount.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
os.read(top.stdout.fileno(), 100)
top.send_signal(signal.SIGINT)
check("SIGINT ends it", top.wait(20) == 0)
reading = subprocess.run(["sh", "-c", f"'{expertctl}' top -d 0.1 '{mount.path}' | head -n 1"], capture_output=True, text=True,
                         timeout=30)
check("so does a reader that has enough", reading.stdout.startswith(mount.path) and not reading.stderr, reading)


SHOWN = "\033\\[\\?25l"  # ends each screen: no cursor


class Terminal:
    """top in a terminal of its own."""

    def __init__(self, rows, columns, *arguments, shell=False):
        self.control, self.device = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.device)
        self.text = ""

        def own():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        top = ["bash", "--norc", "--noprofile", "-i"] if shell else [expertctl, "top", *arguments, mount.path]
        self.top = subprocess.Popen(top, stdin=self.device, stdout=self.device,
                                    stderr=self.device, preexec_fn=own)

    def resize(self, rows, columns):
        fcntl.ioctl(self.control, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def read_until(self, pattern, seconds=20):
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text, re.S):
            if not select.select([self.control], [], [], 0.1)[0]:
                if time.monotonic() > end or self.top.poll() is not None:
                    return bool(re.search(pattern, self.text, re.S))
                continue
            self.text += os.read(self.control, 65536).decode(errors="replace")
        return True

    def lines(self, screen):
        return [re.sub(r"\033\[[^a-zA-Z]*[a-zA-Z]", "", line) for line in screen.split("\r\n")]

    def end(self, what, status=0, opened=1):
        got = self.top.wait(20)
        while select.select([self.control], [], [], 0.2)[0]:
            self.text += os.read(self.control, 65536).decode(errors="replace")
        check(f"{what}: exit {status}, terminal as before", got == status and self.text.count("\033[?1049h") == opened and
              ("\033[?25h\033[?1049l" in self.text) == (opened > 0) and termios.tcgetattr(self.device) == self.before,
              (got, self.text[-300:], termios.tcgetattr(self.device), self.before))
        os.close(self.control)
        os.close(self.device)


print("-- top in a terminal")
os.environ["TERM"] = "xterm"
terminal = Terminal(30, 200, "-d", "60")
check("a screen", terminal.read_until("EXPERT +STATE.*" + SHOWN))
screen = terminal.lines(terminal.text[terminal.text.index("\033[H"):])
check("as high as the terminal", 25 <= len(screen) <= 30, (len(screen), screen))
for rows, columns in ((18, 40), (8, 10), (60, 120), (1, 1), (30, 100)):
    terminal.text = terminal.text[:terminal.text.index("\033[H")]
    terminal.resize(rows, columns)
    drawn = terminal.read_until("\033\\[2J.*" + SHOWN)
    screen = terminal.lines(terminal.text[terminal.text.rfind("\033[H"):])
    check(f"{rows} x {columns}: at once, within its edges", drawn and len(screen) <= rows and
          max(map(len, screen)) <= columns, (drawn, len(screen), max(map(len, screen))))
os.write(terminal.control, b"q")
terminal.end("q")
terminal = Terminal(24, 80, "-d", "60")
terminal.read_until("EXPERT.*" + SHOWN)
screen = terminal.lines(terminal.text[terminal.text.rfind("\033[H"):])
check("80 x 24: all columns, some experts, the keys", "SAVED/S" in terminal.text and "LEASES" in terminal.text and
      len([line for line in screen if re.match(r"L0\d/E", line)]) >= 5 and "q ends, space shows" in screen[-1], screen)
count = terminal.text.count("\033[H")
os.write(terminal.control, b" ")
check("space: the next one now", terminal.read_until("(\033\\[H.*){2}" + SHOWN))
os.write(terminal.control, b"\x03")
terminal.end("Ctrl-C")
for number in "1", "2":
    terminal = Terminal(24, 80, "-n", number, "-d", "0.1")
    terminal.end(f"-n {number}")
    left = terminal.text.split("\033[?1049l")[-1].splitlines()
    check(f"-n {number}: the last one stays in the terminal, as text, and fits", left and left[0].startswith(mount.path) and
          "\033" not in "".join(left) and len(left) <= 23 and left[-1].startswith("L0"), left)
terminal = Terminal(24, 80, shell=True)
os.write(terminal.control, f"'{expertctl}' top -d 60 '{mount.path}'\n".encode())
terminal.read_until("EXPERT.*" + SHOWN)
os.write(terminal.control, b"\x1a")
check("Ctrl-Z: the shell gets its screen back", terminal.read_until("\033\\[\\?25h\033\\[\\?1049l.*Stopped"), terminal.text[-300:])
os.write(terminal.control, b"fg\n")
check("fg: all is there again", terminal.read_until("Stopped.*1049h.*EXPERT.*" + SHOWN), terminal.text[-300:])
os.write(terminal.control, b"q")
check("and keys are taken", terminal.read_until("Stopped.*1049l"), terminal.text[-300:])
os.write(terminal.control, b"exit\n")
terminal.end("exit of the shell", opened=2)
os.environ["TERM"] = "dumb"
terminal = Terminal(24, 80, "-n", "1")
terminal.end("TERM=dumb", opened=0)
check("a terminal that only prints gets text", "\033" not in terminal.text and "EXPERT " in terminal.text, terminal.text)
os.environ["TERM"] = "xterm"
terminal = Terminal(24, 80, "-d", "0.2")
terminal.read_until("EXPERT.*" + SHOWN)
mount.stop()
terminal.end("the mount goes away", 1)
check("and that is told", "expertctl: " in terminal.text.split("\033[?1049l")[1], terminal.text[-200:])
done()
