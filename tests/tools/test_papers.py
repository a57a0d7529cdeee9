#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make bench-papers on small traces: rows of every paper, deviations that are explained, figures of the disk, pictures."""
import os
import sys
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from e2e import *

driver = os.path.join(os.path.dirname(os.path.dirname(HERE)), "tools", "bench", "papers.py")
raw = make_model("m", "--family", "qwen3-moe", "--layers", "4", "--experts", "16", "--hidden", "320", "--intermediate", "192", "--vocab", "640")
shapes = {"eval": ("4", "16", "3"), "history": ("4", "16", "3"), "sorry": ("4", "16", "3"), "48b": ("4", "64", "8")}
for seed, (name, shape) in enumerate(shapes.items()):
    run(sys.executable, os.path.join(HERE, "make_trace.py"), scratch(f"t-{name}.route"), str(seed), "6", "100", *shape)
env = {**os.environ, "TRACES": scratch("t-eval.route").rpartition("/")[0], "BENCH_DIR": scratch("bench")}
env.pop("TRACE", None)
env.pop("HISTORY", None)
out, pictures = scratch("rows.json"), scratch("pictures")

result = run(sys.executable, driver, "--model", raw, "--tokens", "3", "--json", out, "--docs", pictures, env=env)
check("all papers", result.returncode == 0, result.stderr)
rows = json.load(open(out)) if os.path.exists(out) else []
papers = ["ZipMoE", "fMoE", "MoE-Infinity", "DALI", "Prism"]
check("rows of each", list(dict.fromkeys(r["paper"] for r in rows)) == papers, rows)
check("each row is printed", all(f"\n{r['row']:36} " in result.stdout for r in rows), result.stdout)
within = lambda value, low, high: low / 1.2 <= value <= (high or 1e9) * 1.2
differs = lambda r: r["published"][0] is not None and not within(r["reproduced_sim"], *r["published"])
ran = [r for r in rows if r["reproduced_sim"] is not None]
check("an explanation where it differs", all((r["why"] is not None) == differs(r) for r in ran))
check("and where the trace has no hidden states", {r["row"] for r in rows if r not in ran} == {
    f"{row}, small" for row in ("TPOT, Mixtral-Offloading", "hit rate, Mixtral-Offloading", "TPOT, ProMoE", "hit rate, ProMoE",
                                      "prefetch accuracy, DALI", "prefetch accuracy, HybriMoE")} and
      all("no hidden states" in r["why"] for r in rows if r not in ran), rows)
of = {(r["paper"], r["row"]): r for r in rows}
check("layers cost more than experts", of["ZipMoE", "TPOT, DeepSpeed, 30%"]["reproduced_sim"] > 2 and
      of["ZipMoE", "TPOT, Accelerate, 60%"]["reproduced_sim"] > 1, rows)
check("this disk", {r["row"] for r in rows if r["expertfs_disk"]} == {"TPOT, Accelerate, 60%", "TPOT, DeepSpeed, 60%",
      "TTFT, Accelerate, 60%", "TTFT, DeepSpeed, 60%", "ablation, TPOT, LRU"}, rows)
for paper in papers:
    picture = xml.etree.ElementTree.parse(os.path.join(pictures, paper.lower() + ".svg")).getroot()
    words = "".join(picture.itertext())
    check(f"the picture of {paper}", all(r["row"] in words for r in rows if r["paper"] == paper), words)

result = run(sys.executable, driver, "--only", "Prism", "--json", "-", env=env)
check("JSON alone on standard output", result.returncode == 0 and {r["paper"] for r in json.loads(result.stdout)} == {"Prism"}, result)

print("-- refused, without a traceback")
broken, other = scratch("broken.route"), scratch("other")
with open(broken, "wb") as f:
    f.write(open(scratch("t-eval.route"), "rb").read()[:1000])
os.mkdir(other)
open(os.path.join(other, "notes"), "w").close()
for arguments, status, says in ((("--trace", scratch("none.route"), "--history", broken), 2, "none.route: no such file"),
                                (("--states", other), 2, "other/history.route: no such file"),
                                (("--only", "DALI,Dolly"), 2, "--only Dolly: no such paper"),
                                (("--tokens", "-1"), 2, "--tokens: 0 or more"),
                                (("--json", scratch("none/rows.json")), 2, "no such folder"),
                                (("--only", "DALI", "--trace", broken, "--history", broken), 1, "broken.route: the trace says"),
                                (("--only", "ZipMoE", "--model", other), 1, "other: no checkpoint with a config.json")):
    result = run(sys.executable, driver, *arguments, env=env)
    check(says, result.returncode == status and says in result.stderr and "Traceback" not in result.stderr, result.stderr)
check("a folder that is no checkpoint is left alone", os.listdir(other) == ["notes"])
with open(scratch("bench/m.efs"), "r+b") as f:
    f.truncate(100000)
result = run(sys.executable, driver, "--only", "ZipMoE", "--model", raw, env=env)
check("a broken store", result.returncode == 1 and "m.efs" in result.stderr and "Traceback" not in result.stderr, result.stderr)
result = run(sys.executable, driver, env={**env, "TRACES": scratch("bench")})
check("no traces", result.returncode == 2 and "no traces" in result.stderr, result.stderr)
done()
