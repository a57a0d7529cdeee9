# SPDX-License-Identifier: Apache-2.0
"""make bench-replay: a routing trace through the mount, the mapped and the read-LRU peer, and the simulator.

Measurements, printed as ratios with their bars:
  whole   the simulator on the whole trace: bytes read per token, read-lru over expertfs;
  live    the first --tokens on real files (48: about ten minutes in total), cold, alternating, each run in a memory
          cgroup of the budget plus 192 MiB: time per token of the peers over that of expertfs;
  limit   the first --tokens in the simulator, where decoding does not slow down the computing threads: time per token
          of read-lru over expertfs, the limit by the order of the reads on this disk;
  agree   live runs without computing against the simulator with the profile: the error of the simulator;
  coded   (not by default: tools/bench/run tpot) experts run by the library from the coded form, over read-lru with
          plain ones.
The checkpoint is 24 layers of 32 experts of 9 MiB (7 GB), random weights, and is made if it is not there.
Writes runs.json (a list of all runs)."""
import argparse
import errno
import functools
import glob
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from cgroup import Cgroup
from common import WORK, Mounted, drop, tool
from runner import Rows, turns

ALLOWANCE = 192 << 20  # limit of the cgroup above the budget, for moe-replay; half of it for a daemon's fixed memory
POOLS = {"io": "plan=auto,goal=io", "makespan": "plan=auto,goal=makespan", "coded": "plan=C=100", "full": "plan=F=100"}
# {measure: {budget in percent: bar}}
BARS = {"bytes": {10: 2.7, 25: 3.0, 50: 14.0}, "mmap": {10: 2.5, 25: 2.5, 50: 1.5},
        "read-lru": {10: 1.7, 25: 1.7, 50: 1.2, 75: 1.0}, "coded": {10: 2.0, 25: 1.8, 50: 1.5, 75: 1.25, 100: 1.2}}
PEERS = {"mmap": ("page-cache", "raw"), "read-lru": ("lru", "raw")}


