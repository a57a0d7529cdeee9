#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ggml_rows.py make FILE [SEED] | run FILE PLUGIN [mapped | placed]: rows of large tables (GET_ROWS) by
libggml-expertfs.so and by ggml's CPU backend.

make writes a GGUF file with tables of some types and an expert. run maps it and compares the bits of the rows of some
batches; EXPERTFS_STORE names the store of the file. Prints the number of compared batches, how many of the wrong ones
the backend did not take, and how much of the file is in the page tables. With "mapped" it waits for a line of standard
input when the file is mapped, with "placed" when the backend has its tensors. Exit status 0; 1: a difference; 77: a
package is missing."""
import ctypes
import mmap
import sys

from ggml import mapped_bytes
from ggml_shapes import InitParams, TYPE_F32, TYPE_I32, array_at, gguf, load_ggml, np, quantised

COLUMNS = 512
TABLES = {"F16": 70000, "Q8_0": 130000, "Q4_K": 240000, "F32": 33000}  # rows: 64 MiB and more
BATCHES = (1, 64, 700)


def make(path, seed=1):
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(1)
    for kind, rows in TABLES.items():
        some = random.uniform(-1, 1, (1000, COLUMNS)).astype(np.float32)
        if kind in ("F16", "F32"):
            some, raw = some.astype(np.float16 if kind == "F16" else np.float32), gguf.GGMLQuantizationType[kind]
        else:
            some, raw = quantised(kind, some)
        table = np.resize(some, (rows, some.shape[1]))
        writer.add_tensor(f"table.{kind}", np.roll(table, 1, axis=0), raw_dtype=raw)
    expert = random.uniform(-1, 1, (2, 64, COLUMNS)).astype(np.float16)
    writer.add_tensor("blk.0.ffn_gate_exps.weight", expert, raw_dtype=gguf.GGMLQuantizationType.F16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def functions():
    """load_ggml() and the functions that only tables need."""
    ggml = load_ggml()
    p, i64 = ctypes.c_void_p, ctypes.c_int64
    base = ctypes.CDLL("libggml-base.so.0")
    for name, arguments in (("ggml_get_rows", [p, p, p]), ("ggml_new_tensor_1d", [p, ctypes.c_int, i64])):
        function = getattr(base, name)
        function.restype, function.argtypes = p, arguments
        setattr(ggml, name[5:], function)
    return ggml


def rows_of(ggml, backend, device, context, table, ids):
    """The rows by a backend; None: the device does not take the operation."""
    where = ggml.new_tensor_1d(context, TYPE_I32, len(ids))
    array_at(ggml.get_data(where), np.int32, (len(ids),))[:] = ids
    node = ggml.get_rows(context, table, where)
    if device and not ggml.backend_dev_supports_op(device, node):
        return None
    graph = ggml.new_graph(context)
    ggml.build_forward_expand(graph, node)
    out = array_at(ggml.get_data(node), np.float32, (len(ids), COLUMNS))
    out[:] = np.nan
    if ggml.backend_graph_compute(backend, graph) != 0:
        return None
    return out.copy()


def pause(at, where):
    if at == where:
        print(at, flush=True)
        sys.stdin.readline()


def compare(path, plugin, wait=None):
    ggml, wrong, left, count = functions(), 0, 0, 0
    registry = ggml.backend_load(plugin.encode())
    device = ggml.backend_reg_dev_get(registry, 0)
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        mapped.madvise(mmap.MADV_RANDOM)
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    pause("mapped", wait)
    buffer = ggml.backend_dev_buffer_from_host_ptr(device, address, len(mapped), len(mapped))
    tensors, ours, cpu = ggml.init(InitParams(1 << 20, None, True)), ggml.backend_dev_init(device, None), ggml.backend_cpu_init()
    tables = {}
    for tensor in gguf.GGUFReader(path).tensors:
        made = ggml.new_tensor_3d(tensors, int(tensor.tensor_type), *(int(n) for n in (*tensor.shape, 1)[:3]))
        ggml.set_name(made, tensor.name.encode())
        ggml.backend_tensor_alloc(buffer, made, address + int(tensor.data_offset))
        tables[tensor.name] = made
    pause("placed", wait)
    made = []
    for backend in (ours, cpu):  # the CPU last: it maps pages
        for kind, rows in TABLES.items():
            for batch in BATCHES:
                context = ggml.init(InitParams(8 << 20, None, False))
                ids = np.random.default_rng(batch).integers(0, rows, batch, dtype=np.int32)
                made.append(rows_of(ggml, backend, device if backend == ours else None, context, tables[f"table.{kind}"], ids))
                ggml.free(context)
        if backend == ours:
            print("mapped:", mapped_bytes(path))
    half = len(made) // 2
    for mine, theirs in zip(made[:half], made[half:]):
        count += 1
        left += mine is None
        wrong += mine is None or not np.array_equal(mine.view(np.uint32), theirs.view(np.uint32))
    context = ggml.init(InitParams(1 << 20, None, False))
    outside = rows_of(ggml, ours, device, context, tables["table.F16"], [TABLES["F16"]])
    wrong += outside is not None
    ggml.free(context)
    print(f"left: {left}")
    print(f"compared: {count}, wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(make(sys.argv[2], *map(int, sys.argv[3:])) if sys.argv[1] == "make" else compare(*sys.argv[2:]))
