# SPDX-License-Identifier: Apache-2.0
"""Commands of expertctl on a mount by its name, in it by a path, and on one whose daemon has ended or hangs: each says
what to do, none hangs."""
from e2e import *

need_fuse()
expertctl = program("expertctl")
HUB = os.path.basename(SCRATCH).replace("_", "-") + "/tiny"
os.environ.update(HF_HUB_CACHE=scratch("hub"), HOME=scratch("home"))
snapshot = scratch(f"hub/models--{HUB.replace('/', '--')}/snapshots/0a1b")
model = make_model("model", *NARROW)
shutil.copytree(model, snapshot)
NAME = HUB.replace("/", "--")
os.chdir(SCRATCH)


def ctl(*arguments):
    return run(expertctl, *arguments)


def copied(name):
    """A model of its own of that name: one with the same bytes would share its store."""
    shutil.copytree(model, name)
    with open(os.path.join(name, "name"), "wb") as file:
        file.write(os.fsencode(name))


def says(what, status, words, *arguments):
    result = ctl(*arguments)
    check(f"{what}: {words!r}", result.returncode == status and re.search(words, result.stdout + result.stderr), result)


def pid():
    return json.loads(ctl("status", "--json", NAME).stdout)["pid"]


def up():
    result = ctl("up", "-o", "budget=64M", HUB)
    check("mounted", result.returncode == 0, result)
    return f"{scratch('data')}/expertfs/{NAME}"


print("-- a name")
mount = up()
for given in (NAME, HUB, mount, f"{mount}/experts"):
    says(f"status of {given}", 0, f"^{mount} serves ", "status", given)
    says(f"doctor of {given}", 0, f"\ngood +errors +{mount}: none", "doctor", given)
says("log", 0, "info: ", "log", NAME)
says("warmup", 0, "read from the store", "warmup", NAME)
says("get", 0, "^67108864$", "get", NAME, "budget")
says("set", 0, "^$", "set", HUB, "budget=65M")
says("it is set", 0, "^65.0 MiB$", "get", "-h", mount, "budget")
for value, option in (("auto", "auto"), ("64M", "size")):
    ctl("set", mount, "budget=" + value)
    with open(f"{mount}/.expertfs/config") as file:
        check(f"the current budget: {option}", f"budget_option: {option}\n" in file.read())
os.mkdir(NAME)
says("a folder of this name is no mount", 0, f"^{mount} serves ", "status", NAME)
says("nor for doctor", 0, f"\ngood +errors +{mount}: none", "doctor", NAME)
says("another name", 1, "no mount of expertfs\nhint: did you mean", "status", NAME + "x")
says("a path that does not exist", 1, "No such file or directory|no mount of expertfs", "status", "/nowhere/at/all")

print("-- a file without settings")
says("get of a file of the checkpoint", 1, f"has no settings.*\nhint: `expertctl get {mount}`", "get", f"{mount}/config.json")
says("get of an expert", 0, "state: ", "get", f"{mount}/experts/L00/E000.safetensors")

print("-- other revisions and files are not taken for this one")
for given in (f"{HUB}@other", f"{HUB}/other.gguf"):
    says(given, 1, "neither a path, nor in the cache", "up", given)
says("the hint has the revision", 1, f"`hf download {HUB} --revision other`", "up", f"{HUB}@other")
for before in ("https://huggingface.co/", "hf.co/", "hf://"):
    says(before, 0, f" on {mount}\nstore: ", "up", before + HUB)
shutil.rmtree(scratch("hub"))
says("the store alone", 0, f" on {mount}\nstore: ", "up", HUB)

print("-- a daemon that was killed")


def state():
    return [one["state"] for one in json.loads(ctl("ls", "--json").stdout)["mounts"] if one["mountpoint"] == mount]


check("ls: it serves", wait_until(lambda: state() == ["serving"]), state())  # ls waits a second for an answer
os.kill(pid(), signal.SIGKILL)
wait_until(lambda: error_of(os.listdir, mount) == "ENOTCONN")
ended = f"{mount}: the daemon of this mount has ended(\nhint: |; hint: )`expertctl down {mount}`"
for command in (["status"], ["status", "--json"], ["log"], ["warmup"], ["get"], ["up"]):
    for given in (mount, NAME) if command != ["up"] else (mount,):
        says(" ".join(command), 1, ended, *command, given)
