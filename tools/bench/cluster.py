# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run cluster [ROW...]: a model that is elsewhere, on a real Ceph and a real nginx on this machine (tools/cluster).

rados-file, https-file: a file of a cold mount of a store, read in order, over the plain file in objects by librados, by ranges of curl.
rados-experts, ceph-fuse, rclone: experts of a cold mount in random order, over their ranges of the plain objects by librados, over a
mount of the store that lies on ceph-fuse, on an rclone mount with a full cache. local: the same from a mount of Ceph with all of the store
in its copy on the local disk (-o local), over a mount of the store on that disk. first-1, first-16: seconds until llama.cpp has the first
token after a prompt of 1 or 16 tokens, by `expertctl up https://... -- PROGRAM {gguf}` of the store, over a link of 1 Gbit/s (tbf in a
network namespace), against downloading the GGUF file first. bytes: fetched for a prompt of 64 tokens and 64 more, over those needed.
osd-killed, osd-stopped: the longest read of 1 MiB, in seconds, while an OSD is killed, or stopped by SIGSTOP, and comes back.

Candidates take turns, all cold: mounts are new, OSDs drop their caches, files are not in the page cache. Servers and clients share the
processors, so each rate has its processor seconds a GB of the checkpoint. Needs root, and the packages of `tools/setup cluster`."""
import argparse
import contextlib
import functools
import json
import os
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import threading
import time
import typing

from bench import model, packed
from common import HERE, WORK, Mounted, drop, is_mounted, run, tool, touch_memory
from llama import preloaded
from runner import ROUNDS, Rows, spread, turns
from servers import Servers

SHAPE = ("-F", "qwen3-moe", "-d", "2048", "-i", "768", "-e", "32", "--experts-per-token", "4", "--vocab", "8192", "--shard-size", "1T")
STORE = "rados:expertfs/model.efs"
OPTIONS = "budget=1G,warm=off,nostate"
DEPTH, OBJECT = 8, 4 << 20
GRACE = 6  # osd_heartbeat_grace of tools/cluster, seconds


class Run(typing.NamedTuple):
    """One measurement: the row's figure, processor seconds of servers and clients, wall seconds, bytes of the checkpoint."""

    value: float
    servers: float = 0
    clients: float = 0
    seconds: float = 0
    bytes: int = 0


