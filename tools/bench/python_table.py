# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run python_table: tokens a second of transformers with experts from a store, over accelerate's offload to disk and over
the same experts function on mapped plain files, in one memory cgroup; and the time of from_pretrained() without a limit.

The limit is what the program has after it has imported torch and transformers, and a share of the checkpoint. Candidates take turns,
each cold. Needs `tools/setup-python torch` and accelerate, or PYTHON of an environment with them, and root for cgroups.
--size: of the checkpoint, Qwen3-MoE's shape with random weights. --limits: shares in percent, 0: no limit."""
import argparse
import json
import os
import shutil
import subprocess
import sys

from bench import model, packed
from common import HERE, ROOT, WORK, tool
from runner import ROUNDS, Rows, cold, limited, spread, turns

WAYS = ("coded", "full", "mapped", "offload", "plain")
SECONDS = 900  # of a run
SPARE = 160 << 20  # of a limit: buffers of torch, page tables, attention


def run_once(way, path, store, share, tokens, expert_bytes, all_bytes):
    """The client's results, and the peak of the cgroup; None: it was killed, or could not."""
    folder = os.path.join(WORK, "python-offload")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    cold(store, *(os.path.join(path, name) for name in os.listdir(path)))
    environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python"), "LD_LIBRARY_PATH": os.path.dirname(tool("libexpertfs.so.0")),
                   "EXPERTFS_STATE": os.path.join(WORK, "python-state")}
    with limited(None) as group:
        client = subprocess.Popen([*group.prefix, sys.executable, os.path.join(HERE, "python_client.py"), way, path, store, str(tokens), folder],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        client.stdout.readline()
        imported, budget = group.peak_bytes(), 0
        if share:
            left = share * all_bytes // 100
            group.limit(imported + left)
            budget = left - (0 if way == "offload" else all_bytes - expert_bytes) - SPARE
        try:
            said, _ = client.communicate(f"{max(budget, 1 << 20) if share else 0}\n", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            client.kill()
            said, _ = client.communicate()
        peak = group.peak_bytes() - imported
    shutil.rmtree(folder, ignore_errors=True)
    good = client.returncode == 0 and said
    print(f"  {way}, {share} %: {said.strip() if good else f'exit status {client.returncode}'}", file=sys.stderr, flush=True)
    return {**json.loads(said), "cgroup_bytes": peak} if good else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="5GB")
    parser.add_argument("--limits", default="25,50,75,0")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=min(ROUNDS, 3))
    parser.add_argument("--ways", default=",".join(WAYS))
    options = parser.parse_args()
    path = model(f"python-{options.size}", "-F", "qwen3-moe", "-d", "1024", "-i", "512", "-e", "64", "--experts-per-token", "8", "--vocab", "8000",
                 "--size", options.size)
    store = packed(path)
    info = json.loads(subprocess.run([tool("expertctl"), "info", "--json", store], check=True, stdout=subprocess.PIPE, text=True).stdout)
    all_bytes = sum(os.path.getsize(os.path.join(path, name)) for name in os.listdir(path))
    expert_bytes = info["expert_raw_bytes"]
    rows = Rows("python", input=f"Qwen3-MoE, random weights, {all_bytes / 1e9:.1f} GB")
    for share in map(int, options.limits.split(",")):
        ways = [way for way in options.ways.split(",") if way != "plain" or not share]
        runs = turns({way: lambda way=way: run_once(way, path, store, share, options.tokens, expert_bytes, all_bytes) for way in ways},
                     options.rounds)
        limit = f"{share} %" if share else "none"
        good = {way: [one for one in results if one] for way, results in runs.items()}
        for way, results in good.items():
            if not results:
                print(f"{limit}: {way}: was killed, or failed", flush=True)
                continue
            print(f"{limit}: {way}: tokens a second {spread([one['rate'] for one in results])}, load {spread([one['load_s'] for one in results])} s, "
                  f"cgroup above the imports {max(one['cgroup_bytes'] for one in results) / 1e9:.2f} GB", flush=True)
        for way in ("coded", "full"):
            for peer in set(good) - {"coded", "full"}:
                if good.get(way) and good[peer]:
                    row = f"python-{share or 'none'}"
                    print(f"  {way} over {peer}: " + str(rows.compare([one["rate"] for one in good[way]], {peer: [one["rate"] for one in good[peer]]},
                          "tokens/s", row=row, limit=limit, what="tokens a second", ours=way)), flush=True)
                    if peer == "plain":
                        print(f"  load, {way}: " + str(rows.compare([one["load_s"] for one in good[way]], {peer: [one["load_s"] for one in good[peer]]},
                              "s", row=row, limit=limit, what="from_pretrained", ours=way)), flush=True)
        same = {way: results[0]["tokens"] for way, results in good.items() if results}
        if len({tuple(tokens) for way, tokens in same.items() if way != "coded"}) > 1:
            print(f"  tokens differ: {same}")


main()
