# SPDX-License-Identifier: Apache-2.0
"""Samples of a daemon's memory, taken from outside while settings change: was any above the budget in force?"""
import bisect
import os
import random
import re
import stat as modes
import time

from e2e import tunables


def resident_bytes(pid):
    """Bytes of anonymous memory, and of mapped shared memory."""
    with open(f"/proc/{pid}/status") as text:
        found = dict(re.findall(r"^(Rss\w+):\s+(\d+) kB", text.read(), re.M))
    return int(found["RssAnon"]) << 10, int(found["RssShmem"]) << 10


def memory_files(pid, *folders):
    """{file: (allocated bytes, size in bytes)} of files without a visible name: those that are open ("fd"), mapped
    ("map_files"), or either."""
    seen = {}
    for path in [f"/proc/{pid}/{folder}/{name}" for folder in folders or ("fd", "map_files")
                 for name in os.listdir(f"/proc/{pid}/{folder}")]:
        try:
            link = os.readlink(path)  # a file in a filesystem that is mounted nowhere has a name that does not resolve
            if link.endswith("(deleted)") or not os.path.lexists(link):
                there = os.stat(path)
                if modes.S_ISREG(there.st_mode):
                    seen[there.st_dev, there.st_ino] = (there.st_blocks * 512, (there.st_size + 4095) // 4096 * 4096)
        except FileNotFoundError:
            pass
    return seen


def sample_memory(pid, stop, pipe):
    """Appends (begin, end, bytes) repeatedly. Files are examined one after the other while some are freed and others
    created. A file only grows until it is freed: the smaller of its sizes before and after was allocated throughout."""
    samples = []
    while not stop.is_set():
        begin = time.monotonic()
        before = memory_files(pid)
        anonymous, shared = resident_bytes(pid)
        after = memory_files(pid)
        held = sum(min(before[file][0], after[file][0]) for file in before.keys() & after.keys())
        samples.append((begin, time.monotonic(), anonymous + max(held, shared)))
        time.sleep(0.02)
    pipe.send(samples)
    pipe.close()


SEGMENT = 16 << 20  # of the chunk pool, maximum: one segment is never freed
OPENED = 3 << 20  # the largest expert that may be in an open when the budget falls, for one reader in four

CHANGES = (("plan", ("auto", "C=100", "F=50,C=20,S=20,E=10", "F=80,C=20", "S=50,E=50", "F=30,S=70")),
           ("pools", ("FCSE", "CSE", "C", "FC", "SE")), ("policy", tunables()["policy"].split("|")),
           ("goal", ("io", "makespan")))


class Tuner:
    """Changes settings and records the budgets with the times at which they were in force."""

    def __init__(self, mount, budget_bytes, layers, readers, seed=7):
        self.mount, self.generator, self.layers, self.slack = mount, random.Random(seed), layers, readers // 4 * OPENED
        self.times, self.limits = [0.0], [budget_bytes]  # limits[i] is in force from times[i] on
        self.problems, self.more_than_leased = [], []

    def set(self, name, value, path=""):
        try:
            os.setxattr(self.mount / path, "user.expertfs." + name, value.encode())
        except OSError as error:
            self.problems.append((name, value, error))

    def set_budget(self, value, bytes_):
        leased = self.mount.count("leased_bytes")
        self.times.append(time.monotonic())
        self.limits.append(max(bytes_, self.limits[-1]))
        self.set("budget", value)
        back = time.monotonic()
        stat = self.mount.stat()
        answer = os.getxattr(self.mount.path, "user.expertfs.answer").decode()
        held = re.search(r"still hold (\d+) bytes", answer)
        held = int(held.group(1)) if held else 0
        self.times.append(back)
        self.limits.append(bytes_ + held)
        excuse = max(0, leased + int(stat["fixed_bytes"]) + SEGMENT - bytes_)
        if held > excuse + self.slack:
            self.more_than_leased.append((value, held >> 20, excuse >> 20))

    def limit(self, begin, end):
        """The highest limit in force at any time from begin to end."""
        first, last = bisect.bisect_right(self.times, begin) - 1, bisect.bisect_right(self.times, end)
        return max(self.limits[first:last])

    def change(self, budgets, experts):
        what = self.generator.randrange(8)
        if what < 3:
            mib = self.generator.choice(budgets)
            self.set_budget(f"{mib}M", mib << 20)
        elif what < 4:
            self.set("pin", self.generator.choice("FC-"), self.generator.choice(experts))
        elif what < 5:
            self.set("pin", self.generator.choice("C--"), f"experts/L{self.generator.randrange(self.layers):02}")
        else:
            name, values = self.generator.choice(CHANGES)
            self.set(name, self.generator.choice(values))


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def over(samples, tuner):
    """(bytes above the budget, MiB held, MiB of the budget, seconds since the first sample) of each sample"""
    return [(held - tuner.limit(begin, end), held >> 20, tuner.limit(begin, end) >> 20, round(begin - samples[0][0], 2))
            for begin, end, held in samples]


def above_tolerance(found):
    """The samples that are more than 1 % or 16 MiB above, whichever is larger."""
    return [entry for entry in found if entry[0] > max(16 << 20, (entry[2] << 20) // 100)]
