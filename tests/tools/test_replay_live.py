#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""moe-replay on real files: every runner, form, batch size and budget reads the same bytes and computes the same
numbers; damaged and wrong checkpoints are refused; an interrupted run reports its results so far. Then the driver of
make bench-replay, which compares such runs."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from e2e import *

SHAPE = ("--layers", "3", "--experts", "12", "--hidden", "320", "--intermediate", "192", "--vocab", "640")
raw = make_model("m", "--family", "qwen3-moe", *SHAPE, "--seed", "5")
store = make_store(raw)
# more layers and experts than the model, so that a token can choose an expert twice
trace, long = scratch("t.route"), scratch("long.route")
for path, sequences in ((trace, "20"), (long, "20000")):
    run(sys.executable, os.path.join(HERE, "make_trace.py"), path, "1", sequences, "3", "4", "16", "3")
EXPERT = 3 * 320 * 192 * 2


def replay(*arguments, status=0, trace=trace):
    """The run's result, or its messages if it is expected to fail."""
    result = run(program("moe-replay"), "--json", "-", *arguments, trace)
    check(f"moe-replay {' '.join(map(str, arguments))[-90:]}: exit {status}", result.returncode == status, result.stderr or result.stdout)
    if status:
        return result.stderr
    return json.loads(result.stdout)[0] if result.returncode == 0 else {}


print("-- the same from all")
lru, mapped = ("--peer", "read-lru", "--raw", raw), ("--peer", "mmap", "--raw", raw)
library = ("--mount", store)
lfu = ("--peer", "read-lfu", "--raw", raw)
touched = [replay(*mapped, "--compute", "touch"), replay(*lru, "--budget", "40%"), replay(*library, "--budget", "80M"),
           replay(*lfu, "--budget", "40%"), replay(*lfu, "--budget", str(40 * EXPERT))]
ran = [replay(*mapped, "--compute", "ffn"), replay(*lru, "--budget", "60%", "--compute", "ffn-coded", "--batch", "7"),
       replay(*library, "--budget", "80M", "--compute", "ffn", "--batch", "4")]
coded = [replay(*library, "--budget", budget, "--policy", policy, "--compute", "ffn-coded", "--batch", batch)
         for budget, policy, batch in (("40M", "zipmoe", "1"), ("80M", "zipmoe:io", "16"), ("40M", "lru:coded", "4"), ("40M", "lru:full", "16"))]
guessed = replay(*library, "--budget", "40M", "--policy", "lru", "--compute", "ffn-coded", "--predict", "mixed")
zstd = scratch("z.efs")
run(program("mkexpertfs"), "-q", "--codec=zstd", raw, zstd)
ran += coded + [guessed, replay("--mount", zstd, "--budget", "40M", "--compute", "ffn-coded", "--batch", "5")]
asked = sum(touched[0]["hits"].values())
check("all tokens", all(r["tokens"] == 60 and r["tpot_ns_median"] > 0 for r in touched + ran))
check("the same bytes", len({r["check"] for r in touched}) == 1 and int(touched[0]["check"], 16) != 0, [r["check"] for r in touched])
check("the same numbers", len({r["check"] for r in ran}) == 1 and ran[0]["check"] not in ("0" * 16, touched[0]["check"]),
      [(r["runner"], r["compute"], r["batch"], r["check"]) for r in ran])
check("what was computed", [r["compute"] for r in ran[:3] + coded] == ["ffn"] * 3 + ["ffn-coded"] * 4)
held = [replay(*library, "--budget", budget, "--policy", policy, "--compute", "touch-coded")
        for budget, policy in (("40M", "lru:coded"), ("80M", "zipmoe"))]
check("experts are touched in coded form", held[0]["check"] == held[1]["check"] != touched[0]["check"] and
      all(r["hits"]["F"] == 0 and r["compute"] == "touch-coded" for r in held), held)
check("nothing computed", replay(*mapped, "--compute", "none")["check"] == "0" * 16)
check("read-lfu reads what it lacks; with all in memory each expert once", 36 == touched[4]["hits"]["M"] < touched[3]["hits"]["M"] < asked,
      [r["hits"] for r in touched])
