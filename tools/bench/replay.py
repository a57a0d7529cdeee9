# SPDX-License-Identifier: Apache-2.0
"""make bench-replay: a routing trace through the mount, the mapped and the read-LRU peer, and the simulator.

Four measurements, each told as ratios against the bars that they are held to:
  whole   the simulator on the whole trace: bytes read per token, read-lru over expertfs;
  live    the first --tokens of it on real files (48: some ten minutes in all), cold, each runner in a memory cgroup of
          the same budget, which it takes before its first token, taking turns:
          time per token of the peers over that of expertfs;
  limit   the first --tokens in the simulator, as if decoding took nothing from those who touch: what the order of
          reads alone lets be reached, on this disk, of the time per token against read-lru;
  agree   the same without computing, beside the simulator: how far the simulator is from the daemon.
The checkpoint is 24 layers of 32 experts of 9 MiB (7 GB), random weights, and is made if it is not there.
Writes runs.json (a list of all runs), tpot.svg and hits.svg."""
import argparse
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import plot  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
WORK = os.environ.get("BENCH_DIR", os.path.join(BUILD, "bench"))
# budget in percent: bar; of "bytes" and the two of "time"
BARS = {"bytes": {10: 2.7, 25: 3.0, 50: 14.0}, "mmap": {10: 2.5, 25: 2.5, 50: 1.5},
        "read-lru": {10: 1.7, 25: 1.7, 50: 1.2, 75: 1.0}}


def tool(name):
    return os.path.join(BUILD, name)


