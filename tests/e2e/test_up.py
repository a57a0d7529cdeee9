# SPDX-License-Identifier: Apache-2.0
"""expertctl up, down and ls: a model by its directory, file, store, name and name on the Hugging Face Hub; packed once;
mounted once; what is refused, and that it leaves nothing."""
import shlex

from e2e import *

need_fuse()
expertctl = program("expertctl")
DATA, CACHE = scratch("data/expertfs"), scratch("hub")
os.environ.update(HF_HUB_CACHE=CACHE, HOME=scratch("home"))
NAME = os.path.basename(SCRATCH) + "-up"  # no mount of another test has this name
model = make_model(NAME, *NARROW)


def ctl(*arguments, **more):
    return run(expertctl, *arguments, **more)


def up(what, *arguments, packs=False):
    """Mounts, and checks the line that it prints; returns (store, mount point)."""
    result = ctl("up", *arguments)
    line = re.fullmatch(r"(.*) on (.*)\nstore: (.*)\nbudget: \S+ .iB(?: \(auto\))?\nnext: expertctl status (.*), expertctl down (.*)\n",
                        result.stdout)
    check(f"{what}: four lines", result.returncode == 0 and line and line[4] == line[5] and line[4] in (line[1], line[2]), result)
    check(f"{what}: {'packed, which is said' if packs else 'nothing is packed'}", packs == ("packing" in result.stderr), result)
    if not line:
        sys.exit(1)
    store, mount = (shlex.split(line[number])[0] for number in (3, 2))
    check(f"{what}: it is mounted", is_mounted(mount), mount)
    return store, mount


def down(what, *arguments):
    result = ctl("down", *arguments)
    check(f"{what}: down says nothing", result.returncode == 0 and not result.stdout + result.stderr, result)


def refused(what, status, says, *arguments, **more):
    before = files_below(scratch("data"))
    result = ctl(*arguments, **more)
    check(f"{what}: exit {status}, and why", result.returncode == status and re.search(says, result.stderr), result)
    check(f"{what}: nothing is left", files_below(scratch("data")) == before and not mounts_here(), files_below(scratch("data")))


def pid_of(path):
    return json.loads(ctl("status", "--json", path).stdout)["pid"]


def mounts_here():
    with open("/proc/mounts", errors="surrogateescape") as table:
        return [line for line in table if SCRATCH in line and " fuse.expertfs " in line]


def stores():
    return sorted(name for name in os.listdir(DATA) if name.endswith(".efs"))


print("-- a directory")
store, mount = up("a directory", model, packs=True)
check("store and mount point are beside each other", os.path.dirname(store) == DATA and mount == f"{DATA}/{NAME}", (store, mount))
check("its files are the model's", contents(model) == {name: data for name, data in contents(mount).items()
      if not name.startswith((".expertfs", "experts/"))})
check("again: the same mount", up("again", model) == (store, mount))
check("by its store: the same mount", up("its store", store) == (store, mount))
check("by a path in the mount", up("its mount", f"{mount}/experts") == (store, mount))
other = scratch("other")
check("another mount point is another mount", up("elsewhere", model, other, "-o", "budget=64M") == (store, other))
listed = ctl("ls").stdout
check("ls: the store with its ratio", re.search(rf"^{NAME} +\d.* 0\.\d+ +20\d\d-.* {re.escape(store)}$", listed, re.M), listed)
check("ls: the mounts with their user", all(f"{store} on {path} by " in listed for path in (mount, other)), listed)
told = json.loads(ctl("ls", "--json").stdout)
check("ls --json", [row["path"] for row in told["stores"]] == [store] and told["stores"][0]["source_bytes"] > 0 and
      {mount, other} <= {row["mountpoint"] for row in told["mounts"]}, told)
down("by name", NAME)
third = scratch("third")
up("elsewhere again", model, third)
result = ctl("down", NAME)
check("down by the name of a store that has two mounts: which one?", result.returncode == 1 and
      f"which mount? there are {other}, {third}\n" in result.stderr, result)
down("both", third, other + "/")
check("the mount point is gone, the store stays", stores() == [os.path.basename(store)] and not os.path.exists(mount), os.listdir(DATA))
check("by the name of the store", up("a name", NAME) == (store, mount))
with open(f"{mount}/config.json"):
    result = ctl("down", mount)
    check("down of a mount in use: why, and what helps", result.returncode == 1 and "in use\nhint: " in result.stderr and
          is_mounted(mount), result)
    down("--lazy", "--lazy", mount)
check("--lazy: it is detached", not is_mounted(mount))
told = json.loads(ctl("up", "--json", model).stdout)
check("up --json", (told["store"], told["mountpoint"], told["name"]) == (store, mount, NAME) and told["budget_bytes"] > 0, told)
told = json.loads(ctl("down", "--json", mount).stdout)
check("down --json", told == {"unmounted": [{"mountpoint": mount, "store": store}]}, told)

