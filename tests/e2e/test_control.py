# SPDX-License-Identifier: Apache-2.0
"""The files below .expertfs: their names and format, a consistent snapshot per open, numbers that add up, metrics
that a scraper accepts."""
import pwd
import resource

from e2e import *

need_fuse()
model, store = shared()
names = files_below(model)
mount = Mount(store, "budget=256M,direct_io=on")

check("the names", sorted(os.listdir(mount / ".expertfs")) == [
    "clients", "config", "experts", "handout", "hint", "layers", "log", "metrics", "plan", "pools", "predict", "profile", "readers", "recent",
    "stat", "tensors", "trace", "version", "want"])
check("they are listed in the root", ".expertfs" in os.listdir(mount.path))
check("their size is told as 0", os.stat(mount / ".expertfs/stat").st_size == 0)
check("nothing was asked for: an empty trace", open(mount / ".expertfs/trace", "rb").read() == b"")
for name in sorted(set(os.listdir(mount / ".expertfs")) - {"trace"}):
    text = mount.control(name)
    by_cat = run("cat", mount / f".expertfs/{name}").stdout
    check(f"{name}: cat and read() agree", bool(text) and text.endswith("\n") and len(by_cat) > 0)

print("-- form")
for name in ("version", "config", "stat", "plan", "profile", "want"):
    lines = mount.control(name).splitlines()
    bad = [line for line in lines if not re.fullmatch(r"[a-z_0-9]+: .+", line)]
    keys = [line.split(":")[0] for line in lines]
    check(f"{name}: {len(lines)} lines of name: value, each name once", not bad and len(set(keys)) == len(keys), bad)
config = mount.config()
check("config says what is mounted", config["store"] == store and config["mountpoint"] == mount.path and
      int(config["pid"]) == mount.daemon.pid and config["budget_bytes"] == str(256 << 20), config)
check("config and stat say which path serves and why", config["serving_path"] in ("passthrough", "direct_io",
      "page_cache") and mount.stat()["serving_path"] == config["serving_path"] and
      (config["passthrough"] == "yes") == (config["passthrough_reason"] == "-") and config["serving_reason"])
rows = mount.control("experts").splitlines()
check("experts: a head and 24 rows", len(rows) == 25 and rows[0].split()[:4] == ["name", "layer", "expert", "state"] and
      all(len(row.split()) == len(rows[0].split()) for row in rows), rows[:3])
rows = [row.split() for row in mount.control("pools").splitlines()]
check("pools: columns", rows[0][:7] == ["pool", "capacity_bytes", "used_bytes", "experts", "hits", "partial", "misses"] and
      [row[0] for row in rows[1:]] == [*"FCSEM", "fixed", "chunks", "full", "leased", "budget"] and
      all(len(row) == len(rows[0]) for row in rows), rows)

print("-- paths of which a line could be made more than one")
odd = scratch('a\nb" \\n\\')
os.makedirs(odd)
os.link(store, f"{odd}/store.efs")
other = Mount(f"{odd}/store.efs", "budget=64M", name="m\nt")
escaped = odd.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
lines = other.control("config").split("\n")
check("config: the store's path is one line", f"store: {escaped}/store.efs" in lines, lines[:3])
check("and the mountpoint's", "mountpoint: " + other.path.replace("\n", "\\n") in lines, lines)
check("each line is name: value", all(re.fullmatch(r"[a-z_0-9]+: .+", line) for line in lines[:-1]), lines)
check("metrics: the same", f'store="{escaped}/store.efs"' in other.control("metrics"))
line = f"{odd}/store.efs on {other.path} by {pwd.getpwuid(os.geteuid()).pw_name}".replace("\n", "?")
# ls waits a second for a daemon, in which a busy machine may not run it
check("expertctl ls: a line a mount", wait_until(lambda: line in run(program("expertctl"), "ls").stdout.splitlines()), line)
told = run(program("expertctl"), "doctor", other.path)
check("expertctl doctor finds the store", told.stdout.count("\ngood") > 5 and "was removed" not in told.stdout, told.stdout + told.stderr)
other.unmount()

