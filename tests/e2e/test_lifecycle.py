# SPDX-License-Identifier: Apache-2.0
"""Start and end of a mount: readiness and failure reported to the parent, exit statuses, signals with open files,
umount, mount(8) with -t fuse.expertfs. For an unprivileged user: test_permissions.py."""
from e2e import *

need_fuse()
model, store = shared(NARROW)
source = contents(model)
names = list(source)
large = max(names, key=lambda name: len(source[name]))
expert = "experts/L01/E002.safetensors"
expertfs = program("expertfs")
root = os.geteuid() == 0


def detach(path):
    return run("umount", path) if root else run("fusermount3", "-u", path)


def daemon_of(path):
    with open(f"{path}/.expertfs/config") as config:
        return int(dict(line.split(": ", 1) for line in config.read().splitlines())["pid"])


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def background():
    print("-- in the background")
    path = scratch("background")
    os.mkdir(path)
    result = run(expertfs, store, path)
    check("the parent exits 0 without a word", result.returncode == 0 and not result.stdout + result.stderr,
          (result.returncode, result.stdout, result.stderr))
    check("the mount answers when the parent exits", is_mounted(path) and sorted(os.listdir(path)) ==
          sorted({name.split("/")[0] for name in names} | {"experts", ".expertfs"}), os.listdir(path))
    pid = daemon_of(path)
    check("the daemon has left the terminal and the directory", os.readlink(f"/proc/{pid}/fd/2") == "/dev/null" and
          os.readlink(f"/proc/{pid}/cwd") == "/" and os.getsid(pid) == pid)
    check("umount", detach(path).returncode == 0)
    check("the daemon is gone after it", wait_until(lambda: gone(pid)))
    for options, says in (("plan=F=10:C=70", "the parts sum to 80, the other 20 %"), ("budget=900G", "budget 900 GiB accepted; this store uses at most ")):
        result = run(expertfs, store, path, "-o", options)
        check(f"-o {options} is taken, and its starter told what it means", result.returncode == 0 and
              result.stderr.startswith("expertfs: warning: ") and says in result.stderr and result.stderr.count("\n") == 1, result)
        detach(path)


def failures():
    print("-- what is refused, with a reason")
    os.makedirs(scratch("begun.efs.reclaim"), exist_ok=True)
    for file, at, says in ((scratch("none.efs"), scratch("x"), "with mkexpertfs"),
                           (scratch("begun.efs"), scratch("x"), "--resume goes on"), (store, scratch("none"), "mkdir")):
        result = run(expertfs, file, at)
        check(f"a path that is not there: {says}", result.returncode == 1 and says in result.stderr, result)
    folder = scratch("target")
    os.mkdir(folder)
    damaged, cut = shutil.copy(store, scratch("damaged.efs")), shutil.copy(store, scratch("cut.efs"))
    flip(damaged, 40, 0xff)
    os.truncate(cut, os.path.getsize(cut) - 5000)
    file = scratch("file")
    open(file, "w").close()
    cases = [
        ("no store", 1, [scratch("nothing.efs"), folder], "nothing.efs"),
        ("a folder as store", 1, [folder, folder], f"{folder}: not a regular file but a directory without weights: no safetensors or GGUF file is in it\nhint: "),
        ("a file that is no store", 1, [f"{model}/config.json", folder], "config.json"),
        ("a damaged store", 1, [damaged, folder], "damaged.efs"),
        ("a store that was cut", 1, [cut, folder], "cut.efs"),
        ("no mountpoint", 1, [store, scratch("nowhere")], "nowhere"),
        ("a file as mountpoint", 1, [store, file], "not a directory\nhint: the store comes first"),
        ("a budget below the floor", 1, [store, folder, "-o", "budget=1M"], "budget"),
        ("a budget between", 1, [store, folder, "-o", "budget=8M"], "budget"),
        ("an unknown option", 2, [store, folder, "-o", "budjet=1G"], 'unknown option "budjet"\nhint: did you mean budget?'),
        ("a mount option without -o", 2, ["--budget=3G", store, folder], "unrecognized option"),
        ("no arguments", 2, [], "a store and a mountpoint are needed"),
        ("one argument", 2, [store], "mountpoint"),
        ("three arguments", 2, [store, folder, "more"], "too many"),
    ]
    for what, status, arguments, says in cases:
        for flags in ([], ["-f"]):
            result = run(expertfs, *flags, *arguments)
            good = result.returncode == status and says in result.stderr and not result.stdout
            if status == 1:
                good = good and re.fullmatch("expertfs: [^\n]*\n(hint: [^\n]*\n)?", result.stderr)
            check(f"{what} {' '.join(flags)}: exit {status}", good,
                  (result.returncode, result.stdout, result.stderr))
    check("nothing was mounted", not is_mounted(folder))
    for flag, says in (("--help", "budget=SIZE"), ("-h", "budget=SIZE"), ("--version", "expertfs "), ("-V", "libfuse")):
        result = run(expertfs, flag)
        check(f"{flag}: exit 0", result.returncode == 0 and says in result.stdout, result)


