# SPDX-License-Identifier: Apache-2.0
"""expertctl up on a mount of an older version of the model: it stays until the new one can be mounted. Two on
one mount point at once."""
from e2e import *

need_fuse()
model = make_model("model", *NARROW)
mount = scratch("mnt")
os.makedirs(scratch("bin"))
os.makedirs(scratch("tmp"))
os.environ["TMPDIR"] = scratch("tmp")
expertctl = shutil.copy(program("expertctl"), scratch("bin/expertctl"))  # finds mkexpertfs and expertfs in its folder


def installed(name, script=None):
    """Puts a program into the folder of expertctl: the real one, or a script."""
    path = scratch(f"bin/{name}")
    if os.path.lexists(path):
        os.unlink(path)
    if script is None:
        shutil.copy(program(name), path)
    else:
        with open(path, "w") as file:
            file.write(f"#!/bin/sh\n{script}\n")
        os.chmod(path, 0o755)


def up(*arguments, **more):
    return run(expertctl, "up", *arguments, **more)


def pid(path):
    return json.loads(run(expertctl, "status", "--json", path).stdout)["pid"]


def changes():
    with open(f"{model}/config.json", "a") as file:
        file.write("\n")


def stays(what, before, result, *words):
    check(f"{what}: exit 1, and why", result.returncode == 1 and all(word in result.stderr for word in words), result)
    check(f"{what}: the old mount is still there", is_mounted(mount) and pid(mount) == before, result)
    check(f"{what}: nothing else is left", not os.listdir(scratch("tmp")) and sum(SCRATCH in line for line in open("/proc/mounts")) == 1)


print("-- the new version cannot be mounted")
installed("mkexpertfs")
installed("expertfs")
result = up("-o", "budget=64M", model, mount)
check("mounted", result.returncode == 0, result)
first = pid(mount)
changes()
installed("mkexpertfs", "echo mkexpertfs: a reason >&2; exit 1")
stays("packing fails", first, up("-o", "budget=64M", model, mount), "mkexpertfs: a reason\n")
installed("mkexpertfs")
stays("a budget below the minimum", first, up("-o", "budget=1M", model, mount), "below the minimum",
      f"expertctl: {mount}: the mount of the model before it changed stays\n")
stays("again, when it is packed", first, up("-o", "budget=1M", model, mount), "below the minimum")
installed("expertfs", 'case "$*" in *--version*) exit 0;; esac; kill -9 $$')
stays("a daemon that is killed", first, up("-o", "budget=64M", model, mount), "expertctl: expertfs was ended by signal 9 (Killed)\n")
installed("expertfs")

print("-- it can")
result = up("-o", "budget=64M", model, mount)
check("replaced, which is said once", result.returncode == 0 and
      result.stderr.count(f"note: {mount}: unmounted: it served {model}, which has changed\n") == 1 and pid(mount) != first, result)
check("the changed bytes", contents(model)["config.json"] == open(f"{mount}/config.json", "rb").read())
check("nothing is left of the trial", not os.listdir(scratch("tmp")) and sum(SCRATCH in line for line in open("/proc/mounts")) == 1)

print("-- a folder in it is a program's directory, which no open file shows")
changes()
with subprocess.Popen(["cat"], cwd=mount, stdin=subprocess.PIPE) as inside:
    first = pid(mount)
    stays("with MNT", first, up("-o", "budget=64M", model, mount), f"{mount}: is a mount of ", "\nhint: `expertctl down ")
    inside.stdin.close()
run(expertctl, "down", mount)
own = re.search(" on (.*)\n", up("-o", "budget=64M", model).stdout)[1]
changes()
with subprocess.Popen(["cat"], cwd=own, stdin=subprocess.PIPE) as inside:
    result = up("-o", "budget=64M", model)
    check("without MNT: on another mount point", result.returncode == 0 and re.search(rf" on {own}@\w+\n", result.stdout), result)
    inside.stdin.close()
run(expertctl, "down", own, re.search(r" on (.*)\n", result.stdout)[1])

print("-- a warning, as of the memory that the old mount uses, is of the mount that stays")
for _ in range(2):
    changes()
    result = up("-o", f"budget=1T,log={scratch('log')}", model, mount)
    check("it is printed once, and nothing of the trial is logged", result.returncode == 0 and
          len(re.findall("expertfs: warning: .* budget ", result.stderr)) == 1 and scratch("tmp") not in open(scratch("log")).read(), result)

print("-- it is another user's")
result = up("-o", "budget=64M,allow_other", model, mount)
changes()
result = as_nobody("""XDG_DATA_HOME="$2/data" "$3" up "$4" "$5" 2>&1; echo "exit $?, $(ls "$2")" """, expertctl, model, mount)
if result is not None and os.path.exists("/etc/mtab"):
    check("it is refused before packing, with a way out", result.stdout.startswith(f"expertctl: {mount}: is a mount of ") and
          "\nhint: root and the user who mounted it unmount it, another MNT mounts both\n" in result.stdout and
          result.stdout.endswith("exit 1, \n"), result)
