# SPDX-License-Identifier: Apache-2.0
"""tools/bench/prefetch: time per token with guesses over that without, to one percent.

Whole runs differ by more than a percent, since the disk does. So one run changes between --prefetch and off after every
--turns tokens (moe-replay --turns), and is played twice: one begins with guesses, the other without, and each token is
played both ways. A turn of the one over the same turn of the other is a ratio of the same tokens; of a turn and the next
one, in which the runs have changed places, the geometric mean has neither how fast the disk was in either run nor what
these tokens ask for. The interval is of 95 %, by bootstrap over such pairs of turns. The first --leave tokens of a turn
are left out, in which the cache and the predictor follow the change. Memory fills in the first turns of both runs alike.

off gives the predictor's memory back to the experts, so that its ratio has all that guesses cost, and more: with every
turn the predictor is loaded anew, from what it has saved, begins in the middle of an answer, and drops experts from its
memory. --without auto:token=1 goes on learning and keeps its memory: its ratio has what reads of guesses cost and gain."""
import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bench import SteadyDisk  # noqa: E402
from replay import WORK, Replay, arguments, prepare, traced  # noqa: E402

SAMPLES = 10000


def options():
    p = arguments("prefetch", __doc__, "10%,25%,50%", 1, 400, "zipmoe:io", "of the library that runs the experts")
    p.add_argument("--store", help="a store, in place of that of --model")
    p.add_argument("--turns", type=int, default=20, help="tokens of a turn, 18 or more: what was learned of 16 passes is kept (20)")
    p.add_argument("--leave", type=int, default=4, help="tokens at the begin of a turn that are not counted (4)")
    p.add_argument("--prefetch", default="auto", help="auto or always (auto)")
    p.add_argument("--layer-us", default="840", help="all else in a layer (840)")
    p.add_argument("--without", default="off", help="what takes turns with --prefetch: off (default), or auto:token=1, which predicts and\n"
                   "reads nothing: then it is of the reads alone, and --turns may be less than 18")
    p.add_argument("--busy", metavar="FILE", help="a large file on the same disk that fio reads meanwhile, 1 MiB at random, 32 at once")
    p.add_argument("--disk", type=float, metavar="GB/S", help="all of it, fio's too, reads no faster: a disk that does not swing")
    a = traced(p)
    if not a.trace:
        p.error("no trace: TRACES=DIR (with *-eval.route* and *-history.route*), or TRACE=FILE and HISTORY=FILE")
    if a.turns <= a.leave:
        p.error("--leave leaves nothing of --turns")
    return a


def busy(path):
    return subprocess.Popen(["fio", "--name=busy", "--readonly", "--rw=randread", "--bs=1M", "--iodepth=32", "--direct=1",
                             "--ioengine=io_uring", "--thread", "--time_based", "--runtime=1d", f"--filename={path}", "--output-format=json"],
                            stdout=subprocess.PIPE, text=True)


def end(fio):
    fio.send_signal(signal.SIGINT)
    try:
        text = fio.communicate(timeout=30)[0]
    except subprocess.TimeoutExpired:  # the signal came before it was ready for one
        fio.kill()
        fio.wait()
        return
    job = json.loads(text[text.index("{"):])["jobs"][0]["read"]
    print(f"fio: {job['bw_bytes'] / 1e9:.2f} GB/s")


def times(run, turns, leave):
    """Seconds of each whole turn."""
    ns = run["turns"]["pass_ns"]
    return [sum(ns[at + leave:at + turns]) / 1e9 for at in range(0, len(ns) - turns + 1, turns)]


def pairs(first, second, turns, leave):
    """log(time with / without) of each pair of turns; first begins with guesses, second without."""
    logs = [math.log(a / b) for a, b in zip(times(first, turns, leave), times(second, turns, leave))]
    return [(logs[i] - logs[i + 1]) / 2 for i in range(0, len(logs) - 1, 2)]


def interval(logs, seed=1):
    r = random.Random(seed)
    means = sorted(sum(r.choices(logs, k=len(logs))) / len(logs) for _ in range(SAMPLES))
    return [math.exp(x) for x in (sum(logs) / len(logs), means[SAMPLES // 40], means[-SAMPLES // 40])]


def tell(budget, runs, a):
    ends = {kind: [r for r in runs if r["turns"]["begins"] == kind] for kind in ("with", "without")}
    logs = [x for first, second in zip(ends["with"], ends["without"]) for x in pairs(first, second, a.turns, a.leave)]
    if len(logs) < 2:
        print(f"budget {budget}: too few turns, more --tokens are needed")
        return
    ratio, low, high = interval(logs)
    tokens = a.turns - a.leave
    ms = [1e3 * t / tokens for r in runs for t in times(r, a.turns, a.leave)]
    read = [sum(r["guesses"][k] for r in runs) for k in ("missing", "used", "late", "wasted")]
    print(f"budget {budget:>4}, {a.prefetch}{' beside fio' if a.busy else ''}: tokens a second {1 / ratio:.4f} of those with "
          f"{a.without} ({1 / high:.4f} to {1 / low:.4f}); {len(logs)} pairs of turns, {2 * len(logs) * tokens} tokens each way of "
          f"{sum(ms) / len(ms):.0f} ms; experts missing {read[0]}, read ahead {read[1]}, late {read[2]}, in vain {read[3]}")


def main():
    a = options()
    raw, store = (None, a.store) if a.store else prepare(a.model)
    folder = os.path.join(WORK, "prefetch-results")
    os.makedirs(folder, exist_ok=True)
    replay = Replay(a, raw, store, folder)
    command = ["--mount", store, "--policy", a.policies, "--compute", "ffn-coded", "--layer-us", a.layer_us, "--predict", "mixed",
               "--prefetch", a.prefetch, "--turns", f"{a.turns}:{a.without}"]
    with SteadyDisk(store, int(a.disk * 1e9)) if a.disk else contextlib.nullcontext() as disk:
        if disk:
            disk.join()
        return measure(a, replay, command)


def measure(a, replay, command):
    fio = busy(a.busy) if a.busy else None
    try:
        for budget in a.budgets.split(",") * a.rounds:
            a.budgets = budget
            replay.run(*command, tokens=a.tokens)
            tell(budget, [r for r in replay.all if r["budget"] == budget and r["turns"]], a)
    finally:
        if fio:
            end(fio)
    with open(os.path.join(replay.folder, "runs.json"), "w") as f:
        json.dump(replay.all, f)
    return 1 if replay.failed else 0


if __name__ == "__main__":
    sys.exit(main())
