# SPDX-License-Identifier: Apache-2.0
"""All kinds of clients at once on a mount, for EXPERTFS_SOAK_SECONDS (15): readers of every kind, clients of the
library on the same experts, requests and hints, a writer of budgets, plans, pins and policies, and readers and clients
that are killed and replaced. All bytes are compared; the daemon's memory is sampled against the budget in force; after
all have ended its counters add up and no lease is left. `make soak MINUTES=N` runs this for longer."""
import reader_processes
from e2e import *
from library_client import request_maker
from memory_sampler import Tuner, memory_files, open_files, over, sample_memory, above_tolerance

need_fuse()
SECONDS = float(os.environ.get("EXPERTFS_SOAK_SECONDS", "15"))
SEED = int(os.environ.get("SEED", "1"))
note(f"SEED={SEED} EXPERTFS_SOAK_SECONDS={SECONDS:g} repeats this, but for the order in which processes run")
READERS, LAYERS, EXPERTS = 4 * len(reader_processes.KINDS), 4, 16
ROUND = 300  # seconds; then all readers end, the sums are checked, and a new mount starts
# Little memory: readers that hold experts never wait for each other, but read through the daemon where no lease is
# available.
MOUNTS = (("budget=96M", 96, (64, 80, 96, 128)), ("budget=400M,prefetch=on", 400, (300, 400, 500)),
          ("budget=1G,direct_io=off", 1024, (112, 160, 256, 400)),  # shrunk and grown again
          ("budget=128M,nopassthrough,direct_io=on", 128, (64, 96, 128)), ("budget=96M,nopassthrough,direct_io=off", 96, (64, 96)))
model = make_model("model", "-F", "qwen3-moe", "-d", "256", "-i", "1024", "-e", str(EXPERTS), "-l", str(LAYERS), "--vocab", "1000",
                   "--shard-size", "20MB")
store = make_store(model)
folder = scratch("copies")
os.mkdir(folder)
want = {name: data for name, data in {**experts_without_passthrough(store), **contents(model)}.items() if data}
originals = experts_of(model)


def telling(mount):
    """Writes the files that a runtime with file access writes."""
    def writer(generator):
        experts = generator.sample(range(EXPERTS), 4)
        with open(mount / ".expertfs/want", "w") as file:
            file.write(f"{generator.randrange(LAYERS)}: " + " ".join(f"{e}*{generator.randrange(1, 9)}" for e in experts) + "\n")
        with open(mount / ".expertfs/hint", "w") as file:
            file.write(f"{generator.randrange(LAYERS)}: " + " ".join(f"{e}?0.5" for e in experts) + "\n")
        time.sleep(generator.uniform(0, 0.1))
    return writer


def sums(stat):
    """The names of expertfs-proc(5)'s sums that do not hold when this reader is the only client."""
    held = {"leases": stat["leases"] == sum(stat[f"leases_{way}"] for way in ("f", "c", "m", "shared")) + stat["lease_errors"],
            "coded": stat["coded"] == stat["coded_c"] + stat["coded_m"] + stat["coded_errors"],
            "reads": stat["reads"] == stat["fuse_reads"] + stat["fuse_aheads"] - stat["fuse_ahead_hits"],
            "read_bytes": stat["read_bytes"] == stat["fuse_reply_bytes"] + stat["fuse_ahead_bytes"] - stat["fuse_ahead_hit_bytes"],
            "opens": stat["fuse_opens"] == sum(stat[f"fuse_open{way}"] for way in (
                "s_passthrough", "s_direct", "s_cached", "s_control", "_errors", "_interrupts")) + 1,
            "budget": stat["fixed_bytes"] + stat["chunk_pool_bytes"] + stat["full_pool_bytes"] <= stat["budget_bytes"],
            "used": stat["chunk_used_bytes"] <= stat["chunk_pool_bytes"],
            "damage": stat["chunks_damaged"] == 0 and stat["read_errors"] == 0}
    return [name for name, holds in held.items() if not holds]


def quiet(mount):
    stat = mount.numbers()
    return not any(stat[name] for name in ("inflight", "leased_experts", "leased_bytes", "coded_experts"))


