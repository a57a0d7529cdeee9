#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""expertctl estimate: the same of a store as of the checkpoint that it was packed of, as far as that can be known; sizes
by the model's own formula; sums; what does not fit; foreign and damaged metadata."""
import json
import os
import re
import shutil
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from e2e import *

PYTHON = os.path.join(ROOT, "build", "venv", "bin", "python")
os.environ["EXPERTFS_STATE"] = scratch("state")
for name in ("EXPERTFS_STORE", "EXPERTFS_MOUNT"):
    os.environ.pop(name, None)


def estimate(*arguments):
    return run(program("expertctl"), "estimate", *arguments)


def told(*arguments, status=0):
    result = estimate("--json", *arguments)
    if not check(f"estimate {' '.join(arguments)}: {status}", result.returncode == status, result.stderr + result.stdout):
        done()
    return json.loads(result.stdout)


def refused(what, words, *arguments, status=1):
    result = estimate(*arguments)
    check(f"{what}: refused, and told why", result.returncode == status and re.search(words, result.stderr + result.stdout),
          f"{result.returncode} {result.stderr} {result.stdout}")


def fits_a_terminal(what, text):
    wide = [line for line in text.splitlines()[1:] if len(line) > 80 and line.split()[0] not in ("pack", "run")]
    check(f"{what}: no line is wider than a terminal but for commands", not wide, wide)


def the_same(model, gguf):
    """A model as safetensors and as GGUF, plain and packed."""
    config = json.load(open(f"{model}/config.json"))
    kv = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 2 * 1000
    sources = {"safetensors": model, "their store": make_store(model), "GGUF": f"{gguf}/model.gguf",
               "its folder": gguf, "its store": make_store(gguf)}
    seen = {name: told("--ram=2G", "--ctx=1000", path) for name, path in sources.items()}
    for name, one in seen.items():
        check(f"{name}: experts and layers", (one["layers"], one["experts"], one["chosen"]) ==
              (config["num_hidden_layers"], config["num_experts"], config["num_experts_per_tok"]), one)
        check(f"{name}: keys and values", one["kv_bytes"] == kv, (one["kv_bytes"], kv))
        parts = sum(one[part] for part in ("system_bytes", "dense_bytes", "kv_bytes", "work_bytes", "budget_bytes"))
        check(f"{name}: the parts are no more than the whole", one["fits"] and parts <= one["ram_bytes"], one)
        check(f"{name}: the packed size is near", abs(one["expert_coded_bytes"] / seen["its store"]["expert_coded_bytes"] - 1)
              < 0.05, one)
        check(f"{name}: what it holds", one["dtype"] == "BF16" and one["expert_raw_bytes"] ==
              seen["GGUF"]["expert_raw_bytes"], one)
    for name in ("their store", "its store"):
        check(f"{name}: tokens are reckoned", seen[name]["tokens_per_second"] > 0 and seen[name]["skew"] == "assumed" and
              0 <= seen[name]["hit_part"] <= 1 and seen[name]["disk_bytes_per_second"] > 0, seen[name])
    check("llama.cpp runs GGUF alone", [bool(one["command"]) for one in seen.values()] == [False, False, True, True, True],
          {name: one["command"] for name, one in seen.items()})
    text = estimate("--ram=2G", sources["its store"]).stdout
    for word in ("KV cache", "the budget", "a second", "expertctl run -o budget="):
        check(f"text: {word}", word in text, text)
    for name, path in sources.items():
        fits_a_terminal(name, estimate("--ram=2G", path).stdout)
    lines = estimate("--ram=2G", model).stdout.splitlines()
    check("text: how a checkpoint is packed, and run", f"pack         mkexpertfs {model} OUT.efs" in lines and
          [line for line in lines if re.match(r"run +expertctl run -o budget=\d+M OUT.efs -- PROGRAM \{\}$", line)], lines)
    return sources["its store"], seen["its store"]["command"]


