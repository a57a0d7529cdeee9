#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama_quantize.py FILE OUT FTYPE: llama.cpp's quantisation of a GGUF file, such as Q4_K_M or MXFP4_MOE. Exit status 0;
1: it failed; 77: llama-cpp-python is missing."""
import ctypes
import os
import sys

try:
    import llama_cpp
except (ImportError, OSError, RuntimeError) as missing:
    print(f"llama_quantize.py: {missing}; tools/setup-python runtimes installs llama-cpp-python")
    sys.exit(77)


def main():
    source, out, ftype = sys.argv[1:]
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{ftype}", 38 if ftype == "MXFP4_MOE" else None)
    parameters.nthread = len(os.sched_getaffinity(0))
    parameters.allow_requantize = True
    failed = llama_cpp.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(parameters))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
