# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed, EXPERTFS_KILLS times: while it serves readers of every kind and clients of the library,
while it starts, while it ends. No reader hangs or gets a wrong byte; mappings and pipes that the kernel holds
stay correct; the store is mounted again at once, at the same place, with the same state, and accepts the files of an
earlier daemon."""
import reader_processes
from e2e import *
from library_client import request_maker

need_fuse()
KILLS = int(os.environ.get("EXPERTFS_KILLS", "8"))
SEED = int(os.environ.get("SEED", "1"))
note(f"SEED={SEED} EXPERTFS_KILLS={KILLS} repeats these, as far as a clock can")
READERS = 2 * len(reader_processes.KINDS)
OPTIONS = ("budget=64M", "budget=96M,policy=lru,prefetch=on", "budget=64M,nopassthrough,direct_io=on",
           "budget=64M,nopassthrough,direct_io=off",
           "budget=96M,prealloc,prefetch=on")
# Readers that may fault on a mapping whose file has no daemon any more. A client of the library maps experts' files
# when the mount does not pass experts.
MAPPED = {"mapping", "private_mapping", "to_disk", "vmsplice", "client"}
model, store = shared()
folder = scratch("copies")
os.mkdir(folder)
experts = experts_without_passthrough(store)
want = {name: data for name, data in {**experts, **contents(model)}.items() if data}
originals = experts_of(model)


def dead(mount):
    """Removes the mount of a killed daemon."""
    mount.abandon()
    wait_until(lambda: not is_mounted(mount.path))
    return not is_mounted(mount.path)


def serving(generator, options):
    """Kills the daemon while it serves; returns the problems."""
    mount = Mount(store, options, name="killed")
    readers, stop = reader_processes.start(mount, want, READERS, generator.randrange(1 << 20), folder, dying=True, asks=[request_maker(mount, originals, 3, 8) for _ in range(2)])
    time.sleep(generator.uniform(0, 1.0))
    died = mount.kill("killed while it serves")
    stop.set()
    did, problems, signals = reader_processes.join(readers)
    problems += [] if died else ["it does not die"]
    problems += [f"{name}: ended by signal {number}" for name, number in signals
                 if number != signal.SIGBUS or name not in MAPPED]
    if "Sanitizer" in mount.log_text() or "assert" in mount.log_text().lower():
        problems.append(mount.log_text()[-3000:])
    if not dead(mount):
        problems.append("the dead mount cannot be taken away")
    done_by_all[0] += did
    faults[0] += len(signals)
    return problems


def beginning(generator, options):
    mount = Mount(store, options, name="killed", wait=False)
    time.sleep(generator.uniform(0, 0.1))
    died = mount.kill("killed while it begins")
    return [] if died and dead(mount) else ["it does not die, or the dead mount cannot be taken away"]


def ending(generator, options):
    mount = Mount(store, options, name="killed")
    held = [open(mount / name, "rb") for name in generator.sample(sorted(experts), 5)]
    right = all(file.read() == experts[os.path.relpath(file.name, mount.path)] for file in held)
    mount.daemon.send_signal(signal.SIGTERM)
    time.sleep(generator.uniform(0, 0.03))
    died = mount.kill("killed while it ends")
    for file in held:
        file.close()
    return [what for what, bad in (("wrong bytes", not right), ("it does not die", not died), ("the dead mount cannot be taken away", not dead(mount))) if bad]


done_by_all, faults, complaints, ways = [0], [0], set(), {}
for number in range(KILLS):
    generator = random.Random(SEED + number)
    options = OPTIONS[(SEED + number) % len(OPTIONS)]
    way = serving if number % 4 < 2 else generator.choice((beginning, ending, serving))
    ways[way.__name__] = ways.get(way.__name__, 0) + 1
    problems = way(generator, options)
    after = Mount(store, "budget=64M", name="killed")  # loads the state of the killed daemon
    if generator.random() < 0.5:
        name = generator.choice(sorted(want))
        if open(after / name, "rb").read() != want[name]:
            problems.append(f"{name} is wrong afterwards")
    if "ignored" in after.log_text() or "damaged" in after.log_text():
        problems.append(after.log_text())
    after.unmount("after a kill") or problems.append("the next daemon does not end well")
    if problems:
        check(f"killed while {way.__name__}, {options}: SEED={SEED + number} EXPERTFS_KILLS=1 repeats it", False, problems)
check(f"{KILLS} kills: {ways}, {done_by_all[0]} reads by readers, {faults[0]} faults of mappings with nobody behind",
      sum(ways.values()) == KILLS)
state = os.listdir(scratch("state"))
check("the state directory has what mounts keep, and nothing that is half written",
      all(not name.startswith(".") and "tmp" not in name for name in state), state)
done()
