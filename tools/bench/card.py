# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run card [PIECE...]: what a graphics processor shows.

prepare     the models, and ggml's CUDA backend for CUDA_ARCH (90): after `make`, on any machine, before one with the card is there
tests       the tests that run on a graphics processor
kernels     `tools/bench/run gpu`
TYPE-SLOTS  Q4_K_M or BF16, 25, 50, 75 or 100: llama.cpp by the backend with slots for that many of 100 experts, the rest in memory,
            over llama.cpp by itself with --cpu-moe and with the experts of as many layers on the device as the slots take memory;
            of 100 over all on the device. A prompt of 512 tokens, and tokens after it. The programs take turns.

Without names all but prepare. Each takes less than 10 minutes; one that was done is not run again, and its lines are printed at the
end with the others'. Every run is a row of results/card.csv. --device RPC0 takes a server of ggml's RPC backend on this machine in
place of the card: to try all this."""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

import device
from common import HERE, ROOT, WORK, tool
from runner import Rows, spread, turns

TYPES, SLOTS = ("Q4_K_M", "BF16"), (25, 50, 75, 100)
AIMS = {25: 2, 50: 3, 75: 4, 100: 0.95}
EXPERTS, CHOSEN = 64, 4
# experts of 9 MiB (BF16) and 2.7 MiB (Q4_K_M)
SHAPE = ["-F", "qwen3-moe", "-d", "2048", "-i", "768", "-e", str(EXPERTS), "--experts-per-token", str(CHOSEN), "--vocab", "4096", "--format", "gguf"]


class Card:
    def __init__(self, options):
        self.options, self.folder = options, os.path.join(WORK, f"card-{options.device}-{options.layers}")
        self.rpc = options.device.startswith("RPC")
        self.lines, self.address, self.feed = [], None, None
        os.makedirs(self.folder, exist_ok=True)

    def say(self, line):
        print(line, flush=True)
        self.lines.append(line)

    def command(self, *words, **more):
        """A piece that is a command of the project; its output is shown, and its exit status is the result."""
        status = subprocess.run(words, cwd=ROOT, **more).returncode
        self.say(f"{' '.join(words)}: {'passed' if status == 0 else f'exit status {status}'}")
        return status == 0

    def model(self, kind):
        """The path of a model, which is made if it is missing."""
        path = os.path.join(WORK, f"card-{self.options.layers}-{kind}.gguf")
        if os.path.exists(path):
            return path
        with tempfile.TemporaryDirectory(dir=WORK) as folder:
            if kind == "BF16":
                subprocess.run([tool("mkmodel"), *SHAPE, "-l", str(self.options.layers), os.path.join(folder, "made")], check=True)
                made = os.path.join(folder, "made", "model.gguf")
            else:
                made = os.path.join(folder, "made.gguf")
                subprocess.run([sys.executable, os.path.join(HERE, "llama_quantize.py"), self.model("BF16"), made, kind], check=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            os.rename(made, path)
        return path

    def prepare(self):
        for kind in TYPES:
            self.model(kind)
        arch = {"CUDA_ARCH": os.environ.get("CUDA_ARCH", "90")}
        return self.command("tools/setup-python", "rpc" if self.rpc else "cuda", env={**os.environ, **arch, "STRICT": "1"})

    def library(self):
        return device.library("libggml-rpc.so" if self.rpc else "libggml-cuda-*.so")

    def run(self, kind, slots, layers_on_device, fed):
        """Runs llama.cpp; slots: by the backend. Returns what llama_client.py prints, and the copied bytes of each token."""
        file, layers = self.model(kind), self.options.layers
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("EXPERTFS_", "GGML_"))}
        if slots:
            environment.update({"LD_PRELOAD": tool("libggml-expertfs.so"), "EXPERTFS_STORE": file, "EXPERTFS_DEVICE": self.options.device,
                                "EXPERTFS_BUDGET": f"{2 * os.path.getsize(file) >> 20}M",
                                "EXPERTFS_DEVICE_BUDGET": str(slots * EXPERTS // 100 * round_bytes(file))})
        command = [sys.executable, os.path.join(HERE, "llama_client.py"), file, "--gpu-layers", "99", "--prompt", str(self.options.prompt),
                   "--tokens", str(self.options.tokens), "--cpu-moe", str(layers - layers_on_device)]
        if self.options.threads:
            command += ["--threads", str(self.options.threads)]
        if self.rpc:
            environment["GGML_RPC"] = self.library()
            self.address = self.address or device.serve(self.library())
            command += ["--server", self.address]
        else:
            command += ["--cuda", self.library()]
        run = subprocess.run(command + (["--feed", fed] if fed else []), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if run.returncode:
            sys.exit(f"{kind}, {slots} slots, {layers_on_device} layers: {run.stderr[-2500:]}")
        found = re.findall(r"(\d+) of (\d+) chosen experts were in slots; copied \d+ in [0-9.]+ s: (\d+) bytes; the processor computed (\d+)", run.stderr)
        if bool(found) != bool(slots):
            sys.exit(f"{kind}: the experts were {'not ' if slots else ''}in slots: {run.stderr[-2500:]}")
        return {**json.loads(run.stdout.splitlines()[-1]), "counts": [int(n) for n in found[0]] if found else None}

    def placed(self, kind, slots):
        """A row: the backend, and llama.cpp by itself."""
        layers, tokens = self.options.layers, self.options.tokens
        ways = {"ours": lambda fed: self.run(kind, slots, 0, fed)}
        if slots == 100:
            ways["all on the device"] = lambda fed: self.run(kind, 0, layers, fed)
        else:
            ways["--cpu-moe"] = lambda fed: self.run(kind, 0, 0, fed)
            ways["--n-cpu-moe"] = lambda fed: self.run(kind, 0, layers * slots // 100, fed)
        with tempfile.NamedTemporaryFile("w", suffix=".tokens") as feed:
            first = list(ways.values())[-1](None)  # draws the tokens for all, so that all use the same experts
            print(*first["tokens"], file=feed, flush=True)
            runs = turns({name: lambda way=way: way(feed.name) for name, way in ways.items()}, self.options.rounds)
        rows = Rows("card", row=kind, limit=f"{slots} % in slots", input=f"{kind}, {layers} layers of {EXPERTS} experts, {CHOSEN} of a token")
        for what, unit, value in (("tokens", "tokens/s", lambda run: tokens / sum(run["step_s"])),
                                  (f"prompt of {self.options.prompt}", "tokens/s", lambda run: self.options.prompt / run["prompt_s"])):
            values = {name: [value(run) for run in one] for name, one in runs.items()}
            result = rows.compare(values.pop("ours"), values, unit, what=what, ours=self.options.device)
            aim = AIMS[slots] if what == "tokens" else 2 if slots < 100 else None
            self.say(f"{kind}, {slots} % in slots, {what}: {result.value:.1f} {unit}, {result} of {result.peer}{f' (aim {aim})' if aim else ''}")
        hits, chosen, copied, computed = map(sum, zip(*(run["counts"] for run in runs["ours"])))
        copied_mib = [run["counts"][2] / 2**20 / tokens for run in runs["ours"]]
        rows.values(copied_mib, what="copied a token, with the prompt", unit="MiB", ours=self.options.device)
        self.say(f"{kind}, {slots} % in slots: {100 * hits / chosen:.1f} % of chosen experts in slots, {100 * computed / chosen:.1f} % computed by the "
                 f"processor, copied {spread(copied_mib, 1)} MiB a token with the prompt")
        return True

    def piece(self, name):
        """Runs a piece unless it was done, and keeps its lines."""
        done = os.path.join(self.folder, name)
        if name in PLACED:
            kind, slots = name.rsplit("-", 1)
            piece = lambda: self.placed(kind, int(slots))
        else:
            piece = {"prepare": self.prepare, "tests": lambda: self.command("tests/run", "engine/test_device", "engine/test_gpu"),
                     "kernels": lambda: self.command("tools/bench/run", "gpu")}[name]
        if os.path.exists(done):
            with open(done) as file:
                return file.read()
        self.lines = []
        print(f"-- {name}", flush=True)
        good = piece()
        text = "".join(line + "\n" for line in self.lines)
        if good:
            with open(done + ".part", "w") as file:
                file.write(text)
            os.rename(done + ".part", done)
        return text


PLACED = [f"{kind}-{slots}" for slots in SLOTS for kind in TYPES]
PIECES = ["prepare", "tests", "kernels", *PLACED]


def round_bytes(file):
    """Bytes of one expert of each layer."""
    import gguf
    return sum(int(t.n_bytes) // int(t.shape[2]) for t in gguf.GGUFReader(file).tensors if "_exps.weight" in t.name)


def main():
    parser = argparse.ArgumentParser(prog="tools/bench/run card", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=" ".join(PIECES))
    parser.add_argument("--device", default="CUDA0", help="of ggml (CUDA0)")
    parser.add_argument("--layers", type=int, default=12, help="of the models; a layer of BF16 is 0.6 GB (12)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens (512)")
    parser.add_argument("--tokens", type=int, default=64, help="after the prompt (64)")
    parser.add_argument("--threads", type=int, default=0, help="(all cores)")
    parser.add_argument("--rounds", type=int, default=3, help="(3)")
    options = parser.parse_args()
    unknown = [name for name in options.pieces if name not in PIECES]
    if unknown:
        parser.error(f"{unknown[0]}: no such piece; there are {' '.join(PIECES)}")
    if not re.fullmatch(r"(CUDA|RPC)\d+", options.device):
        parser.error(f"--device {options.device}: it takes CUDA0, or RPC0 to try it")
    card = Card(options)
    texts = [card.piece(name) for name in options.pieces or PIECES[1:]]
    print("-- all", *texts, sep="\n", end="")


if __name__ == "__main__":
    main()
