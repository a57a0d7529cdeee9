# SPDX-License-Identifier: Apache-2.0
"""No space in the tmpfs of a daemon's memory: readers, mappings and clients of the socket get the correct bytes or an
error, the daemon survives, and with space again all works as before."""
from e2e import *
from socket_packets import AS_CODED, ASK, DROP, WITH_LAYOUT, Client

need_fuse()
if SANITIZED:
    skip("a sanitizer's library has to be loaded first")
preload = program("tests/e2e/libsized-tmpfs.so")
EXPERTS = 8
_, store = shared(WIDE)
want = experts_without_passthrough(store)
with open(store, "rb") as file:
    stored = file.read()
libc = ctypes.CDLL(None, use_errno=True)
if not hasattr(libc, "fspick"):
    skip("a C library without fspick(2)")
mount = Mount(store, "budget=128M", environment={"LD_PRELOAD": preload, "EFS_TEST_TMPFS": "1t"})


def roots():
    """Paths of the daemon's descriptors of its tmpfs."""
    folder = f"/proc/{mount.daemon.pid}/fd"
    return [f"{folder}/{n}" for n in os.listdir(folder) if os.readlink(f"{folder}/{n}") == "/" and
            os.statvfs(f"{folder}/{n}").f_blocks << 12 == 1 << 40]


if not mount.passthrough() or not roots():
    mount.unmount()
    skip("the daemon has no tmpfs of its own here")
root = roots()[0]


def leave(room):
    """Leaves `room` bytes of the tmpfs free; None: all."""
    now = os.statvfs(root)
    size = 1 << 40 if room is None else (now.f_blocks - now.f_bfree) * now.f_bsize + room
    context = libc.fspick(-100, root.encode(), 1)
    failed = context < 0 or libc.fsconfig(context, 1, b"size", str(max(size, 1)).encode(), 0) or libc.fsconfig(context, 7, None, None, 0)
    check(f"{'all' if room is None else f'{room >> 10} KiB'} free of the tmpfs", not failed, errno.errorcode.get(ctypes.get_errno()))
    os.close(context)


def read_all(what):
    """Whether all experts were read; checks that no other error occurs and no byte is wrong."""
    right, refused, wrong = read_pieces(mount, want, 1 << 30, (errno.ENOMEM, errno.EIO))
    check(f"{what}: {right} of {len(want)} experts read, no byte is wrong", not wrong, wrong)
    return not refused


def ask_all(what):
    """The same for coded experts of a client."""
    client, good, wrong = Client(mount), 0, []
    for layer in range(2):
        client.send(ASK, [(n, 1, n | WITH_LAYOUT) for n in range(EXPERTS)], layer=layer, form=AS_CODED)
        for _ in range(EXPERTS):
            tag, error, layout, places = client.coded()
            if error:
                wrong += [(tag, error)] if error not in (-errno.ENOMEM, -errno.EIO) else []
                continue
            tensors, header = client.chunks(layout, places)
            if not want[f"experts/L{layer:02}/E{tag:03}.safetensors"].startswith(header) or not all(
                    e in stored and sm in stored for tensor in tensors for _, _, e, sm in tensor):
                wrong.append(tag)
            good += 1
            client.send(DROP, [(0, 0, tag)])
    client.close()
    check(f"{what}: {good} of {2 * EXPERTS} came coded, no byte is wrong", not wrong, wrong)
    return good


for room in (0, 1 << 20, 9 << 20, 20 << 20):
    print(f"-- {room >> 10} KiB")
    leave(room)
    for what in ("first", "again"):
        read_all(what)
        ask_all(what)
    os.setxattr(mount.path, "user.expertfs.budget", b"64M")
    read_all("a smaller budget")
    os.setxattr(mount.path, "user.expertfs.budget", b"128M")
    if not check("the daemon lives", mount.daemon.poll() is None, mount.log_text()[-2000:]):
        break
    leave(None)
    check("with room all is read", read_all("room") and ask_all("room") == 2 * EXPERTS)
    with open(mount / "experts/L00/E000.safetensors", "rb") as file:
        check("and leased", wait_until(lambda: mount.count("leased_experts") == 1), mount.stat())
note(f"the log: {len(mount.log_text().splitlines())} lines")
mount.unmount()
done()
