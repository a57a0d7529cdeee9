# SPDX-License-Identifier: Apache-2.0
"""Copies of whole mounts: du, cp, tar with holes, rsync; noexperts."""
from e2e import *

need_fuse()
model = make_model("model", "-F", "qwen3-moe", "-d", "256", "-i", "256", "-e", "8", "-l", "2", "--vocab", "1000")
store = make_store(model)
source_bytes = sum(os.path.getsize(os.path.join(model, name)) for name in files_below(model))


def disk_bytes(path):
    return int(run("du", "-s", "--block-size=1", path).stdout.split()[0])


def copied(what, *commands):
    """Runs the commands, which copy experts/ to the folder `copy`, and compares."""
    shutil.rmtree(scratch("copy"), ignore_errors=True)
    os.mkdir(scratch("copy"))
    results = [run(*command) for command in commands]
    same = run("diff", "-r", mount / "experts", scratch("copy/experts"))
    check(f"{what}: the same bytes", all(result.returncode == 0 for result in results) and same.returncode == 0,
          (results, same))


print("-- with experts/")
mount = Mount(store, "budget=64M")
experts = files_below(mount / "experts")
sizes = sum(os.stat(mount / f"experts/{name}").st_size for name in experts)
told = disk_bytes(mount.path)
check("du tells the size of the checkpoint, not that of experts/, too",
      source_bytes <= told < source_bytes + sizes / 4, (told, source_bytes, sizes))
check("no file has 0 blocks, which tar takes for a hole", all(os.stat(mount / f"experts/{name}").st_blocks == 1 for name in experts))
copied("cp -r", ("cp", "-r", mount / "experts", scratch("copy")))
copied("cp --sparse=always", ("cp", "-r", "--sparse=always", mount / "experts", scratch("copy")))
copied("tar --sparse", ("tar", "-C", mount.path, "-cSf", scratch("copy/tar"), "experts"),
       ("tar", "-C", scratch("copy"), "-xf", scratch("copy/tar")))
if shutil.which("rsync"):
    copied("rsync --sparse", ("rsync", "-a", "--sparse", mount / "experts", scratch("copy")))
else:
    note("left out: rsync is not installed")
mount.unmount()

print("-- noexperts")
mount = Mount(store, "budget=64M,noexperts")
check("the checkpoint's files, and .expertfs", sorted(os.listdir(mount.path)) == sorted([*os.listdir(model), ".expertfs"]),
      os.listdir(mount.path))
check("the configuration says so", mount.config()["view_hidden"] == "yes", mount.config())
shutil.rmtree(scratch("copy"))
result = run("cp", "-r", mount.path, scratch("copy"))
shutil.rmtree(scratch("copy/.expertfs"))
same = run("diff", "-r", model, scratch("copy"))
check("cp -r of the mount is the checkpoint", result.returncode == 0 and same.returncode == 0, (result, same))
wanted = mount.control("want")
check("want is there", isinstance(wanted, str))
mount.unmount()
done()
