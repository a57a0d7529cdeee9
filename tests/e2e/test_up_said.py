# SPDX-License-Identifier: Apache-2.0
"""expertctl up ignores nothing in silence: options of a model that is mounted, --reclaim where there is nothing to
reclaim, files that are no model."""
from e2e import *

need_fuse()
expertctl = program("expertctl")
_, store = shared(NARROW)
model = make_model("model", *NARROW)
DATA = scratch("data/expertfs")


def up(*arguments):
    return run(expertctl, "up", *arguments)


def budget(path):
    return re.search(r"^budget_bytes: (\d+)", open(f"{path}/.expertfs/config").read(), re.M).group(1)


def says(what, status, words, *arguments):
    result = up(*arguments)
    check(f"{what}: exit {status}, {words!r}", result.returncode == status and re.search(words, result.stdout + result.stderr), result)


print("-- options, before anything is packed")
for options, words in (("budgt=1G", "unknown option \"budgt\"\nhint: did you mean budget"), ("budget=50%", "50%"), ("budget=64M,nopas", "nopas")):
    says(options, 2, words, "-o", options, model)
    says(f"{options} with a program", 125, words, "-o", options, model, "--", "true", "{}")
for name, value, words in (("BUDGET", "abc", "EXPERTFS_BUDGET=abc is no size; one is written 8G"), ("BUDGET", "50%", "no size"), ("BUDGET", "0", "no size"),
                           ("PREFETCH", "maybe", "EXPERTFS_PREFETCH: prefetch=maybe: allowed are off, on")):
    result = ctl("up", model, "--", "echo", "started", "{}", **{"EXPERTFS_" + name: value})
    check(f"EXPERTFS_{name}={value}: exit 125, the program is not started", result.returncode == 125 and words in result.stderr and
          "started" not in result.stdout, result)
for peers, key, words in (("bogus", model, "EXPERTFS_PEERS: bogus: not HOST:PORT"), ("a:1,b", model, "EXPERTFS_PEERS: b: not HOST:PORT"), ("a:1", "", "needs EXPERTFS_PEER_KEY"),
                          ("a:1", scratch("no key"), "no key: No such file")):
    result = ctl("up", model, "--", "echo", "started", "{}", EXPERTFS_PEERS=peers, EXPERTFS_PEER_KEY=key)
    check(f"peers {peers!r}, key {key!r}: exit 125, the program is not started", result.returncode == 125 and words in result.stderr and
          "started" not in result.stdout, result)
result = ctl("up", model, "--", "echo", "started", "{}", EXPERTFS_PEERS="a:1", EXPERTFS_PEER_KEY=model)
check("a model that fits: peers are not used, as a line says", result.returncode == 0 and "EXPERTFS_PEERS is not used" in result.stderr, result)
for value in ("CPU", "CUDA0,CUDA1", "CUDA 0", "CUDA0\n", "\u00c7UDA0"):
    for arguments, variables in ((["--device", value], {}), ([], {"EXPERTFS_DEVICE": value})):
        result = ctl("up", *arguments, model, "--", "echo", "started", "{}", **variables)
        check(f"device {value!r} {variables}: exit 125, one line, the program is not started", result.returncode == 125 and
              "EXPERTFS_DEVICE=" in result.stderr and len(result.stderr.splitlines()) == 1 and not result.stdout, result)
says("a device without a name", 2, "--device: a name is missing", "--device", "", model, "--", "true")
for variable, words in (("BUDGET=much", "EXPERTFS_DEVICE_BUDGET=much is no size"),
                        ("POLICY=fifo", "EXPERTFS_DEVICE_POLICY=fifo is none of zipmoe, lru, lfu, dali"),
                        ("SHARE=maybe", "EXPERTFS_DEVICE_SHARE=maybe is none of on, greedy, off")):
    name, value = variable.split("=")
    result = ctl("up", "--device", "CUDA0", model, "--", "echo", "started", "{}", **{"EXPERTFS_DEVICE_" + name: value})
    check(f"EXPERTFS_DEVICE_{variable}: exit 125", result.returncode == 125 and words in result.stderr and "started" not in result.stdout, result)
    result = ctl("up", "--device", "none", scratch("nothing"), "--", "true", **{"EXPERTFS_DEVICE_" + name: value})
    check(f"EXPERTFS_DEVICE_{variable} without a device is not looked at", result.returncode == 125 and words not in result.stderr, result)
check("nothing is packed", not os.path.exists(DATA) or not os.listdir(DATA))

print("-- options of a model that is mounted")
first = up("-o", "budget=64M", model)
check("mounted", first.returncode == 0, first)
mount, elsewhere = f"{DATA}/model", scratch("elsewhere")
check("elsewhere too", up("-o", "budget=64M", model, elsewhere).returncode == 0)
for what, given, path in (("the model", [model], mount), ("a path in the mount", [f"{mount}/config.json"], mount),
                          ("with its mount point", [model, elsewhere], elsewhere)):
    says(f"{what}: a budget", 0, "budget: 65.0 MiB", "-o", "budget=65M", *given)
    check(f"{what}: it is set", budget(path) == str(65 << 20), budget(path))
    says(f"{what}: an unknown option", 2, "unknown option \"budgt\"", "-o", "budgt=1G", *given)
    says(f"{what}: no size", 2, "50%", "-o", "budget=50%", *given)
    says(f"{what}: too small", 1, "below the minimum", "-o", "budget=1K", *given)
    check(f"{what}: it is as it was", budget(path) == str(65 << 20), budget(path))
    says(f"{what}: an option of the mount", 0, f"warning: {path}: mounted already: -o nopassthrough,workers=1 has an effect only "
         f"when it is mounted\nhint: `expertctl down {path}`", "-o", "nopassthrough,budget=64M,workers=1", *given)
    check(f"{what}: the budget is set", budget(path) == str(64 << 20), budget(path))
