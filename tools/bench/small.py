# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run small: random reads of 4 KiB of a dense BF16 table on a mount whose budget is a quarter of it, over the same of
the plain file: by read(), by page faults with MADV_RANDOM and without advice; 1 and 8 readers.

Makes a safetensors file of 256 MiB with one table, of normal values, or with --trained of the matrices of a trained model
(weights.py), one after the other, repeated. The mount and the plain file take turns, both cold: a new mount, the page cache
of the plain file dropped. Prints reads a second by fio, KiB of the store a read, and the ratio: medians and ranges."""
import argparse
import json
import os

import weights
from bench import packed
from common import WORK, Mounted, drop, fields, run
from runner import ROUNDS, Rows, turns

WAYS = {"read()": ("--ioengine=psync",), "faults, MADV_RANDOM": ("--ioengine=mmap", "--fadvise_hint=random"),
        "faults, no advice": ("--ioengine=mmap", "--fadvise_hint=0")}
ROWS, COLUMNS = 65536, 2048


def normal_parts():
    import numpy as np
    random = np.random.default_rng(1)
    for _ in range(64):
        yield random.normal(0, 0.02, ROWS * COLUMNS // 64).astype(np.float32)


def trained_parts(left=ROWS * COLUMNS):
    matrices = [matrix.ravel() for matrix in weights.read_floats(weights.required(WORK)).values() if matrix.ndim > 1]
    while left:
        for matrix in matrices:
            yield matrix[:left]
            left -= min(left, matrix.size)


def make(path, parts):
    import numpy as np
    header = json.dumps({"embed.weight": {"dtype": "BF16", "shape": [ROWS, COLUMNS], "data_offsets": [0, 2 * ROWS * COLUMNS]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path + ".part", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for part in parts:
            file.write((part.view(np.uint32) >> 16).astype(np.uint16).tobytes())
    os.rename(path + ".part", path)


def reads_a_second(path, how, readers, reads):
    out = run("fio", "--name=f", f"--filename={path}", "--rw=randread", "--readonly", "--bs=4k", "--invalidate=0", "--thread",
              f"--numjobs={readers}", "--group_reporting", f"--number_ios={reads // readers}", "--output-format=json", *how)
    return json.loads(out[out.index("{"):])["jobs"][0]["read"]["iops"]


def ours(options, raw, store, how, readers):
    """Reads a second of the mount, and KiB of the store a read."""
    with Mounted(store, os.path.join(WORK, "small-mnt"), "budget=64M,warm=off") as where:
        drop(store)
        rate = reads_a_second(os.path.join(where, os.path.basename(raw)), how, readers, options.reads)
        with open(os.path.join(where, ".expertfs/stat")) as file:
            return rate, int(fields(file.read())["disk_bytes"]) / 1024 / options.reads


def plain(options, raw, how, readers):
    drop(raw)
    return reads_a_second(raw, how, readers, options.reads)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--reads", type=int, default=6000)
    parser.add_argument("--trained", action="store_true")
    options = parser.parse_args()
    folder = os.path.join(WORK, "small-trained" if options.trained else "small")
    raw = os.path.join(folder, "table.safetensors")
    if not os.path.exists(raw):
        os.makedirs(folder, exist_ok=True)
        make(raw, trained_parts() if options.trained else normal_parts())
    store = packed(folder)
    rows = Rows("small", input="trained" if options.trained else "normal")
    for readers in (1, 8):
        for way, how in WAYS.items():
            found = turns({"ours": lambda: ours(options, raw, store, how, readers),
                           "plain": lambda: plain(options, raw, how, readers)}, options.rounds)
            about = {"row": way, "what": f"random 4 KiB, {way}, {readers} readers"}
            over = rows.compare([rate for rate, _ in found["ours"]], {"plain file": found["plain"]}, "reads/s", **about)
            kib = rows.values([kib for _, kib in found["ours"]], unit="KiB", **about)
            print(f"{way}, {readers} reader{'s' if readers > 1 else ''}: {over}, {over.value:.0f} of {over.peer_value:.0f} reads a second, "
                  f"{kib:.1f} KiB a read", flush=True)


if __name__ == "__main__":
    main()