def signals():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        print(f"-- {number.name}")
        Mount(store).stop(number.name, number)
    print("-- SIGHUP is ignored when the daemon is started")
    for what, prefix in (("nohup", ("nohup",)), ("a shell's trap", ("sh", "-c", "trap '' HUP; exec \"$@\"", "sh"))):
        mount = Mount(store, prefix=prefix)
        mount.daemon.send_signal(signal.SIGHUP)
        mount.stop(f"{what}: SIGTERM after SIGHUP")
        check(f"{what}: it is SIGTERM that ended it", "Terminated: unmounting" in mount.log_text(), mount.log_text())
    path = scratch("nohup")
    os.mkdir(path)
    check("nohup in the background: it mounts", run("nohup", expertfs, store, path).returncode == 0)
    pid = daemon_of(path)
    os.kill(pid, signal.SIGHUP)
    check("nohup in the background: it serves after SIGHUP", open(f"{path}/{large}", "rb").read() == source[large])
    detach(path)
    check("nohup in the background: umount ends it", wait_until(lambda: gone(pid)))
    check("in the background: it mounts", run(expertfs, store, path).returncode == 0)
    pid = daemon_of(path)
    os.kill(pid, signal.SIGHUP)
    check("in the background: it serves after SIGHUP", open(f"{path}/{large}", "rb").read() == source[large])
    os.kill(pid, signal.SIGTERM)
    check("in the background: SIGTERM ends it", wait_until(lambda: gone(pid)) and not is_mounted(path))
    for options in ("", "nopassthrough", "direct_io=off,nopassthrough"):
        print(f"-- SIGTERM with open files, options: {options or 'none'}")
        mount = Mount(store, options)
        files = [open(mount / name, "rb", buffering=0) for name in (large, expert, ".expertfs/stat")]
        view = mmap.mmap(files[1].fileno(), 0, prot=mmap.PROT_READ)
        before = [file.read(4096) for file in files]
        expert_bytes = bytes(view)
        here = os.open(mount.path, os.O_RDONLY | os.O_DIRECTORY)
        began = time.monotonic()
        mount.stop("SIGTERM")
        note(f"took {time.monotonic() - began:.2f} s")
        for file, name, want in zip(files, ("a file", "an expert"), (source[large], expert_bytes)):
            try:
                data = file.read(1 << 20)
                good = data and data == want[4096:4096 + len(data)]  # as much as the kernel has
                outcome = "its own bytes" if good else f"wrong bytes ({len(data)})"
            except OSError as error:
                good, outcome = True, error.strerror
            if options == "nopassthrough" and name == "an expert":
                good = good and outcome != "its own bytes"  # nothing is left that could serve them
            check(f"{name} that was open gives an error or what the kernel still has: {outcome}", good)
        if options == "":
            check("a mapping of a passed-through expert stays what it was", bytes(view) == expert_bytes)
        check("what was read before was right", before[0] == source[large][:4096] and before[1] == expert_bytes[:4096])
        view.close()
        os.close(here)
        for file in files:
            file.close()


def readers_while_ending():
    print("-- SIGTERM under load")
    mount = Mount(store, "budget=64M")
    bad, errors, ended, halt = [], [], [], threading.Event()

    def reader(seed):
        while not halt.is_set():
            for name in names:
                try:
                    data = open(mount / name, "rb").read()
                except OSError as error:
                    errors.append(error.errno)
                    return
                if data != source[name]:
                    bad.append(name)

    readers = threading.Thread(target=lambda: ended.append(in_threads(reader, range(6))))
    readers.start()
    check("they read", wait_until(lambda: mount.count("fuse_opens") > 50), mount.stat())
    mount.stop("SIGTERM under load")
    halt.set()
    readers.join()
    check("no reader hangs", ended == [True])
    check("no reader saw wrong bytes", not bad, bad[:3])
    note(f"errors seen: {sorted({os.strerror(e) for e in errors})}")