print("-- what has changed is packed again")
with open(f"{model}/config.json", "a") as file:
    file.write("\n")
changed, mount = up("a changed file", model, packs=True)
check("another store", changed != store and stores() == sorted(map(os.path.basename, (store, changed))), stores())
check("the changed bytes", contents(model)["config.json"] == open(f"{mount}/config.json", "rb").read())
down("changed", mount)
check("the name is that of the store that is not stale", up("the newest", NAME)[0] == changed)

print("-- one model, one store: by content, not by path, time or name")
same = shutil.copytree(model, scratch("elsewhere/copied"))
check("a copy", up("a copy", same) == (changed, mount))
records = changed + ".sources"
check("the copy is recorded: it is not read again", f"source: {same}\n" in open(records).read(), open(records).read())
for file in files_below(same):
    os.utime(f"{same}/{file}")
check("touched", up("touched", same) == (changed, mount))
os.symlink(model, scratch("linked"))
check("a link to it", up("a link to it", scratch("linked")) == (changed, mount))
shutil.rmtree(same)
same = shutil.copytree(model, scratch("elsewhere/one byte"))
files = [name for name in files_below(same) if name.endswith(".safetensors")]
status = os.stat(f"{same}/{files[-1]}")
with open(f"{same}/{files[-1]}", "r+b") as file:
    file.seek(-5, os.SEEK_END)
    byte = file.read(1)[0]
    file.seek(-5, os.SEEK_END)
    file.write(bytes([byte ^ 1]))
os.utime(f"{same}/{files[-1]}", ns=(status.st_atime_ns, status.st_mtime_ns))
tuned, tuned_mount = up("one bit of the last expert differs, all times are equal", same, packs=True)
check("its own store and mount", tuned not in (store, changed) and tuned_mount == f"{DATA}/one byte")
check("its bytes", contents(same)[files[-1]] == open(f"{tuned_mount}/{files[-1]}", "rb").read())
down("one byte", "one byte")
with open(tuned + ".sources") as file:
    text = file.read()
with open(tuned + ".sources", "w") as file:
    file.write(re.sub("^store: .*", "store: 0123456789abcdef", text))
check("a record of another store is ignored", up("another store's record", same)[0] == tuned)
down("one byte", "one byte")
with open(tuned + ".sources", "w") as file:
    file.write(text + "source: x\nnonsense\n")
check("so is a damaged one", up("a damaged record", same)[0] == tuned)
down("one byte", "one byte")

print("-- other models and versions of the same name")
namesake = make_model(f"elsewhere/{NAME}", *NARROW, "--seed=9")
result = ctl("up", namesake)
check("a namesake of a mounted model: another mount point, which is said", result.returncode == 0 and re.search(
      rf"note: {mount} is a mount of {re.escape(changed)}: {namesake} is mounted on {mount}@\w{{8}}\n", result.stderr), result)
named = re.search(r" on (\S+)\n", result.stdout)[1]
check("the first one stays", open(f"{mount}/config.json", "rb").read() == contents(model)["config.json"] and
      contents(namesake)[files[-1]] == open(f"{named}/{files[-1]}", "rb").read())
check("again: the same", named in ctl("up", namesake).stdout)
result = ctl("up", namesake, mount)
check("on the mount of another model: refused before it packs", result.returncode == 1 and re.search(
      rf"{mount}: is a mount of {re.escape(changed)}\nhint: `expertctl down", result.stderr), result)
result = ctl("up", NAME)
check("its name: which one?", result.returncode == 1 and re.search(
      rf"which store\? there are {NAME}@\w+, {NAME}@\w+\nhint: ", result.stderr), result)
check("by its name with the checksum", up("its full name", os.path.basename(named))[1] == named)
down("a namesake", named)
check("its mount point is gone", not os.path.exists(named))
with open(f"{namesake}/config.json", "a") as file:
    file.write("\n")
with open(f"{model}/config.json", "a") as file:
    file.write("\n")
before = pid_of(mount)
result = ctl("up", model)
newest = re.search(r"^store: (.*)", result.stdout, re.M)[1]
check("a model that has changed since it was mounted: the mount is replaced, which is said", result.returncode == 0 and
      f"note: {mount}: unmounted: it served {model}, which has changed\n" in result.stderr and f" on {mount}\n" in result.stdout and
      pid_of(mount) != before and newest not in (store, changed), result)
check("the changed bytes", contents(model)["config.json"] == open(f"{mount}/config.json", "rb").read())
with open(f"{model}/config.json", "a") as file:
    file.write("\n")
