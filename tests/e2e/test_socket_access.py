# SPDX-License-Identifier: Apache-2.0
"""The socket that passes experts: its path, access to it, files left by a killed daemon, long paths, a daemon that has no
descriptor left for new clients, and programs in a container in which the mount is visible, and the socket is not."""
import resource
import socket
import stat

from e2e import *
from socket_packets import address_of

need_fuse()
model, store = shared(NARROW)
base = scratch("run")
os.environ["EXPERTFS_RUN"] = base


def connect(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(PATIENCE)
    folder = os.open(os.path.dirname(path), os.O_PATH)
    s.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    os.close(folder)
    return s


def is_served(path):
    """Whether the daemon serves the connection: it does not close it within 0.5 s."""
    s = connect(path)
    s.settimeout(0.5)
    try:
        return s.recv(64) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


mount = Mount(store)
print("-- where it is")
address = address_of(mount)
own = os.path.dirname(address)
check("a path below the folder for it", address.startswith(base + "/"), address)
for folder in (base, own):
    seen = os.stat(folder)
    check(f"{os.path.basename(folder)} is for who mounted", stat.S_IMODE(seen.st_mode) == 0o700 and seen.st_uid == os.geteuid())
check("it is a socket that answers", stat.S_ISSOCK(os.stat(address).st_mode) and is_served(address))
second = Mount(store)
check("another mount has another", address_of(second) != address and is_served(address_of(second)) and is_served(address))
second.unmount()
check("and takes it away, and no more", os.listdir(base) == [os.path.basename(own)], os.listdir(base))
if os.geteuid() == 0:
    seqpacket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    check("others do not get there", as_user(65534, [65534], lambda: seqpacket.connect(address)) == "EACCES")
abstract = [line.split()[-1] for line in open("/proc/net/unix") if f"@expertfs-{mount.daemon.pid}" in line]
check("nothing can be had without the folder", not abstract, abstract)

print("-- killed")
mount.daemon.kill()
mount.daemon.wait()
check("what it made stays", os.path.exists(address))
strange = [os.path.join(base, name) for name in ("mine", "1-2", "x-0000000000000000")]
for path in strange:
    os.mkdir(path)
mount.abandon()
mount = Mount(store, "nostate")  # no measurement: the number of its descriptors does not change
check("the next mount takes it away, and nothing else",
      sorted(os.listdir(base)) == sorted([os.path.basename(os.path.dirname(address_of(mount)))] + [os.path.basename(path) for path in strange]),
      os.listdir(base))
check("and has its own", is_served(address_of(mount)))

print("-- no descriptor left")
pid = mount.daemon.pid


def thread():
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm") as file:
            if file.read().strip() == "efs-export":
                return task
    return None


def state():
    with open(f"/proc/{pid}/task/{thread()}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def limit(soft):
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


before, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
check("the daemon has raised its limit, but for what the unmount needs", hard - 8 < before < hard, (before, hard))
def numbers():
    return [int(name) for name in os.listdir(f"/proc/{pid}/fd")]


held = [connect(address_of(mount))]
wait_until(lambda: mount.count("fuse_handout_clients") >= 2)  # is_served() was one client
while max(numbers()) + 1 > len(numbers()) and len(held) < 14:
    clients = mount.count("fuse_handout_clients")
    held.append(connect(address_of(mount)))
    check("a client is served", wait_until(lambda: mount.count("fuse_handout_clients") == clients + 1))
check("each number has its descriptor", max(numbers()) + 1 == len(numbers()), sorted(numbers()))
limit(len(numbers()))
late = [connect(address_of(mount)) for _ in range(3)]
got = []
for s in late:
    s.settimeout(PATIENCE)
    try:
        got.append(s.recv(64))
    except (TimeoutError, ConnectionError) as error:
        got.append(error)
check("who comes then is turned away, not left waiting", all(g == b"" or isinstance(g, ConnectionError) for g in got), got)
check("nobody spins", wait_until(lambda: state() == "S"), state())
limit(3)  # not even the reserved one: a new descriptor would be 3 or more
more = [connect(address_of(mount)) for _ in range(3)]
check("nor with none at all", wait_until(lambda: state() == "S") and wait_until(lambda: state() == "S"), state())
limit(before)
check("when there are some again, it serves", wait_until(lambda: is_served(address_of(mount))))
for s in late + more + held:
    s.close()
check("files are served all the time", open(mount / "config.json", "rb").read() == open(f"{model}/config.json", "rb").read())
mount.unmount()
for path in strange:
    os.rmdir(path)
check("nothing is left", os.listdir(base) == [], os.listdir(base))

print("-- paths")
long = scratch("run " + "x" * 150)
mount = Mount(store, environment={"EXPERTFS_RUN": long})
address = address_of(mount)
check("a path longer than an address", address.startswith(long + "/") and len(address) > 150 and is_served(address), address)
result = run(sys.executable, os.path.join(ROOT, "tests/clients/ctypes_client.py"), program("libexpertfs.so.0", PLAIN), mount.path, model)
check("the library finds it", result.returncode == 0 and mount.count("fuse_handouts") > 0, result)
mount.unmount()
open_to_all, others = scratch("open"), scratch("others")
os.mkdir(open_to_all)
os.chmod(open_to_all, 0o777)
os.mkdir(others)
cases = [("others may write there", open_to_all), ("no absolute path", "run"), ("a file", store)]
if os.geteuid() == 0:
    os.chown(others, 65534, 65534)
    cases.append(("it belongs to another", others))
for what, path in cases:
    mount = Mount(store, environment={"EXPERTFS_RUN": path})
    check(f"{what}: there is no socket, and the log says why", mount.control("handout") == "address: -\n" and
          "no socket for clients" in mount.log_text() and path in mount.log_text(), mount.log_text())
    check("files are served", open(mount / "config.json", "rb").read() == open(f"{model}/config.json", "rb").read())
    mount.unmount()

print("-- in a container")
client = [sys.executable, os.path.join(ROOT, "tests/clients/ctypes_client.py"), program("libexpertfs.so.0", PLAIN)]
IN_CONTAINER = """
import errno, os, socket, sys
fd = os.open(sys.argv[1] + "/.expertfs/handout", os.O_WRONLY)
def write(text):
    try:
        return os.write(fd, text) and "none"
    except OSError as error:
        return errno.errorcode[error.errno]
bad = {text: write(text) for text in (b"x\\n", b"-1\\n", b"7", b"1 2\\n", b"9" * 40 + b"\\n", b"999999\\n")}
pair = socket.socketpair()
pair[0].settimeout(int(sys.argv[2]))
sent = write(b"%d\\n" % fd), write(b"%d\\n" % pair[1].fileno())
pair[1].close()
print(sorted(set(bad.values())), bad[b"999999\\n"], sent, pair[0].recv(1))
"""
mount = Mount(store)
if os.geteuid() == 0 and not run("unshare", "-Urmpn", "--fork", "true").returncode:
    inside = ["unshare", "-Urmpn", "--fork"]
    result = run(*inside, sys.executable, "-c", IN_CONTAINER, mount.path, PATIENCE)
    check("what is no number of a socket is refused or closed", result.stdout == "['EBADF', 'EINVAL'] EBADF ('none', 'none') b''\n" and
          mount.count("fuse_handout_clients") == 0, result)
    result = run(*inside, "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', base, *client, mount.path, model)
    check("a client without the socket", result.returncode == 0 and mount.count("fuse_handouts") > 0, result)
    result = run("unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', base, *client, mount.path, model)
    check("root with its privileges, outside of a user namespace, is told what it needs", result.returncode != 0 and
          "needs the folder of the socket" in result.stderr, result)
mount.unmount()
own = [shutil.copy(path, scratch(os.path.basename(path))) for path in client[1:]]  # where the other user can read them
result = as_nobody("""
    export EXPERTFS_RUN="$2.state/run"
    mkdir -m 700 "$EXPERTFS_RUN" && "$1" "$3" "$2" && before=$(grep ^fuse_handouts: "$2/.expertfs/stat") || exit 3
    unshare -Urmpn --fork sh -c 'mount -t tmpfs none "$0" && exec "$@"' "$EXPERTFS_RUN" "$4" "$5" "$6" "$2" "$7"
    status=$?
    [ "$before" != "$(grep ^fuse_handouts: "$2/.expertfs/stat")" ] || status=4
    fusermount3 -u "$2"
    exit $status
    """, store, "/usr/bin/python3", *own, model)
if result:
    check("the same of an ordinary user", result.returncode == 0, result)
done()