def windows():
    """Layers that look at the last tokens alone keep no more of them than llama.cpp does: these and a batch of 512, in
    cells of 256."""
    model = make_model("windows", "--preset=tiny-gpt-oss")
    with open(f"{model}/config.json") as file:
        config = json.load(file)
    layer = config["num_key_value_heads"] * config["head_dim"] * 2 * 2
    halves = config["num_hidden_layers"] // 2
    for context in (100, 700, 769, 50000):
        one = told("--ram=2G", f"--ctx={context}", model)
        check(f"a window of 128 in every other layer, {context} tokens", one["kv_bytes"] ==
              layer * halves * (context + min(context, 768)), (one["kv_bytes"], layer, halves))
    odd = []
    for types, window in ((["chunked_attention", "full_attention"], {"attention_chunk_size": 8192}),
                          (["sliding_attention", "full_attention"], {"sliding_window": None}),
                          (["full_attention", 7], {}), ("sliding_attention", {})):
        with open(f"{model}/config.json", "w") as file:
            json.dump({**config, "layer_types": types, "num_hidden_layers": 2, **window}, file)
        odd.append(told("--ram=2G", "--ctx=100000", model)["kv_bytes"])
    check("chunks; a window of no size, no list of layers: none", odd == [layer * (100000 + 8192 + 512), *[layer * 200000] * 3],
          (odd, layer))
    for family, want in (("gpt-oss", lambda n: 2 * 2 * 2 * 64 * 2 * (n + min(n, 768))),
                         ("gemma4", lambda n: 2 * 2 * (128 * n + 3 * 2 * 64 * min(n, 1024)))):
        path = scratch(f"{family}.gguf")
        made = run(PYTHON, os.path.join(ROOT, "tests", "clients", "gguf_model.py"), family, path)
        if made.returncode == 77:
            note(made.stdout.strip())
            return
        for context in (100, 5000):
            one = told("--ram=2G", f"--ctx={context}", path)
            check(f"{family} as GGUF, {context} tokens", one["kv_bytes"] == want(context), (one["kv_bytes"], want(context)))
    text = estimate("--ram=2G", "--ctx=5000", path).stdout
    check("text: what a window keeps", "layers with a sliding window keep 1024" in text)
    fits_a_terminal("windows", text)


def memory():
    """More of it never makes the budget smaller; less than it takes does not fit."""
    store = make_store(make_model("larger", "-F", "qwen3-moe", "-d", "512", "-i", "256", "-e", "16", "--experts-per-token",
                                  "4", "-l", "4", "--vocab", "2048", "--format", "gguf"))
    every = [told(f"--ram={ram}", store) for ram in ("420M", "430M", "440M", "8G", "900G")]
    budgets = [one["budget_bytes"] for one in every]
    check("more memory, more budget, to what is of use", budgets[0] < budgets[1] < budgets[2] < budgets[3] == budgets[4],
          budgets)
    check("more memory, no more misses", all(a["hit_part"] <= b["hit_part"] + 1e-9 for a, b in zip(every, every[1:])), every)
    check("more context, less budget", told("--ram=440M", "--ctx=16000", store)["budget_bytes"] < budgets[2])
    one = told("--ram=300M", store, status=1)
    check("too little", not one["fits"] and one["budget_bytes"] == 0 and one["command"] is None, one)
    refused("too little", r"does not fit: it takes .* at least", "--ram=300M", store)
    refused("a size without its unit", "a size is written 32G", "--ram=32", store, status=2)


def command_runs(command):
    words = command.split()
    words[0] = program("expertctl")
    words[words.index("llama-server")] = "true"
    result = run(*words)
    check("its command mounts with its budget", result.returncode == 0 and "floor" not in result.stderr,
          command + result.stderr)


def text(string):
    data = string.encode()
    return struct.pack("<Q", len(data)) + data