print("-- one moment per open")
with open(mount / ".expertfs/stat", "rb", buffering=0) as file:
    first = file.read(200)
    for name in names:
        open(mount / name, "rb").read()
    rest = b""
    while piece := file.read(97):
        rest += piece
    file.seek(0)
    again = file.read(1 << 20)
check("an open file does not change while it is read", first + rest == again)
check("a new open sees the new numbers", mount.control("stat").encode() != again)

print("-- numbers")
before = mount.numbers()
read_bytes = 0
for name in names:
    read_bytes += len(open(mount / name, "rb").read())
experts = mount.experts()
handles = [open(mount / name, "rb") for name in experts[:5]]
for handle in handles:
    handle.read()
after = mount.numbers()
grown = {name: after[name] - before[name] for name in after}
backed = mount.passthrough()
plain_bytes = 0 if backed else sum(os.path.getsize(mount / name) for name in experts[:5])
spare = {name: grown["fuse_ahead" + name] - grown["fuse_ahead_hit" + name] for name in ("s", "_bytes")}
check("bytes sent are bytes read", grown["fuse_reply_bytes"] == read_bytes + plain_bytes ==
      grown["read_bytes"] - spare["_bytes"], (grown["fuse_reply_bytes"], read_bytes, grown["read_bytes"], spare))
check("reads are counted alike by daemon and engine", grown["fuse_reads"] + spare["s"] == grown["reads"], grown)
opens = sum(after[f"fuse_{name}"] for name in ("opens_passthrough", "opens_direct", "opens_cached", "opens_control",
                                               "open_errors", "open_interrupts"))
check("every open is counted once", opens == after["fuse_opens"] - 1, (opens, after["fuse_opens"]))  # without this one
if backed:
    check("five experts are leased", wait_until(lambda: mount.count("leased_experts") == 5) and after["leased_bytes"] > 0 and
          grown["fuse_opens_passthrough"] == 5 == grown["leases"], after)
    check("the experts file says so", wait_until(lambda: (row := mount.table("experts")["L00/E000"])["state"] == "F" and row["leases"] == "1"),
          mount.table("experts")["L00/E000"])
    reads = mount.count("fuse_reads")
    for handle in handles:
        handle.seek(0)
        handle.read()
    check("reading them again is no request to the daemon", mount.count("fuse_reads") == reads)
for handle in handles:
    handle.close()
check("closing gives the leases back", wait_until(lambda: mount.count("leased_experts") == 0))
mount.check_budget()

print("-- the trace")
for token in range(4):
    for layer in range(3):
        with open(mount / ".expertfs/want", "w") as file:
            file.write(f"{layer}: {token} {token + 4}*2\n")
check("inflight comes to an end", wait_until(lambda: mount.count("inflight") == 0))
with open(mount / ".expertfs/trace", "rb") as file:
    trace = file.read()
layers, of_layer, chosen, probabilities, name_bytes, tokens = struct.unpack("<5IQ", trace[12:40])
ids = struct.unpack("<" + f"II{layers * chosen}H" * tokens, trace[48 + name_bytes:])
check("its head, and as many records as it says", trace[:12] == b"MOETRACE" + struct.pack("<I", 2) and tokens >= 4 and
      (layers, of_layer, probabilities) == (3, 8, 0), (trace[:40], tokens))
rows = [ids[t * (2 + layers * chosen) + 2:(t + 1) * (2 + layers * chosen)] for t in range(tokens)]
check("passes of several tokens an expert", all(ids[t * (2 + layers * chosen) + 1] == 3 for t in range(tokens - 4, tokens)))
last = [[set(row[layer * chosen:(layer + 1) * chosen]) for layer in range(3)] for row in rows[-4:]]
check("the last four tokens are those that were asked for", last == [[{t, t + 4}] * 3 for t in range(4)], last)
with open(scratch("mount.route"), "wb") as file:
    file.write(trace)
result = run(program("moe-replay"), "--store", store, "--budget", "50%", "--policy", "lru",
             scratch("mount.route"))
check("moe-replay reads it", result.returncode == 0 and "lru" in result.stdout, result)

print("-- metrics")  # expertfs-proc(5) and its families: man/test_proc; Prometheus' own programs: test_metrics
samples = dict(re.sub(r"\{mount=.*\}", "", line).rsplit(" ", 1) for line in mount.control("metrics").splitlines() if line[0] != "#")
check("their values are those of stat", int(samples["expertfs_read_bytes_total"]) == after["read_bytes"] and
      "expertfs_disk_seconds_total" in samples and "expertfs_fuse_reply_bytes_total" in samples, samples)