def unmounts():
    if shutil.which("fusermount3"):
        print("-- fusermount3 -u")
        mount = Mount(store)
        check("fusermount3 -u", run("fusermount3", "-u", mount.path).returncode == 0)
        mount.check_exit("fusermount3 -u")
    print("-- umount of a busy mount")
    mount = Mount(store)
    file = open(mount / large, "rb")
    check("umount is refused while a file is open", detach(mount.path).returncode != 0)
    check("and the mount still serves", file.read() == source[large])
    file.close()
    mount.unmount()
    print("-- lazy unmount with an open file")
    mount = Mount(store)
    file = open(mount / large, "rb", buffering=0)
    result = run("umount", "-l", mount.path) if root else run("fusermount3", "-uz", mount.path)
    check("umount -l", result.returncode == 0 and not is_mounted(mount.path), result.stderr)
    check("the open file is still served", file.read(1000) == source[large][:1000])
    check("the daemon still runs", mount.daemon.poll() is None)
    file.close()
    mount.check_exit("its last file closed")


def by_mount():
    print("-- mount -t fuse.expertfs")
    if not root or not os.path.exists("/sbin/mount.fuse3") or run("unshare", "-m", "true").returncode:
        note("left out: needs root, /sbin/mount.fuse3 and unshare -m")
        return
    # mount(8) passes an empty environment, so the program must be in sh's default path; a separate mount namespace has
    # it there, and ends with all its mounts
    path = scratch("by mount(8)")
    os.mkdir(path)
    fstab = scratch("fstab")
    with open(fstab, "w") as table:
        table.write(f"{store} {path.replace(' ', chr(92) + '040')} fuse.expertfs "
                    "ro,noauto,nofail,_netdev,x-systemd.automount,budget=256M,nopassthrough 0 0\n")
    script = scratch("by-mount.sh")
    with open(script, "w") as file:
        file.write("""set -e
        mount -t tmpfs tmpfs /usr/local/sbin
        ln -s "$1" /usr/local/sbin/expertfs
        shift
        store=$1 path=$2 file=$3 origin=$4
        shift 4
        "$@"
        grep "by.040mount(8) fuse.expertfs" /proc/mounts
        cat "$path/.expertfs/config"
        mount -o remount,ro "$path" && grep "by.040mount(8) fuse.expertfs ro," /proc/mounts >/dev/null && echo read-only
        mount -o remount,rw "$path" && grep "by.040mount(8) fuse.expertfs rw," /proc/mounts >/dev/null && echo writable
        cmp "$path/$file" "$origin" && echo same
        pid=$(sed -n "s/^pid: //p" "$path/.expertfs/config")
        umount "$path"
        for i in $(seq 12000); do [ -d "/proc/$pid" ] || break; sleep 0.02; done
        [ -d "/proc/$pid" ] || echo ended
        """)
    for command, flag in ((["mount", "-t", "fuse.expertfs", store, path, "-o", "budget=256M,nopassthrough"], "rw"),
                          (["mount", "-T", fstab, path], "ro")):
        result = run("unshare", "-m", "sh", script, expertfs, store, path, large, f"{model}/{large}", *command)
        lines = result.stdout.splitlines()
        if not check(" ".join(command[:3]), result.returncode == 0, result):
            continue
        check("the source is the store", lines[0].split()[0] == store and f"{flag},nosuid,nodev" in lines[0], lines[0])
        check("its options arrived", "budget_option: size" in lines and "passthrough: no" in lines, lines)
        check("mount -o remount makes it ro and rw", lines[-4:-2] == ["read-only", "writable"], (lines[-4:-2], result.stderr))
        check("it serves, and the daemon ends with umount", lines[-2:] == ["same", "ended"], lines[-2:])
    result = run("unshare", "-m", "sh", script, expertfs, store, path, large, f"{model}/{large}", "mount", "-t",
                 "fuse.expertfs", store, path, "-o", "budjet=1G")
    check("an unknown option is refused by name", result.returncode != 0 and "budjet" in result.stderr, result)


def over_something():
    print("-- over another mount, over files")
    path = scratch("over")
    os.mkdir(path)
    check("an empty directory", run(expertfs, store, path).returncode == 0)
    result = run(expertfs, store, path)
    check("a second mount on the same place is refused", result.returncode == 1 and f"{store} is mounted there already" in
          result.stderr and "nonempty" in result.stderr and result.stderr.count("\n") == 2, result)
    pid = daemon_of(path)
    check("with nonempty it is not", run(expertfs, store, path, "-o", "nonempty").returncode == 0 and
          daemon_of(path) != pid)
    detach(path)
    check("and leaves the first one", daemon_of(path) == pid)
    detach(path)
    check("nothing is left mounted", not is_mounted(path))
    open(f"{path}/mine", "w").close()
    result = run(expertfs, store, path)
    check("a directory that is not empty is refused", result.returncode == 1 and "is not empty" in result.stderr and
          "nonempty" in result.stderr and not is_mounted(path), result)
    check("with nonempty it is not", run(expertfs, store, path, "-o", "nonempty").returncode == 0 and
          not os.path.exists(f"{path}/mine"))
    detach(path)
    check("and the file is there again", os.listdir(path) == ["mine"])


