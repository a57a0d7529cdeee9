# SPDX-License-Identifier: Apache-2.0
"""Special files where a regular file is expected: FIFOs, sockets, devices and directories are refused at once, with a
message that names them and exit status 1; the same for sources that the kernel generates on read, whose size is
meaningless."""
import glob
import socket

from e2e import *

model, store = shared(NARROW)
folder = scratch("folder")
os.mkdir(folder)
fifo, listening, link = scratch("fifo"), scratch("socket"), scratch("link")
os.mkfifo(fifo)
os.symlink(fifo, link)
server = socket.socket(socket.AF_UNIX)
server.bind(listening)
kinds = [("a FIFO", fifo), ("a FIFO", link), ("a socket", listening), ("a character device", "/dev/zero"),
         ("a directory", folder)]
if os.geteuid() == 0:
    os.mknod(scratch("block"), 0o600 | 0o060000, os.makedev(7, 255))  # no such device: opening it would fail
    kinds.append(("a block device", scratch("block")))


def refused(what, says, *command, status=1):
    """Checks that the program ends on its own, at once, with a message."""
    try:
        result = run(*command)
    except subprocess.TimeoutExpired:
        check(f"{what}: refused", False, "it hangs")
        return
    check(f"{what}: refused", result.returncode == status and says in result.stderr + result.stdout,
          (result.returncode, result.stdout[-500:], result.stderr))


ctl, pack, mountit = program("expertctl"), program("mkexpertfs"), program("expertfs")
for kind, path in kinds:
    print(f"-- {kind}: {os.path.basename(path)}")
    says = f"not a regular file but {kind}"
    for command in ("verify", "profile"):
        refused(f"expertctl {command}", says, ctl, command, path)
    refused("expertctl info", "holds no files" if kind == "a directory" else says, ctl, "info", path)
    refused("expertctl unpack", says, ctl, "unpack", path, scratch("unpacked"))
    refused("expertfs", says, mountit, path, folder)
    refused("expertfs -f", says, mountit, "-f", path, folder)
    refused("moe-replay, as trace", says, program("moe-replay"), "--store", store, path)
    if kind != "a directory":
        refused("expertctl doctor", says, ctl, "doctor", path)
        refused("mkexpertfs, as source", "neither a file nor a directory", pack, path, scratch("out.efs"))
        refused("mkexpertfs -f, as store", "is not a regular file" if not os.path.islink(path) else "", pack, "-f", model, path,
                status=0 if os.path.islink(path) else 1)
        if path == link:  # the link is replaced, not its target
            os.remove(link)
            os.symlink(fifo, link)
        inside = scratch("inside")
        os.mkdir(inside)
        os.symlink(path, f"{inside}/model.safetensors")
        refused("mkexpertfs, inside the source", "model.safetensors: neither a file nor a directory", pack, inside,
                scratch("out.efs"))
        refused("expertfs, as mountpoint", "not a directory", mountit, store, path)
        shutil.rmtree(inside)
check("nothing was made", not any(os.path.exists(scratch(name)) for name in ("out.efs", "unpacked")))
check("what a link led to is still there", all(os.path.lexists(path) for _, path in kinds))

def has_this_process(path):
    """Whether a cgroup has this process: then its list is not empty, and the cgroup is not removed by another test."""
    try:
        with open(path) as file:
            return str(os.getpid()) in file.read().split()
    except OSError:
        return False


print("-- files that the kernel makes as they are read")
made = [("/proc/self/status", "procfs"), ("/proc/filesystems", "procfs"), ("/sys/kernel/uevent_seqnum", "sysfs"),
        ("/sys/kernel/notes", "sysfs")]  # with a reported size of 0; of a page; of its contents
made += [(path, "of another kind") for path in glob.glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True) if has_this_process(path)][:1]
for path, kind in made:
    if not os.access(path, os.R_OK):
        note(f"left out: there is no {path}")
        continue
    refused(f"mkexpertfs {path}, {kind}", f"{path}: made by the kernel" if kind != "of another kind" else f"{path}: says that it has 0 bytes",
            pack, path, scratch("out.efs"))
    inside = scratch("inside")
    os.mkdir(inside)
    shutil.copy(f"{model}/config.json", inside)
    os.symlink(path, f"{inside}/notes.txt")
    refused(f"mkexpertfs, a link to {path} inside the source", "inside/notes.txt: ", pack, inside, scratch("out.efs"))
    refused(f"mkexpertfs --reclaim, a link to {path} inside the source", "notes.txt: ", pack, "--reclaim", inside,
            scratch("out.efs"))
    shutil.rmtree(inside)
check("nothing was made of them", not os.path.exists(scratch("out.efs")))
empty = scratch("empty.bin")
open(empty, "w").close()
result = run(pack, "--quiet", "--any", "--force", empty, scratch("out.efs"))
check("an ordinary empty file is packed", result.returncode == 0 and os.path.exists(scratch("out.efs")), result.stderr)

odd = scratch("odd")
os.makedirs(f"{odd}/.expertfs")
for name in ("config", "version", "want", "handout", "hint", "predict"):
    os.mkfifo(f"{odd}/.expertfs/{name}")
refused("expertctl doctor, a folder that looks like a mount", "no expertfs mounted there", ctl, "doctor", odd)
server.close()
done()
