# SPDX-License-Identifier: Apache-2.0
"""Version 4 of transformers: a block's experts are a ModuleList, which a module like those of version 5 replaces, and the block's
forward is replaced by one that calls it."""
from __future__ import annotations

import errno
import types

import torch

from ._library import Error
from .experts_torch import experts_forward, run_full, run_full_as_weights, run_full_at_once

ARGUMENTS: dict = {}
#: The blocks whose code is known, by how they sum; those with a method moe() route by themselves.
BLOCKS = {
    "mixtral.modeling_mixtral.MixtralSparseMoeBlock": run_full, "olmoe.modeling_olmoe.OlmoeSparseMoeBlock": run_full,
    "qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock": run_full,
    "deepseek_v2.modeling_deepseek_v2.DeepseekV2MoE": run_full_at_once,
    "deepseek_v3.modeling_deepseek_v3.DeepseekV3MoE": run_full_as_weights, "dots1.modeling_dots1.Dots1MoE": run_full_as_weights,
    "glm4_moe.modeling_glm4_moe.Glm4MoeMoE": run_full_as_weights}


def register() -> None:
    """There are no names of implementations."""


def is_wanted(_model, loading: bool) -> bool:
    return loading


class Experts(torch.nn.Module):
    """What an experts' module of version 5 is."""

    def __init__(self, config, mlps, run):
        super().__init__()
        first = mlps[0]
        self.run_full = run
        gate = first.w1 if hasattr(first, "w1") else first.gate_proj
        self.config, self.num_experts, self.act_fn = config, len(mlps), first.act_fn
        self.hidden_dim, self.intermediate_dim = gate.in_features, gate.out_features

    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act_fn(gate) * up

    forward = experts_forward


def softmax_forward(self, hidden_states):
    """The forward of a block that chooses the best K of the softmax of all experts."""
    x = hidden_states.view(-1, hidden_states.shape[-1])
    logits = self.gate(x)
    weights, chosen = torch.topk(torch.nn.functional.softmax(logits, dim=1, dtype=torch.float), self.top_k, dim=-1)
    if getattr(self, "norm_topk_prob", True):  # Mixtral has no switch
        weights /= weights.sum(dim=-1, keepdim=True)
    return self.experts(x, chosen, weights.to(x.dtype)).reshape(hidden_states.shape), logits


def moe(self, hidden_states, top_k_index, top_k_weights):
    return self.experts(hidden_states, top_k_index, top_k_weights)


def _replace(model, name: str, block) -> None:
    kind = f"{type(block).__module__}.{type(block).__name__}".removeprefix("transformers.models.")
    if kind not in BLOCKS or any(parameter.dim() != 2 for parameter in block.experts.parameters()):
        raise Error(errno.EOPNOTSUPP, f"{name}: a {kind} is not run from a store with version 4 of transformers, or not with these experts")
    block.experts = Experts(model.config, block.experts, BLOCKS[kind])
    replaced = moe if hasattr(block, "moe") else softmax_forward
    setattr(block, "moe" if replaced is moe else "forward", types.MethodType(replaced, block))


def take_experts(model):
    """The names and modules of experts, which have no parameters."""
    for name, module in list(model.named_modules()):
        if isinstance(getattr(module, "experts", None), torch.nn.ModuleList):
            _replace(model, name, module)
        if isinstance(getattr(module, "experts", None), Experts):
            yield f"{name}.experts", module.experts


def is_act_alone(_module) -> bool:
    return True


def ignore_unexpected(model, patterns: set[str]) -> None:
    model._keys_to_ignore_on_load_unexpected = [*(model._keys_to_ignore_on_load_unexpected or ()), *patterns]
