#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/bench/plot.py RUNS.json DIR: draw runs of `moe-replay --json` by gnuplot: tpot.svg, time per token over the
budget, and hits.svg, where experts were found."""
import json
import os
import shutil
import subprocess
import sys

STATES = {"F": "F: full", "C": "C: coded", "S": "S: signs, mantissas", "E": "E: exponents", "M": "M: missing"}
COLOURS = ("#1b4f9c", "#2ca02c", "#9ecae1", "#ff7f0e", "#dddddd")


def name_of(run):
    guesses = f" +{run['guesses']['predictor']}" if run.get("guesses") else ""
    policy = "" if run["runner"] not in ("simulate", "expertfs") else f" {run['policy']}:{run['pools']}{guesses}"
    return f"{run['runner']}{policy}, batch {run['batch']}"


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


def block(name, rows):
    return f"${name} << EOD\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows) + "EOD\n"


def script(runs):
    lines, sizes = {}, {}
    for run in runs:
        lines.setdefault(name_of(run), []).append((run["budget_bytes"] / 2**30, run["tpot_ns_median"] / 1e6))
        sizes[run["budget_bytes"] / 2**30] = run["budget"]
    bars = [[f'"{name_of(run)}, {run["budget"]}"', *(100 * run["hits"][s] / max(1, sum(run["hits"].values())) for s in STATES)]
            for run in runs]
    ticks = ", ".join(f"{quoted(name.replace('%', '%%'))} {at:.6f}" for at, name in sizes.items())
    plots = ", ".join(f"$line{i} using 1:2 with linespoints title {quoted(name)}" for i, name in enumerate(lines))
    columns = ", ".join(f"$hits using {i + 2}:xtic(1) linecolor rgb {quoted(COLOURS[i])} title {quoted(title)}"
                        for i, title in enumerate(STATES.values()))
    return "".join(block(f"line{i}", rows) for i, rows in enumerate(lines.values())) + block("hits", bars) + f"""
set terminal svg size {max(1000, 400 + 30 * len(runs))},700 dynamic background 'white'
set grid
set key outside right top noenhanced
set title {quoted(runs[0]['trace'])} noenhanced
set output 'tpot.svg'
set logscale y
set xlabel 'budget: memory for experts'
set ylabel 'ms per token after the first (TPOT, median)'
set xtics ({ticks})
plot {plots}
reset
set output 'hits.svg'
set datafile separator '\\t'
set style data histograms
set style histogram rowstacked
set style fill solid 1 border -1
set boxwidth 0.8
set yrange [0:100]
set ylabel '% of the experts asked for'
set xtics rotate by 90 right noenhanced
set key outside right top
plot {columns}
"""


def plot(runs, folder):
    """Writes tpot.svg and hits.svg to folder. False: no gnuplot, or no run with tokens."""
    runs = [run for run in runs if run["tokens"]]
    if not runs or not shutil.which("gnuplot"):
        return False
    os.makedirs(folder, exist_ok=True)
    subprocess.run(["gnuplot"], input=script(runs), text=True, cwd=folder, check=True)
    return True


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1]) as f:
        sys.exit(0 if plot(json.load(f), sys.argv[2]) else "tools/bench/plot.py: no runs, or no gnuplot")