misses = touched[1]["hits"]["M"]
check("read-lru reads what it lacks", 0 < misses < asked == sum(touched[1]["hits"].values()) and
      misses * EXPERT <= touched[1]["read_bytes_per_token"] * 60 <= misses * EXPERT * 1.2, touched[1])
check("coded experts stay coded", all(r["hits"]["F"] == 0 and r["read_bytes_per_token"] > 0 for r in coded[:3]) and coded[3]["hits"]["F"] > 0, [r["hits"] for r in coded])
# Whole layers, 12 experts each. Two of three fit in 90 %: accelerate keeps one and reads two for each of 60 tokens;
# zero-3 reads each layer for each token, and one more ahead.
LAYER = 12 * EXPERT
for runner, budget, layers in (("accelerate", "90%", 1 + 2 * 60), ("accelerate", str(40 * EXPERT), 3), ("accelerate", "40%", 3 * 60), ("zero-3", "70%", 3 * 60 + 1)):
    wide = [replay("--peer", runner, "--raw", raw, "--budget", budget, "--compute", compute) for compute in ("touch", "ffn")]
    check(f"{runner} {budget} computes the same", [r["check"] for r in wide] == [touched[0]["check"], ran[0]["check"]], wide)
    check(f"{runner} {budget} reads whole layers", all((layers - (runner == "zero-3")) * LAYER <= r["read_bytes_per_token"] * 60 <= layers * LAYER * 1.1 for r in wide), wide)
g = guessed["guesses"]
check("guesses are counted", g["predictor"] == "mixed" and g["used"] + g["late"] <= g["missing"] and
      0 <= g["right_bytes_per_token"] <= g["read_bytes_per_token"] <= guessed["read_bytes_per_token"], g)

print("-- fused experts")
gpt = make_model("gpt", "--family", "gpt-oss", "--layers", "2", "--experts", "4", "--hidden", "256", "--intermediate", "128", "--vocab", "640")
gpt_store = make_store(gpt)
fused = [replay("--peer", "mmap", "--raw", gpt), replay("--peer", "read-lru", "--raw", gpt, "--budget", "100%"),
         replay("--mount", gpt_store, "--budget", "80M")]
check("the same bytes of slices", len({r["check"] for r in fused}) == 1, [r["check"] for r in fused])
check("experts that are no SwiGLU", "--compute ffn: the experts have no gate" in replay("--peer", "mmap", "--raw", gpt, "--compute", "ffn", status=1))

if os.path.exists("/dev/fuse"):
    print("-- a mount")
    mount = Mount(store, "budget=80M,policy=lru,plan=C=100")
    through = [replay("--mount", mount.path, "--compute", compute, "--batch", batch) for compute, batch in
               (("touch", "1"), ("ffn", "1"), ("ffn-coded", "16"))]
    check("the same through a mount", [r["check"] for r in through] == [touched[0]["check"], ran[0]["check"], ran[0]["check"]], through)
    check("what the mount is", all((r["runner"], r["policy"], r["pools"], r["budget_bytes"]) == ("expertfs", "lru", "coded", 80 << 20)
                                   for r in through), through[0])
    check("where experts were", all(sum(r["hits"].values()) > 0 for r in through) and through[0]["read_bytes_per_token"] > 0)
    mount.unmount()
else:
    note("no /dev/fuse: no mount is compared")

print("-- what cannot be")
for words, arguments in (("--peer needs --raw", ("--peer", "mmap")), ("one --budget", (*library, "--budget", "40M,80M")),
                         ("runs of their own", (*library, *mapped)), ("of the simulator", (*library, "--store", store))):
    said = replay(*arguments, status=2)
    check(f"says {words}", words in said, said)
