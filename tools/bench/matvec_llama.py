# SPDX-License-Identifier: Apache-2.0
"""The peer of tools/bench/run compute: llama.cpp's product of a BF16 matrix with F32 vectors, by its library ggml.

Prints a line of JSON for each round and shape: GB/s of plain weights. The matrices of a shape are together far larger
than any cache and are in huge pages, like those of bench_kernels; ggml itself does not request huge pages. ggml rounds
the vectors to BF16 before it multiplies, as bench_kernels does with "bf16" inputs but not with "f32" inputs."""
import argparse
import ctypes
import importlib.util
import json
import mmap
import os
import random
import sys
import time

TYPE_F32, TYPE_BF16 = 0, 30
NODES_MAX = 4096


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def load_ggml():
    """Loads ggml's libraries from the folder of llama-cpp-python. The functions are attributes of the result."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None:
        sys.exit("no llama_cpp: tools/setup-python runtimes")
    folder = os.path.join(os.path.dirname(spec.origin), "lib")
    base = ctypes.CDLL(os.path.join(folder, "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    cpu = ctypes.CDLL(os.path.join(folder, "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)
    pointer = ctypes.c_void_p
    for library, name, result, arguments in [
        (base, "ggml_init", pointer, [InitParams]),
        (base, "ggml_new_tensor_2d", pointer, [pointer, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]),
        (base, "ggml_mul_mat", pointer, [pointer, pointer, pointer]),
        (base, "ggml_new_graph_custom", pointer, [pointer, ctypes.c_size_t, ctypes.c_bool]),
        (base, "ggml_build_forward_expand", None, [pointer, pointer]),
        (base, "ggml_get_data", pointer, [pointer]),
        (base, "ggml_backend_graph_compute", ctypes.c_int, [pointer, pointer]),
        (cpu, "ggml_backend_cpu_init", pointer, []),
        (cpu, "ggml_backend_cpu_set_n_threads", None, [pointer, ctypes.c_int]),
    ]:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        setattr(load_ggml, name, function)
    return load_ggml


class Products:
    """A graph of products of matrices of one shape, bytes_wanted in total, with the same vectors."""

    def __init__(self, ggml, rows, cols, tokens, bytes_wanted):
        count = max(1, bytes_wanted // (2 * rows * cols))
        self.bytes = count * rows * cols * 2
        size = self.bytes + count * (4 * rows * tokens + 2048) + 4 * cols * tokens + (64 << 20)
        self.memory = mmap.mmap(-1, size)
        self.memory.madvise(mmap.MADV_HUGEPAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        context = ggml.ggml_init(InitParams(size, address, False))
        x = ggml.ggml_new_tensor_2d(context, TYPE_F32, cols, tokens)
        ctypes.memmove(ggml.ggml_get_data(x), (ctypes.c_float * (cols * tokens))(
            *[random.uniform(-1, 1) for _ in range(cols * tokens)]), 4 * cols * tokens)
        self.graph = ggml.ggml_new_graph_custom(context, NODES_MAX, False)
        some = random.Random(1).randbytes(1 << 20)
        some = bytes(b if i % 2 == 0 else 0x3c | b & 0x83 for i, b in enumerate(some))  # finite values of moderate size
        for _ in range(count):
            w = ggml.ggml_new_tensor_2d(context, TYPE_BF16, cols, rows)
            data, room = ggml.ggml_get_data(w), 2 * rows * cols
            for at in range(0, room, len(some)):
                ctypes.memmove(data + at, some, min(len(some), room - at))
            ggml.ggml_build_forward_expand(self.graph, ggml.ggml_mul_mat(context, w, x))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=512, help="MiB of weights of a shape (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--shape", action="append", help="ROWSxCOLS, may be repeated (2880x2880 and 4096x1536)")
    options = parser.parse_args()
    ggml = load_ggml()
    clock = time.thread_time if options.threads == 1 else time.monotonic  # as bench_kernels does
    backend = ggml.ggml_backend_cpu_init()
    ggml.ggml_backend_cpu_set_n_threads(backend, options.threads)
    for shape in options.shape or ["2880x2880", "4096x1536"]:
        rows, cols = (int(n) for n in shape.split("x"))
        products = Products(ggml, rows, cols, options.tokens, options.mib << 20)
        for done in range(options.rounds + 1):
            begin = clock()
            if ggml.ggml_backend_graph_compute(backend, products.graph) != 0:
                sys.exit("ggml: the graph was not computed")
            seconds = clock() - begin
            if done > 0:  # the first round warms up
                print(json.dumps({"shape": shape, "threads": options.threads, "tokens": options.tokens,
                                  "gbs": products.bytes / seconds * 1e-9}), flush=True)


if __name__ == "__main__":
    main()
