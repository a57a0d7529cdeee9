# SPDX-License-Identifier: Apache-2.0
"""llama_client.py FILE: load a GGUF file with llama.cpp, mapped (its default), and generate; print times as JSON.

The tokens are drawn with a fixed seed, so equal logits draw equal tokens. A random model that always takes the
likeliest token soon repeats itself; at a temperature of 0.3 its use of experts is close to that of real models: an LRU
cache of a quarter (half) of them misses 41 % (8.5 %), and 35 % (11 %) with answers of gpt-oss-20b.
--server adds the devices of a server of ggml's RPC backend, by the library in GGML_RPC; --link limits the bytes a second to it
from the first drawn token on.
--cuda adds the devices of ggml's CUDA backend, by this library. --gpu-layers and --cpu-moe place the model as llama.cpp's programs do.
--feed has the tokens to evaluate in place of those that are drawn, so that programs whose sums differ in the last bits
use the same experts."""
import argparse
import json
import os
import socket
import struct
import sys
import time

try:
    import llama_cpp
    import numpy as np
except (ImportError, OSError, RuntimeError) as missing:
    print(f"llama-cpp-python: {missing}", file=sys.stderr)
    sys.exit(77)

PROMPT = b"The old man at the end of the pier counts the boats, and writes the number into a little book."
TEMPERATURE = 0.3


def logits_of(model):
    last = llama_cpp.llama_get_logits_ith(model._ctx.ctx, -1)
    return np.ctypeslib.as_array(last, shape=(model.n_vocab(),)).astype(np.float64)


def choose(logits, generator):
    p = np.exp((logits - logits.max()) / TEMPERATURE)
    return int(np.searchsorted(np.cumsum(p) / p.sum(), generator.random()))


def missing_backend():
    """The first name in LD_PRELOAD that is not mapped, or None: ld.so only warns about a library that it cannot
    load."""
    with open("/proc/self/maps") as maps:
        loaded = maps.read()
    return next((name for name in os.environ.get("LD_PRELOAD", "").split() if name not in loaded), None)


def leave_repacking_out():
    """As --no-repack of llama.cpp's programs, which Llama() does not offer."""
    defaults = llama_cpp.llama_model_default_params

    def without():
        made = defaults()
        made.use_extra_bufts = False
        return made

    llama_cpp.llama_cpp.llama_model_default_params = without


def add_devices(options):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/clients"))
    import ggml
    if options.server:
        ggml.add_server(options.server)
    if options.cuda:
        ggml.add_registry(options.cuda, "ggml_backend_cuda_reg")
    if options.cpu_moe:
        ggml.set_defaults(not options.no_repack, [rf"blk\.{layer}{ggml.EXPERTS}" for layer in range(options.cpu_moe)], None)


def limit_connections(bytes_per_second):
    """The kernel paces what is sent on each connection of this process."""
    for fd in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(fd))) as connection:
                connection.setsockopt(socket.SOL_SOCKET, 47, struct.pack("Q", bytes_per_second))  # SO_MAX_PACING_RATE
        except OSError:
            pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--prompt", type=int, default=0, help="tokens, drawn; 0: a sentence")
    parser.add_argument("--feed", help="a file with numbers of tokens, as many as --tokens")
    parser.add_argument("--no-repack", action="store_true")
    parser.add_argument("--server", metavar="HOST:PORT")
    parser.add_argument("--cuda", metavar="LIBRARY")
    parser.add_argument("--gpu-layers", type=int, default=0)
    parser.add_argument("--cpu-moe", type=int, default=0, help="layers, the first ones, whose experts stay on the processor")
    parser.add_argument("--link", type=int, default=0, help="bytes a second")
    options = parser.parse_args()
    if options.no_repack:
        leave_repacking_out()
    if missing_backend():
        sys.exit(f"{missing_backend()} was not preloaded")
    if options.server or options.cuda or options.cpu_moe:
        add_devices(options)
    fed = [int(n) for n in open(options.feed).read().split()] if options.feed else None
    begin, threads = time.monotonic(), options.threads or None
    model = llama_cpp.Llama(options.file, n_ctx=max(512, options.prompt + options.tokens), n_threads=threads, n_threads_batch=threads,
                            n_gpu_layers=options.gpu_layers, verbose=bool(options.server or options.cuda))
    loaded = time.monotonic()
    generator, tokens, times = np.random.default_rng(1), [], []
    drawn = np.random.default_rng(2).integers(0, model.n_vocab(), options.prompt).tolist()
    model.eval(drawn or model.tokenize(PROMPT, add_bos=False))
    if options.link:
        limit_connections(options.link)
    for i in range(options.tokens):
        tokens.append(choose(logits_of(model), generator))
        times.append(time.monotonic())
        model.eval([fed[i] if fed else tokens[-1]])
    times.append(time.monotonic())
    print(json.dumps({
        "load_s": loaded - begin, "prompt_s": times[0] - loaded, "first_s": times[0] - begin,
        "step_s": [b - a for a, b in zip(times, times[1:])], "tokens": tokens,
        "avx512": b"AVX512 = 1" in llama_cpp.llama_print_system_info()}))


if __name__ == "__main__":
    main()
