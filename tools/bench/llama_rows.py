# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run llama_rows: rows of a large table (GET_ROWS of ggml) from disk, by libggml-expertfs.so on the file in place,
over ggml's CPU backend on the mapped file, without advice and with MADV_RANDOM.

Makes a GGUF file with one F16 table and an expert. The ways alternate, each cold, in a new process and a memory cgroup;
each computes the same random batches. Prints rows a second, medians with the lowest and highest, bytes read from disk a
row, and the ratio to the better mapping.
Exit status 0; 1: a way failed, or the rows differ; 77: no cgroups, or a package is missing."""
import argparse
import ctypes
import functools
import hashlib
import json
import mmap
import os
import subprocess
import sys
import time

from cgroup import Cgroup
from common import ROOT, WORK, drop, tool
from llama import bytes_of
from runner import ROUNDS, Rows, limited, spread, turns

sys.path.insert(0, os.path.join(ROOT, "tests", "clients"))
WAYS = ("expertfs", "mapped", "mapped random")
TABLE, EXPERT = "table.F16", "blk.0.ffn_gate_exps.weight"


def make(path, size, columns):
    """The GGUF file with a table of `size` bytes. The table is last, so the file grows to its size."""
    import gguf
    import numpy as np
    random = np.random.default_rng(1)
    f16, rows = gguf.GGMLQuantizationType.F16, size // (2 * columns)
    writer = gguf.GGUFWriter(path + ".part", "qwen3moe")
    writer.add_block_count(1)
    expert = random.uniform(-1, 1, (2, 64, columns)).astype(np.float16)
    writer.add_tensor(EXPERT, expert, raw_dtype=f16)
    writer.add_tensor_info(TABLE, (rows, columns), np.dtype(np.float16), rows * columns * 2, f16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    out = writer.fout[0]
    writer.write_padding(out, out.tell())
    out.write(expert.tobytes())
    writer.write_padding(out, out.tell())
    left = rows * columns * 2
    while left:
        part = random.integers(0, 1 << 64, min(left, 64 << 20) // 8, dtype=np.uint64) & np.uint64(0x3fff3fff3fff3fff)
        out.write(part.tobytes())
        left -= part.nbytes
    writer.close()
    os.rename(path + ".part", path)


class Table:
    """The table in a buffer: of the backend of `plugin`, or of the CPU backend."""

    def __init__(self, path, plugin, advice):
        from ggml_rows import functions
        from ggml_shapes import InitParams, gguf, np
        self.ggml, tensors = functions(), {t.name: t for t in gguf.GGUFReader(path).tensors}
        with open(path, "rb") as file:
            self.mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        if advice is not None:
            self.mapped.madvise(advice)
        address = np.frombuffer(self.mapped, np.uint8).ctypes.data
        if plugin:
            device = self.ggml.backend_reg_dev_get(self.ggml.backend_load(plugin.encode()), 0)
            buffer = self.ggml.backend_dev_buffer_from_host_ptr(device, address, len(self.mapped), len(self.mapped))
            self.backend = self.ggml.backend_dev_init(device, None)
        else:
            from_ptr = ctypes.CDLL("libggml-base.so.0").ggml_backend_cpu_buffer_from_ptr
            from_ptr.restype, from_ptr.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
            buffer, self.backend = from_ptr(address, len(self.mapped)), self.ggml.backend_cpu_init()
        context = self.ggml.init(InitParams(1 << 20, None, True))
        for name in (EXPERT, TABLE):
            shape = (*(int(n) for n in tensors[name].shape), 1)[:3]
            made = self.ggml.new_tensor_3d(context, int(tensors[name].tensor_type), *shape)
            self.ggml.set_name(made, name.encode())
            self.ggml.backend_tensor_alloc(buffer, made, address + int(tensors[name].data_offset))
            if name == TABLE:
                self.tensor, (self.columns, self.rows) = made, shape[:2]
                if plugin:
                    self.check(device, context, made)

    def check(self, device, context, table):
        """The backend must take the operation; it compares a sample of the table with the file here."""
        node = self.ggml.get_rows(context, table, self.ggml.new_tensor_1d(context, 26, 1))
        if not self.ggml.backend_dev_supports_op(device, node):
            sys.exit("the backend does not take the rows of the table")

    def batches(self, count, rows):
        """Graphs of batches: [(graph, the address of the rows)]."""
        from ggml_shapes import InitParams, array_at, np
        made, random = [], np.random.default_rng(7)
        context = self.ggml.init(InitParams(count * ((rows + 2) * (4 * self.columns + 4) + (96 << 10)) + (1 << 20), None, False))
        for _ in range(count):
            ids = self.ggml.new_tensor_1d(context, 26, rows)
            array_at(self.ggml.get_data(ids), np.int32, (rows,))[:] = random.integers(0, self.rows, rows)
            node = self.ggml.get_rows(context, self.tensor, ids)
            graph = self.ggml.new_graph(context)
            self.ggml.build_forward_expand(graph, node)
            made.append((graph, array_at(self.ggml.get_data(node), np.uint8, (rows * self.columns * 4,))))
        return made


def measure(path, way, count, rows):
    """In a process of its own: prints rows a second and a checksum of all rows as JSON."""
    table = Table(path, tool("libggml-expertfs.so") if way == "expertfs" else None,
                  mmap.MADV_RANDOM if way == "mapped random" else None)
    batches = table.batches(count, rows)
    with open("/proc/self/io") as io:
        before = int(io.read().split("read_bytes: ")[1].split()[0])
    begin = time.monotonic()
    for graph, _ in batches:
        if table.ggml.backend_graph_compute(table.backend, graph) != 0:
            sys.exit("an operation failed")
    spent = time.monotonic() - begin
    with open("/proc/self/io") as io:
        read = int(io.read().split("read_bytes: ")[1].split()[0]) - before
    digest = hashlib.sha256()
    for _, out in batches:
        digest.update(out)
    print(json.dumps({"rows_per_s": count * rows / spent, "disk_bytes": read / (count * rows),
                      "sha256": digest.hexdigest()}))


def once(path, way, options):
    drop(path)
    environment = {**os.environ, **({"EXPERTFS_STORE": path, "EXPERTFS_BUDGET": options.budget} if way == "expertfs" else {})}
    with limited(bytes_of(options.limit, os.path.getsize(path))) as group:
        done = subprocess.run([sys.executable, __file__, "--measure", way, "--batches", str(options.batches), "--rows",
                               str(options.rows), path], stdout=subprocess.PIPE, text=True, env=environment,
                              preexec_fn=group.join, check=False)
    if done.returncode:
        sys.exit(f"{way}: exit status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(path, options):
    runs = turns({way: functools.partial(once, path, way, options) for way in WAYS}, options.rounds)
    print(f"table of {os.path.getsize(path) / 1e9:.1f} GB F16, rows of "
          f"{2 * options.columns} bytes, {options.batches} batches of {options.rows}, cgroup of {options.limit}, budget "
          f"{options.budget}, {options.rounds} rounds")
    rows = Rows("llama", row="rows", input=f"table of {os.path.getsize(path) / 1e9:.1f} GB F16", limit=options.limit, ours="backend")
    rates = {way: [run["rows_per_s"] for run in runs[way]] for way in WAYS}
    for way in WAYS:
        disk = rows.values([run["disk_bytes"] / 1024 for run in runs[way]], what=f"disk a row, {way}", unit="KiB")
        print(f"   {way:14} {spread(rates[way], 0):>30} rows/s  {disk:8.1f} KiB of disk a row")
    better = rows.compare(rates[WAYS[0]], {way: rates[way] for way in WAYS[1:]}, "rows/s", what="rows of a table")
    print(f"   ratio to the better mapping {better} ({better.peer}); wanted >= 5, best >= 10")
    if len({run["sha256"] for way in WAYS for run in runs[way]}) != 1:
        sys.exit("the ways have different rows")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="4GB", help="of the table (4GB)")
    parser.add_argument("--columns", type=int, default=1024, help="of a row (1024: 2 KiB)")
    parser.add_argument("--rows", type=int, default=64, help="in a batch (64)")
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--limit", default="1G", help="of memory: a size, or a part of the file (1G)")
    parser.add_argument("--budget", default="256M", help="of the backend (256M)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--dir", default=WORK)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("path", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.path, options.measure, options.batches, options.rows)
        return
    try:
        Cgroup(None).remove()
        import ggml_rows  # noqa: F401, ends with 77 if a package is missing
    except OSError as error:
        print(f"memory cgroups: {error}")
        sys.exit(77)
    os.makedirs(options.dir, exist_ok=True)
    path = os.path.join(options.dir, f"rows-{options.size}-{options.columns}.gguf")
    if not os.path.exists(path):
        make(path, int(float(options.size[:-2]) * {"MB": 10**6, "GB": 10**9}[options.size[-2:]]), options.columns)
    compare(path, options)


if __name__ == "__main__":
    main()
