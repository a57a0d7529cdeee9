# SPDX-License-Identifier: Apache-2.0
"""With allow_other other users have access, but see and read no more than the store's mode permits: files, folders,
control files, xattrs and the socket. The daemon has dropped the capabilities that it does not need."""
import socket
import stat

from e2e import *
from socket_packets import ASK, packet

need_fuse()
if os.geteuid():
    skip("needs root, to become others")
NOBODY, GROUP, OTHER_GROUP = 65534, 12345, 23456
model, store = shared(NARROW)
store = shutil.copy(store, scratch("own.efs"))


def actions(mount):
    """name -> the attempt; its result is no errno where it is permitted."""
    def read(name):
        return lambda: len(open(mount / name, "rb").read(16))
    return {
        "read a file": read("config.json"), "read a tensor file": read(large), "read an expert": read(expert),
        "read a control file": read(".expertfs/config"), "read where the socket is": read(".expertfs/handout"),
        "list the mount": lambda: len(os.listdir(mount.path)), "list experts": lambda: len(os.listdir(mount / "experts")),
        "look at a file": lambda: os.stat(mount / "config.json").st_size, "go there": lambda: os.chdir(mount / "experts"),
        "look at what was looked at before": lambda: os.stat(mount / expert).st_size,
        "read an xattr": lambda: os.getxattr(mount / expert, "user.expertfs.state"),
    }


def connect(address):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(PATIENCE)
        client.connect(address)
        client.send(packet(ASK, [(99, 1, 1)]))  # there is no such expert
        return "nothing" if not client.recv(4096) else "answered"


# The root of a mount can be accessed, and its xattrs are those of the mount: reads of them are checked as for any file.
large = max(files_below(model), key=lambda name: os.path.getsize(f"{model}/{name}"))
expert = "experts/L01/E002.safetensors"
for mode, in_group, others in ((0o600, False, False), (0o640, True, False), (0o644, True, True), (0o604, False, True),
                               (0o444, True, True), (0o044, False, False), (0o400, False, False)):
    print(f"-- a store {mode:04o}")
    os.chown(store, 0, GROUP)
    os.chmod(store, mode)
    mount = Mount(store, "allow_other")
    bits = mode & 0o044 if mode & 0o400 else 0
    shown = stat.S_IMODE(os.stat(mount / "config.json").st_mode), stat.S_IMODE(os.stat(mount / "experts").st_mode)
    wanted = 0o400 | bits
    check("files show it", shown == (wanted, wanted | wanted >> 2), [oct(n) for n in shown])
    check("want shows it", stat.S_IMODE(os.stat(mount / ".expertfs/want").st_mode) == wanted | 0o200)
    check("they are the mounter's and the store's group's", os.stat(mount / large)[4:6] == (0, GROUP))
    open(mount / expert, "rb").read(10)
    address = mount.fields("handout")["address"]
    want, budget = mount / ".expertfs/want", os.getxattr(mount.path, "user.expertfs.budget")
    for who, uid, groups, allowed in (("others", NOBODY, [OTHER_GROUP], others),
                                      ("the store's group", NOBODY, [GROUP], in_group),
                                      ("who has the group among others", NOBODY, [OTHER_GROUP, GROUP], in_group)):
        wrong = []
        for what, action in actions(mount).items():
            got = as_user(uid, groups, action)
            if allowed == (got in errno.errorcode.values()) or not allowed and got != "EACCES":
                wrong.append((what, got))
        check(f"{who} {'may' if allowed else 'may not'}", not wrong, wrong)
        got = as_user(uid, groups, lambda: connect(address))
        check(f"{who}: the socket {'serves' if allowed else 'does not serve'} them", (got == "answered") == allowed, got)
        for what, action in (("tune", lambda: os.setxattr(mount.path, "user.expertfs.budget", b"200M")),
                             ("reset", lambda: os.removexattr(mount.path, "user.expertfs.budget")),
                             ("ask", lambda: open(want, "w")), ("append to want", lambda: os.open(want, os.O_WRONLY | os.O_APPEND)),
                             ("cut want", lambda: os.truncate(want, 0))):
            got = as_user(uid, groups, action)
            check(f"{who} may not {what}", got in ("EPERM", "EACCES"), got)
        got = as_user(uid, groups, lambda: os.access(want, os.W_OK))
        check(f"{who}: access(2) says so", got == "False", got)
    check("nothing has changed by it", os.getxattr(mount.path, "user.expertfs.budget") == budget)
    got = [as_user(0, [0], action) for action in (*actions(mount).values(), lambda: connect(address))]
    check("who mounted may", not set(got) & set(errno.errorcode.values()), got)
    os.setxattr(mount.path, "user.expertfs.budget", b"300M")
    open(mount / ".expertfs/want", "w").write("1: 2\n")
    got = error_of(open, mount / "config.json", "r+b")
    check("writing is refused as ever", got == "EROFS", got)
    mount.unmount()

print("-- hints and pins")
os.chmod(store, 0o644)
mount = Mount(store, "allow_other")
for who, uid, gid in (("root", 0, 0), ("others", NOBODY, OTHER_GROUP), ("the store's group", NOBODY, GROUP)):
    allowed = uid == 0
    for what, action in (("hint", lambda: open(mount / ".expertfs/hint", "w").write("1: 2\n")),
                         ("pin", lambda: os.setxattr(mount / expert, "user.expertfs.pin", b"C"))):
        got = as_user(uid, [gid], action)
        check(f"{who} {'may' if allowed else 'may not'} {what}", allowed == (got not in ("EACCES", "EPERM")), got)