says("set", 1, ended, "set", mount, "budget=64M")
says("a path in it", 1, ended, "get", f"{mount}/experts/L00")
says("doctor", 1, ended, "doctor", mount)
says("ls", 0, f" on {mount} by .*: its daemon has ended\n", "ls")
check("up makes it again", up() == mount and os.path.exists(f"{mount}/config.json"))

print("-- a daemon that hangs")
daemon = pid()
suspend(daemon)
hangs = f"{mount}: the daemon of this mount does not answer(\nhint: |; hint: )`expertctl down {mount}`"
for command in (["status"], ["log"], ["get"], ["up"], ["doctor"]):
    says(" ".join(command), 1, hangs, *command, mount)
says("ls", 0, f" on {mount} by .*: its daemon does not answer\n", "ls")
os.kill(daemon, signal.SIGCONT)
result = ctl("down", NAME)
check("down", result.returncode == 0 and not is_mounted(mount) and not os.path.exists(mount), result)

print("-- a mount point that the user made stays")
store = make_store(make_model("second", *NARROW))
os.mkdir("mnt")
shutil.copy(store, "model.efs")
check("mounted", run(program("expertfs"), "-o", "budget=64M", "model.efs", "mnt").returncode == 0)
os.makedirs("second place/mnt")
check("mounted twice", run(program("expertfs"), "-o", "budget=64M", "model.efs", "second place/mnt").returncode == 0)
os.chdir("second place/mnt/experts")
for verb in ("status", "doctor"):
    says(f"{verb}: two mounts of one name", 1, "mnt: which mount\\? there are .*/mnt, .*/mnt", verb, "mnt")
os.chdir(SCRATCH)
says("doctor of a store that is there", 0, "\ngood +store +model.efs: ", "doctor", "model.efs")
says("down", 0, "^$", "down", scratch("second place/mnt"))
says("down", 0, "^$", "down", scratch("mnt"))
check("the folder is there", os.path.isdir("mnt"), os.listdir("."))

print("-- names that a shell quotes")
for name in ("two words", "a 'quoted' name", "new\nline"):
    copied(name)
    result = ctl("up", "-o", "budget=64M", name)
    word = result.stdout.rsplit("expertctl down ", 1)[-1]
    check(f"{name!r}: four lines", result.returncode == 0 and result.stdout.count("\n") == 4, result)
    check("the shell reads its path", run("bash", "-c", f'"$1" down {word}', "bash", expertctl).returncode == 0, word)

print("-- a name that is not UTF-8, and one of a store")
odd, name = scratch("data/expertfs/") + os.fsdecode(b"\xffmodel"), "folder.efs"
copied(os.fsdecode(b"\xffmodel"))
told = json.loads(ctl("up", "--json", "-o", "budget=64M", os.fsdecode(b"\xffmodel")).stdout or "{}")
as_text, odd_store = odd.replace("\udcff", "\ufffd"), told.get("store", "-")
check("up --json", (told.get("name"), told.get("mountpoint")) == ("\ufffdmodel", as_text), told)
told = json.loads(ctl("ls", "--json").stdout)
check("ls --json", odd_store in [row["path"] for row in told["stores"]] and as_text in [row["mountpoint"] for row in told["mounts"]], told)
check("ls", "\ufffdmodel " in ctl("ls").stdout, ctl("ls"))
check("status --json", json.loads(ctl("status", "--json", odd).stdout or "{}").get("mountpoint") == as_text)
told = json.loads(ctl("down", "--json", odd).stdout)
check("down --json", [row["mountpoint"] for row in told["unmounted"]] == [as_text], told)
told = json.loads(ctl("rm", "--yes", "--json", os.fsdecode(b"\xffmodel")).stdout)
check("rm --json", [row["store"] for row in told["removed"]] == [odd_store], told)
copied(name)
check("up", ctl("up", "-o", "budget=64M", name).returncode == 0)
check("ls: its mount point is no store", scratch("data/expertfs/folder.efs") not in [
    row["path"] for row in json.loads(ctl("ls", "--json").stdout)["stores"]], ctl("ls"))