try:
    from prometheus_client.parser import text_string_to_metric_families as parse
except ImportError:
    parse = None
    note("left out: a scraper's parser (prometheus-client, tools/setup-python installs it)")
if parse:
    parsed = list(parse(mount.control("metrics")))
    kinds = {family.name: family.type for family in parsed}
    check(f"a scraper's parser reads {len(parsed)} families", len(parsed) > 40 and
          kinds["expertfs_read_bytes"] == "counter" and kinds["expertfs_budget_bytes"] == "gauge", kinds)
    check("each with its help, and the mount", all(family.documentation and all(
          sample.labels["mount"] == mount.path for sample in family.samples) for family in parsed))

    def pools_agree():
        told = {(sample.name, sample.labels.get("pool")): sample.value for family in parse(mount.control("metrics")) for sample in family.samples}
        pools = mount.table("pools")
        return all(told["expertfs_pool_experts", pool] == int(pools[pool]["experts"]) and
                   told["expertfs_pool_evicted_total", pool] == int(pools[pool]["evicted"]) for pool in "FCSEM") and \
            told["expertfs_pool_hits_total", "M"] == int(pools["M"]["misses"]) and \
            told["expertfs_pool_capacity_bytes", "C"] == int(pools["C"]["capacity_bytes"])
    # an expert may be demoted between the two
    check("pools there and in metrics agree", wait_until(pools_agree), mount.control("pools"))

print("-- open many times")
text, most = len(mount.control("metrics")), resource.getrlimit(resource.RLIMIT_NOFILE)
allowed = min(16 << 20, mount.count("budget_bytes") // 16)
needed, held = allowed // text + 100, []
resource.setrlimit(resource.RLIMIT_NOFILE, (max(most[0], min(needed + 100, most[1])), most[1]))
if most[1] < needed + 100:
    note(f"left out: needs {needed + 100} open files")
else:
    try:
        while len(held) < needed:
            held.append(os.open(mount / ".expertfs/metrics", os.O_RDONLY))
        error = None
    except OSError as refused:
        error = refused.errno
    check("their texts take a sixteenth of the budget, at most 16 MiB", error == errno.ENFILE and len(held) * text * 2 > allowed,
          (error, len(held), text))
    check("files of the checkpoint open", error_of(lambda: open(mount / "config.json", "rb").close()) == "none")
    for fd in held:
        os.close(fd)
    check("then they open again", wait_until(lambda: error_of(mount.control, "metrics") == "none"))
resource.setrlimit(resource.RLIMIT_NOFILE, most)

print("-- while open experts take all memory")
tight = Mount(make_store(make_model("tight", "-F", "qwen3-moe", "-d", "128", "-i", "256", "-e", "64", "-l", "6", "--vocab", "500")),
              "budget=64M", name="tight")
if tight.config()["passthrough"] == "yes":
    for _ in range(4):
        for name in tight.experts():  # requests of all layers, for trace
            open(tight / name, "rb").read()
    held = []
    for name in tight.experts():
        held.append(os.open(tight / name, os.O_RDONLY))
    check("some find no memory", tight.count("fuse_lease_fallbacks") > 0)
    texts = [error_of(lambda: held.append(os.open(tight / f".expertfs/{name}", os.O_RDONLY)))
             for name in ("trace", "experts", "metrics", "stat") * 5]
    bytes_ = sum(len(os.pread(fd, 4 << 20, 0)) for fd in held[-20:])
    check(f"all control files open, {bytes_ >> 10} KiB at once", set(texts) == {"none"} and bytes_ > 300 << 10, texts)
    for fd in held:
        os.close(fd)
else:
    note("left out: needs passthrough")
tight.unmount()

print("-- read by many at once")
bad = []


def reader(_):
    for _ in range(30):
        text = mount.control("stat")
        if not text.endswith("\n") or "fuse_reply_errors: " not in text:
            bad.append(text)


check("240 snapshots by 8 threads are whole", in_threads(reader, range(8)) and not bad)
mount.unmount()
done()
