# SPDX-License-Identifier: Apache-2.0
"""Shared by tests of a blocked log: fill its output, then check that the mount serves, accepts settings, and counts
lost lines."""
from socket import MSG_DONTWAIT

from e2e import *

SETS = 1500  # log lines, more than its queue holds


def damage(store):
    """Changes a byte of a chunk, so that readers log errors."""
    flip(store, os.path.getsize(store) // 2)


def fill_pipe(fd):
    """Fills the pipe via another open file description, so that the daemon's stays blocking."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(own, b"x" * 4096)
    except BlockingIOError:
        os.close(own)


def fill_socket(socket):
    try:
        while True:
            socket.send(b"x" * 1024, MSG_DONTWAIT)
    except BlockingIOError:
        pass


def ends(what, path, pid, *command):
    """Checks that the command ends; otherwise kills the daemon, so that the test can end."""
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        printed, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        check(what, False, "it hangs")
        os.kill(pid, signal.SIGKILL)
        run("umount", "-l", path)
        process.kill()
        process.communicate()
        done()
    return check(what, process.returncode == 0, printed)


def serves(path, pid):
    """Changes settings of a mount whose log is blocked, and reads it."""
    tune = f"import os, sys\nfor _ in range({SETS}): os.setxattr(sys.argv[1], 'user.expertfs.policy', b'lru')"
    ends(f"{SETS} settings end", path, pid, sys.executable, "-c", tune, path)
    ends("expertctl set ends", path, pid, program("expertctl"), "set", path, "policy=zipmoe")
    ends("reads end, of damaged files too", path, pid, "sh", "-c", 'find "$1" -type f -exec cat {} + >/dev/null 2>&1; true',
         "sh", path)
    with open(f"{path}/.expertfs/stat") as stat:
        lost = re.search(r"^fuse_log_lost: (\d+)$", stat.read(), re.M)
    check("lost lines are counted", lost and int(lost[1]), lost)
