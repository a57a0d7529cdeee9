# SPDX-License-Identifier: Apache-2.0
"""Version 5 of transformers: an experts' module has one parameter for all gates and ups, and its forward is looked up by name."""
from __future__ import annotations

import errno

from transformers.integrations import moe

from ._library import Error
from .experts_torch import experts_forward

NAME = "expertfs"
ARGUMENTS = {"experts_implementation": NAME}


def register() -> None:
    moe.ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)


def is_wanted(model, _loading: bool) -> bool:
    return getattr(model.config, "_experts_implementation", None) == NAME


def take_experts(model):
    """The names and modules of experts, without their parameters, which have no memory yet."""
    for name, module in model.named_modules():
        if not hasattr(module, "is_concatenated") or not hasattr(module, "num_experts"):
            continue  # not of use_experts_implementation()
        if module.has_bias or module.is_transposed or not module.is_concatenated or not module.has_gate or module.has_post_expert_norm:
            raise Error(errno.EOPNOTSUPP, f"{name}: experts with biases, without a gate, transposed, interleaved or with a norm are not run from a store")
        for parameter in list(module._parameters):
            del module._parameters[parameter]
        module._is_hf_initialized = True  # nothing to initialise
        yield name, module


def is_act_alone(module) -> bool:
    """Whether an expert's gate is its activation, times up."""
    return type(module)._apply_gate is moe._default_apply_gate


def ignore_unexpected(model, patterns: set[str]) -> None:
    model._keys_to_ignore_on_load_unexpected |= patterns
