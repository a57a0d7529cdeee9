# SPDX-License-Identifier: Apache-2.0
"""make bench-llama: llama.cpp by `expertctl up MODEL -- PROGRAM {gguf}` over the plain file, README's table, a row at a time; then
prompts, rows of a table on disk, real routing by replay, the start of a mount.

tools/bench/run llama_table [ROW...]: runs these rows, or all that have no result yet, in order, and prints the table. A row takes at
most ten minutes; its output is in DIR/llama-table/ROW.txt and its runs in results/llama.csv, so the table can be interrupted and
continued. Rows BF16, Q4_K_M, with -avx2 neither side uses AVX-512; users: an ordinary user over root; ways: the store in the process
over a mount; mount: programs without the backend on a mount.
  --rows ROW,...  the same as ROW...
  --list      prints the rows and which of them have a result
  --table     prints the table of the results that there are
  --prepare   makes the files of these rows (a minute a gigabyte on two cores)
  --count N   ends after N rows
  --again     runs rows that have a result, too"""
import argparse
import functools
import glob
import json
import os
import subprocess
import sys
import time

from common import HERE, WORK, drop, tool
from runner import ROUNDS, Rows, results, spread, turns

TYPES = ("Q4_K_M", "Q8_0", "MXFP4_MOE", "IQ4_XS")
LIMITS = ("25%", "50%", "75%", "none")
SECONDS = 420  # for the rounds of a row; making the files is not included


def all_rows(options):
    """{name: command, the file first}, the most important first."""
    def llama(*more, ours="up", user=options.user, tokens=options.tokens):
        return ["llama.py", "--size", options.size, "--rounds", str(options.rounds), "--seconds", str(SECONDS), "--ours", ours,
                "--tokens", tokens, *(["--user", user] if user else []), *more]

    def of(kind):
        return () if kind == "BF16" else ("--quantize", kind)

    rows = {}
    for cpu in ("", "avx2"):
        for kind in ("BF16", "Q4_K_M"):
            for limit in LIMITS:
                rows["-".join(filter(None, (kind, cpu, limit)))] = llama(*of(kind), *(["--cpu", cpu] if cpu else []), "--limits", limit)
    for limit in LIMITS:
        for kind in ("BF16", "Q4_K_M"):
            rows[f"users-{kind}-{limit}"] = llama(*of(kind), "--peers", "up@root", "--limits", limit)
            rows[f"ways-{kind}-{limit}"] = llama(*of(kind), "--peers", "both", "--limits", limit, ours="backend")
    for limit in ("30%", "50%", "75%", "none"):
        rows[f"mount-{limit}"] = llama("--limits", limit, ours="mount")
    for limit in LIMITS:
        rows[f"prompt512-Q4_K_M-{limit}"] = llama(*of("Q4_K_M"), "--limits", limit, "--prompt", "512", tokens="8")
    rows["rows-4GB"] = ["llama_rows.py", "--rounds", str(options.rounds)]
    rows["start-60GB"] = ["llama_table.py", "--own", "start"]
    rows["replay"] = ["llama_table.py", "--own", "replay"]
    rows["replay-10MB"] = ["llama_table.py", "--own", "replay-10MB"]
    for kind in TYPES[1:]:
        for limit in LIMITS:
            rows[f"{kind}-{limit}"] = llama(*of(kind), "--limits", limit)
    return rows


def table():
    """The results of results/llama.csv as README has them."""
    print("\n| row | input | memory | what | over the peer, median (range) | expertfs | peer | its setting | rounds | user | commit |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|")
    for about, result in results("llama"):
        if about["what"].endswith("tokens") or about["row"].startswith(("mount", "prompt")):
            unit = about["unit"]
            print(f"| {about['row']} | {about['input']} | {about['limit']} | {about['what']} | {result} | {result.value:.2f} {unit} | "
                  f"{result.peer_value:.2f} {unit} | {result.peer} | {result.rounds} | {about['user']} | {about['commit']} |")


