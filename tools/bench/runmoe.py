# SPDX-License-Identifier: Apache-2.0
"""runmoe, the example runtime, against llama.cpp: the same weights, the same tokens one by one, the same memory limit.

First compares their logits (tests/clients/runmoe.py). Then the two alternate for each limit, each cold and in its own
memory cgroup: runmoe on the store, with a budget of nine tenths of the limit, and llama.cpp on the plain GGUF file,
mapped (its default). With several --forms, runmoe runs once in each form. runmoe draws the tokens at a temperature of
0.3, at which a random model uses its experts about as unevenly as real ones. Prints medians, and ratios of runmoe to
llama.cpp for each form."""
import argparse
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import time

from cgroup import Cgroup
from common import ROOT, WORK, drop, fields, tool
from runner import ROUNDS, Rows, limited, turns


def llama(path, tokens, threads):
    """Runs in a child process: evaluates the tokens one by one and prints times as JSON."""
    import llama_cpp

    begin = time.monotonic()
    model = llama_cpp.Llama(path, n_ctx=max(512, len(tokens)), n_threads=threads, n_threads_batch=threads, verbose=False)
    times = [time.monotonic()]
    for token in tokens:
        model.eval([token])
        times.append(time.monotonic())
    print(json.dumps({"first_s": times[1] - begin, "tokens_per_s": len(tokens) / (times[-1] - times[0])}))


def run_limited(command, limit_bytes):
    """Runs a command in a new memory cgroup and returns its standard output; exits if it fails."""
    with limited(limit_bytes) as group:
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=group.join)
        if ran.returncode:
            sys.exit(f"tools/bench/run runmoe: {' '.join(command[:2])}: {ran.returncode}: {ran.stderr.strip()[-500:]}"
                     f"{' (out of memory)' if group.out_of_memory() else ''}")
        return ran.stdout


def runmoe(options, store, prompt, limit_bytes, *more):
    budget = int(limit_bytes * 0.9) if limit_bytes else options.unlimited
    return fields(run_limited([tool("runmoe"), store, "--prompt", prompt, "--threads", str(options.threads), "--budget",
                           str(budget), *more], limit_bytes))


def once(kind, options, gguf, store, tokens, limit_bytes):
    drop(gguf)
    drop(store)
    prompt = ",".join(map(str, tokens))
    if kind == "llama":
        return json.loads(run_limited([sys.executable, os.path.abspath(__file__), "--llama", gguf, "--prompt", prompt,
                                   "--threads", str(options.threads)], limit_bytes).splitlines()[-1])
    said = runmoe(options, store, prompt, limit_bytes, "--batch", "1", "--tokens", "0", "--form", kind, *options.options.split())
    used = {state: int(said[f"experts_{state}"]) for state in ("f", "c", "part", "m")}
    return {"first_s": float(said["open_s"]) + float(said["first_step_s"]), "hits": (used["f"] + used["c"]) / sum(used.values()),
            "tokens_per_s": float(said["prompt_tokens_per_second"]), "disk": int(said["disk_bytes"]) / len(tokens)}


def prepare(options):
    """Creates the same weights as GGUF and as a store of safetensors, unless they exist. Returns their paths."""
    folder = os.path.join(options.dir, f"runmoe-{options.preset}-{options.layers}")
    shape = ["--preset", options.preset, *(["--layers", options.layers] if options.layers else [])]
    store, gguf = folder + ".efs", os.path.join(folder, "model.gguf")
    if not os.path.exists(store):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([tool("mkmodel"), *shape, folder], check=True)
        subprocess.run([tool("mkexpertfs"), "--quiet", "--force", folder, store + ".new"], check=True)
        shutil.rmtree(folder)
        subprocess.run([tool("mkmodel"), *shape, "--format", "gguf", folder], check=True)
        os.rename(store + ".new", store)
    return gguf, store


def measure(options):
    gguf, store = prepare(options)
    size = os.path.getsize(gguf)
    options.unlimited = size * 3 // 2
    if not options.no_logits:
        agreed = subprocess.run([sys.executable, os.path.join(ROOT, "tests/clients/runmoe.py"), tool("runmoe"), store, gguf,
                                 "--threads", str(options.threads)], check=False).returncode
        if agreed:
            sys.exit(agreed)
    drawn = runmoe(options, store, "1", None, "--temp", "0.3", "--seed", "1", "--tokens", str(options.tokens - 1))["tokens"]
    tokens = [1, *map(int, drawn.split())]
    print(f"{os.path.basename(gguf)} of {size / 2**30:.2f} GiB, packed {os.path.getsize(store) / size:.3f}; {len(tokens)} tokens "
          f"one by one, {options.threads} threads, medians of {options.rounds}, taking turns")
    print(f"   {'memory limit':14} {'form':8} {'':12} {'runmoe':>8} {'llama.cpp':>10} {'':9} ratio")
    rows = Rows("runmoe", row="runmoe", input=f"{options.preset} {options.layers}".strip())
    kinds = [*options.forms.split(","), "llama"]
    for limit in options.limits.split(","):
        limit_bytes = None if limit == "none" else int(size * float(limit.rstrip("%")) / 100)
        runs = turns({kind: functools.partial(once, kind, options, gguf, store, tokens, limit_bytes) for kind in kinds}, options.rounds)
        for form, (name, unit) in itertools.product(kinds[:-1], (("tokens_per_s", "tokens/s"), ("first_s", "s"))):
            ours, theirs = ([run[name] for run in runs[kind]] for kind in (form, "llama"))
            what = "one by one" if unit == "tokens/s" else "first token"
            over = rows.compare(ours, {"llama.cpp": theirs}, unit, limit=limit, what=f"{len(tokens)} tokens {what}", ours=f"runmoe {form}")
            more = runs[form][-1]
            print(f"   {limit:14} {form:8} {what:12} {over.value:8.2f} {over.peer_value:10.2f} {unit:9} {over}" +
                  (f"   {more['hits']:.2f} of the experts in memory, {more['disk'] / 2**20:.1f} MiB a token from disk"
                   if name == "tokens_per_s" else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="demo", help="of mkmodel, a qwen3-moe one (demo, about 1 GiB)")
    parser.add_argument("--layers", default="", help="as many instead")
    parser.add_argument("--limits", default="50%,75%,none", help="memory limits, in parts of the GGUF file; none")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--forms", default="any", help="of experts: plain,coded,any")
    parser.add_argument("--options", default="", help="more options for runmoe")
    parser.add_argument("--no-logits", action="store_true", help="do not compare logits first")
    parser.add_argument("--dir", default=WORK)
    parser.add_argument("--llama", help=argparse.SUPPRESS)
    parser.add_argument("--prompt", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.llama:
        llama(options.llama, list(map(int, options.prompt.split(","))), options.threads)
        return
    try:
        import llama_cpp  # noqa: F401
        Cgroup(None).remove()
    except (ImportError, OSError, RuntimeError) as missing:
        print(f"{missing}: llama-cpp-python and memory cgroups are needed")
        sys.exit(77)
    os.makedirs(options.dir, exist_ok=True)
    measure(options)


if __name__ == "__main__":
    main()
