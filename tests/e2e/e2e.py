# SPDX-License-Identifier: Apache-2.0
"""Shared by the end-to-end tests: a scratch folder, checkpoints and stores, mounts that are always cleaned up.

A test is a script that imports * from here, including the modules of Python imported below, calls check("property",
condition) and ends with done(). Programs come from $BUILD. All processes and mounts started here are ended here, also
when the test fails.
"""
import atexit
import ctypes
import errno
import fcntl
import json
import mmap
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
SCRATCH = tempfile.mkdtemp(prefix="expertfs-e2e-")
FAULTS = "tests/expertfs/expertfs-faults"
SANITIZED = bool(re.search("address|thread", os.path.basename(BUILD)))
# Libraries for other projects' programs, which have no sanitizer: from the build without one
PLAIN = os.path.join(ROOT, "build") if SANITIZED else BUILD
# Seconds until a wait for what must happen fails. It ends at once when that happens; a sanitizer on a slow, busy processor may
# need 20 times as long as a build without one on an idle one. Smaller limits are for waits that are expected to run out.
PATIENCE = 240
COMMAND_SECONDS = 3 * PATIENCE  # of a command, which may compute all the time
TSAN = "thread" in os.path.basename(BUILD)  # decodes at a tenth of the speed, and a daemon takes some 200 MiB

MNT_FORCE = 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_mounts = []
_peers = []
_children = []  # of at_once()
_failures = 0
os.environ["EXPERTFS_PRESSURE"] = os.path.join(SCRATCH, "pressure")  # no such folder: warm=auto reads nothing
os.environ["EXPERTFS_STATE"] = os.path.join(SCRATCH, "state")  # state of the mounts of this test only
os.environ["XDG_DATA_HOME"] = os.path.join(SCRATCH, "data")  # stores and mount points of `expertctl up`


def _clean():
    for child in _children:
        os.kill(child, signal.SIGKILL)
    for peer in _peers:
        peer.kill()
    for mount in list(_mounts):
        mount.abandon()
    with open("/proc/mounts", errors="replace") as table:  # of `expertctl up`
        for line in table:
            if SCRATCH in line and " fuse.expertfs " in line:
                subprocess.run(["fusermount3", "-uzq", line.split()[1].encode().decode("unicode_escape")], check=False)
    shutil.rmtree(SCRATCH, ignore_errors=True)


atexit.register(_clean)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a timeout cleans up too
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # undo nohup(1): daemons would inherit its ignored SIGHUP


def check(what, good, detail=""):
    global _failures
    if not good:
        _failures += 1
    print(f"{'ok    ' if good else 'FAILED'} {what}{'' if good or detail == '' else f': {str(detail)[:4000]}'}", flush=True)
    return good


def note(what):
    print(f"       {what}", flush=True)


class SignalledPacker:
    """A mkexpertfs that sends itself a signal before its nth call that changes files: tests/fault/signalled.c."""

    def __init__(self, nth, *arguments, number=signal.SIGKILL):
        self.counted = tempfile.mktemp(dir=SCRATCH)
        self.process = subprocess.Popen(
            [program("tests/fault/mkexpertfs-signalled"), "-q", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**os.environ, "EXPERTFS_TEST_SIGNAL": f"{int(number)}@{nth}", "EXPERTFS_TEST_CALLS": self.counted})

    def end(self):
        """Its exit status and output. Sets `calls` to the number of calls, None if it was killed."""
        said = self.process.communicate(timeout=COMMAND_SECONDS)[0]
        self.calls = int(open(self.counted).read()) if os.path.exists(self.counted) else None
        return self.process.returncode, said


def count_write_calls(*arguments):
    """The number of mkexpertfs's calls that change files."""
    whole = SignalledPacker(0, *arguments)
    status, said = whole.end()
    if status:
        check("mkexpertfs", False, said)
        sys.exit(1)
    return whole.calls


