# SPDX-License-Identifier: Apache-2.0
"""make bench-papers: the tables of the papers beside ours.

For each comparison of a paper prints the published ratio; the same, reproduced in the simulator with the machine of the
paper; that of expertfs in the simulator; and that of expertfs on this disk. A ratio is the peer over the system: above 1 the
system is faster, or hits more often. `sim`: simulated. A reproduced ratio that differs by more than 20 % is explained.

Writes DOCS/PAPER.svg for each paper. Takes less than ten minutes on two cores."""
import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile

from common import WORK, drop, tool
from replay import ALLOWANCE, found, prepare

BYTES = 3 * 2048 * 1408 * 2  # an expert of DeepSeek-V2-Lite and of Qwen1.5-MoE
ZIPMOE_US = ("--layer-us", "1000", "--run-us", "85")  # an expert at 204 GB/s, the memory of the Jetson; layer: assumed
GPU_US = ("--layer-us", "500", "--run-us", "40", "--tune", "share=0.2")  # an expert at 750 GB/s
PUBLISHED = {"ZipMoE": "5.1, Figures 7, 8, 10", "fMoE": "FineMoE, abstract; the slides have no numbers", "MoE-Infinity": "abstract",
             "DALI": "6.2, 6.3, Tables 4, 5", "Prism": "Table II"}
SMALL = ", small"  # by the traces of --states
# For a reproduced ratio that differs from the published one. Keys: the paper and the beginning of a row.
WHY = {
    ("ZipMoE", "TPOT, MoE-Infinity"): "its ranks count from the start, but popular experts change here, so it hits less than the peer",
    ("ZipMoE", "TTFT, MoE-Infinity"): "the traces have no prompts: a cold pass of one token, whose ratio is that of the bytes",
    ("ZipMoE", "TTFT"): "the traces have no prompts: in a cold pass of one token the peer reads 32 experts a layer, not 4",
    ("ZipMoE", "tokens/s, MoE-Infinity"): "as for TPOT; with a batch both miss more, and ZipMoE reads fewer bytes",
    ("ZipMoE", "ablation"): "its ranks count from the start, and the popular experts of this trace change with each answer",
    ("fMoE", "TPOT"): "one link of 25 GB/s, idle for one copy a layer: the cache decides; published is a mean over peers and six GPUs",
    ("fMoE", "hit rate"): "half of the experts fit for all, so that the caches alone hit often; published is a mean over peers",
    ("MoE-Infinity", "TPOT"): "LRU hits as often on this trace; published is a range over four peers, one of which loads whole layers",
    ("DALI", "naive"): "the paper gives no times of an expert; here the CPU takes 0.3 to 1 ms, a copy to the GPU 0.7 ms",
    ("DALI", "HybriMoE"): "our HybriMoE balances its three queues by their times; the paper describes a static threshold",
    ("DALI", "tokens/s, HybriMoE"): "our HybriMoE balances its three queues by their times; the paper describes a static threshold",
    ("DALI", "tokens/s, llama.cpp"): "only experts are timed, and with the same CPU kernels for all systems",
    ("DALI", "tokens/s, KTransformers"): "only experts are timed, and with the same CPU kernels for all systems",
    ("DALI", "tokens/s, MoE-Lightning"): "copies all experts of a layer here; its search for a better placement is not played",
    ("DALI", "step"): "the step before is another: it depends on how much a copy costs beside the CPU",
    ("DALI", "prefetch accuracy"): "a small model of 16 experts a layer, whose router is easier to predict",
    ("Prism", "latency, DeepSeek"): "one trace of 300 tokens stands for all servers, so that their tasks do not differ",
    ("Prism", "latency, Mixtral"): "traces of 32 experts mapped onto 8: a prompt calls nearly all, and copies decide"}


