# SPDX-License-Identifier: Apache-2.0
"""The store, its target or its source is on a filesystem that is odd (oddfs.c): close() fails where there is no fsync()."""
import errno

from e2e import *

need_fuse()
if os.geteuid():
    skip("oddfs is mounted by root")
odd_program = program("tests/e2e/oddfs")
model = make_model("model", "-F", "qwen3-moe", "-d", "256", "-i", "256", "-e", "8", "-l", "2", "--vocab", "500")
store = make_store(model)
os.environ["EXPERTFS_STATE"] = scratch("state")


class Odd:
    """oddfs over a folder of its own; with files copied to the folder first."""

    count = 0

    def __init__(self, *quirks, files=()):
        Odd.count += 1
        self.folder, self.path = scratch(f"below{Odd.count}"), scratch(f"odd{Odd.count}")
        os.mkdir(self.folder)
        os.mkdir(self.path)
        for file in files:
            (shutil.copytree if os.path.isdir(file) else shutil.copy)(file, f"{self.folder}/{os.path.basename(file)}")
        self.process = subprocess.Popen([odd_program, self.folder, self.path, *quirks])
        atexit.register(self.end)
        if not wait_until(lambda: is_mounted(self.path) or self.process.poll() is not None) or self.process.poll() is not None:
            skip("oddfs was not mounted")

    def __truediv__(self, name):
        return os.path.join(self.path, name)

    def names(self):
        return sorted(os.listdir(self.folder))

    def end(self):
        if is_mounted(self.path):
            run("umount", "-l", self.path)
        self.process.wait(30)
        atexit.unregister(self.end)


def refused(what, result, text, odd, names=()):
    check(f"{what}: fails and says why", result.returncode == 1 and text in result.stderr, (result.returncode, result.stderr))
    check(f"{what}: nothing is left behind", odd.names() == sorted(names), odd.names())


for error in (errno.EDQUOT, errno.EIO):
    print(f"-- close() fails with {errno.errorcode[error]}, and there is no fsync()")
    odd = Odd(f"flush={error}")
    why = os.strerror(error)
    for options in ((), ("--verify",)):
        refused(f"mkexpertfs {' '.join(options)}", run(program("mkexpertfs"), "-q", *options, model, odd / "out.efs"), why, odd)
    result = run(program("expertctl"), "unpack", store, odd / "files")
    refused("expertctl unpack", result, why, odd)
    shutil.copy(store, f"{odd.folder}/old.efs")
    refused("mkexpertfs --force, and the old store stays",
            run(program("mkexpertfs"), "-q", "--force", model, odd / "old.efs"), why, odd, ["old.efs"])
    result = run("sh", "-c", '"$0" info --json "$1" >"$2"', program("expertctl"), store, odd / "list.json")
    check("expertctl >FILE: fails and says why", result.returncode == 1 and why in result.stderr,
          (result.returncode, result.stderr))
    result = run(program("expertctl"), "profile", "--seconds=1", store, env={**os.environ, "EXPERTFS_STATE": odd / "state"})
    check("expertctl profile: fails and says why", result.returncode == 1 and why in result.stderr, (result.returncode, result.stderr))
    odd.end()

done()
