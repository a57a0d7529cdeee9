# SPDX-License-Identifier: Apache-2.0
"""Descriptors that leave the daemon, and those that it keeps of what others see, cannot be opened again for writing: not
by root, not by who mounted. And a client that asks again under a tag whose error still waits in line."""
import ctypes
import errno
import fcntl
import mmap
import stat as modes

from e2e import *
from handout import AS_CODED, ASK, DROP, WITH_LAYOUT, Client

need_fuse()
model = make_model("model", "-F", "qwen3-moe", "-d", "512", "-i", "1024", "-e", "8", "-l", "2", "--vocab", "500")
store = make_store(model)
os.environ["EXPERTFS_STATE"] = scratch("state")
F_ADD_SEALS, FALLOC_PUNCH = 1033, 3
libc = ctypes.CDLL(None, use_errno=True)


def attempts(link):
    """What whoever has /proc/.../fd/N can do to the file; the names of those that were granted."""
    granted = []

    def attempt(name, do):
        try:
            do()
            granted.append(name)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EPERM, errno.EACCES, errno.EBADF, errno.EINVAL,
                                   errno.EOPNOTSUPP):
                granted.append(f"{name}: {error}")

    def fallocate(fd):
        if libc.fallocate(fd, FALLOC_PUNCH, ctypes.c_long(0), ctypes.c_long(4096)):
            raise OSError(ctypes.get_errno(), "fallocate")

    for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDONLY | os.O_TRUNC):
        def reopen(flags=flags):
            fd = os.open(link, flags)
            try:
                os.pwrite(fd, b"x", 0)
            finally:
                os.close(fd)
        attempt(f"open for writing {flags}", reopen)
    attempt("truncate", lambda: os.truncate(link, 0))
    attempt("chmod", lambda: os.chmod(link, 0o777))
    attempt("utime", lambda: os.utime(link))
    attempt("setxattr", lambda: os.setxattr(link, "user.x", b"1"))
    fd = os.open(link, os.O_RDONLY)
    attempt("ftruncate", lambda: os.ftruncate(fd, 0))
    attempt("fchmod", lambda: os.fchmod(fd, 0o777))
    attempt("pwrite", lambda: os.pwrite(fd, b"x", 0))
    attempt("punch", lambda: fallocate(fd))
    os.close(fd)
    return granted


def memory_of(mount):
    """Descriptors of the daemon that are files in memory."""
    found = []
    base = f"/proc/{mount.daemon.pid}/fd"
    for fd in os.listdir(base):
        link = f"{base}/{fd}"
        if not os.path.lexists(link):  # one of those that come and go
            continue
        try:
            target, there = os.readlink(link), os.stat(link)
        except FileNotFoundError:
            continue
        if modes.S_ISREG(there.st_mode) and ("(deleted)" in target or not os.path.lexists(target)):
            found.append(link)
    return found


