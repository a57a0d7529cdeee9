# SPDX-License-Identifier: Apache-2.0
"""The commands in hints do what they say if they are copied into a shell, also with a blank in the path. A directory without
weights, and a model of which a file is missing, are named for what they are."""
from e2e import *

need_fuse()
expertctl, expertfs = program("expertctl"), program("expertfs")
plain, _ = shared(NARROW)
home = scratch("new home")
os.mkdir(home)
model = shutil.copytree(plain, f"{home}/my model")
store = make_store(model)
mount = f"{home}/it's a mnt"
os.mkdir(mount)
environment = {**os.environ, "PATH": f"{BUILD}:{os.environ['PATH']}"}


def copied(what, pattern, *words, does=0):
    """Runs the command of a hint in a shell."""
    result = run(*words)
    command = re.search("\nhint: .*?" + pattern, result.stderr)
    check(f"{what}: fails with a command", result.returncode != 0 and command, result)
    done_ = run("sh", "-c", command.group(1), env=environment)
    check(f"{what}: {command.group(1)}", done_.returncode == does, done_)


def up():
    check("mounted", run(expertctl, "up", "-o", "budget=64M", store, mount).returncode == 0)


up()
copied("unmount it", r"\((fusermount3 .*)\), or", expertfs, store, mount)
check("it is unmounted", not is_mounted(mount))
copied("mkdir", "(mkdir -p .*)", program("mkexpertfs"), "-q", model, f"{home}/a folder/x.efs")
check("it is made", os.path.isdir(f"{home}/a folder"))
copied("mkdir of unpack", "(mkdir -p .*)", expertctl, "unpack", store, f"{home}/b folder/c/out")
check("it is made, too", os.path.isdir(f"{home}/b folder/c"))
up()
copied("get", "`(expertctl get .*)` lists", expertctl, "get", mount, "nothing")
copied("get of a file", "`(expertctl get .*)` prints", expertctl, "get", f"{mount}/config.json")
copied("rm", "`(expertctl down .*)` unmounts", expertctl, "rm", "-y", store)
check("it is unmounted by down", not is_mounted(mount))
key = f"{home}/a key"
copied("a key", "(openssl .*)", program("expertpeer"), store, "--key", open(key, "w").close() or os.chmod(key, 0o600) or key)
os.chmod(key, 0o644)
copied("chmod", "(chmod 600 .*)", program("expertpeer"), store, "--key", key)

print("-- what is there is named")
empty = f"{home}/empty"
os.mkdir(empty)
result = run(expertfs, empty, mount)
check("a directory without weights", result.returncode == 1 and "without weights" in result.stderr, result)
check("up", run(expertctl, "up", "-o", "budget=64M", model, mount).returncode == 0)
run(expertctl, "down", mount)
os.remove(f"{model}/config.json")
result = run(expertctl, "ls")
check("ls: a file is missing", f"{model}, files of which are missing\n" in result.stdout, result)
shutil.rmtree(model)
result = run(expertctl, "ls")
check("ls: the folder is missing", f"{model}, which is not there any more\n" in result.stdout, result)

print("-- rm: the only copy")
name = json.loads(run(expertctl, "ls", "--json").stdout)["stores"][0]
only = f"expertctl: warning: {name['path']}: may be the only copy of {model}, which is not there any more\n"
unpack = r"hint: `(expertctl unpack .*) DIR` writes the files of the checkpoint"
result = run(expertctl, "rm", name["name"], stdin=subprocess.DEVNULL)
check("where nobody can be asked", result.returncode == 1 and result.stderr.startswith(only) and os.path.exists(name["path"]), result)
command = re.search(unpack, result.stderr)
check("the way back", command and run("sh", "-c", f"{command[1]} '{home}/back'", env=environment).returncode == 0, result)
ours, theirs = os.openpty()
os.write(ours, b"no\n")
result = run(expertctl, "rm", name["name"], stdin=theirs)
check("it is said before the question", re.match(re.escape(only) + unpack + ".*\nDelete .* Type yes: ", result.stderr) and
      result.returncode == 1 and os.path.exists(name["path"]), result)
os.close(ours), os.close(theirs)
result = run(expertctl, "rm", "-y", name["name"])
check("-y is obeyed after the warning", result.returncode == 0 and result.stderr == only and not os.path.exists(name["path"]), result)
check("up of the files that came back", run(expertctl, "up", "-o", "budget=64M", f"{home}/back", mount).returncode == 0)
run(expertctl, "down", mount)
result = run(expertctl, "rm", "-y", json.loads(run(expertctl, "ls", "--json").stdout)["stores"][0]["name"])
check("no warning where the checkpoint is there", result.returncode == 0 and result.stderr == "", result)
done()