def profile(path, coded, rate, latency_ns, workers):
    """Writes the profile of a machine: zstd at 1.2 GB/s of exponents a worker (the papers give no rate), or experts that are
    not coded, as coded ones with 12 KiB of exponents that take no time to decode."""
    sm, e = (BYTES / 2, BYTES / 2 * 0.335) if coded else (BYTES, 12288)
    decode = 2.4e9 if coded else 1e18  # of decoded experts
    with open(path, "w") as f:
        json.dump({"content_hash": "0", "measured_at": 0, "direct_io": True, "cpu_path": "", "layers": 1, "experts": 1, "tensors": 3,
                   "shards": 8, "workers": workers, "full_bytes": BYTES, "coded_bytes": sm + e, "sm_bytes": sm, "e_bytes": e,
                   "rho": 2 * e / BYTES, "disk_bytes_per_second": rate, "read_latency_ns": latency_ns, "sm_read_ns": sm / rate / 3e-9,
                   "e_read_ns": e / rate / 24e-9, "decode_ns": BYTES / decode / 24e-9, "decode_bytes_per_second": decode,
                   "disk_spread": 0, "decode_spread": 0}, f)
    return path


def shown(text):
    print(text, file=sys.stderr, flush=True)


class Papers:
    def __init__(self, a, folder):
        self.a, self.rows = a, []
        at = lambda name: os.path.join(folder, name)
        self.zipmoe = profile(at("zipmoe.json"), True, 3.5e9, 80e3, 12)  # Samsung 970 EVO, Jetson AGX Orin
        self.plain = profile(at("plain.json"), False, 3.5e9, 80e3, 12)
        self.link = profile(at("link.json"), False, 25e9, 10e3, 8)  # PCIe 4.0 x16, as measured by others
        self.env = {**os.environ, "EXPERTFS_STATE": at("state"), "OMP_WAIT_POLICY": "passive"}
        self.cpu = at("cpu.json")  # 16 cores of an EPYC 7532: 60 GB/s, then 0.3 TFLOPS
        with open(self.cpu, "w") as f:
            json.dump({"expert_bytes": BYTES, "points": [[1, 290e3], [4, 350e3], [16, 950e3], [64, 3700e3]]}, f)

    def replay(self, *arguments):
        command = [tool("moe-replay"), *map(str, arguments)]
        shown(f"$ {' '.join(command)}")
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=self.env).stdout

    def simulate(self, machine, policies, budget, *more, trace=None, history=None):
        """The runs by name: policy:pools, or policy:pools+predictor."""
        a = self.a
        out = self.replay("--profile", machine, "--plan-from", history or a.history, "--policy", policies, "--budget", budget, "--json",
                          "-", *more, trace or a.trace)
        runs = {}
        for r in json.loads(out):
            r["hit_rate"] = 1 - r["hits"]["M"] / sum(r["hits"].values())
            runs[f"{r['policy']}:{r['pools']}" + (f"+{r['guesses']['predictor']}" if r["guesses"] else "")] = r
        return runs

    def row(self, paper, name, published, reproduced, ours=None, disk=None):
        """published: a number; the ends of a range, the upper one None if it has none; or None: only a picture. reproduced None: the
        trace has no hidden states."""
        low, high = published if isinstance(published, tuple) else (published, published)
        differs = reproduced is None or low is not None and not low / 1.2 <= reproduced <= (high or math.inf) * 1.2
        why = next((text for (of, start), text in WHY.items() if of == paper and name.startswith(start)), "not explained")
        why = why if reproduced is not None else "not run: the trace has no hidden states; --states has traces of a small model"
        self.rows.append({"paper": paper, "row": name, "published": [low, high], "reproduced_sim": reproduced, "expertfs_sim": ours,
                          "expertfs_disk": disk, "why": why if differs else None})

    # ---- each paper ----

    def live(self, budget):
        """Cold runs on this disk, with a budget in percent of the checkpoint: {runner or policy: run}."""
        raw, store = prepare(self.a.model, "demo")
        files = [os.path.join(raw, name) for name in os.listdir(raw)]
        size = sum(map(os.path.getsize, files)) * budget // 100
        self.replay("--store", store, "--policy", "lru", "--budget", "50%", "--tokens", "1", self.a.trace)  # measures the profile
        runs = {}
        for name in ("accelerate", "zero-3", "zipmoe:makespan", "zipmoe:io", "lru:coded"):
            for path in (store, *files):
                drop(path)
            what = ("--peer", name, "--raw", raw, "--budget", size) if ":" not in name else (
                "--mount", store, "--policy", name, "--budget", size + ALLOWANCE // 2)
            runs[name] = json.loads(self.replay(*what, "--tokens", self.a.tokens, "--compute", "touch", "--json", "-", self.a.trace))[0]
        return runs

    def zipmoe_paper(self):
        ratio = lambda them, us, field="tpot_ns_median": them[field] / us[field]
        disk = self.live(60) if self.a.tokens else {}
        on_disk = lambda peer, field: disk and ratio(disk[peer], disk["zipmoe:makespan"], field)
        for budget in ("30%", "60%"):
            runs = self.simulate(self.zipmoe, "published:makespan,zipmoe:makespan,accelerate,zero-3", budget, "--tokens", 400, "--schedule",
                                 "paper", *ZIPMOE_US)
            peers = {"MoE-Infinity": self.simulate(self.plain, "moe-infinity", budget, "--tokens", 400, *ZIPMOE_US)["moe-infinity:coded"],
                     "Accelerate": runs["accelerate:raw"], "DeepSpeed": runs["zero-3:raw"]}
            for field, title, published in (("tpot_ns_median", "TPOT", (2.68, 49.26)), ("ttft_ns_median", "TTFT", (2.14, 8.26))):
                for peer, run in peers.items():
                    runner = {"Accelerate": "accelerate", "DeepSpeed": "zero-3"}.get(peer) if budget == "60%" else None
                    self.row("ZipMoE", f"{title}, {peer}, {budget}", published, ratio(run, runs["published:makespan"], field),
                             ratio(run, runs["zipmoe:makespan"], field), runner and on_disk(runner, field) or None)
        for batch, tokens in ((1, 400), (4, 2000), (16, 8000)):
            more = ("--batch", batch, "--tokens", tokens, *ZIPMOE_US)
            runs = self.simulate(self.zipmoe, "published:makespan,zipmoe:makespan,accelerate,zero-3", "30%", "--schedule", "paper", *more)
            peers = {"MoE-Infinity": self.simulate(self.plain, "moe-infinity", "30%", *more)["moe-infinity:coded"],
                     "Accelerate": runs["accelerate:raw"], "DeepSpeed": runs["zero-3:raw"]}
            for peer, run in peers.items():
                rate = lambda us, run=run: us["tokens_per_second"] / run["tokens_per_second"]
                self.row("ZipMoE", f"tokens/s, {peer}, batch {batch}", (1.79, 42.49), rate(runs["published:makespan"]),
                         rate(runs["zipmoe:makespan"]))
        runs = self.simulate(self.zipmoe, "published:makespan,published:full,zipmoe:makespan,lru:full,fifo:full,marking:full", "30%",
                             "--tokens", 400, "--schedule", "paper", *ZIPMOE_US)
        for name, peer in (("pools", "published:full"), ("LRU", "lru:full"), ("FIFO", "fifo:full"), ("Marking", "marking:full")):
            self.row("ZipMoE", f"ablation, TPOT without {name}" if name == "pools" else f"ablation, TPOT, {name}", (1, None),
                     ratio(runs[peer], runs["published:makespan"]), ratio(runs[peer], runs["zipmoe:makespan"]),
                     ratio(disk["lru:coded"], disk["zipmoe:io"]) if disk and name == "LRU" else None)

    def fmoe_peers(self, peers, title="", trace=None, history=None):
        """Rows of fMoE over peers, {name: (policy, predictor)}. Returns the runs without prefetch."""
        predictors = ",".join(sorted({p for _, p in peers.values()} | {"fmoe", "mixed"}))
        runs = self.simulate(self.link, "lru,lfu,zipmoe:coded,zero-3", "50%", "--tokens", 1000, "--predict", predictors, *GPU_US,
                             trace=trace, history=history)
        us, ours = runs["lfu:coded+fmoe"], runs["zipmoe:coded+mixed"]
        peers = {name: runs[f"{policy}:coded+{predictor}"] for name, (policy, predictor) in peers.items()}
        if not trace:  # dense, without a strategy for experts: like ZeRO-3
            peers["FlexGen"] = runs["zero-3:raw"]
        for peer, them in peers.items():
            dense = peer == "FlexGen"
            self.row("fMoE", f"TPOT, {peer}{' (whole layers)' if dense else title}", None if dense else 1.89,
                     them["tpot_ns_median"] / us["tpot_ns_median"], them["tpot_ns_median"] / ours["tpot_ns_median"])
            if not dense:
                self.row("fMoE", f"hit rate, {peer}{title}", 1.39, us["hit_rate"] / them["hit_rate"], ours["hit_rate"] / them["hit_rate"])

    def fmoe_paper(self):
        self.fmoe_peers({"DeepSpeed Inference": ("lru", "deepspeed"), "BrainStorm": ("lru", "brainstorm"),
                         "MoE-Infinity": ("lfu", "moe-infinity")})
        by_states = {"Mixtral-Offloading": ("lru", "mixtral-offloading"), "ProMoE": ("lru", "promoe")}
        if self.a.states:
            self.fmoe_peers(by_states, SMALL, f"{self.a.states}/held.route", f"{self.a.states}/history.route")
        for peer in () if self.a.states else by_states:
            self.row("fMoE", f"TPOT, {peer}{SMALL}", 1.89, None)
            self.row("fMoE", f"hit rate, {peer}{SMALL}", 1.39, None)

    def infinity_paper(self):
        runs = self.simulate(self.link, "lfu,lru,zipmoe:coded,zero-3", "25%", "--tokens", 1000, "--predict",
                             "brainstorm,moe-infinity,mixed", *GPU_US)
        for peer, name in (("DeepSpeed", "zero-3:raw"), ("BrainStorm", "lru:coded+brainstorm"), ("LRU", "lru:coded")):
            over = lambda us, name=name: runs[name]["tpot_ns_median"] / runs[us]["tpot_ns_median"]
            self.row("MoE-Infinity", f"TPOT, {peer}", (2, 20), over("lfu:coded+moe-infinity"), over("zipmoe:coded+mixed"))

    def assign(self, batch, cached):
        out = self.replay("assign", "--cpu", self.cpu, "--gpu", "rtx3090", "--batch", batch, "--cached", cached, "--tokens", 8000,
                          "--plan-from", self.a.history, self.a.trace)
        rules, systems = out.split(": whole systems")
        numbers = lambda text: {m[1]: [float(n) for n in m[2].split()] for m in re.finditer(r"^([a-z][-+a-z]*) +([0-9. ]+)$", text, re.M)}
        return numbers(rules), numbers(systems)

    def dali_paper(self):
        rules, systems = self.assign(16, 0)
        rate = lambda of, over: systems[of][0] / systems[over][0]
        self.row("DALI", "MoE time, optimum, batch 16", (0.85, 0.92), rules["optimum"][0] / rules["greedy"][0],
                 rules["optimum"][0] / rules["balanced"][0])
        self.row("DALI", "naive, greedy alone", 4.42, rate("greedy", "naive"))
        self.row("DALI", "HybriMoE, greedy alone", 1.23, rate("greedy", "hybrimoe"))
        rules, systems = self.assign(16, 50)
        for peer, system, published in (("llama.cpp", "layers", 3.97), ("KTransformers", "layers", 2.16),
                                        ("MoE-Lightning", "moe-lightning", 1.48), ("HybriMoE", "hybrimoe+lru", 1.32)):
            self.row("DALI", f"tokens/s, {peer}", published, rate("dali", system), rate("ours", system))
        rules, systems = self.assign(16, 25)
        for step, of, over, published in (("prefetch", "greedy+guess", "greedy", 1.09), ("cache", "dali", "greedy+guess", 1.38),
                                          ("cache, LRU", "dali", "dali-lru", None)):
            self.row("DALI", f"step: {step}", published, rate(of, over))
        if self.a.states:
            out = self.replay("predict", "--predictors", "hybrimoe,dali,linear", "--every", 10, "--tokens", 4000, "--history",
                              f"{self.a.states}/history.route", f"{self.a.states}/held.route")
            recall = {line.split()[0]: float(line.split()[1]) for line in out.splitlines() if re.match("(hybrimoe|dali|linear) ", line)}
        else:
            recall = dict.fromkeys(("hybrimoe", "dali", "linear"))
        self.row("DALI", f"prefetch accuracy, DALI{SMALL}", (0.795, 0.933), recall["dali"], recall["linear"])
        self.row("DALI", f"prefetch accuracy, HybriMoE{SMALL}", (0.726, 0.776), recall["hybrimoe"])

    def prism_paper(self):
        a = self.a
        # BigBench and MultiData: the rule's latency over Prism's
        models = {"DeepSeek": (["--shape", "26x64x8", "--prompt", "32"], [a.wide],
                               {"uniform": (2.31, 3.27), "redundance": (1.33, 1.97), "smartmoe": (2.24, 2.92), "eplb": (1.12, 1.44)}),
                  "Mixtral": (["--shape", "32x8x2", "--memory", "70", "--expert", "336M", "--hidden", "4096"], [a.trace, a.other],
                              {"uniform": (1.19, 2.43), "redundance": (1.08, 2.32), "smartmoe": (1.1, 1.29), "eplb": (1.02, 1.03)})}
        for model, (options, traces, published) in models.items():
            if not all(traces):
                continue
            rules = [*published, "prism", "ours"]
            out = self.replay("place", "--servers", "3", "--rules", ",".join(rules), *options, *traces)
            rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.split(" ")[0] in rules}
            latency = {rule: float(row[0]) for rule, row in rows.items()}
            local = {rule: float(row[4]) / 100 for rule, row in rows.items()}
            for peer in published:
                self.row("Prism", f"latency, {model}, {peer}", published[peer], latency[peer] / latency["prism"],
                         latency[peer] / latency["ours"])
            self.row("Prism", f"local calls over EPLB's, {model}", None, local["prism"] / local["eplb"], local["ours"] / local["eplb"])


