# SPDX-License-Identifier: Apache-2.0
"""A program of python_table.py: python_client.py WAY MODEL STORE TOKENS FOLDER. Imports torch and transformers, prints "ready", reads
the budget of the experts in bytes (0: no limit) from standard input, loads the model, generates tokens, and prints a JSON object.

WAY: coded, full (expertfs.transformers); mapped (the same experts function over mapped plain files); offload (accelerate);
plain (transformers alone)."""
import json
import mmap
import os
import struct
import sys
import time

import torch
import transformers

import expertfs.transformers as moe


class MappedExpert(dict):
    def __init__(self, number, tensors):
        super().__init__(tensors)
        self.number = number


class MappedSession:
    """Experts of plain safetensors files, mapped: what moe._run_full() needs of a session."""

    def __init__(self, folder, layers):
        self.path, self._layers, self.tensors = folder, layers, {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors"):
                with open(os.path.join(folder, name), "rb") as file:
                    data = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
                (length,) = struct.unpack("<Q", data[:8])
                for tensor, entry in json.loads(data[8:8 + length]).items():
                    if tensor != "__metadata__":
                        begin, end = entry["data_offsets"]
                        self.tensors[tensor] = torch.frombuffer(data, dtype=torch.bfloat16, count=(end - begin) // 2,
                                                                offset=8 + length + begin).reshape(entry["shape"])

    def layers(self):
        return self._layers

    def request(self, layer, experts, _tokens, stack=""):
        for expert in experts:
            yield MappedExpert(expert, {role: self.tensors[f"model.layers.{layer}.mlp.experts.{expert}.{role}_proj.weight"]
                                        for role in ("gate", "up", "down")})


def load(way, path, store, budget, folder):
    auto = transformers.AutoModelForCausalLM
    if way in ("coded", "full"):
        return moe.from_pretrained(path, store, budget or None, way=way)
    if way == "mapped":
        with moe._session.open(path, "64M", state=False) as session:
            layers = session.layers()
            with moe.using(MappedSession(path, layers), "full"):
                return auto.from_pretrained(path, experts_implementation="expertfs")
    if way == "offload":
        memory = {"cpu": budget} if budget else None
        return auto.from_pretrained(path, device_map="auto" if budget else "cpu", max_memory=memory, offload_folder=folder)
    return auto.from_pretrained(path)


def main():
    way, path, store, tokens, folder = sys.argv[1:]
    print("ready", flush=True)
    budget = int(sys.stdin.readline())
    begin = time.monotonic()
    model = load(way, path, store, budget, folder)
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
                      "tokens": chosen}), flush=True)
    os._exit(0)


main()
