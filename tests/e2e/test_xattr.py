# SPDX-License-Identifier: Apache-2.0
"""Tuning by xattrs: their places, refused values and the daemon's answers, the effect of removal, and that the bytes
stay the same meanwhile. For permissions: test_permissions.py."""
from e2e import *

need_fuse()
model, store = shared()
names = files_below(model)
FOLDER, EXPERT, OTHER = "experts/L01", "experts/L01/E003.safetensors", "experts/L02/E000.safetensors"
mount = Mount(store, "budget=128M")
P = "user.expertfs."


def get(name, path=""):
    return os.getxattr(mount / path, P + name).decode()


def set_(name, value, path=""):
    os.setxattr(mount / path, P + name, value.encode() if isinstance(value, str) else value)


def remove(name, path=""):
    os.removexattr(mount / path, P + name)


print("-- which there are")
tunables = tunables()
choices = [(name, value) for name, values in tunables.items() if name not in ("budget", "plan") for value in values.split("|")
           if (name, value) != ("local_fill", "on")]
expert_names = ["pin", "state", "kept", "rank", "count", "bytes", "leases"]
named = {"": sorted(set(tunables) | {"answer", "effective_budget"}), EXPERT: sorted(expert_names), FOLDER: ["pin"]}
for path, which in named.items():
    check(f"names of {path or 'the root'}", sorted(get("names", path).split()) == which, get("names", path))
    check("  each can be read", all(get(name, path) is not None for name in which))
for path in ("experts", ".expertfs", ".expertfs/stat", "config.json"):
    check(f"none on {path}", error_of(get, "names", path) == error_of(get, "pin", path) == "ENODATA")

print("-- copies get none")
check("none is listed", not any(os.listxattr(mount / path) for path in named))
os.mkdir(scratch("copies"))
try:
    os.setxattr(scratch("copies"), "user.other", b"1")
except OSError:
    note("left out: the scratch folder's file system has no extended attributes")
else:
    tar = f"{scratch('copies')}/tar"
    os.mkdir(tar)
    copies = {"cp -a": ("cp", "-a", mount.path, f"{scratch('copies')}/cp"),
              "tar --xattrs": ("sh", "-c", 'tar -C "$1" --xattrs -c . | tar -C "$2" --xattrs -x', "sh", mount.path, tar)}
    if shutil.which("rsync"):
        copies["rsync -aX"] = ("rsync", "-aX", f"{mount.path}/", f"{scratch('copies')}/rsync")
    for what, command in copies.items():
        result = run(*command)
        path = f"{scratch('copies')}/{what.split()[0]}"
        carried = {name for base, _, files in os.walk(path) for file in [base, *(f"{base}/{f}" for f in files)]
                   for name in os.listxattr(file, follow_symlinks=False)}
        check(what, result.returncode == 0 and not carried and os.path.exists(f"{path}/{EXPERT}"), (result, carried))
    shutil.copytree(mount / "experts", f"{scratch('copies')}/python")
    check("shutil.copytree", os.listxattr(f"{scratch('copies')}/python/L01/E003.safetensors") == [])
    result = run(program("expertctl"), "get", f"{scratch('copies')}/cp")
    check("no copy is taken for a mount", result.returncode == 1 and "not in a mount" in result.stderr, result)
shutil.rmtree(scratch("copies"))

print("-- what is set")
began = {name: get(name) for name in tunables}
check("as it was mounted", began["budget"] == str(128 << 20) and began["policy"] == "zipmoe" and
      set(began["pools"]) <= set("FCSE") and began["plan"] == "auto" and get("answer") == "ok", began)
for name, path in (("budgets", ""), ("budget", EXPERT), ("budget", "config.json"), ("pin", ""), ("state", FOLDER),
                   ("pin", "config.json"), ("", "")):
    check(f"no {name} on {path or 'the root'}: ENODATA", error_of(get, name, path) == "ENODATA")
for name in ("user.other", "security.capability", "trusted.x", "user.expertfs", "system.posix_acl_access"):
    check(f"no {name}", error_of(os.getxattr, mount.path, name) in ("ENODATA", "EOPNOTSUPP"))

print("-- setting")
for name, value, becomes in (
        ("budget", "64M", str(64 << 20)), ("budget", "auto", "auto"), ("budget", "0.125G", str(128 << 20)),
        ("pools", "CSE", "CSE"), ("pools", "ec", "CE"), ("pools", "FCSE", "FCSE"),
        ("plan", "C=50,S=25,E=25", "F=0:C=50:S=25:E=25"), ("plan", "C=100", "F=0:C=100:S=0:E=0"), ("plan", "auto", "auto"),
        *((name, value, value) for name, value in choices), ("policy", "zipmoe", "zipmoe"), ("goal", "io", "io"),
        ("prefetch", "off", "off"), ("warm", "auto", "auto"), ("local_fill", "off", "off")):
    set_(name, value)
    check(f"{name}={value}", get(name) == becomes, get(name))
    config = mount.config()
    check(f"  config says so, and the answer is ok", config[name] == becomes and get("answer") == "ok",
          (config[name], get("answer")))
