#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ggml_shapes.py make FILE | run FILE PLUGIN THREADS | unload FILE PLUGIN: single MUL_MAT_ID operations by libggml-expertfs.so and by ggml's
CPU backend, on the shapes that ggml's test-backend-ops has for MUL_MAT_ID with plain types.

make writes a GGUF file with their weights. run maps it, as llama.cpp does, and computes each operation with the backend
and with the CPU; EXPERTFS_STORE names the store of the file. For block types and F32, which the host's kernels multiply,
it compares bits; for BF16 it compares bits on x86-64. For F16, where the order of sums differs, the error against sums in
doubles must be at most 1.1 times the CPU's, or at most rounding.
unload computes with two buffers and two backends of the plugin, frees them in turn and unloads it, three times.
Prints a line for each operation that differs, and the number of operations. Exit status 0; 1: a difference; 77: a
package is missing."""
import ctypes
import glob
import mmap
import os
import sys

try:
    import ml_dtypes
    import numpy as np
    import gguf
except ImportError as missing:
    print(f"ggml_shapes.py: {missing}; tools/setup-python basic installs it")
    sys.exit(77)

TYPES = {"BF16": (ml_dtypes.bfloat16, gguf.GGMLQuantizationType.BF16), "F16": (np.float16, gguf.GGMLQuantizationType.F16)}
# types that the host's kernels multiply; some inputs of whole blocks each
HOST_TYPES = ("F32", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XXS", "IQ2_XS",
              "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "IQ1_M", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4")
HOST_COLUMNS = 512
TYPE_F32, TYPE_I32 = 0, 26


def cases():
    """(experts, used, one input for all of a token's experts, rows, tokens, columns, largest input)"""
    for experts in (4, 8):
        for used in (1, 2, 4):
            for shared in (False, True):
                for tokens in (1, 4, 5, 17, 32, 129):
                    yield experts, used, shared, 512, tokens, 256, 1
    for tokens in (1, 15, 16, 17, 31, 32, 33, 47, 48, 49):
        yield 4, 4, False, 512, tokens, 256, 1
    yield 8, 1, False, 512, 1, 256, 1
    for shared in (False, True):
        yield 16, 16, shared, 32, 1024, 16, 1
        yield 2, 2, shared, 32, 8192, 64, 1
        yield 16, 16, shared, 50, 200, 64, 1
    for columns in (1, 63, 65):
        yield 1, 1, False, 8, 16, columns, 1
    for tokens in (1, 5, 64, 300):
        for experts in (512, 1024):
            yield experts, 10, False, 128, tokens, 128, 1
    yield 32, 2, False, 72, 32, 2880, 1
    yield 28, 10, False, 64, 1, 4096, 1
    yield 4, 2, False, 64, 16, 3, 1
    for tokens in (16, 32, 64):  # out of the range of F16
        yield 8, 2, False, 512, tokens, 256, 1e5


def host_cases():
    """The same for types of the host's kernels. The expert of 1.5 MB and more is several shards, which split rows."""
    for tokens in (1, 2, 9, 40):
        yield 4, 2, True, 96, tokens, HOST_COLUMNS, 1
        yield 4, 4, False, 96, tokens, HOST_COLUMNS, 1
    yield 2, 1, True, 1900, 1, HOST_COLUMNS, 1
    yield 2, 2, True, 1900, 300, HOST_COLUMNS, 1


def cases_of(kind):
    return cases() if kind in TYPES else host_cases()


def weights():
    """The matrices of these cases: (type, experts, rows, columns), one layer each, with gate and up of that shape."""
    return [(kind, *shape) for kind in (*TYPES, *HOST_TYPES)
            for shape in sorted({(experts, rows, columns) for experts, _, _, rows, _, columns, _ in cases_of(kind)})]


def quantised(kind, numbers):
    """The rows as ggml quantises them, as bytes, and their type."""
    ggml, to = load_ggml(), gguf.GGMLQuantizationType[kind]
    rows, columns = int(np.prod(numbers.shape[:-1])), numbers.shape[-1]
    made = np.zeros((rows, ggml.row_size(int(to), columns)), np.uint8)
    important = np.ones(columns, np.float32)
    ggml.quantize_chunk(int(to), numbers.ctypes.data, made.ctypes.data, 0, rows, columns, important.ctypes.data)
    return made.reshape(*numbers.shape[:-1], -1), to


def make(path):
    writer = gguf.GGUFWriter(path, "qwen3moe")
    random = np.random.default_rng(1)
    writer.add_block_count(len(weights()))
    for layer, (kind, experts, rows, columns) in enumerate(weights()):
        for part in ("gate", "up"):
            numbers = random.uniform(-1, 1, (experts, rows, columns)).astype(np.float32)
            if kind in TYPES:
                of, raw = TYPES[kind]
                numbers = numbers.astype(of)
                numbers = numbers.view(np.uint8) if kind == "BF16" else numbers
            elif kind == "F32":
                raw = gguf.GGMLQuantizationType.F32
            else:
                numbers, raw = quantised(kind, numbers)
            writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.weight", numbers, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def load_ggml():
    """ggml of llama-cpp-python, with the types of the functions used here."""
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as missing:
        print(f"ggml_shapes.py: {missing}; tools/setup-python runtimes installs llama-cpp-python")
        sys.exit(77)
    folder = os.path.join(os.path.dirname(llama_cpp.__file__), "lib")
    base, cpu, all_of_it = (ctypes.CDLL(sorted(glob.glob(os.path.join(folder, f"libggml{part}.so*")))[0])
                            for part in ("-base", "-cpu", ""))
    p, size, i64, text, flag = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_char_p, ctypes.c_bool
    for library, name, result, arguments in (
            (base, "ggml_row_size", size, [ctypes.c_int, i64]),
            (base, "ggml_quantize_chunk", size, [ctypes.c_int, p, p, i64, i64, i64, p]),
            (base, "ggml_init", p, [InitParams]),
            (base, "ggml_free", None, [p]),
            (base, "ggml_new_tensor_2d", p, [p, ctypes.c_int, i64, i64]),
            (base, "ggml_new_tensor_3d", p, [p, ctypes.c_int, i64, i64, i64]),
            (base, "ggml_view_2d", p, [p, p, i64, i64, size, size]),
            (base, "ggml_view_3d", p, [p, p, i64, i64, i64, size, size, size]),
            (base, "ggml_set_name", p, [p, text]),
            (base, "ggml_get_data", p, [p]),
            (base, "ggml_mul_mat_id", p, [p, p, p, p]),
            (base, "ggml_new_graph", p, [p]),
            (base, "ggml_build_forward_expand", None, [p, p]),
            (base, "ggml_backend_tensor_alloc", ctypes.c_int, [p, p, p]),
            (base, "ggml_backend_graph_compute", ctypes.c_int, [p, p]),
            (base, "ggml_backend_dev_init", p, [p, text]),
            (base, "ggml_backend_dev_supports_op", flag, [p, p]),
            (base, "ggml_backend_dev_buffer_from_host_ptr", p, [p, p, size, size]),
            (base, "ggml_backend_reg_dev_get", p, [p, size]),
            (base, "ggml_backend_reg_get_proc_address", p, [p, text]),
            (base, "ggml_backend_buffer_free", None, [p]),
            (base, "ggml_backend_free", None, [p]),
            (all_of_it, "ggml_backend_load", p, [text]),
            (all_of_it, "ggml_backend_unload", None, [p]),
            (cpu, "ggml_backend_cpu_init", p, []),
            (cpu, "ggml_backend_cpu_set_n_threads", None, [p, ctypes.c_int])):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        setattr(load_ggml, name[5:], function)
    return load_ggml


def array_at(address, dtype, shape):
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * count).from_address(address), dtype).reshape(shape)