def start(options):
    """Time from the start of the daemon to the first byte of a GGUF file of 60 GB, a hole after the tensors, served in place."""
    from llama_rows import make
    path, mount = os.path.join(options.dir, "start-60GB.gguf"), os.path.join(options.dir, "llama-mnt")
    if not os.path.exists(path):
        make(path, 10**8, 4096)
        os.truncate(path, 60 * 10**9)
    os.makedirs(mount, exist_ok=True)

    def once():
        drop(path)
        begin = time.monotonic()
        subprocess.run([tool("expertfs"), path, mount, "-o", "budget=256M"], check=True)
        with open(os.path.join(mount, os.path.basename(path)), "rb") as file:
            file.read(1)
        seconds = time.monotonic() - begin
        subprocess.run(["umount", mount], check=True)
        return seconds

    times = turns({"start": once}, 7)["start"]
    os.unlink(path)
    Rows("llama", row="start-60GB").values(times, what="start of a mount to the first byte, 60 GB in place", unit="s", ours="mount")
    print(f"start of a mount to the first byte, 60 GB in place: {spread(times, 3)} s; wanted <= 0.5, best <= 0.1")


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
    path = os.path.join(options.dir, f"llama-{options.size}-Q4_K_M.gguf")
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
    rows = Rows("llama", row=os.path.basename(folder), input=os.path.basename(traces[0]))
    for budget in ("25%", "50%", "75%"):
        def once(words, budget=budget):
            drop(path)
            out = subprocess.run([tool("moe-replay"), *words, "--budget", budget, "--compute", "touch-coded", "--tokens", str(tokens),
                                  "--json", "-", traces[0]], check=True, stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, "OMP_WAIT_POLICY": "passive"}).stdout
            return json.loads(out)[0]["tokens_per_second"]
        found = turns({way: functools.partial(once, words) for way, words in ways.items()}, 3)
        over = {way: rows.compare(found[first], {way: found[way]}, "tokens/s", limit=budget, what=f"replay, {tokens} tokens", ours=first)
                for way in ways if way != first}
        print(f"replay, {budget} of the experts: " + ", ".join(f"{way} {spread(rates, 1)} tokens/s" for way, rates in found.items()) + "; "
              + ", ".join(f"over {way} {result}" for way, result in over.items()) + "; wanted >= 0.9 over slot LFU", flush=True)


def prepare(rows):
    """Makes the files of rows, each file once."""
    done = set()
    for words in rows:
        if words[0] == "llama.py" and (key := tuple(w for w in words if w not in LIMITS)) not in done:
            done.add(key)
            subprocess.run([sys.executable, os.path.join(HERE, words[0]), *words[1:], "--prepare"], check=True)


def result_of(options, name):
    return os.path.join(options.dir, "llama-table", name + ".txt")


def run_row(options, name, words):
    """Returns the exit status."""
    begin, out = time.monotonic(), result_of(options, name)
    print(f"== {name}", flush=True)
    with open(out + ".part", "w") as file:
        child = subprocess.Popen([sys.executable, os.path.join(HERE, words[0]), *words[1:], "--dir", options.dir,
                                  *(["--row", name] if words[0] == "llama.py" else [])],
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
    parser.add_argument("names", nargs="*", metavar="ROW", help="as --list prints them")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=[])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--size", default="5GB", help="of the BF16 file (5GB)")
    parser.add_argument("--tokens", default="96", help="of an answer (96)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"at most ({ROUNDS})")
    parser.add_argument("--user", default="nobody" if os.geteuid() == 0 else "", help="who runs the programs (nobody, if root starts it)")
    parser.add_argument("--dir", default=WORK)
    parser.add_argument("--own", choices=("start", "replay", "replay-10MB"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.makedirs(os.path.join(options.dir, "llama-table"), exist_ok=True)
    if options.own:
        {"start": start, "replay": replay, "replay-10MB": replay_10mb}[options.own](options)
        return
    rows = all_rows(options)
    names = options.names + options.rows
    unknown = [name for name in names if name not in rows]
    if unknown:
        sys.exit(f"no row is named {', '.join(unknown)}; --list prints them")
    if options.table:
        table()
    elif options.list:
        for name in rows:
            print(f"{'done' if os.path.exists(result_of(options, name)) else '    '} {name}")
    elif options.prepare:
        prepare([rows[name] + ["--dir", options.dir] for name in names or rows])
    else:
        left = [name for name in names or rows if options.again or not os.path.exists(result_of(options, name))]
        failed = [name for name in left[:options.count or None] if run_row(options, name, rows[name]) != 0]
        table()
        if failed:
            sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
