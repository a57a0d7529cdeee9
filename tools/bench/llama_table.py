# SPDX-License-Identifier: Apache-2.0
"""make bench-llama: the table of llama.cpp with the backend, a row at a time: tokens a second by type of the weights and
memory limit, prompts, the first token, rows of a table on disk, real routing by replay, the start of a mount.

tools/bench/run llama_table [ROW...]: runs these rows, or all that have no result yet, in order; each takes at most ten
minutes. A row's output is in DIR/llama-table/ROW.txt, so the table can be interrupted and continued.
  --list     prints the rows and which of them have a result
  --prepare  makes the files (5 GB of BF16, then 7 GB of quantised ones; half an hour on two cores)
  --count N  ends after N rows
  --again    runs rows that have a result, too"""
import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import time

from common import HERE, WORK, drop, tool

TYPES = ("Q4_K_M", "Q8_0", "MXFP4_MOE", "IQ4_XS")
LIMITS = ("25%", "50%", "75%", "none")
SECONDS = 480  # for the rounds of a row; files, the last round and warm-up are not included


def llama(*options):
    return ["llama.py", "--ours", "up,up:avx2", "--rounds", "9", "--seconds", str(SECONDS), *options]


def all_rows():
    """{name: command, the file first}, the most important first."""
    rows = {}
    for limit in LIMITS:
        rows[f"Q4_K_M-{limit}"] = llama("--quantize", "Q4_K_M", "--limits", limit, "--tokens", "24")
    for limit in LIMITS:
        rows[f"prompt512-Q4_K_M-{limit}"] = llama("--quantize", "Q4_K_M", "--limits", limit, "--prompt", "512", "--tokens", "8")
    rows["rows-4GB"] = ["llama_rows.py", "--rounds", "5"]
    rows["start-60GB"] = ["llama_table.py", "--own", "start"]
    rows["replay"] = ["llama_table.py", "--own", "replay"]
    rows["replay-10MB"] = ["llama_table.py", "--own", "replay-10MB"]
    for kind in TYPES[1:]:
        for limit in LIMITS:
            rows[f"{kind}-{limit}"] = llama("--quantize", kind, "--limits", limit, "--tokens", "24")
    for limit in LIMITS:
        rows[f"BF16-{limit}"] = llama("--limits", limit, "--tokens", "24")
    return rows


def start(options):
    """Time from the start of the daemon to the first byte of a GGUF file of 60 GB, a hole after the tensors, served in place."""
    from llama_rows import make
    path, mount = os.path.join(options.dir, "start-60GB.gguf"), os.path.join(options.dir, "llama-mnt")
    if not os.path.exists(path):
        make(path, 10**8, 4096)
        os.truncate(path, 60 * 10**9)
    os.makedirs(mount, exist_ok=True)
    times = []
    for _ in range(7):
        drop(path)
        begin = time.monotonic()
        subprocess.run([tool("expertfs"), path, mount, "-o", "budget=256M"], check=True)
        with open(os.path.join(mount, os.path.basename(path)), "rb") as file:
            file.read(1)
        times.append(time.monotonic() - begin)
        subprocess.run(["umount", mount], check=True)
    os.unlink(path)
    print(f"start of a mount to the first byte, 60 GB in place: {statistics.median(times):.3f} s "
          f"({min(times):.3f} to {max(times):.3f}); wanted <= 0.5, best <= 0.1")