def text(rows):
    number = lambda n: "      -" if n is None else f"{n:7.2f}"
    lines = []
    for i, r in enumerate(rows):
        if i == 0 or rows[i - 1]["paper"] != r["paper"]:
            lines += ["", f"{r['paper']} ({PUBLISHED[r['paper']]})",
                      f"{'peer over the system':36} {'published':>15} {'repr., sim':>10} {'expertfs, sim':>13} {'disk':>7}"]
        low, high = r["published"]
        span = "picture" if low is None else f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}" if high else f"above {low:.2f}"
        lines.append(f"{r['row']:36} {span:>15}    {number(r['reproduced_sim'])}       {number(r['expertfs_sim'])} "
                     f"{number(r['expertfs_disk'])}")
        lines += [f"    {r['why']}"] if r["why"] else []
    return "\n".join(lines)


def svg(rows):
    """Horizontal logarithmic bars: the published range, and a mark for each figure of ours."""
    marks = (("reproduced_sim", "#1b4f9c", "reproduced, simulated"), ("expertfs_sim", "#2ca02c", "expertfs, simulated"),
             ("expertfs_disk", "#ff7f0e", "expertfs, this disk"))
    values = [v for r in rows for v in (*r["published"], *(r[m] for m, _, _ in marks)) if v]
    low, top = min(0.5, *values), max(2, *values)
    x = lambda v: 300 + 560 * math.log(v / low) / math.log(top / low)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="900" height="{70 + 22 * len(rows)}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="10" y="20" font-size="15">{rows[0]["paper"]}: peer over the system</text>']
    for i, (colour, title) in enumerate([("#cccccc", "published")] + [(c, t) for _, c, t in marks]):
        out.append(f'<rect x="{300 + 150 * i}" y="30" width="10" height="10" fill="{colour}"/>'
                   f'<text x="{315 + 150 * i}" y="40">{title}</text>')
    out.append(f'<line x1="{x(1):.1f}" y1="48" x2="{x(1):.1f}" y2="{60 + 22 * len(rows)}" stroke="black" stroke-dasharray="3"/>')
    for i, r in enumerate(rows):
        y, a, b = 52 + 22 * i, r["published"][0], r["published"][1] or top
        out.append(f'<text x="10" y="{y + 12}">{r["row"]}</text>')
        if a:
            out.append(f'<rect x="{x(a) - 2:.1f}" y="{y}" width="{x(b) - x(a) + 4:.1f}" height="16" fill="#cccccc"/>')
        out += [f'<circle cx="{x(r[m]):.1f}" cy="{y + 8}" r="5" fill="{c}"><title>{r[m]:.2f}</title></circle>' for m, c, _ in marks if r[m]]
    return "\n".join(out + ["</svg>", ""])