says("down", 0, "^$", "down", scratch("data/expertfs/folder.efs"))

print("-- four at once")
ends, at = [], scratch("data/expertfs/folder.efs")
for turn in range(6):
    check("up", ctl("up", "-o", "budget=64M", name).returncode == 0)
    ends.clear()
    in_threads(lambda _: ends.append(ctl("down", at)), range(4))
    check("down: it is unmounted", not is_mounted(at) and len(ends) == 4, ends)
    check("all unmounted it, or found no mount", all(
        end.returncode == 0 or "no mount of expertfs" in end.stderr for end in ends), ends)

print("-- rm")
packed = [path for path in files_below(scratch("data")) if path.endswith(".efs") and NAME in path]
check("one store", len(packed) == 1, packed)
os.rmdir(NAME)
check("mounted", ctl("up", "-o", "budget=64M", NAME).returncode == 0)
says("rm of a mounted store", 1, f"is mounted on {mount}\nhint: `expertctl down", "rm", "--yes", NAME)
says("rm of the model that is served", 1, "not a store", "rm", "--yes", f"{mount}/config.json")
says("down", 0, "^$", "down", NAME)
says("rm asks", 1, "--yes is needed", "rm", NAME)
shutil.copy(scratch(f"data/{packed[0]}"), scratch("data/expertfs/" + NAME + "@00000000.efs"))
content = json.loads(ctl("info", "--json", scratch(f"data/{packed[0]}")).stdout)["content_hash"]
learned = [f"{os.environ['EXPERTFS_STATE']}/{kind}-{content}.{end}" for kind, end in (
    ("profile", "json"), ("counts", "bin"), ("guesses", "bin"), ("same", "txt"))]
os.makedirs(os.environ["EXPERTFS_STATE"], exist_ok=True)
for path in learned:
    with open(path, "a"):
        pass
says("rm of one of two", 1, f"which store\\? there are {NAME}@\\w+, {NAME}@\\w+\n", "rm", "--yes", NAME)
says("rm by its path", 0, ": deleted, ", "rm", "--yes", scratch("data/expertfs/" + NAME + "@00000000.efs"))
check("what was learned about it stays while a store has its content", all(os.path.exists(path) for path in learned))
told = json.loads(ctl("rm", "--yes", "--json", NAME).stdout)
check("with the last one it is deleted", not [path for path in learned if os.path.exists(path)])
check("rm by its name", told["removed"][0]["store"] == scratch(f"data/{packed[0]}") and not os.path.exists(scratch(f"data/{packed[0]}")), told)
says("rm again", 1, "no store\nhint: `expertctl ls`", "rm", "--yes", NAME)
with open("notes.txt", "w") as file:
    file.write("not a store")
says("rm of another file", 1, "not a store", "rm", "--yes", "notes.txt")

if os.geteuid() == 0:
    print("-- the file system of a store is free when down returns")
    script = ('for n in 1 2 3 4 5 6; do mount -t tmpfs -o size=30M small "$1" && cp "$2" "$1/s.efs" && mkdir "$1/mnt" || exit 77; '
              '"$3" up -o budget=64M "$1/s.efs" "$1/mnt" >/dev/null && cat "$1/mnt/config.json" >/dev/null && '
              '"$3" down "$1/mnt" && umount "$1" || exit 1; done')
    os.mkdir("small")
    result = run("unshare", "-m", "sh", "-c", script, "sh", scratch("small"), store, expertctl)
    check("it can be unmounted at once", result.returncode in (0, 77), result)

    print("-- without /proc, as in a chroot")
    bare = Mount(store, "budget=64M")
    script = ('mount --make-rprivate / && umount -l /proc || exit 77; '
              '"$2" get "$1" budget && "$2" set "$1" budget=96M && "$2" status "$1" >/dev/null && "$2" log "$1" >/dev/null')
    result = run("unshare", "-m", "sh", "-c", script, "sh", bare.path, expertctl)
    check("get, set, status and log", result.returncode == 77 or (result.returncode == 0 and result.stdout == "67108864\n"), result)
    bare.unmount()
done()
