# SPDX-License-Identifier: Apache-2.0
"""The store is on a disk that is truncated, hangs, or is gone: readers of every kind get correct bytes or an error,
resident data is still served, the mount reports the failure and ends; and when the disk recovers, so does the mount.
The disk is another mount, of a checkpoint with the store in it, or the store's file is truncated."""
import contextlib

import reader_processes
from e2e import *

need_fuse()
model = make_model("model", "-F", "qwen3-moe", "-d", "256", "-i", "1024", "-e", "16", "-l", "5", "--vocab", "500")  # over 64 MiB
store = make_store(model)
folder, disk = scratch("copies"), scratch("disk")
os.mkdir(folder)
os.mkdir(disk)
experts = experts_without_passthrough(store)
disk_model = make_model("disk_model", "-F", "mixtral", "-d", "128", "-i", "256", "-e", "4", "-l", "2", "--vocab", "500")
shutil.copy(store, f"{disk_model}/whole.efs")
disk_store = make_store(disk_model)
want = {name: data for name, data in {**experts, **contents(model)}.items() if data}
whole = open(store, "rb").read()
READERS = 2 * len(reader_processes.KINDS)
ERRORS = {reader_processes.errno.EIO, reader_processes.errno.EUCLEAN, reader_processes.errno.EFAULT}
MAPPED = {"mapping", "private_mapping", "to_disk", "vmsplice"}


def read_all(mount):
    return read_pieces(mount, want, errors=ERRORS)


def all_right(what, mount, good=True):
    right, refused, wrong = read_all(mount)
    check(what, good and right and not refused and not wrong, (right, refused[:3], wrong[:3]))


def waits(*processes):
    return wait_until(lambda: all(is_blocked(process.pid) for process in processes))


def with_readers(mount, what, seconds=0.8):
    """Runs readers of all kinds and calls what(readers) in the middle; returns the problems."""
    reader_processes.DYING |= ERRORS
    readers, stop = reader_processes.start(mount, want, READERS, 7, folder, dying=True)
    time.sleep(seconds / 3)
    what(readers)
    time.sleep(seconds)
    stop.set()
    did, problems, signals = reader_processes.join(readers)
    problems += [f"{name}: ended by signal {number}" for name, number in signals
                 if number != signal.SIGBUS or name not in MAPPED]
    return did, problems