def contents(folder):
    """{name: bytes} of the files below a folder."""
    found = {}
    for name in files_below(folder):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = file.read()
    return found


def experts_without_passthrough(store):
    """{name below the mount: bytes} of all experts, from a mount without passthrough."""
    plain = Mount(store, "nopassthrough")
    read = {name: open(plain / name, "rb").read() for name in plain.experts()}
    plain.unmount()
    return read


def done():
    print(f"{_failures} failed" if _failures else "all held")
    sys.exit(1 if _failures else 0)


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def program(name, build=BUILD):
    path = os.path.join(build, name)
    if not os.path.exists(path):
        skip(f"{path} is not built")
    return path


def tunables():
    """{name: values} of all tunables, as `expertfs --help` lists them; choices have '|' between them."""
    text = run(program("expertfs"), "--help").stdout.split("changes later:\n")[1].split("Others:")[0]
    return dict(re.findall(r"^  (\w+)=(\S+)", text, re.M))


def need_fuse():
    if not os.path.exists("/dev/fuse"):
        skip("there is no /dev/fuse")
    if os.geteuid() and not shutil.which("fusermount3"):
        skip("neither root nor fusermount3")


def memory_cgroup(limit_bytes):
    """A cgroup with a memory limit, removed at the end of the test together with its processes. OSError: not
    available."""
    sys.path.insert(0, os.path.join(ROOT, "tools/bench"))
    from cgroup import Cgroup
    group = Cgroup(limit_bytes)

    def remove():
        for mount in list(_mounts):
            mount.abandon()
        if os.path.exists(group.path):
            with open(f"{group.path}/cgroup.procs") as processes:
                for pid in processes:
                    os.kill(int(pid), signal.SIGKILL)
            group.remove()
    atexit.register(remove)
    return group


def servers(*words):
    """Ceph or nginx of this test: tools/cluster with these words. They end with the test, also if it is killed."""
    sys.path.insert(0, os.path.join(ROOT, "tools/bench"))
    from servers import Servers
    made = Servers()
    atexit.register(made.__exit__)
    try:
        made.start(*words)
    except RuntimeError as error:
        if "is not installed" in str(error):
            skip(error)
        check("the servers start", False, error)
        done()
    return made


def need_cgroup(limit_bytes):
    if SANITIZED:
        skip("a sanitizer takes memory of its own")
    try:
        return memory_cgroup(limit_bytes)
    except OSError as error:
        skip(f"no memory cgroup: {error}")