def foreign(gguf):
    """Metadata that others wrote, or nobody."""
    whole = open(gguf, "rb").read()
    path = scratch("foreign.gguf")

    def one(what, data, words="damaged|GGUF|GGML|gguf|offset|metadata"):
        with open(path, "wb") as file:
            file.write(data)
        refused(what, words, path)

    (count,) = struct.unpack_from("<Q", whole, 16)
    for at in (0, 3, 10, 23, 40, 200, 1000):
        one(f"cut at {at}", whole[:at], "")
    one("a count without end", whole[:16] + struct.pack("<Q", 2**63) + whole[24:])
    one("a key without end", whole[:24] + struct.pack("<Q", 2**62) + whole[32:])
    head = whole[:16] + struct.pack("<Q", count + 1)
    for what, value in (("an array without end", struct.pack("<IIQ", 9, 0, 2**60)),
                        ("an array of arrays", struct.pack("<IIQ", 9, 9, 2**40)), ("no type", struct.pack("<I", 99))):
        one(what, head + text("x.block_count") + value + whole[24:], "")
    broken = make_model("broken")
    with open(f"{broken}/config.json", "w") as file:
        file.write("{")
    result = estimate("--json", "--ram=2G", broken)
    check("a config.json that is none: told, and gone on without it", result.returncode == 0 and
          "config.json" in result.stderr and "going on without it" in result.stderr and
          json.loads(result.stdout)["budget_bytes"] > 0, result.stderr)
    with open(f"{broken}/config.json", "w") as file:
        json.dump({"num_hidden_layers": -1, "num_experts_per_tok": 1e30, "num_key_value_heads": "x", "head_dim": [3],
                   "hidden_size": 2**63 - 1, "vocab_size": None}, file)
    odd = told("--ram=2G", broken)
    check("numbers that cannot be are not told", odd["kv_bytes"] == 0 and odd["chosen"] == 0, odd)
    for member, value in (("hidden_size", 2**63 - 1), ("num_hidden_layers", -1), ("num_experts_per_tok", 1e30),
                          ("vocab_size", 2**64), ("num_key_value_heads", 2**32 + 1)):
        with open(f"{broken}/config.json", "w") as file:
            json.dump({"num_hidden_layers": 2, "num_experts_per_tok": 2, member: value}, file)
        result = estimate("--ram=2G", broken)
        check(f"{member} {value}: told", result.returncode == 0 and re.search(
            f"config.json: ({member}: no number that a model can have|.*too big integer.*); going on without", result.stderr),
            result.stderr)
    with open(f"{broken}/config.json", "w") as file:
        json.dump({"num_hidden_layers": 2**32, "num_attention_heads": 2**32, "head_dim": 2**32}, file)
    check("nor are products", "heads and their sizes: no number" in estimate("--ram=2G", broken).stderr)
    for what, kind, value in (("below 0", 5, struct.pack("<i", -1)), ("64 bits", 10, struct.pack("<Q", 2**64 - 1)),
                              ("a list of them", 9, struct.pack("<IQQQ", 10, 2, 2**63, 2**63))):
        one(what, head + text("x.attention.head_count_kv") + struct.pack("<I", kind) + value + whole[24:] + bytes(64),
            "head_count_kv: no number that a model can have")
    os.remove(f"{broken}/config.json")
    check("no config.json: no tokens, but memory", told("--ram=2G", broken)["tokens_per_second"] == 0)
    refused("nothing there", "No such file", scratch("nothing"))
    os.makedirs(scratch("empty"))
    refused("an empty folder", "holds no files", scratch("empty"))
    with open(scratch("empty/notes"), "w") as file:
        file.write("nothing")
    refused("no weights", "no weights found", scratch("empty"))
    for option in ("--ram=much", "--ram=0", "--ctx=0", "--ctx=x"):
        refused(option, option.split("=")[0], option, gguf, status=2)


def parts():
    """What did not come whole is refused in the words of mkexpertfs."""
    model = make_model("parts", "--preset=tiny-qwen3-moe", "--shard-size=1M")
    names = sorted(name for name in os.listdir(model) if name.endswith(".safetensors"))
    refused("one part", f"is one part of {len(names)}", f"{model}/{names[1]}")
    os.remove(f"{model}/{names[0]}")
    refused("a part is missing", f"{names[0]} is missing", model)
    packed = run(program("mkexpertfs"), model, scratch("parts.efs"))
    check("mkexpertfs says the same", packed.returncode == 1 and packed.stderr.split(": ", 1)[1] ==
          estimate(model).stderr.split(": ", 1)[1], packed.stderr)


def paths(gguf):
    """What is printed to be typed can be typed, whatever the path; a projector beside a model is not the model."""
    folder = scratch("it's a $path; `x`")
    os.makedirs(folder)
    os.link(gguf, f"{folder}/-z model.gguf")
    with open(f"{folder}/-a.gguf", "wb") as file:
        for key, value in ((None, None), ("general.type", "mmproj"), ("clip.expert_used_count", 77)):
            file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) if not key else struct.pack("<Q", len(key)) + key.encode() +
                       (struct.pack("<IQ", 8, len(value)) + value.encode() if isinstance(value, str) else
                        struct.pack("<II", 4, value)))
    chosen = told("--ram=2G", gguf)["chosen"]
    store = scratch("a store's $path.efs")
    for cwd, path in ((SCRATCH, folder), (folder, "-z model.gguf")):
        printed = run(program("expertctl"), "estimate", "--ram=2G", "--", path, cwd=cwd).stdout
        command = re.search("^pack +mkexpertfs (.*) OUT.efs$", printed, re.M).group(1)
        packed = run("sh", "-c", f'"$0" -qf {command} "$1"', program("mkexpertfs"), store, cwd=cwd)
        check(f"{path}: the command packs it", packed.returncode == 0, command + packed.stderr)
        check(f"{path}: of the model", f", {chosen} a token" in printed, printed)
    run(program("mkexpertfs"), "-qf", folder, store)
    one = told("--ram=2G", store)
    check("of a store, too", one["chosen"] == chosen, one)
    words = run("sh", "-c", f"printf '%s\n' {one['command']}").stdout.splitlines()
    check("the command names the store", store in words, words)


def main():
    model, gguf = make_model("model", "--preset=tiny-qwen3-moe"), make_model("gguf", "--preset=tiny-qwen3-moe",
                                                                             "--format=gguf")
    store, command = the_same(model, gguf)
    windows()
    memory()
    foreign(f"{gguf}/model.gguf")
    parts()
    paths(f"{gguf}/model.gguf")
    if os.path.exists("/dev/fuse"):
        command_runs(command)
    done()


main()
