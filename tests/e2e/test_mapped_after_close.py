# SPDX-License-Identifier: Apache-2.0
"""Experts whose files are closed and still mapped count in the budget until they are unmapped. No process gets other
bytes, and the memory is available again after the last unmap."""
from e2e import *
from socket_packets import ASK, DROP, Client

need_fuse()
model, store = shared(DEEP)
want = experts_without_passthrough(store)
names = list(want)
MIB = 1 << 20


def shared_bytes(pid):
    """Bytes of shared memory that the process maps; of a page that n processes map, the nth part."""
    with open(f"/proc/{pid}/smaps_rollup") as text:
        return int(re.search(r"^Pss_Shmem: +([0-9]+) kB", text.read(), re.M).group(1)) << 10


def held_bytes(mount):
    """Memory for experts that this process and the daemon map, and the daemon's fixed memory."""
    return shared_bytes("self") + shared_bytes(mount.daemon.pid) + mount.count("fixed_bytes")


def leased(mount):
    return mount.count("leased_experts")


def close_all(mappings):
    while mappings:
        mappings.pop().close()


def set_budget(mount, mib):
    """Bytes above the new budget, by the answer."""
    os.setxattr(mount.path, "user.expertfs.budget", f"{mib}M".encode())
    answer = os.getxattr(mount.path, "user.expertfs.answer").decode()
    held = re.search(r"still hold (\d+) bytes", answer)
    return int(held.group(1)) if held else 0


def is_above(mount, mib, above):
    """Whether so many bytes above a budget are in use, as soon as no read is in flight."""
    return wait_until(lambda: max(mount.used_bytes() - mib * MIB, 0) == above)


print("-- more than the budget")
mount = Mount(store, "budget=64M")
need_passthrough(mount)
mappings = [Mapping(mount / name) for name in names]
wrong = [name for name, mapping in list(zip(names, mappings))[::2] if mapping.bytes() != want[name]]
check("mappings of closed files have their bytes", not wrong, wrong)
wrong = [name for name, mapping in zip(names, mappings) if mapping.bytes() != want[name]]
check("also those first used after all others were opened", not wrong, wrong)
held, budget = held_bytes(mount), 64 * MIB
check("all memory is within the budget", held <= budget, (held, budget, held - budget))
mount.check_budget()
check("they are leased", 0 < leased(mount) < len(names), leased(mount))
check("the rest was opened without", mount.count("fuse_lease_fallbacks") > 0, mount.stat())
wrong = [name for name in names if open(mount / name, "rb").read() != want[name]]
check("all can be opened and read beside them", not wrong, wrong)
mount.check_budget()

print("-- unmapped")
close_all(mappings)
fallbacks = mount.count("fuse_lease_fallbacks")
wrong = [name for name in names if open(mount / name, "rb").read() != want[name]]
check("all can be opened and read", not wrong, wrong)
check("all with a lease", mount.count("fuse_lease_fallbacks") == fallbacks, mount.stat())
check("none stays leased", wait_until(lambda: leased(mount) == 0), leased(mount))

print("-- opened again while it is mapped; mapped by a child")
first = Mapping(mount / names[0])
with open(mount / names[0], "rb") as again:
    check("opened again", again.read() == want[names[0]])
second = Mapping(mount / names[0])
first.close()
for name in names[1:]:
    open(mount / name, "rb").read()
check("the last mapping keeps it", wait_until(lambda: leased(mount) == 1) and second.bytes() == want[names[0]], leased(mount))
end, kept = os.pipe()
child = os.fork()
if child == 0:
    os.close(kept)
    os.read(end, 1)  # until the parent has ended, or kills it
    os._exit(0)
second.close()
set_budget(mount, 64)  # looks for mappings
check("a child keeps what it inherited", leased(mount) == 1, leased(mount))
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
check("until it is killed", wait_until(lambda: leased(mount) == 0))

print("-- passed over the socket right after it was unmapped")
client, answers = Client(mount), []
for name in names[:8]:
    layer, number = map(int, re.findall(r"\d+", name))
    mapping = Mapping(mount / name)
    check("mapped", wait_until(lambda: leased(mount) == 1 and mount.table("readers") == {}), leased(mount))
    mapping.close()
    client.send(ASK, [(number, 1, 1)], layer=layer)  # at this moment the mount's sampler may look at it
    answer = client.answer()
    answers.append(answer[1] or client.file(answer) == want[name])
    client.send(DROP, [(0, 0, 1)])
    wait_until(lambda: leased(mount) == 0)
check("it is passed, with its bytes", answers == [True] * 8, answers)
client.close()
mount.unmount()

print("-- a smaller budget")
mount = Mount(store, "budget=192M")
mappings = [Mapping(mount / name) for name in names]
check("all are leased", wait_until(lambda: leased(mount) == len(names)), leased(mount))
held = set_budget(mount, 96)
check("what is mapped is told as held", held > 0 and is_above(mount, 96, held), (held, mount.stat()))
check("and stays right", all(mapping.bytes() == want[name] for name, mapping in zip(names, mappings)))
close_all(mappings)
check("it is freed when it is unmapped", wait_until(lambda: mount.used_bytes() <= 96 * MIB), mount.stat())
set_budget(mount, 192)
mappings = [Mapping(mount / name) for name in names]
check("all are leased again", wait_until(lambda: leased(mount) == len(names)), leased(mount))
close_all(mappings)
held = set_budget(mount, 96)
check("what was unmapped just before is not held", held == 0 and is_above(mount, 96, 0), (held, mount.stat()))
mount.unmount()

print("-- where the kernel does not show what is mapped")
FCNTL, F_SETLEASE = {"x86_64": 72, "aarch64": 25}.get(os.uname().machine), 1024
for error in (errno.EPERM, errno.EINVAL):
    prefix = deny_syscalls(error, f"{FCNTL}:{F_SETLEASE}")
    if not prefix:
        break
    mount = Mount(store, "budget=64M", prefix=prefix)
    check("no passthrough, for this reason", not mount.passthrough() and "F_SETLEASE" in mount.config()["passthrough_reason"], mount.config())
    mappings = [Mapping(mount / name) for name in names]
    check("all files have their bytes", all(mapping.bytes() == want[name] for name, mapping in zip(names, mappings)))
    held = shared_bytes(mount.daemon.pid) + mount.count("fixed_bytes")
    check("within the budget", held <= 64 * MIB, held)
    mount.check_budget()
    said = run(*prefix, program("expertctl"), "doctor").stdout
    check("expertctl doctor says so", re.search("^slower +passthrough .*F_SETLEASE", said, re.M), said)
    close_all(mappings)
    mount.unmount()
done()
