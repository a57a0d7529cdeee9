#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ctypes_client.py LIBRARY STORE|MOUNT DIRECTORY: libexpertfs.so from Python, with nothing but ctypes.

Asks for every expert, layer by layer, of STORE or of a store that is mounted on MOUNT, and compares its tensors with
those of the checkpoint in DIRECTORY, which it was packed from. Of STORE also leases every expert and reads config.json
through the library. Exit 0: all equal, 1: not."""
import ctypes
import json
import mmap
import queue
import re
import struct
import sys
from ctypes import POINTER, byref, c_bool, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from pathlib import Path


class Options(ctypes.Structure):
    """The first fields of struct efs_options; the others are zero, their default, in the room behind."""
    _fields_ = [("workers", c_uint), ("budget_bytes", c_uint64), ("readahead_bytes", c_uint64),
                ("reserved_bytes", c_uint64), ("per_file_bytes", c_uint64), ("full_pool", c_bool),
                ("lease_wait", c_bool), ("prealloc", c_bool), ("no_direct", c_bool), ("others", c_char * 512)]


class Error(ctypes.Structure):
    _fields_ = [("text", c_char * 1024)]


class FileInfo(ctypes.Structure):
    _fields_ = [("path", c_char * 1024), ("bytes", c_uint64), ("kind", c_int), ("expert", c_uint32)]


class ClientOptions(ctypes.Structure):
    _fields_ = [("threads", c_uint), ("store", POINTER(Options)), ("keep_bytes", c_uint64)]


class Need(ctypes.Structure):
    _fields_ = [("expert", c_uint32), ("tokens", c_uint32)]


class Tensor(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_int), ("dims", c_uint32), ("shape", c_uint64 * 8), ("bytes", c_uint64),
                ("data", c_void_p), ("shards", c_void_p), ("shard_count", c_uint32), ("shard_elements", c_uint32)]


FORM_FULL, FORM_CODED = 0, 1
FILE_EXPERT = 1
Done = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_size_t)
Leased = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)


def load(path):
    library = ctypes.CDLL(path)
    for name, result, arguments in (
            ("efs_version", c_char_p, []),
            ("efs_open", c_int, [c_char_p, POINTER(Options), POINTER(c_void_p), POINTER(Error)]),
            ("efs_close", None, [c_void_p]),
            ("efs_file_count", c_uint32, [c_void_p]),
            ("efs_file_info", c_int, [c_void_p, c_uint32, POINTER(FileInfo)]),
            ("efs_read", None, [c_void_p, c_uint32, c_void_p, c_uint64, c_void_p, c_size_t, Done, c_void_p]),
            ("efs_lease", None, [c_void_p, c_uint32, Leased, c_void_p]),
            ("efs_lease_fd", c_int, [c_void_p]),
            ("efs_lease_data", c_void_p, [c_void_p]),
            ("efs_lease_release", None, [c_void_p]),
            ("efs_dtype_name", c_char_p, [c_int]),
            ("efs_client_open", c_int, [c_char_p, POINTER(ClientOptions), POINTER(c_void_p), POINTER(Error)]),
            ("efs_client_close", None, [c_void_p]),
            ("efs_client_begin", c_int, [c_void_p, c_char_p, c_uint32, POINTER(Need), c_uint32, c_int,
                                         POINTER(c_void_p), POINTER(Error)]),
            ("efs_client_wait_any", c_int, [c_void_p, c_int, POINTER(c_uint32), POINTER(c_int)]),
            ("efs_client_wait", c_int, [c_void_p]),
            ("efs_client_tensors", c_int, [c_void_p, c_uint32, POINTER(POINTER(Tensor)), POINTER(c_uint32)]),
            ("efs_client_drop", None, [c_void_p, c_uint32]),
            ("efs_client_release", None, [c_void_p])):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Store:
    def __init__(self, library, path, budget_bytes):
        self.library, self.handle = library, c_void_p()
        self.answers = queue.Queue()
        # kept here: the library calls them while it is open
        self.leased = Leased(lambda arg, error, lease: self.answers.put((arg, error, lease)))
        self.done = Done(lambda arg, error, size: self.answers.put((arg, error, size)))
        options, error = Options(budget_bytes=budget_bytes, full_pool=True, lease_wait=True), Error()
        if library.efs_open(path.encode(), byref(options), byref(self.handle), byref(error)) < 0:
            raise OSError(error.text.decode())

    def files(self):
        info = FileInfo()
        for number in range(self.library.efs_file_count(self.handle)):
            self.library.efs_file_info(self.handle, number, byref(info))
            yield number, info.path.decode(), info.bytes, info.kind

    def read(self, number, size):
        data = ctypes.create_string_buffer(size)
        self.library.efs_read(self.handle, number, None, 0, data, size, self.done, None)
        _, error, got = self.answers.get()
        return data.raw[:got] if error == 0 else None

    def close(self):
        self.library.efs_close(self.handle)


def tensors(data):
    """name -> (dtype, shape, bytes) of a safetensors file in memory."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]])
            for name, entry in header.items()}


