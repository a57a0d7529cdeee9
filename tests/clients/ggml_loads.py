#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ggml_loads.py MODEL OTHER FILE: how a preloaded backend changes the mappings of models while they are loaded.

MODEL and OTHER are GGUF files of the store. Prints the number of expertfs backends; how many bytes of OTHER are in the
page cache before, and at most while it is loaded and other threads create contexts of MODEL; and whether FILE, mapped
at the address of a model whose loading was aborted, is read ahead on request of the program."""
import ctypes
import mmap
import os
import sys
import threading
import time

from ggml import cached_bytes  # exit 77: llama-cpp-python is missing
import llama_cpp

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.posix_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
MAP_FIXED_NOREPLACE, MADV_WILLNEED, DEADLINE_S = 0x100000, 3, 200


def load(path, during=None):
    """The model, or None: during(loaded part) returned False, which aborted the loading."""
    params = llama_cpp.llama_model_default_params()
    if during:
        params.progress_callback = llama_cpp.llama_progress_callback(lambda part, _: during(part))
    return llama_cpp.llama_model_load_from_file(path.encode(), params)


def context(model):
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = 64
    made = llama_cpp.llama_init_from_model(model, params)
    if not made:
        sys.exit("no context")
    return made


def in_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def mapping_of(path):
    """(address, bytes)"""
    with open("/proc/self/maps") as maps:
        for line in maps:
            if line.rstrip("\n").endswith(" " + os.path.realpath(path)):
                begin, end = (int(n, 16) for n in line.split()[0].split("-"))
                return begin, end - begin
    return sys.exit(f"{path} is not mapped")


def at_once(model, other):
    """Creates the contexts while OTHER is being loaded."""
    first, contexts, cached = load(model), [], []

    def during(_):
        if not contexts:
            drop(other)  # the part that was read ahead with its header
        if len(contexts) < 10:
            in_thread(lambda: contexts.append(context(first)))
            time.sleep(0.1)  # wait until started reads are complete; otherwise this would find nothing
            cached.append(cached_bytes(other))
        return True

    second = load(other, during)
    context(second)
    print("cached of the other:", max(*cached, cached_bytes(other)))


def given_up(model, path):
    place = []

    def during(_):
        place.append(mapping_of(model))
        return False

    if load(model, during):
        sys.exit("a load that was given up has a model")
    address, room = place[0]
    size = min(room, os.path.getsize(path)) // mmap.PAGESIZE * mmap.PAGESIZE
    fd = os.open(path, os.O_RDONLY)
    there = libc.mmap(address, size, mmap.PROT_READ, mmap.MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0)
    if there != address:
        print("read ahead: the place is taken")
        return
    libc.posix_madvise(there, size, MADV_WILLNEED)
    end = time.monotonic() + DEADLINE_S
    while cached_bytes(path) < size and time.monotonic() < end:
        time.sleep(0.05)
    print("read ahead:", cached_bytes(path) >= size)


def main():
    model, other, path = sys.argv[1:]
    print("cached before:", cached_bytes(other))
    ggml = ctypes.CDLL("libggml.so.0")
    ggml.ggml_backend_reg_name.restype = ctypes.c_char_p
    ggml.ggml_backend_reg_name.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_reg_get.restype = ctypes.c_void_p
    llama_cpp.llama_backend_init()
    ggml.ggml_backend_load_all()
    names = [ggml.ggml_backend_reg_name(ggml.ggml_backend_reg_get(i)) for i in range(ggml.ggml_backend_reg_count())]
    print("backends of ours:", names.count(b"expertfs"))
    given_up(model, path)
    at_once(model, other)
    return 0


if __name__ == "__main__":
    sys.exit(main())
