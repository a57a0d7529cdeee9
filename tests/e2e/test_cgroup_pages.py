# SPDX-License-Identifier: Apache-2.0
"""Clients that hold hundreds of MiB of experts' pages in pipes and socket queues, charged to the daemon's cgroup: the
daemon is not killed, the bytes stay correct, and released pages are reused."""
import resource

from reader_processes import read_all_pieces
from e2e import *
from slow_sockets import connection, receive, send_and_close

need_fuse()
group = need_cgroup(160 << 20)
model = make_model("model", "-F", "qwen3-moe", "-d", "512", "-i", "1024", "-e", "32", "-l", "4", "--vocab", "500")
store = make_store(model)
want = experts_without_passthrough(store)
names = list(want)
size = len(want[names[0]])
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
mount = Mount(store, "budget=112M", prefix=group.prefix)
need_passthrough(mount)


def alive(when):
    return check(f"{when}: the daemon lives", mount.daemon.poll() is None and group.out_of_memory() == 0,
                 (mount.daemon.returncode, mount.log_text()[-500:]))


def in_pipes(name):
    """Puts 64 KiB of the file at every MiB into a pipe each: [(end, offset, bytes)]"""
    held = []
    with open(mount / name, "rb", buffering=0) as file:
        for offset in range(0, size, 1 << 20):
            out, into = os.pipe()
            fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 64 << 10)
            held.append((out, offset, os.splice(file.fileno(), into, 64 << 10, offset_src=offset)))
            os.close(into)
    return held


print("-- pipes")
held = {}
for turn, name in enumerate(names):
    held[name] = in_pipes(name)
    if turn % 16 == 0 and not alive(f"{turn} experts of {size} bytes are in pipes"):
        done()
if not alive(f"{len(held)} experts, {len(held) * size >> 20} MiB, are in pipes"):
    done()
stat = mount.stat()
note(", ".join(f"{name} {stat[name]}" for name in ("fuse_opens_passthrough", "fuse_lease_fallbacks", "memory_short")))
check("memory was short", int(stat["memory_short"]) > 0)
check("some were served by the kernel, the others by the daemon", int(stat["fuse_opens_passthrough"]) > 8 and
      int(stat["fuse_lease_fallbacks"]) > 8, stat)
mount.check_budget()
with open(mount / "config.json") as file, open(f"{model}/config.json") as source:
    check("other files are served", file.read() == source.read())
wrong = [name for name, pipes in held.items() for out, offset, count in pipes
         if read_all_pieces(out) != want[name][offset:offset + count]]
check("all pipes hold what they were given", not wrong, wrong[:3])
held.clear()
wrong = set()


def by_the_kernel():
    """The number of 16 opened experts that the kernel serves."""
    before = mount.count("fuse_opens_passthrough")
    for name in names[:16]:
        with open(mount / name, "rb") as file:
            if file.read() != want[name]:
                wrong.add(name)
    return mount.count("fuse_opens_passthrough") - before


# the cgroup's memory usage may be seconds old
check("let go: all are served by the kernel again", wait_until(lambda: by_the_kernel() == 16) and not wrong, wrong)

print("-- queues of sockets")
held = []
for turn, name in enumerate(names * 2):
    sender, receiver = connection(4 << 20)
    held.append((name, receiver, send_and_close(sender, mount / name, size)))
    if turn % 32 == 0 and not alive(f"{turn} experts are in queues"):
        done()
alive(f"{sum(sent for _, _, sent in held) >> 20} MiB are in queues")
wrong = []
for name, receiver, sent in held:
    if receive(receiver) != want[name][:sent]:
        wrong.append(name)
check("all receive what was sent", not wrong, wrong[:3])
alive("at the end")
mount.unmount()
done()
