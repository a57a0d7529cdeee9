# SPDX-License-Identifier: Apache-2.0
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
    p = arguments("tpot", __doc__, "10%,25%,50%,75%,100%", 3, 128, "zipmoe:io",
                  "of expertfs; the first is held to the bars")
    p.add_argument("--warm", action="store_true", help="run expertfs a second time, with its option warm")
    return traced(p)


def tell(runs, policy, warm, title, bars):
    for field, text, turned in (("tpot_ns_median", "TPOT", False), ("tpot_ns_p99", "p99 of it", False),
                                ("tokens_per_second", "tokens a second, ours over theirs", True),
                                ("read_bytes_per_token", "bytes read per token", False)):
        both = pick(runs, field, "expertfs", *policy, warm=warm), pick(runs, field, "read-lru", "lru")
        ratios(f"{text}, {title}", *(both[::-1] if turned else both), bars if field == "tpot_ns_median" else {})


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
    runners = [(ours, False), (peer, False)] + ([([*ours, "--warm"], True)] if a.warm else [])
    for budget in a.budgets.split(",") * a.rounds:
        a.budgets = budget  # a command each, so that those who are compared follow each other
        for command, warm in runners:
            for r in replay.run(*command, tokens=a.tokens):
                r["warm"] = warm
        runners.append(runners.pop(0))
    with open(os.path.join(folder, "runs.json"), "w") as f:
        json.dump(replay.all, f, indent=1)
    print(f"\n==== {os.path.basename(a.trace)}; {os.cpu_count()} cores, Linux {os.uname().release}")
    title = f"first {a.tokens} tokens, cold, experts run: read-lru plain over expertfs coded"
    policies = split(a.policies)
    for policy in policies:
        for warm in (False, True)[:1 + a.warm]:
            name = ":".join(filter(None, policy)) + (", warm" if warm else "")
            tell(replay.all, policy, warm, f"{title} ({name})", BARS if policy == policies[0] and not warm else {})
    checks = {(r["tokens"], r["check"]) for r in replay.all if r["tokens"]}
    same = len(checks) == len({tokens for tokens, _ in checks})
    print(f"\nnumbers of all runs: {'the same: ' + ', '.join(sorted(c for _, c in checks)) if same else 'DIFFERENT'}")
    print(f"{folder}: runs.json; programs of {BUILD}")
    return 1 if replay.failed or not same else 0


if __name__ == "__main__":
    sys.exit(main())
