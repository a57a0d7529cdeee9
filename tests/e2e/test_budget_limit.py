# SPDX-License-Identifier: Apache-2.0
"""A budget and the memory cgroup's limit: a budget that can never fit is refused, with the limit and a way out, at
mount time and later; one above the available memory is reported; one larger than the store is accepted. When only a
part of a budget fits, the pools are planned for that part, which follows the memory that other processes take and free,
and the limit."""
from e2e import *
from socket_packets import Client, leave

need_fuse()
group = need_cgroup(160 << 20)
_, small = shared(NARROW)
large_model = make_model("large", "-F", "qwen3-moe", "-d", "1024", "-i", "1024", "-e", "16", "-l", "4", "--vocab", "1000")
large = make_store(large_model)
experts = [f"experts/L{layer:02}/E{number:03}.safetensors" for layer in range(4) for number in range(16)]
inside = group.prefix
folder = scratch("target")
os.mkdir(folder)


def refused(what, store, options, *says):
    try:
        result = run(*inside, program("expertfs"), "-f", store, folder, "-o", options)
    except subprocess.TimeoutExpired:
        run("umount", "-l", folder)
        return check(f"{what}: refused", False, "it was mounted")
    return check(f"{what}: refused", result.returncode == 1 and all(word in result.stderr for word in says), result)


def advised(text):
    """The options that a refusal suggests."""
    return [found.rstrip(".") for found in re.findall(r"budget=(?:auto|\d+M)", text.split(": ", 2)[-1])]


def ends_well(store, options, within):
    """Does each suggestion lead to a mount, or to the suggestion to raise the limit, after at most three refusals?"""
    tried, left = {}, [options]
    while left:
        options = left.pop()
        result = run(*within.prefix, program("expertfs"), store, folder, "-o", options)
        tried[options] = result.stderr.strip()
        if result.returncode == 0:
            tried[options] = "mounted"
            run("umount", folder)
            wait_until(lambda: not is_mounted(folder))
        else:
            left += [advice for advice in advised(result.stderr) if advice not in tried]
    ends = [said for said in tried.values() if said == "mounted" or (not advised(said) and "raise the limit" in said)]
    return len(tried) <= 4 and ends != [], tried


def in_little():
    print("-- in little memory")
    for mib, serves in ((64, True), (40, True), (20, False)):
        little = need_cgroup(mib << 20)
        if serves:
            mount = Mount(small, "budget=auto", prefix=little.prefix)
            had = mount.count("budget_bytes") >> 20
            check(f"budget=auto in {mib} MiB serves: half of it, or the least that serves", (20 < had < 32) and
                  len(open(mount / experts[0], "rb").read()) > 0 and mount.set_refused("budget", "auto")[0] == "", had)
            mount.unmount()
        else:
            result = run(*little.prefix, program("expertfs"), "-f", small, folder, "-o", "budget=auto")
            check(f"budget=auto in {mib} MiB is refused, with the limit to raise", result.returncode == 1 and
                  "raise the limit" in result.stderr and advised(result.stderr) == [], result)
        for options in ("budget=auto", "budget=1M", "budget=54M", "budget=1G"):
            good, tried = ends_well(small, options, little)
            check(f"{options} in {mib} MiB: advice leads to a mount, or to the limit", good, tried)
        check("nothing was killed for the limit", little.out_of_memory() == 0)
        little.remove()


def mapped(mount):
    """Clients that report what they have mapped: the rest of the memory is the mount's, until the last one ends."""
    half = mount.count("budget_bytes")
    dense = os.path.getsize(os.path.join(large_model, "model.safetensors")) - sum(os.path.getsize(mount / name) for name in experts)
    one, two = Client(mount), Client(mount)
    one.socket.send(leave(dense))
    check("a client that has mapped nothing: more than half", wait_until(lambda: mount.count("budget_bytes") > 1.5 * half), half)
    most = mount.count("budget_bytes")
    one.socket.send(leave(0))
    # it may also fall a little by what is available at the moment
    check("it has mapped all but the experts: that much less", wait_until(lambda: dense / 2 < most - mount.count("budget_bytes") < 2 * dense),
          (most, mount.count("budget_bytes"), dense))
    with_dense = mount.count("budget_bytes")
    two.socket.send(leave(1 << 60))
    check("one that has mapped less than another changes nothing", mount.count("budget_bytes") < 1.05 * with_dense)
    one.socket.close()
    check("the other one ends: more again", wait_until(lambda: mount.count("budget_bytes") > with_dense))
    two.socket.close()
    check("both ended: half again", wait_until(lambda: mount.count("budget_bytes") < 1.2 * half), (half, mount.count("budget_bytes")))


