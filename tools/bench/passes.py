# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run passes: second and third pass through the files of a store that fits into the budget, over the plain files in the
page cache, by read() and pread of 1 MiB and mapped; packed, and in place.

Each round mounts, reads all files once, and times two more passes.
The plain files are read before they are timed. Prints the ratios: medians, with the lowest and highest. The checkpoint is that of
`mkmodel --preset demo`. --trained: with weights drawn from those of a trained model (weights.py). --file: this GGUF file or folder."""
import argparse
import os
import statistics

import weights
from bench import model, packed
from common import WORK, Mounted, rate

PASSES = ("second", "third")


def files_of(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder)
                  if os.path.isfile(os.path.join(folder, name)) and os.path.getsize(os.path.join(folder, name)) > 1 << 20)


def one_pass(way, files):
    return rate("--keep-cache", "--mode", way, "--rounds", "1", *files)


def measure(served, plain, way, where):
    """GB/s of the passes, and of the plain files."""
    with Mounted(served, where) as mount:
        files = files_of(mount)
        one_pass(way, files)
        found = [one_pass(way, files) for _ in PASSES]
    one_pass(way, plain)
    return found, one_pass(way, plain)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--file")
    parser.add_argument("--trained", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    source = options.file
    if options.trained:
        source = model("demo-trained", "--preset", "demo", "--weights", weights.required(WORK))
    elif not source:
        source = model("demo", "--preset", "demo")
    plain = files_of(source) if os.path.isdir(source) else [source]
    for name, served in [("in place", source)] if options.file else [("packed", packed(source)), ("in place", source)]:
        for way in ("read", "pread", "mmap"):
            rounds = [measure(served, plain, way, os.path.join(WORK, "passes-mnt")) for _ in range(options.rounds)]
            for i, which in enumerate(PASSES):
                ratios = [ours[i] / theirs for ours, theirs in rounds]
                print(f"{name}, {way}, {which}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), "
                      f"{statistics.median(ours[i] for ours, _ in rounds):.1f} of {statistics.median(r for _, r in rounds):.1f} GB/s", flush=True)


if __name__ == "__main__":
    main()