result = up("-o", "budget=64M", model)
check("the same option again: no warning", result.returncode == 0 and not result.stderr, result)
result = up("-o", "policy=lfu,goal=nonsense", model)
check("a value that the daemon refuses", result.returncode == 2 and "goal" in result.stderr, result)

print("-- --reclaim")
before = contents(model)
says("a model that is packed", 1, rf"{model}: packed already, as {DATA}/model@.*\.efs: --reclaim would remove nothing", "--reclaim", "-y", model)
says("a mount", 1, "this is a mount", "--reclaim", "-y", mount)
says("a store", 1, "this is a store", "--reclaim", "-y", store)
check("nothing is removed", contents(model) == before)
run(expertctl, "down", mount, elsewhere)

print("-- a record of sources that is a FIFO, or of any size")
packed = next(f"{DATA}/{name}" for name in os.listdir(DATA) if name.endswith(".efs"))
record, state = packed + ".sources", scratch("fifo-state")
with open(record) as file:
    text = file.read()


def source_state():
    rows = json.loads(ctl("ls", "--json", EXPERTFS_STATE=scratch("no-state")).stdout)["stores"]
    return next(row.get("source_state") for row in rows if row["path"] == packed)


check("its source is known", source_state() == "same")
os.truncate(record, 65 << 20)
check("a record of 65 MiB is not read", source_state() != "same", source_state())
os.unlink(record)
os.mkfifo(record)
check("a FIFO is not waited for: ls", source_state() != "same", source_state())
result = ctl("up", model, EXPERTFS_STATE=scratch("no-state"))
check("nor by up, which compares the bytes and writes the record again", result.returncode == 0 and "packing" not in result.stderr and
      source_state() == "same", result)
run(expertctl, "down", mount)
os.mkdir(state)
for kind in ("sources", "same"):
    os.mkfifo(f"{state}/{kind}-{text.split()[1]}.txt")
result = run("env", f"EXPERTFS_STATE={state}", program("mkexpertfs"), "-q", model, scratch("fifo.efs"))
check("nor by mkexpertfs", result.returncode == 0 and os.path.isfile(f"{state}/sources-{text.split()[1]}.txt"), result)

print("-- a mount point with a mount of another store")
twins = [scratch("twin1.efs"), scratch("twin2.efs")]
for twin, codec in zip(twins, ("zstd", "cascade")):
    check(f"packed by {codec}", run(program("mkexpertfs"), "-q", "--codec", codec, model, twin).returncode == 0)
check("mounted", up("-o", "budget=64M", twins[0], elsewhere).returncode == 0)
for more in ([], ["-o", "budget=1M"]):
    says(f"of the same model, which has not changed {more}", 1, f"{elsewhere}: is a mount of {twins[0]}\nhint: `expertctl down", *more, twins[1], elsewhere)
check("it stays", is_mounted(elsewhere))
with open(f"{model}/config.json", "a") as file:
    file.write("\n")
says("of the model before it changed: replaced", 0, f"note: {elsewhere}: unmounted: it served {model}, which has changed\n", "-o", "budget=64M",
     model, elsewhere)
run(expertctl, "down", elsewhere)

print("-- a program of expertfs that a signal ends")
os.mkdir(scratch("bin"))
alone = shutil.copy(expertctl, scratch("bin/expertctl"))  # finds mkexpertfs and expertfs in its folder
unpacked = make_model("unpacked", *NARROW, "--seed=8")
for name, number, word, given in (("mkexpertfs", 9, "Killed", unpacked), ("mkexpertfs", 11, "Segmentation fault", unpacked),
                                  ("expertfs", 9, "Killed", store)):
    with open(scratch(f"bin/{name}"), "w") as file:
        file.write(f"#!/bin/sh\nkill -{number} $$\n")
    os.chmod(scratch(f"bin/{name}"), 0o755)
    for more, status in (([], 1), *([(["--", "true"], 125)] if name == "mkexpertfs" else [])):
        result = run("env", "EXPERTFS_BUDGET=64M", alone, "up", given, *more)
        check(f"{name} ended by signal {number} {more}: exit {status}, and why", result.returncode == status and
              f"expertctl: {name} was ended by signal {number} ({word})\n" in result.stderr and
              ("\nhint: `dmesg`" in result.stderr) == (number == 9), result)

print("-- the environment of the backend")
for value, status in (("1M", 125), ("64M", 0), ("auto", 0), ("", 0)):
    result = ctl("up", store, "--", "echo", "started", EXPERTFS_BUDGET=value, EXPERTFS_PREFETCH="")
    check(f"EXPERTFS_BUDGET={value}: exit {status}", result.returncode == status and ("started" in result.stdout) == (status == 0) and
          (status == 0 or re.search("EXPERTFS_BUDGET: .*below the minimum.*\nhint: ask for budget=", result.stderr)), result)

print("-- files that are no model")
for name, data in (("notes.txt", b"hello\n"), ("pytorch_model.bin", random.Random(1).randbytes(99999)), ("empty", b""), ("archive.pt", b"PK\3\4" + bytes(999))):
    with open(scratch(name), "wb") as file:
        file.write(data)
    for more in ([], ["--", "true", "{}"]):
        says(name, 125 if more else 1, f"{name}: neither a store, nor a GGUF or safetensors file\nhint: a model is a directory", scratch(name), *more)
damaged = scratch("damaged.efs")
with open(damaged, "wb") as file:
    file.write(b"expertfs" + bytes(100))
says("a store that is not whole: its own reason", 1, "damaged.efs: (?!neither)", damaged)
done()
