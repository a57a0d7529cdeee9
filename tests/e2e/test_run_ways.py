#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`expertctl up MODEL -- PROGRAM` runs a model that fits into memory from its own files, without backend, store or mount; a
larger one takes experts from the store and all else from the plain GGUF file; by -o, without plain files or without a GGUF
file it runs on a mount. {gguf}, {} and a name in the arguments lead to the same way. EXPERTFS_BUDGET is obeyed."""
from e2e import *

expertctl = program("expertctl")
DATA = scratch("data")
os.environ["XDG_DATA_HOME"] = DATA
STORES = f"{DATA}/expertfs"
PLUGIN = os.path.exists(os.path.join(BUILD, "libggml-expertfs.so"))
PRINT = 'echo "$EXPERTFS_STORE|$EXPERTFS_MOUNT|$LD_PRELOAD|$0|$1"'


def ran(*words, budget=None, prefix=()):
    environment = {k: v for k, v in os.environ.items() if k not in ("EXPERTFS_BUDGET", "EXPERTFS_DEVICE", "LD_PRELOAD")}
    environment.update({"EXPERTFS_STORE": "elsewhere", **({"EXPERTFS_BUDGET": budget} if budget else {})})
    return run(*prefix, expertctl, "up", *words, env=environment)


def way(result):
    """(EXPERTFS_STORE, EXPERTFS_MOUNT, backend preloaded, arguments) of the program."""
    store, mount, preload, *arguments = result.stdout.strip().split("|") if result.returncode == 0 else ["failed", "", "", result.stderr]
    return store, mount, "libggml-expertfs" in preload, arguments


def files_of_stores():
    return sorted(os.listdir(STORES)) if os.path.exists(STORES) else []


folder = make_model("gguf", *NARROW, "--format=gguf")
gguf = f"{folder}/model.gguf"

print("-- it fits")
for what, model in (("a GGUF file", gguf), ("a folder", folder)):
    result = ran(model, "--", "sh", "-c", PRINT, "{gguf}", "{}")
    check(f"{what} that fits: its own files, no backend", way(result) == ("", "", False, [gguf, folder]), result)
    check(f"{what} that fits: said", re.fullmatch(r"expertctl: sh runs on the plain files: they fit, [\d.]+ MiB of [\d.]+ GiB that are "
                                                  r"available\n", result.stderr), result.stderr)
check("nothing is packed for it", files_of_stores() == [], files_of_stores())
result = ran(gguf, "--", "sh", "-c", PRINT, gguf, "-")
check("its name in the arguments: the same", way(result) == ("", "", False, [gguf, "-"]), result)
split = scratch("split")
os.makedirs(split)
for part in (1, 2):
    os.link(gguf, f"{split}/model-0000{part}-of-00002.gguf")
result = ran(f"{split}/model-00002-of-00002.gguf", "--", "sh", "-c", PRINT, "{gguf}", "{}")
check("the second part of a split model: llama.cpp is given the first", way(result)[3] == [f"{split}/model-00001-of-00002.gguf", split], result)
plain = make_model("plain", *NARROW)
check("safetensors that fit", way(ran(plain, "--", "sh", "-c", PRINT, "{}", "-")) == ("", "", False, [plain, "-"]))
result = ran(plain, "--", "sh", "-c", PRINT, "{gguf}")
check("no GGUF file: nothing else is said", result.returncode == 125 and
      result.stderr == "expertctl: {gguf}: the model has no GGUF file\nhint: {} is its folder\n", result)

print("-- EXPERTFS_BUDGET, and limits of memory")
group = None
try:
    group = memory_cgroup(32 << 20)
except OSError as error:
    note(f"left out: no memory cgroup: {error}")
large = make_model("large", "-F", "qwen3-moe", "-d", "512", "-i", "512", "-e", "16", "-l", "3", "--vocab", "500", "--format=gguf")
for what, model, more in (("a budget", folder, {"budget": "auto"}), *([("a limit of memory", large, {"prefix": group.prefix})] if group else ())):
    if "budget" not in more:
        ran(model, "--", "true", "{}", budget="64M")  # packs it, without the limit
    file = f"{model}/model.gguf"
    for argument, expands in (("{gguf}", file), ("{}/model.gguf", file), (file, file)):
        result = ran(model, "--", "sh", "-c", PRINT, argument, "-", **more)
        store, mount, backend, arguments = way(result)
        if PLUGIN:
            check(f"{what}, {argument}: experts from the store, all else from the file", store.startswith(STORES) and
                  store.endswith(".efs") and backend and not mount and arguments == [expands, "-"], result)
            check(f"{what}, {argument}: said", re.search(
                f"sh takes experts from {store}, all else from {model}\\S*: [0-9.]+ MiB of experts, [0-9.]+ .iB of memory are available\n", result.stderr),
                result.stderr)
result = ran(plain, "--", "sh", "-c", PRINT, "{}", "-", budget="64M")
store, mount, _, arguments = way(result)
check("safetensors: a mount", not store and mount and arguments == [mount, "-"] and "sh runs on a mount of " in result.stderr, result)

print("-- a mount, and the plain file")
# settled: a result is kept only for a file that has not changed for two seconds
wait_until(lambda: time.time() - os.stat(f"{large}/model.gguf").st_ctime > 4)
packed, at = scratch("packed.efs"), f"{large}/model.gguf"
check("it is packed", run(program("mkexpertfs"), "-q", large, packed).returncode == 0)
mounted, in_place = Mount(packed, "budget=64M", name="packed"), Mount(at, "budget=64M", name="in_place")
for what, mount, store in (("packed by hand", mounted, packed), ("in place", in_place, at)):
    words = (mount.path, "--", "sh", "-c", PRINT + '; echo "$EXPERTFS_MOUNT_STORE"', "{gguf}", "{}")
    result = ran(*words)
    check(f"{what}, it fits: the plain file without the backend", result.stdout.splitlines() == [f"|{mount.path}||{at}|{mount.path}", ""], result)
    check(f"{what}, it fits: said", re.fullmatch(r"expertctl: sh runs on the plain files: they fit, .*\n", result.stderr), result.stderr)
    result = ran(*words, budget="auto")
    lines = result.stdout.splitlines()
    if PLUGIN:
        check(f"{what}: {{gguf}} is the plain file, {{}} the mount", lines[1:] == [store] and lines[0].endswith(f"|{at}|{mount.path}"), result)
        check(f"{what}: said", re.search(
            f"sh takes experts from {mount.path}, all else from {at}: [0-9.]+ MiB of experts, a budget of [0-9.]+ MiB\n", result.stderr), result.stderr)
    else:
        check(f"{what}: without a backend the mount", lines[0].endswith(f"|{mount.path}/model.gguf|{mount.path}"), result)
    mount.unmount()

print("-- the plain file of a store that was packed by hand")
words = ("--", "sh", "-c", PRINT, "{gguf}", "{}")
check("it is found", way(ran(packed, *words)) == ("", "", False, [at, large]), ran(packed, *words))
copy = shutil.copy(packed, scratch("copy.efs"))
check("also of a copy of the store", way(ran(copy, *words))[3] == [at, large], ran(copy, *words))
result = ran(packed, *words, prefix=("env", f"EXPERTFS_STATE={scratch('no-state')}"))
check("without the record: a mount, and why", way(result)[1] and f"note: {packed}: from which files it was packed is not known\nhint: "
      f"`expertctl up --store {SCRATCH} CHECKPOINT` compares" in result.stderr, result)
os.rename(large, large + ".moved")
result = ran(packed, *words)
check("files that are not there: a mount, and why", way(result)[1] and f"note: {packed}: the files that were packed are not there: {large}\n"
      "hint: " in result.stderr, result)
if PLUGIN:
    result = ran(packed, "--", "sh", "-c", PRINT, "other.gguf", "-")
    check("a file that the program names: left to llama.cpp if it fits, which is said", way(result)[0] == packed and
          f"sh takes experts from {packed} unless the model fits into memory, all else from the file that it opens: " in result.stderr, result)
    experts = re.search(r"^experts .* layers, (.*?) of ", run(expertctl, "info", packed).stdout, re.M)[1]
    result = ran(packed, "--", "sh", "-c", PRINT, "other.gguf", "-", budget="64M")
    check("the experts of the store, and the budget, are in the line", f": {experts} of experts, a budget of 64.0 MiB\n" in result.stderr, result)
os.rename(large + ".moved", large)
other = make_model("other", "-F", "qwen3-moe", "-d", "512", "-i", "512", "-e", "16", "-l", "3", "--vocab", "500", "--format=gguf", "--seed=77")
copied = shutil.copytree(large, scratch("copied"))


def recorded(store, checkpoint):
    """Writes the record of a store by hand."""
    with open(store + ".sources", "w") as file:
        file.write(f"store: {content_hash}\nsource: {checkpoint}\n")
        for name in sorted(files_below(checkpoint)):
            st = os.stat(f"{checkpoint}/{name}")
            times = " ".join(f"{ns // 10**9}.{ns % 10**9:09d}" for ns in (st.st_mtime_ns, st.st_ctime_ns))
            file.write(f"{st.st_size} {times} {st.st_ino} {name}\n")


state = ("env", f"EXPERTFS_STATE={scratch('record-state')}")
content_hash = re.search(r", ([0-9a-f]{16})$", run(expertctl, "info", copy).stdout.splitlines()[0])[1]
recorded(copy, other)
check("files of one size", os.path.getsize(f"{other}/model.gguf") == os.path.getsize(at))
result = ran(copy, *words, prefix=state)
check("a record that names another model: it is not run, and why", way(result)[1] and
      f"note: {copy}: the files that were packed have changed: {other}\n" in result.stderr, result)
recorded(copy, copied)
for times in ("once", "again"):
    result = ran(copy, *words, prefix=state)
    check(f"a record of a copy, compared {times}: its files", way(result)[3] == [f"{copied}/model.gguf", copied], result)
if os.geteuid() == 0 and run("unshare", "-m", "true").returncode == 0:
    os.mkdir(scratch("tmpfs"))
    script = ('mount -t tmpfs tmpfs "$1" && cp -r "$2/." "$1" && cd "$1" && '
              '{ printf "store: %s\\nsource: %s\\n" "$4" "$1"; find * -type f | LC_ALL=C sort | while read -r file; do '
              'stat -c "%s %.9Y %.9Z %i %n" "$file"; done; } >"$3.sources" && shift 4 && exec "$@"')
    result = ran(copy, *words, prefix=("unshare", "-m", "sh", "-c", script, "sh", scratch("tmpfs"), large, copy, content_hash, *state))
    check("files on tmpfs, which may change without a trace: not run, and why", way(result)[1] and
          f"note: {scratch('tmpfs')}: not used: its file system may change a file and not its times\n" in result.stderr, result)

store_of_large = next(f"{STORES}/{name}" for name in files_of_stores() if name.startswith("large") and name.endswith(".efs"))
mounted = Mount(store_of_large, "budget=64M", name="packed")
words = ("--", "sh", "-c", PRINT + '; echo "$EXPERTFS_MOUNT_STORE"', "{gguf}", "-")
lines = ran(mounted.path, *words, budget="auto").stdout.splitlines()
check("packed by up: the plain file", not PLUGIN or (lines[0].startswith(f"|{mounted.path}|") and lines[0].endswith(f"|{at}|-") and
      lines[1:] == [store_of_large]), lines)
mounted.unmount()

print("-- a device")
if PLUGIN:
    result = ran("--device", "CUDA7", gguf, "--", "sh", "-c", PRINT + '; echo "$EXPERTFS_DEVICE"', "{gguf}", "-")
    lines = result.stdout.splitlines()
    check("--device: experts from the store, also where the model fits", len(lines) == 2 and lines[0].startswith(STORES), result)
    check("--device: EXPERTFS_DEVICE of the program", lines[1:] == ["CUDA7"], result)
    for name in ("none", "auto"):
        check(f"--device={name}: the plain files", way(ran(f"--device={name}", gguf, "--", "sh", "-c", PRINT, "{gguf}", "-")) ==
              ("", "", False, [gguf, "-"]))
result = ran("--device", "CUDA7", gguf)
check("--device without a program is refused", result.returncode == 2 and "--device goes with a PROGRAM" in result.stderr, result)

print("-- an address")
from http_server import Server

server = Server({"/model.gguf": open(gguf, "rb").read()})
for budget, given in ((None, "auto"), ("64M", "64M")):
    result = ran(server.url + "/model.gguf", "--", "sh", "-c", 'echo "$EXPERTFS_BUDGET"', "{gguf}", budget=budget)
    check(f"EXPERTFS_BUDGET={budget}: experts are taken from the mount also if all fits", result.stdout.strip() == given, result)
server.close()

print("-- a mount")
result = ran("-o", "budget=64M", folder, "--", "sh", "-c", PRINT, "{gguf}", "{}")
store, mount, _, arguments = way(result)
check("-o: a mount", not store and mount and arguments == [f"{mount}/model.gguf", mount], result)
NOTE = "expertctl: note: the plain files fit into memory: without -o sh runs on them\n"
check("-o on a model that fits: a note", result.stderr.count(NOTE) == 1, result.stderr)
result = ran("-o", "budget=64M", folder, "--", "sh", "-c", PRINT, "{}", "-", budget="64M")
check("-o and EXPERTFS_BUDGET: without -o not on the plain files, no note", way(result)[1] and NOTE not in result.stderr, result)
if group:
    result = ran("-o", "policy=lfu", large, "--", "sh", "-c", PRINT, "{}", "-", prefix=group.prefix)
    check("-o on a model that does not fit: no note", "sh runs on a mount of " in result.stderr and NOTE not in result.stderr, result)
packed = next(f"{STORES}/{name}" for name in files_of_stores() if name.startswith("gguf") and name.endswith(".efs"))
result = ran(packed, "--", "sh", "-c", PRINT, "{gguf}", "{}")
check("a store whose checkpoint is there: the plain files", way(result) == ("", "", False, [gguf, folder]), result)
os.rename(folder, folder + ".moved")
result = ran(packed, "--", "sh", "-c", PRINT, "{gguf}", "{}")
store, mount, _, arguments = way(result)
check("a store whose checkpoint is not there: a mount", not store and mount and arguments == [f"{mount}/model.gguf", mount], result)
result = ran("-o", "budget=64M", packed, "--", "sh", "-c", PRINT, "{}", "-")
check("-o on a store whose checkpoint is not there: no note", way(result)[1] and NOTE not in result.stderr, result)
os.rename(folder + ".moved", folder)
with open(gguf, "r+b") as file:
    file.seek(-1, 2)
    file.write(b"!")
result = ran(packed, "--", "sh", "-c", PRINT, "{gguf}", "{}")
check("a store whose checkpoint has changed: a mount", way(result)[1] != "", result)

print("-- a mount, and a plain file that has changed")
mounted = Mount(store_of_large, "budget=64M", name="changed")
with open(at, "r+b") as file:  # of the same size, with its times set back
    times = os.stat(at)
    file.seek(-1, os.SEEK_END)
    last = file.read(1)[0]
    file.seek(-1, os.SEEK_END)
    file.write(bytes([last ^ 1]))
os.utime(at, ns=(times.st_atime_ns, times.st_mtime_ns))
lines = ran(mounted.path, *words).stdout.splitlines()
check("a file that has changed: the mount", lines[0].endswith(f"|{mounted.path}/model.gguf|-") and lines[1:] == [""], lines)
mounted.unmount()
done()
