# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run device: llama.cpp by the backend with a part of the experts in the memory of a device, which is a server of ggml's
RPC backend on the loopback interface with a limit of bytes a second.

An expert without a slot is copied or computed by the processor, as measured costs say (divided), always copied (copied), or the
processor computes all (processor). The server and the program have a thread each, so that both have a core. The ways take
turns; all evaluate the same tokens. Prints the median time of a token, of which experts take most, and the ratio to the better of
copied and processor; appends every run to results/device.csv."""
import argparse
import atexit
import glob
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

from common import HERE, ROOT, WORK, tool
from runner import Rows, spread, turns

EXPERTS, LAYERS = 32, 4
# experts of 12 MiB, 4 of a token in each layer; all else of a token is 8 MiB a layer
SHAPE = ["-F", "qwen3-moe", "-d", "1024", "-i", "2048", "-e", str(EXPERTS), "--experts-per-token", "4", "-l", str(LAYERS),
         "--vocab", "4096", "--format", "gguf"]
EXPERT_BYTES = 3 * 1024 * 2048 * 2
WAYS = {"divided": {"EXPERTFS_DEVICE": "RPC0"}, "copied": {"EXPERTFS_DEVICE": "RPC0", "EXPERTFS_DEVICE_SHARE": "off"},
        "processor": {"EXPERTFS_DEVICE": "none"}}


def model():
    folder = os.path.join(WORK, "device-model")
    if not os.path.exists(os.path.join(folder, "model.gguf")):
        os.makedirs(WORK, exist_ok=True)
        subprocess.run([tool("mkmodel"), *SHAPE, folder], check=True)
    return os.path.join(folder, "model.gguf")


def library(name):
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    found = sorted(glob.glob(os.path.join(cache, "expertfs", "ggml-*", name)))
    return found[-1] if found else sys.exit(f"{name} is not built: tools/setup-python {'cuda' if 'cuda' in name else 'runtimes'}")


def serve(rpc):
    """Starts the server; returns its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, os.path.join(ROOT, "tests", "clients", "ggml_server.py"), rpc, str(port), "1"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(server.kill)
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return f"127.0.0.1:{port}"
        if server.poll() is not None:
            sys.exit("the server has ended")
        time.sleep(0.1)


class Bench:
    def __init__(self, options):
        self.options, self.file, self.rpc, self.feed = options, model(), library("libggml-rpc.so"), None
        self.address = serve(self.rpc)

    def measure(self, way, link):
        """Seconds of each token; prints what the backend counts."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("EXPERTFS_", "GGML_"))}
        environment.update({"LD_PRELOAD": tool("libggml-expertfs.so"), "EXPERTFS_STORE": self.file, "EXPERTFS_BUDGET": "4G",
                            "EXPERTFS_DEVICE_BUDGET": str(self.options.slots * EXPERTS // 100 * LAYERS * EXPERT_BYTES),
                            "GGML_RPC": self.rpc, "OMP_NUM_THREADS": "1", **WAYS[way]})
        command = [sys.executable, os.path.join(HERE, "llama_client.py"), self.file, "--threads", "1", "--no-repack", "--tokens",
                   str(self.options.tokens)]
        if way != "processor":
            command += ["--server", self.address, "--link", str(int(link * 1e9))]
        if self.feed:
            command += ["--feed", self.feed.name]
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if run.returncode:
            sys.exit(f"{way}: {run.stderr[-1500:]}")
        result = json.loads(run.stdout.splitlines()[-1])
        if not self.feed:
            self.feed = tempfile.NamedTemporaryFile("w", suffix=".tokens")
            print(*result["tokens"], file=self.feed, flush=True)
        for line in re.findall(r".*chosen experts were in slots.*", run.stderr):
            print(f"    {way}: {line}")
        steps = sorted(result["step_s"][len(result["step_s"]) // 3:])
        return steps[len(steps) // 2]


def main():
    parser = argparse.ArgumentParser(prog="tools/bench/run device", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=25, help="of 100 experts of a layer (25)")
    parser.add_argument("--links", default="1,8", help="GB/s (1,8)")
    parser.add_argument("--tokens", type=int, default=48, help="the median is of the last two thirds (48)")
    parser.add_argument("--rounds", type=int, default=3, help="(3)")
    options = parser.parse_args()
    bench = Bench(options)
    bench.measure("processor", 0)  # draws the tokens
    for link in map(float, options.links.split(",")):
        runs = turns({way: lambda way=way: bench.measure(way, link) for way in WAYS}, options.rounds)
        rows = Rows("device", row="layer", input="BF16, 32 experts of 12 MiB", limit=f"{link:g} GB/s, {options.slots} %")
        result = rows.compare(runs["divided"], {way: runs[way] for way in ("copied", "processor")}, "s", what="token", ours="divided")
        for way in WAYS:
            print(f"{link:g} GB/s, {way}: {spread([1000 * s for s in runs[way]], 1)} ms a token")
        print(f"{link:g} GB/s: {1 / result.ratio:.2f} of {result.peer} (at most 0.9 is wanted)")


if __name__ == "__main__":
    main()
