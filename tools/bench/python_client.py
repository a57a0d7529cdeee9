# SPDX-License-Identifier: Apache-2.0
"""A program of python_table.py: python_client.py WAY MODEL STORE TOKENS FOLDER. Imports torch and transformers, prints "ready", reads
the budget of the experts in bytes (0: no limit) and the mount from standard input, loads the model,
generates tokens, and prints a JSON object.

WAY: coded, full, coded-mount, full-mount (expertfs.transformers); mapped (the same experts function over mapped plain
files); offload (accelerate); plain (transformers alone)."""
import ctypes
import functools
import json
import mmap
import os
import struct
import sys
import time

import torch
import transformers

import expertfs.transformers as moe
from cgroup import peak_bytes


class Mapped:
    """Addresses of the experts' tensors in plain safetensors files, which are mapped."""

    def __init__(self, folder):
        self.addresses, self._kept = {}, []
        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors"):
                with open(os.path.join(folder, name), "rb") as file:
                    data = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
                self._kept.append((ctypes.c_char * len(data)).from_buffer(data))
                begin = ctypes.addressof(self._kept[-1])
                (length,) = struct.unpack("<Q", data[:8])
                for tensor, entry in json.loads(data[8:8 + length]).items():
                    if tensor != "__metadata__":
                        self.addresses[tensor] = begin + 8 + length + entry["data_offsets"][0]

    def arrivals(self, binding, experts, _counts):
        """As experts_torch.arrivals()."""
        for index, expert in enumerate(experts):
            prefix = f"model.layers.{binding.layer}.mlp.experts.{expert}."
            yield index, binding.matrices.of({role: self.addresses[f"{prefix}{role}_proj.weight"] for role in ("gate", "up", "down")})


def load(way, path, store, budget, mount, folder):
    auto = transformers.AutoModelForCausalLM
    if mount:
        return moe.from_pretrained(mount, way=way.removesuffix("-mount"))
    if way in ("coded", "full"):
        return moe.from_pretrained(path, store, budget or None, way=way)
    if way == "mapped":
        with moe._session.open(path, "64M", state=False) as session:
            with moe.using(session, "full"):
                model = auto.from_pretrained(path, **moe._version.ARGUMENTS)
        mapped = Mapped(path)
        for binding in moe._bindings(model):
            binding.arrivals = functools.partial(mapped.arrivals, binding)
        return model
    if way == "offload":
        memory = {"cpu": budget} if budget else None
        return auto.from_pretrained(path, device_map="auto" if budget else "cpu", max_memory=memory, offload_folder=folder)
    return auto.from_pretrained(path)


def main():
    way, path, store, tokens, folder = sys.argv[1:]
    print("ready", flush=True)
    budget, mount = sys.stdin.readline().rstrip("\n").split(" ", 1)
    begin = time.monotonic()
    model = load(way, path, store, int(budget), mount, folder)
    loaded = time.monotonic()
    prompt, times, chosen = torch.arange(2, 18).reshape(1, 16), [], []
    cache = transformers.DynamicCache()
    with torch.no_grad():
        for _ in range(int(tokens) + 1):
            output = model(prompt, past_key_values=cache, use_cache=True)
            prompt = output.logits[:, -1:].argmax(-1)
            chosen.append(prompt.item())
            times.append(time.monotonic())
    print(json.dumps({"load_s": loaded - begin, "first_s": times[0] - loaded, "rate": int(tokens) / (times[-1] - times[0]),
                      "process_bytes": peak_bytes("self"), "tokens": chosen}), flush=True)
    os._exit(0)


main()
