# SPDX-License-Identifier: Apache-2.0
"""A budget beside the memory cgroup's limit: one that cannot be had is refused, with the limit and the way out, at the
mount and later; one above what is available is told; one that the store can never fill is taken."""
import errno
import json

from e2e import *
from e2e import _mounts

sys.path.insert(0, os.path.join(ROOT, "tools/bench"))
from cgroup import Cgroup

need_fuse()
if SANITIZED:
    skip("a sanitizer takes memory of its own")
try:
    group = Cgroup(160 << 20)
except OSError as error:
    skip(str(error))
small = make_store(make_model("small", "-F", "qwen3-moe", "-d", "128", "-i", "256", "-e", "4", "-l", "2", "--vocab", "500"))
large_model = make_model("large", "-F", "qwen3-moe", "-d", "1024", "-i", "1024", "-e", "16", "-l", "4", "--vocab", "1000")
large = make_store(large_model)
experts = [f"experts/L{layer:02}/E{number:03}.safetensors" for layer in range(4) for number in range(16)]
inside = group.prefix
folder = scratch("target")
os.mkdir(folder)


def refused(what, store, options, *says):
    try:
        result = run(*inside, program("expertfs"), "-f", store, folder, "-o", options, timeout=60)
    except subprocess.TimeoutExpired:
        run("umount", "-l", folder)
        return check(f"{what}: refused", False, "it was mounted")
    return check(f"{what}: refused", result.returncode == 1 and all(word in result.stderr for word in says), result)


try:
    print("-- at the mount")
    refused("a budget of 1 GiB in 160 MiB", large, "budget=1G", "a budget of 1024 MiB", "limit is 160 MiB", "budget=auto", "memory.max")
    refused("all of it taken ahead", small, "budget=1G,prealloc", "limit is 160 MiB", "budget=auto")
    mount = Mount(small, "budget=1G", prefix=inside)
    check("a store that can never fill it is served, and the log tells", "a budget of 1024 MiB is above" in mount.printed() and
          "160 MiB" in mount.printed(), mount.printed())
    mount.unmount()
    mount = Mount(large, f"budget={(160 << 20) - 65536}", prefix=inside)
    check("one above what is available is told", "are available" in mount.printed() and "160 MiB" in mount.printed(), mount.printed())
    mount.unmount()
    mount = Mount(large, "budget=100M,lease=read", prefix=inside)
    check("one that fits is taken without a word", "budget" not in mount.printed(), mount.printed())
    result = run(*inside, program("expertctl"), "estimate", "--json", "--ram=4G", large, timeout=60)
    said = json.loads(result.stdout or "{}")
    check("what would fit elsewhere is reckoned here", result.returncode == 0 and said["budget_bytes"] > 160 << 20 and
          said["skew"] == "assumed", result)
    print("-- while it serves")
    got, answer = mount.refusal("budget", "1G")
    check("1 GiB is refused", got == "ERANGE" and "limit is 160 MiB" in answer and "budget=auto" in answer, (got, answer))
    check("the budget is what it was", mount.count("budget_bytes") == 100 << 20)
    for _ in range(2):
        for name in experts:
            with open(mount / name, "rb") as file:
                file.read()
    check("nothing was killed for the limit", group.out_of_memory() == 0 and mount.daemon.poll() is None)
    mount.unmount()
finally:
    for left in list(_mounts):
        left.abandon()
    group.remove()
done()