with open(f"{mount}/config.json"):
    result = ctl("up", model, mount)
    check("a mount in use stays: refused before it packs", result.returncode == 1 and "is a mount of" in result.stderr and
          "packing" not in result.stderr, result)
    result = ctl("up", model)
    check("without MNT on another mount point", result.returncode == 0 and re.search(rf" on {mount}@\w+\n", result.stdout), result)
    down("the new version", re.search(r" on (\S+)\n", result.stdout)[1])
    newest = re.search(r"^store: (.*)", result.stdout, re.M)[1]
down("the version before", mount)
listed = {row["path"]: row for row in json.loads(ctl("ls", "--json").stdout)["stores"]}
check("ls --json: sources and their states", (listed[newest]["source"], listed[newest]["source_state"]) == (model, "same") and
      (listed[changed]["source"], listed[changed]["source_state"]) == (model, "changed"), listed)
check("ls: the same in words", f"    of {model}, which has changed: stale\n" in ctl("ls").stdout and f"    of {model}\n" in ctl("ls").stdout, ctl("ls"))
only = scratch("elsewhere/moved")
os.rename(namesake, only)
listed = {row["path"]: row for row in json.loads(ctl("ls", "--json").stdout)["stores"]}
check("ls: a model that is not there", "missing" in [row["source_state"] for row in listed.values()], listed)
result = ctl("rm", "--stale", stdin=subprocess.DEVNULL)
check("rm --stale asks", result.returncode == 1 and "--yes is needed" in result.stderr and len(stores()) == len(listed), result)
os.utime(f"{same}/config.json")
told = json.loads(ctl("rm", "--stale", "--yes", "--json").stdout)["removed"]
check("rm --stale: stores of older versions, not those of which the model is gone, or was touched",
      {row["store"] for row in told} == {path for path, row in listed.items() if row["source_state"] == "changed"} and
      os.path.basename(tuned) in stores() and os.path.basename(newest) in stores(), (told, stores()))
check("rm --stale with nothing to delete says so", ctl("rm", "--stale", "--yes").stdout == "no store is stale\n")
check("no record is left alone", not [name for name in os.listdir(DATA) if name.endswith(".sources") and name[:-8] not in stores()])
shutil.rmtree(only)
check("rm by the name with the checksum", ctl("rm", "--yes", os.path.basename(named)).returncode == 0)
store = newest

print("-- one name for every verb")
for verb in (("info",), ("verify",), ("profile", "--force", "--seconds=1"), ("doctor",)):
    result = ctl(*verb, NAME)
    check(verb[0], result.returncode in (0, 1) and newest in result.stdout and "cannot open" not in result.stderr, result)
check("unpack", ctl("unpack", NAME, scratch("unpacked")).returncode == 0 and contents(scratch("unpacked")) == contents(model))
result = ctl("unpack", model, scratch("again"))
check("unpack of its checkpoint names the store", result.returncode == 1 and not os.path.exists(scratch("again")) and
      f"{model}: is a checkpoint, not a store\nhint: its store is {os.path.basename(newest)[:-4]}: `expertctl unpack` takes that name\n" in result.stderr, result)
result = ctl("unpack", make_model("never packed", *NARROW, "--seed=9"), scratch("again"))
check("of one without a store", result.returncode == 1 and "\nhint: its files are not packed; copy them" in result.stderr, result)
for verb in ("info", "verify", "profile"):
    result = ctl(verb, "nothing")
    check(f"{verb} of another name", result.returncode == 1 and "No such file or directory\nhint: `expertctl ls`" in result.stderr, result)
result = ctl("up", NAME, other)
check("up NAME MNT", result.returncode == 0 and f" on {other}\n" in result.stdout, result)
result = ctl("up", NAME, third)
check("a second mount: a note", result.returncode == 0 and f"is mounted on {other}, too" in result.stderr, result)
down("both", other, third)
dated = scratch("Kimi-20250711.efs")
shutil.copy(newest, dated)
check("a date is no checksum", ctl("up", dated, other).returncode == 0 and ctl("down", "Kimi").returncode == 1 and
      ctl("down", "Kimi-20250711").returncode == 0)
os.rmdir(other)

print("-- several models in a folder")
refused("a checkpoint that is gone", 1, "No such file", "up", only)
several = scratch("several")
for name in ("one", "two"):
    shutil.copytree(model, f"{several}/org/{name}")
refused("they are listed", 1, r"a folder of several models: org/one/, org/two/\nhint: name one", "up", several)
refused("also for a program", 125, "a folder of several models: ", "up", several, "--", "true", "{}")
check("mkexpertfs packs them", run(program("mkexpertfs"), "-q", several, scratch("several.efs")).returncode == 0)
shutil.copy(f"{model}/config.json", several)

print("-- at once")
both = [subprocess.Popen([expertctl, "up", "--store", scratch("data/twice"), model], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True) for _ in range(3)]
said = [one.communicate(timeout=PATIENCE) for one in both]
check("three at once: one packs, all succeed with the same line", [one.returncode for one in both] == [0] * 3 and
      len({out for out, _ in said}) == 1 and sum("packing" in error for _, error in said) == 1, said)