def compare(store, originals):
    """Experts, tensors and differences."""
    experts = {number: (path, size) for number, path, size, kind in store.files() if kind == FILE_EXPERT}
    count = different = 0
    for number in experts:
        store.library.efs_lease(store.handle, number, store.leased, number)
    for _ in experts:
        number, error, lease = store.answers.get()
        path, size = experts[number or 0]
        if error < 0:
            print(f"ctypes: {path}: error {error}")
            different += 1
            continue
        mapped = ctypes.string_at(store.library.efs_lease_data(lease), size)
        with mmap.mmap(store.library.efs_lease_fd(lease), size, access=mmap.ACCESS_READ) as own:
            different += own[:] != mapped
        for name, tensor in tensors(mapped).items():
            count += 1
            if originals.get(name) != tensor:
                print(f"ctypes: {path}: {name} is DIFFERENT")
                different += 1
        store.library.efs_lease_release(lease)
    return len(experts), count, different


def layers_of(originals):
    """layer -> its experts, from the names of the tensors."""
    layers = {}
    for name in originals:
        found = re.search(r"layers\.(\d+)\..*experts\.(\d+)\.", name)
        if found:
            layers.setdefault(int(found.group(1)), set()).add(int(found.group(2)))
    return layers


def ask(library, path, originals):
    """Every layer's experts as one request: experts, tensors and differences."""
    store, error, client = Options(budget_bytes=256 << 20, full_pool=True, lease_wait=True), Error(), c_void_p()
    options = ClientOptions(store=ctypes.pointer(store), keep_bytes=1 << 20)
    if library.efs_client_open(path.encode(), byref(options), byref(client), byref(error)) < 0:
        raise OSError(error.text.decode())
    experts = count = different = 0
    for layer, numbers in sorted(layers_of(originals).items()):
        needs, request = (Need * len(numbers))(*((number, 1) for number in sorted(numbers))), c_void_p()
        if library.efs_client_begin(client, b"", layer, needs, len(needs), FORM_FULL, byref(request), byref(error)) < 0:
            raise OSError(error.text.decode())
        index, found, tensors_there, status = c_uint32(), c_uint32(), POINTER(Tensor)(), c_int()
        while library.efs_client_wait_any(request, -1, byref(index), byref(status)) == 1:
            experts += 1
            if status.value < 0 or library.efs_client_tensors(request, index, byref(tensors_there), byref(found)) < 0:
                print(f"ctypes: layer {layer}, expert {needs[index.value].expert}: error {status.value}")
                different += 1
                continue
            for tensor in tensors_there[:found.value]:
                count += 1
                here = (library.efs_dtype_name(tensor.dtype).decode(), list(tensor.shape[:tensor.dims]),
                        ctypes.string_at(tensor.data, tensor.bytes))
                if originals.get(tensor.name.decode()) != here:
                    print(f"ctypes: {tensor.name.decode()} is DIFFERENT")
                    different += 1
            library.efs_client_drop(request, index)
        library.efs_client_release(request)
    library.efs_client_close(client)
    return experts, count, different


def main():
    if len(sys.argv) != 4:
        print(__doc__)
        return 2
    library, directory = load(sys.argv[1]), Path(sys.argv[3])
    originals = {}
    for path in directory.glob("*.safetensors"):
        originals.update(tensors(path.read_bytes()))
    experts, count, different = ask(library, sys.argv[2], originals)
    print(f"ctypes: asked for {experts} experts, {count} tensors, {different} different")
    if different or not count:
        return 1
    if Path(sys.argv[2]).is_dir():
        return 0
    try:
        Store(library, str(directory / "no store"), 0)
        print("ctypes: what is no store was opened")
        return 1
    except OSError as error:
        refused = str(error)
    store = Store(library, sys.argv[2], 256 << 20)
    number, size = next((number, size) for number, path, size, _ in store.files() if path == "config.json")
    same = store.read(number, size) == (directory / "config.json").read_bytes()
    experts, count, different = compare(store, originals)
    store.close()
    print(f"ctypes: libexpertfs {library.efs_version().decode()}: {experts} experts, {count} tensors, {different} different; "
          f"config.json {'equal' if same else 'DIFFERENT'}; no store: \"{refused}\"")
    return 0 if same and experts and count and not different and refused else 1


if __name__ == "__main__":
    sys.exit(main())
