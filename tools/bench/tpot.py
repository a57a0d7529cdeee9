"""make bench-compute, second part: time per token of real routing with a budget for the experts.

expertfs: the store opened by the library, experts run from the coded form as they arrive (--compute ffn-coded).
read-lru: raw experts in buffers of an LRU, read past the page cache, run by the plain product (--compute ffn).
Each run is a process of its own in a memory cgroup, cold; the runners take turns in who is first. Both have to give the
same numbers. The checkpoint is 24 layers of 32 experts of 9 MiB (7 GB), and is made if it is not there."""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from replay import BUILD, WORK, Replay, arguments, pick, prepare, ratios, split, traced  # noqa: E402

BARS = {10: 2.0, 25: 1.8, 50: 1.5, 75: 1.25, 100: 1.2}


def options():
    return traced(arguments("tpot", __doc__, "10%,25%,50%,75%,100%", 3, 128, "zipmoe",
                            "of expertfs; the first is held to the bars"))


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
    policies = split(a.policies)
    for policy in policies:
        name = ":".join(filter(None, policy))
        ratios(f"TPOT, {title} ({name})", pick(replay.all, "tpot_ns_median", "expertfs", *policy),
               plain["tpot_ns_median"], BARS if policy == policies[0] else {})
        ratios(f"bytes read per token, {title} ({name})", pick(replay.all, "read_bytes_per_token", "expertfs", *policy),
               plain["read_bytes_per_token"], {})
    checks = {(r["tokens"], r["check"]) for r in replay.all if r["tokens"]}
    same = len(checks) == len({tokens for tokens, _ in checks})
    print(f"\nnumbers of all runs: {'the same: ' + ', '.join(sorted(c for _, c in checks)) if same else 'DIFFERENT'}")
    print(f"{folder}: runs.json; programs of {BUILD}")
    return 1 if replay.failed or not same else 0


if __name__ == "__main__":
    sys.exit(main())