print("-- what the daemon has left")
KEPT = sum(1 << number for number in (1, 2, 14, 21))  # DAC_OVERRIDE, DAC_READ_SEARCH, IPC_LOCK, SYS_ADMIN
have = {}
for task in os.listdir(f"/proc/{mount.daemon.pid}/task"):
    with open(f"/proc/{mount.daemon.pid}/task/{task}/status") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                have[name] = have.get(name, 0) | int(value, 16)
            elif name == "NoNewPrivs":
                have[name] = min(have.get(name, 1), int(value))
check("none of its threads has other capabilities", not (have["CapPrm"] | have["CapEff"] | have["CapBnd"]) & ~KEPT and
      not have["CapInh"] | have["CapAmb"], {name: hex(value) for name, value in have.items()})
check("nor can they gain any", have["NoNewPrivs"] == 1)
mount.unmount()

print("-- without allow_other, and an access control list")
os.chmod(store, 0o600)
mount = Mount(store)
check("the mode is shown", stat.S_IMODE(os.stat(mount / "config.json").st_mode) == 0o400)
check("others cannot even look", as_user(NOBODY, [NOBODY], lambda: os.stat(mount / "config.json")) == "EACCES")
check("nor connect", as_user(NOBODY, [NOBODY], lambda: connect(mount.fields("handout")["address"])) == "EACCES")
mount.unmount()
os.chmod(store, 0o644)
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, bits, who) for tag, bits, who in (
    (1, 6, 0xFFFFFFFF), (2, 0, NOBODY), (4, 4, 0xFFFFFFFF), (16, 4, 0xFFFFFFFF), (32, 4, 0xFFFFFFFF)))
try:
    os.setxattr(store, "system.posix_acl_access", acl)  # denies a user that the mode permits
except OSError as error:
    note(f"left out: no access control lists here ({error.strerror})")
else:
    mount = Mount(store, "allow_other")
    check("whom a list may shut out is shut out", as_user(NOBODY, [OTHER_GROUP], actions(mount)["read a file"]) == "EACCES")
    mount.unmount()

print("-- mounted by a user")
library = shutil.copy(program("libexpertfs.so.0", PLAIN), scratch("libexpertfs.so.0"))
os.chmod(store, 0o600)
os.chown(store, NOBODY, GROUP)
with open(scratch("fuse.conf"), "w") as file:
    file.write("user_allow_other\n")
with open(scratch("bind.sh"), "w") as file:
    file.write('mount --bind "$1" /etc/fuse.conf && shift && exec "$@"')
result = as_nobody("""
    "$1" -o allow_other "$3" "$2" || exit 1
    stat -c "%a %u %g" "$2/config.json" "$2/experts"
    grep -E "^(serving_path|passthrough_reason):" "$2/.expertfs/config"
    cmp "$2/$5" "$6/$5" && cat "$2/$4" >/dev/null && echo same
    setfattr -n user.expertfs.budget -v 300M "$2" && getfattr --only-values -n user.expertfs.budget "$2" && echo
    setfattr -n user.expertfs.pin -v C "$2/$4" && echo pinned
    echo "1: 2" >"$2/.expertfs/want" && echo asked
    "$7" "$8" "$9" "$2" "$6" | sed "s/.* tensors, //"
    [ "$(sed -n "s/^fuse_handouts: //p" "$2/.expertfs/stat")" -ge 4 ] && echo "by the socket"
    stat -c %a "$(sed -n "s/^address: //p" "$2/.expertfs/handout")"
    (: >>"$2/config.json") 2>/dev/null || echo unwritten
    pid=$(sed -n "s/^pid: //p" "$2/.expertfs/config")
    kill "$pid"
    for i in $(seq 12000); do [ -d "/proc/$pid" ] || break; sleep 0.02; done # it saves its state below the scratch folder
    grep -q " $2 " /proc/mounts || echo ended
    """, store, expert, large, model, sys.executable, os.path.join(ROOT, "tests/clients/ctypes_client.py"), library,
    before=("sh", scratch("bind.sh"), scratch("fuse.conf")))
if result is not None:
    lines = [line for line in result.stdout.splitlines() if not line.startswith("serving_path: ")]
    check("his mount shows the store's mode, serves, and lets him tune; SIGTERM ends it", lines == [
          f"600 {NOBODY} {GROUP}", f"700 {NOBODY} {GROUP}", "passthrough_reason: the daemon lacks the privilege CAP_SYS_ADMIN",
          "same", "314572800", "pinned", "asked", "0 different", "by the socket", "666", "unwritten", "ended"], result)
    check("without passthrough", "serving_path: direct_io" in result.stdout or "serving_path: page_cache" in result.stdout)

print("-- a user who cannot mount is told so before the disk is measured")
result = as_nobody("""
    mkdir -p "$2/mnt"
    EXPERTFS_STATE="$2/measured" "$1" "$3" "$2/mnt" 2>&1; echo "exit $?, $(ls "$2")"
    """, store, device="600")
if result is not None:
    check("/dev/fuse is not for users", result.stdout.startswith("expertfs: ") and "chmod 666 /dev/fuse" in result.stdout and
          result.stdout.endswith("exit 1, mnt\n"), result)
os.makedirs(scratch("of root"))
result = as_nobody("""
    EXPERTFS_STATE="$2/measured" "$1" "$3" "$4" 2>&1; echo "exit $?, $(ls "$2")"
    """, store, scratch("of root"))
if result is not None:
    check("the folder is another's", "of root: you may not write there" in result.stdout and
          result.stdout.endswith("exit 1, mnt\n"), result)
done()