class Hog:
    """A process of a cgroup that allocates memory on request."""

    def __init__(self, group):
        self.process = subprocess.Popen([*group.prefix, sys.executable, "-c", "import sys\nkept = []\nfor line in sys.stdin:\n"
                                         "    kept.append(bytearray(b'x') * (8 << 20))\n    print('taken', flush=True)"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def allocate(self):
        """Allocates 8 MiB. Returns whether it succeeded."""
        self.process.stdin.write("more\n")
        self.process.stdin.flush()
        return self.process.stdout.readline() == "taken\n"

    def is_alive(self):
        return self.process.poll() is None

    def end(self):
        self.process.communicate(timeout=PATIENCE)


def need_passthrough(mount):
    if not mount.passthrough():
        reason = mount.config()["passthrough_reason"]
        mount.unmount()
        skip(f"no passthrough here: {reason}")


def scratch(name):
    return os.path.join(SCRATCH, name)


def error_of(function, *arguments, **more):
    """The name of the error that a call raises, or "none"."""
    try:
        function(*arguments, **more)
        return "none"
    except OSError as error:
        return errno.errorcode[error.errno]


def in_threads(function, arguments, seconds=PATIENCE):
    """Calls the function with each of the arguments, all at once. Returns whether all calls have ended in time."""
    threads = [threading.Thread(target=function, args=(argument,), daemon=True) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    return not any(thread.is_alive() for thread in threads)


def at_once(*calls):
    """Makes each call (function, argument...) in a process of its own, all at the same time; their failures count here."""
    global _failures
    for function, *arguments in calls:
        pid = os.fork()
        if pid == 0:
            _failures, status = 0, 1
            try:
                function(*arguments)
                status = int(_failures > 0)
            except Exception as error:  # any exception is a failure
                print(f"FAILED {function.__name__}: {type(error).__name__} {error}", flush=True)
            finally:
                os._exit(status)
        _children.append(pid)
    while _children:
        _failures += os.waitpid(_children[-1], 0)[1] != 0
        _children.pop()


def as_user(uid, groups, action):
    """Runs an action in a process of another user: its value as text, or the name of its error."""
    if uid:
        os.chmod(SCRATCH, 0o755)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = "failed"
        try:
            os.setgroups(groups[1:])
            os.setgid(groups[0])
            os.setuid(uid)
            text = str(action())
        except OSError as error:
            text = errno.errorcode[error.errno]
        finally:
            os.write(write, text.encode())
            os._exit(0)
    os.close(write)
    with open(read) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return text


def run_as_nobody(*command):
    """Runs a command that other users may run, as nobody, with access to the scratch folder."""
    os.chmod(SCRATCH, 0o755)
    return subprocess.run(command, capture_output=True, text=True, user="nobody", group="nogroup", extra_groups=[], cwd="/",
                          timeout=PATIENCE)


def run(*command, **more):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, errors="replace",
                          timeout=more.pop("timeout", COMMAND_SECONDS), **more)


def ctl(*words, **environment):
    """expertctl with these variables in addition."""
    return run(program("expertctl"), *words, env={**os.environ, **environment})


def one_line(result, text, hint=True, status=1):
    """Whether a command failed with one line that has the text, and a hint."""
    lines = result.stderr.splitlines()
    return result.returncode == status and len(lines) == 1 + hint and text in lines[0] and (not hint or lines[1].startswith("hint: "))


def as_nobody(commands, *arguments, before=(), device="666"):
    """Runs commands of the shell as nobody, in a mount namespace with a /dev/fuse of this mode (666: for all users): $1
    is the daemon, $2 a folder owned by nobody, $3 and on are the arguments. before: a command that root runs first
    there, and that executes the rest. Returns the result; None, with a note, where this is not possible."""
    if os.geteuid() or not shutil.which("fusermount3") or run("unshare", "-m", "setpriv", "true").returncode:
        note("left out: needs root to become nobody, fusermount3, setpriv and unshare -m")
        return None
    os.chmod(SCRATCH, 0o755)
    copied, path, script = scratch("expertfs-copy"), scratch("nobody"), scratch("nobody.sh")
    shutil.copy(program("expertfs"), copied + ".new")
    os.replace(copied + ".new", copied)  # a daemon of the previous call may still be ending
    for folder in (path, path + ".state"):
        os.makedirs(folder, exist_ok=True)
        shutil.chown(folder, "nobody")
    with open(script, "w") as file:
        file.write(f"""
        rm -f "$2.fuse" # a device in this namespace alone
        mknod "$2.fuse" c 10 229 && chmod {device} "$2.fuse" && mount --bind "$2.fuse" /dev/fuse || exit 77
        commands=$1
        shift
        export EXPERTFS_STATE="$2.state"
        exec setpriv --reuid=nobody --regid=nogroup --clear-groups sh -c "$commands" sh "$@"
        """)
    result = run("unshare", "-m", *before, "sh", script, commands, copied, path, *arguments)
    if result.returncode == 77:
        note(f"left out: {result.stderr.strip()}")
        return None
    return result


def deny_syscalls(error, *numbers):
    """A command prefix with which system calls of these numbers fail with `error`; None, with a note, where that is not
    possible."""
    if os.geteuid() or os.uname().machine not in ("x86_64", "aarch64"):
        note("left out: filters of system calls are set by root, on x86-64 and 64-bit Arm")
        return None
    helper = os.path.join(ROOT, "tests", "e2e", "deny_syscalls.py")
    prefix = (sys.executable, helper, str(error), ",".join(map(str, numbers)), "--")
    probe = run(*prefix, sys.executable, "-c", "")
    if probe.returncode:
        note(f"left out: {probe.stderr.strip().splitlines()[-1]}")
        return None
    return prefix


# Shapes of checkpoints shared by several tests
SMALL = ("-F", "qwen3-moe", "-d", "256", "-i", "512", "-e", "8", "-l", "3", "--vocab", "1000", "--shard-size", "9MB")
NARROW = ("-F", "qwen3-moe", "-d", "128", "-i", "256", "-e", "4", "-l", "2", "--vocab", "500")
WIDE = ("-F", "qwen3-moe", "-d", "512", "-i", "1024", "-e", "8", "-l", "2", "--vocab", "500")
DEEP = ("-F", "qwen3-moe", "-d", "512", "-i", "1024", "-e", "8", "-l", "4", "--vocab", "500")
MANY = ("-F", "qwen3-moe", "-d", "256", "-i", "256", "-e", "16", "-l", "3", "--vocab", "500")
MIXTRAL = ("-F", "mixtral", "-d", "128", "-i", "256", "-e", "4", "-l", "2", "--vocab", "500")


def shared(shape=SMALL, *pack_options):
    """(checkpoint, store), both read-only. $EXPERTFS_SHARED names the folder in which the tests of a run share them;
    tests/run compares their checksums after all tests. Without it they belong to this test."""
    folder = os.environ.get("EXPERTFS_SHARED") or SCRATCH
    words = (*shape, *pack_options)
    path = os.path.join(folder, "-".join(re.sub(r"\W", "", word) for word in words), "model")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path + ".sums"):
            make_store(make_model(path, *shape), *pack_options, environment=NO_STATE)  # the same for all tests
            names = [os.path.join(path, name) for name in files_below(path)] + [path + ".efs"]
            sums = run("sha256sum", *names).stdout
            with open(path + ".sums.new", "w") as file:
                file.write(sums)
            os.rename(path + ".sums.new", path + ".sums")
    return path, path + ".efs"


def make_model(name="model", *options):
    """A small checkpoint of this test with some additional files; returns its folder."""
    path = scratch(name)
    result = run(program("mkmodel"), *(options or SMALL), path)
    if result.returncode:
        print(result.stdout, result.stderr)
        sys.exit(1)
    os.makedirs(f"{path}/extra/deeper", exist_ok=True)
    generator = random.Random(os.path.basename(path))
    for relative, count in (("extra/odd.bin", 4097), ("extra/deeper/empty", 0), ("extra/deeper/one", 1),
                            ("extra/\u00fcber \u6f22.bin", 70000)):
        with open(f"{path}/{relative}", "wb") as file:
            file.write(generator.randbytes(count))
    return path


NO_STATE = {"EXPERTFS_STATE": "/proc/none"}  # an environment in which nothing is kept of a store: not its source either


def make_store(model, *options, environment=None):
    store = model + ".efs"
    result = run(program("mkexpertfs"), "--quiet", "--force", *options, model, store, env={**os.environ, **(environment or {})})
    if result.returncode:
        print(result.stdout, result.stderr)
        sys.exit(1)
    return store


def flip(path, at, bits=1, count=1):
    """Flips these bits of `count` bytes of a file."""
    with open(path, "r+b") as file:
        file.seek(at)
        data = file.read(count)
        file.seek(at)
        file.write(bytes(byte ^ bits for byte in data))


def reading_errors(mount, source, count=-1):
    """The errors of reading the files of source, or their first `count` bytes; or "wrong bytes"."""
    errors = set()
    for name, held in source.items():
        try:
            with open(mount / name, "rb", 0) as file:
                if file.read(count) != (held if count < 0 else held[:count]):
                    errors.add("wrong bytes")
        except OSError as error:
            errors.add(errno.errorcode[error.errno])
    return errors


def files_below(folder):
    """Names of files, without symbolic links."""
    found = []
    for base, _, names in os.walk(folder):
        found += [os.path.relpath(os.path.join(base, name), folder) for name in names
                  if not os.path.islink(os.path.join(base, name))]
    return sorted(found)


def minor_of(path):
    """The minor number of the mount at path, which is the kernel's name of a FUSE connection; None: not mounted."""
    with open("/proc/self/mountinfo", errors="replace") as table:
        found = [line.split()[2] for line in table if line.split()[4].encode().decode("unicode_escape") == path]
    return found[-1].split(":")[1] if found else None


def is_mounted(path):
    return minor_of(path) is not None


def fake_rados(root):
    """The environment of programs that use librados: fake_rados.c, with the clusters in this folder. Returns that of a pool."""
    pool = os.path.join(root, "pool")
    os.makedirs(pool)
    for variable in [name for name in os.environ if name.startswith("CEPH_")]:
        del os.environ[variable]
    os.environ.update(EXPERTFS_RADOS=program("tests/e2e/libfake-rados.so"), FAKE_RADOS=root)
    return pool


def faults(*lines):
    """Those of fake_rados.c from now on; none: it works. Programs that read them meanwhile have the old or the new ones."""
    path = os.path.join(os.environ["FAKE_RADOS"], "fault")
    with open(path + ".new", "w") as file:
        file.write("".join(f"{line}\n" for line in lines))
    os.rename(path + ".new", path)


def forget_pages(path):
    """Drops a file's pages from the page cache, and no others: other tests depend on theirs."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def wait_until(condition, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def is_blocked(number):
    """True if the process or thread waits in the kernel for the daemon's answer, for another thread that does, or for
    page reads."""
    try:
        with open(f"/proc/{number}/wchan") as function:
            return bool(re.search("request_wait|fuse_lock_inode|folio_wait", function.read()))
    except OSError:
        return False


def suspend(pid):
    """Stops a process. Its threads stop one by one, and each may answer one more request before."""
    def running():
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[0] != "T":
                    return True
        return False

    os.kill(pid, signal.SIGSTOP)
    if not wait_until(lambda: not running()):
        check(f"the threads of process {pid} stop", False)


class Mapping:
    """A file mapped by mmap(2) itself: Python's mmap keeps a descriptor and has no address."""

    def __init__(self, path, protection=mmap.PROT_READ, flags=mmap.MAP_SHARED):
        fd = os.open(path, os.O_RDONLY)
        self.size = os.fstat(fd).st_size
        self.address = _libc.mmap(None, self.size, protection, flags, fd, 0)
        os.close(fd)
        if self.address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), f"mmap of {path}")

    def bytes(self):
        return ctypes.string_at(self.address, self.size)

    def close(self):
        _libc.munmap(self.address, self.size)


