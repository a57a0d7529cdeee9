# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run llama_chart NAME=RESULT.json... OUT.svg: draw results of `tools/bench/run llama --json`: tokens a second
over the memory limit, of the plain file in its better setting and of each of our candidates. NAME: of the model."""
import json
import shutil
import subprocess
import sys

HEAD = """set terminal svg size {width},300 font "sans,13" noenhanced background rgb "white"
set output "{out}"
set style data histogram
set style histogram clustered gap 1
set style fill solid 0.9 noborder
set grid ytics lt 1 lc rgb "#dddddd"
set border 3 lc rgb "#666666"
set tics nomirror
set yrange [0:*]
set ylabel "tokens a second"
set key top left reverse Left samplen 1
set multiplot layout 1,{count}
"""
COLORS = ("#999999", "#1f5fa8", "#6fa8dc")


def block(name, rows):
    """The data of one model: a line for each limit."""
    ours = [kind for kind in rows[0]["ratios"]]
    lines = [" ".join(['"memory"', '"plain file"', *(f'"expertfs{", " + kind.partition(":")[2] if ":" in kind else ""}"' for kind in ours)])]
    for row in rows:
        label = {"none, cold": "all"}.get(row["limit"], row["limit"].replace("%", " %"))
        best = max(value for value in row["plain"].values() if value == value)
        lines.append(" ".join([f'"{label}"', f"{best:.2f}", *(f"{row[kind]:.2f}" for kind in ours)]))
    return f"$data{name} << EOD\n" + "\n".join(lines) + "\nEOD\n", len(ours) + 1


def chart(models, out):
    text = HEAD.format(width=420 * len(models), out=out, count=len(models))
    for number, (name, rows) in enumerate(models):
        tokens = max(row["tokens"] for row in rows if row["measure"] == "tokens_per_s")
        rows = [row for row in rows if row["measure"] == "tokens_per_s" and row["tokens"] == tokens and row["limit"] != "none, warm"]
        data, columns = block(number, rows)
        text += data + f'set title "{name}; memory in parts of the file"\n'
        text += "plot " + ", ".join(f'$data{number} using {column + 2}:xtic(1) title columnheader({column + 2}) lc rgb "{COLORS[column]}"'
                                    for column in range(columns)) + "\n"
    subprocess.run(["gnuplot"], input=text, text=True, check=True)


if __name__ == "__main__":
    if len(sys.argv) < 3 or not all("=" in word for word in sys.argv[1:-1]):
        sys.exit(__doc__)
    if not shutil.which("gnuplot"):
        sys.exit("tools/bench/run llama_chart: no gnuplot; on Debian: apt-get install gnuplot-nox")
    results = []
    for word in sys.argv[1:-1]:
        name, _, path = word.partition("=")
        with open(path) as file:
            results.append((name, json.load(file)))
    chart(results, sys.argv[-1])