def options():
    p = argparse.ArgumentParser(prog="tools/bench/run papers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--trace", help="the trace that is replayed ($TRACE, or found in $TRACES)")
    p.add_argument("--history", help="the trace to plan and learn from ($HISTORY, or found in $TRACES)")
    p.add_argument("--other", help="of another task, for Prism (found in $TRACES: *-sorry)")
    p.add_argument("--wide", help="of a model with at least 64 experts, 8 chosen, for Prism (found in $TRACES: kimi*)")
    p.add_argument("--states", help="a folder of tools/bench/smallmoe/run: traces with hidden states, for fMoE's peers and DALI")
    p.add_argument("--model", help="a checkpoint for the runs on this disk (mkmodel --preset demo)")
    p.add_argument("--tokens", type=int, default=24, help="of the trace, on this disk; 0: no such runs (24)")
    p.add_argument("--only", default=",".join(PUBLISHED), help="papers (all)")
    p.add_argument("--json", help="write the rows to this file; - is standard output, and then no table is printed")
    p.add_argument("--docs", help="write the pictures to this folder")
    a = p.parse_args()
    a.trace = a.trace or os.environ.get("TRACE") or found("eval")
    a.history = a.history or os.environ.get("HISTORY") or found("history", a.trace)
    a.other, a.wide = a.other or found("sorry"), a.wide or found("48b")
    if not a.trace or not a.history:
        p.error("no traces: TRACES=DIR (with *-eval.route* and *-history.route*), or --trace and --history")
    states = [os.path.join(a.states, name) for name in ("history.route", "held.route")] if a.states else []
    for path in filter(None, (a.trace, a.history, a.other, a.wide, *states)):
        if not os.path.isfile(path):
            p.error(f"{path}: no such file")
    unknown = [paper for paper in a.only.split(",") if paper not in PUBLISHED]
    if unknown:
        p.error(f"--only {unknown[0]}: no such paper; there are {', '.join(PUBLISHED)}")
    if a.tokens < 0:
        p.error("--tokens: 0 or more")
    if a.json and not os.path.isdir(os.path.dirname(os.path.abspath(a.json))):
        p.error(f"--json {a.json}: no such folder")
    return a


def main():
    a = options()
    with tempfile.TemporaryDirectory(prefix="papers-") as folder:
        papers = Papers(a, folder)
        run = {"ZipMoE": papers.zipmoe_paper, "fMoE": papers.fmoe_paper, "MoE-Infinity": papers.infinity_paper,
               "DALI": papers.dali_paper, "Prism": papers.prism_paper}
        for paper in a.only.split(","):
            run[paper]()
    if a.json == "-":
        print(json.dumps(papers.rows, indent=1))
    else:
        print(text(papers.rows))
    if a.json and a.json != "-":
        with open(a.json, "w") as f:
            json.dump(papers.rows, f, indent=1)
    for paper in {r["paper"] for r in papers.rows} if a.docs else ():
        os.makedirs(a.docs, exist_ok=True)
        with open(os.path.join(a.docs, paper.lower() + ".svg"), "w") as f:
            f.write(svg([r for r in papers.rows if r["paper"] == paper]))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as failed:
        sys.exit(f"tools/bench/run papers: {' '.join(failed.cmd)}: exit status {failed.returncode}")
    except OSError as failed:
        sys.exit(f"tools/bench/run papers: {failed.filename}: {failed.strerror}")
    except KeyboardInterrupt:
        sys.exit(130)
