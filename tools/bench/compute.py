# SPDX-License-Identifier: Apache-2.0
"""make bench-compute: products of BF16 matrices with vectors, computed from the coded form, against their peers.

Alternates bench_kernels products (coded, plain, reading only) and llama.cpp's ggml; prints medians of GB/s of plain
weights, and ratios. The matrices of a shape are together far larger than the caches."""
import argparse
import json
import os
import subprocess

from common import HERE, ROOT, run, tool
from runner import ROUNDS, Rows, turns

SHAPES = ["2880x2880", "4096x1536"]
# what, ours and the peer in a line of bench_kernels products
PAIRS = [("coded over plain", "coded_gbs", "plain_gbs"), ("plain over reading alone", "plain_gbs", "read_gbs"),
         ("16 vectors, coded over plain", "coded_many_gbs", "plain_many_gbs")]


def lines(command):
    return [json.loads(line) for line in run(*command).splitlines()]


def has_llama(python):
    return os.path.exists(python) and subprocess.run([python, "-c", "import llama_cpp"], stderr=subprocess.DEVNULL).returncode == 0


def main():
    parser = argparse.ArgumentParser(prog="tools/bench/run compute", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="MiB of plain weights of each shape (%(default)s)")
    parser.add_argument("--turns", type=int, default=ROUNDS, help="how often everything is run (%(default)s)")
    parser.add_argument("--no-llama", action="store_true", help="without llama.cpp")
    options = parser.parse_args()
    threads = sorted({1, len(os.sched_getaffinity(0))})
    python = os.environ.get("PYTHON", os.path.join(ROOT, "build/venv/bin/python"))
    llama = not options.no_llama and has_llama(python)
    if not llama and not options.no_llama:
        print(f"llama.cpp is left out: no llama_cpp for {python} (tools/setup-python runtimes)")

    def ours():
        return lines([tool("bench_kernels"), "products", "--rounds", "3", "--threads", str(threads[-1]), "--mib", str(options.mib), *SHAPES])

    def theirs():
        return [line for count in threads for line in lines([python, os.path.join(HERE, "matvec_llama.py"), "--rounds", "1", "--threads",
                                                             str(count), "--mib", str(options.mib)])]

    found = turns({"ours": ours, **({"llama.cpp": theirs} if llama else {})}, options.turns)
    rows = Rows("compute", row="compute")
    kinds = [(line["shape"], line["path"], line["input"], line["threads"]) for line in found["ours"][0]]
    for kind, each in zip(kinds, zip(*found["ours"])):
        name = f"{kind[0]} {kind[1]} {kind[2]}, {kind[3]} thread{'s' * (kind[3] > 1)}"

        def tell(what, own, peers):
            over = rows.compare([line[own] for line in each], peers, "GB/s", input=name, what=what)
            print(f"{name:32} {what:36} {over.value:6.2f} of {over.peer_value:6.2f} GB/s  {over}")

        for what, own, peer in PAIRS:
            tell(what, own, {"plain product" if peer != "read_gbs" else "reading": [line[peer] for line in each]})
        peers = [[line["gbs"] for line in turn if (line["shape"], line["threads"]) == (kind[0], kind[3])] for turn in found.get("llama.cpp", [])]
        if peers:
            tell("coded over llama.cpp's product", "coded_gbs", {"llama.cpp": [rates[0] for rates in peers]})


if __name__ == "__main__":
    main()
