# SPDX-License-Identifier: Apache-2.0
"""A LoRA adapter for the experts of a model, and its use: Llama() does not map a model that has one, llama-server does."""
import ctypes

import gguf
import llama_cpp
import numpy as np

RANK = 4


def make(model_path, path):
    """Writes an adapter with random weights for all matrices of experts."""
    writer, random = gguf.GGUFWriter(path, "qwen3moe"), np.random.default_rng(3)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for tensor in gguf.GGUFReader(model_path).tensors:
        if "_exps.weight" in tensor.name:
            columns, rows, experts = (int(n) for n in tensor.shape)
            for part, shape in (("a", (experts, RANK, columns)), ("b", (experts, rows, RANK))):
                writer.add_tensor(f"{tensor.name}.lora_{part}", random.normal(0, 0.05, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def use(model, path):
    """Sets the adapter for the model's context."""
    adapter = llama_cpp.llama_adapter_lora_init(model._model.model, path.encode())
    adapters, scales = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter), (ctypes.c_float * 1)(1.0)
    if not adapter or llama_cpp.llama_set_adapters_lora(model._ctx.ctx, adapters, 1, scales):
        raise RuntimeError(f"{path}: not loaded")