set_("budget", "48M")
check("the budget is in force at once", mount.count("budget_bytes") == 48 << 20)
mount.check_budget()
for pin in ("C", "-") + (("F",) if mount.passthrough() else ()):
    set_("pin", pin, EXPERT)
    check(f"pin={pin} of an expert", get("pin", EXPERT) == pin and mount.table("experts")["L01/E003"]["pin"] == pin and
          get("pin", OTHER) == "-")
set_("pin", "C", FOLDER)
rows = mount.table("experts")
check("pin of a layer: all of its experts", all((rows[name]["pin"] == "C") == name.startswith("L01/") for name in rows) and
      get("pin", FOLDER) == "C" and get("pin", EXPERT) == "C")
remove("pin", EXPERT)
check("one of them without: mixed", get("pin", FOLDER) == "mixed" and get("pin", EXPERT) == "-")
remove("pin", FOLDER)
check("removed: none is pinned", all(row["pin"] == "-" for row in mount.table("experts").values()) and
      get("pin", FOLDER) == "-")

print("-- removing")
for name, value in (("budget", "64M"), ("policy", "lru"), ("pools", "C"), ("plan", "C=100"), ("goal", "makespan")):
    set_(name, value)
    remove(name)
    check(f"{name} is as it was mounted", get(name) == began[name], get(name))
check("what is not there: ENODATA", error_of(remove, "budgets") == "ENODATA" and
      error_of(remove, "budget", EXPERT) == "ENODATA" and error_of(os.removexattr, mount.path, "user.x") == "ENODATA")
check("what only tells: EPERM", error_of(remove, "state", EXPERT) == "EPERM" and error_of(remove, "answer") == "EPERM")

print("-- what is refused: of values more in engine/test_tune_text.c")
before = {name: get(name) for name in tunables}
told = 0  # the log limits a kind to 16 lines a minute
for name, value, path, error, says in (
        ("budget", "", "", "EINVAL", "8G"), ("budget", b"64M\0", "", "EINVAL", "8G"),
        ("budget", b"\xff\xfe", "", "EINVAL", "8G"), ("budget", "1" * 300, "", "EINVAL", "8G"),
        ("budget", "1M", "", "ERANGE", "minimum"), ("pools", "XYZ", "", "EINVAL", "FCSE"), ("plan", "F=90,C=20", "", "EINVAL", "100"),
        ("policy", "oracle", "", "EINVAL", "zipmoe, lru, lfu, fifo, marking"), ("policy", "lru\n", "", "EINVAL", "lfu"),
        ("goal", "speed", "", "EINVAL", "makespan"), ("prefetch", "auto", "", "EINVAL", "allowed are off, on"), ("warm", "64M", "", "EINVAL", "always"), ("local_fill", "on", "", "EINVAL", "needs a local copy"),
        ("pin", "S", EXPERT, "EINVAL", "F, C and -"), ("pin", "", FOLDER, "EINVAL", "F, C and -"),
        ("pin", b"C\0", FOLDER, "EINVAL", "F, C and -"),
        ("nonsense", "1", "", "EINVAL", "budget"), ("pin", "C", "", "EINVAL", "a layer or an expert"),
        ("budget", "64M", EXPERT, "EINVAL", "the whole mount")):
    printed = len(mount.log_text())
    got = error_of(set_, name, value, path)
    check(f"{name}={value!r:.24} on {path or 'the root'}: {error}", got == error, got)
    logged = wait_until(lambda: says in mount.log_text()[printed:], PATIENCE if told < 16 else 0)
    check("  the log and the answer tell what is allowed", (logged or told >= 16) and says in get("answer"),
          (mount.log_text()[printed:], get("answer")))
    told += logged
for name, path in (("answer", ""), ("state", EXPERT), ("rank", EXPERT), ("count", EXPERT), ("bytes", EXPERT)):
    check(f"{name} cannot be set: EPERM", error_of(set_, name, "1", path) == "EPERM")
check("others cannot be set", error_of(os.setxattr, mount.path, "user.other", b"1") in ("EOPNOTSUPP", "ENOTSUP"))
check("to create what is there: EEXIST", error_of(os.setxattr, mount.path, P + "policy", b"lru", os.XATTR_CREATE) == "EEXIST")
os.setxattr(mount.path, P + "policy", b"zipmoe", os.XATTR_REPLACE)
check("nothing has changed by it", {name: get(name) for name in tunables} == before)