for options in ("budget=64M", "budget=64M,nopassthrough,direct_io=on", "budget=64M,nopassthrough,direct_io=off"):
    print(f"-- cut, {options}")
    cut = f"{disk}/cut.efs"
    shutil.copy(store, cut)
    mount = Mount(cut, options)
    did, problems = with_readers(mount, lambda _: os.truncate(cut, len(whole) // 3))
    check(f"its end is lost under {did} reads: right bytes or an error", not problems, problems[:5])
    right, refused, wrong = read_all(mount)
    check(f"then {right} pieces are right, {len(refused)} give an error", not wrong and refused, wrong[:5])
    with open(cut, "r+b") as file:
        file.seek(len(whole) // 3)
        file.write(whole[len(whole) // 3:])
    all_right("well again, all is right", mount)
    mount.unmount("after a cut")

    print(f"-- stands still, {options}")
    under = Mount(disk_store, "nopassthrough", name="under")
    mount = Mount(under / "whole.efs", f"{options},store_direct=on")  # else the store's pages are kept below
    read_all(mount)
    under.suspend()
    begun = threading.Thread(target=read_all, args=(mount,))
    begun.start()
    looked = []
    looker = threading.Thread(target=lambda: looked.append(mount.count("budget_bytes")), daemon=True)
    looker.start()
    looker.join(PATIENCE)
    check("the mount tells of itself meanwhile", looked, "it hangs")
    wait_until(lambda: is_blocked(begun.native_id) or not begun.is_alive())
    under.resume()
    begun.join(PATIENCE)
    all_right("and goes on", mount, not begun.is_alive())

    def suspend(readers):
        under.suspend()
        wait_until(lambda: any(is_blocked(reader.process.pid) for reader in readers))
        under.resume()

    did, problems = with_readers(mount, suspend)
    check(f"readers of all kinds wait for it: {did} reads, no wrong byte", not problems, problems[:5])

    print(f"-- gone, {options}")
    did, problems = with_readers(mount, lambda _: under.daemon.kill())
    check(f"the disk is gone under {did} reads: right bytes or an error", not problems, problems[:5])
    for name in want:
        with contextlib.suppress(OSError):
            forget_pages(mount / name)
    right, refused, wrong = read_all(mount)
    check(f"then {right} pieces are in memory, {len(refused)} give an error", not wrong and refused, wrong[:5])
    mount.unmount("the disk is gone")
    under.abandon()

HANDLED = """
import ctypes, os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: None)
fd, libc, room = os.open(sys.argv[1], os.O_RDONLY), ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(4096)
print("reads", flush=True)
sys.exit(libc.pread(fd, room, 4096, ctypes.c_long(os.fstat(fd).st_size * 3 // 4)) != 4096)
"""
TRACED = """
import ctypes, os, sys
fd, libc, room = os.open(sys.argv[1], os.O_RDONLY), ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(4096)
libc.ptrace(0, 0, None, None)  # PTRACE_TRACEME
print("reads", flush=True)
os._exit(libc.pread(fd, room, 4096, ctypes.c_long(os.fstat(fd).st_size // 2)) != 4096)
"""
trace = ctypes.CDLL(None, use_errno=True).ptrace
trace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
plain = max((name for name in want if name not in experts), key=lambda name: len(want[name]))
for options in ("budget=1G,direct_io=on", "budget=1G,direct_io=on,nopassthrough"):  # one reply buffer for each 64 MiB of budget
    print(f"-- stands still, and readers are ended, {options}")
    under = Mount(disk_store, "nopassthrough", name="under")
    mount = Mount(under / "whole.efs", f"{options},store_direct=on")  # else the store's pages are kept below
    with open(mount / plain, "rb", buffering=0) as file:  # the header is in memory, the tensors are not
        file.read(4096)
    under.suspend()
    for name in (plain, sorted(experts)[-1]):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL):
            reader = subprocess.Popen(["sh", "-c", 'ulimit -c 0; exec cat "$0"', mount / name], stdout=subprocess.DEVNULL)
            waited = waits(reader)
            reader.send_signal(number)
            try:
                status = reader.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                status = "it waits for the disk"
            check(f"{name}: {number.name} ends who waits for the disk", waited and status == -number, (waited, status))
    handled = subprocess.Popen([sys.executable, "-c", HANDLED, mount / plain], stdout=subprocess.PIPE)
    stopped = subprocess.Popen(["cmp", f"{model}/{plain}", mount / plain])
    traced = subprocess.Popen([sys.executable, "-c", TRACED, mount / plain], stdout=subprocess.PIPE)
    handled.stdout.readline()
    traced.stdout.readline()
    check("three readers wait for the disk", waits(handled, stopped, traced))
    traced.send_signal(signal.SIGTERM)
    handled.send_signal(signal.SIGUSR1)
    stopped.send_signal(signal.SIGSTOP)
    stopped.send_signal(signal.SIGCONT)
    under.resume()
    check("a signal that is handled, and a stop, give no reader an error", handled.wait(PATIENCE) == 0 and stopped.wait(PATIENCE) == 0,
          (handled.returncode, stopped.returncode))
    if os.WIFSTOPPED(os.waitpid(traced.pid, 0)[1]):
        trace(7, traced.pid, None, None)  # PTRACE_CONT without the signal
    check("nor does one that a debugger drops", traced.wait(PATIENCE) == 0, traced.returncode)
    all_right("and all goes on", mount)
    check("that is counted", mount.count("fuse_read_interrupts") + mount.count("fuse_open_interrupts") > 0)
    mount.unmount()
    under.abandon()

print("-- stands still, more readers than reply buffers are ended")
under = Mount(disk_store, "nopassthrough", name="under")
mount = Mount(under / "whole.efs", "budget=64M,nopassthrough,direct_io=on")
under.suspend()
readers = [subprocess.Popen(["cat", mount / name], stdout=subprocess.DEVNULL) for name in sorted(want)[:24]]
wait_until(lambda: all(is_blocked(reader.pid) or reader.poll() is not None for reader in readers))
waited = sum(reader.poll() is None for reader in readers)
for reader in readers:
    reader.kill()
time.sleep(0.5)
under.resume()
for reader in readers:
    reader.wait(PATIENCE)
all_right(f"{waited} of {len(readers)} waited; the mount goes on", mount, waited > 4)
mount.unmount()
under.abandon()
done()