os.makedirs(scratch("empty"))
for name in ("cut", "noise", "other"):
    shutil.copytree(raw, scratch(name))
    for file in [f for f in files_below(scratch(name)) if f.endswith(".safetensors")]:
        path = os.path.join(scratch(name), file)
        if name == "cut":
            os.truncate(path, 5000)
        elif name == "noise":
            with open(path, "wb") as f:
                f.write(os.urandom(4096))
        else:  # one bit of an expert that is certainly used
            with open(path, "r+b") as f:
                length = struct.unpack("<Q", f.read(8))[0]
                entry = json.loads(f.read(length)).get("model.layers.0.mlp.experts.0.up_proj.weight")
                if entry:
                    f.seek(8 + length + entry["data_offsets"][0] + 640)
                    byte = f.read(1)[0]
                    f.seek(-1, 1)
                    f.write(bytes([byte ^ 1]))
for words, arguments in (("damaged", ("--peer", "read-lru", "--raw", scratch("cut"), "--budget", "50%")),
                         ("damaged", ("--peer", "mmap", "--raw", scratch("noise"))),
                         ("holds no files", ("--peer", "mmap", "--raw", scratch("empty"))),
                         ("room for no expert", (*lru, "--budget", "1%")), ("2 layers of 12 are needed", ("--peer", "zero-3", "--raw", raw, "--budget", "40%")), ("has room for", (*lru, "--budget", "5%", "--batch", "16")),
                         ("neither a store nor a mount", ("--mount", scratch("empty"))),
                         ("missing", ("--mount", scratch("missing"))), ("budget", (*library, "--budget", "1M")),
                         ("the simulator alone", (*library, "--policy", "oracle", "--budget", "40M"))):
    said = replay(*arguments, status=1)
    check(f"says {words}", words in said, said)
wrong = replay("--peer", "read-lru", "--raw", scratch("other"), "--budget", "50%")
check("a wrong bit changes the check", wrong["check"] != touched[0]["check"])

print("-- Ctrl-C")
out = scratch("cut.json")
going = subprocess.Popen([program("moe-replay"), "--json", out, *mapped, "--layer-us", "1000", long], stdout=subprocess.PIPE, text=True)
going.stdout.readline()  # it has started
going.send_signal(signal.SIGTERM)
printed = going.communicate(timeout=PATIENCE)[0]
check("interrupted with 130", going.returncode == 130, going.returncode)
runs = json.load(open(out)) if os.path.exists(out) else []
check("what is known is written", all(0 < r["tokens"] < 60000 for r in runs) and ("mmap  " in printed) == bool(runs), printed)

print("-- make bench-replay")
driver = [sys.executable, os.path.join(ROOT, "tools/bench/replay.py"), "--model", raw, "--trace", trace, "--history", trace,
          "--tokens", "12", "--budgets", "50%,100%"]
os.environ.update(BENCH_DIR=scratch("bench"), BENCH_RESULTS=scratch("results"))
result = run(*driver, "--only", "whole,limit,coded", "--policies", "zipmoe:io,lru:coded")
check("experts run by the library", result.returncode == 0 and "numbers of all runs that computed: the same" in result.stdout,
      result.stdout + result.stderr)
runs = json.load(open(scratch("bench/replay-results/runs.json")))
check("runs of all budgets", {(r["runner"], r["budget"]) for r in runs} >= {(n, b) for n in ("simulate", "expertfs", "read-lru")
                                                                             for b in ("50%", "100%")}, result.stdout)
limited = [r for r in runs if r.get("memory_limit_bytes")]
check("within their cgroups", all(0 < r["memory_peak_bytes"] <= r["memory_limit_bytes"] for r in limited), limited)
if os.path.exists("/dev/fuse"):
    result = run(*driver, "--only", "live,agree", "--policies", "lru:coded")
    check("through mounts", result.returncode == 0 and "numbers of all runs that computed: the same" in result.stdout and "simulated over real" in result.stdout, result.stdout + result.stderr)
left = [f for f in os.listdir(scratch("bench")) if f.startswith("replay-") and f != "replay-results"]
check("nothing is left", not left and not [line for line in open("/proc/self/mounts") if scratch("bench") in line], left)
done()
