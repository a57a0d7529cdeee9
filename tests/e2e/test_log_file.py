# SPDX-License-Identifier: Apache-2.0
"""--log FILE and --log-level; .expertfs/log and expertctl log have the latest messages of a mount."""
from e2e import *

need_fuse()
expertctl, expertfs = program("expertctl"), program("expertfs")
model, store = shared(MIXTRAL, "--shard-size", "16K")
LINE = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ (error|warning|info): .*"
mnt = scratch("mnt")
os.mkdir(mnt)


def lines_of(path):
    """Without those about the profile, which depend on the load of the machine."""
    with open(path) as file:
        return without_profile(file.read())


def without_profile(text):
    return [line for line in text.splitlines() if "profile" not in line]


def mounted(what, *options):
    result = run(expertfs, *options, store, mnt)
    check(f"{what}: mounts and says nothing", result.returncode == 0 and not result.stdout + result.stderr, result)


def down(what):
    result = run(expertctl, "down", mnt)
    check(f"{what}: ends", result.returncode == 0, result)


print("-- in the background")
log = scratch("some, log.txt")
os.chdir(SCRATCH)
mounted("--log", "--log", "some, log.txt")
lines = lines_of(log)
check("--log: the mount is in the file", len(lines) == 1 and re.fullmatch(LINE, lines[0]) and f"{store} on {mnt}: " in lines[0], lines)
told = run(expertctl, "log", mnt)
check("expertctl log: the same", without_profile(told.stdout) == lines, told)
told = [line for line in json.loads(run(expertctl, "log", "--json", mnt).stdout) if "profile" not in line["text"]]
check("expertctl log --json", len(told) == 1 and told[0]["level"] == "info" and f"{store} on {mnt}: " in told[0]["text"], told)
down("--log")
mounted("again", f"--log={log}")
check("a second mount appends", len(lines_of(log)) == 2, lines_of(log))
check("the mount's own messages only", without_profile(run(expertctl, "log", mnt).stdout) == lines_of(log)[1:])
down("again")
log = scratch("plain.txt")
mounted("-o log=FILE", "-o", f"log={log},log_level=warning")
check("-o log=: the file; log_level=warning: no info", lines_of(log) == [], lines_of(log))
down("-o log=")
result = run(expertfs, "--log", log, "-o", "budget=1M", store, mnt)
check("a start that fails: on standard error and in the file", result.returncode == 1 and "below the minimum" in result.stderr and
      re.fullmatch(LINE, lines_of(log)[-1]) and "error: " in lines_of(log)[-1] and "hint: " in lines_of(log)[-1], (result, lines_of(log)))

print("-- SIGHUP, as after the file was renamed")


def daemon():
    with open(f"{mnt}/.expertfs/config") as file:
        return int(re.search(r"^pid: (\d+)", file.read(), re.M).group(1))


def set_budget(size):
    run(expertctl, "set", mnt, f"budget={size}")


