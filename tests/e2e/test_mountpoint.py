# SPDX-License-Identifier: Apache-2.0
"""The mountpoint: a daemon unmounts only its own mount, at whatever path it is by then; concurrent mounts, mounts over
a dead one, remounts, bind mounts. In a separate mount namespace: `expertctl ls` of other tests would find its dead
mounts."""
import os
import shlex
import subprocess
import sys

INSIDE = "EXPERTFS_TEST_NAMESPACE"
if INSIDE not in os.environ and os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"]).returncode == 0:
    os.execvpe("unshare", ["unshare", "-m", "--propagation", "private", sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})

from e2e import *

need_fuse()
if INSIDE not in os.environ:
    skip("needs root and unshare -m")
with open("/proc/self/mountinfo", errors="surrogateescape") as table:  # mounts of other tests, which would not end while they are mounted here
    for line in table:
        if " - fuse." in line:
            subprocess.run(["umount", "-l", line.split()[4].encode().decode("unicode_escape")], stderr=subprocess.DEVNULL)
model, store = shared(NARROW)
expertfs = program("expertfs")
large = max(files_below(model), key=lambda name: os.path.getsize(f"{model}/{name}"))
# All mounts are below a private mount, because mounts below a shared one cannot be moved. Unmounting it unmounts all of
# them.
below = scratch("below")
os.mkdir(below)
if run("mount", "-t", "tmpfs", "below", below).returncode:
    skip("a tmpfs cannot be mounted")
atexit.register(run, "umount", "-l", below)
run("mount", "--make-private", below)


def mounted_on(path):
    """The filesystem types mounted on path, from the bottom to the top."""
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        lines = [line.split() for line in table]
    return [line[line.index("-") + 1] for line in lines if line[4].encode().decode("unicode_escape") == path]


def new_folder(name):
    os.mkdir(f"{below}/{name}")
    return f"{below}/{name}"


def mount_other(path):
    """Mounts another filesystem with a file on path."""
    run("mount", "-t", "tmpfs", "other", path)
    open(f"{path}/theirs", "w").close()


def is_other(path):
    return os.path.exists(f"{path}/theirs") and mounted_on(path)[-1:] == ["tmpfs"]


def end(mount):
    mount.daemon.send_signal(signal.SIGTERM)
    check("SIGTERM ends the daemon with 0", mount.daemon.wait(PATIENCE) == 0, mount.log_text())


def covered():
    print("-- another file system is mounted over the mount")
    mount = Mount(store, name="below/covered")
    mount_other(mount.path)
    end(mount)
    check("the other one stays", is_other(mount.path), mounted_on(mount.path))
    check("the log says what is left below it", "another mount hides it" in mount.log_text(), mount.log_text())
    run("umount", mount.path)
    mount.abandon()


def moved():
    print("-- the mount was moved, and another file system is where it was")
    mount, place = Mount(store, name="below/moved"), new_folder("here")
    check("it is moved", run("mount", "--move", mount.path, place).returncode == 0)
    check("config has the new place", f"mountpoint: {place}\n" in open(f"{place}/.expertfs/config").read())
    mount_other(mount.path)
    end(mount)
    check("it is unmounted where it was moved to", mounted_on(place) == [], mounted_on(place))
    check("the other one stays", is_other(mount.path), mounted_on(mount.path))
    mount.abandon()


def detached():
    print("-- the mount was detached with a file open, and another file system is where it was")
    mount = Mount(store, name="below/detached")
    with open(mount / large, "rb"):
        run("umount", "-l", mount.path)
        mount_other(mount.path)
        end(mount)
    check("the other one stays", is_other(mount.path), mounted_on(mount.path))
    mount.abandon()


def parent_covered():
    print("-- another file system is mounted over the folder that the mountpoint is in")
    parent = new_folder("parent")
    mount = Mount(store, name="below/parent/mnt")
    mount_other(parent)
    os.mkdir(mount.path)
    mount_other(mount.path)
    end(mount)
    check("those of others stay", is_other(mount.path) and is_other(parent), mounted_on(mount.path))
    check("the log says what is left below them", "another mount hides it" in mount.log_text(), mount.log_text())
    run("umount", mount.path)
    mount.abandon()


