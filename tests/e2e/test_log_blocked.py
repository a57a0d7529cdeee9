# SPDX-License-Identifier: Apache-2.0
"""A daemon in the foreground whose standard error blocks: a pipe or a socket without a reader, a terminal stopped by
Ctrl-S. The daemon serves, accepts settings and ends; it counts and reports the lines that it could not write."""
import pty
import select
import socket
import termios
import tty

from blocked_log import *

need_fuse()


class Pipe:
    def __init__(self):
        self.read_fd, self.fd = os.pipe()

    def fill(self):
        fill_pipe(self.fd)

    def open(self):
        pass

    def close(self):
        os.close(self.read_fd)
        os.close(self.fd)


class Socket(Pipe):
    """As systemd connects a service to the journal."""

    def __init__(self):
        self.ends = socket.socketpair()
        self.read_fd, self.fd = (end.fileno() for end in self.ends)

    def fill(self):
        fill_socket(self.ends[1])

    def close(self):
        for end in self.ends:
            end.close()


class Terminal(Pipe):
    def __init__(self):
        self.read_fd, self.fd = pty.openpty()
        tty.setraw(self.fd)

    def fill(self):
        termios.tcflow(self.fd, termios.TCOOFF)

    def open(self):
        termios.tcflow(self.fd, termios.TCOON)


def read_until(output, pattern):
    """Reads until a line matches, or no data arrives for PATIENCE seconds."""
    text = ""
    while not re.search(pattern, text) and select.select([output.read_fd], [], [], PATIENCE)[0]:
        text += os.read(output.read_fd, 65536).decode(errors="replace")
    return text


model = make_model("model", "-F", "mixtral", "-d", "256", "-i", "256", "-e", "2", "-l", "1", "--vocab", "500")
store = make_store(model)
damage(store)
for kind, arguments in (Pipe, ()), (Socket, ()), (Terminal, ()), (Pipe, ("-d",)):
    print(f"-- {kind.__name__.lower()} {' '.join(arguments)}")
    output = kind()
    output.fill()
    mount = Mount(store, wait=False, arguments=arguments, stderr=output.fd)
    check("it mounts", wait_until(lambda: mount.daemon.poll() is not None or is_mounted(mount.path)) and is_mounted(mount.path))
    serves(mount.path, mount.daemon.pid)
    output.open()
    text = read_until(output, r"\d+ messages were lost: ")
    check("the lost lines are told", re.search(r"\d+ messages were lost: ", text), text[-500:])
    output.fill()
    os.setxattr(mount.path, "user.expertfs.policy", b"lru")
    mount.stop("SIGTERM while nothing is taken")
    output.close()

print("-- a pipe whose reader has gone")
output = Pipe()
mount = Mount(store, wait=False, stderr=output.fd)
wait_until(lambda: mount.daemon.poll() is not None or is_mounted(mount.path))
os.close(output.read_fd)
os.setxattr(mount.path, "user.expertfs.policy", b"lru")
check("lost lines are counted", wait_until(lambda: mount.count("fuse_log_lost") > 0))
mount.stop()
os.close(output.fd)

print("-- a mount that is refused")
output = Pipe()
output.fill()
mount = Mount(store, "budget=1M", wait=False, stderr=output.fd)
try:
    check("the daemon ends", mount.daemon.wait(PATIENCE) == 1, mount.daemon.returncode)
except subprocess.TimeoutExpired:
    check("the daemon ends", False, "it hangs")
mount.abandon()
output.close()
done()