def automatic():
    """budget=auto: the group's free memory, also when its limit changes, and never below the minimum."""
    print("-- budget=auto in 400 MiB")
    group = need_cgroup(400 << 20)
    mount = Mount(large, "budget=auto,nostate", prefix=group.prefix)
    want = {name: open(mount / name, "rb").read() for name in experts}

    def right(names):
        return all(open(mount / name, "rb").read() == want[name] for name in names)

    first = mount.count("budget_bytes")
    check("half of what is left", 100 << 20 < first <= 200 << 20, first)
    held = [open(mount / name, "rb") for name in experts[::4]]
    check("much is read, a quarter of it at once", right(experts * 3) and all(
        file.read() == want[name] for file, name in zip(held, experts[::4])))
    for file in held:
        file.close()
    wait_until(lambda: mount.count("leased_experts") == 0)
    mapped(mount)
    first = mount.count("budget_bytes")
    os.setxattr(mount.path, "user.expertfs.budget", b"auto")
    check("asked again it is about the same", 0.8 * first < mount.count("budget_bytes") < 1.2 * first,
          (first, mount.count("budget_bytes")))
    group.limit(300 << 20)
    os.setxattr(mount.path, "user.expertfs.budget", b"auto")
    lower = mount.count("budget_bytes")
    check("a lower limit, a lower budget", lower <= min(first - (30 << 20), 160 << 20), (first, lower))
    check("all is right", right(experts))
    least = mount.count("fixed_bytes") + (12 << 20)
    os.setxattr(mount.path, "user.expertfs.budget", str(least).encode())
    group.limit(least + (24 << 20))
    got, answer = mount.set_refused("budget", "auto")
    check("where half of what is left is less than the floor, auto is the floor", got == "" and
          mount.count("fixed_bytes") < mount.count("budget_bytes") < least, (got, answer, least, mount.count("budget_bytes")))
    check("and all is served still", right(experts[::3]))
    check("nothing was killed for the limit", group.out_of_memory() == 0 and mount.daemon.poll() is None)
    mount.unmount()
    group.remove()


automatic()
in_little()
print("-- at the mount")
refused("a budget of 1 GiB in 160 MiB", large, "budget=1G", "a budget of 1024 MiB", "limit is 160 MiB", "budget=auto", "memory.max")
refused("all of it taken ahead", small, "budget=1G,prealloc", "limit is 160 MiB", "budget=auto")
mount = Mount(small, "budget=1G", prefix=inside)
check("a store that can never fill it is served, and the log tells", "budget 1.00 GiB accepted" in mount.log_text() and
      "160 MiB" in mount.log_text(), mount.log_text())
mount.unmount()
mount = Mount(large, f"budget={(160 << 20) - 65536}", prefix=inside)
check("one above what is available is told", "are available" in mount.log_text() and "160 MiB" in mount.log_text(), mount.log_text())
mount.unmount()
mount = Mount(large, "budget=100M", prefix=inside)
check("one that fits is taken without a word", "budget" not in mount.log_text(), mount.log_text())
mount.unmount()
print("-- of which a part can be had")
neighbour = Hog(group)  # without it the whole budget fits: fixed memory is not all touched
check("a neighbour has 24 MiB", all(neighbour.allocate() for _ in range(3)))
mount = Mount(large, "budget=156M,policy=lru,plan=C=100", prefix=inside)


def effective():
    return mount.count("effective_budget_bytes")


def read_all():
    for name in experts:
        with open(mount / name, "rb") as file:
            file.read()


def settled(least_mib, most_mib):
    """Waits until the effective budget is in this range and all memory held is within it."""
    return wait_until(lambda: least_mib << 20 <= effective() <= most_mib << 20 and mount.used_bytes() <= effective())


def less(what, mib):
    """The kernel kills a process if the next 8 MiB are allocated before the daemon has freed memory, which takes it up
    to 2 seconds."""
    free = wait_until(lambda: group.free_bytes() >= 12 << 20)
    return check(f"{what}: what can be had falls", free and settled(had - mib - 24, had - mib + 24),
                 (had, effective(), group.free_bytes()))


def round_memory_short():
    before = mount.count("memory_short")
    read_all()
    return mount.count("memory_short") - before

read_all()
check("some of the limit stays free", settled(112, 148), effective())
asked = mount.count("budget_bytes")
check("what was asked for is told beside it", asked == 156 << 20 and
      f"effective_budget_bytes: {effective()}" in open(mount / ".expertfs/plan").read(), asked)
# Memory that is being filled counts twice for a moment, so the effective budget may fall by one more segment.
rounds = []
wait_until(lambda: rounds.append(round_memory_short()) or rounds[-2:] == [0, 0])
check("nothing that is planned is refused", rounds[-2:] == [0, 0], rounds)
say = run(program("expertctl"), "doctor", mount.path).stdout
check("expertctl tells", re.search("^slower +budget .* of 156 MiB are available", say, re.M) and
      re.search("[0-9.]+ MiB of the budget of 156 MiB can be used", run(program("expertctl"), "status", mount.path).stdout), say)
had = effective() >> 20
other = Hog(group)
for mib in range(8, 48, 8):
    if not check(f"another takes {mib} MiB", other.allocate()) or not less("they are given up", mib):
        break
read_all()
check("nobody was killed", group.out_of_memory() == 0 and mount.daemon.poll() is None and other.is_alive())
other.end()
check("it ends: they are taken back", settled(had - 24, had + 24), (had, effective()))
read_all()
for mib in range(152, 112, -8):
    group.limit(mib << 20)
    if not less(f"the limit falls to {mib} MiB", 160 - mib):
        break
read_all()
group.limit(160 << 20)
check("and rises", settled(had - 24, had + 24), (had, effective()))
check("nobody was killed for it", group.out_of_memory() == 0 and mount.daemon.poll() is None)
mount.unmount()
print("-- while it serves")
mount = Mount(large, "budget=100M", prefix=inside)
got, answer = mount.set_refused("budget", "1G")
check("1 GiB is refused", got == "ERANGE" and "limit is 160 MiB" in answer and "budget=auto" in answer, (got, answer))
check("the budget is what it was", mount.count("budget_bytes") == 100 << 20)
for _ in range(2):
    for name in experts:
        with open(mount / name, "rb") as file:
            file.read()
check("nothing was killed for the limit", group.out_of_memory() == 0 and mount.daemon.poll() is None)
mount.unmount()
done()
