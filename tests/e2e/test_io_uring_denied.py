# SPDX-License-Identifier: Apache-2.0
"""A seccomp filter refuses calls of io_uring: one of them, all but io_uring_setup(2), from the start or while a store
is served. Readers get the correct bytes, SIGTERM ends the daemon, and the refusal is reported once."""
import uring
from e2e import *

need_fuse()
model = make_model("model", "-F", "qwen3-moe", "-d", "256", "-i", "512", "-e", "8", "-l", "2", "--vocab", "500")
store = make_store(model)
source = contents(model)
if not deny_syscalls(errno.EPERM, uring.ENTER):
    skip("no filter of system calls")
try:
    uring.Ring().close()
except OSError as error:
    skip(f"no io_uring here: {error}")


def wrong(mount):
    return [name for name, data in source.items() if open(mount / name, "rb").read() != data]


for name, numbers, told in (("setup", [uring.SETUP], 0), ("enter", [uring.ENTER], 1), ("register", [uring.REGISTER], 0),
                            ("enter and register", [uring.ENTER, uring.REGISTER], 0)):
    for error in (errno.EPERM, errno.ENOSYS, errno.EAGAIN):
        print(f"-- {name} is refused with {errno.errorcode[error]}")
        prefix = deny_syscalls(error, *numbers)
        mount = Mount(store, "budget=64M,nopassthrough", prefix=prefix)
        bad = wrong(mount)
        check("the files are the files", not bad, bad)
        check("the store is read by pread(2)", mount.stat()["io_uring"] == "0" and mount.config()["io_uring"] == "no")
        wait_until(lambda: mount.log_text().count("io_uring is refused") >= told)  # a thread of the daemon writes its log
        mount.stop()
        check("that is said once", mount.log_text().count("io_uring is refused") == told, mount.log_text())
        result = run(*prefix, program("expertctl"), "doctor")
        said = re.findall(r"^slower +io_uring +(.*)$", result.stdout, re.M)
        check("doctor tells", said and os.strerror(error) in said[0], result.stdout)

print("-- the host of the library forbids it while a store is open")
LATER = """
import sys
sys.path[:0] = sys.argv[1].split(":")
import ctypes_client as api
from deny_syscalls import forbid
library = api.load(sys.argv[2])
client = api.opened(library, sys.argv[3], 64 << 20)
store = api.Files(library, client)
files = list(store.files())
def same():
    for number, path, size, kind in files:
        if not path.startswith("experts/") and store.read(number, size) != open(f"{sys.argv[4]}/{path}", "rb").read():
            sys.exit(f"{path} is different")
if sys.argv[6] == "before":
    same()
forbid([int(n) for n in sys.argv[5].split(",")], 1, threads=True)
same()
same()
library.efs_client_close(client)
"""
paths = ":".join(f"{ROOT}/tests/{folder}" for folder in ("clients", "e2e"))
for numbers in ([uring.ENTER], [uring.REGISTER], [uring.ENTER, uring.REGISTER, uring.SETUP]):
    for when in ("before", "at once"):
        result = run(sys.executable, "-c", LATER, paths, program("libexpertfs.so.0", PLAIN), store, model,
                     ",".join(map(str, numbers)), when)
        check(f"{numbers}, read {when}: the files are the files, and the store closes", result.returncode == 0, result)
done()