down("three at once", scratch(f"data/twice/{NAME}"))
check("no lock is left", len(os.listdir(scratch("data/twice"))) == 2, os.listdir(scratch("data/twice")))

print("-- the Hub")
snapshot = f"{CACHE}/models--some-org--Model-1B/snapshots/0123abc"
os.makedirs(f"{CACHE}/models--some-org--Model-1B/blobs")
os.makedirs(f"{CACHE}/models--some-org--Model-1B/refs")
os.makedirs(snapshot)
for name in os.listdir(model):
    if os.path.isfile(f"{model}/{name}"):
        shutil.copy(f"{model}/{name}", f"{CACHE}/models--some-org--Model-1B/blobs/{name}.blob")
        os.symlink(f"../../blobs/{name}.blob", f"{snapshot}/{name}")
with open(f"{CACHE}/models--some-org--Model-1B/refs/main", "w") as file:
    file.write("0123abc")
hub, mount = up("a name on the Hub", "some-org/Model-1B", packs=True)
check("its name has both parts", mount == f"{DATA}/some-org--Model-1B", mount)
check("its files", open(f"{mount}/config.json").read() == open(f"{snapshot}/config.json").read())
check("by its revision", up("a revision", "some-org/Model-1B@0123abc") == (hub, mount))
down("the Hub's", mount)
os.rename(CACHE, CACHE + ".gone")
check("a store is found when the cache is empty", up("the cache is empty", "some-org/Model-1B")[0] == hub)
down("the cache is empty", "some-org--Model-1B")
os.rename(CACHE + ".gone", CACHE)
os.environ.pop("HF_HUB_CACHE")
refused("not in the cache", 1, "hint: `hf download some-org/Model-2B x.gguf`", "up", "some-org/Model-2B@main/x.gguf")
os.makedirs(scratch("home/.cache/huggingface"))
os.symlink(CACHE, scratch("home/.cache/huggingface/hub"))
result = ctl("up", "some-org/Model-1B/config.json")
check("the cache below the home; a file of a model", result.returncode == 1 and "neither a store, nor a GGUF" in result.stderr, result)

print("-- a GGUF file, and a program")
gguf = make_model("gguf", *NARROW, "--format=gguf")
result = ctl("up", "-o", "budget=64M", f"{gguf}/model.gguf", "--", "cmp", f"{gguf}/model.gguf", "{gguf}")
check("a program reads {gguf}", result.returncode == 0 and "packing" in result.stderr, result)
check("the mount has ended", not mounts_here())
shutil.copy(f"{gguf}/model.gguf", f"{gguf}/second.gguf")
refused("several GGUF files", 125, r"several GGUF files: (model|second).gguf, (model|second).gguf\nhint: write {}/NAME",
        "up", make_store(gguf), "--", "true", "{gguf}")
refused("no GGUF file", 125, "the model has no GGUF file", "up", store, "--", "true", "{gguf}")

nothing = scratch("data/nothing")
for what, status, said, words in (("no GGUF file", 125, "the model has no GGUF file", ("true", "{gguf}")),
                                  ("no program", 127, "no-such-program: No such file", ("no-such-program", "{}"))):
    refused(f"{what}: before it is packed", status, said, "up", "-o", "budget=64M", "--store", nothing, model, "--", *words)
check("nothing was packed", not os.path.exists(nothing) or not os.listdir(nothing))

print("-- served in place")
quantised = scratch("quantised")
os.makedirs(quantised)
generator = random.Random(1)


def tensor_file(path, names, dtype):
    """A safetensors file whose tensors of 64 x 64 bytes do not shrink."""
    header, at = {}, 0
    for name in names:
        header[name] = {"dtype": dtype, "shape": [64, 64], "data_offsets": [at, at + 4096]}
        at += 4096
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + generator.randbytes(at))


tensor_file(f"{quantised}/model.safetensors", [f"model.layers.0.mlp.experts.{expert}.{part}_proj.weight"
            for expert in range(4) for part in ("gate", "up", "down")], "U8")
before = stores()
result = ctl("up", quantised)
check("a model that does not shrink is served in place", result.returncode == 0 and stores() == before and
      f"note: {quantised}: packing would save 0.0 %: served in place\n" in result.stderr and
      result.stdout.startswith(f"quantised on {DATA}/quantised\nstore: {quantised}\n"), result)
check("its files", contents(quantised) == {name: data for name, data in contents(f"{DATA}/quantised").items()
      if not name.startswith((".expertfs", "experts/"))})
