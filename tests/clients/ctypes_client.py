#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ctypes_client.py LIBRARY STORE|MOUNT DIRECTORY: libexpertfs.so from Python, with ctypes only.

Requests every expert, layer by layer, of STORE or of the store mounted on MOUNT, and compares its tensors with those of
the checkpoint in DIRECTORY, from which the store was packed. For STORE it also reads every expert's file and
config.json. Exit status 0: all equal, 1: a difference."""
import ctypes
import json
import queue
import re
import struct
import sys
from ctypes import POINTER, byref, c_bool, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from pathlib import Path


class Error(ctypes.Structure):
    _fields_ = [("text", c_char * 1024)]


class FileInfo(ctypes.Structure):
    _fields_ = [("path", c_char * 1024), ("bytes", c_uint64), ("kind", c_int), ("expert", c_uint32)]


class ClientOptions(ctypes.Structure):
    """struct efs_client_options."""
    _fields_ = [("workers", c_uint), ("budget_bytes", c_uint64),
                ("reserved_bytes", c_uint64), ("coded_only", c_bool), ("no_state", c_bool), ("warm", c_bool),
                ("prefetch", c_char_p), ("log", c_void_p), ("log_arg", c_void_p)]


class Need(ctypes.Structure):
    _fields_ = [("expert", c_uint32), ("tokens", c_uint32)]


class Tensor(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_int), ("dims", c_uint32), ("shape", c_uint64 * 8), ("bytes", c_uint64),
                ("data", c_void_p), ("shards", c_void_p), ("shard_count", c_uint32), ("shard_elements", c_uint32)]


FORM_FULL, FORM_CODED, FORM_ANY = 0, 1, 2
FILE_EXPERT = 1
Done = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_size_t)


def load(path):
    library = ctypes.CDLL(path)
    for name, result, arguments in (
            ("efs_version", c_char_p, []),
            ("efs_file_count", c_uint32, [c_void_p]),
            ("efs_file_info", c_int, [c_void_p, c_uint32, POINTER(FileInfo)]),
            ("efs_read", None, [c_void_p, c_uint32, c_void_p, c_uint64, c_void_p, c_size_t, Done, c_void_p]),
            ("efs_dtype_name", c_char_p, [c_int]),
            ("efs_client_open", c_int, [c_char_p, POINTER(ClientOptions), POINTER(c_void_p), POINTER(Error)]),
            ("efs_client_close", None, [c_void_p]),
            ("efs_client_fs", c_void_p, [c_void_p]),
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


def opened(library, path, budget_bytes=256 << 20):
    """A client of a store or of a mount."""
    options, error, client = ClientOptions(budget_bytes=budget_bytes), Error(), c_void_p()
    if library.efs_client_open(path.encode(), byref(options), byref(client), byref(error)) < 0:
        raise OSError(error.text.decode())
    return client


class Files:
    """The files of the store that a client has opened."""

    def __init__(self, library, client):
        self.library, self.handle = library, c_void_p(library.efs_client_fs(client))
        self.answers = queue.Queue()
        # keeps a reference, because the library calls it
        self.done = Done(lambda arg, error, size: self.answers.put((error, size)))

    def files(self):
        info = FileInfo()
        for number in range(self.library.efs_file_count(self.handle)):
            self.library.efs_file_info(self.handle, number, byref(info))
            yield number, info.path.decode(), info.bytes, info.kind

    def read(self, number, size):
        data = ctypes.create_string_buffer(size)
        self.library.efs_read(self.handle, number, None, 0, data, size, self.done, None)
        error, got = self.answers.get()
        return data.raw[:got] if error == 0 else None


def tensors(data):
    """name -> (dtype, shape, bytes) of a safetensors file in memory."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]])
            for name, entry in header.items()}


def compare(files, originals):
    """The numbers of experts, tensors and differences in the experts' files."""
    experts = [(number, path, size) for number, path, size, kind in files.files() if kind == FILE_EXPERT]
    count = different = 0
    for number, path, size in experts:
        for name, tensor in tensors(files.read(number, size)).items():
            count += 1
            if originals.get(name) != tensor:
                print(f"ctypes: {path}: {name} is DIFFERENT")
                different += 1
    return len(experts), count, different


def layers_of(originals):
    """layer -> its experts, from the names of the tensors."""
    layers = {}
    for name in originals:
        found = re.search(r"layers\.(\d+)\..*experts\.(\d+)\.", name)
        if found:
            layers.setdefault(int(found.group(1)), set()).add(int(found.group(2)))
    return layers


def ask(library, client, originals):
    """Requests every layer's experts in one request each: the numbers of experts, tensors and differences."""
    error = Error()
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
    return experts, count, different


def main():
    if len(sys.argv) != 4:
        print(__doc__)
        return 2
    library, directory = load(sys.argv[1]), Path(sys.argv[3])
    originals = {}
    for path in directory.glob("*.safetensors"):
        originals.update(tensors(path.read_bytes()))
    client = opened(library, sys.argv[2])
    experts, count, different = ask(library, client, originals)
    print(f"ctypes: asked for {experts} experts, {count} tensors, {different} different")
    same = count > 0 and not different
    if same and not Path(sys.argv[2]).is_dir():
        files = Files(library, client)
        number, size = next((number, size) for number, path, size, _ in files.files() if path == "config.json")
        same = files.read(number, size) == (directory / "config.json").read_bytes()
        print(f"ctypes: config.json {'equal' if same else 'DIFFERENT'}")
        experts, count, different = compare(files, originals)
        print(f"ctypes: libexpertfs {library.efs_version().decode()}: {experts} experts, {count} tensors, {different} different")
        same = same and experts and count and not different
    library.efs_client_close(client)
    try:
        opened(library, str(directory / "no store"))
        print("ctypes: what is no store was opened")
        same = False
    except OSError:
        pass
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
