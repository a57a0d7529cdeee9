# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run python_table: tokens a second of transformers with experts from a store, over accelerate's offload to disk (p) and
over the same experts function on mapped plain files (m), in one memory cgroup with the daemon; the time of from_pretrained(); memory.

The limit is what the program has after it has imported torch and transformers (its memory and the files that it maps, without other
page cache), and a share of the checkpoint. Candidates take turns,
each cold: coded, full (the store in the process), coded-mount, full-mount (a mount), mapped (m), offload (p; it has no run without a
limit), plain (only without a limit). Needs `tools/setup-python torch` and accelerate, or PYTHON of an environment with them, and root.
--size: of the checkpoint, Qwen3-MoE's shape with random weights. --limits: shares in percent, 0: no limit.
--quick: one round of 12 tokens (offload: 2); no run begins after 7 minutes."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import time

from bench import model, packed
from cgroup import peak_bytes
from common import HERE, ROOT, WORK, tool
from runner import ROUNDS, Rows, cold, limited, spread, turns

OURS = ("coded", "full", "coded-mount", "full-mount")
WAYS = (*OURS, "mapped", "offload", "plain")
SECONDS = 600  # of a run
QUICK_SECONDS = 420
SPARE = 160 << 20  # of a limit: buffers of torch, page tables, attention
COLUMNS = ("limit", "way", "tokens/s", "prompt, s", "load, s", "process, MB", "daemon, MB", "cgroup above the imports, MB", "of")


class Model:
    def __init__(self, size):
        self.path = model(f"python-{size}", "-F", "qwen3-moe", "-d", "1024", "-i", "512", "-e", "64", "--experts-per-token", "8", "--vocab", "8000",
                          "--size", size)
        self.store = packed(self.path)
        self.files = [os.path.join(self.path, name) for name in os.listdir(self.path)]
        self.bytes = sum(map(os.path.getsize, self.files))
        info = json.loads(subprocess.run([tool("expertctl"), "info", "--json", self.store], check=True, stdout=subprocess.PIPE, text=True).stdout)
        self.dense_bytes = self.bytes - info["expert_raw_bytes"]


class Daemon:
    """A mount whose daemon is in the cgroup."""

    def __init__(self, group, store, budget):
        self.path = os.path.join(WORK, "python-mnt")
        os.makedirs(self.path, exist_ok=True)
        options = f"budget={budget}" if budget else "budget=auto"
        self.process = subprocess.Popen([*group.prefix, tool("expertfs"), "-f", store, self.path, "-o", options], stderr=subprocess.DEVNULL)
        while not os.path.ismount(self.path):
            if self.process.poll() is not None:
                raise RuntimeError("the daemon did not start")
            time.sleep(.01)

    def end(self):
        peak = peak_bytes(self.process.pid) if self.process.poll() is None else 0
        subprocess.run(["fusermount3", "-u", self.path], check=False)
        self.process.wait()
        return peak


def run_once(way, made, share, tokens):
    """The client's results and the peaks of memory; None: it was killed, or could not."""
    folder = os.path.join(WORK, "python-offload")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    cold(made.store, *made.files)
    environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python"), "LD_LIBRARY_PATH": os.path.dirname(tool("libexpertfs.so.0")),
                   "EXPERTFS_STATE": os.path.join(WORK, "python-state")}
    with limited(None) as group:
        client = subprocess.Popen([*group.prefix, sys.executable, os.path.join(HERE, "python_client.py"), way, made.path, made.store, str(tokens),
                                   folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        client.stdout.readline()
        imported, limit, budget, daemon = group.held_bytes(), 0, 0, None
        if share:
            limit = share * made.bytes // 100
            group.limit(imported + limit)
            group.forget_peak()
            budget = max(limit - SPARE, 1 << 20) if way == "offload" else 0
        if way.endswith("-mount"):
            daemon = Daemon(group, made.store, budget)
        try:
            said, _ = client.communicate(f"{budget} {daemon.path if daemon else ''}\n", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            client.kill()
            said, _ = client.communicate()
        served = daemon.end() if daemon else 0
        peak = group.peak_bytes() - imported
    shutil.rmtree(folder, ignore_errors=True)
    good = client.returncode == 0 and said
    print(f"  {way}, {share} %: {said.strip() if good else f'exit status {client.returncode}'}", file=sys.stderr, flush=True)
    return {**json.loads(said), "cgroup_bytes": peak, "daemon_bytes": served, "limit_bytes": limit} if good else None


def table_rows(limit, runs):
    for way, results in runs.items():
        good = [one for one in results if one]
        if not good:
            yield limit, way, *["did not end"] + [""] * 6
            continue
        mega = {name: f"{max(one[name] for one in good) / 1e6:.0f}" for name in ("process_bytes", "daemon_bytes", "cgroup_bytes", "limit_bytes")}
        yield (limit, way, spread([one["rate"] for one in good]), *(spread([one[name] for one in good]) for name in ("first_s", "load_s")),
               mega["process_bytes"], mega["daemon_bytes"], mega["cgroup_bytes"], mega["limit_bytes"])


def compare(rows, row, limit, runs):
    """Prints the ratios of ours to each peer."""
    good = {way: [one for one in results if one] for way, results in runs.items()}
    for way in filter(good.get, OURS):
        for peer in filter(good.get, ("offload", "mapped", "plain")):
            for unit, name, what in (("tokens/s", "rate", "tokens a second"), ("s", "load_s", "from_pretrained")):
                if name == "rate" or peer == "plain":
                    found = rows.compare([one[name] for one in good[way]], {peer: [one[name] for one in good[peer]]}, unit, row=row, limit=limit,
                                         what=what, ours=way)
                    print(f"{limit}: {what}, {way} over {peer}: {found}", flush=True)
    same = {way: tuple(results[0]["tokens"]) for way, results in good.items() if results and "coded" not in way}
    shortest = min(map(len, same.values()), default=0)
    if len({tokens[:shortest] for tokens in same.values()}) > 1:
        print(f"{limit}: tokens differ: {same}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="5GB")
    parser.add_argument("--limits", default="25,50,75,0")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=min(ROUNDS, 3))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    made = Model(options.size)
    rows = Rows("python", input=f"Qwen3-MoE, random weights, {made.bytes / 1e9:.1f} GB")
    print(f"{made.bytes / 1e9:.2f} GB, of which {made.dense_bytes / 1e9:.2f} are not experts", flush=True)
    begin, table = time.monotonic(), []

    def once(way, share):
        if options.quick and time.monotonic() - begin > QUICK_SECONDS:
            return None
        return run_once(way, made, share, *[2 if way == "offload" else 12] if options.quick else [options.tokens])

    for share in map(int, options.limits.split(",")):
        ways = [way for way in options.ways.split(",") if way != ("plain" if share else "offload")]
        runs = turns({way: lambda way=way: once(way, share) for way in ways}, 1 if options.quick else options.rounds)
        limit = f"{share} %" if share else "none"
        table += table_rows(limit, runs)
        compare(rows, f"python-{share or 'none'}", limit, runs)
    for row in (COLUMNS, ["---"] * len(COLUMNS), *table):
        print("| " + " | ".join(row) + " |")


main()