def as_user(uid, do):
    """In a process of that user's; what it granted."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if uid:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(uid)
            os.write(into, "\n".join(do()).encode())
        except BaseException as error:
            os.write(into, f"failed: {error!r}".encode())
        os._exit(0)
    os.close(into)
    text = b""
    while piece := os.read(out, 65536):
        text += piece
    os.close(out)
    os.waitpid(pid, 0)
    return text.decode().split("\n") if text else []


def window_attempts(mount):
    client = Client(mount)
    client.send(ASK, [(n, 1, n) for n in range(3)])
    answers = [client.answer() for _ in range(3)]
    before = [client.file(answer) for answer in answers]
    granted = [what for fd in client.fds.values() for what in attempts(f"/proc/self/fd/{fd}")]
    if not client.fds:
        granted.append("failed: nothing was handed out")
    if not granted and [client.file(answer) for answer in answers] != before:
        granted.append("bytes were changed")
    client.close()
    return granted


def coded_attempts(mount):
    """The same with windows of the chunk pool, which the daemon writes to all the time."""
    client = Client(mount)
    client.send(ASK, [(n, 1, n | WITH_LAYOUT) for n in range(3)], form=AS_CODED)
    answers = [client.coded() for _ in range(3)]
    before = [client.chunks(*answer[2:]) for answer in answers]
    granted = [what for fd in client.fds.values() for what in attempts(f"/proc/self/fd/{fd}")]
    granted += [f"failed: {answer[1]}" for answer in answers if answer[1]]
    for fd in client.fds.values():
        try:
            mmap.mmap(fd, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            granted.append("a mapping for writing")
        except PermissionError:
            pass
    if not client.fds:
        granted.append("failed: nothing was handed out")
    if not granted and [client.chunks(*answer[2:]) for answer in answers] != before:
        granted.append("bytes were changed")
    client.close()
    return granted


def file_attempts(mount):
    fd = os.open(mount / "experts/L01/E005.safetensors", os.O_RDONLY)
    granted = attempts(f"/proc/self/fd/{fd}")
    os.close(fd)
    return granted


def grants_nothing(what, granted):
    check(f"{what}: nothing is granted", not granted, granted)


print("-- as root, of a daemon of root's")
mount = Mount(store, "budget=72M")
if not mount.passthrough() or os.geteuid():
    mount.unmount()
    skip("needs root and passthrough")
want = [open(mount / f"experts/L00/E{n:03}.safetensors", "rb").read() for n in range(8)]
grants_nothing("windows", as_user(0, lambda: window_attempts(mount)))
grants_nothing("windows of the chunk pool", as_user(0, lambda: coded_attempts(mount)))
grants_nothing("files", file_attempts(mount))
held = [open(mount / f"experts/L00/E{n:03}.safetensors", "rb") for n in range(3)]
client = Client(mount)
client.send(ASK, [(n, 1, n) for n in (4, 5)])
answers = [client.answer() for _ in range(2)]
none_for_windows = wait_until(lambda: len(memory_of(mount)) == len(held))  # one is open while it is sent
links = memory_of(mount)
check("the daemon has a descriptor for each expert that is open, none for windows", none_for_windows, links)
granted = as_user(0, lambda: [what for link in links for what in attempts(link)])
grants_nothing("by the daemon's own descriptors", granted)
check("all is what it was", not granted and all(file.read() == want[n] for n, file in enumerate(held)) and
      all(client.file(answer) == want[answer[0]] for answer in answers))
client.close()
for file in held:
    file.close()
mount.unmount()

print("-- as the user who mounted")
os.chmod(SCRATCH, 0o755)
caps = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+sys_admin,+dac_override,+dac_read_search",
        "--ambient-caps=+sys_admin,+dac_override,+dac_read_search")
if run(*caps, "true").returncode:
    note("left out: needs setpriv")
else:
    mount = Mount(store, "budget=72M,allow_other", prefix=caps)
    if not mount.passthrough():
        note(f"left out: {mount.config()['passthrough_reason']}")
    else:
        grants_nothing("windows", as_user(65534, lambda: window_attempts(mount)))
        grants_nothing("windows of the chunk pool", as_user(65534, lambda: coded_attempts(mount)))
        grants_nothing("files", as_user(65534, lambda: file_attempts(mount)))
        grants_nothing("windows, as root", window_attempts(mount))
        grants_nothing("windows of the chunk pool, as root", coded_attempts(mount))
    mount.unmount()

print("-- as root, of a daemon that has no tmpfs of its own")
FSOPEN = 430
prefix = without_calls(errno.EPERM, FSOPEN)
if prefix:
    mount = Mount(store, "budget=72M", prefix=prefix)
    check("passthrough is served from memfds", mount.passthrough(), mount.control("config"))
    held = [open(mount / f"experts/L00/E{n:03}.safetensors", "rb") for n in range(3)]
    links = memory_of(mount)
    check(f"the daemon has {len(links)} of them", len(links) >= 3 and
          all(os.readlink(link).startswith("/memfd:") for link in links), [os.readlink(link) for link in links])
    grants_nothing("files", file_attempts(mount))
    # a seal is on the bytes alone: its owner may change a memfd's mode and times
    granted = as_user(0, lambda: [what for link in links for what in attempts(link)
                                  if what not in ("chmod", "fchmod", "utime", "setxattr")])
    check("by the daemon's own descriptors: nothing that changes bytes is granted", not granted, granted)
    check("all is what it was", all(file.read() == want[n] for n, file in enumerate(held)))
    for file in held:
        file.close()
    mount.unmount()

print("-- a tag that is asked for again while its error waits in line")
mount = Mount(store, "budget=40M")
for turn in range(4):
    held = []
    while mount.count("leased_bytes") + 2 * len(want[0]) < mount.count("budget_bytes") - mount.count("fixed_bytes") and len(held) < 7:
        held.append(open(mount / f"experts/L01/E{len(held):03}.safetensors", "rb"))
        if mount.count("lease_waits") > turn:
            break
        if len(held) >= 4:
            break
    client = Client(mount)
    asked = 0
    client.socket.setblocking(False)
    try:
        while asked < 8000:  # more errors than the socket holds: the last ones wait in line
            client.send(ASK, [(99, 1, asked % 8000 + i) for i in range(50)])
            asked += 50
    except BlockingIOError:
        pass
    client.socket.settimeout(30)
    # all tags whose errors wait are asked for again, and come only when there is room
    for tag in range(max(0, asked - 150), asked, 50):
        client.send(ASK, [(n, 1, tag + n) for n in range(8)])
    errors = 0
    while errors < asked:
        answer = client.answer()
        if answer is None:
            break
        errors += answer[1] == -22
    for file in held:
        file.close()
    client.close()
    if not wait_until(lambda: mount.daemon.poll() is not None or (mount.count("leased_experts") == 0 and mount.count("inflight") == 0), 20):
        check(f"turn {turn}: all is given back", False, mount.stat())
    if mount.daemon.poll() is not None:
        break
check("the daemon lives", mount.daemon.poll() is None, mount.daemon.returncode)
if mount.daemon.poll() is None:
    with open(mount / "experts/L00/E003.safetensors", "rb") as file:
        check("and serves", file.read() == want[3])
    mount.unmount()
done()