told = json.loads(ctl("up", "--json", quantised).stdout)
check("again: the same mount", told["mountpoint"] == f"{DATA}/quantised" and told["in_place"], told)
check("status finds nothing wrong with its store", "replaced" not in ctl("status", f"{DATA}/quantised").stdout)
down("served in place", "quantised")
print("-- a model that is served in place and has changed")
changing = shutil.copytree(quantised, scratch("changing"))
mount = re.search(" on (.*)\n", ctl("up", changing).stdout)[1]
first = pid_of(mount)
check("unchanged: the same mount", ctl("up", changing).returncode == 0 and pid_of(mount) == first)
with open(f"{mount}/.expertfs/config") as file:
    started = int(re.search(r"^started: (\d+)", file.read(), re.M)[1])
wait_until(lambda: time.time() > started + 1.1)  # the mount says when it was mounted, in seconds
tensor_file(f"{changing}/model.safetensors", [f"model.layers.0.mlp.experts.{expert}.{part}_proj.weight"
            for expert in range(5) for part in ("gate", "up", "down")], "U8")
result = ctl("up", changing)
check("changed: mounted again, which is said", result.returncode == 0 and
      f"note: {mount}: unmounted: it served {changing}, which has changed" in result.stderr and pid_of(mount) != first, result)
check("the new bytes", contents(changing)["model.safetensors"] == open(f"{mount}/model.safetensors", "rb").read())
down("changed", mount)
result = ctl("up", "-o", "budget=64M", quantised, "--", "cmp", f"{quantised}/model.safetensors", "{}/model.safetensors")
check("a program on it", result.returncode == 0 and "warning" not in result.stderr, result)
tensor_file(f"{scratch('dense')}.safetensors", [f"block.{layer}.weird.{part}" for layer in range(4) for part in "ab"], "U8")
result = ctl("up", "-o", "budget=64M", f"{scratch('dense')}.safetensors", "--", "true", "{}")
check("no experts are found: which tensors are the largest", result.returncode == 0 and re.search(
      r"warning: .*dense\.safetensors: no experts were found: all of it is served as dense\nhint: .* block\.0\.weird\.a, "
      r"block\.0\.weird\.b; .*`mkexpertfs --experts 'REGEX'`", result.stderr), result)
with open(scratch("later.gguf"), "wb") as file:
    file.write(b"GGUF" + struct.pack("<IQQ", 99, 0, 0) + bytes(64))
result = ctl("up", "-o", "budget=64M", scratch("later.gguf"), "--", "true", "{}")
check("a GGUF file of an unknown version: a warning", result.returncode == 0 and re.search(
      r"warning: .*/later\.gguf: header at offset 0: GGUF version 99; .*; served as plain bytes", result.stderr), result)

print("-- warmup")
store, mount = up("for warmup", model, "-o", "warm=off")
get_warm = lambda where: ctl("get", where, "warm").stdout.strip()
result = ctl("warmup", mount)
check("warmup: all experts", result.returncode == 0 and re.fullmatch(
      rf"{mount}: done, the daemon holds (\d+) of \1 experts, .* read from the store\n", result.stdout), result)
check("warmup: the setting is what it was", get_warm(mount) == "off", get_warm(mount))
disk_bytes = lambda: int(re.search(r"^disk_bytes: (\d+)", open(f"{mount}/.expertfs/stat").read(), re.M).group(1))
before = disk_bytes()
for name in files_below(model):
    check(f"warmup: {name} is right", open(f"{mount}/{name}", "rb").read() == open(f"{model}/{name}", "rb").read())
check("warmup: neither experts nor other tensors are read from the store again", disk_bytes() == before, disk_bytes() - before)
told = json.loads(ctl("warmup", "--json", f"{mount}/experts/L00").stdout)
check("warmup of a path: the whole model", told["mountpoint"] == mount and told["disk_bytes"] == 0 and
      told["warm_state"] == "done" and told["experts_in_memory"] == told["experts"], told)
result = ctl("warmup", "-q", mount)
check("warmup --quiet", result.returncode == 0 and not result.stdout + result.stderr, result)
for arguments, code, says in (((mount, "config.json"), 2, "usage"), ((SCRATCH,), 1, "not in a mount")):
    result = ctl("warmup", *arguments)
    check(f"warmup: {says}", result.returncode == code and says in result.stderr.lower(), result)
down("for warmup", mount)
wide, small = make_store(make_model("wide", *WIDE)), scratch("small budget")
up("a small budget", wide, small, "-o", "budget=40M")
told = json.loads(ctl("warmup", "--json", small).stdout)
table = [line.split() for line in open(f"{small}/.expertfs/experts").read().splitlines()]
state = table[0].index("state")
check("warmup: a budget that holds a part of the experts", told["warm_state"] == "done: the planned part of the memory is full" and
      0 < told["experts_in_memory"] < told["experts"] == len(table) - 1 and
      told["experts_in_memory"] == sum(row[state] in "FC" for row in table[1:]), told)
check("warmup: the setting is the default again", get_warm(small) == "auto", get_warm(small))
down("a small budget", small)

