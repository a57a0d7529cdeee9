# SPDX-License-Identifier: Apache-2.0
"""Descriptors that the daemon passes to clients, and those that it keeps of the same files, cannot be reopened for
writing, neither by root nor by the mounting user. And a client that reuses a tag whose error is still queued."""
import fcntl
import stat as modes

from write_attempts import of_a_file, results
from e2e import *
from socket_packets import AS_CODED, ASK, FULL, WITH_LAYOUT, Client

need_fuse()
model, store = shared(WIDE)
NOBODY = 65534
KEEP_BYTES = ("chmod", "fchmod", "utime", "utime to a time", "setxattr", "truncate to its size")


def attempts(links):
    """What a process with such links, /proc/.../fd/N, can do to their files: the attempts that succeeded or failed with
    an unexpected error."""
    granted = []
    for link in links:
        ways, closed = of_a_file(link, then_write=True)
        ways["setxattr"] = lambda: os.setxattr(link, "user.x", b"1")
        granted += [(what, error) for what, error in results(ways, closed).items()
                    if error not in ("EROFS", "EPERM", "EACCES", "EBADF", "EINVAL", "ENOTSUP", "EOPNOTSUPP")]
    return granted


def memory_of(mount):
    """Descriptors of the daemon that are files in memory."""
    found = []
    base = f"/proc/{mount.daemon.pid}/fd"
    for fd in os.listdir(base):
        link = f"{base}/{fd}"
        if not os.path.lexists(link):  # closed meanwhile
            continue
        try:
            target, there = os.readlink(link), os.stat(link)
        except FileNotFoundError:
            continue
        if modes.S_ISREG(there.st_mode) and ("(deleted)" in target or not os.path.lexists(target)):
            found.append(link)
    return found


def is_sealed(link):
    """Whether a file in memory is sealed against writing."""
    fd = os.open(link, os.O_RDONLY)
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    os.close(fd)
    return bool(seals & (fcntl.F_SEAL_WRITE | 0x10))  # F_SEAL_FUTURE_WRITE


