# SPDX-License-Identifier: Apache-2.0
"""The daemon over an engine whose answers are late or fail, or that has no memory for leases: readers get correct
bytes, no reader hangs, and the daemon ends cleanly with requests in flight."""
from e2e import *

need_fuse()
program(FAULTS)
model = make_model()
store = make_store(model)
os.environ["EXPERTFS_STATE"] = scratch("state")
want = {**experts_without_passthrough(store), **contents(model)}
experts = [name for name in want if name.startswith("experts/")]
largest = max(want, key=lambda name: len(want[name]))


def read_by_many(mount, threads=8, rounds=3):
    """(wrong, errors) of `threads` readers of all files"""
    wrong, errors = [], []

    def reader(seed):
        order = random.Random(seed)
        for _ in range(rounds):
            for name in order.sample(list(want), len(want)):
                try:
                    with open(mount / name, "rb") as file:
                        if file.read() != want[name]:
                            wrong.append(name)
                except OSError as error:
                    errors.append(error.errno)
                    if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
                        return

    workers = [threading.Thread(target=reader, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    return workers, wrong, errors


def joined(workers):
    for worker in workers:
        worker.join(PATIENCE)
    return not any(worker.is_alive() for worker in workers)


for delay_us in 0, 5000:
    for options in ("budget=40M", "budget=40M,nopassthrough", "direct_io=off,nopassthrough"):
        mount = Mount(store, options, faults={"DELAY_US": delay_us})
        workers, wrong, errors = read_by_many(mount)
        check(f"answers {delay_us} us late, {options}: right", joined(workers) and not wrong + errors, (wrong + errors)[:3])
        if delay_us and options.endswith("M,nopassthrough"):
            check("readers waited for reply buffers", mount.count("fuse_reply_waits") > 0)
        mount.unmount()

print("-- a daemon that dies before it is ready")
folder = scratch("target")
os.mkdir(folder)
result = run(program(FAULTS), store, folder, env={**os.environ, "EFS_FAULT_DIE": "1"})
check("its parent says so and exits 1", result.returncode == 1 and "ended by signal 9" in result.stderr, result)
check("nothing is mounted", not is_mounted(folder))

print("-- backing files that the kernel refuses")
for number in (errno.ENOMEM, errno.EMFILE, errno.EPERM):
    mount = Mount(store, "", faults={"BACKING_ERRNO": number})
    if not mount.passthrough():
        note("left out: no passthrough")
        mount.unmount()
        break
    workers, wrong, errors = read_by_many(mount)
    check(f"{errno.errorcode[number]}, every other time: all bytes are right", joined(workers) and not wrong + errors,
          (wrong + errors)[:3])
    check("some experts were served by the kernel, some not", mount.count("fuse_opens_passthrough") > 0 and
          mount.count("fuse_lease_fallbacks") > 0, mount.stat())
    mount.unmount()

print("-- gaps between a lease, its backing file, the answer and the kernel's open")
for room in (1, 3, 100):
    for options in ("", "nopassthrough,direct_io=off"):
        mount = Mount(store, options, faults={"GAPS_US": 2000, "LEASES": room})
        workers, wrong, errors = read_by_many(mount, 6, 2)
        for _ in range(10):  # the opening process ends meanwhile
            opener = subprocess.Popen(["cat", *(mount / name for name in experts)], stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
            time.sleep(0.004)
            opener.kill()
            opener.wait(PATIENCE)
        check(f"room for {room}, {options}: all bytes are right", joined(workers) and not wrong + errors,
              (wrong + errors)[:3])
        mount.unmount()

print("-- leases that fail")
for number in (errno.EIO, errno.EUCLEAN, errno.ENOMEM, errno.EMFILE):
    mount = Mount(store, faults={"LEASE_ERRNO": number})
    if not mount.passthrough():
        note("left out: no passthrough")
        mount.unmount()
        break
    workers, wrong, errors = read_by_many(mount, 6)
    check(f"{errno.errorcode[number]}: read without passthrough, right", joined(workers) and not wrong + errors and
          mount.count("fuse_lease_fallbacks") > 0, (wrong + errors)[:3])
    mount.unmount()

print("-- SIGTERM with late replies in flight")
for options in ("nopassthrough", "", "direct_io=off,nopassthrough"):
    mount = Mount(store, options, faults={"DELAY_US": 30000})
    workers, wrong, errors = read_by_many(mount, 8, 1000)
    wait_until(lambda: any(is_blocked(worker.native_id) for worker in workers))
    mount.stop(f"SIGTERM, {options}")
    check("no reader hangs, none saw wrong bytes", joined(workers) and not wrong and set(errors) <=
          {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.EINTR, errno.ENOENT}, (wrong, set(errors)))

print("-- readers killed with late replies in flight")
mount = Mount(store, "nopassthrough,direct_io=on", faults={"DELAY_US": 50000})
for _ in range(20):
    reader = subprocess.Popen(["cat", mount / largest], stdout=subprocess.DEVNULL)
    wait_until(lambda: is_blocked(reader.pid))
    reader.kill()
    reader.wait(PATIENCE)
check("the daemon still serves", open(mount / "config.json", "rb").read() == want["config.json"])
mount.unmount()
done()
