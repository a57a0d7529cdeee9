# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the Python package: e2e, and the package of this tree with the library of the build."""
import os
import sys

sys.path[:0] = [os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e")]
from e2e import *

PACKAGE = os.path.join(ROOT, "python")
LIBRARY = program("libexpertfs.so.0", PLAIN)
ctypes.CDLL(LIBRARY)  # the package finds it by its soname
sys.path.insert(0, PACKAGE)
os.environ["PATH"] = f"{BUILD}:{os.environ['PATH']}"  # expertfs.mount() runs the program
import expertfs


def named(kind):
    return " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))


def raised(kind, function, *arguments, **more):
    """The exception of this type, or one of a tuple, that a call raises; None, with a note: none, or another one."""
    try:
        result = function(*arguments, **more)
    except kind as error:
        return error
    except Exception as error:  # pylint: disable=broad-except
        note(f"{type(error).__name__} in place of {named(kind)}: {error}")
        return None
    note(f"no {named(kind)}, but {result!r:.200}")
    return None


def fails_with(number, function, *arguments, **more):
    error = raised(OSError, function, *arguments, **more)
    if error is not None and error.errno != number:
        note(f"{error!r}")
    return error is not None and error.errno == number


def damaged_store(store, layer, expert):
    """A copy of a store with other bytes in the gate of an expert; None: they were not found."""
    path = scratch(f"damaged-{layer}-{expert}.efs")
    shutil.copy(store, path)
    with expertfs.open(store, budget="128M", state=False) as session:
        sample = bytes(session.request(layer, [expert]).wait()[0]["gate"].buffer[:4096])
    signs = bytes((sample[i + 1] & 0x80) | (sample[i] & 0x7f) for i in range(0, 128, 2))  # as the SM-chunk has them
    with open(path, "rb") as file:
        at = file.read().find(signs)
    if at < 0:
        return None
    flip(path, at + 3)
    return path


def python(code, *arguments, **more):
    """Runs a program that may import expertfs."""
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "LD_LIBRARY_PATH": os.path.dirname(LIBRARY)}
    return run(sys.executable, "-c", code, *arguments, env=environment, **more)


def environment_of_fake_device():
    """For programs whose graphics processor is the tests' driver, whose memory is memory of the process; skips without it."""
    fake = os.path.join(BUILD, "tests/engine/libcuda-fake.so")
    if SANITIZED:
        skip("a library with a sanitizer is not loaded by Python")
    if not shutil.which("cc") or not shutil.which("pkg-config"):
        skip("cc and pkg-config are needed")
    if not os.path.exists(fake):
        skip("no tests/engine/libcuda-fake.so: make tests-build")
    # The library may have been built without kernels: an image of this test replaces them, as in test_gpu.c.
    with open(scratch("image.c"), "w") as file:
        file.write("#include <stdint.h>\nconst unsigned char efs_gpu_image[] = {0x50, 0xed, 0x55, 0xba};\n"
                   "const uint64_t efs_gpu_image_bytes = sizeof(efs_gpu_image);\n")
    libraries = run("pkg-config", "--libs", "liburing", "libzstd", "liblz4", "libxxhash", "jansson", "numa").stdout.split()
    built = run("cc", "-shared", "-fPIC", "-o", scratch("libexpertfs.so.0"), scratch("image.c"), "-Wl,-z,muldefs", "-Wl,--whole-archive",
                f"{BUILD}/libexpertfs.a", "-Wl,--no-whole-archive", *libraries, "-lpthread", "-lm")
    check("a library with an image", built.returncode == 0, built.stderr)
    return {**os.environ, "EXPERTFS_CUDA": fake, "PYTHONPATH": PACKAGE, "LD_LIBRARY_PATH": SCRATCH}


TAKER = """
import ctypes
from expertfs import tensor as t

class Taken:  # the struct of a capsule, owned as by a library that took it
    used = b"used_dltensor_versioned"

    def __init__(self, capsule):
        get, name = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_SetName
        get.restype, get.argtypes, name.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p], [ctypes.py_object, ctypes.c_char_p]
        self.struct = t.Versioned.from_address(get(capsule, b"dltensor_versioned"))
        name(capsule, self.used)

    def __del__(self):
        t._free_managed(ctypes.addressof(self.struct))
"""
