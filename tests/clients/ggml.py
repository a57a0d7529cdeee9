#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ggml.py FILE OUT: llama.cpp on a GGUF file, with the backend that is preloaded or named in GGML_BACKEND_PATH.

Writes the logits (--embeddings: embeddings) of prompts and of the generated tokens to OUT (numpy, one array per
prompt). Prints how many bytes of the file are in the page cache, before and after the model is loaded, "begun" after
the first token of the first prompt, and at the end the tokens, how many bytes of the file are mapped, how much memory of
the process is of no file, and how many bytes it has read from disks since it began to load the model. Exit status 0; 1:
a decode failed; 77: llama-cpp-python is missing."""
import argparse
import ctypes
import json
import mmap
import os
import sys
import threading

try:
    import numpy as np
    import llama_cpp
    import ggml_lora
except (ImportError, OSError, RuntimeError) as missing:
    print(f"ggml.py: {missing}; tools/setup-python runtimes installs llama-cpp-python")
    sys.exit(77)


def load_backends():
    """The wheel's CPU backend is compiled in, so llama.cpp does not search for further ones itself."""
    if os.environ.get("GGML_BACKEND_PATH"):
        ctypes.CDLL("libggml.so.0").ggml_backend_load_all()


def add_registry(library, name):
    """The devices of the registry that this function of the library returns."""
    function, registry = getattr(ctypes.CDLL(library), name), ctypes.CDLL("libggml.so.0")
    function.restype = ctypes.c_void_p
    registry.ggml_backend_register(ctypes.c_void_p(function()))


class Override(ctypes.Structure):
    """llama_model_tensor_buft_override"""
    _fields_ = [("pattern", ctypes.c_char_p), ("type", ctypes.c_void_p)]


def add_server(endpoint):
    """--rpc: the devices of a server of ggml's RPC backend, which the test has compiled. Returns the library."""
    rpc, registry = ctypes.CDLL(os.environ["GGML_RPC"]), ctypes.CDLL("libggml.so.0")
    rpc.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
    registry.ggml_backend_register(ctypes.c_void_p(rpc.ggml_backend_rpc_add_server(endpoint.encode())))
    return rpc


EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"


def set_defaults(repack, patterns, device):
    """Options of llama.cpp's programs that Llama() does not have. repack False: --no-repack; patterns: -ot PATTERN=CPU;
    device: a function that returns the type of a device's buffers, in place of the processor's."""
    defaults = llama_cpp.llama_model_default_params
    host = device or ctypes.CDLL("libggml-base.so.0").ggml_backend_cpu_buffer_type
    if not device:
        host.restype = ctypes.c_void_p
    overrides = (Override * (len(patterns) + 1))(*(Override(pattern.encode(), host()) for pattern in patterns))

    def changed():
        made = defaults()
        made.use_extra_bufts = repack
        if patterns:
            made.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
        return made

    llama_cpp.llama_cpp.llama_model_default_params = changed


