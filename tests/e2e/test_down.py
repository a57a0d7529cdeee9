# SPDX-License-Identifier: Apache-2.0
"""expertctl down of mounts whose daemon hangs, with its process, and of a mount by a path in it."""
from e2e import *

need_fuse()
expertctl = program("expertctl")
_, store = shared(NARROW)


def down(*arguments):
    return run(expertctl, "down", *arguments)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "XZ"
    except OSError:
        return False


def mounted(name="mnt"):
    """A mount by `up`: its path and the process of its daemon."""
    result = run(expertctl, "up", "--json", "-o", "budget=64M", store, scratch(name))
    path = json.loads(result.stdout)["mountpoint"]
    return path, int(re.search(r"^pid: (\d+)", open(f"{path}/.expertfs/config").read(), re.M).group(1))


print("-- a daemon that is stopped")
path, pid = mounted()
suspend(pid)
result = down(path)
check("unmounted", result.returncode == 0 and not is_mounted(path), result)
if "was killed" in result.stderr:  # the kernel names the connection of a process
    check("its process has ended", not is_alive(pid), result)
else:
    check("a warning", "may still run" in result.stderr, result)
    os.kill(pid, signal.SIGKILL)
wait_until(lambda: not is_alive(pid))

print("-- it is stopped and in use")
path, pid = mounted()
with open(f"{path}/config.json") as file:
    file.read(1)
    suspend(pid)
    result = down(path)
    check("refused, and says so", result.returncode == 1 and re.search(
        r"in use, and its daemon does not answer\nhint: .*--lazy", result.stderr) and is_mounted(path), result)
    check("its daemon is not killed", is_alive(pid))
    os.kill(pid, signal.SIGCONT)
    check("it serves on", os.pread(file.fileno(), 1, 0) == b"{")
result = down(path)
check("then it ends", result.returncode == 0 and not result.stderr and not is_mounted(path), result)
check("with its daemon", not is_alive(pid))

if os.geteuid() == 0:
    print("-- a daemon that has taken a request and does not answer")
    path = scratch("silent")
    os.mkdir(path)
    for command in ([], ["ls"]):
        daemon = subprocess.Popen([sys.executable, os.path.join(ROOT, "tests/e2e/silent_daemon.py"), path],
                                  stdout=subprocess.PIPE, text=True)
        check("mounted", daemon.stdout.readline() == "ready\n")
        if command:
            run(expertctl, *command)
        result = down(path)
        check(f"unmounted after {' '.join(command) or 'nothing'}", result.returncode == 0 and not is_mounted(path), result)
        daemon.kill()
        daemon.wait()
        if is_mounted(path):
            run("umount", "-l", path)

if os.geteuid() == 0 and run("unshare", "-m", "true").returncode == 0:
    print("-- what else keeps the file system mounted: a mount namespace made after the mount")
    path, pid = mounted()
    words = ("unshare", "-m", "sh", "-c", "echo ready; read end")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        check("the namespace is made", holder.stdout.readline() == "ready\n")
        result = down(path)
        check("unmounted here, and says where it is mounted still", result.returncode == 0 and not is_mounted(path) and result.stderr == (
            f"expertctl: warning: {path}: unmounted, but its daemon, process {pid}, serves it on in another mount namespace\n"
            f"hint: process {holder.pid}, sh, has it mounted; `kill {pid}` ends the daemon\n"), result)
        check("its daemon runs", is_alive(pid))
        os.kill(pid, signal.SIGTERM)
        check("the hint ends it", wait_until(lambda: not is_alive(pid)))

    print("-- a bind mount")
    path, pid = mounted()
    bound = scratch("bound here")
    os.mkdir(bound)
    subprocess.run(["mount", "--bind", path, bound], check=True)
    result = down(path)
    check("unmounted, and says where it is mounted still", result.returncode == 0 and not is_mounted(path) and result.stderr == (
        f"expertctl: warning: {path}: unmounted, but its daemon, process {pid}, serves it on at {bound}\n"
        f"hint: `umount '{bound}'` ends it\n"), result)
    check("its daemon runs", is_alive(pid))
    subprocess.run(["umount", bound], check=True)
    check("the hint ends it", wait_until(lambda: not is_alive(pid)))

print("-- a path in the mount")
for below in ("/config.json", "/experts/L00", "/", "/.expertfs/"):
    path, pid = mounted()
    result = down(path + below)
    check(f"MNT{below}", result.returncode == 0 and not is_mounted(path), result)
path, pid = mounted()
os.chdir(SCRATCH)
os.symlink(f"{path}/config.json", "link")
check("a file that does not exist", "no mount of expertfs" in down(f"{path}/nothing").stderr and is_mounted(path))
check("a file above it", "no mount of expertfs" in down(f"{path}/../{os.path.basename(store)}").stderr and is_mounted(path))
other, _ = mounted("mnt2")
check("another mount, by ..", down(f"{path}/../mnt2").returncode == 0 and is_mounted(path) and not is_mounted(other))
result = down("mnt/config.json")
check("a relative path", result.returncode == 0 and not is_mounted(path), result)
done()
