# SPDX-License-Identifier: Apache-2.0
"""A cgroup (v1 or v2) of a controller, memory by default, for a benchmark: created with a limit, joined by child processes, then removed."""
import contextlib
import os
import time


def _mounts():
    with open("/proc/self/mountinfo", errors="surrogateescape") as f:
        for line in f:
            left, right = line.split(" - ", 1)
            yield left.split()[4], right.split()[0], right.split()[2]


def _find(controller):
    """(folder for new cgroups, cgroup version), or the reason as text why none can be created."""
    reason = f"no {controller} cgroups are mounted"
    for path, kind, options in _mounts():
        if kind == "cgroup" and controller in options.split(","):
            return (path, 1) if os.access(path, os.W_OK) else f"{path} cannot be written"
        if kind == "cgroup2":
            try:
                with open(f"{path}/cgroup.controllers") as f:
                    if controller not in f.read().split():
                        continue
                with open(f"{path}/cgroup.subtree_control", "r+") as f:
                    if controller not in f.read().split():
                        f.write(f"+{controller}")
                return path, 2
            except OSError as error:
                reason = f"{path}: {error.strerror}"
    return reason


def peak_bytes(pid):
    """The peak of a process's resident memory, of which files and what is shared with the daemon are a part."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))


class Cgroup:
    """limit_bytes None: no limit, only accounting. Raises OSError if no cgroup can be created."""

    def __init__(self, limit_bytes=None, controller="memory"):
        found = _find(controller)
        if isinstance(found, str):
            raise OSError(found)
        base, self.version = found
        self.path = os.path.join(base, f"expertfs-bench-{os.getpid()}-{time.monotonic_ns()}")
        os.mkdir(self.path)
        try:
            if limit_bytes and self.version == 1:
                self.write("memory.swappiness", 0)
            elif limit_bytes and os.path.exists(f"{self.path}/memory.swap.max"):
                self.write("memory.swap.max", 0)
            if limit_bytes:
                self.limit(limit_bytes)
        except OSError:
            os.rmdir(self.path)
            raise

    def write(self, name, value):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(str(value))

    def _read(self, name):
        with open(os.path.join(self.path, name)) as f:
            return f.read()

    def limit(self, limit_bytes):
        self.write("memory.max" if self.version == 2 else "memory.limit_in_bytes", limit_bytes)

    def join(self):
        """Moves the calling process into the group; a preexec_fn."""
        with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
            f.write("0")

    @property
    def prefix(self):
        """Words to prepend to a command so that it runs in the group."""
        return "sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', self.path

    def stat(self):
        return {k: int(v) for k, v in (line.split() for line in self._read("memory.stat").splitlines())}

    def peak_bytes(self):
        return int(self._read("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"))

    def forget_peak(self):
        """peak_bytes() is the peak from now on (version 2: since Linux 6.12)."""
        with contextlib.suppress(OSError):
            self.write("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes", 0)

    def free_bytes(self):
        """Bytes that processes can still allocate: the limit less usage, without reclaimable page cache; shared memory
        is not reclaimable."""
        limit, used, cache, shared = (
            ("memory.max", "memory.current", "file", "shmem") if self.version == 2 else
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"))
        stat = self.stat()
        return int(self._read(limit)) - int(self._read(used)) + stat[cache] - stat[shared]

    def held_bytes(self):
        """Bytes in use, without page cache that no process maps."""
        used, cache, mapped = (("memory.current", "file", "file_mapped") if self.version == 2 else
                               ("memory.usage_in_bytes", "total_cache", "total_mapped_file"))
        stat = self.stat()
        return int(self._read(used)) - stat[cache] + stat[mapped]

    def out_of_memory(self):
        """Number of processes killed because of the limit."""
        text = self._read("memory.events" if self.version == 2 else "memory.oom_control")
        return sum(int(line.split()[1]) for line in text.splitlines() if line.split()[0] == "oom_kill")

    def remove(self):
        """Removes the group after its processes have exited. The rest of its page cache is dropped or charged to the
        parent."""
        for _ in range(200):
            try:
                if os.path.exists(f"{self.path}/memory.force_empty"):
                    self.write("memory.force_empty", 0)
                os.rmdir(self.path)
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.05)
        raise OSError(f"{self.path}: still busy")


def limited_disk(number, bytes_per_second):
    """A new cgroup whose processes read from the device MAJOR:MINOR at most at this rate."""
    group = Cgroup(controller="blkio" if os.path.isdir("/sys/fs/cgroup/blkio") else "io")
    name, text = (("blkio.throttle.read_bps_device", f"{number} {bytes_per_second}") if group.version == 1 else
                  ("io.max", f"{number} rbps={bytes_per_second}"))
    try:
        group.write(name, text)
    except OSError:
        group.remove()
        raise
    return group
