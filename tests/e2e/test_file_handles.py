# SPDX-License-Identifier: Apache-2.0
"""File handles, as NFS servers keep them: a handle of a store opens the same file of that store, also after a remount,
and gives ESTALE where another store is mounted. The node's number alone would open a file of the other store."""
from e2e import *

HANDLE_BYTES = 128
AT_EMPTY_PATH, AT_FDCWD = 0x1000, -100
libc = ctypes.CDLL(None, use_errno=True)


class FileHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * HANDLE_BYTES)]


def handle_of(path):
    handle, mount_id = FileHandle(bytes=HANDLE_BYTES), ctypes.c_int()
    if libc.name_to_handle_at(AT_FDCWD, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount_id), 0):
        raise OSError(ctypes.get_errno(), path)
    return handle


def open_handle(mount, handle, flags=os.O_RDONLY):
    at = os.open(mount.path, os.O_RDONLY | os.O_DIRECTORY)
    fd = libc.open_by_handle_at(at, ctypes.byref(handle), flags)
    error = ctypes.get_errno()
    os.close(at)
    if fd < 0:
        raise OSError(error, os.strerror(error))
    return fd


def opened(mount, handle):
    """The first bytes of the handle's file, or the names in its folder, or the name of the error."""
    try:
        fd = open_handle(mount, handle)
    except OSError as error:
        return errno.errorcode[error.errno]
    try:
        return os.pread(fd, 1 << 20, 0)
    except IsADirectoryError:
        return sorted(os.listdir(fd))
    finally:
        os.close(fd)


def content(path):
    if os.path.isdir(path):
        return sorted(os.listdir(path))
    with open(path, "rb") as file:
        return file.read(1 << 20)


need_fuse()
if os.geteuid():
    skip("file handles are opened by root")
first = make_model("first", *MIXTRAL)
stores = {"first": make_store(first)}
# The same names and sizes, other weights: a new version of the model.
stores["other weights"] = make_store(make_model("weights", *MIXTRAL, "--seed", "7"))
# One more name, which sorts first: each number is that of another file.
os.link(f"{first}/config.json", f"{first}/added.json")
os.rename(f"{first}", scratch("more"))
stores["a file more"] = make_store(scratch("more"))
os.unlink(scratch("more/added.json"))
# The same bytes under other names.
os.rename(scratch("more/extra/deeper"), scratch("more/extra/moved"))
stores["a folder renamed"] = make_store(scratch("more"))
# So few files that most numbers are unused.
os.mkdir(scratch("few"))
shutil.copy(scratch("more/config.json"), scratch("few"))
stores["few files"] = make_store(scratch("few"), "--any")

mount = Mount(stores["first"])
names = ["config.json", "extra/odd.bin", "extra", "experts", "experts/L00", "experts/L01/E002.safetensors",
         *(name for name in os.listdir(mount.path) if name.endswith(".safetensors"))]
try:
    handles = {name: handle_of(mount / name) for name in names}
except OSError as error:
    skip(f"the kernel gives no handles: {error}")
want = {name: content(mount / name) for name in names}
control, root = handle_of(mount / ".expertfs/version"), handle_of(mount.path)
check("a handle opens its file", all(opened(mount, handles[name]) == want[name] for name in names))
mount.unmount()



def check_stale(what):
    found = {name: opened(mount, handle) for name, handle in {**handles, ".expertfs/version": control}.items()}
    check(what, all(value == "ESTALE" for value in found.values()), {
        name: value[:20] for name, value in found.items() if value != "ESTALE"})


for what in list(stores)[1:]:
    mount = Mount(stores[what])
    check_stale(f"{what}: handles of the first store give ESTALE")
    present = [name for name in names if os.path.exists(mount / name)]
    good = all(opened(mount, handle_of(mount / name)) == content(mount / name) for name in present)
    check(f"{what}: its own handles open", good)
    check_stale(f"{what}: the same where the kernel has the nodes of these numbers")
    mount.unmount()

mount = Mount(stores["first"], "nopassthrough,budget=96M")
found = {name: opened(mount, handle) for name, handle in handles.items()}
check("the same store again: a handle opens its file, which the kernel has not seen yet", found == want,
      {name: value[:20] for name, value in found.items() if value != want[name]})
check("the root's handle opens the root", opened(mount, root) == sorted(os.listdir(mount.path)))
folder = open_handle(mount, handles["experts/L00"])
check("the way up from a folder leads to the root", os.path.samestat(os.stat("../..", dir_fd=folder), os.stat(mount.path)))
os.close(folder)
mount.unmount()
done()