def soak(number, seconds):
    options, mib, budgets = MOUNTS[number % len(MOUNTS)]
    generator = random.Random(SEED + number)
    mount = Mount(store, options, name="soak")
    pid = mount.daemon.pid
    print(f"-- {options}, {seconds:.0f} s")
    wait_until(lambda: quiet(mount))
    plain_files = open_files(pid) - len(memory_files(pid, "fd"))
    asks = [telling(mount)] + [request_maker(mount, originals, LAYERS, EXPERTS) for _ in range(4)]
    readers, stop = reader_processes.start(mount, want, READERS, SEED + number, folder, asks=asks)
    tuner = Tuner(mount, mib << 20, LAYERS, len(readers), SEED + number)
    sampling, pipe = reader_processes.fork.Event(), reader_processes.fork.Pipe(False)
    watcher = reader_processes.fork.Process(target=sample_memory, args=(pid, sampling, pipe[1]), daemon=True)
    watcher.start()
    pipe[1].close()
    experts = [name for name in want if name.startswith("experts/")]
    end, kills, changes, ended = time.monotonic() + seconds, 0, 0, []
    while time.monotonic() < end and mount.daemon.poll() is None:
        time.sleep(generator.choice((0.05, 0.2, 0.5)))
        tuner.change(budgets, experts)
        changes += 1
        if generator.random() < 0.3:  # one is killed at a random time, and replaced
            at = generator.randrange(len(readers))
            old = readers[at]
            old.process.kill()
            old.process.join()
            kills += 1
            if old.pipe.poll():
                try:
                    ended.append(old.pipe.recv()[1])
                except EOFError:
                    pass
            readers[at] = reader_processes.Reader(old.kind, mount.path, want, old.seed + 1, stop, ask=old.ask)
    stop.set()
    did, problems, signals = reader_processes.join(readers)
    problems += [problem for problem in ended if problem] + [f"{name}: ended by signal {n}" for name, n in signals]
    sampling.set()
    samples = pipe[0].recv() if pipe[0].poll(PATIENCE) else []
    watcher.join(PATIENCE)
    if not check(f"{did} reads and requests by {len(readers)}, {kills} killed, {changes} changes: no wrong byte, no error",
                 not problems, problems[:5]):
        note(mount.log_text()[-2000:])
    if mount.daemon.poll() is not None:
        check("the daemon is there", False, mount.log_text()[-3000:])
        mount.abandon()
        return
    refused = [problem for problem in tuner.problems if mount.passthrough() or problem[:2] != ("pin", "F")]
    check("all changes were taken, but for pins where nothing is kept full", not refused, refused[:3])
    above = over(samples, tuner)
    if SANITIZED or not samples:
        note("memory is not held to the budget: a sanitizer takes more")
    else:
        worst = max(above)
        note(f"{len(samples)} samples; most over the budget: {worst[0] / 2**20:.1f} MiB of {worst[2]}")
        check("no sample is over the budget", not above_tolerance(above), above_tolerance(above)[:5])
    check("only what is leased was held back", not tuner.more_than_leased, tuner.more_than_leased)
    check("nothing is held when all are gone", wait_until(lambda: quiet(mount)), mount.numbers())
    wait_until(lambda: not sums(mount.numbers()))
    check("the counters add up", not sums(mount.numbers()), (sums(mount.numbers()), mount.numbers()))
    check("no file is left open", wait_until(lambda: open_files(pid) - len(memory_files(pid, "fd")) <= plain_files),
          (open_files(pid), len(memory_files(pid, "fd")), plain_files))
    tuner.set_budget(f"{budgets[0]}M", budgets[0] << 20)
    check("nothing is held back any more", tuner.limits[-1] == budgets[0] << 20, (tuner.limits[-1], mount.numbers()))
    mount.check_budget()
    sizes = []

    def as_counted():
        sizes[:] = mount.count("full_pool_bytes"), sum(size for size, _ in memory_files(pid).values()), mount.used_bytes()
        return sizes == sorted(sizes)
    check("memory files take what is counted", wait_until(as_counted), sizes)  # reply buffers are shared memory, too
    check("all is served still", all(open(mount / name, "rb").read() == data for name, data in sorted(want.items())[::7]))
    mount.unmount("after the soak")


rounds = max(3, -(-int(SECONDS) // ROUND))
for number in range(rounds):
    soak(number + SEED % len(MOUNTS), SECONDS / rounds)
done()