for what, prefix in (("", ()), ("with nohup: ", ("nohup",))):
    os.makedirs("logs")
    result = run(*prefix, expertfs, "--log", "logs/x.log", store, mnt)
    check(f"{what}mounts", result.returncode == 0, result)
    for turn in range(3):
        os.rename("logs/x.log", f"logs/x.log.{turn}")
        set_budget(f"{1000 + 2 * turn}M")
        check(f"{what}{turn}: before, the renamed file is written", wait_until(lambda: f"budget={1000 + 2 * turn}M" in open(f"logs/x.log.{turn}").read()))
        os.kill(daemon(), signal.SIGHUP)
        check(f"{what}{turn}: there is a new file", wait_until(lambda: os.path.exists("logs/x.log")))
        set_budget(f"{1001 + 2 * turn}M")
        check(f"{what}{turn}: which is written", wait_until(lambda: f"budget={1001 + 2 * turn}M" in open("logs/x.log").read()))
        check(f"{what}{turn}: the renamed one is not", f"budget={1001 + 2 * turn}M" not in open(f"logs/x.log.{turn}").read())
    check(f"{what}no line is lost", [line.split(" set ")[-1] for path in ("0", "1", "2") for line in lines_of(f"logs/x.log.{path}") if " set " in line] +
          [line.split(" set ")[-1] for line in lines_of("logs/x.log") if " set " in line] == [f"budget={1000 + n}M" for n in range(6)])
    os.rename("logs", "gone")
    os.kill(daemon(), signal.SIGHUP)
    check(f"{what}it cannot be opened: said in the old file", wait_until(lambda: "the log stays in the file that is open" in open("gone/x.log").read()))
    check(f"{what}and by expertctl log", "No such file" in run(expertctl, "log", mnt).stdout)
    for _ in range(200):
        os.kill(daemon(), signal.SIGHUP)
    check(f"{what}it is mounted", is_mounted(mnt) and open(f"{mnt}/config.json").read())
    down(f"{what}after SIGHUP")
    shutil.rmtree("gone")
os.mkfifo("fifo")
reader = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)
mounted("a FIFO", "--log", "fifo")
os.kill(daemon(), signal.SIGHUP)
set_budget("1000M")
read = []


def fifo_has(words):
    try:
        read.append(os.read(reader, 65536))
    except BlockingIOError:
        pass
    return words in b"".join(read)


check("a FIFO is not opened again", wait_until(lambda: fifo_has(b"budget=1000M")) and is_mounted(mnt))
down("a FIFO")

print("-- in the foreground")
log = scratch("foreground.txt")
served = scratch("damaged.efs")
shutil.copy(store, served)
for at in range(os.path.getsize(store) // 3, os.path.getsize(store) // 3 + 65536, 64):
    flip(served, at)
mount = Mount(served, "nopassthrough", arguments=("--log", log), wait=False)
wait_until(lambda: os.path.exists(log) and "nopassthrough" in open(log).read())
damaged = [name for name in files_below(model) if name.endswith(".safetensors") and error_of(lambda: open(mount / name, "rb").read()) != "none"]
check("damage is in the file, not on standard error", damaged and wait_until(lambda: " error: " in open(log).read()) and
      mount.log_text() == "", (damaged, mount.log_text()))
told = run(expertctl, "log", "-n", "1", mount.path).stdout
check("expertctl log -n 1: one of them", told.count("\n") == 1 and told in run(expertctl, "log", mount.path).stdout, told)
status = run(expertctl, "status", mount.path).stdout
check("status: the damage is a problem", re.search(r"problems +damaged chunks were read \d+ times?: `expertctl verify ", status), status)
os.rename(log, log + ".old")
mount.daemon.send_signal(signal.SIGHUP)
check("SIGHUP in the foreground: a new file", wait_until(lambda: os.path.exists(log)) and is_mounted(mount.path))
mount.stop()
os.rename(log + ".old", log)
result = run(expertfs, "-f", "--log", log, "-o", "budget=1M", store, mnt)
check("a start that fails in the foreground: both", result.returncode == 1 and "below the minimum" in result.stderr and
      "below the minimum" in lines_of(log)[-1], result)

print("-- what is refused")
for arguments, status, says in ((("--log", scratch("none/x")), 1, "none/x: No such file"), (("--log", SCRATCH), 1, "Is a directory"),
                                (("--log-level", "loud"), 2, "log_level=loud: allowed are error, warning, info"),
                                (("-o", "log"), 2, "option log needs a value"), (("-o", "log_levl=info"), 2, "did you mean log_level")):
    result = run(expertfs, *arguments, store, mnt)
    check(f"{arguments}: {says}", result.returncode == status and re.search(says, result.stderr), result)
result = run(expertctl, "log", SCRATCH)
check("log of no mount", result.returncode == 1 and "not in a mount" in result.stderr, result)
done()