def cached_bytes(path):
    """Bytes of the file in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as pages:
        found = ctypes.create_string_buffer((len(pages) + mmap.PAGESIZE - 1) // mmap.PAGESIZE)
        if libc.mincore(ctypes.addressof(ctypes.c_char.from_buffer(pages)), len(pages), found):
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(byte & 1 for byte in found.raw) * mmap.PAGESIZE


def mapped_bytes(path):
    """Bytes of the file in this process's page tables."""
    with open("/proc/self/smaps") as file:
        lines, ours, total = file.read().splitlines(), False, 0
    for line in lines:
        if "-" in line.split(" ")[0]:
            ours = line.endswith(" " + os.path.realpath(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


def anonymous_bytes():
    """Memory of this process that is of no file."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon:"))


def disk_bytes():
    """Bytes that this process has read from disks; 0 also where the kernel does not count them."""
    try:
        with open("/proc/self/io") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("read_bytes:"))
    except OSError:
        return 0


def generate(model, arguments, results):
    """{prompt: (tokens, logits)}: prompts are drawn with a fixed seed and continued with the most probable tokens."""
    try:
        for length in arguments.prompts:
            tokens = np.random.default_rng(length).integers(3, model.n_vocab(), length).tolist()
            model.reset()
            model.eval(tokens)
            for turn in range(arguments.tokens):
                tokens.append(int(np.argmax(model.scores[model.n_tokens - 1])))
                model.eval([tokens[-1]])
                if arguments.wait and turn == 0:
                    print("begun", flush=True)
                    sys.stdin.readline()
            results[length] = tokens, model.scores[: model.n_tokens].copy()
    except (RuntimeError, ValueError) as failed:
        print(f"decode failed: {failed}")


def embed(model, arguments, results):
    """The same for an embedding model: vectors of a prompt's tokens."""
    try:
        for length in arguments.prompts:
            tokens = np.random.default_rng(length).integers(3, model.n_vocab(), length).tolist()
            model._batch.reset()
            model._batch.add_sequence(tokens, 0, True)
            model._ctx.decode(model._batch)
            rows = [np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_ith(model.ctx, i), (model.n_embd(),)).copy()
                    for i in range(length)]
            results[length] = tokens, np.stack(rows)
    except (RuntimeError, ValueError) as failed:
        print(f"decode failed: {failed}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("out")
    parser.add_argument("--prompts", type=lambda text: [int(n) for n in text.split(",")], default=[7])
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--contexts", type=int, default=1, help="that many models, at once")
    parser.add_argument("--also", nargs=2, metavar=("FILE", "OUT"), help="another model, at the same time")
    parser.add_argument("--no-mmap", action="store_true")
    parser.add_argument("--embeddings", action="store_true", help="of a prompt's tokens, none follow")
    parser.add_argument("--wait", action="store_true", help="after the first token, for a line")
    parser.add_argument("--no-repack", action="store_true")
    parser.add_argument("--cpu-moe", dest="patterns", action="append_const", const=EXPERTS, default=[])
    parser.add_argument("--n-cpu-moe", type=int, default=0)
    parser.add_argument("-ot", dest="patterns", action="append", help="PATTERN of tensors that stay on the processor")
    parser.add_argument("--gpu-layers", type=int, default=0, help="--n-gpu-layers")
    parser.add_argument("--rpc", help="adds the devices of the server at HOST:PORT")
    parser.add_argument("--fake", help="adds the device of this library")
    parser.add_argument("--on-device", action="store_true", help="all experts in the memory of that server")
    parser.add_argument("--lora", help="an adapter, for the mapped model")
    arguments = parser.parse_args()
    load_backends()
    if arguments.fake:
        add_registry(arguments.fake, "fake_device_registry")  # tests/e2e/fake_device.c
    rpc = add_server(arguments.rpc) if arguments.rpc else None

    def buffers():
        return rpc.ggml_backend_rpc_buffer_type(arguments.rpc.encode(), 0)

    if arguments.on_device:
        rpc.ggml_backend_rpc_buffer_type.restype = ctypes.c_void_p
    patterns = arguments.patterns + [rf"blk\.{layer}{EXPERTS}" for layer in range(arguments.n_cpu_moe)]
    set_defaults(not arguments.no_repack, patterns or [EXPERTS] * arguments.on_device, buffers if arguments.on_device else None)
    print("cached before:", cached_bytes(arguments.file))
    read_before = disk_bytes()  # of Python and libraries
    files = [arguments.file] * arguments.contexts + ([arguments.also[0]] if arguments.also else [])
    models = [llama_cpp.Llama(file, n_ctx=max(64, max(arguments.prompts) + arguments.tokens), n_batch=512, n_gpu_layers=arguments.gpu_layers,
                              logits_all=True, embedding=arguments.embeddings, use_mmap=not arguments.no_mmap, n_threads=arguments.threads,
                              n_threads_batch=arguments.threads, verbose=True)
              for file in files]
    for model in models if arguments.lora else ():
        ggml_lora.use(model, arguments.lora)
    print("cached when loaded:", cached_bytes(arguments.file))
    results = [{} for _ in models]
    runs = [threading.Thread(target=embed if arguments.embeddings else generate, args=(model, arguments, result))
            for model, result in zip(models, results)]
    for each in runs:
        each.start()
    for each in runs:
        each.join()
    if any(len(result) < len(arguments.prompts) for result in results):
        return 1
    first = results[0]
    if arguments.also:
        np.savez(arguments.also[1], **{str(n): logits for n, (_, logits) in results.pop().items()})
    for result in results[1:]:
        if any(not np.array_equal(result[n][1], first[n][1]) for n in first):
            print("ggml.py: contexts differ")
            return 1
    np.savez(arguments.out, **{str(n): logits for n, (_, logits) in first.items()})
    print("mapped:", mapped_bytes(arguments.file))
    print("anonymous:", anonymous_bytes())
    print("read:", disk_bytes() - read_before)
    print("tokens:", json.dumps({n: tokens for n, (tokens, _) in first.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
