# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of expertfs-gpu(7) on a driver without a device: the one in C, compiled without a warning, and the
one in Python, whose tensors must equal the packed ones; checks the page's statements on budgets against the library."""
import os
import re
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from e2e import *

os.environ["EXPERTFS_STATE"] = scratch("state")
if not shutil.which("cc") or not shutil.which("pkg-config"):
    skip("cc and pkg-config are needed")
page = open(os.path.join(ROOT, "man/expertfs-gpu.7")).read()
examples = re.search(r"^\.Sh EXAMPLES\n(.*?)^\.Sh", page, re.M | re.S).group(1)
for name, example in zip(("example.c", "example.py"), re.findall(r"^\.Bd -literal[^\n]*\n(.*?)^\.Ed", examples, re.M | re.S)):
    with open(scratch(name), "w") as file:
        file.write(example.replace("\\e", "\\").replace("\\-", "-").replace("\\&", ""))
# The library may have been built without kernels: an image of this test replaces them, as in test_gpu.c.
with open(scratch("image.c"), "w") as file:
    file.write("#include <stdint.h>\nconst unsigned char efs_gpu_image[] = {0x50, 0xed, 0x55, 0xba};\n"
               "const uint64_t efs_gpu_image_bytes = sizeof(efs_gpu_image);\n")
libraries = run("pkg-config", "--libs", "liburing", "libzstd", "liblz4", "libxxhash", "jansson", "numa").stdout.split()
built = run("cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/engine", scratch("example.c"), scratch("image.c"),
            f"{BUILD}/libexpertfs.a", *libraries, "-lpthread", "-lm", "-o", scratch("example"))
check("the example compiles without a warning", built.returncode == 0, built.stdout + built.stderr)

model = make_model("model", "--preset=tiny-qwen3-moe")
store = make_store(model)
environment = {**os.environ, "EXPERTFS_CUDA": os.path.join(BUILD, "tests/engine/libcuda-fake.so")}
plain = sum(len(data) for name, data in tensors_of(model).items() if re.search(r"layers\.0\.mlp\.experts\.[257]\.", name))


def example_on(path):
    result = run(scratch("example"), path, "2", "5", "7", env=environment)
    lines = result.stdout.splitlines()
    check("it runs", result.returncode == 0 and len(lines) == 4, result)
    found = {int(re.match(r"model\.layers\.0\.mlp\.experts\.(\d+)\.\w+\.weight: \d+ bytes at 0x[0-9a-f]+$", line).group(1))
             for line in lines[:3]}
    link, all_of_it = map(int, re.match(r"(\d+) bytes by the link, (\d+) plain$", lines[3]).groups())
    check("it tells each expert, and all of their bytes", found == {2, 5, 7} and all_of_it == plain, result.stdout)
    return link


check("chunks go over the link", example_on(store) < 0.8 * plain)
if os.path.exists("/dev/fuse"):
    mount = Mount(store, "budget=128M")
    example_on(mount.path)
    mount.unmount()
else:
    note("no /dev/fuse: the example was not run on a mount")
wrong = run(scratch("example"), store, "99", env=environment)
check("an expert that is not there", wrong.returncode == 1 and "99" in wrong.stderr, wrong)
none = run(scratch("example"), store, "1", env={**environment, "EXPERTFS_CUDA": "off"})
check("no device", none.returncode == 1 and "no graphics processor" in none.stderr, none)

# In Python, with a substitute for PyTorch: the fake device's memory is host memory, so numpy can access it
TORCH = """
import ctypes, sys, types
import numpy

class Stream:
    cuda_stream = 0

def from_dlpack(view):  # BF16, which numpy does not know, as 16 bits
    code = view.tensor.dtype
    if code == 7:
        assert example["NUMBERS"][7] == (4, 16)
        example["NUMBERS"][7] = (1, 16)
    array = numpy.from_dlpack(view)
    if code == 7:
        example["NUMBERS"][7] = (4, 16)
    return array

torch = types.ModuleType("torch")
torch.from_dlpack, torch.cuda = from_dlpack, types.SimpleNamespace(current_stream=lambda device: Stream())
sys.modules["torch"] = torch
text = open(sys.argv[1]).read()
assert "CUDA = 2" in text and text.endswith("\\nmain()\\n")
example = {"__name__": "example"}
exec(compile(text.replace("CUDA = 2", "CUDA = 1").removesuffix("main()\\n"), sys.argv[1], "exec"), example)
"""
ALL = TORCH + """
from ctypes import byref, c_uint32, c_void_p
efs, store, out = example["efs"], sys.argv[2], sys.argv[3]

class Stats(ctypes.Structure):
    _fields_ = [("counters", ctypes.c_uint64 * 11), ("held", ctypes.c_uint64), ("others", ctypes.c_uint64 * 16)]

def held():
    stats = Stats()
    assert efs.efs_client_gpu_stats(client.handle, byref(stats)) == 0
    return stats.held

client = example["Client"](store, 0, 48 << 20)
kept, all_of_it = None, {}
for number, tensors in client.experts("", 0, [2, 5, 7]):
    assert held() >= 1
    all_of_it.update({name: tensor.copy() for name, tensor in tensors.items()})
    kept = kept if kept is not None else tensors.popitem()  # outlives its request
del tensors
assert held() == 1 and len(example["lent"]) == 1, (held(), example["lent"])
assert (all_of_it[kept[0]] == kept[1]).all()
kept = None
assert held() == 0 and not example["lent"], (held(), example["lent"])

# a capsule that nobody takes
class Taken:
    pass
torch.from_dlpack = lambda view: view.__dlpack__()
capsules = [tensors for _, tensors in client.experts("", 1, [0])]
assert held() == 1 and len(example["lent"]) == len(capsules[0])
del capsules
assert held() == 0 and not example["lent"]
try:
    list(client.experts("", 0, [99]))
    raise SystemExit("an expert that is not there has come")
except OSError as error:
    assert "99" in str(error), error
numpy.savez(out, **all_of_it)
"""
try:
    import numpy
except ImportError:
    note("left out: no numpy: the example in Python")
    done()
built = run("cc", "-shared", "-fPIC", "-o", scratch("libexpertfs.so.0"), scratch("image.c"), "-Wl,-z,muldefs", "-Wl,--whole-archive",
            f"{BUILD}/libexpertfs.a", "-Wl,--no-whole-archive", *libraries, "-lpthread", "-lm")
check("a library with an image", built.returncode == 0, built.stderr)
environment["LD_LIBRARY_PATH"] = os.path.dirname(scratch("libexpertfs.so.0"))
for dtype in ("bf16", "f16"):
    model = make_model(dtype, "--preset=tiny-qwen3-moe", "--dtype", dtype)
    result = run(sys.executable, "-c", ALL, scratch("example.py"), make_store(model), scratch("out.npz"), env=environment)
    if not check(f"{dtype}: the example in Python, tensors that outlive requests, capsules that nobody takes", result.returncode == 0,
                 result.stdout + result.stderr):
        continue
    want = {name: data for name, data in tensors_of(model).items() if re.search(r"layers\.0\.mlp\.experts\.[257]\.", name)}
    with numpy.load(scratch("out.npz")) as got:
        check(f"{dtype}: the bytes that were packed", {name: got[name].tobytes() for name in got.files} == want)
        check(f"{dtype}: shapes and numbers", all(len(got[name].shape) == 2 and got[name].dtype == {"bf16": "u2", "f16": "f2"}[dtype]
                                                  for name in got.files), [(a.shape, a.dtype) for a in got.values()])
check("the page tells the least budget", "less than 33 MiB" in page)
done()