print("-- what is refused")
refused("no such model", 1, "No such file.*\nhint: a model is", "up", "mode")
refused("a directory without weights", 1, "no weights found", "up", os.path.join(model, "extra"))
refused("an unknown option", 2, "unknown option \"nonsens\"", "up", "-o", "nonsens", store)
refused("no home", 1, "hint: --store DIR", "up", model, env={name: value for name, value in os.environ.items()
        if name not in ("HOME", "XDG_DATA_HOME")})
refused("a mount of another name", 1, "no mount of expertfs", "down", "nothing")
refused("down of nothing", 2, "MNT is needed", "down")
refused("down of all and one", 2, "--all takes no mount", "down", "--all", "x")
if os.geteuid() == 0:
    small, script = scratch("small"), 'mount -t tmpfs -o size=100k small "$1" && shift && exec "$@"'
    os.mkdir(small)
    result = run("unshare", "-m", "sh", "-c", script, "sh", small, expertctl, "up", "--store", small, model)
    check("a full disk: before the first byte, with the ways out", result.returncode == 1 and re.search(
        r"not enough free space for the store: about .* are needed, .* are free\nhint: --store DIR names a folder on another disk\n",
        result.stderr), result)
    wide_kib = sum(os.path.getsize(f"{scratch('wide')}/{name}") for name in files_below(scratch("wide"))) >> 10
    result = run("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={wide_kib + 24576}k small "$1" && cp -r "$2" "$1/wide" && '
                 '"$3" up --store "$1/stores" "$1/wide"', "sh", small, scratch("wide"), expertctl)
    check("a full disk: --reclaim where it can work", result.returncode == 1 and "hint: --reclaim packs it in place" in result.stderr, result)
    own = scratch("own")
    result = run("unshare", "-m", "sh", "-c", 'mount --make-rprivate / && umount -a -t fuse.expertfs; "$1" up "$2" "$3" >/dev/null && '
                 '"$1" up "$2" "$4" >/dev/null 2>&1 && "$1" down --all; "$1" ls | grep -c " on "', "sh", expertctl, store, own, own + "2")
    check("--all: all mounts of this user", result.stdout == "0\n" and not result.stderr, result)
print("-- interrupted, and without mkexpertfs's success")
other = scratch("bin")
os.makedirs(other)
shutil.copy(expertctl, f"{other}/expertctl")
fresh = make_model("fresh", *NARROW)
for what, script, status, says in (("Ctrl-C", "kill -INT $PPID; exit 130", 130, "expertctl: interrupted"),
                                   ("a failure", "echo mkexpertfs: no luck >&2; exit 1", 1, "mkexpertfs: no luck")):
    with open(f"{other}/mkexpertfs", "w") as file:
        file.write(f"#!/bin/sh\n{script}\n")
    os.chmod(f"{other}/mkexpertfs", 0o755)
    before = files_below(DATA)
    result = run(f"{other}/expertctl", "up", fresh)
    check(f"{what} while it packs: exit {status}, nothing is left", result.returncode == status and says in result.stderr and
          files_below(DATA) == before, (result, set(files_below(DATA)) - set(before)))
    result = run(f"{other}/expertctl", "up", fresh, "--", "true", "{}", env={**os.environ, "EXPERTFS_BUDGET": "64M"})
    check(f"{what}, with a program", result.returncode == (130 if status == 130 else 125) and files_below(DATA) == before, result)
os.remove(f"{other}/mkexpertfs")
here = scratch("interrupted")
before = files_below(DATA)
for number in ("INT", "TERM", "HUP"):
    with open(f"{other}/expertfs", "w") as file:
        file.write(f'#!/bin/sh\n{shlex.quote(program("expertfs"))} "$@" && kill -{number} $PPID\n')
    os.chmod(f"{other}/expertfs", 0o755)
    for what, given, at in (("a mount point of its own", [], f"{DATA}/{os.path.basename(store).split('@')[0].removesuffix('.efs')}"), ("a MNT", [here], here)):
        result = run(f"{other}/expertctl", "up", store, *given)
        check(f"SIG{number} when it is mounted, {what}: 130, nothing is mounted or left", result.returncode == 130 and not is_mounted(at) and
              result.stderr == "expertctl: interrupted\n" and not result.stdout and not os.path.exists(here) and files_below(DATA) == before, result)
        if is_mounted(at):
            run(expertctl, "down", at)
os.remove(f"{other}/expertfs")
shutil.copy(program("expertfs"), f"{other}/expertfs")
for what, given, noted in (("a GGUF model", make_store(gguf), True), ("safetensors", store, False)):
    result = run(f"{other}/expertctl", "up", "-o", "budget=64M", given, "--", "true", "{}")
    check(f"{what} without the backend: note {noted}", result.returncode == 0 and
          ("libggml-expertfs.so is not installed: llama.cpp reads experts from the mount's files\nhint: expertfs-ggml(7)" in result.stderr) == noted and
          ("libggml" in result.stderr) == noted, result)

