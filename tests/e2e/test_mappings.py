# SPDX-License-Identifier: Apache-2.0
"""A mapping that outlives its file: a program maps an expert, closes it, and reads on while the mount gives the memory to
others. The kernel has given the lease back by then; the bytes under the mapping must not change all the same."""
import ctypes
import os

from e2e import *

need_fuse()
model = make_model("model", "-F", "qwen3-moe", "-d", "512", "-i", "1024", "-e", "8", "-l", "4", "--vocab", "500")
store = make_store(model)

mount = Mount(store)
if not mount.passthrough():
    skip(f"no passthrough here: {mount.config()['passthrough_reason']}")
experts = [f"experts/{name}" for name in files_below(mount / "experts") if "/" in name]
want = {name: open(mount / name, "rb").read() for name in experts}
mount.unmount()

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def map_and_close(name):
    """Mapped by the system call itself: Python's mmap keeps a descriptor of its own."""
    fd = os.open(mount / name, os.O_RDONLY)
    address = libc.mmap(None, len(want[name]), 1, 1, fd, 0)
    os.close(fd)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    return address


def bytes_at(name, address):
    return ctypes.string_at(address, len(want[name]))


for options in ("budget=64M", "budget=64M,plan=F=100,policy=lru"):
    print(f"-- {options}")
    mount = Mount(store, options)
    held = {name: map_and_close(name) for name in experts[:3]}
    check("no lease is left", wait_until(lambda: mount.count("leased_experts") == 0))
    wrong = [name for turn in range(2) for name in experts[3:] if open(mount / name, "rb").read() != want[name]]
    check("others are right beside them", not wrong, wrong)
    check("others came and went", mount.count("evictions_f") > 0, mount.stat())
    check("mappings keep their bytes", all(bytes_at(name, at) == want[name] for name, at in held.items()))
    for name, address in held.items():
        libc.munmap(address, len(want[name]))
    wrong = [name for name in experts if open(mount / name, "rb").read() != want[name]]
    check("all are right afterwards", not wrong, wrong)
    mount.unmount()
done()