class Bench:
    def __init__(self, options, servers, slow):
        self.servers, self.slow, self.options = servers, slow, options
        self.ceph = any(row in options.rows for row in ROWS if ROWS[row].ceph)

    def prepare(self):
        """Makes the checkpoints, starts the servers, and writes the store and the plain file to them."""
        options = self.options
        folder = model(f"cluster-{options.size}", *SHAPE, "--size", options.size)
        self.plain, = (os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors"))
        self.store, self.bytes = packed(folder), os.path.getsize(self.plain)
        files = {"model.safetensors": self.plain, "model.efs": self.store}
        if any(ROWS[row].gguf for row in options.rows):
            folder = os.path.join(WORK, f"cluster-{options.gguf_size}-gguf")
            self.gguf = os.path.join(folder, "model.gguf")
            if not os.path.exists(self.gguf):
                run(tool("mkmodel"), "--format", "gguf", *SHAPE[:-2], "--size", options.gguf_size, folder + ".part")
                os.rename(folder + ".part", folder)
            self.gguf_store = packed(folder)
            files |= {"model.gguf": self.gguf, "gguf.efs": self.gguf_store}
        if self.ceph:
            self.servers.start("up", "--fs")
            run(tool("mkexpertfs"), "-q", "--copy", self.store, STORE)
            with open(self.plain, "rb") as file:
                run(sys.executable, os.path.join(HERE, "rados_ranges.py"), "put", "expertfs", "plain", stdin=file)
            if "ceph-fuse" in options.rows:
                with self.ceph_fuse() as where:
                    shutil.copyfile(self.store, os.path.join(where, "model.efs"))
        www = os.path.join(WORK, "cluster-www")
        shutil.rmtree(www, ignore_errors=True)
        os.mkdir(www)
        for name, path in files.items():
            os.symlink(path, os.path.join(www, name))
        self.slow_web = self.slow.start("web", www, "1gbit")
        self.web = self.servers.start("web", www)  # whose variables stay in the environment

    # ---- what each run begins and ends with ----

    def cool(self, *paths):
        if self.ceph:
            run("ceph", "tell", "osd.*", "cache", "drop", stderr=subprocess.DEVNULL)
        for path in (self.plain, self.store, *paths):
            drop(path)
        touch_memory(2 * self.bytes)

    def measure(self, read):
        """read() returns the seconds that it took, or None: all of its time."""
        used = lambda: [sum(both) for both in zip(*(one.processor_seconds() for one in (self.servers, self.slow)))] + [
            sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])]
        before, begin = used(), time.monotonic()
        seconds = read() or time.monotonic() - begin
        servers, mounts, children = (b - a for a, b in zip(before, used()))
        return Run(self.bytes / seconds / 1e9, servers, mounts + children, seconds, self.bytes)

    @contextlib.contextmanager
    def foreign(self, name, *command):
        """A mount of another program."""
        where = self.servers.path(name)
        os.makedirs(where, exist_ok=True)
        run(*command, where, stderr=subprocess.DEVNULL)
        try:
            yield where
        finally:
            run("umount", where)
            while is_mounted(where):
                time.sleep(0.05)

    def ceph_fuse(self):
        return self.foreign("fuse", "ceph-fuse", "-c", self.servers.path("ceph.conf"), "-n", "client.admin")

    def rclone(self):
        shutil.rmtree(self.servers.path("cache"), ignore_errors=True)
        return self.foreign("rclone", "rclone", "mount", "--config", self.servers.path("rclone.conf"), "--cache-dir", self.servers.path("cache"),
                            "--vfs-cache-mode", "full", "--read-only", "--daemon", "--ca-cert", self.web["CURL_CA_BUNDLE"],
                            "--http-url", self.web["URL"], ":http:")

    # ---- candidates ----

    def mount(self, store, read, options=OPTIONS, *cooled):
        self.cool(*cooled)
        with Mounted(store, self.servers.path("mnt"), options) as where:
            return self.measure(functools.partial(read, self, where))

    def local(self, read):
        """With all of the store in a copy on the local disk, which is filled once."""
        folder = self.servers.path("local")
        options = f"{OPTIONS},local={folder},local-size={2 * self.bytes}"
        if not os.path.exists(folder):
            with Mounted(STORE, self.servers.path("mnt"), options) as where:
                run(tool("expertctl"), "warmup", "--local", where, stderr=subprocess.DEVNULL)
        return self.mount(STORE, read, options, *(os.path.join(folder, name) for name in os.listdir(folder)))

    def on(self, foreign, read):
        self.cool()
        with foreign() as below, Mounted(os.path.join(below, "model.efs"), self.servers.path("mnt"), OPTIONS) as where:
            return self.measure(functools.partial(read, self, where))

    def file(self, where):
        return seconds_of(os.path.join(where, os.path.basename(self.plain)))

    def experts(self, where):
        found = [os.path.join(folder, name) for folder, _, names in os.walk(os.path.join(where, "experts")) for name in sorted(names)]
        random.Random(1).shuffle(found)
        return seconds_of("--threads", str(DEPTH), *found)

    def objects(self, items):
        self.cool()
        return self.measure(lambda: json.loads(run(sys.executable, os.path.join(HERE, "rados_ranges.py"), "read", "expertfs", "plain", "--depth",
                                                   str(DEPTH), input=json.dumps(items)))["seconds"])

    def blocks(self):
        return [[[at, min(OBJECT, self.bytes - at)]] for at in range(0, self.bytes, OBJECT)]

    def expert_ranges(self):
        """Those of an expert are an item; in random order."""
        with open(self.plain, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            tensors, found = json.loads(file.read(length)), {}
        for name, tensor in tensors.items():
            if expert := re.search(r"(\d+)\..*experts\.(\d+)\.", name):
                begin, end = tensor["data_offsets"]
                found.setdefault(expert.groups(), []).append([8 + length + begin, end - begin])
        items = list(found.values())
        random.Random(1).shuffle(items)
        return items

    def curl(self):
        self.cool()
        config = "next\n".join(f"url = {self.web['URL']}/model.safetensors\ncacert = {self.web['CURL_CA_BUNDLE']}\nrange = {at}-{at + count - 1}\n"
                               "output = /dev/null\nfail\n" for (at, count), in self.blocks())
        return self.measure(lambda: run("curl", "--parallel", "--parallel-max", str(DEPTH), "-K", "-", input=config, stderr=subprocess.DEVNULL) and None)

    def first(self, prompt, how):
        """Seconds from nothing local to the first token; how(client) is the shell's command."""
        self.cool(self.gguf)
        home = self.slow.path("home")
        shutil.rmtree(home, ignore_errors=True)
        os.mkdir(home)
        with open(self.slow.path("nginx.pid")) as pid:
            enter = ("nsenter", "-n", "-t", pid.read().strip())
        client = f"'{sys.executable}' '{HERE}/llama_client.py' --tokens 0 --prompt {prompt}"
        self.slow.answers()
        begin = time.monotonic()
        result = self.measure(lambda: run(*enter, "sh", "-ec", how(client), env={**os.environ, **self.slow_web, "HOME": home, "XDG_DATA_HOME": home,
                                          "EXPERTFS_STATE": home}, cwd=home, stderr=subprocess.DEVNULL) and None)
        size = os.path.getsize(self.gguf)
        print(f"  prompt of {prompt}: {sum(answer[1] for answer in self.slow.answers()) / 1e6:.0f} MB were sent, of {size / 1e6:.0f}", flush=True)
        return result._replace(value=time.monotonic() - begin, bytes=size)

    def up(self, client):
        return f"'{tool('expertctl')}' up \"$URL/gguf.efs\" -- {client} '{{gguf}}'"

    def download(self, client):
        return f'curl -sSf -o model.gguf "$URL/model.gguf"; {client} model.gguf'

    def fetched(self):
        """Bytes that nginx sends for a prompt of 64 tokens and 64 more, over those of the dense part and of the experts that they chose."""
        self.cool(self.gguf)
        info = json.loads(run(tool("expertctl"), "info", "--json", self.gguf_store))
        with Mounted(self.web["URL"] + "/gguf.efs", self.servers.path("mnt"), "budget=auto,warm=off,nostate") as where:
            self.servers.answers()
            run(sys.executable, os.path.join(HERE, "llama_client.py"), os.path.join(where, "model.gguf"), "--prompt", "64", "--tokens", "64",
                stderr=subprocess.DEVNULL, env={**os.environ, **preloaded(os.environ), "EXPERTFS_MOUNT": where, "EXPERTFS_BUDGET": "auto"})
            sent = sum(answer[1] for answer in self.servers.answers())
            layer = min(os.listdir(os.path.join(where, "experts")))
            folder = os.path.join(where, "experts", layer)
            with open(os.path.join(folder, min(os.listdir(folder))), "rb") as expert:  # a request of the first layer ends the pass
                expert.read()
            chosen = share_chosen(os.path.join(where, ".expertfs/trace"))
        needed = info["store_bytes"] - info["expert_coded_bytes"] * (1 - chosen)
        print(f"  {sent / 1e6:.0f} MB were sent, {needed / 1e6:.0f} needed: {chosen:.2f} of the experts", flush=True)
        return Run(sent / needed)

    def longest(self, fault, end, seconds):
        """The longest read of 1 MiB while an OSD is lost for some seconds; each is compared."""
        self.cool()
        ended, times, wrong = threading.Event(), [], []
        with Mounted(STORE, self.servers.path("mnt"), "budget=64M,nopassthrough,direct_io=on,warm=off,nostate") as where:
            def reads():
                with open(self.plain, "rb", 0) as plain, open(os.path.join(where, os.path.basename(self.plain)), "rb", 0) as file:
                    while not ended.is_set():
                        at = random.randrange(self.bytes >> 20) << 20
                        begin = time.monotonic()
                        data = os.pread(file.fileno(), 1 << 20, at)
                        times.append(time.monotonic() - begin)
                        wrong.extend([at] * (data != os.pread(plain.fileno(), 1 << 20, at)))

            reader = threading.Thread(target=reads)
            reader.start()
            for verb, wait in ((None, 1), (fault, seconds), (end, 5)):
                if verb:
                    self.servers.call(verb, "1")
                time.sleep(wait)
            ended.set()
            reader.join()
        if wrong:
            sys.exit(f"{STORE}: wrong bytes at {wrong}")
        return Run(max(times))


def seconds_of(*arguments):
    return json.loads(run(sys.executable, os.path.join(HERE, "readbench.py"), "--keep-cache", *arguments))["seconds"]


def share_chosen(path):
    """Of the experts, those in a trace: expertfs-route(5), version 2."""
    with open(path, "rb") as file:
        data = file.read()
    layers, experts, used, _, name = struct.unpack_from("<5I", data, 12)
    found, record = set(), 8 + 2 * layers * used
    for at in range(48 + name, len(data) - record + 1, record):
        numbers = struct.unpack_from(f"<{layers * used}H", data, at + 8)
        found.update((i // used, number) for i, number in enumerate(numbers))
    return len(found) / (layers * experts)


class Row(typing.NamedTuple):
    """A row of the table: names of candidates and functions of the bench that measure one once; ours is the first."""

    what: str
    unit: str
    aim: float
    candidates: dict
    ceph: bool = True  # it needs Ceph
    gguf: bool = False


RADOS_EXPERTS = {"expertfs": lambda b: b.mount(STORE, Bench.experts)}
EXPERTS = f"experts in random order, {DEPTH} at once"
ROWS = {
    "rados-file": Row("a file in order", "GB/s", 1.2, {
        "expertfs": lambda b: b.mount(STORE, Bench.file), f"librados, {DEPTH} objects at once": lambda b: b.objects(b.blocks())}),
    "https-file": Row("a file in order", "GB/s", 1.2, {
        "expertfs": lambda b: b.mount(b.web["URL"] + "/model.efs", Bench.file), f"curl, {DEPTH} ranges at once": Bench.curl}, False),
    "rados-experts": Row(EXPERTS, "GB/s", 1.2, {
        **RADOS_EXPERTS, f"librados, {DEPTH} experts at once": lambda b: b.objects(b.expert_ranges())}),
    "ceph-fuse": Row(EXPERTS, "GB/s", 1.5, {
        **RADOS_EXPERTS, "store on ceph-fuse": lambda b: b.on(b.ceph_fuse, Bench.experts)}),
    "rclone": Row(EXPERTS, "GB/s", 2, {
        "expertfs": lambda b: b.mount(b.web["URL"] + "/model.efs", Bench.experts),
        "store on rclone": lambda b: b.on(b.rclone, Bench.experts)}, False),
    "local": Row(EXPERTS, "GB/s", 0.9, {
        "expertfs, all in the local copy": lambda b: b.local(Bench.experts), "the store on the local disk": lambda b: b.mount(b.store, Bench.experts)}),
    **{f"first-{prompt}": Row(f"first token, prompt of {prompt}", "s", 4, {
        "expertfs": lambda b, prompt=prompt: b.first(prompt, b.up),
        "download, then llama.cpp": lambda b, prompt=prompt: b.first(prompt, b.download)}, False, True) for prompt in (1, 16)},
    "bytes": Row("bytes fetched for a prompt of 64 tokens and 64 more, over those needed", "bytes", 1.1, {"expertfs": Bench.fetched}, False, True),
    "osd-killed": Row("longest read", "s", 5, {"expertfs": lambda b: b.longest("stop", "start", 10)}),
    "osd-stopped": Row("longest read", "s", GRACE + 10, {"expertfs": lambda b: b.longest("pause", "continue", GRACE + 14)}),
}


def report(rows, name, row, runs):
    """Prints a row and what bounds it, and writes both."""
    values = {candidate: [one.value for one in found] for candidate, found in runs.items()}
    own, *peers = values
    about = {"row": name, "what": row.what, "ours": own}
    if peers:
        found = rows.compare(values[own], {peer: values[peer] for peer in peers}, row.unit, **about)
        print(f"{name}: {row.what}: {found}, {found.value:.3g} {row.unit} of {found.peer}'s {found.peer_value:.3g}, wanted >= {row.aim}", flush=True)
    else:
        rows.values(values[own], unit=row.unit, **about)
        print(f"{name}: {row.what}: {spread(values[own])} {row.unit}, wanted <= {row.aim}", flush=True)
    for candidate, found in runs.items():
        if not found[0].bytes:
            continue
        spent = {side: rows.values([getattr(one, side) * 1e9 / one.bytes for one in found], row=name, ours=candidate, unit="processor s",
                                   what=f"processor seconds a GB, {side}") for side in ("servers", "clients")}
        busy = max((one.servers + one.clients) / one.seconds for one in found)
        print(f"  {candidate}: processor seconds a GB: servers {spent['servers']:.2f}, clients {spent['clients']:.2f}; at most {busy:.2f} of "
              f"{os.cpu_count()} cores busy", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="of " + ", ".join(ROWS) + " (all)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--size", default="1GB", help="of the checkpoint (1GB)")
    parser.add_argument("--gguf-size", default="5GB", help="of the GGUF file (5GB)")
    parser.add_argument("--quick", action="store_true", help="one round, files of 200 and 400 MB")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.size, options.gguf_size = 1, "200MB", "400MB"
    options.rows = options.rows or list(ROWS)
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    os.makedirs(WORK, exist_ok=True)
    with Servers() as servers, Servers() as slow:
        bench = Bench(options, servers, slow)
        try:
            bench.prepare()
        except RuntimeError as error:
            print(error)
            sys.exit(77)
        rows = Rows("cluster", input=f"random weights, BF16 of {bench.bytes / 1e9:.1f} GB, packed {os.path.getsize(bench.store) / bench.bytes:.3f}")
        for name in options.rows:
            runs = turns({candidate: functools.partial(call, bench) for candidate, call in ROWS[name].candidates.items()}, options.rounds)
            report(rows, name, ROWS[name], runs)


if __name__ == "__main__":
    main()