print("-- a user without privileges")
for name in ("expertfs", "mkexpertfs"):
    shutil.copy(program(name), f"{other}/{name}")
hidden = Mount(store, "budget=64M", name="hidden")
result = as_nobody("""
    set -e
    export XDG_DATA_HOME="$2/data" HOME="$2"
    "$3/expertctl" up -o budget=64M "$4" >/dev/null # fits next to the memory of other tests: else status has a problem
    "$3/expertctl" ls
    "$3/expertctl" status "$2/data/expertfs/fresh" | grep ' serves \\|^problems'
    "$3/expertctl" status | head -n 1 || true
    "$3/expertctl" down "$5" 2>&1 || true
    mount=$2/data/expertfs/fresh # the kernel still has the attributes of its root when the daemon is killed
    kill -9 "$(sed -n 's/^pid: //p' "$mount/.expertfs/config")"
    while [ -e "$mount/config.json" ]; do sleep 0.1; done
    for given in "" "$mount"; do
        echo "again on <$("$3/expertctl" up "$4" $given 2>&1 | head -n 1)>"
        kill -9 "$(sed -n 's/^pid: //p' "$mount/.expertfs/config")"
        while [ -e "$mount/config.json" ]; do sleep 0.1; done
    done
    "$3/expertctl" down --all
    "$3/expertctl" status 2>&1 || true
    ls "$2/data/expertfs"
    """, other, fresh, hidden.path)
if result is not None:
    lines = result.stdout.splitlines()
    check("packs, mounts, unmounts", result.returncode == 0 and re.fullmatch(r"fresh@\w+\.efs", lines[-2]), result)
    check("ls: the mounts of all users", any(line.endswith(f"fresh by nobody") for line in lines) and
          any(line.endswith(f"{hidden.path} by root") for line in lines), lines)
    check("status: the own mount, not those that may not be read", any("/data/expertfs/fresh serves " in line for line in lines), lines)
    check("status: nothing is wrong with it", "problems  none" in lines, lines)
    check("down of another user's mount", any("only the user who mounted it, and root, may unmount it" in line for line in lines), lines)
    check("up mounts again where the daemon was killed", sum("again on <fresh on " in line for line in lines) == 2, lines)
    check("status without an own mount", "expertctl: there is no mount of expertfs that you may read" in lines, lines)
hidden.unmount()

print("-- a file system below the folder of a model")
if os.geteuid() == 0:
    within = shutil.copytree(model, scratch("within"))
    os.makedirs(f"{within}/mounted")
    os.makedirs(scratch("elsewhere/target"))
    shutil.copy(f"{model}/config.json", scratch("elsewhere/target/linked.json"))
    os.symlink(scratch("elsewhere/target"), f"{within}/link")
    script = ('mount -t tmpfs within "$1/mounted" && echo more >"$1/mounted/file" && mount -t tmpfs target "$2" && '
              'echo more >"$2/file" && shift 2 && exec "$@"')
    result = run("unshare", "-m", "sh", "-c", script, "sh", within, scratch("elsewhere/target"), program("mkexpertfs"), within, scratch("within.efs"))
    check("mkexpertfs leaves it out, and says so", result.returncode == 0 and "mounted: is another file system, and is not packed" in
          result.stdout + result.stderr, result)
    result = run(expertctl, "unpack", "-q", scratch("within.efs"), scratch("within again"))
    check("a link to one is followed", os.path.exists(scratch("within again/link/file")) and
          not os.path.exists(scratch("within again/mounted/file")), files_below(scratch("within again")))

print("-- no home, nothing to write, another user's home")
down("all", *[mount.split()[1].encode().decode("unicode_escape") for mount in mounts_here()]) if mounts_here() else None
homeless = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_DATA_HOME")}
where = scratch("where")
for what, given in (("a store", store), ("a model served in place", quantised)):
    result = ctl("up", given, where, env=homeless)
    check(f"{what} and MNT without a home", result.returncode == 0 and is_mounted(where), result)
    check("again", ctl("up", given, where, env=homeless).returncode == 0)
    check("down", ctl("down", where, env=homeless).returncode == 0 and os.path.isdir(where))
    refused(f"{what} without MNT", 1, "no folder for", "up", given, env=homeless)
os.rmdir(where)
refused("a folder that cannot be made", 1, "Not a directory|File exists", "up", store, f"{store}/mnt")
refused("an unknown option and new folders", 2, "unknown option", "up", "-o", "nonsens", store, scratch("data/new/folders"))
broken = scratch("broken.efs")
with open(broken, "wb") as file:
    file.write(b"expertfs" + bytes(9999))
