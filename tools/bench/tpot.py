"""make bench-compute, second part: time per token of real routing with a budget for the experts.

expertfs: the store opened by the library, experts run from the coded form as they arrive (--compute ffn-coded).
read-lru: raw experts in buffers of an LRU, read past the page cache, run by the plain product (--compute ffn).
Each run is a process of its own in a memory cgroup, cold; the runners take turns in who is first. Both have to give the
same numbers. The checkpoint is 24 layers of 32 experts of 9 MiB (7 GB), and is made if it is not there."""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from replay import BUILD, WORK, Replay, found, pick, prepare, ratios  # noqa: E402

BARS = {10: 2.0, 25: 1.8, 50: 1.5, 75: 1.25, 100: 1.2}


def options():
    p = argparse.ArgumentParser(prog="tools/bench/tpot", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--trace", help="the trace that is replayed ($TRACE, or found in $TRACES)")
    p.add_argument("--history", help="the trace to plan from ($HISTORY, or found in $TRACES)")
    p.add_argument("--tokens", type=int, default=128, help="of the trace (128)")
    p.add_argument("--rounds", type=int, default=3, help="medians of them are told (3)")
    p.add_argument("--budgets", default="10%,25%,50%,75%,100%", help="10%%,25%%,50%%,75%%,100%%")
    p.add_argument("--policies", default="zipmoe", help="of expertfs; the first is held to the bars (zipmoe)")
    p.add_argument("--batch", default="1", help="sequences at a time; bars are for 1 (1)")
    p.add_argument("--model", help="a raw checkpoint of another model, in place of the generated one")
    a = p.parse_args()
    a.trace = a.trace or os.environ.get("TRACE") or found("eval")
    a.history = a.history or os.environ.get("HISTORY") or found("history", a.trace)
    return a


def main():
    a = options()
    if not a.trace:
        print("time per token is left out: no trace (TRACES=DIR with *-eval.route* and *-history.route*, or TRACE=FILE)")
        return 0
    raw, store = prepare(a.model)
    folder = os.path.join(WORK, "tpot-results")
    os.makedirs(folder, exist_ok=True)
    replay = Replay(a, raw, store, folder)
    ours = ["--mount", store, "--policy", a.policies, "--compute", "ffn-coded"]
    peer = ["--store", store, "--peer", "read-lru", "--raw", raw, "--compute", "ffn"]
    turn = 0
    for budget in a.budgets.split(",") * a.rounds:
        a.budgets = budget  # a command each, so that those who are compared follow each other
        for command in (ours, peer) if turn % 2 == 0 else (peer, ours):
            replay.run(*command, tokens=a.tokens)
        turn += 1
    with open(os.path.join(folder, "runs.json"), "w") as f:
        json.dump(replay.all, f, indent=1)
    print(f"\n==== {os.path.basename(a.trace)}; {os.cpu_count()} cores, Linux {os.uname().release}")
    title = f"first {a.tokens} tokens, cold, experts run: read-lru plain over expertfs coded"
    plain = {f: pick(replay.all, f, "read-lru", "lru") for f in ("tpot_ns_median", "read_bytes_per_token")}
    for policy in (p.split(":")[0] for p in a.policies.split(",")):
        first = policy == a.policies.split(",")[0].split(":")[0]
        ratios(f"TPOT, {title} ({policy})", pick(replay.all, "tpot_ns_median", "expertfs", policy),
               plain["tpot_ns_median"], BARS if first else {})
        ratios(f"bytes read per token, {title} ({policy})", pick(replay.all, "read_bytes_per_token", "expertfs", policy),
               plain["read_bytes_per_token"], {})
    checks = {(r["tokens"], r["check"]) for r in replay.all if r["tokens"]}
    same = len(checks) == len({tokens for tokens, _ in checks})
    print(f"\nnumbers of all runs: {'the same: ' + ', '.join(sorted(c for _, c in checks)) if same else 'DIFFERENT'}")
    print(f"{folder}: runs.json; programs of {BUILD}")
    return 1 if replay.failed or not same else 0


if __name__ == "__main__":
    sys.exit(main())
