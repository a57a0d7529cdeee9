# SPDX-License-Identifier: Apache-2.0
"""make bench-compute: products of BF16 matrices with vectors, computed from the coded form, against their peers.

Alternates bench_kernels products (coded, plain, reading only) and llama.cpp's ggml; prints medians of GB/s of plain
weights, ratios, and the bars. The matrices of a shape are together far larger than the caches."""
import argparse
import json
import os
import statistics
import subprocess
import sys

from common import HERE, ROOT, run, tool

SHAPES = ["2880x2880", "4096x1536"]
# (field of a line of bench_kernels products, text, {path: bar})
BARS = [
    ("coded_over_plain", "coded over plain", {"avx512": 1.25, "avx2": 0.9, "neon": 0.9}),
    ("plain_over_read", "plain over reading alone", {"avx512": 0.85, "avx2": 0.85, "neon": 0.85}),
    ("coded_many_over_plain", "16 tokens, coded over plain", {"avx512": 1.0, "avx2": 1.0, "neon": 1.0}),
]
LLAMA_BAR = 1.25


def lines(command):
    return [json.loads(line) for line in run(*command).splitlines()]


def has_llama(python):
    return subprocess.run([python, "-c", "import llama_cpp"], stderr=subprocess.DEVNULL).returncode == 0


def gather(options, threads):
    """Lines of bench_kernels products by (shape, path, input, threads), and ggml's GB/s by (shape, threads, tokens)."""
    ours, theirs = {}, {}
    python = os.environ.get("PYTHON", os.path.join(ROOT, "build/venv/bin/python"))
    llama = not options.no_llama and os.path.exists(python) and has_llama(python)
    if not llama and not options.no_llama:
        print("llama.cpp is left out: no llama_cpp for %s (tools/setup-python runtimes)" % python)
    common = ["--mib", str(options.mib)]
    for turn in range(options.turns):
        print("turn %d of %d" % (turn + 1, options.turns), file=sys.stderr)
        command = [tool("bench_kernels"), "products", "--rounds", "3", "--threads", str(threads[-1])]
        for line in lines(command + common + SHAPES):
            ours.setdefault((line["shape"], line["path"], line["input"], line["threads"]), []).append(line)
        for count in threads if llama else []:
            for tokens in (1, 16):
                command = [python, os.path.join(HERE, "matvec_llama.py"), "--rounds", "3", "--threads", str(count)]
                mib = options.mib if tokens == 1 else options.mib // 8
                for line in lines(command + ["--tokens", str(tokens), "--mib", str(mib)]):
                    theirs.setdefault((line["shape"], line["threads"], line["tokens"]), []).append(line["gbs"])
    return ours, theirs


def median(runs, name):
    return statistics.median(run[name] for run in runs)


def tell_speeds(ours, theirs):
    print("%-10s %-7s %-5s %3s %6s %7s %7s %7s %7s | 16 tokens: %6s %7s %7s" % (
        "shape", "path", "input", "thr", "size", "read", "plain", "coded", "ggml", "plain", "coded", "ggml"))
    for (shape, path, kind, threads), runs in ours.items():
        peer = [theirs.get((shape, threads, tokens)) for tokens in (1, 16)]
        peer = ["%.2f" % statistics.median(rates) if rates else "-" for rates in peer]
        print("%-10s %-7s %-5s %3d %6.3f %7.2f %7.2f %7.2f %7s | %17.2f %7.2f %7s" % (
            shape, path, kind, threads, median(runs, "size"), *(median(runs, name) for name in (
                "read_gbs", "plain_gbs", "coded_gbs")), peer[0], median(runs, "plain_many_gbs"),
            median(runs, "coded_many_gbs"), peer[1]))


def tell_bars(ours, theirs):
    missed = 0
    print("\n%-10s %-7s %-5s %3s  %-44s %6s %6s %6s" % ("shape", "path", "input", "thr", "ratio", "here", "bar", "limit"))

    def row(key, text, value, bar, limit=""):
        nonlocal missed
        missed += value < bar
        print("%-10s %-7s %-5s %3d  %-44s %6.2f %6.2f %6s%s" % (*key, text, value, bar, limit,
                                                             "" if value >= bar else "  missed"))

    for key, runs in ours.items():
        for name, text, bars in BARS:
            if key[1] in bars:
                limit = "%.2f" % median(runs, "limit") if name == "coded_over_plain" else ""
                row(key, text, median(runs, name), bars[key[1]], limit)
        rates = theirs.get((key[0], key[3], 1))
        if rates and key[1] != "avx2":
            row(key, "coded over llama.cpp's BF16 product", median(runs, "coded_gbs") / statistics.median(rates),
                LLAMA_BAR)
    print("\nlimit: what coded over plain would be if the coded bytes came as fast as reading alone")
    return missed


def main():
    parser = argparse.ArgumentParser(prog="tools/bench/run compute", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="MiB of plain weights of each shape (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="how often everything is run (%(default)s)")
    parser.add_argument("--no-llama", action="store_true", help="without llama.cpp")
    options = parser.parse_args()
    threads = sorted({1, len(os.sched_getaffinity(0))})
    ours, theirs = gather(options, threads)
    tell_speeds(ours, theirs)
    missed = tell_bars(ours, theirs)
    print("%d bars missed" % missed if missed else "all bars reached")


if __name__ == "__main__":
    main()