if shutil.which("setfattr") and shutil.which("getfattr"):
    print("-- setfattr, getfattr")
    check("setfattr", run("setfattr", "-n", P + "policy", "-v", "lru", mount.path).returncode == 0 and get("policy") == "lru")
    result = run("setfattr", "-n", P + "policy", "-v", "best", mount.path)
    check("a wrong value", result.returncode == 1 and "Invalid argument" in result.stderr, result)
    check("setfattr -x", run("setfattr", "-x", P + "policy", mount.path).returncode == 0 and get("policy") == "zipmoe")
    check("getfattr of one", run("getfattr", "--only-values", "-n", P + "pin", mount / EXPERT).stdout == "-")
result = run("ls", "-l", mount.path)
check("ls -l has nothing to complain of", result.returncode == 0 and not result.stderr, result)

print("-- what an expert tells")
COLUMNS = {"state": "state", "kept": "kept", "rank": "rank", "bytes": "resident_bytes", "leases": "leases"}


def look():
    """Reads the xattrs and the table; True if the table was the same before and after: the kernel reports a close with
    a delay, which then ends the lease, and plans are made in the background."""
    global row, xattrs
    row = mount.table("experts")["L02/E000"]
    xattrs = {name: get(name, OTHER) for name in COLUMNS}
    return mount.table("experts")["L02/E000"] == row


data = open(mount / OTHER, "rb").read()
check("the lease ends", wait_until(lambda: get("leases", OTHER) == "0"), get("leases", OTHER))
check("the table stands still", wait_until(look), row)
check("as the experts file says", xattrs == {name: row[column] for name, column in COLUMNS.items()} and
      int(get("count", OTHER)) >= 1, (xattrs, row, get("count", OTHER)))
with open(mount / OTHER, "rb") as file:
    file.read(1)
    check("leases", get("leases", OTHER) == ("1" if mount.passthrough() else "0"), get("leases", OTHER))

print("-- under load")
source = contents(model)
bad, ended, halt = [], [], threading.Event()


def reader(number):
    while not halt.is_set():
        for name in names[number % 2::2]:
            if open(mount / name, "rb").read() != source[name]:
                bad.append(name)
        if open(mount / OTHER, "rb").read() != data:
            bad.append(OTHER)


policies = tunables["policy"].split("|")
readers = threading.Thread(target=lambda: ended.append(in_threads(reader, range(4))))
readers.start()
problems = []
for turn in range(12):
    for name, value in (("budget", ("48M", "128M", "64M")[turn % 3]), ("pools", ("FCSE", "C", "CSE", "SE")[turn % 4]),
                        ("policy", policies[turn % len(policies)]),
                        ("plan", ("auto", "C=60,S=20,E=20", "F=50,C=50")[turn % 3])):
        try:
            set_(name, value)
        except OSError as error:
            problems.append((name, value, error))
    set_("pin", "C-"[turn % 2], FOLDER)
    if mount.count("budget_bytes") not in (48 << 20, 128 << 20, 64 << 20):
        problems.append(mount.count("budget_bytes"))
halt.set()
readers.join()
check("72 changes while 4 threads read: all taken", not problems, problems[:3])
check("and no wrong byte", not bad and ended == [True], bad[:3])
for name in tunables:
    remove(name)
remove("pin", FOLDER)
check("then all is as it was mounted", {name: get(name) for name in tunables} == began)
mount.unmount()

print("-- options")
mount = Mount(store, "budget=96M,policy=lru,pools=CSE,plan=C=50:S=50,goal=makespan,nostate,prefetch=on,warm=off")
got = {name: get(name) for name in tunables}
want = {"budget": str(96 << 20), "policy": "lru", "pools": "CSE", "plan": "F=0:C=50:S=50:E=0", "goal": "makespan",
        "prefetch": "on", "warm": "off", "local_fill": "off"}
check("are what it begins with", got == want, got)
set_("policy", "fifo")
remove("policy")
check("and what removing goes back to", get("policy") == "lru")
mount.stop()
for options, status, says in (("policy=best", 2, "policy=best: allowed are zipmoe, lru"), ("plan=C=50,S=50", 2, "option \"S\""),
                              ("plan=C=50:S=20,pools=XY", 2, "FCSE"), ("delta=x", 2, "unknown option")):
    os.makedirs(scratch("refused"), exist_ok=True)
    result = run(program("expertfs"), "-f", store, scratch("refused"), "-o", options)
    check(f"{options}: exit {status}, and why", result.returncode == status and says in result.stderr, result)

print("-- prealloc takes the memory of the plan that was given")
for plan, full in (("F=100", True), ("F=50:C=50", True), ("C=100", False)):
    mount = Mount(store, f"budget=96M,nostate,prealloc,plan={plan}")
    taken = {name: mount.count(name) for name in ("chunk_pool_bytes", "full_pool_bytes")}
    check(f"plan={plan}", (taken["full_pool_bytes"] > 0) == (full and mount.passthrough()), taken)
    mount.stop()
done()
