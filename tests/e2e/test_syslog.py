# SPDX-License-Identifier: Apache-2.0
"""A mount in the background reports errors to syslog(3), which the journal receives as well: here a socket of the test,
in a mount namespace where it is /dev/log."""
import os
import socket
import subprocess
import sys

in_namespace = "SYSLOG_NAMESPACE" in os.environ
if os.geteuid() == 0 and not in_namespace and subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL).returncode == 0:
    os.execvp("unshare", ["unshare", "-m", "env", "SYSLOG_NAMESPACE=1", sys.executable, *sys.argv])

from blocked_log import *

need_fuse()
if not in_namespace:
    skip("a /dev of its own needs root and unshare -m")
devices = scratch("dev")
os.mkdir(devices)
mnt = scratch("mnt")
os.mkdir(mnt)


def unmount():
    for path in (mnt, f"{devices}/shm", devices):
        run("umount", "-l", path)


atexit.register(unmount)
made = run("mount", "-t", "tmpfs", "none", devices).returncode == 0
for name in ("fuse", "null", "zero", "urandom", "random"):
    status = os.stat(f"/dev/{name}")
    os.mknod(f"{devices}/{name}", status.st_mode, status.st_rdev)
os.mkdir(f"{devices}/shm")
if not made or run("mount", "--rbind", "/dev/shm", f"{devices}/shm").returncode or \
        run("mount", "--rbind", devices, "/dev").returncode:
    skip("a /dev of its own cannot be mounted here")
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
log.bind("/dev/log")
log.settimeout(PATIENCE)


def told(pattern):
    """The next message that matches, with its priority."""
    try:
        while True:
            line = log.recv(65536).decode()
            if re.search(pattern, line):
                return line
    except TimeoutError:
        return ""


model = make_model("model", "-F", "mixtral", "-d", "256", "-i", "256", "-e", "2", "-l", "1", "--vocab", "500")
store = make_store(model)
LOG_DAEMON, LOG_ERR, LOG_INFO = 3 << 3, 3, 6
result = run(program("expertfs"), store, mnt)
check("it mounts in the background", result.returncode == 0, result.stderr)
os.setxattr(mnt, "user.expertfs.policy", b"lru")
line = told("set policy=lru")
check("a change of the policy is told", f"<{LOG_DAEMON | LOG_INFO}>" in line and "expertfs[" in line, line)
damage(store)
for name in files_below(model):
    try:
        with open(f"{mnt}/{name}", "rb") as f:
            f.read()
    except OSError:
        pass
line = told("checksum differs|not well formed")
check("damage is told as an error, with file and offset", f"<{LOG_DAEMON | LOG_ERR}>" in line and store in line, line)
result = run("umount", mnt)
check("it ends", result.returncode == 0 and wait_until(lambda: not is_mounted(mnt)), result.stderr)

print("-- nobody reads /dev/log, and it is full before the mount begins")


def fill():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.connect("/dev/log")
        fill_socket(own)


fill()
result = run(program("expertfs"), store, mnt)
check("it mounts in the background", result.returncode == 0, result.stderr)
with open(f"{mnt}/.expertfs/config") as config:
    pid = int(re.search(r"^pid: (\d+)$", config.read(), re.M)[1])
serves(mnt, pid)
line = told(r"\d+ messages were lost: syslog did not take them in time")
check("the lost lines are told", "messages were lost" in line, line)
os.setxattr(mnt, "user.expertfs.policy", b"lru")
line = told("set policy=lru")
check("what comes later is told", line)
fill()
os.setxattr(mnt, "user.expertfs.policy", b"zipmoe")
os.kill(pid, signal.SIGTERM)
ended = wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
if not check("SIGTERM ends it while nobody reads", ended and not is_mounted(mnt)) and not ended:
    os.kill(pid, signal.SIGKILL)
log.close()
done()