def without_kill():
    print("-- kill(2) and tgkill(2), wait4(2), or fork(2) are refused by a filter")
    kill, tgkill, wait4, clone = {"x86_64": (62, 234, 61, 56), "aarch64": (129, 131, 260, 220)}.get(os.uname().machine, (0,) * 4)
    for error in (errno.EPERM, errno.ENOSYS):
        prefix = deny_syscalls(error, kill, tgkill)
        if not prefix:
            return
        name = errno.errorcode[error]
        mount = Mount(store, prefix=prefix)
        if not check(f"{name}: it is ready", mount.ready, mount.threads()):
            mount.abandon()
            return
        check(f"{name}: it serves", open(mount / large, "rb").read() == source[large])
        mount.stop(f"{name}: SIGTERM")
        Mount(store, prefix=prefix).unmount(f"{name}: umount")
        temporary = scratch(f"run-{name}")
        os.mkdir(temporary)
        running = subprocess.Popen([*prefix, program("expertctl"), "up", store, "--", "cmp", f"{{}}/{large}",
                                    f"{model}/{large}"], env={**os.environ, "TMPDIR": temporary})
        try:
            status = running.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            status = "still running"
            running.kill()
        check(f"{name}: expertctl up ends with the program, and leaves no mount", status == 0 and
              wait_until(lambda: temporary not in open("/proc/mounts").read()), status)
    if os.path.exists(os.path.join(BUILD, "libggml-expertfs.so")):  # without {} the program opens the store through the backend
        result = run(*deny_syscalls(errno.EPERM, wait4), program("expertctl"), "up", store, "--", "sleep", "1000")
        check("wait4: expertctl up ends", result.returncode == 125 and "cannot wait for the program" in result.stderr, result)
    else:
        note("libggml-expertfs.so is not built: expertctl up without wait4 was not tried")
    path = scratch("not forked")
    os.mkdir(path)
    result = run(*deny_syscalls(errno.EAGAIN, clone), expertfs, store, path)
    check("fork: the reason is told", result.returncode == 1 and "fork: " in result.stderr and not is_mounted(path), result)


def relative_paths_in_the_environment():
    print("-- relative paths in the environment")
    here, path = scratch("here"), scratch("mnt-here")
    os.mkdir(here), os.mkdir(path)
    os.symlink(os.path.join(BUILD, "libexpertfs.so.0"), f"{here}/library.so")
    result = subprocess.run([expertfs, store, path, "-o", "placement=rados:pool/name"], capture_output=True, text=True, cwd=here,
                            env={**os.environ, "EXPERTFS_STATE": "state/a", "EXPERTFS_RADOS": "./library.so"})
    if not check("it mounts", result.returncode == 0, result):
        return
    pid = daemon_of(path)
    read = lambda name: open(f"{path}/{name}").read()
    check("a library is found", wait_until(lambda: "librados has no rados_" in read(".expertfs/config")), read(".expertfs/config"))
    with open(f"{path}/{expert}", "rb") as file:
        file.read()
    os.kill(pid, signal.SIGTERM)
    check("it ends", wait_until(lambda: gone(pid)))
    saved = os.listdir(f"{here}/state/a") if os.path.isdir(f"{here}/state/a") else []
    check("the state is saved there", any(name.startswith("counts-") for name in saved), saved)


def state_below_the_mountpoint():
    print("-- the state directory is the mountpoint, or below it")
    for name in ("state", "below/state"):
        state, path = scratch(f"hidden/{name}"), scratch(f"hidden/{name.split('/')[0]}")
        os.makedirs(state)
        result = run(expertfs, store, path, "-o", "nonempty", env={**os.environ, "EXPERTFS_STATE": state})
        if not check(f"{name}: it mounts", result.returncode == 0, result):
            continue
        pid = daemon_of(path)
        with open(f"{path}/{expert}", "rb") as file:
            file.read()
        os.kill(pid, signal.SIGTERM)
        if not check(f"{name}: SIGTERM ends it", wait_until(lambda: gone(pid))):
            os.kill(pid, signal.SIGKILL)
            run("umount", "-l", path)
        check(f"{name}: its counts are in the directory below", any(file.startswith("counts") for file in os.listdir(state)),
              os.listdir(state))


background()
failures()
signals()
readers_while_ending()
unmounts()
by_mount()
over_something()
without_kill()
relative_paths_in_the_environment()
state_below_the_mountpoint()
done()