class Operations:
    """The weights of a mapped file in a buffer of the backend, and the two backends."""

    def __init__(self, ggml, path, plugin, threads, registry=None):
        self.ggml = ggml
        self.registry = registry or ggml.backend_load(plugin.encode())
        if not self.registry:
            sys.exit("the backend is not loaded")
        self.device = ggml.backend_reg_dev_get(self.registry, 0)
        with open(path, "rb") as file:  # mapped for reading only: numpy gives the address
            self.mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        address = np.frombuffer(self.mapped, np.uint8).ctypes.data
        self.buffer = ggml.backend_dev_buffer_from_host_ptr(self.device, address, len(self.mapped), len(self.mapped))
        self.context = ggml.init(InitParams(1 << 20, None, True))
        self.tensors, self.plain, self.values = {}, {}, {}
        for tensor in gguf.GGUFReader(path).tensors:
            columns, rows, experts = (int(n) for n in tensor.shape)
            for tensors, name in ((self.tensors, tensor.name), (self.plain, f"the CPU's {tensor.name}")):
                made = tensors[tensor.name] = ggml.new_tensor_3d(self.context, int(tensor.tensor_type), columns, rows, experts)
                ggml.set_name(made, name.encode())  # with another name it is no expert of the store
                ggml.backend_tensor_alloc(self.buffer, made, address + int(tensor.data_offset))
            if tensor.tensor_type.name in TYPES:
                of = ml_dtypes.bfloat16 if tensor.tensor_type.name == "BF16" else np.float16
                self.values[tensor.name] = array_at(address + int(tensor.data_offset), of, (experts, rows, columns))
        self.ours = ggml.backend_dev_init(self.device, None)
        self.cpu = ggml.backend_cpu_init()
        ggml.backend_cpu_set_n_threads(self.cpu, threads)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(
            ggml.backend_reg_get_proc_address(self.registry, b"ggml_backend_set_n_threads"))(self.ours, threads)

    def close(self):
        for backend in (self.ours, self.cpu):
            self.ggml.backend_free(backend)
        self.ggml.backend_buffer_free(self.buffer)
        self.ggml.free(self.context)

    def compute(self, names, case, random):
        """(ids, x, the plugin's results, the CPU's) of the products with these weights, which share ids and x."""
        ggml, (experts, used, shared, rows, tokens, columns, largest) = self.ggml, case
        per_token = 1 if shared else used
        room = 4 * tokens * (experts + per_token * columns + 2 * len(names) * used * rows) + (1 << 20)
        context = ggml.init(InitParams(room, None, False))
        whole = ggml.new_tensor_2d(context, TYPE_I32, experts, tokens)
        chosen = array_at(ggml.get_data(whole), np.int32, (tokens, experts))
        chosen[:] = random.permuted(np.tile(np.arange(experts, dtype=np.int32), (tokens, 1)), axis=1)
        ids = ggml.view_2d(context, whole, used, tokens, 4 * experts, 0) if used < experts else whole
        x = ggml.new_tensor_3d(context, TYPE_F32, columns, per_token, tokens)
        inputs = array_at(ggml.get_data(x), np.float32, (tokens, per_token, columns))
        inputs[:] = random.uniform(-largest, largest, inputs.shape)
        made = []
        for backend, tensors in ((self.ours, self.tensors), (self.cpu, self.plain)):
            graph = ggml.new_graph(context)
            products = [ggml.mul_mat_id(context, tensors[name], x, ids) for name in names]
            for product in products:
                if ggml.backend_dev_supports_op(self.device, product) != (backend == self.ours):
                    sys.exit(f"{names}: not taken, or of no expert")
                ggml.build_forward_expand(graph, product)
            outputs = [array_at(ggml.get_data(product), np.float32, (tokens, used, rows)) for product in products]
            for output in outputs:
                output[:] = np.nan  # unwritten elements show
            if ggml.backend_graph_compute(backend, graph) != 0:
                sys.exit(f"{names}: not computed")
            made.append([output.copy() for output in outputs])
        kept = chosen[:, :used].copy(), inputs.copy(), *made
        ggml.free(context)
        return kept

    def view_is_left(self, name):
        """Returns whether the backend refuses a view of a part of a tensor, which is not an expert of the store."""
        ggml = self.ggml
        experts, rows, columns = self.values[name].shape
        context = ggml.init(InitParams(1 << 20, None, False))
        part = ggml.view_3d(context, self.tensors[name], columns, rows // 2, experts, 2 * columns, 2 * columns * rows, 0)
        product = ggml.mul_mat_id(context, part, ggml.new_tensor_3d(context, TYPE_F32, columns, 1, 2),
                                  ggml.new_tensor_2d(context, TYPE_I32, experts, 2))
        taken = ggml.backend_dev_supports_op(self.device, product)
        ggml.free(context)
        return not taken


def exact(values, ids, x):
    """The sums in doubles."""
    made = np.empty((*ids.shape, values.shape[1]))
    x = np.broadcast_to(x, (*ids.shape, x.shape[2])).astype(np.float64)
    for expert in np.unique(ids):
        where = ids == expert
        made[where] = x[where] @ values[expert].astype(np.float64).T
    return made


def differ(kind, values, ids, x, ours, cpu):
    """Describes the difference; empty: none."""
    if kind in HOST_TYPES or kind == "BF16" and os.uname().machine == "x86_64":
        return "" if np.array_equal(ours.view(np.uint32), cpu.view(np.uint32)) else f"by {np.abs(ours - cpu).max()}"
    finite = np.isfinite(cpu)
    if not np.array_equal(finite, np.isfinite(ours)):
        return "another number is not finite"
    want = exact(values, ids, x)[finite]
    mine, theirs = (float(np.sqrt(np.mean((made[finite] - want) ** 2))) if finite.any() else 0 for made in (ours, cpu))
    rounding = 2.0**-22 * float(np.abs(want).max(initial=0))
    return "" if mine <= max(1.1 * theirs, rounding) else f"error {mine}, of the CPU {theirs}"


def compare(path, plugin, threads):
    operations, random, wrong, count = Operations(load_ggml(), path, plugin, threads), np.random.default_rng(2), 0, 0
    layers = {shape: layer for layer, shape in enumerate(weights())}
    for kind in (*TYPES, *HOST_TYPES):
        for case in cases_of(kind):
            layer = layers[kind, case[0], case[3], case[5]]
            names = [f"blk.{layer}.ffn_{part}_exps.weight" for part in ("up", "gate")]
            for together in (names[:1], names):
                ids, x, ours, cpu = operations.compute(together, case, random)
                for name, mine, theirs in zip(together, ours, cpu):
                    said = differ(kind, operations.values.get(name), ids, x, mine, theirs)
                    count += 1
                    wrong += bool(said)
                    if said:
                        print(f"{kind} {case} {name}: {said}")
    if not operations.view_is_left("blk.0.ffn_gate_exps.weight"):
        print("a view of weights was taken")
        wrong += 1
    operations.close()
    print(f"compared: {count}")
    return 1 if wrong else 0


def unload(path, plugin):
    """Exit status 1 if a product differs or the library stays mapped."""
    ggml, case = load_ggml(), (4, 2, True, 512, 4, 256, 1)
    layer = weights().index(("BF16", 4, 512, 256))
    names = [f"blk.{layer}.ffn_{part}_exps.weight" for part in ("up", "gate")]
    for turn in range(3):
        first = Operations(ggml, path, plugin, 2)
        second = Operations(ggml, path, plugin, 2, first.registry)
        for operations in (first, second):
            _, _, ours, cpu = operations.compute(names, case, np.random.default_rng(turn))
            if not all(np.array_equal(a.view(np.uint32), b.view(np.uint32)) for a, b in zip(ours, cpu)):
                return 1
            operations.close()
        ggml.backend_unload(first.registry)
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            if os.path.basename(plugin) in maps.read():
                return 1
    print("unloaded")
    return 0


def main():
    if sys.argv[1] == "unload":
        return unload(*sys.argv[2:4])
    if sys.argv[1] == "make":
        make(sys.argv[2])
        return 0
    return compare(sys.argv[2], sys.argv[3], int(sys.argv[4]))


if __name__ == "__main__":
    sys.exit(main())