def window_attempts(mount, form):
    """Attempts via the descriptors of windows: of full experts, and of the chunk pool, which the daemon writes to
    continuously."""
    client, layout = Client(mount), WITH_LAYOUT if form == AS_CODED else 0
    client.send(ASK, [(n, 1, n | layout) for n in range(3)], form=form)
    answers = [client.coded() if form == AS_CODED else client.answer() for _ in range(3)]

    def seen():
        return [client.chunks(*answer[2:]) if form == AS_CODED else client.file(answer) for answer in answers]

    before = seen()
    granted = attempts(f"/proc/self/fd/{fd}" for fd in client.fds.values())
    for fd in client.fds.values():
        try:
            mmap.mmap(fd, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            granted.append("a mapping for writing")
        except PermissionError:
            pass
    if not client.fds or any(answer[1] for answer in answers):
        granted.append(f"failed: {answers}")
    if not granted and seen() != before:
        granted.append("bytes were changed")
    client.close()
    return granted


def file_attempts(mount):
    fd = os.open(mount / "experts/L01/E005.safetensors", os.O_RDONLY)
    granted = attempts([f"/proc/self/fd/{fd}"])
    os.close(fd)
    return granted


def grants_nothing(what, action, uid=0):
    granted = as_user(uid, [NOBODY if uid else 0], action)
    check(f"{what}: nothing is granted", granted == "[]", granted)


def all_grant_nothing(mount, who, uid=0):
    for what, form in (("windows", FULL), ("windows of the chunk pool", AS_CODED)):
        grants_nothing(f"{what}, {who}", lambda: window_attempts(mount, form), uid)
    grants_nothing(f"files, {who}", lambda: file_attempts(mount), uid)


print("-- as root, of a daemon of root's")
mount = Mount(store, "budget=72M")
if not mount.passthrough() or os.geteuid():
    mount.unmount()
    skip("needs root and passthrough")
want = [open(mount / f"experts/L00/E{n:03}.safetensors", "rb").read() for n in range(8)]
all_grant_nothing(mount, "as root")
held = [open(mount / f"experts/L00/E{n:03}.safetensors", "rb") for n in range(3)]
client = Client(mount)
client.send(ASK, [(n, 1, n) for n in (4, 5)])
answers = [client.answer() for _ in range(2)]
none_for_windows = wait_until(lambda: len(memory_of(mount)) == len(held))  # one is open while it is sent
links = memory_of(mount)
check("the daemon has a descriptor for each expert that is open, none for windows", none_for_windows, links)
grants_nothing("by the daemon's own descriptors", lambda: attempts(links))
check("all is what it was", all(file.read() == want[n] for n, file in enumerate(held)) and
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
        all_grant_nothing(mount, "as who mounted", NOBODY)
        all_grant_nothing(mount, "as root, of a user's")
    mount.unmount()

print("-- as root, of a daemon that has no tmpfs of its own")
FSOPEN = 430
prefix = deny_syscalls(errno.EPERM, FSOPEN)
if prefix:
    mount = Mount(store, "budget=72M", prefix=prefix)
    check("passthrough is served from memfds", mount.passthrough(), mount.control("config"))
    held = [open(mount / f"experts/L00/E{n:03}.safetensors", "rb") for n in range(3)]
    links = memory_of(mount)
    check(f"the daemon has {len(links)} of them", len(links) >= 3 and
          all(os.readlink(link).startswith("/memfd:") for link in links), [os.readlink(link) for link in links])
    # the others are memory of the chunk pool, which the daemon writes: root, and a program that may trace it, can, too
    sealed = [link for link in links if is_sealed(link)]
    check(f"{len(sealed)} are sealed: those of open experts", len(sealed) >= len(held), links)
    grants_nothing("files", lambda: file_attempts(mount))
    # seals protect the bytes only: the owner may change a memfd's mode and times
    grants_nothing("by the daemon's own descriptors of them, but for what changes no bytes", lambda: [
        (what, error) for what, error in attempts(sealed) if what not in KEEP_BYTES])
    check("all is what it was", all(file.read() == want[n] for n, file in enumerate(held)))
    for file in held:
        file.close()
    mount.unmount()

print("-- a tag that is asked for again while its error waits in line")
mount = Mount(store, "budget=40M")
for turn in range(4):
    held = []
    while len(held) < 4 and mount.count("lease_waits") <= turn and mount.count("leased_bytes") + 2 * len(want[0]) < \
            mount.count("budget_bytes") - mount.count("fixed_bytes"):
        held.append(open(mount / f"experts/L01/E{len(held):03}.safetensors", "rb"))
    client = Client(mount)
    asked = 0
    client.socket.setblocking(False)
    try:
        while asked < 8000:  # more errors than the socket holds: the last ones are queued
            client.send(ASK, [(99, 1, asked % 8000 + i) for i in range(50)])
            asked += 50
    except BlockingIOError:
        pass
    client.socket.settimeout(PATIENCE)
    # all tags with queued errors are requested again, and are answered only when there is space
    for tag in range(max(0, asked - 150), asked, 50):
        client.send(ASK, [(n, 1, tag + n) for n in range(8)])
    errors = 0
    while errors < asked:
        answer = client.answer()
        if answer is None:
            break
        errors += answer[1] == -errno.ENOENT
    for file in held:
        file.close()
    client.close()
    if mount.daemon.poll() is not None or not check(f"turn {turn}: all is given back", mount.wait_idle(), mount.log_text()):
        break
check("the daemon lives", mount.daemon.poll() is None, mount.daemon.returncode)
if mount.daemon.poll() is None:
    with open(mount / "experts/L00/E003.safetensors", "rb") as file:
        check("and serves", file.read() == want[3])
    mount.unmount()
done()
