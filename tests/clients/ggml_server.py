#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ggml_server.py LIBRARY PORT [THREADS]: the server of ggml's RPC backend on the loopback interface, with the processor
as its device. Runs until it is killed."""
import ctypes
import sys

import llama_cpp


def main():
    library, port, *threads = sys.argv[1:]
    rpc, registry = ctypes.CDLL(library), ctypes.CDLL("libggml.so.0")
    registry.ggml_backend_dev_by_name.restype = ctypes.c_void_p
    devices = (ctypes.c_void_p * 1)(registry.ggml_backend_dev_by_name(b"CPU"))
    llama_cpp.llama_backend_init()
    rpc.ggml_backend_rpc_start_server(f"127.0.0.1:{port}".encode(), None, ctypes.c_size_t(int(*threads or (2,))), ctypes.c_size_t(1), devices)
    return 1


if __name__ == "__main__":
    sys.exit(main())