refused("a damaged store and new folders", 1, "broken.efs", "up", broken, scratch("data/new/folders"))
check("failed calls leave no folders", not os.path.exists(scratch("data/new")))
if os.geteuid() == 0:
    theirs = scratch("theirs")
    os.mkdir(theirs)
    os.chown(theirs, 65534, 65534)
    root_home = scratch("roots")
    result = run("unshare", "-m", "sh", "-c", 'mkdir -p "$1" && mount --bind "$1" /root && shift && exec "$@"', "sh", root_home, expertctl, "up",
                 store, env={**homeless, "HOME": theirs})
    check("root with the home of another user: nothing is made there", result.returncode == 0 and not os.listdir(theirs) and
          f" on /root/.local/share/expertfs/{NAME}\n" in result.stdout, (result, os.listdir(theirs)))
    shared_folder = scratch("shared stores")
    os.mkdir(shared_folder)
    open_model = make_model("open model", *NARROW, "--seed=4")
    check("root packs for all", ctl("up", "--store", shared_folder, open_model, scratch("roots mount")).returncode == 0)
    down("root's mount", scratch("roots mount"))
    os.rmdir(scratch("roots mount"))
    result = as_nobody("""
        set -e
        export XDG_DATA_HOME="$2/data" HOME="$2"
        "$3/expertctl" up --store "$4" "$5"
        "$3/expertctl" down --all
        """, other, shared_folder, open_model)
    if result is not None:
        check("a user mounts the model that root has packed: found, not packed, the mount point is the user's own",
              result.returncode == 0 and "packing" not in result.stderr and "/data/expertfs/open model" in result.stdout and
              len([name for name in os.listdir(shared_folder) if name.endswith(".efs")]) == 1, result)

print("-- mount points are checked before packing")
unpacked, filled = make_model("not packed", *NARROW, "--seed=5"), scratch("filled")
os.mkdir(filled)
with open(f"{filled}/file", "w") as file:
    file.write("x")
before = stores()
for given, says in ((filled, "not empty\nhint: -o nonempty"), (f"{filled}/file", "Not a directory"), (f"{filled}/file/below", "Not a directory")):
    refused(given, 1, says, "up", unpacked, given)
    check("nothing was packed", "packing" not in ctl("up", unpacked, given).stderr and stores() == before)
refused("the model's own folder, by --store", 1, "not packed: the directory is not empty\nhint: name a mount point: `expertctl up MODEL MNT`",
        "up", "--store", os.path.dirname(unpacked), unpacked)
if os.geteuid() == 0:
    hung = scratch("hung")
    up("on another mount point", store, hung)
    daemon = pid_of(hung)
    suspend(daemon)
    result = ctl("up", unpacked, hung)
    check("a mount point whose daemon hangs", result.returncode == 1 and "does not answer" in result.stderr and "packing" not in result.stderr, result)
    os.kill(daemon, signal.SIGCONT)
    down("hung", hung)
    result = as_nobody('export XDG_DATA_HOME="$2/data" HOME="$2"; exec "$3/expertctl" up "$4" "$5"', other, unpacked, hung)
    check("a user's mount point that only root may write", result is None or (result.returncode == 1 and "packing" not in result.stderr and
          "Permission denied: a user mounts on folders" in result.stderr), result)

print("-- down while up is at work in the same folder")
store, mount = up("for down", model)
folder = os.open(DATA, os.O_RDONLY | os.O_DIRECTORY)
fcntl.flock(folder, fcntl.LOCK_SH)  # as `up` has from the making of a mount point until it is mounted
down("during up", NAME)
check("the folder that up may just have made stays", os.path.isdir(mount) and not is_mounted(mount))
fcntl.flock(folder, fcntl.LOCK_UN)
check("up takes it", up("after down", model)[1] == mount)
down("alone", NAME)
check("and it is removed", not os.path.exists(mount))
shares = []
for turn in range(4):  # in any order: up never finds its mount point removed
    calls = [subprocess.Popen([expertctl, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
             for words in (("up", "-o", "budget=64M", model), ("down", NAME))]
    shares += [call.communicate(timeout=PATIENCE)[0] for call in calls]
    ctl("down", NAME)
check("up and down at once", not [said for said in shares if "make the directory" in said], shares)
os.close(folder)

print("-- reclaim")
same = make_model("reclaimed/model", *NARROW, "--seed=3")
kept = contents(same)["config.json"]
result = ctl("up", "--reclaim", same, stdin=subprocess.DEVNULL)
check("--reclaim asks", result.returncode == 1 and "--yes is needed" in result.stderr and os.path.exists(same), result)
reclaimed, mount = up("--reclaim --yes", "--reclaim", "--yes", same, packs=True)
check("the checkpoint is gone, its bytes are there", not os.path.exists(f"{same}/config.json") and
      kept == open(f"{mount}/config.json", "rb").read())
down("reclaimed", mount)
done()
