# SPDX-License-Identifier: Apache-2.0
"""Ceph and nginx on this machine, by tools/cluster, for tests and benchmarks. They end with this process, also if it is killed."""
import os
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(ROOT, "tools/cluster")
NAMES = ("ceph-mon", "ceph-osd", "ceph-mds", "radosgw", "nginx")
TICKS = os.sysconf("SC_CLK_TCK")


class Servers:
    """A folder for tools/cluster and its variables, which are set in os.environ."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="efs-", dir="/tmp")  # a short path, for sockets
        self.guard = subprocess.Popen([TOOL, "guard", self.folder], stdin=subprocess.PIPE, start_new_session=True)
        os.environ.pop("CEPH_ARGS", None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.guard.stdin.close()
        self.guard.wait()

    def call(self, verb, *words):
        """Runs tools/cluster VERB FOLDER WORD... and returns the result."""
        return subprocess.run([TOOL, verb, self.folder, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)

    def start(self, verb, *words):
        """`up` or `web`; returns the variables that it prints, and sets them. RuntimeError: it did not start."""
        result = self.call(verb, *words)
        if result.returncode:
            raise RuntimeError(result.stderr.strip())
        variables = dict(line.split("=", 1) for line in result.stdout.splitlines())
        os.environ.update(variables)
        return variables

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def answers(self):
        """nginx's log: (status, bytes, protocol, connection, begin, end) of each request; empties it."""
        with open(self.path("access.log"), "r+") as log:
            rows = [line.split() for line in log]
            log.truncate(0)
        return [(int(status), int(count), protocol, int(connection), float(end) - float(took), float(end))
                for status, count, protocol, connection, end, took in rows]

    def processor_seconds(self):
        """(of the servers, of other processes whose arguments name the folder), so far: such as daemons of mounts there."""
        spent = [0.0, 0.0]
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as words, open(f"/proc/{pid}/stat") as stat:
                    if self.folder.encode() + b"/" in words.read():
                        name, fields = stat.read().split("(", 1)[1].rsplit(")", 1)
                        spent[name not in NAMES] += sum(map(int, fields.split()[11:13])) / TICKS
            except (FileNotFoundError, ProcessLookupError):
                pass
        return spent