def experts_file(path, layers=4, experts=256, hidden=2048, inner=2816):
    """A GGUF file with nothing but Q4_K experts of 9.7 MB each, of random bytes."""
    import gguf
    import numpy as np
    writer, of = gguf.GGUFWriter(path + ".part", "qwen3moe"), gguf.GGMLQuantizationType.Q4_K
    writer.add_block_count(layers)
    shapes = [(experts, inner, hidden), (experts, inner, hidden), (experts, hidden, inner)]
    sizes = [count * rows * columns // 256 * 144 for count, rows, columns in shapes]
    for layer in range(layers):
        for part, (count, rows, columns), size in zip(("gate", "up", "down"), shapes, sizes):
            writer.add_tensor_info(f"blk.{layer}.ffn_{part}_exps.weight", (count, rows, columns // 256 * 144), np.dtype(np.uint8),
                                   size, of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    out = writer.fout[0]
    writer.write_padding(out, out.tell())
    some = np.random.default_rng(1).bytes(64 << 20)
    for left in (size for _ in range(layers) for size in sizes):
        while left:
            left -= out.write(some[:left])
    writer.close()
    os.rename(path + ".part", path)


def replay_10mb(options):
    """Real routing on experts as large as those of Qwen3-30B-A3B in BF16: the library against the bound by slots, an LFU
    of experts that are read with O_DIRECT. The routing is the first four layers of Kimi-Linear-48B (256 experts, 8 a
    token, 300 tokens): no trace of a model with 128 experts has its tokens in order."""
    folder = os.path.join(options.dir, "llama-replay-10MB")
    path = os.path.join(folder, "model.gguf")
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(path):
        experts_file(path)
    compare(path, folder, "kimi-*.route*", 300, {
        "expertfs": ["--mount", path, "--policy", "zipmoe:coded"], "slot LFU": ["--peer", "read-lfu", "--raw", folder],
        "slot LRU": ["--peer", "read-lru", "--raw", folder]})


def replay(options):
    """Real routing on the experts of the Q4_K_M file: the library against programs that read experts into an LRU."""
    path = os.path.join(options.dir, "llama-5GB-Q4_K_M.gguf")
    folder = os.path.join(options.dir, "llama-replay")
    os.makedirs(folder, exist_ok=True)
    link = os.path.join(folder, "model.gguf")
    if not os.path.exists(link):
        os.link(path, link)
    compare(path, folder, "*-eval.route*", 100, {
        "expertfs": ["--mount", path, "--policy", "zipmoe:coded"], "LFU": ["--mount", path, "--policy", "lfu:coded"],
        "slot LFU": ["--peer", "read-lfu", "--raw", folder], "slot LRU": ["--peer", "read-lru", "--raw", folder]})


def compare(path, folder, pattern, tokens, ways):
    """Replays the first tokens of a trace in each way, in turns and cold; prints the medians and the ratios of the first
    way to the others."""
    traces = sorted(glob.glob(os.path.join(os.environ.get("TRACES", ""), pattern)))
    if not traces:
        print(f"no trace: set TRACES to a folder with {pattern}")
        sys.exit(77)
    first = next(iter(ways))
    for budget in ("25%", "50%", "75%"):
        found = {way: [] for way in ways}
        for _ in range(3):
            for way, words in ways.items():
                drop(path)
                out = subprocess.run([tool("moe-replay"), *words, "--budget", budget, "--compute", "touch-coded", "--tokens",
                                      str(tokens), "--json", "-", traces[0]], check=True, stdout=subprocess.PIPE, text=True,
                                     env={**os.environ, "OMP_WAIT_POLICY": "passive"}).stdout
                found[way].append(json.loads(out)[0]["tokens_per_second"])
        middle = {way: statistics.median(rates) for way, rates in found.items()}
        print(f"replay, {budget} of the experts: " + ", ".join(
            f"{way} {rate:.1f} tokens/s ({min(found[way]):.1f} to {max(found[way]):.1f})" for way, rate in middle.items())
            + "; " + ", ".join(f"over {way} {middle[first] / middle[way]:.2f}" for way in ways if way != first)
            + "; wanted >= 0.9 over slot LFU", flush=True)


def prepare(options):
    import llama
    for kind in ("", *TYPES):
        print(kind or "BF16", *llama.prepare(argparse.Namespace(dir=options.dir, preset=None, size="5GB", weights="scaled",
                                                                 quantize=kind)), flush=True)


def result_of(options, name):
    return os.path.join(options.dir, "llama-table", name + ".txt")


def run_row(options, name, words):
    """Returns the exit status."""
    begin, out = time.monotonic(), result_of(options, name)
    print(f"== {name}", flush=True)
    with open(out + ".part", "w") as file:
        child = subprocess.Popen([sys.executable, os.path.join(HERE, words[0]), *words[1:], "--dir", options.dir],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in child.stdout:
            file.write(line)
            print(line, end="", flush=True)
    status = child.wait()
    if status == 0:
        os.rename(out + ".part", out)
    print(f"== {name}: exit status {status}, {time.monotonic() - begin:.0f} s", flush=True)
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", nargs="*", help="as --list prints them")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--dir", default=WORK)
    parser.add_argument("--own", choices=("start", "replay", "replay-10MB"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.makedirs(os.path.join(options.dir, "llama-table"), exist_ok=True)
    if options.own:
        {"start": start, "replay": replay, "replay-10MB": replay_10mb}[options.own](options)
        return
    if options.prepare:
        prepare(options)
        return
    rows = all_rows()
    unknown = [name for name in options.rows if name not in rows]
    if unknown:
        sys.exit(f"no row is named {', '.join(unknown)}; --list prints them")
    if options.list:
        for name in rows:
            print(f"{'done' if os.path.exists(result_of(options, name)) else '    '} {name}")
        return
    left = [name for name in options.rows or rows if options.again or not os.path.exists(result_of(options, name))]
    failed = [name for name in left[:options.count or None] if run_row(options, name, rows[name]) != 0]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
