# SPDX-License-Identifier: Apache-2.0
"""Runs the example in C of expertfs-gpu(7), compiled without a warning, on a driver without a device; checks the page's
statements on budgets against the library. python/test_device.py runs the one in Python."""
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
example = re.search(r"^\.Bd -literal[^\n]*\n(.*?)^\.Ed", examples, re.M | re.S).group(1)
with open(scratch("example.c"), "w") as file:
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

check("the page tells the least budget", "less than 33 MiB" in page)
done()