run(expertctl, "down", mount)

print("-- a signal after the old mount was unmounted")
at_mount = (f'case "$*" in *{mount}) echo >> {scratch("started")}; until [ -e {scratch("goes-on")} ]; do sleep .05; done;; esac\n'
            f'exec "{program("expertfs")}" "$@"')


def signalled(kill, number, *prefix):
    """Exit status of an up that gets a signal while it mounts, and what it printed."""
    for name in ("started", "goes-on"):
        if os.path.exists(scratch(name)):
            os.unlink(scratch(name))
    with subprocess.Popen([*prefix, expertctl, "up", "-o", "budget=64M", model, mount], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, start_new_session=True) as process:
        wait_until(lambda: os.path.exists(scratch("started")) or process.poll() is not None)
        kill(process.pid, number)
        open(scratch("goes-on"), "w").close()
        return process.wait(timeout=PATIENCE), process.stdout.read()


result = up("-o", "budget=64M", model, mount)
installed("expertfs", at_mount)
for what, kill, number in (("SIGTERM", os.kill, signal.SIGTERM), ("SIGHUP", os.kill, signal.SIGHUP), ("SIGINT", os.kill, signal.SIGINT),
                           ("SIGINT of a terminal, which its programs get, too", os.killpg, signal.SIGINT)):
    changes()
    status, said = signalled(kill, number)
    check(f"{what}: the new mount is there", status == 0 and f" on {mount}\n" in said and is_mounted(mount) and
          contents(model)["config.json"] == open(f"{mount}/config.json", "rb").read(), (status, said))
run(expertctl, "down", mount)
for what, number, *prefix in (("SIGHUP", signal.SIGHUP, "nohup"), ("SIGINT", signal.SIGINT, "sh", "-c", "trap '' INT; exec \"$@\"", "sh")):
    status, said = signalled(os.kill, number, *prefix)
    check(f"{what} that is ignored: mounted", status == 0 and f" on {mount}\n" in said and is_mounted(mount), (status, said))
    run(expertctl, "down", mount)

print("-- another packs the model while up looks for its store")
stores = re.findall(r"^store: (.*)", up("-o", "budget=64M", model, mount).stdout, re.M)
run(expertctl, "down", mount)
other = Mount(shared(NARROW)[1], "budget=64M", name="other")
os.symlink(other / "config.json", slow := f"{os.path.dirname(stores[0])}/a.efs")  # up waits for it after it listed the folder
os.rename(stores[0], scratch("packed"))
daemon = pid(other.path)
suspend(daemon)
with subprocess.Popen([expertctl, "up", "-o", "budget=64M", model, mount], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                      text=True) as process:
    check("it waits", wait_until(lambda: is_blocked(process.pid)))
    os.rename(scratch("packed"), stores[0])
    os.kill(daemon, signal.SIGCONT)
    said = process.communicate(timeout=PATIENCE)[0]
check("it is not packed twice", process.returncode == 0 and "packing" not in said and f"\nstore: {stores[0]}\n" in said, said)
run(expertctl, "down", mount)
os.unlink(slow)
other.unmount()

print("-- two at once on one mount point")
result = run("env", "XDG_DATA_HOME=/proc/none", expertctl, "up", "-o", "budget=64M", re.search(r"^store: (.*)", result.stdout, re.M)[1], mount)
check("a folder of mount points that cannot be made is not needed", result.returncode == 0 and not result.stderr, result)
run(expertctl, "down", mount)
installed("expertfs", at_mount)
store = re.search(r"^store: (.*)", result.stdout, re.M)[1]
for given in (model, store):
    both, errors = [], [scratch("error0"), scratch("error1")]
    for name in ("started", "goes-on"):
        if os.path.exists(scratch(name)):
            os.unlink(scratch(name))
    for number in range(2):
        with open(errors[number], "w") as error:
            both.append(subprocess.Popen([expertctl, "up", "-o", "budget=64M", given, mount], stdout=subprocess.PIPE, stderr=error, text=True))
        wait_until(lambda: os.path.exists(scratch("started")))
    wait_until(lambda: "waiting for another" in open(errors[1]).read() or os.path.getsize(scratch("started")) == 2)
    open(scratch("goes-on"), "w").close()
    said = [one.communicate(timeout=PATIENCE)[0].split("next:")[0] for one in both]  # whose name depends on other tests' mounts
    check("both print the same mount", [one.returncode for one in both] == [0, 0] and said[0] == said[1] and f" on {mount}\n" in said[0],
          (said, [open(error).read() for error in errors]))
    check("one daemon was started, no lock is left", os.path.getsize(scratch("started")) == 1 and
          not [name for name in os.listdir(scratch("data/expertfs")) if name.endswith(".lock")])
    run(expertctl, "down", mount)
    while is_mounted(mount):
        run("umount", mount)
done()
