# SPDX-License-Identifier: Apache-2.0
"""The forward of an experts' module of expertfs.transformers: by the library's products, or by torch's on decoded experts.

A token is some hundred experts of a few MB, so that objects for each tensor, as Expert and DLPack have them, would cost as
much as its products: tensors here are made of the address, and used only between the expert's arrival and its drop."""
from __future__ import annotations

import ctypes
import errno
import functools

import torch

from ._library import ROLES, CTensor, Error, check, lib
from .tensor import Expert

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


@torch.compiler.disable(reason="expertfs: experts of a store are run by the library, which fullgraph=True cannot trace: leave it out")
def experts_forward(self, hidden_states, top_k_index, top_k_weights):
    """The forward of an experts' module: [tokens, hidden], [tokens, K], [tokens, K] -> [tokens, hidden]."""
    binding = getattr(self, "_expertfs", None)
    if binding is None:
        raise Error(errno.EINVAL, "the model was not loaded by expertfs.transformers, so that its experts have no store")
    if torch.is_grad_enabled() and hidden_states.requires_grad:
        raise ValueError("expertfs: experts of a store are not trained: use torch.no_grad()")
    run = run_coded if binding.way == "coded" else getattr(self, "run_full", run_full)
    return run(self, binding, hidden_states.detach(), top_k_index, top_k_weights.detach())


def run_coded(_module, binding, hidden_states, top_k_index, top_k_weights):
    x = hidden_states.contiguous()
    out = torch.empty_like(x) if x.dtype != torch.float16 else torch.empty_like(x, dtype=torch.float32)
    if top_k_weights.dtype not in (torch.float32, torch.bfloat16):
        top_k_weights = top_k_weights.float()
    binding.session.ffn(binding.layer, x, top_k_index.contiguous(), top_k_weights.contiguous(), out, act=binding.act,
                        form="any", stack=binding.stack)
    return out.to(x.dtype)


class Matrices:
    """The matrices of a layer's experts as tensors of torch, without a copy."""

    def __init__(self, name: str, tensors):
        dtypes = {one.dtype for one in tensors}
        if len(dtypes) != 1 or not dtypes <= DTYPES.keys():
            raise Error(errno.EOPNOTSUPP, f"{name}: experts of {', '.join(sorted(dtypes))} are not run by torch: one type of {', '.join(DTYPES)} is")
        self._dtype = DTYPES[dtypes.pop()]
        self._shapes = {one.role: one.shape for one in tensors}

    def _tensor(self, address: int, rows: int, columns: int):
        memory = (ctypes.c_char * (rows * columns * self._dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=self._dtype).view(rows, columns)

    def of(self, addresses: dict) -> dict:
        """By role. A gate and an up that follow each other in memory are one "gate_up", as the module has it."""
        found = dict(addresses)
        rows, columns = self._shapes.get("gate", (0, 0))
        if rows and found["up"] == found["gate"] + rows * columns * self._dtype.itemsize:
            gate_up = self._tensor(found.pop("gate"), 2 * rows, columns)
            del found["up"]
            return {"gate_up": gate_up, "down": self._tensor(found["down"], *self._shapes["down"])}
        return {role: self._tensor(address, *self._shapes[role]) for role, address in found.items()}


def arrivals(binding, experts, counts):
    """Of a request: the index and the matrices of each expert when it arrives, which are valid until the next is taken."""
    request = binding.session.request(binding.layer, experts, counts, stack=binding.stack)
    found, number = ctypes.POINTER(CTensor)(), ctypes.c_uint32()
    while (index := request.next_index()) is not None:
        check(lib.efs_client_tensors(request.handle, index, ctypes.byref(found), ctypes.byref(number)))
        yield index, binding.matrices.of({ROLES[lib.efs_tensor_role(one.name)]: one.data for one in found[:number.value]})
        lib.efs_client_drop(request.handle, index)


def device_arrivals(binding, experts, counts):
    """The same in memory of the session's graphics processor, dropped after the work in PyTorch's current stream."""
    request = binding.session.request(binding.layer, experts, counts, form="device", stack=binding.stack)
    while (index := request.next_index()) is not None:
        tensors = {one.role: one for one in Expert(request, index).tensors}
        gate, up = tensors.get("gate"), tensors.get("up")
        if gate and up._address == gate._address + gate.nbytes:  # as in Matrices.of()
            gate.shape = (2 * gate.shape[0], gate.shape[1])
            tensors = {"gate_up": gate, "down": tensors["down"]}
        matrices = {role: torch.from_dlpack(one) for role, one in tensors.items()}
        del tensors, gate, up
        yield index, matrices
        matrices.clear()  # the caller has it, too


def run_expert(module, matrices, x):
    def product(role, of):
        return torch.nn.functional.linear(of, matrices[role].to(of.dtype))
    gate_up = product("gate_up", x) if "gate_up" in matrices else torch.cat((product("gate", x), product("up", x)), dim=-1)
    return product("down", module._apply_gate(gate_up))


def in_order(module, binding, hidden_states, top_k_index):
    """Tokens, their k and the outputs of each expert, in the order of the experts' numbers: of the rows, by k and then by token,
    that transformers' eager implementation multiplies."""
    tokens = len(hidden_states)
    sorted_experts, order = top_k_index.T.reshape(-1).sort(stable=True)
    experts, counts = (one.tolist() for one in torch.unique_consecutive(sorted_experts, return_counts=True))
    rows = [*zip((order % max(tokens, 1)).split(counts), (order // max(tokens, 1)).split(counts))]
    waiting, next_one = {}, 0
    arrive = binding.arrivals if hidden_states.device.type == "cpu" else functools.partial(device_arrivals, binding)
    for index, matrices in arrive(experts, counts) if experts else ():
        waiting[index] = run_expert(module, matrices, hidden_states[rows[index][0]])
        while next_one in waiting:
            yield *rows[next_one], waiting.pop(next_one)
            next_one += 1


def run_full(module, binding, hidden_states, top_k_index, top_k_weights):
    """The products of torch, summed as transformers' eager implementation does: rounded to the type of the sums each time."""
    return add_up(hidden_states.dtype, module, binding, hidden_states, top_k_index, top_k_weights)


def run_full_as_weights(module, binding, hidden_states, top_k_index, top_k_weights):
    """As run_full(), with sums in the type of the weights."""
    return add_up(top_k_weights.dtype, module, binding, hidden_states, top_k_index, top_k_weights)


def add_up(dtype, module, binding, hidden_states, top_k_index, top_k_weights):
    result = torch.zeros_like(hidden_states, dtype=dtype)
    for token, k, output in in_order(module, binding, hidden_states, top_k_index):
        result.index_add_(0, token, (output * top_k_weights[token, k, None]).to(result.dtype))
    return result.to(hidden_states.dtype)


def run_full_at_once(module, binding, hidden_states, top_k_index, top_k_weights):
    """As run_full(), but each token's K outputs are summed in the type of the weights, at once."""
    outputs = hidden_states.new_empty(*top_k_index.shape, hidden_states.shape[-1])
    for token, k, output in in_order(module, binding, hidden_states, top_k_index):
        outputs[token, k] = output
    return outputs.to(top_k_weights.dtype).mul_(top_k_weights[..., None]).sum(dim=1).to(hidden_states.dtype)
