# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run prism: three servers that compute for each other, each with the task of one routing trace, against the simulator.

A server is a mount of a store on a web server, with memory for a part of the experts (a memory cgroup, and a budget), an expertpeer of the
mount, and a runtime on it whose peers are the two others. Store and peers are behind one link of --mbps (tbf on the loopback of a network
namespace). A rule of sched/place gives each server the experts that are pinned there, planned by the first half of the sequences of each
trace; requests are the second half, of one server at a time, one expert mixture a layer, without attention. Prints for each rule the mean
latency of a request and the share of remote calls, as served, and of the simulator with the times that were measured here: of a layer, an
expert, a message. An expert is remote where measured times say so, and a peer that answers late is left alone for a minute: on a busy machine
the shares are not those of the placements. Needs root (cgroups, network namespace), nginx, a compiler, traces."""
import argparse
import contextlib
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import threading
import time

import numpy as np

from bench import model, packed
from cgroup import Cgroup
from common import HERE, WORK, fields, is_mounted, run, tool
from prism_simulator import Simulator
from runner import Rows, spread
from servers import Servers

SHAPE = ("-F", "qwen3-moe", "-d", "1024", "-i", "1344", "-e", "32", "--experts-per-token", "4", "--vocab", "512")
LAYERS, EXPERTS, CHOSEN = 4, 32, 4
RULES = ("uniform", "eplb", "prism", "ours")
ALLOWANCE = 256 << 20  # of a cgroup above the budget: the runtime in Python, expertpeer


class Task:
    """A trace: requests of `prompt` tokens at once and `tokens` in all, from its sequences; the first half of these is planned by."""

    def __init__(self, path, prompt, tokens, count):
        data = subprocess.run(["zstd", "-dcq", path], stdout=subprocess.PIPE, check=True).stdout
        magic, _, layers, experts, chosen, scores, name, total = struct.unpack_from("<8s6IQ", data)
        if magic != b"MOETRACE" or layers < LAYERS:
            sys.exit(f"{path}: no trace of at least {LAYERS} layers")
        row = np.dtype([("sequence", "<u4"), ("ids", "<u2", (layers, chosen)), ("scores", "<f2", (layers, chosen) if scores else (0,))])
        rows = np.frombuffer(data, dtype=row, count=total, offset=40 + name)
        self.experts, self.prompt, self.tokens, self.count = EXPERTS, prompt, tokens, count
        self.ids = np.array([[distinct(choice) for choice in token[:LAYERS]] for token in rows["ids"]], dtype=np.uint16)
        begins = np.flatnonzero(np.diff(rows["sequence"], prepend=rows["sequence"][0] + 1))
        lengths = np.diff(begins, append=total)
        self.halves = [[], []]
        if len(begins) == 1:  # in two parts, so that the requests served are not those planned by
            begins, lengths = (0, total // 2), (total // 2, total - total // 2)
        for number, (begin, length) in enumerate(zip(begins, lengths)):
            self.halves[number >= len(begins) // 2] += [int(at) for at in range(begin, begin + length - tokens + 1, tokens)]

    def requests(self, planned):
        """[tokens][layers][chosen] of each; of those planned by, all."""
        found = self.halves[not planned]
        step = max(1, len(found) // self.count)
        return [np.ascontiguousarray(self.ids[at:at + self.tokens]) for at in (found if planned else found[::step][:self.count])]

    def calls(self):
        """Calls of each expert by the passes planned by: a pass calls an expert once for all of its tokens."""
        found = np.zeros((LAYERS, EXPERTS))
        for ids in self.requests(True):
            for tokens in (ids[:self.prompt], *ids[self.prompt:, None]):
                for layer in range(LAYERS):
                    found[layer, np.unique(tokens[:, layer])] += 1
        return found

    def passes(self):
        return len(self.requests(True)) * (1 + self.tokens - self.prompt)


def distinct(choice):
    """The first CHOSEN distinct experts of a choice, mapped onto EXPERTS."""
    found = list(dict.fromkeys(int(expert) % EXPERTS for expert in choice))
    return (found + [expert for expert in range(EXPERTS) if expert not in found])[:CHOSEN]


class Server:
    """Processes of a server in the namespace `enter`, in a cgroup."""

    def __init__(self, web, where, enter, environment, budget, key):
        self.mount, self.group = where, Cgroup(budget + ALLOWANCE)
        self.start = {"env": environment, "preexec_fn": self.group.join, "text": True}
        self.enter, self.key, self.processes = enter, key, []
        os.makedirs(where)
        subprocess.run([*enter, tool("expertfs"), web + "/model.efs", where, "-o", f"budget={budget},warm=off,nostate,plan=C=100"], check=True, **self.start)
        self.runtime = self.process(sys.executable, os.path.join(HERE, "prism_server.py"), where, key)

    def process(self, *command):
        self.processes.append(subprocess.Popen([*self.enter, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **self.start))
        return self.processes[-1]

    def expert(self, layer, expert):
        return os.path.join(self.mount, f"experts/L{layer:02}/E{expert:03}.safetensors")

    def ask(self, *words):
        self.runtime.stdin.write(json.dumps(words) + "\n")
        self.runtime.stdin.flush()
        line = self.runtime.stdout.readline()
        if not line:
            raise RuntimeError(f"the runtime of {self.mount} has ended")
        return json.loads(line)

    def hold(self, experts, spare_bytes):
        """Pins these experts, reads them, and leaves memory for spare_bytes more. Returns how many are in memory."""
        for layer, expert in experts:
            os.setxattr(self.expert(layer, expert), "user.expertfs.pin", b"C")
        begin = time.monotonic()
        self.ask("load", experts)
        self.read_s = (time.monotonic() - begin) / len(experts)
        there = sum(os.getxattr(self.expert(*one), "user.expertfs.state") in (b"C", b"F") for one in experts)
        with open(os.path.join(self.mount, ".expertfs/stat")) as file:
            stat = fields(file.read())
        used = sum(int(stat[name]) for name in ("fixed_bytes", "chunk_pool_bytes", "full_pool_bytes"))
        os.setxattr(self.mount, "user.expertfs.budget", str(used + spare_bytes).encode())
        return there

    def serve(self):
        peer = self.process(tool("expertpeer"), self.mount, "--listen", "127.0.0.1:0", "--key", self.key, "--threads", "1", "--json")
        return json.loads(peer.stdout.readline())["port"]

    def end(self):
        for process in reversed(self.processes):
            process.terminate()
            process.wait()
        if is_mounted(self.mount):
            run("fusermount3", "-u", self.mount)
        while is_mounted(self.mount):
            time.sleep(0.05)
        self.group.remove()


class Bench:
    def __init__(self, options, servers, tasks):
        folder = model("prism", *SHAPE, "-l", str(LAYERS))
        store = packed(folder)
        info = json.loads(run(tool("expertctl"), "info", "--json", store))
        self.expert_bytes = info["expert_coded_bytes"] // (LAYERS * EXPERTS)
        self.slots = options.memory * LAYERS * EXPERTS // 100
        self.options, self.servers, self.tasks, self.number = options, servers, tasks, 0
        www = servers.path("www")
        os.mkdir(www)
        os.symlink(os.path.abspath(store), os.path.join(www, "model.efs"))
        self.web = servers.start("web", www, f"{options.mbps}mbit")
        with open(servers.path("nginx.pid")) as pid:
            self.enter = ("nsenter", "-n", "-t", pid.read().strip())
        self.key = servers.path("key")
        with open(self.key, "w") as file:
            file.write(os.urandom(32).hex())
        os.chmod(self.key, 0o600)
        self.input = f"random weights, {LAYERS} layers of {EXPERTS} experts of {self.expert_bytes / 1e6:.1f} MB, {CHOSEN} a token"

    @contextlib.contextmanager
    def started(self, placement):
        """Servers that hold a placement, as peers of each other."""
        spare = self.options.prompt * CHOSEN  # a mixture's experts fit besides those that are pinned
        budget = (self.slots + spare) * self.expert_bytes + (self.options.fixed << 20)
        environment = {**os.environ, **self.web, "LD_LIBRARY_PATH": tool("")}
        found = []
        try:
            for server in range(len(self.tasks)):
                self.number += 1
                found.append(Server(self.web["URL"], self.servers.path(f"mnt{self.number}"), self.enter, environment, budget, self.key))
            for server, held in zip(found, placement):
                experts = [(int(layer), int(expert)) for layer, expert in np.argwhere(held)]
                if (there := server.hold(experts, spare * self.expert_bytes)) < len(experts):
                    raise RuntimeError(f"only {there} of {len(experts)} experts fit: a larger --fixed is needed")
            ports = [server.serve() for server in found]
            for number, server in enumerate(found):
                server.ask("peers", ",".join(f"127.0.0.1:{port}" for other, port in enumerate(ports) if other != number))
            yield found
        finally:
            for server in found:
                server.end()

    def calibrate(self, simulator):
        """Measures the simulator's times: layer_s and expert_s by mixtures of 1 and CHOSEN experts here, expert_token_s by 16 tokens,
        latency_s by a remote expert; and (seconds of a remote expert, of reading and running it)."""
        placement = simulator.place("eplb")
        with self.started(placement) as servers:
            first = servers[0]
            self.serve(servers, True)  # reading is measured, and what peers hold is known
            here = [int(e) for e in np.flatnonzero(placement[0][0])][:CHOSEN]
            one, many, wide = (first.ask("time", 0, ids, tokens, 100) for ids, tokens in ((here[:1], 1), (here, 1), (here[:1], 16)))
            away = [(layer, int(e)) for layer, held in enumerate(placement[0]) for e in np.flatnonzero(held == 0)
                    if os.getxattr(first.expert(layer, int(e)), "user.expertfs.state") not in (b"C", b"F")]
            remote = statistics.median(first.ask("time", layer, [expert], 1, 20) for layer, expert in away[:10])
        times, message_s = simulator.times, simulator.times["token_bytes"] / simulator.times["bytes_per_second"]
        expert = (many - one) / (len(here) - 1)
        times["expert_token_s"] = max(0, (wide - one) / 15)
        times["expert_s"] = max(0, expert - times["expert_token_s"])
        times["layer_s"] = max(0, one - expert)
        times["latency_s"] = max(0, (remote - one) / 2 - message_s)
        print("measured, us: " + ", ".join(f"{name[:-2]} {value * 1e6:.0f}" for name, value in times.items() if name.endswith("_s")), flush=True)
        return remote, first.read_s

    def serve(self, servers, planned=False):
        """(seconds of all requests, share of remote calls, failed requests to peers)"""
        seconds, remote, local, failed = [], 0, 0, 0
        for server, task in zip(servers, self.tasks):
            requests = task.requests(planned)[:self.options.requests]
            took, there, here, lost, _ = server.ask("run", task.prompt, [ids.tolist() for ids in requests])
            seconds, remote, local, failed = seconds + took, remote + there, local + here, failed + lost
        return seconds, remote / (remote + local), failed

    def served(self, placement):
        with self.started(placement) as servers:
            self.serve(servers, True)
            return self.serve(servers)


    def killed(self, placement):
        """Kills a peer while the first server serves. (longest pass meanwhile, before; requests to peers that failed)"""
        with self.started(placement) as servers:
            self.serve(servers, True)
            words = "run", self.tasks[0].prompt, [ids.tolist() for ids in self.tasks[0].requests(False)[:self.options.requests]]
            seconds, _, _, _, before = servers[0].ask(*words)
            timer = threading.Timer(sum(seconds) / 2, servers[1].processes[-1].kill)
            timer.start()
            _, _, _, lost, longest = servers[0].ask(*words)
            timer.join()
        return longest, before, lost


def main():
    parser = argparse.ArgumentParser(prog="tools/bench/run prism", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", help="one for each server")
    parser.add_argument("--mbps", type=int, default=500)
    parser.add_argument("--memory", type=int, default=45, help="percent of the experts that a server holds (45)")
    parser.add_argument("--fixed", type=int, default=48, help="MiB of a budget besides experts (48)")
    parser.add_argument("--prompt", type=int, default=4, help="tokens of a request at once (4)")
    parser.add_argument("--tokens", type=int, default=20, help="of a request (20)")
    parser.add_argument("--requests", type=int, default=4, help="of a server (4)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kill", action="store_true", help="only the longest token while a peer is killed, with EPLB's placement")
    options = parser.parse_args()
    if os.geteuid() or not all(map(shutil.which, ("nginx", "zstd", "nsenter", "cc"))):
        print("root, nginx, zstd and cc are needed")
        sys.exit(77)
    os.makedirs(WORK, exist_ok=True)
    tasks = [Task(path, options.prompt, options.tokens, options.requests) for path in options.traces]
    with Servers() as servers:
        bench = Bench(options, servers, tasks)
        times = {name: 0.0 for name in ("layer_s", "layer_token_s", "expert_s", "expert_token_s", "latency_s")}
        simulator = Simulator(tasks, bench.slots, {**times, "bytes_per_second": options.mbps * 125e3, "token_bytes": 4 * 1024})
        if options.kill:
            return report_killed(bench, [bench.killed(simulator.place("eplb")) for _ in range(options.rounds)])
        remote_s, read_s = bench.calibrate(simulator)
        placements = {rule: simulator.ours() if rule == "ours" else simulator.place(rule) for rule in RULES}
        found = {rule: [] for rule in RULES}
        for turn in range(options.rounds):
            for rule in list(RULES)[::-1 if turn % 2 else 1]:
                found[rule].append(bench.served(placements[rule]))
        report(bench, found, remote_s / read_s, {rule: simulator.run(placement, False) for rule, placement in placements.items()})


def report_killed(bench, found):
    rows = Rows("prism", row="killed", input=bench.input, limit=f"{bench.options.memory}%, {bench.options.mbps} Mbit/s")
    longest, before, lost = zip(*found)
    rows.values(longest, ours="a peer is killed", what="longest token", unit="s")
    rows.values(before, ours="before", what="longest token", unit="s")
    print(f"longest token, s: {spread(longest, 3)} while a peer is killed, {spread(before, 3)} before; requests to peers that failed: {sum(lost)}")


def report(bench, found, product_ratio, simulated):
    rows = Rows("prism", row="prism", input=bench.input, limit=f"{bench.options.memory}%, {bench.options.mbps} Mbit/s")
    latency = {rule: [statistics.mean(seconds) for seconds, _, _ in runs] for rule, runs in found.items()}
    share = {rule: [remote for _, remote, _ in runs] for rule, runs in found.items()}
    print(f"{bench.input}; {bench.options.memory} % at each of {len(bench.tasks)} servers, {bench.options.mbps} Mbit/s")
    print(f"an expert by a peer / reading it and running it: {product_ratio:.3f}", flush=True)
    rows.values([product_ratio], ours="peer", what="product over reading", unit="ratio")
    for rule in RULES:
        rows.values(latency[rule], ours=rule, what="latency", unit="s")
        rows.values(share[rule], ours=rule, what="remote calls", unit="share")
        for what, values, figure in (("latency", latency, 0), ("remote calls", share, 1)):
            peer = "eplb" if what == "latency" else "uniform"
            ratio = statistics.median(values[rule]) / statistics.median(values[peer])
            model_ratio = simulated[rule][figure] / simulated[peer][figure]
            print(f"{rule:8} {what:12} {spread(values[rule], 3)}, simulated {simulated[rule][figure]:.3f}; over {peer}'s {ratio:.2f}, "
                  f"simulated {model_ratio:.2f}: {ratio / model_ratio - 1:+.0%}", flush=True)
    print("requests to peers that failed:", sum(lost for runs in found.values() for _, _, lost in runs))


if __name__ == "__main__":
    main()