def bound():
    print("-- bind mounts of the mount, and of a folder of it")
    mount, whole, part = Mount(store, name="below/bound"), new_folder("whole"), new_folder("part")
    run("mount", "--bind", mount.path, whole)
    run("mount", "--bind", mount / "experts", part)
    check("they serve", os.path.exists(f"{whole}/{large}") and os.listdir(part) != [])
    end(mount)
    check("none is left", mounted_on(whole) + mounted_on(part) + mounted_on(mount.path) == [])
    mount.abandon()


def at_once(what, stores, path, names=None, before=()):
    """Starts daemons concurrently on one mountpoint: one mounts, the rest name the mounted store."""
    print(f"-- four daemons at once: {what}")
    daemons = [subprocess.Popen([expertfs, one, name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)
               for one, name in zip(stores, names or [path] * 4)]
    said = [daemon.communicate(timeout=PATIENCE)[0] for daemon in daemons]
    losers = [text for daemon, text in zip(daemons, said) if daemon.returncode]
    check("one mounts", mounted_on(path) == ["fuse.expertfs"] and len(losers) == 3, (mounted_on(path), said))
    if mounted_on(path) != ["fuse.expertfs"]:
        while mounted_on(path) and run("umount", path).returncode == 0:
            pass
        return
    with open(f"{path}/.expertfs/config") as config:
        told = dict(line.rstrip().split(": ", 1) for line in config)
    pid, served = told["pid"], told["store"]
    check("the others say what is mounted", all(f"{served} is mounted there already" in text for text in losers), (served, said))
    run("umount", path)
    check("it ends", wait_until(lambda: not os.path.exists(f"/proc/{pid}")))


def all_at_once():
    path, link, other = new_folder("at once"), f"{below}/link", f"{SCRATCH}/other.efs"
    at_once("of one store", [store] * 4, path)
    os.symlink(path, link)
    shutil.copy(store, other)
    at_once("of two stores, by two names", [store, other] * 2, path, [path, path, link, link])
    dead(path)
    at_once("on a mount whose daemon was killed", [store] * 4, path)
    first, second = new_folder("shared"), new_folder("shared again")
    run("mount", "-t", "tmpfs", "shared", first)
    run("mount", "--make-shared", first)
    run("mount", "--bind", first, second)
    os.mkdir(f"{first}/mnt")
    at_once("by two paths of a parent folder", [store, other] * 2, f"{first}/mnt", [f"{first}/mnt", f"{second}/mnt"] * 2)
    run("umount", second), run("umount", first)


def other_sources(place, there, hidden, covered):
    """How other programs handle such paths. `mkexpertfs --reclaim` of one must not pack and remove the folder with that
    name here."""
    weights, out = files_below(model), f"{place}/out.efs"
    served = Mount(store, name="below/place/mnt")
    reclaim, tuned = ("mkexpertfs", "--reclaim", "--yes"), ("expertctl", "get")
    for what, program_name, *arguments in (("a source in another mount namespace", *reclaim, f"{there}/model", out),
                                           ("one whose name is not here", *reclaim, f"{there}/alone.model", out),
                                           ("a source in a folder that a mount hides", *reclaim, "model", out),
                                           ("a file of such a folder", *reclaim, f"model/{large}", out),
                                           ("a folder in another mount namespace", *tuned, f"{there}/mnt"),
                                           ("a store in another mount namespace", "expertctl", "up", f"{there}/x.efs", "--",
                                            "ls", "{}")):
        result = run(program(program_name), *arguments, preexec_fn=lambda: os.fchdir(covered))
        check(f"{program_name}: {what} is refused", result.returncode in (1, 125) and
              "no absolute path leads there" in result.stderr, result)
        check("all sources stay as they were", [files_below(f"{folder}/model") for folder in (place, there, hidden)] ==
              3 * [weights] and not os.path.exists(out))
    served.stop()


def other_places():
    print("-- paths that lead to what no path here names")
    place, target, script = new_folder("place"), new_folder("target"), """mount -t tmpfs other "$1" && mkdir "$1/mnt" "$1/alone" &&
        cp "$2" "$1/x.efs" && cp "$2" "$1/alone.efs" && cp -r "$3" "$1/model" && cp -r "$3" "$1/alone.model" && echo ready && read end"""
    shutil.copy(store, f"{place}/x.efs")
    shutil.copytree(model, f"{place}/model")
    os.mkdir(f"{place}/mnt")
    holder = subprocess.Popen(["unshare", "-m", "sh", "-c", script, "sh", place, store, model], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    if not check("another mount namespace", holder.stdout.readline() == "ready\n"):
        return
    there, hidden = f"/proc/{holder.pid}/root{place}", new_folder("hides")
    removed = os.open(shutil.copy(store, f"{place}/removed.efs"), os.O_RDONLY)
    os.unlink(f"{place}/removed.efs")
    shutil.copy(store, f"{hidden}/x.efs")
    os.mkdir(f"{hidden}/mnt")
    shutil.copytree(model, f"{hidden}/model")
    covered = os.open(hidden, os.O_RDONLY)
    mount_other(hidden)
    shutil.copy(store, f"{hidden}/x.efs")
    os.mkdir(f"{hidden}/mnt")
    shutil.copytree(model, f"{hidden}/model")
    for what, arguments in (("a store in another mount namespace", (f"{there}/x.efs", target)),
                            ("one whose name is not here", (f"{there}/alone.efs", target)),
                            ("a mountpoint in another mount namespace", (store, f"{there}/mnt")),
                            ("one whose name is not here", (store, f"{there}/alone")),
                            ("a store in a folder that a mount hides", ("x.efs", target)),
                            ("a mountpoint that a mount hides", (store, "mnt")),
                            ("a store that was removed", (f"/dev/fd/{removed}", target))):
        result = run(expertfs, *arguments, pass_fds=[removed], preexec_fn=lambda: os.fchdir(covered))
        places = (target, f"{place}/mnt", f"{hidden}/mnt")
        check(f"{what} is refused", result.returncode == 1 and "no absolute path leads there" in result.stderr and
              not any(mounted_on(path) for path in places), result)
        for path in places:
            while mounted_on(path) and run("umount", path).returncode == 0:
                pass
    other_sources(place, there, hidden, covered)
    holder.communicate("end\n")
    result = run(expertfs, f"/proc/self/root{store}", f"/proc/{os.getpid()}/root{target}")
    check("one of this mount namespace is taken", result.returncode == 0 and mounted_on(target) == ["fuse.expertfs"], result)
    run("umount", target)
    os.close(covered), os.close(removed)
    run("umount", hidden)


def dead(path, *options):
    """Leaves a mount at path whose daemon was killed."""
    result = run(expertfs, store, path, *options)
    pid = int(re.search(r"^pid: (\d+)", open(f"{path}/.expertfs/config").read(), re.M)[1])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
    check("its daemon was killed", result.returncode == 0 and mounted_on(path)[-1].startswith("fuse."), result)


def recovered():
    print("-- mounts whose daemons were killed")
    path = new_folder("dead")
    dead(path)
    check("a dead mount gives errors", error_of(os.listdir, path) == "ENOTCONN")
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        before = [line for line in table if f" {path} " in line]
    result = run(expertfs, store, path)
    check("mounting there recovers it", result.returncode == 0 and mounted_on(path) == ["fuse.expertfs"] and
          os.path.exists(f"{path}/{large}"), (result, before))
    run(expertfs, store, path, "-o", "nonempty")
    held = open(f"{path}/{large}", "rb")
    dead(path, "-o", "nonempty")
    result = run(expertfs, store, path)
    check("one on top of a live one is taken away, the live one stays", result.returncode == 1 and "is mounted there "
          "already" in result.stderr and os.path.exists(f"{path}/{large}"), result)
    held.close()
    run("umount", "-l", path)
    run("umount", "-l", path)
    check("all are unmounted", mounted_on(path) == [])
    result = run(expertfs, "-o", "subtype=other", store, path)
    check("a type that `expertctl ls` and `down` do not know is refused", result.returncode == 2 and
          'unknown option "subtype"' in result.stderr and mounted_on(path) == [], result)
    dead(path)
    os.symlink(f"{path}/experts", f"{below}/to a dead one")
    for arguments, hint in (((store, f"{path}/experts/L00"), f"remove it: fusermount3 -u {path}\n"),
                            ((f"{path}/x.efs", new_folder("alive")), f"remove it: fusermount3 -u {path}\n"),
                            ((store, f"{below}/to a dead one"), "findmnt names it, fusermount3 -u removes it\n")):
        result = run(expertfs, *arguments)
        check(f"a dead mount above {arguments}", result.returncode == 1 and result.stderr.endswith(hint), result)
    check("fusermount3 -u clears it", run("fusermount3", "-u", path).returncode == 0 and mounted_on(path) == [])


def by_the_unit(options):
    print(f"-- the systemd unit at a mount whose daemon was killed: {options}")
    path, kept = new_folder(f"the unit's {options}"), scratch(f"the unit's {options}.efs")
    os.symlink(store, kept)
    with open(os.path.join(ROOT, "tools/packaging/expertfs@.service.in")) as unit:
        lines = [line.split("=", 1) for line in unit.read().splitlines() if line.startswith("ExecStart")]
    conf = {"$$": "$", "${MOUNTPOINT}": path, "${STORE}": kept, "${OPTIONS}": options, "@BINDIR@": BUILD}

    def start():
        """As systemd does: splits a line into words by its quotes, then replaces variables in each word."""
        for name, line in lines:
            result = run(*[re.sub(r"\$\$|\$\{\w+\}|@\w+@", lambda found: conf[found.group()], word)
                           for word in shlex.split(line.lstrip("-"))])
            if result.returncode and not line.startswith("-"):
                return f"{name}={line}: {result}"
        return ""
    dead(path, "-o", options)
    failed = start()
    check("it starts", failed == "" and mounted_on(path) == ["fuse.expertfs"] and os.path.exists(f"{path}/{large}"), failed)
    check("what is served there stays", "is mounted there already" in start() and os.path.exists(f"{path}/{large}"))
    run("umount", path)


def descriptors():
    print("-- descriptors of who mounts")
    path, lock = new_folder("descriptors"), scratch("lock")
    run("flock", lock, expertfs, store, path)
    check("a lock is free again", mounted_on(path) == ["fuse.expertfs"] and run("flock", "-n", lock, "true").returncode == 0)
    run("umount", path)
    for flag in ((), ("-f",)):
        ends, name = os.pipe(), f"/dev/fd/{os.open(store, os.O_RDONLY)}"
        daemon = subprocess.Popen([expertfs, *flag, name, path], pass_fds=[ends[1], int(name.split("/")[-1])],
                                  stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(ends[1])
        check(f"a pipe ends, and a store is found by its descriptor {' '.join(flag)}", wait_until(
            lambda: mounted_on(path) == ["fuse.expertfs"]) and os.read(ends[0], 1) == b"")
        run("umount", path)
        daemon.wait(PATIENCE)
        os.close(ends[0])


def tunes(path):
    try:
        os.setxattr(path, "user.expertfs.goal", b"io")
        return "yes"
    except OSError as error:
        return errno.errorcode[error.errno]


def remounted():
    print("-- remount")
    mount = Mount(store, "noexec", name="below/remounted")
    table = "nosuid,nodev,relatime,user_id=0,group_id=0,max_read=1048576"  # added by mount(8)
    others = new_folder("not ours")
    mount_other(others)

    def remount(options, path=mount.path):
        return run(expertfs, scratch("no store of that name"), path, "-o", options)

    def flags():
        with open("/proc/self/mountinfo", errors="surrogateescape") as lines:
            line = [line.split() for line in lines if f" {mount.path} " in line][0]
        return f"{line[5]} {line[-1]}"
    for options, want, rw, noexec in ((f"ro,{table},noexec,remount", "EROFS", "ro", True), (f"rw,noexec,{table},remount", "yes", "rw", True),
                                      ("remount,ro", "EROFS", "ro", False), ("nopassthrough,remount", "yes", "rw", False)):
        result = remount(options)
        check(f"-o {options}", result.returncode == 0 and not result.stderr and tunes(mount.path) == want and
              mounted_on(mount.path) == ["fuse.expertfs"] and all(part.split(",")[0] == rw for part in flags().split()) and
              ("noexec" in flags()) == noexec and "nosuid" in flags(), (result, flags(), tunes(mount.path)))

    def tuned(*names):
        return [os.getxattr(mount.path, f"user.expertfs.{name}").decode() for name in names]
    for options, rw in (("remount,ro,budget=100M,policy=lru", "ro"), ("remount,ro,budget=128M", "ro"), ("remount,budget=64M,goal=makespan", "rw")):
        result = remount(options)
        check(f"-o {options}: tunables, and {rw}", result.returncode == 0 and not result.stderr and tuned("budget", "policy") ==
              [str(int(re.search(r"budget=(\d+)M", options)[1]) << 20), "lru"] and flags().startswith(rw), (result, tuned("budget", "policy"), flags()))
    for options, rc, says in (("remount,ro,policy=best,budget=80M", 2, "policy=best: allowed are zipmoe"),
                              ("remount,ro,prefetch=auto", 2, "prefetch=auto: allowed are off, on"),
                              ("remount,ro,policy=fifo,budget=1M", 1, "budget=1M is below the minimum")):
        was, pair = tuned("budget", "policy"), says.split()[0].rstrip(":")
        result = remount(options)
        check(f"-o {options}: refused, why, and nothing is set", result.returncode == rc and says in result.stderr and
              result.stderr.count(pair) == 1 and tuned("budget", "policy") == was, (result, was, tuned("budget", "policy")))
    remount("remount,rw")
    check("the mount is what it was", open(mount / large, "rb").read() == open(f"{model}/{large}", "rb").read())
    for folder in (new_folder("plain"), mount / "experts"):
        result = remount("remount,ro", folder)
        check("a plain folder is refused", result.returncode == 1 and "not mounted" in result.stderr and
              "Invalid" not in result.stderr, result)
    result = remount("remount,ro", others)
    check("a mount of others is refused", result.returncode == 1 and "no mount of expertfs" in result.stderr, result)
    mount.unmount()


def told_once():
    print("-- expertctl: each mount once, whatever paths lead to it")
    mount = Mount(store, name="below/told")
    folder, whole, hidden = new_folder("experts alone"), new_folder("once more"), Mount(store, name="below/hidden")
    run("mount", "--bind", mount / "experts", folder)
    run("mount", "--bind", mount.path, whole)
    mount_other(hidden.path)

    def told():
        result = run(program("expertctl"), "ls")
        return [line.split(" on ")[1].split(" by ")[0] for line in result.stdout.splitlines()], result.returncode
    check("ls: bind mounts and a mount that another one hides are not told", told() == ([mount.path], 0), told())
    result = run(program("expertctl"), "status")
    check("status: they are not taken for mounts", result.returncode == 0, result)
    run("umount", "-l", mount.path)
    check("ls: the mount was detached, a bind mount of the whole is told", told() == ([whole], 0), told())
    for name in (".expertfs/version", ".expertfs/stat", ".expertfs"):
        source = make_model(f"its own {name.replace('/', ' ')}", "-F", "qwen3-moe", "-d", "64", "-i", "64", "-e", "2", "-l", "1")
        os.makedirs(os.path.dirname(f"{source}/{name}"), exist_ok=True)
        with open(f"{source}/{name}", "w") as file:
            file.write("stat: 1\n")
        own = Mount(make_store(source), name="below/own")
        result = run(program("expertctl"), "status", own.path)
        check(f"status: a mount of a checkpoint with its own {name} has no figures, and says so", result.returncode == 1 and
              re.search(r"its own|No such file|Not a directory", result.stderr), result)
        own.stop()
    end(mount)
    check("nothing is left of it", mounted_on(folder) + mounted_on(whole) == [])
    end(hidden)
    mount.abandon(), hidden.abandon()


covered()
moved()
detached()
parent_covered()
bound()
all_at_once()
recovered()
by_the_unit("rw")
by_the_unit("ro")
other_places()
descriptors()
remounted()
told_once()
done()