def options():
    p = argparse.ArgumentParser(prog="tools/bench/run replay", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--trace", help="the trace that is replayed ($TRACE, or found in $TRACES)")
    p.add_argument("--history", help="the trace to plan from ($HISTORY, or found in $TRACES)")
    p.add_argument("--tokens", type=int, default=48, help="of the trace, on real files (48)")
    p.add_argument("--rounds", type=int, default=1, help="on real files, of which medians are printed (1)")
    p.add_argument("--budgets", default="10%,25%,50%,75%", help="10%%,25%%,50%%,75%%")
    p.add_argument("--policies", default="zipmoe:makespan,zipmoe:io,lru:coded",
                   help="of expertfs, with their pools; the first is held to the bars of time, zipmoe:io to those of bytes\n"
                        "(zipmoe:makespan,zipmoe:io,lru:coded)")
    p.add_argument("--batch", default="1", help="sequences at a time; bars are for 1 (1)")
    p.add_argument("--model", help="a checkpoint, in place of the generated one")
    p.add_argument("--compute", default="touch", help="none, touch, ffn (touch)")
    p.add_argument("--run-us", default="300", help="to touch an expert once, with all cores, of limit (300)")
    p.add_argument("--layer-us", default="0", help="all else in a layer (0)")
    p.add_argument("--predict", help="read ahead as this predictor guesses: mixed")
    p.add_argument("--only", default="whole,live,limit,agree", help="measurements (whole,live,limit,agree)")
    a = p.parse_args()
    a.trace = a.trace or os.environ.get("TRACE") or found("eval")
    a.history = a.history or os.environ.get("HISTORY") or found("history", a.trace)
    a.only = a.only.split(",")
    a.budgets, a.policies = a.budgets.split(","), [tuple(policy.split(":")) for policy in a.policies.split(",")]
    if not a.trace:
        print("tools/bench/run replay: no trace: TRACES=DIR (with *-eval.route* and *-history.route*), or TRACE=FILE and HISTORY=FILE")
        sys.exit(0 if a.only == ["coded"] else 2)
    return a


def found(kind, beside=None):
    """The first trace of that kind in $TRACES or next to the trace `beside`, with the same prefix as it; or None."""
    folder = os.environ.get("TRACES") or (beside and os.path.dirname(os.path.abspath(beside)))
    traces = sorted(glob.glob(os.path.join(glob.escape(folder), f"*-{kind}.route*"))) if folder else []
    if beside:
        start = os.path.basename(beside).split("-")[0]
        traces = [t for t in traces if os.path.basename(t).startswith(start)]
    return traces[0] if traces else None


def prepare(model, preset="replay"):
    """Creates the checkpoint, unless one is given, and the store, unless they exist. Returns their paths; they are kept."""
    raw = model or os.path.join(WORK, preset)
    store = os.path.join(WORK, os.path.basename(os.path.normpath(raw)) + ".efs")
    os.makedirs(WORK, exist_ok=True)
    if not os.path.exists(os.path.join(raw, "config.json")):
        if model:  # not ours to replace
            raise FileNotFoundError(errno.ENOENT, "no checkpoint with a config.json", raw)
        shutil.rmtree(raw, ignore_errors=True)
        subprocess.run([tool("mkmodel"), "--preset", preset, raw], check=True)
    if not os.path.exists(store):
        subprocess.run([tool("mkexpertfs"), raw, store], check=True, stdout=subprocess.DEVNULL)
    return raw, store


class Replay:
    def __init__(self, a, raw, store):
        self.a, self.raw, self.store = a, raw, store
        self.all, self.failed = [], False
        self.work = tempfile.TemporaryDirectory(prefix="replay-", dir=WORK)
        # passive: OpenMP threads must not spin between experts, because the daemon decodes on the same cores
        self.env = {**os.environ, "OMP_WAIT_POLICY": "passive", "EXPERTFS_STATE": os.path.join(self.work.name, "profile")}
        os.mkdir(self.env["EXPERTFS_STATE"])  # stays empty if the machine is too busy for a profile
        # this run also measures and saves the profile
        self.all_bytes = self.play(["--store", store, "--budget", "100%", "--policy", "lru", "--tokens", "1"])[0]["budget_bytes"]

    def play(self, arguments, prefix=(), env=None):
        """Runs moe-replay, which prints its table, and returns its runs."""
        out = os.path.join(self.work.name, "runs.json")
        command = [*prefix, tool("moe-replay"), "--json", out, *arguments, self.a.trace]
        print(f"\n$ {' '.join(command[len(prefix):])}", flush=True)
        subprocess.run(command, env=env or self.env, check=True)
        with open(out) as f:
            return json.load(f)

    def simulate(self, policies, *more):
        more += ("--plan-from", self.a.history) if self.a.history else ()
        runs = self.play(["--store", self.store, "--budget", ",".join(self.a.budgets), "--batch", self.a.batch, "--policy",
                          ",".join(map(":".join, policies)), "--layer-us", self.a.layer_us, *more])
        self.all += runs
        return runs

    def live(self, budget, policy=None, peer=None, compute=None):
        """One cold run in a cgroup of its budget; None: it failed. compute ffn-coded: by the library, without a
        mount."""
        a, size = self.a, int(float(budget[:-1]) * self.all_bytes / 100) if budget[-1] == "%" else int(budget)
        compute = compute or a.compute
        state = tempfile.mkdtemp(dir=self.work.name)  # the profile without counts of earlier runs
        shutil.copytree(self.env["EXPERTFS_STATE"], state, dirs_exist_ok=True)
        env = {**self.env, "EXPERTFS_STATE": state}
        if a.history:
            subprocess.run([tool("moe-replay"), "counts", self.store, a.history], env=env, check=True)
        play = ["--batch", a.batch, "--tokens", str(a.tokens), "--compute", compute, "--layer-us", a.layer_us]
        group = None
        for path in (self.store, *glob.glob(os.path.join(glob.escape(self.raw), "*.safetensors"))):
            drop(path)
        # touch the memory of the run: see common.touch_memory()
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()
        try:
            group = Cgroup(size + ALLOWANCE)
        except OSError as error:
            print(f"tools/bench/run replay: nothing holds a run to its budget: {error}")
        try:
            prefix = group.prefix if group else ()
            if peer:
                run = self.play(["--peer", peer, "--raw", self.raw, "--budget", str(size), *play], prefix, env)[0]
            elif compute == "ffn-coded":
                ahead = ["--predict", a.predict] if a.predict else []
                run = self.play(["--mount", self.store, "--policy", ":".join(policy), "--budget", str(size + ALLOWANCE // 2),
                                 *ahead, *play], prefix, env)[0]
            else:
                options = f"budget={size + ALLOWANCE // 2},prealloc,policy={policy[0]},{POOLS[policy[1]]}"
                with Mounted(self.store, os.path.join(state, "mnt"), options, group and group.join, env) as where:
                    run = self.play(["--mount", where, *play], prefix, env)[0]
            run.update(budget=budget, budget_bytes=size, memory_limit_bytes=size + ALLOWANCE if group else 0,
                       memory_peak_bytes=group.peak_bytes() if group else 0)
            self.all.append(run)
            return run
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"tools/bench/run replay: {peer or ':'.join(policy)} with {budget}: {error}"
                  f"{': the cgroup has no more memory' if group and group.out_of_memory() else ''}")
            self.failed = True
            return None
        finally:
            if group:
                group.remove()
            shutil.rmtree(state, ignore_errors=True)

    def turns(self, candidates):
        """Live runs of all candidates in turns with each budget: {candidate: runs}."""
        runs = {name: [] for name in candidates}
        for budget in self.a.budgets:
            for name, found in turns({name: functools.partial(self.live, budget, **how) for name, how in candidates.items()},
                                     self.a.rounds).items():
                runs[name] += [run for run in found if run]
        return runs


def by_budget(runs, field):
    """The values of a field in the rounds: {(budget, batch): values}."""
    values = {}
    for r in runs:
        if r["tokens"]:
            values.setdefault((r["budget"], r["batch"]), []).append(r[field])
    return values


def of(runs, policy, pools):
    return [r for r in runs if (r["policy"], r["pools"]) == (policy, pools)]


UNITS = {"tokens_per_second": "tokens/s", "read_bytes_per_token": "KiB", "tpot_ns_median": "us", "tpot_ns_p99": "us"}


def ratios(title, ours, theirs, field, bars=None, peer="read-lru"):
    """Prints and records the ratios to the peer, above 1 if ours is better, with their bars."""
    print(f"\n{title}")
    ours, theirs, scale = by_budget(ours, field), by_budget(theirs, field), {"us": 1e3, "KiB": 1024}.get(UNITS[field], 1)
    for at in ours:
        if not all(theirs.get(at, [0])) or not all(ours[at]):
            continue
        result = Rows("replay", row=title).compare([x / scale for x in ours[at]], {peer: [x / scale for x in theirs[at]]}, UNITS[field],
                                                   what=title, limit=f"{at[0]}, batch {at[1]}")
        share = at[0].rstrip("%")
        bar = (bars or {}).get(int(share)) if share.isdigit() and at[1] == 1 else None
        verdict = "" if bar is None else f"  wanted >= {bar:g}: {'held' if result.ratio >= bar else 'MISSED'}"
        print(f"   budget {at[0]:>5}, batch {at[1]:<3} {result}{verdict}")


def agreement(real, simulated, policies):
    print("\nthe simulator beside the daemon, nothing computed: simulated over real")
    for policy in policies:
        for field, name, scale in (("tpot_ns_median", "TPOT ms", 1e6), ("read_bytes_per_token", "MB a token", 1e6)):
            ours, theirs = by_budget(of(simulated, *policy), field), by_budget(of(real, *policy), field)
            for at in ours:
                if any(theirs.get(at, [])):
                    ours_at, theirs_at = statistics.median(ours[at]), statistics.median(theirs[at])
                    print(f"   {':'.join(policy):16} budget {at[0]:>5} batch {at[1]:<3} {name:10} {ours_at / scale:8.1f} "
                          f"{theirs_at / scale:8.1f} {ours_at / theirs_at:6.2f}")


def same_checks(runs):
    """Whether runs with the same computation have the same check. The check of touch depends on the batch size."""
    seen = {}
    for r in runs:
        ffn = r["compute"].startswith("ffn")
        seen.setdefault((r["tokens"], ffn, ffn or r["batch"]), set()).add(r["check"])
    same = all(len(checks) == 1 for checks in seen.values())
    print(f"\nbytes or numbers of all runs that computed: {'the same' if same else 'DIFFERENT'}")
    return same


def measure(a, replay):
    policies, first = a.policies, a.policies[0]
    least = ("zipmoe", "io") if ("zipmoe", "io") in policies else first
    raw, tokens = ("lru", "raw"), ("--tokens", str(a.tokens))
    title = f"first {a.tokens} tokens, {a.compute}, cold"
    ours = {":".join(policy): {"policy": policy} for policy in policies}
    if "whole" in a.only:
        runs = replay.simulate([*policies, raw])
        for policy in dict.fromkeys((least, first)):
            ratios(f"bytes read per token, whole trace, simulated: read-lru over {':'.join(policy)}", of(runs, *policy),
                   of(runs, *raw), "read_bytes_per_token", BARS["bytes"] if policy == least else None)
    if "live" in a.only:
        live = replay.turns({**ours, "mmap": {"peer": "mmap"}, "read-lru": {"peer": "read-lru"}})
        for name in ours:
            for peer in PEERS:
                ratios(f"TPOT, {title}: {peer} over {name}", live[name], live[peer], "tpot_ns_median",
                       BARS[peer] if name == ":".join(first) else None, peer)
            ratios(f"bytes read per token, {title}: read-lru over {name}", live[name], live["read-lru"], "read_bytes_per_token")
    if "limit" in a.only:
        runs = replay.simulate([*policies, raw], "--run-us", a.run_us, *tokens)
        for policy in policies:
            ratios(f"limit of TPOT, first {a.tokens} tokens, decoding in nobody's way: read-lru over {':'.join(policy)}",
                   of(runs, *policy), of(runs, *raw), "tpot_ns_median")
    if "agree" in a.only:
        real = replay.turns({name: {**how, "compute": "none"} for name, how in ours.items()})
        agreement([r for runs in real.values() for r in runs], replay.simulate(policies, *tokens), policies)
    if "coded" in a.only:
        title = f"first {a.tokens} tokens, cold, experts run: read-lru plain over expertfs coded"
        live = replay.turns({**{name: {**how, "compute": "ffn-coded"} for name, how in ours.items()},
                             "read-lru": {"peer": "read-lru", "compute": "ffn"}})
        for name in ours:
            for field, text in (("tpot_ns_median", "TPOT"), ("tpot_ns_p99", "p99 of it"), ("tokens_per_second", "tokens a second"),
                                ("read_bytes_per_token", "bytes read per token")):
                ratios(f"{text}, {title} ({name})", live[name], live["read-lru"], field,
                       BARS["coded"] if field == "tpot_ns_median" else None)


def main():
    a = options()
    raw, store = prepare(a.model)
    folder = os.path.join(WORK, "replay-results")
    os.makedirs(folder, exist_ok=True)
    replay = Replay(a, raw, store)
    print(f"\n==== {os.path.basename(a.trace)}; {os.cpu_count()} cores, Linux {os.uname().release}")
    measure(a, replay)
    same = same_checks([r for r in replay.all if r["compute"] not in (None, "none") and r["tokens"]])
    with open(os.path.join(folder, "runs.json"), "w") as f:
        json.dump(replay.all, f, indent=1)
    print(f"{folder}: runs.json")
    return 1 if replay.failed or not same else 0


if __name__ == "__main__":
    sys.exit(main())