def make_key(name, digits="0123456789abcdef" * 4):
    path = scratch(name)
    with open(path, "w", encoding="ascii") as file:
        file.write(digits)
    os.chmod(path, 0o600)
    return path


class Peer:
    """expertpeer of a store or a mount, on a port of its own."""

    def __init__(self, source, key, *options):
        self.process = subprocess.Popen([program("expertpeer"), source, "--listen", "127.0.0.1:0", "--key", key, "--json", *options],
                                        stdout=subprocess.PIPE, text=True)
        _peers.append(self)
        self.port = json.loads(self.process.stdout.readline())["port"]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Its counters."""
        self.process.send_signal(signal.SIGTERM)
        said = json.loads(self.process.stdout.readline())
        check("the server ends with 0", self.process.wait() == 0)
        return said


class Mount:
    """A daemon in the foreground, so that its output is seen; stop() or unmount() checks how it ends.

    faults: {"DELAY_US": 5000} runs the daemon of tests/expertfs/engine_faults.c with EFS_FAULT_DELAY_US=5000."""

    def __init__(self, store, options="", faults=None, environment=None, name="mnt", wait=True, prefix=(), arguments=(),
                 stderr=None):
        number = len(_mounts)
        self.path = scratch(f"{name}{number}")
        os.makedirs(self.path, exist_ok=True)
        self.log = scratch(f"log{number}")
        command = [*prefix, program("expertfs" if faults is None else FAULTS), "-f", *arguments, store, self.path]
        if options:
            command += ["-o", options]
        with open(self.log, "w") as log:
            self.daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                           stderr=log if stderr is None else stderr,
                                           env={**os.environ, **(environment or {}),
                                                **{f"EFS_FAULT_{fault}": str(value) for fault, value in (faults or {}).items()}})
        _mounts.append(self)
        self.ready = wait and wait_until(lambda: self.daemon.poll() is not None or ": passthrough (" in self.log_text() or ": direct_io (" in self.log_text() or ": page_cache (" in self.log_text())
        if wait and (not self.ready or self.daemon.poll() is not None):
            check(f"mount {options}", False, self.log_text() or f"not mounted after {PATIENCE} s")
            sys.exit(1)

    def log_text(self):
        with open(self.log, errors="replace") as log:
            return log.read()

    def __truediv__(self, name):
        return os.path.join(self.path, name)

    def control(self, name):
        with open(self / f".expertfs/{name}") as file:
            return file.read()

    def fields(self, name):
        """{name: value} of the `name: value` lines of a control file."""
        return dict(line.split(": ", 1) for line in self.control(name).splitlines() if ": " in line)

    def table(self, name):
        """{first column: {column: value}} of a control file with rows."""
        head, *rows = [row.split() for row in self.control(name).splitlines()]
        return {row[0]: dict(zip(head, row)) for row in rows}

    def stat(self):
        return self.fields("stat")

    def count(self, name):
        return int(self.stat()[name])

    def numbers(self):
        return {name: int(value) for name, value in self.stat().items() if value.isdigit()}

    def used_bytes(self):
        """Bytes of the budget that are in use."""
        stat = self.stat()
        return sum(int(stat[name]) for name in ("fixed_bytes", "chunk_pool_bytes", "full_pool_bytes"))

    def check_budget(self):
        """Opening stat is charged, too: segments that are released for it may have reads in flight."""
        seen = []

        def holds():
            seen[:] = self.used_bytes(), self.count("budget_bytes")
            return seen[0] <= seen[1]
        return check("the budget holds", wait_until(holds), seen)

    def wait_idle(self):
        """Waits until no expert is leased or coded and no read is in flight."""
        return wait_until(lambda: not any(self.count(name) for name in ("inflight", "leased_experts", "coded_experts")))

    def experts(self):
        return [f"experts/{name}" for name in files_below(self / "experts") if "/" in name]

    def config(self):
        return self.fields("config")

    def set_refused(self, name, value):
        """Sets an attribute that must be refused: (name of the error or "" if accepted, the daemon's answer)."""
        try:
            os.setxattr(self.path, "user.expertfs." + name, value.encode())
            error = ""
        except OSError as refused:
            error = errno.errorcode[refused.errno]
        return error, os.getxattr(self.path, "user.expertfs.answer").decode()

    def passthrough(self):
        return self.config()["passthrough"] == "yes"

    def check_exit(self, what):
        """Checks that the daemon ends without a signal from here, with status 0, no mount left and no report of a
        sanitizer."""
        try:
            status = self.daemon.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            status = "still running"
        good = status == 0 and not is_mounted(self.path)
        check(f"{what}: the daemon ends with 0 and leaves no mount", good, f"{status}, mounted: "
              f"{is_mounted(self.path)}, {self.log_text()[-3000:]}")
        if "Sanitizer" in self.log_text():
            check("no finding of a sanitizer", False, self.log_text()[-6000:])
        self.abandon()
        return good

    def stop(self, what="SIGTERM", number=signal.SIGTERM):
        self.daemon.send_signal(number)
        return self.check_exit(what)

    def unmount(self, what="umount"):
        result = run("umount", self.path) if os.geteuid() == 0 else run("fusermount3", "-u", self.path)
        if result.returncode:
            check(what, False, result.stderr)
            return self.stop()
        return self.check_exit(what)

    def threads(self):
        """{thread id: (state, kernel stack)} of the daemon's threads"""
        found, folder = {}, f"/proc/{self.daemon.pid}/task"
        for number in os.listdir(folder) if os.path.isdir(folder) else ():
            try:
                with open(f"{folder}/{number}/stat") as stat, open(f"{folder}/{number}/stack") as stack:
                    found[number] = (stat.read().rsplit(")", 1)[1].split()[0], stack.read())
            except OSError:
                pass  # it has ended, or this user lacks the permission
        return found

    def suspend(self):
        suspend(self.daemon.pid)

    def resume(self):
        self.daemon.send_signal(signal.SIGCONT)

    def kill(self, what="SIGKILL"):
        """Kills the daemon; checks that it dies, also with threads that wait in the kernel."""
        self.daemon.kill()
        try:
            self.daemon.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            check(f"{what}: the daemon dies", False, self.threads())
            self.abandon()
            return False
        return True

    def abort(self):
        """Aborts the connection: all requests that wait for the daemon get an error."""
        connection = f"/sys/fs/fuse/connections/{minor_of(self.path)}/abort"
        if is_mounted(self.path):
            _libc.umount2(os.fsencode(self.path), MNT_FORCE)  # not umount(8), which might access the mount first
        if os.access(connection, os.W_OK):
            with open(connection, "w") as file:
                file.write("1")

    def abandon(self):
        if self in _mounts:
            _mounts.remove(self)
        if self.daemon.poll() is None:
            self.daemon.kill()
            self.abort()  # a thread that waits for the mount itself would never end
            self.daemon.wait()
        if is_mounted(self.path):
            run("umount", "-l", self.path) if os.geteuid() == 0 else run("fusermount3", "-uz", self.path)


def read_pieces(mount, want, piece=1 << 20, errors=(errno.EUCLEAN, errno.EIO)):
    """Reads files of a mount piece by piece: (number of correct pieces, [(name, offset)] of pieces with one of these
    errors, [wrong ones]). offset None: open failed."""
    right, refused, wrong = 0, [], []
    for name, data in want.items():
        try:
            fd = os.open(mount / name, os.O_RDONLY)
        except OSError as error:
            (refused if error.errno in errors else wrong).append((name, None))
            continue
        for offset in range(0, len(data), piece):
            at, end = offset, min(offset + piece, len(data))
            try:
                while at < end:  # the page cache may return valid pages before the error
                    got = os.pread(fd, end - at, at)
                    if not got or got != data[at:at + len(got)]:
                        wrong.append((name, at, len(got)))
                        break
                    at += len(got)
                right += at == end
            except OSError as error:
                (refused if error.errno in errors else wrong).append((name, offset))
        os.close(fd)
    return right, refused, wrong


def safetensors_header(data):
    """(tensors by name, offset of the data)"""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return header, 8 + length


def experts_of(model):
    """The experts' tensors of a checkpoint: name -> bytes."""
    return {name: data for name, data in tensors_of(model).items() if ".experts." in name}


def tensors_of(folder):
    """All tensors of the safetensors files directly in a folder: name -> bytes."""
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with open(os.path.join(folder, name), "rb") as file:
                data = file.read()
            header, base = safetensors_header(data)
            for tensor, entry in header.items():
                begin, end = entry["data_offsets"]
                tensors[tensor] = data[base + begin:base + end]
    return tensors