def arguments(program, doc, budgets, rounds, tokens, policies, policies_help):
    """The options that measurements of replays share, with these defaults: the caller adds its own."""
    p = argparse.ArgumentParser(prog=f"tools/bench/{program}", description=doc, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--trace", help="the trace that is replayed ($TRACE, or found in $TRACES)")
    p.add_argument("--history", help="the trace to plan from ($HISTORY, or found in $TRACES)")
    p.add_argument("--tokens", type=int, default=tokens, help=f"of the trace, on real files ({tokens})")
    p.add_argument("--rounds", type=int, default=rounds, help=f"on real files; medians are told ({rounds})")
    p.add_argument("--budgets", default=budgets, help=budgets.replace("%", "%%"))
    p.add_argument("--policies", default=policies, help=f"{policies_help}\n({policies})")
    p.add_argument("--batch", default="1", help="sequences at a time; bars are for 1 (1)")
    p.add_argument("--model", help="a raw checkpoint of another model, in place of the generated one")
    return p


def traced(p):
    """What was asked for, with the traces of the environment where none were named; the trace may be None."""
    a = p.parse_args()
    a.trace = a.trace or os.environ.get("TRACE") or found("eval")
    a.history = a.history or os.environ.get("HISTORY") or found("history", a.trace)
    return a


def options():
    p = arguments("replay", __doc__, "10%,25%,50%,75%", 1, 48, "zipmoe:makespan,zipmoe:io,lru",
                  "of the mount; the first is held to the bars of time, the least bytes to those of bytes")
    p.add_argument("--compute", default="touch", help="none, touch, ffn (touch)")
    p.add_argument("--run-us", default="300", help="to touch an expert once, with all cores, of limit (300)")
    p.add_argument("--skip", default="", help="measurements to leave out: whole,live,limit,agree")
    a = traced(p)
    a.skip = set(filter(None, a.skip.split(",")))
    if not a.trace:
        p.error("no trace: TRACES=DIR (with *-eval.route* and *-history.route*), or TRACE=FILE and HISTORY=FILE")
    return a


def found(kind, beside=None):
    """The trace of that kind in $TRACES, or beside another one."""
    folder = os.environ.get("TRACES") or (beside and os.path.dirname(os.path.abspath(beside)))
    traces = sorted(glob.glob(os.path.join(glob.escape(folder), f"*-{kind}.route*"))) if folder else []
    if beside:
        start = os.path.basename(beside).split("-")[0]
        traces = [t for t in traces if os.path.basename(t).startswith(start)]
    return traces[0] if traces else None


def prepare(model):
    """Checkpoint and store; they stay for the next time."""
    raw = model or os.path.join(WORK, "replay")
    store = os.path.join(WORK, os.path.basename(os.path.normpath(raw)) + ".efs")
    os.makedirs(WORK, exist_ok=True)
    if not os.path.exists(os.path.join(raw, "config.json")):
        shutil.rmtree(raw, ignore_errors=True)
        subprocess.run([tool("mkmodel"), "--preset", "replay", raw], check=True)
    if not os.path.exists(store):
        subprocess.run([tool("mkexpertfs"), raw, store], check=True, stdout=subprocess.DEVNULL)
    return raw, store


class Replay:
    def __init__(self, a, raw, store, folder):
        self.a, self.raw, self.store, self.folder = a, raw, store, folder
        self.all, self.failed = [], False

    def run(self, *args, tokens=None):
        """The runs of one moe-replay; its table is shown."""
        out = os.path.join(self.folder, "part.json")
        if os.path.exists(out):
            os.unlink(out)
        command = [tool("moe-replay"), "--prealloc", "--budget", self.a.budgets, "--batch", self.a.batch, "--json", out, *args]
        command += ["--plan-from", self.a.history] if self.a.history else []
        command += ["--tokens", str(tokens)] if tokens else []
        print(f"\n$ {' '.join(command)} {self.a.trace}", flush=True)
        status = subprocess.run([*command, self.a.trace]).returncode
        self.failed = self.failed or status != 0
        if status not in (0, 1) or not os.path.exists(out):
            sys.exit(f"tools/bench/replay: moe-replay ended with {status}")
        with open(out) as f:
            runs = json.load(f)
        os.unlink(out)
        self.all += runs
        return runs


def pick(runs, field, runner, policy, pools=None, **more):
    """The median of a field over the rounds, by (budget, batch)."""
    found = {}
    for r in runs:
        if r["runner"] == runner and r["policy"] == policy and (pools is None or r["pools"] == pools) and r["tokens"] > 0 \
                and all(r.get(k) == v for k, v in more.items()):
            found.setdefault((r["budget"], r["batch"]), []).append(r[field])
    return {at: statistics.median(values) for at, values in found.items()}


def ratios(title, ours, theirs, bars, ok=lambda value, bar: value >= bar):
    print(f"\n{title}")
    for at in ours:
        if at not in theirs or not ours[at]:
            continue
        value = theirs[at] / ours[at]
        share = at[0].rstrip("%")
        bar = bars.get(int(share)) if share.isdigit() and at[1] == 1 else None
        verdict = "" if bar is None else f"  wanted >= {bar:g}: {'held' if ok(value, bar) else 'MISSED'}"
        print(f"   budget {at[0]:>5}, batch {at[1]:<3} {value:8.2f}{verdict}")


def split(policies):
    """[(name, pools or None)] of NAME:POOLS,..."""
    return [(name, pools or None) for name, _, pools in (p.partition(":") for p in policies.split(","))]


def agreement(runs, policies):
    print("\nthe simulator beside the daemon, nothing computed: simulated over real")
    print(f"   {'':39} {'TPOT ms':>16} {'ratio':>6}   {'MB read a token':>16} {'ratio':>6}   hits without M, %")
    for policy, pools in policies:
        rows = {}
        for r in runs:
            if r["policy"] == policy and pools in (None, r["pools"]) and r["pools"] != "raw":
                rows.setdefault((r["budget"], r["batch"]), {})[r["runner"]] = r
        for at, row in rows.items():
            if {"simulate", "expertfs"} <= set(row):
                s, e = row["simulate"], row["expertfs"]
                kept = [100 * (1 - r["hits"]["M"] / max(1, sum(r["hits"].values()))) for r in (s, e)]
                print(f"   {':'.join(filter(None, (policy, pools))):15} budget {at[0]:>5} batch {at[1]:<3}    {s['tpot_ns_median'] / 1e6:7.1f} {e['tpot_ns_median'] / 1e6:8.1f} "
                      f"{s['tpot_ns_median'] / max(1, e['tpot_ns_median']):6.2f}   {s['read_bytes_per_token'] / 1e6:7.1f} "
                      f"{e['read_bytes_per_token'] / 1e6:8.1f} {s['read_bytes_per_token'] / max(1, e['read_bytes_per_token']):6.2f}   "
                      f"{kept[0]:5.1f} {kept[1]:5.1f}")


def main():
    a = options()
    raw, store = prepare(a.model)
    folder = os.path.join(WORK, "replay-results")
    os.makedirs(folder, exist_ok=True)
    replay = Replay(a, raw, store, folder)
    policies = split(a.policies)
    first, least = policies[0], ("zipmoe", "io") if ("zipmoe", "io") in policies else policies[0]
    own = ["--mount", store, "--policy", a.policies, "--compute", a.compute]
    whole, live, limit, agree = [], [], [], []
    if "whole" not in a.skip:
        whole = replay.run("--simulate", "--store", store, "--policy", f"{a.policies},lru:raw")
    for _ in range(a.rounds if "live" not in a.skip else 0):
        live += replay.run(*own, "--peer", "mmap,read-lru", "--raw", raw, tokens=a.tokens)
    if "limit" not in a.skip:
        limit = replay.run("--simulate", "--store", store, "--policy", f"{a.policies},lru:raw", "--run-us", a.run_us, tokens=a.tokens)
    if "agree" not in a.skip:
        agree = replay.run("--simulate", "--mount", store, "--policy", a.policies, "--compute", "none", tokens=a.tokens)
    with open(os.path.join(folder, "runs.json"), "w") as f:
        json.dump(replay.all, f, indent=1)

    print(f"\n==== {os.path.basename(a.trace)}; {os.cpu_count()} cores, Linux {os.uname().release}")
    if whole:
        for policy in dict.fromkeys((least, first)):
            ratios(f"bytes read per token, whole trace, simulated: read-lru over {':'.join(filter(None, policy))}",
                   pick(whole, "read_bytes_per_token", "simulate", *policy),
                   pick(whole, "read_bytes_per_token", "simulate", "lru", "raw"), BARS["bytes"] if policy == least else {})
    if live:
        tokens = f"first {a.tokens} tokens, {a.compute}, cold"
        for policy in policies:
            name = ":".join(filter(None, policy))
            ours = pick(live, "tpot_ns_median", "expertfs", *policy)
            for peer, of in (("mmap", "page-cache"), ("read-lru", "lru")):
                ratios(f"TPOT, {tokens}: {peer} over {name}", ours, pick(live, "tpot_ns_median", peer, of),
                       BARS[peer] if policy == first else {})
            ratios(f"bytes read per token, {tokens}: read-lru over {name} (the bars are for the whole trace)",
                   pick(live, "read_bytes_per_token", "expertfs", *policy),
                   pick(live, "read_bytes_per_token", "read-lru", "lru"), {})
        checks = {(r["batch"], r["tokens"], r["check"]) for r in live if r["tokens"]}
        print(f"\nbytes seen by all live runs: {'the same' if len(checks) <= len({c[:2] for c in checks}) else 'DIFFERENT'}")
    for policy in policies if limit else []:
        ratios(f"limit of TPOT, first {a.tokens} tokens, decoding in nobody's way: read-lru over {':'.join(filter(None, policy))}",
               pick(limit, "tpot_ns_median", "simulate", *policy), pick(limit, "tpot_ns_median", "simulate", "lru", "raw"), {})
    if agree:
        agreement(agree, policies)
    drawn = plot.plot(live or whole, folder)
    print(f"\n{folder}: runs.json{', tpot.svg, hits.svg' if drawn else '; no pictures: there is no gnuplot'}")
    sys.exit(1 if replay.failed else 0)


if __name__ == "__main__":
    main()
