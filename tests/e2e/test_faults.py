# SPDX-License-Identifier: Apache-2.0
"""The daemon over an engine whose replies are late, fail, come from inside the call, or never have room: readers get
right bytes or an error, nothing hangs, and the daemon ends cleanly with requests in flight."""
from e2e import *

need_fuse()
program(FAKE)
source = scratch("source")
generator = random.Random(3)
want = {}
for name, size in [("model.safetensors", 5 << 20), ("odd.bin", 1234567), ("empty", 0), ("damaged.bin", 300000),
                   ("experts/L00/damaged.safetensors", 300000)] + [
                   (f"experts/L0{i}/E00{j}.safetensors", 200000 + 4097 * i + j) for i in range(2) for j in range(4)]:
    os.makedirs(os.path.dirname(f"{source}/{name}"), exist_ok=True)
    want[name] = generator.randbytes(size)
    with open(f"{source}/{name}", "wb") as file:
        file.write(want[name])
sound = sorted(name for name in want if "damaged" not in name)
experts = [name for name in sound if name.startswith("experts/")]


def read_by_many(mount, threads=8, rounds=3):
    """(wrong, errors) of that many readers of all sound files"""
    wrong, errors = [], []

    def reader(seed):
        order = random.Random(seed)
        for _ in range(rounds):
            for name in order.sample(sound, len(sound)):
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
        worker.join(60)
    return not any(worker.is_alive() for worker in workers)


for what, environment in (("prompt", {}), ("late", {"EFS_FAKE_DELAY_US": "5000"}), ("inside", {"EFS_FAKE_SYNC": "1"})):
    for options in ("budget=40M", "budget=40M,nopassthrough", "direct_io=off,nopassthrough"):
        mount = Mount(source, options, fake=True, environment=environment)
        workers, wrong, errors = read_by_many(mount)
        check(f"replies {what}, {options}: right", joined(workers) and not wrong + errors, (wrong + errors)[:3])
        if what == "late" and options.endswith("M,nopassthrough"):
            check("readers waited for reply buffers", mount.count("fuse_reply_waits") > 0)
        mount.unmount()

print("-- a daemon that dies before it is ready")
folder = scratch("target")
os.mkdir(folder)
result = run(program(FAKE), source, folder, env={**os.environ, "EFS_FAKE_DIE": "1"})
check("its parent says so and exits 1", result.returncode == 1 and "ended by signal 9" in result.stderr, result)
check("nothing is mounted", not is_mounted(folder))

print("-- backing files that the kernel refuses")
for number in (errno.ENOMEM, errno.EMFILE, errno.EPERM):
    mount = Mount(source, "", fake=True, environment={"EFS_FAKE_BACKING_ERRNO": str(number)})
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
for room in ("1", "3", "100"):
    for options in ("", "nopassthrough,direct_io=off"):
        mount = Mount(source, options, fake=True, environment={"EFS_FAKE_GAPS_US": "2000", "EFS_FAKE_ROOM": room})
        workers, wrong, errors = read_by_many(mount, 6, 2)
        for _ in range(10):  # who opens ends meanwhile
            opener = subprocess.Popen(["cat", *(mount / name for name in experts)], stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
            time.sleep(0.004)
            opener.kill()
            opener.wait(20)
        check(f"room for {room}, {options}: all bytes are right", joined(workers) and not wrong + errors,
              (wrong + errors)[:3])
        mount.unmount()

print("-- errors of reads")
mount = Mount(source, "nopassthrough", fake=True)
for name in ("damaged.bin", "experts/L00/damaged.safetensors"):
    with open(mount / name, "rb", buffering=0) as file:
        good = os.pread(file.fileno(), 65536, 0) == want[name][:65536]
        good = good and os.pread(file.fileno(), 65536, 131072) == want[name][131072:196608]
        check(f"{name}: the sound parts", good)
        try:
            os.pread(file.fileno(), 10, 65536)
            check(f"{name}: the damaged part", False)
        except OSError as error:
            check(f"{name}: the damaged part: {error.strerror}", error.errno == errno.EUCLEAN)
mount.unmount()

probe = Mount(source, fake=True)
backed = probe.passthrough()
probe.unmount("a probe")
if not backed:
    note("no passthrough here: the rest is left out")
    done()

print("-- leases that fail")
for number in (errno.EIO, errno.EUCLEAN, errno.ENOMEM, errno.EMFILE):
    mount = Mount(source, fake=True, environment={"EFS_FAKE_LEASE_ERRNO": str(number)})
    workers, wrong, errors = read_by_many(mount, 6)
    check(f"{errno.errorcode[number]}: read without passthrough, right", joined(workers) and not wrong + errors and
          mount.count("fuse_lease_fallbacks") > 0, (wrong + errors)[:3])
    mount.unmount()
mount = Mount(source, fake=True)
with open(mount / "experts/L00/damaged.safetensors", "rb", buffering=0) as file:
    check("a damaged expert can be opened for its sound parts", os.pread(file.fileno(), 4096, 0) ==
          want["experts/L00/damaged.safetensors"][:4096] and mount.count("fuse_lease_fallbacks") == 1)
mount.unmount()

print("-- SIGTERM with late replies in flight")
for options in ("nopassthrough", "", "direct_io=off,nopassthrough"):
    mount = Mount(source, options, fake=True, environment={"EFS_FAKE_DELAY_US": "30000"})
    workers, wrong, errors = read_by_many(mount, 8, 1000)
    wait_until(lambda: any(is_blocked(worker.native_id) for worker in workers))
    mount.stop(f"SIGTERM, {options}")
    check("no reader hangs, none saw wrong bytes", joined(workers) and not wrong and set(errors) <=
          {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.EINTR, errno.ENOENT}, (wrong, set(errors)))

print("-- readers killed with late replies in flight")
mount = Mount(source, "nopassthrough,direct_io=on", fake=True, environment={"EFS_FAKE_DELAY_US": "50000"})
for _ in range(20):
    reader = subprocess.Popen(["cat", mount / "model.safetensors"], stdout=subprocess.DEVNULL)
    wait_until(lambda: is_blocked(reader.pid))
    reader.kill()
    reader.wait(20)
check("the daemon still serves", open(mount / "odd.bin", "rb").read() == want["odd.bin"])
mount.unmount()
done()
