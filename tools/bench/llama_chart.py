# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run llama_chart OUT.svg [ROW...]: draw results/llama.csv: tokens a second over the memory limit, of the plain file with
its better read-ahead and of `expertctl up`. ROW: the beginnings of rows, BF16- and Q4_K_M-, a picture each."""
import shutil
import subprocess
import sys

from runner import results

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
LIMITS = {"25%": "25 %", "50%": "50 %", "75%": "75 %", "none, cold": "all"}


def chart(out, names):
    found = results("llama")
    text, count = HEAD.format(width=420 * len(names), out=out, count=len(names)), 0
    for name in names:
        bars = {about["limit"]: (about, result) for about, result in found
                if about["row"] in [name + limit.split(",")[0] for limit in LIMITS] and about["what"].endswith("tokens") and about["ours"] == "up"}
        if not bars:
            sys.exit(f"tools/bench/run llama_chart: no results of {name}25% and so on: tools/bench/run llama_table")
        lines = [f'"{label}" {bars[limit][1].peer_value:.2f} {bars[limit][1].value:.2f}' for limit, label in LIMITS.items() if limit in bars]
        about = next(iter(bars.values()))[0]
        text += f'$data{count} << EOD\n"memory" "plain file" "expertfs"\n' + "\n".join(lines) + "\nEOD\n"
        text += f'set title "{about["input"].split(",")[0]}, {about["what"]}; memory in parts of the file"\n'
        text += f'plot $data{count} using 2:xtic(1) title "plain file" lc rgb "#999999", $data{count} using 3 title "expertfs" lc rgb "#1f5fa8"\n'
        count += 1
    subprocess.run(["gnuplot"], input=text, text=True, check=True)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not sys.argv[1].endswith(".svg"):
        sys.exit(__doc__)
    if not shutil.which("gnuplot"):
        sys.exit("tools/bench/run llama_chart: no gnuplot; on Debian: apt-get install gnuplot-nox")
    chart(sys.argv[1], sys.argv[2:] or ["BF16-", "Q4_K_M-"])
